"""Render an original as JSON, or as the header lines of a revisit.

The URL of an original is bytes from the web, which neither JSON nor a header line can always hold.
"""

from __future__ import annotations

import codecs
from base64 import b64encode
from typing import Any

from dedupindex.capture import Capture, Evidence, Uncommitted
from dedupindex.errors import Damaged
from dedupindex.index.format.fast_answer import UNWRITABLE


def original_as_json(capture: Capture) -> dict[str, Any]:
    """Return the JSON object of a capture; unknown values are null."""
    size = capture.size if capture.size >= 0 else None
    url = url_as_json(capture.url)
    return {
        "url": url.pop("url"),
        "date": capture.date.decode(),
        "record_id": capture.record_id.decode("latin-1") or None,
        "digest": capture.digest.spelled(capture.spelling),
        "size": None if capture.size_of_record else size,
        "record_size": size if capture.size_of_record else None,
        "mime": capture.mime.decode("latin-1") or None,
        "status": capture.status or None,
        "container": _printable(capture.container) or None,
        "offset": capture.offset if capture.offset >= 0 else None,
        "evidence": _EVIDENCE[capture.evidence],
        **url,
        **stated_validators(capture),
        **({"committed": False} if isinstance(capture, Uncommitted) else {}),
    }


def stated_validators(capture: Capture) -> dict[str, str]:
    """Return ``etag`` and ``last_modified`` of a capture, as far as they are known."""
    known = {"etag": capture.etag, "last_modified": capture.last_modified}
    return {name: text.decode("latin-1") for name, text in known.items() if text}


def url_as_json(url: bytes) -> dict[str, str]:
    """Return ``url``; if it is not UTF-8, percent-encoded, with the exact ``url_base64``."""
    try:
        return {"url": url.decode()}
    except UnicodeDecodeError:
        exact = b64encode(url).decode()
        return {"url": url.decode("utf-8", "dedupindex.percent"), "url_base64": exact}


_EVIDENCE = {Evidence.RECORD: "record", Evidence.ROW: "row", Evidence.NAMED: "revisit"}


def _printable(name: str) -> str:
    """Return a file name with bytes that are not UTF-8 as ``\\xff``."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _percent(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    undecodable = error.object[error.start : error.end]
    return "".join(f"%{byte:02X}" for byte in undecodable), error.end


codecs.register_error("dedupindex.percent", _percent)


def header_lines(capture: Capture) -> bytes:
    """Return the WARC-Refers-To lines of a revisit of `capture` (WARC 1.1 section 6.7.2), CRLF.

    Raises `Damaged` if a stored value holds a control character, which could end its line and
    inject another.
    """
    for value in (capture.url, capture.date):
        if UNWRITABLE.search(value):
            raise Damaged(f"no header line can carry the stored value {value[:200]!r}")
    original = capture.url, capture.date
    lines = b"WARC-Refers-To-Target-URI: %b\r\nWARC-Refers-To-Date: %b\r\n" % original
    if capture.record_id and not UNWRITABLE.search(capture.record_id):  # it is optional
        return b"WARC-Refers-To: <%b>\r\n" % capture.record_id + lines
    return lines
