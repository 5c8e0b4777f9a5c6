"""An original as answers carry it: JSON, or the header lines of a revisit.

The URL of an original is bytes from the web. JSON cannot hold all of them and a header line must
not, so both are made here and nowhere else.
"""

from __future__ import annotations

import codecs
import re
from base64 import b64encode
from typing import Any

from dedupindex.capture import Capture, Evidence, Uncommitted
from dedupindex.errors import Damaged


def original_as_json(capture: Capture) -> dict[str, Any]:
    """A capture as answers carry it; what is not known is null."""
    size = capture.size if capture.size >= 0 else None
    shown = url_as_json(capture.url)
    more: dict[str, Any] = {"committed": False} if isinstance(capture, Uncommitted) else {}
    return {
        "url": shown.pop("url"),
        "date": capture.date.decode(),
        "record_id": capture.record_id.decode("latin-1") or None,
        "digest": capture.digest.spelled(capture.spelling),
        "size": None if capture.size_of_record else size,
        "record_size": size if capture.size_of_record else None,
        "mime": capture.mime.decode("latin-1") or None,
        "status": capture.status or None,
        "container": _shown(capture.container) or None,
        "offset": capture.offset if capture.offset >= 0 else None,
        "evidence": _EVIDENCE[capture.evidence],
        **shown,
        **more,
    }


def url_as_json(url: bytes) -> dict[str, str]:
    """A URL as ``url``; what is no UTF-8 is escaped for people, and exact for programs."""
    try:
        return {"url": url.decode()}
    except UnicodeDecodeError:  # JSON has no bytes
        exact = b64encode(url).decode()
        return {"url": url.decode("utf-8", "dedupindex.percent"), "url_base64": exact}


_EVIDENCE = {Evidence.RECORD: "record", Evidence.ROW: "row", Evidence.NAMED: "revisit"}


def _shown(name: str) -> str:
    """A file's name as JSON can carry it: bytes that are no UTF-8 become ``\\xff``."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _percent(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    wrong = error.object[error.start : error.end]
    return "".join(f"%{byte:02X}" for byte in wrong), error.end


codecs.register_error("dedupindex.percent", _percent)

_UNWRITABLE = re.compile(rb"[\x00-\x1f\x7f]")


def header_lines(capture: Capture) -> bytes:
    """The WARC-Refers-To header lines of a revisit of `capture` (WARC 1.1 section 6.7.2), CRLF.

    Raises `Damaged` if a stored value holds a control character: written down, it would end its
    line and begin another of the sender's choice.
    """
    for value in (capture.url, capture.date):
        if _UNWRITABLE.search(value):
            raise Damaged(f"no header line can carry the stored value {value[:200]!r}")
    lines = b""
    if capture.record_id and not _UNWRITABLE.search(capture.record_id):  # revisits do without
        lines += b"WARC-Refers-To: <" + capture.record_id + b">\r\n"
    return (
        lines
        + b"WARC-Refers-To-Target-URI: "
        + capture.url
        + b"\r\nWARC-Refers-To-Date: "
        + capture.date
        + b"\r\n"
    )
