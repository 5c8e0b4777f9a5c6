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

from dedupindex.cover.relation import Document
from dedupindex.digest import Digest, is_cut
from dedupindex.errors import BadDate, BadDigest, BadSource
from dedupindex.timestamps import check_date, check_digits, digits_of_date

_TEXTS = (  # the places of the text in a line of bin/corpus, the best first
    ("payload", "string", "html", "main"),
    ("payload", "string", "text"),
    ("payload", "string"),
)
_REVISIT = "warc/revisit"  # the media type of a revisit whose original is unknown
_TITLE = ("payload", "string", "html", "title")


def document(line: bytes, where: str) -> Document:
    """Parse a line; raises `BadSource`, with the place `where` in the message."""
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadSource(f"{where} is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise BadSource(f"{where} is no JSON object")
    record = fields.get("record")
    try:
        return _of_corpus(fields, record) if isinstance(record, dict) else _flat(fields)
    except (BadDate, TypeError, ValueError) as error:
        raise BadSource(f"{where} is no document: {error}") from error


def _flat(fields: Mapping[str, Any]) -> Document:
    url, timestamp = _text(fields, "url") or "", _digits(fields.get("timestamp"))
    if not url:
        raise ValueError("it has no url")
    quality, text = fields.get("quality"), _text(fields, "text") or ""
    return Document(
        id=_text(fields, "id") or f"{timestamp or '-'}/{url}",
        url=url,
        timestamp=timestamp,
        text=text,
        mime=_text(fields, "mime"),
        title=_text(fields, "title"),
        status=_whole(fields.get("status")),
        size=_size(fields.get("bytes", fields.get("size")), text),
        quality=None if quality is None else float(quality),
        container=_text(fields, "container"),
        offset=_whole(fields.get("offset")),
        length=_whole(fields.get("length")),
        original_place=_original_place(fields.get("of")),
        original_capture=_original_capture(fields.get("revisitOf")),
        digest=_digest(fields.get("digest")),
        original_digest=_digest(fields.get("ofDigest")),
    )


def _of_corpus(fields: Mapping[str, Any], record: Mapping[str, Any]) -> Document:
    url, timestamp = _text(record, "originalUrl") or "", _digits(record.get("timestamp"))
    if not url:
        raise ValueError("its record has no originalUrl")
    text = next(filter(None, (_text_at(fields, path) for path in _TEXTS)), "")
    mime, original = _text(record, "mime"), _original_capture(record.get("revisitOf"))
    digest, is_revisit = _digest(record.get("digest")), original is not None or mime == _REVISIT
    return Document(
        id=f"{timestamp or '-'}/{url}",
        url=url,
        timestamp=timestamp,
        text=text,
        mime=None if mime == "-" else mime,
        title=_text_at(fields, _TITLE) or None,
        status=_whole(record.get("status")),
        size=_size(record.get("compressedSize"), text),
        original_capture=original,
        digest=None if is_revisit else digest,
        original_digest=digest if is_revisit else None,
    )


def _size(stated: Any, text: str) -> int | None:
    return len(text.encode("utf-8", "replace")) if stated is None else _whole(stated)


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
        raise TypeError(f"its {name} is no text, but {value!r}")
    return value


def _whole(value: Any) -> int | None:
    if value is None or value == "-":
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 53:
        raise ValueError(f"{value!r} is no whole number")
    return value


def _original_place(value: Any) -> tuple[str, int] | None:
    if value is None:
        return None
    container, number = value
    if not isinstance(container, str) or (offset := _whole(number)) is None:
        raise TypeError(f"{value!r} is no container with an offset")
    return container, offset


def _original_capture(value: Any) -> tuple[str, str] | None:
    """Return URL and timestamp; None also for an invalid date, which matches no document."""
    if value is None:
        return None
    if not isinstance(value, dict) or not isinstance(url := value.get("originalUrl"), str):
        raise TypeError(f"{value!r} is no originalUrl with a timestamp")
    try:
        timestamp = _digits(value.get("timestamp"))
    except BadDate:
        return None
    return (url, timestamp) if timestamp else None


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
