"""Documents as lines of JSON: flat ones, and those of ``bin/corpus``.

flat    {"id", "url", "timestamp", "text", "mime", "title", "status", "bytes", "quality",
         "container", "offset", "length", "digest", "of": [container, offset], "revisitOf",
         "ofDigest"}
corpus  {"record": {"originalUrl", "timestamp", …}, "payload": {"string": {"text", "html": …}}}

Of a flat line `url` must be there; an `id` that is missing is made of timestamp and URL. `of` is
where the payload of a revisit is, `revisitOf` (of ``record`` in those of a corpus) which capture:
``{"originalUrl", "timestamp"}``, and `ofDigest` what digest it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from dedupindex.cover.relation import Document
from dedupindex.digest import Digest, is_cut
from dedupindex.errors import BadDate, BadDigest, BadSource
from dedupindex.timestamps import check_date, check_digits, digits_of_date

_TEXTS = (  # of a line of bin/corpus: where its text may stand, the best first
    ("payload", "string", "html", "main"),
    ("payload", "string", "text"),
    ("payload", "string"),
)
_REVISIT = "warc/revisit"  # the media type of one whose original is not known
_TITLE = ("payload", "string", "html", "title")


def document(line: bytes, where: str) -> Document:
    """The document of a line; raises `BadSource`, which says where."""
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadSource(f"{where} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise BadSource(f"{where} is no JSON object")
    record = found.get("record")
    try:
        return _of_corpus(found, record) if isinstance(record, dict) else _flat(found)
    except (BadDate, TypeError, ValueError) as error:
        raise BadSource(f"{where} is no document: {error}") from error


def _flat(found: Mapping[str, Any]) -> Document:
    url, moment = _text(found, "url") or "", _digits(found.get("timestamp"))
    if not url:
        raise ValueError("it has no url")
    size = found.get("bytes", found.get("size"))
    quality = found.get("quality")
    text = _text(found, "text") or ""
    return Document(
        id=_text(found, "id") or f"{moment or '-'}/{url}",
        url=url,
        timestamp=moment,
        text=text,
        mime=_text(found, "mime"),
        title=_text(found, "title"),
        status=_whole(found.get("status")),
        size=len(text.encode("utf-8", "replace")) if size is None else _whole(size),
        quality=None if quality is None else float(quality),
        container=_text(found, "container"),
        offset=_whole(found.get("offset")),
        length=_whole(found.get("length")),
        of=_place(found.get("of")),
        names=_named(found.get("revisitOf")),
        digest=_digest(found.get("digest")),
        of_digest=_digest(found.get("ofDigest")),
    )


def _of_corpus(found: Mapping[str, Any], record: Mapping[str, Any]) -> Document:
    url, moment = _text(record, "originalUrl") or "", _digits(record.get("timestamp"))
    if not url:
        raise ValueError("its record has no originalUrl")
    text = next(filter(None, (_at(found, path) for path in _TEXTS)), "")
    size = record.get("compressedSize")
    mime, named = _text(record, "mime"), _named(record.get("revisitOf"))
    digest, again = _digest(record.get("digest")), named is not None or mime == _REVISIT
    return Document(
        id=f"{moment or '-'}/{url}",
        url=url,
        timestamp=moment,
        text=text,
        mime=None if mime == "-" else mime,
        title=_at(found, _TITLE) or None,
        status=_whole(record.get("status")),
        size=len(text.encode("utf-8", "replace")) if size is None else _whole(size),
        names=named,
        digest=None if again else digest,
        of_digest=digest if again else None,
    )


def _at(found: Any, path: tuple[str, ...]) -> str:
    """The text at a path; where values stand below it, it is called ``_``."""
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    if isinstance(found, dict):
        found = found.get("_")
    return found if isinstance(found, str) else ""


def _text(found: Mapping[str, Any], name: str) -> str | None:
    value = found.get(name)
    if value is not None and not isinstance(value, str):
        raise TypeError(f"its {name} is no text, but {value!r}")
    return value


def _whole(value: Any) -> int | None:
    if value is None or value == "-":
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 53:
        raise ValueError(f"{value!r} is no whole number")
    return value


def _place(value: Any) -> tuple[str, int] | None:
    if value is None:
        return None
    container, offset = value
    if not isinstance(container, str) or (at := _whole(offset)) is None:
        raise TypeError(f"{value!r} is no container with an offset")
    return container, at


def _named(value: Any) -> tuple[str, str] | None:
    """What a revisit names; None also for a date that is none, since no document has such."""
    if value is None:
        return None
    if not isinstance(value, dict) or not isinstance(url := value.get("originalUrl"), str):
        raise TypeError(f"{value!r} is no originalUrl with a timestamp")
    try:
        moment = _digits(value.get("timestamp"))
    except BadDate:
        return None
    return (url, moment) if moment else None


def _digest(value: Any) -> str | None:
    """A digest in one spelling; what is none, or was cut, is as good as not there."""
    try:
        digest = Digest.parse(value, unlabelled="sha1") if isinstance(value, str) else None
    except BadDigest:
        return None
    return None if digest is None or is_cut(digest.raw) else str(digest)


def _digits(value: Any) -> str | None:
    """14 digits of a time in 14 digits or as ISO 8601."""
    if value is None or value == "-":
        return None
    text = str(value).encode("utf-8", "replace")
    return (check_digits(text) if text.isdigit() else digits_of_date(check_date(text))).decode()
