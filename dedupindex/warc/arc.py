"""ARC files, versions 1 and 2: a URL record (one line), a document, one line end.

The fields of the line are separated by spaces, but URLs and content types may contain spaces, too.
So the line is anchored on the address and date in its middle, and on the fields counted from its
end; a line with two anchors is ambiguous, and its document is refused. The third line of the
version block at the beginning of the file names the fields ("ARC File Format", Internet Archive,
1996; version 2 as in JWAT and Heritrix). Documents have neither record ids nor digests.
"""

from __future__ import annotations

import re
from functools import partial
from typing import ClassVar, NamedTuple

from dedupindex.errors import BadDate
from dedupindex.timestamps import check_digits, date_of_digits
from dedupindex.warc.framing import ASTRAY, Framing, complete
from dedupindex.warc.headers import BadHead, NoRecord, Values
from dedupindex.warc.record import CUT, EXTRA, MISSING, BrokenRecord, Record
from dedupindex.warc.window import Cursor, Window, cursor_at

HEADER, DOCUMENT = b"arc-header", b"arc-document"  # values of `Record.type`

_VERSION_1 = b"URL IP-address Archive-date Content-type Archive-length"
_VERSION_2 = (
    b"URL IP-address Archive-date Content-type Result-code "
    b"Checksum Location Offset Filename Archive-length"
)
_FIELDS_AT_END = {_VERSION_1: 0, _VERSION_2: 5}  # between content type and length
UNCLOSED_DOCUMENT = "a document is followed by neither a line end nor a document"
_LONGEST_LINE = 1 << 16  # bytes
_LONGEST_HEADER = 1 << 20

_CLOSING = re.compile(rb"(?:\r?\n)?")
_MIDDLE = rb" (?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9a-fA-F]*:[0-9a-fA-F:.]+|-|0) ([0-9]{4,20}) "
_ANCHOR = re.compile(rb"(?=" + _MIDDLE + rb")")
_LINE = re.compile(
    rb"([a-zA-Z][a-zA-Z0-9+.-]*:[^\n]*?)" + _MIDDLE + rb"(?:([^\n]*) )?([0-9]{1,18})"
)
_SCHEMES = rb"(?:https?|ftp|dns|filedesc|whois|gopher|nntp|mms|rtsp):"
_SCHEME = re.compile(_SCHEMES, re.IGNORECASE)
_LONGEST_SCHEME = 16  # bytes
_FILEDESC = re.compile(rb"filedesc:[^\n]* (-?[0-9]{1,18})\r?\n")


class _ArcLine(NamedTuple):
    """A URL record."""

    values: Values  # of `headers.COMMON`
    ambiguous: bool
    size: int  # bytes of the line with its end
    length: int  # bytes of the document


class ArcFields(NamedTuple):
    """The fields of a URL record."""

    url: bytes
    ip: bytes
    digits: bytes  # of the date
    mime: bytes  # empty if there is none


