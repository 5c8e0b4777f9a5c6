"""CDX answers: captures as lines, in the forms that clients ask for.

A client may write what a line says into its WARC, so a line says it to the letter or not at all:
a URL that the form cannot carry, such as one with a space, makes `value_of` raise `Unwritable`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath
from urllib.parse import quote

import orjson

from dedupindex.capture import Capture
from dedupindex.digest import Spelling
from dedupindex.timestamps import digits_of_date
from dedupindex.urlkey import urlkey
from server.api.cdx_query import FIELDS, CdxQuery
from server.responses import JSON, TEXT, Headers

_SHORT = {"original": "url", "mimetype": "mime", "statuscode": "status"}  # of pywb and OutbackCDX
_NONE = "-"


class Unwritable(Exception):
    """The URL cannot be written in this form of line."""


def value_of(capture: Capture, field: str, query: CdxQuery) -> str:
    """Return one field of a line; raises `Unwritable`."""
    match field:
        case "timestamp":
            return digits_of_date(capture.date).decode()
        case "digest":
            return capture.digest.spelled(Spelling(0, query.encoding))
        case "original":
            return _url(capture, query)
        case "urlkey":
            return _field(urlkey(capture.url).decode("utf-8", "surrogateescape"))
        case "mimetype":
            return _field(capture.mime.decode("utf-8", "surrogateescape"))
        case "statuscode":
            return str(capture.status) if capture.status else _NONE
        case "length":
            return str(capture.size) if capture.size_of_record and capture.size >= 0 else _NONE
        case "offset":
            return str(capture.offset) if capture.offset >= 0 else _NONE
        case "filename":
            return _field(PurePosixPath(capture.container).name)
    return _NONE  # redirect and robotflags: an original has none


def _url(capture: Capture, query: CdxQuery) -> str:
    try:
        url = capture.url.decode()
    except UnicodeDecodeError:
        raise Unwritable from None
    if query.output == "text" and len(url.split()) != 1:
        raise Unwritable
    return url


def _field(text: str) -> str:
    """Return the URL, escaped so that no client mistakes it if the line cannot carry it."""
    if text.isascii() and text.isprintable() and " " not in text:
        return text or _NONE
    return quote(text, safe="!\"#$%&'()*+,/:;<=>?@[]^`{|}~", errors="surrogateescape")


def writable(capture: Capture, query: CdxQuery) -> bool:
    """Return whether a line can carry the URL of a capture."""
    try:
        value_of(capture, "original", query)
    except Unwritable:
        return "original" not in query.fields
    return True


def written(captures: Iterable[Capture], query: CdxQuery) -> tuple[Headers, bytes]:
    """Return headers and body of the answer."""
    fields = query.fields
    rows = [[value_of(capture, field, query) for field in fields] for capture in captures]
    if query.output == "text":
        return TEXT, "".join([" ".join(row) + "\n" for row in rows]).encode()
    if query.output == "json":
        return JSON, orjson.dumps([list(query.named) or list(FIELDS), *rows] if rows else [])
    names = query.named or tuple(_SHORT.get(field, field) for field in FIELDS)
    items = [dict(zip(names, row, strict=True)) for row in rows]
    if query.output == "jsondict":
        return JSON, orjson.dumps(items)
    lines = []
    for capture, item in zip(captures, items, strict=True):
        head = [value_of(capture, field, query) for field in ("urlkey", "timestamp")]
        rest = {name: value for name, value in item.items() if name not in FIELDS[:2]}
        lines.append(" ".join(head).encode() + b" " + orjson.dumps(rest) + b"\n")
    return TEXT, b"".join(lines)
