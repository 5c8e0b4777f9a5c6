"""Parse documents from lines of JSON: flat objects, or the lines that ``bin/corpus`` writes.

flat    {"id", "url", "timestamp", "text", "mime", "title", "status", "bytes", "quality",
         "container", "offset", "length", "digest", "of": [container, offset], "revisitOf",
         "ofDigest"}
corpus  {"record": {"originalUrl", "timestamp", …}, "payload": {"string": {"text", "html": …}}}

A flat line must have a `url`; the default `id` is timestamp and URL. Of the original of a revisit
`of` is the place, `revisitOf` (also in ``record``) the ``{"originalUrl", "timestamp"}``, and
`ofDigest` the digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from dedupindex.digest import Digest, is_cut
from dedupindex.errors import BadDate, BadDigest, BadSource
from dedupindex.expression.evaluate import hostname
from dedupindex.timestamps import check_date, check_digits, date_of_digits, digits_of_date, seconds

_TEXTS = (  # the places of the text in a line of bin/corpus, the best first
    ("payload", "string", "html", "main"),
    ("payload", "string", "text"),
    ("payload", "string"),
)
_REVISIT = "warc/revisit"  # the media type of a revisit whose original is unknown
_TITLE = ("payload", "string", "html", "title")


def document(line: bytes, where: str) -> dict[str, Any]:
    """Parse a line to values of `document_store.COLUMNS`, and its ``text``; some may be absent.

    Raises `BadSource`, with the place `where` in the message.
    """
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadSource(f"{where} is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise BadSource(f"{where} is no JSON object")
    record = fields.get("record")
    try:
        row = _row(_as_flat(fields, record) if isinstance(record, dict) else fields)
    except (BadDate, TypeError, ValueError) as error:
        raise BadSource(f"{where} is not a document: {error}") from error
    digits = row["digits"]
    row["hostname"] = hostname(row["url"])
    row["timestamp"] = seconds(date_of_digits(digits.encode())) if digits else None
    for name, value in row.items():
        if isinstance(value, str):
            row[name] = value.replace("\0", "\ufffd")  # DuckDB cannot hold NUL
    return row


def _row(fields: Mapping[str, Any]) -> dict[str, Any]:
    url, digits = _text(fields, "url"), _digits(fields.get("timestamp"))
    if not url:
        raise ValueError("it has no url")
    quality, text = fields.get("quality"), _text(fields, "text") or ""
    return {
        "id": _text(fields, "id") or f"{digits or '-'}/{url}",
        "url": url,
        "digits": digits,
        "text": text,
        "mime": _text(fields, "mime"),
        "title": _text(fields, "title"),
        "status": _whole(fields.get("status")),
        "size": _whole(fields.get("bytes", fields.get("size"))),
        "quality": None if quality is None else float(quality),
        "container": _text(fields, "container"),
        "offset": _whole(fields.get("offset")),
        "length": _whole(fields.get("length")),
        "digest": _digest(fields.get("digest")),
        "of_digest": _digest(fields.get("ofDigest")),
        **_original_place(fields.get("of")),
        **_original_capture(fields.get("revisitOf")),
    }


def _as_flat(fields: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a line of ``bin/corpus`` as those of a flat one."""
    if not record.get("originalUrl"):
        raise ValueError("its record has no originalUrl")
    mime, original = record.get("mime"), record.get("revisitOf")
    is_revisit = mime == _REVISIT or bool(_original_capture(original))
    return {
        "url": record["originalUrl"],
        "timestamp": record.get("timestamp"),
        "text": next(filter(None, (_text_at(fields, path) for path in _TEXTS)), ""),
        "mime": None if mime == "-" else mime,
        "title": _text_at(fields, _TITLE) or None,
        "status": record.get("status"),
        "bytes": record.get("compressedSize"),
        "revisitOf": original,
        "ofDigest" if is_revisit else "digest": record.get("digest"),
    }


def _text_at(node: Any, path: tuple[str, ...]) -> str:
    """Return the text at a path; if other values stand below it, it has the key ``_``."""
    for name in path:
        node = node.get(name) if isinstance(node, dict) else None
    if isinstance(node, dict):
        node = node.get("_")
    return node if isinstance(node, str) else ""


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise TypeError(f"its {name} is not text, but {value!r}")
    return value


def _whole(value: Any) -> int | None:
    if value is None or value == "-":
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 53:
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _original_place(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    container, number = value
    if not isinstance(container, str) or (offset := _whole(number)) is None:
        raise TypeError(f"{value!r} is not a container with an offset")
    return {"of_container": container, "of_offset": offset}


def _original_capture(value: Any) -> dict[str, Any]:
    """Return URL and timestamp; nothing also for an invalid date, which matches no document."""
    if value is None:
        return {}
    if not isinstance(value, dict) or not isinstance(url := value.get("originalUrl"), str):
        raise TypeError(f"{value!r} is not an originalUrl with a timestamp")
    try:
        digits = _digits(value.get("timestamp"))
    except BadDate:
        return {}
    return {"of_url": url, "of_digits": digits} if digits else {}


def _digest(value: Any) -> str | None:
    """Return a digest in its canonical spelling; None if it is invalid or truncated."""
    try:
        digest = Digest.parse(value, unlabelled="sha1") if isinstance(value, str) else None
    except BadDigest:
        return None
    return None if digest is None or is_cut(digest.raw) else str(digest)


def _digits(value: Any) -> str | None:
    """Convert a time in 14 digits or ISO 8601 to 14 digits."""
    if value is None or value == "-":
        return None
    text = str(value).encode("utf-8", "replace")
    return (check_digits(text) if text.isdigit() else digits_of_date(check_date(text))).decode()