class ArcFraming(Framing):
    """ARC 1 and 2, with LF or CRLF."""

    candidates: ClassVar[re.Pattern[bytes]] = re.compile(rb"\n(?=" + _SCHEMES + rb")")

    def __init__(self) -> None:
        self.at_end = 0  # fields between content type and length, from the version block

    @staticmethod
    def begins(start: bytes) -> bool:
        """Return whether a file that begins with `start` is an ARC file."""
        line = start.lstrip(b"\r\n").partition(b"\n")[0].rstrip(b"\r")
        return start.startswith(b"filedesc:") or _LINE.fullmatch(line) is not None

    def record(self, cursor: Cursor, offset: int) -> Record:
        cursor.skip_line_ends()
        after_line_end = cursor.position > 0  # which may separate documents
        if _starts_with(cursor, b"filedesc:"):
            return self._header(cursor, offset)
        values, ambiguous, size, length = self._line(cursor)
        record = Record(offset, 0, DOCUMENT, values, ambiguous, None, size, length)
        return complete(cursor, record, partial(_close, after_line_end=after_line_end))

    def after(self, window: Window, offset: int) -> int:
        cursor = cursor_at(window, offset)
        try:
            if _starts_with(cursor, b"filedesc:"):
                return self._header(cursor, 0).end
            line = self._line(cursor)
        except (BadHead, BrokenRecord):
            return -1
        end = offset + line.size + line.length
        if end > window.size:
            return -1
        closing = window.read(end, 1)
        return -1 if closing not in (b"", b"\n") else end + len(closing)

    def stated_end(self, window: Window, offset: int) -> int:
        try:
            line = self._line(cursor_at(window, offset))
        except BadHead:
            return -1
        end = offset + line.size + line.length
        return end if end == window.size else -1

    def _header(self, cursor: Cursor, offset: int) -> Record:
        """Return the version block; raises `BadHead` or `BrokenRecord`.

        The length it states is often wrong, and counts only if it exceeds three lines.
        """
        lines = []
        size = 0
        for _ in range(3):
            lines.append(_peek_line(cursor, size))
            size += len(lines[-1])
        first = _FILEDESC.fullmatch(lines[0])
        if first is None:
            raise BadHead("the version block of an ARC file has no length")
        self.at_end = _FIELDS_AT_END.get(lines[2].strip(), -1)
        stated = len(lines[0]) + int(first[1])
        if stated > _LONGEST_HEADER or not cursor.hold(max(size, stated)):
            raise BadHead("the version block of an ARC file is longer than its file")
        size = max(size, stated)
        record = Record(offset, 0, HEADER, _NONE, False, b"", 0, 0)
        record.data = cursor.buffer[cursor.at : cursor.at + size]
        cursor.at += size
        cursor.skip_line_ends()
        record.end = cursor.position
        if not cursor.hold(1) and not cursor.sound():
            raise BrokenRecord(CUT)
        return record

    def _line(self, cursor: Cursor) -> _ArcLine:
        """Return the URL record at the cursor; raises `BadHead`."""
        text = _peek_line(cursor, 0)
        line = text.rstrip(b"\r\n")
        match = _LINE.fullmatch(line)
        if match is None and _ANCHOR.search(line):
            raise BadHead("a URL record has no whole number as its length")
        if match is None:
            raise NoRecord("no URL record of an ARC file begins where one should")
        if self.at_end < 0 or (match[3] or b"").count(b" ") < self.at_end:
            raise BadHead("a URL record has not the fields that its ARC file announces")
        url, digits, _, length = match.groups()
        try:
            date = date_of_digits(check_digits(digits))
        except BadDate:
            date = digits
        values = (url, date, b"", b"application/http", b"", b"", length)
        before = line.rsplit(b" ", self.at_end + 1)[0] + b" "
        ambiguous = len(_ANCHOR.findall(before)) > 1
        return _ArcLine(values, ambiguous, len(text), int(length))


_NONE: Values = (b"",) * 7


def fields_of(text: bytes, at_end: int) -> ArcFields:
    """Parse the URL record of a document; `at_end` is that of its `ArcFraming`."""
    line = text.rstrip(b"\r\n")
    match = _LINE.fullmatch(line)
    assert match is not None
    ip, digits, rest = line[match.end(1) + 1 :].split(b" ", 2)
    parts = rest.rsplit(b" ", at_end + 1)
    return ArcFields(match[1], ip, digits, parts[0] if len(parts) == at_end + 2 else b"")


def date_of_header(data: bytes) -> bytes:
    """Return the digits of the date in a version block; empty if there are none."""
    match = _ANCHOR.search(data[: data.find(b"\n")])
    return match[1] if match else b""


def _starts_with(cursor: Cursor, start: bytes) -> bool:
    cursor.hold(len(start))
    return cursor.buffer.startswith(start, cursor.at)


def _peek_line(cursor: Cursor, ahead: int) -> bytes:
    """Return the line, with its end, `ahead` bytes after the cursor; raises `BadHead`."""
    while (end := cursor.buffer.find(b"\n", cursor.at + ahead)) < 0:
        if cursor.held > ahead + _LONGEST_LINE or not cursor.hold(cursor.held + 1):
            raise NoRecord("there is no line of an ARC file where one should be")
    return cursor.buffer[cursor.at + ahead : end + 1]


def _close(cursor: Cursor, record: Record, after_line_end: bool) -> str:
    """Skip the line ends after a document; return what is wrong there, or "".

    A missing line end is a remark, if a URL record that follows proves that the length is right.
    Its scheme must be a known one, because the rest of a "http:" that was cut by a wrong length
    looks like another scheme.
    """
    cursor.hold(2)
    closing = _CLOSING.match(cursor.buffer, cursor.at)
    assert closing is not None
    cursor.at = closing.end()
    record.end = cursor.position
    extra = cursor.skip_line_ends()
    if extra:
        record.remark = EXTRA
    elif not closing[0] and (not after_line_end or cursor.hold(1)):
        record.remark = MISSING
    if record.remark == MISSING and cursor.hold(1):
        cursor.hold(_LONGEST_SCHEME)
        if _SCHEME.match(cursor.buffer, cursor.at) is None:
            return UNCLOSED_DOCUMENT
    if not cursor.hold(1):
        return "" if cursor.sound() else CUT
    if cursor.buffer[cursor.at] in b"\0\x1f" or _starts_with(cursor, b"filedesc:"):
        return ""
    try:
        line = _peek_line(cursor, 0).rstrip(b"\r\n")
    except BadHead:
        return ASTRAY
    return "" if _LINE.fullmatch(line) else ASTRAY
