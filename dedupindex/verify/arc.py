"""ARC documents, as originals: one line of five or ten fields, so many bytes, a line end."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dedupindex.verify.issues import Broken
from dedupindex.verify.parse_records import PieceReader

_LINE = re.compile(
    rb"([a-zA-Z][a-zA-Z0-9+.-]*:[^\n]*?)"
    rb" (?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9a-fA-F]*:[0-9a-fA-F:.]+|-|0) ([0-9]{4,20}) "
    rb"(?:([^\n]*) )?([0-9]{1,18})\r?\n"
)
_HEADER = re.compile(  # its length may be anything, and its date
    rb"(filedesc:[^\n ]*)(?:[^\n]*? ([0-9]{14}) )?([^\n]* )?(-?[0-9]{1,18})\r?\n"
)
_SCHEME = re.compile(rb"(?:https?|ftp|dns|filedesc|whois|gopher|nntp|mms|rtsp):", re.IGNORECASE)
_LONGEST_LINE = 1 << 16


_VERSION_1 = b"URL IP-address Archive-date Content-type Archive-length"
_VERSION_2 = (
    b"URL IP-address Archive-date Content-type Result-code Checksum Location Offset Filename "
    b"Archive-length"
)
UNKNOWN = 99
_FIELDS = {_VERSION_1: 0, _VERSION_2: 5}  # between content type and length


class ArcDocument:
    """One document; `kind` is ``arc`` or, for the version block, ``arc-header``."""

    def __init__(self, reader: PieceReader, offset: int, fields: int) -> None:
        self._reader = reader
        self.offset = offset
        self.more = False
        self.end = -1
        self._begin = reader.taken
        self.led = bool(reader.line_ends()) or self._begin > 0  # the line end may stand before it
        line = _line(reader)
        match = (_HEADER if line.startswith(b"filedesc:") else _LINE).fullmatch(line)
        if match is None:
            raise Broken("bad-header", "no URL record of an ARC file begins here")
        self.url, digits, rest, length = match.groups(b"")
        self.kind = b"arc-header" if self.url.startswith(b"filedesc:") else b"arc"
        self.date = b"%b-%b-%bT%b:%b:%bZ" % (
            digits[:4],
            digits[4:6],
            digits[6:8],
            digits[8:10],
            digits[10:12],
            digits[12:14],
        )
        self.record_id = b""
        self.length = int(length)
        self.fields = fields
        if self.kind == b"arc-header":  # its length is often too small: it has two lines at least
            size = _lines(reader, 2)
            self.length = max(self.length, size)
            self.fields = _fields(reader.buffer[reader.at : reader.at + size])
        elif fields == UNKNOWN or rest.count(b" ") < fields:
            raise Broken("bad-header", "its URL record has not the fields that its file announces")
        self._left = self.length

    def pieces(self) -> Iterator[bytes]:
        """What is left of the document; raises `Broken`."""
        for piece in self._reader.take(self._left):
            self._left -= len(piece)
            yield piece

    def close(self) -> str:
        """Read on to the next document or the end; returns what is not to the letter there."""
        for _ in self.pieces():
            pass
        reader = self._reader
        ends = reader.line_ends()
        self.more = reader.hold(1)
        if self.kind == b"arc" and self.more and not _followed(reader, short=not ends):
            raise Broken("misframed", "no document follows where its length says that it stops")
        self.end = self.offset + reader.taken - self._begin
        if self.kind == b"arc" and not ends and (self.more or not self.led):
            return "no line end follows its document, which is whole"
        if self.kind == b"arc" and ends not in (b"", b"\n", b"\r\n"):
            return "more than one line end follows it"
        return ""


def _followed(reader: PieceReader, *, short: bool) -> bool:
    """Whether a URL record follows, or, behind a line end, what harms no document.

    Without a line end (`short`) only a scheme that is known is a beginning.
    """
    reader.hold(_LONGEST_LINE)
    if short and _SCHEME.match(reader.buffer, reader.at) is None:
        return False
    if reader.buffer[reader.at] in b"\0\x1f":
        return True
    if reader.buffer.startswith(b"filedesc:", reader.at):
        return True
    end = reader.buffer.find(b"\n", reader.at) + 1
    return _LINE.fullmatch(reader.buffer, reader.at, end) is not None if end else False


def fields_of(reader: PieceReader) -> int:
    """How many fields a file that begins so has between content type and length."""
    try:
        reader.line_ends()
        reader.hold(len(b"filedesc:"))
        if reader.buffer.startswith(b"filedesc:", reader.at):
            return ArcDocument(reader, 0, 0).fields
    except Broken:
        return UNKNOWN
    return 0


def _fields(lines: bytes) -> int:
    """The same, by the two lines of a version block."""
    _, _, names = lines.partition(b"\n")
    return _FIELDS.get(names.strip(), UNKNOWN)


def _lines(reader: PieceReader, count: int) -> int:
    """How many bytes the next lines take, held; 0 if there are not so many."""
    reader.hold(1 << 10)
    end = reader.at
    for _ in range(count):
        end = reader.buffer.find(b"\n", end) + 1
        if not end:
            return 0
    return end - reader.at


def _line(reader: PieceReader) -> bytes:
    size = 256
    while (end := reader.buffer.find(b"\n", reader.at)) < 0:
        if size > _LONGEST_LINE or not reader.hold(size):
            end = reader.buffer.find(b"\n", reader.at)
            if end < 0:
                raise Broken("bad-header", "no URL record of an ARC file begins here")
            break
        size *= 4
    return reader.pass_over(end + 1 - reader.at)


def begins(start: bytes) -> bool:
    """Whether the first bytes of a file are those of an ARC file."""
    line, end, _ = start.lstrip(b"\r\n").partition(b"\n")
    return start.startswith(b"filedesc:") or _LINE.fullmatch(line + end) is not None
