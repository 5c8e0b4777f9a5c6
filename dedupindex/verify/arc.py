"""ARC documents, as originals: one line of five or ten fields, so many bytes, a line end."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dedupindex.verify.finding import Broken
from dedupindex.verify.records import Reader

_LINE = re.compile(
    rb"([a-zA-Z][a-zA-Z0-9+.-]*:[^\n]*?)"
    rb" (?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9a-fA-F]*:[0-9a-fA-F:.]+|-|0) ([0-9]{14}) "
    rb"([^\n]*?) ?([0-9]{1,18})\r?\n"
)
_LONGEST_LINE = 1 << 16


class Document:
    """One document; `kind` is ``arc`` or, for the version block, ``arc-header``."""

    def __init__(self, reader: Reader, offset: int) -> None:
        self._reader = reader
        self.offset = offset
        self.more = False
        self.end = -1
        self._begin = reader.taken
        reader.line_ends()
        match = _LINE.fullmatch(_line(reader))
        if match is None:
            raise Broken("bad-header", "no URL record of an ARC file begins here")
        self.url, digits, _, length = match.groups()
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
        if self.kind == b"arc-header":  # its length is often too small: it has two lines at least
            self.length = max(self.length, _lines(reader, 2))
        self._left = self.length

    def pieces(self) -> Iterator[bytes]:
        """What is left of the document; raises `Broken`."""
        for piece in self._reader.take(self._left):
            self._left -= len(piece)
            yield piece

    def close(self) -> str:
        """Read on to the next document or the end."""
        for _ in self.pieces():
            pass
        ends = self._reader.line_ends()
        self.more = self._reader.hold(1)
        if self.more and not ends and self.kind == b"arc":
            raise Broken("misframed", "no line end stands where its length says it stops")
        self.end = self.offset + self._reader.taken - self._begin
        return ""


def _lines(reader: Reader, count: int) -> int:
    """How many bytes the next lines take, held; 0 if there are not so many."""
    reader.hold(1 << 10)
    end = reader.at
    for _ in range(count):
        end = reader.buffer.find(b"\n", end) + 1
        if not end:
            return 0
    return end - reader.at


def _line(reader: Reader) -> bytes:
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
