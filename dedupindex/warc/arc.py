"""ARC files, versions 1 and 2: one line, a document of the length it states, one line end.

The fields of that line are separated by single spaces, but URLs and content types may hold spaces
too. So the line is anchored on the address and the date in its middle, and on the fields counted
from its end; a line in which the anchor occurs twice is ambiguous and its document refused. Which
fields there are is said by the third line of the version block that opens the file ("ARC File
Format", Internet Archive, 1996; version 2 as JWAT and Heritrix know it). Documents have neither
record ids nor digests: a capture can be named only by URL and date.
"""

from __future__ import annotations

import re
from typing import ClassVar, NamedTuple

from dedupindex.errors import BadDate
from dedupindex.timestamps import check_digits, date_of_digits
from dedupindex.warc.framing import ASTRAY
from dedupindex.warc.gzip_members import SHORT
from dedupindex.warc.headers import BadHead, Form, NoRecord, Values
from dedupindex.warc.record import CUT, EXTRA, MISSING, BrokenRecord, Record
from dedupindex.warc.window import Cursor, Window

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
_FILEDESC = re.compile(rb"filedesc:[^\n]* (-?[0-9]+)\r?\n")


class _Line(NamedTuple):
    """A URL record."""

    values: Values  # see `heads.COMMON`
    ambiguous: bool
    size: int  # bytes of the line with its end
    length: int  # bytes of the document


class Fields(NamedTuple):
    """What a URL record says, byte for byte."""

    url: bytes
    ip: bytes
    digits: bytes  # of the date
    mime: bytes  # empty if there is none


class ArcFraming:
    """ARC 1 and 2, their lines with LF or CRLF; see `framing.Framing`."""

    candidates: ClassVar[re.Pattern[bytes]] = re.compile(rb"\n(?=" + _SCHEMES + rb")")

    def __init__(self) -> None:
        self.at_end = 0  # fields between content type and length, as the version block says

    @staticmethod
    def begins(start: bytes) -> bool:
        """Whether a file that begins so is an ARC file; some lack the version block."""
        line = start.lstrip(b"\r\n").partition(b"\n")[0].rstrip(b"\r")
        return start.startswith(b"filedesc:") or _LINE.fullmatch(line) is not None

    def record(self, cursor: Cursor, offset: int) -> Record:
        """See `Framing.record`."""
        cursor.skip_line_ends()
        led = cursor.position > 0  # the line end that separates documents may stand before them
        if _starts_with(cursor, b"filedesc:"):
            return self._header(cursor, offset)
        line = self._line(cursor)
        special = line.ambiguous
        record = Record(offset, 0, DOCUMENT, line.values, special, None, line.size, line.length)
        whole = line.size + line.length
        if whole > SHORT:
            text = cursor.buffer[cursor.at : cursor.at + line.size]
            cursor.at += line.size
            record.stream(text, cursor, lambda record: _close(cursor, record, led))
            return record
        if not cursor.hold(whole):
            raise BrokenRecord(CUT)
        record.data = cursor.buffer[cursor.at : cursor.at + whole]
        cursor.at += whole
        if wrong := _close(cursor, record, led):
            raise BrokenRecord(wrong)
        return record

    def form(self, data: bytes, at: int = 0) -> tuple[Form, re.Match[bytes]] | None:
        """See `Framing.form`: there are none."""
        return None

    def after(self, window: Window, offset: int) -> int:
        """See `Framing.after`."""
        cursor = _cursor_at(window, offset)
        try:
            if _starts_with(cursor, b"filedesc:"):
                return offset + self._header(cursor, 0).end
            line = self._line(cursor)
        except (BadHead, BrokenRecord):
            return -1
        end = offset + line.size + line.length
        if end > window.size:
            return -1
        closing = window.read(end, 1)
        return -1 if closing not in (b"", b"\n") else end + len(closing)

    def stated_end(self, window: Window, offset: int) -> int:
        """See `Framing.stated_end`."""
        try:
            line = self._line(_cursor_at(window, offset))
        except BadHead:
            return -1
        end = offset + line.size + line.length
        return end if end == window.size else -1

    def _header(self, cursor: Cursor, offset: int) -> Record:
        """The version block; raises `BadHead` or `BrokenRecord`.

        Its stated length is often wrong, so only one that goes beyond the third line is obeyed.
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

    def _line(self, cursor: Cursor) -> _Line:
        """The URL record at the cursor; raises `BadHead`."""
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
        return _Line(values, ambiguous, len(text), int(length))


_NONE: Values = (b"",) * 7


def fields_of(text: bytes, at_end: int) -> Fields:
    """Take the URL record of a document apart; `at_end` is that of its `ArcFraming`."""
    line = text.rstrip(b"\r\n")
    match = _LINE.fullmatch(line)
    assert match is not None, "it was read as one"
    url = match[1]
    ip, digits, rest = line[len(url) + 1 :].split(b" ", 2)
    parts = rest.rsplit(b" ", at_end + 1)
    return Fields(url, ip, digits, parts[0] if len(parts) == at_end + 2 else b"")


def date_of_header(data: bytes) -> bytes:
    """The digits of the date in a version block; empty if there are none."""
    match = _ANCHOR.search(data[: data.find(b"\n")])
    return match[1] if match else b""


def _cursor_at(window: Window, offset: int) -> Cursor:
    def piece() -> bytes:
        nonlocal offset
        data = window.read(offset, 1 << 12)
        offset += len(data)
        return data

    return Cursor(piece)


def _starts_with(cursor: Cursor, start: bytes) -> bool:
    cursor.hold(len(start))
    return cursor.buffer.startswith(start, cursor.at)


def _peek_line(cursor: Cursor, ahead: int) -> bytes:
    """The line that begins `ahead` bytes behind the cursor, with its end; raises `BadHead`."""
    while (end := cursor.buffer.find(b"\n", cursor.at + ahead)) < 0:
        if cursor.held > ahead + _LONGEST_LINE or not cursor.hold(cursor.held + 1):
            raise NoRecord("no line of an ARC file stands where one should")
    return cursor.buffer[cursor.at + ahead : end + 1]


def _close(cursor: Cursor, record: Record, led: bool) -> str:
    """Pass over the line ends behind a document; returns what is wrong there, or "".

    A document without its line end is whole all the same: its length says where it ends. If
    another one follows, its URL record proves that the length is right; of a scheme that is known,
    because what is left of "http:" behind a length that is too large would pass for one.
    """
    cursor.hold(2)
    closing = _CLOSING.match(cursor.buffer, cursor.at)
    assert closing is not None
    cursor.at = closing.end()
    record.end = cursor.position
    extra = cursor.skip_line_ends()
    if extra:
        record.remark = EXTRA
    elif not closing[0] and (not led or cursor.hold(1)):
        record.remark = MISSING
    if record.remark == MISSING and cursor.hold(1):
        cursor.hold(_LONGEST_SCHEME)
        if _SCHEME.match(cursor.buffer, cursor.at) is None:
            return UNCLOSED_DOCUMENT
    return _astray(cursor)


def _astray(cursor: Cursor) -> str:
    """What is wrong with what follows: only another document may, or the end."""
    if not cursor.hold(1):
        return "" if cursor.sound() else CUT
    if cursor.buffer[cursor.at] in b"\0\x1f" or _starts_with(cursor, b"filedesc:"):
        return ""
    try:
        line = _peek_line(cursor, 0).rstrip(b"\r\n")
    except BadHead:
        return ASTRAY
    return "" if _LINE.fullmatch(line) else ASTRAY
