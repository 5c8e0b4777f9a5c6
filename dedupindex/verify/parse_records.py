"""WARC records: version line, fields, as many bytes as stated, two line ends.

A record is read once, in pieces: `CheckedRecord.pieces` gives its block, `CheckedRecord.close`
looks at what follows. Nothing is repaired: a whole block is read although the line ends after it
are not to the letter, and that is reported; what cannot be framed raises `Broken`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from dedupindex.verify.issues import Broken

LONGEST_HEAD = 1 << 20  # bytes
_VERSION = re.compile(rb"WARC/[0-9]+\.[0-9]+", re.IGNORECASE)
_VERSION_LINE = re.compile(rb"WARC/[0-9]{1,4}\.[0-9]{1,4}[ \t]*\r?\n", re.IGNORECASE)
_LONGEST_VERSION = 32  # bytes
_NUMBER = re.compile(rb"[0-9]{1,18}")
_CLOSING = b"\r\n\r\n"
_two = re.compile(rb"(?:\r?\n){2}").match
_LINE_ENDS = re.compile(rb"[\r\n]+")
_FEW = 1 << 10  # line ends that are looked at
_SPACE = b" \t\r"
_NOT_A_RECORD = b"\0\x1f"  # zeros and gzip members: not read as records, but no damage to this one


class PieceReader:
    """Bytes that come in pieces; holds no more than was asked for and one piece."""

    def __init__(self, piece: Callable[[], bytes]) -> None:
        self._piece = piece
        self.buffer = b""
        self.at = 0
        self.taken = 0  # bytes passed so far

    def hold(self, size: int) -> bool:
        """Have `size` bytes at hand; False if there are fewer."""
        while len(self.buffer) - self.at < size:
            more = self._piece()
            if not more:
                return False
            rest = self.buffer[self.at :]
            self.buffer = rest + more if rest else more
            self.at = 0
        return True

    def pass_over(self, size: int) -> bytes:
        """The next `size` bytes, which are held."""
        data = self.buffer[self.at : self.at + size]
        self.at += size
        self.taken += size
        return data

    def take(self, size: int) -> Iterator[bytes]:
        """The next `size` bytes, piece by piece; raises `Broken` if they end before."""
        while size:
            if not self.hold(1):
                raise Broken("misframed", f"its block ends {size:,} bytes before its stated length")
            piece = self.pass_over(min(size, len(self.buffer) - self.at))
            size -= len(piece)
            yield piece

    def line_ends(self) -> bytes:
        """Pass over line ends; returns the first few of them."""
        first = b""
        while self.hold(1) and self.buffer[self.at] in b"\r\n":
            match = _LINE_ENDS.match(self.buffer, self.at)
            if match is None:
                break
            passed = self.pass_over(match.end() - self.at)
            if len(first) <= _FEW:
                first += passed[:_FEW]
        return first


class RecordHead(NamedTuple):
    """The header of a record, as it stands and taken apart."""

    version: bytes
    lines: tuple[bytes, ...]  # each field as it stands, folded lines and line end included
    fields: tuple[tuple[bytes, bytes], ...]  # lower-case name and value without outer space
    odd: str  # what is not to the letter
    first: dict[bytes, bytes]  # the first value of each field

    def get(self, name: bytes) -> bytes:
        """The first value of a field (lower-case name); empty if there is none."""
        return self.first.get(name, b"")

    def has(self, name: bytes) -> bool:
        return name in self.first


class CheckedRecord:
    """One record; its block must be read before `close`."""

    def __init__(self, reader: PieceReader, offset: int) -> None:
        self._reader = reader
        self.offset = offset
        self._begin = reader.taken
        if reader.hold(1) and reader.buffer[reader.at] in b"\r\n":
            reader.line_ends()
        text = _read_head(reader)
        self.head = parse_head(text)
        self.head_size = len(text)
        self._text = text
        self.kind = self.head.get(b"warc-type").lower()
        self.length = _length(self.head)
        self._left = self.length
        self.more = False  # another record follows in the same member, once closed
        self.end = -1  # in a plain file, once closed

    @property
    def url(self) -> bytes:
        return self.head.get(b"warc-target-uri").removeprefix(b"<").removesuffix(b">")

    @property
    def bare(self) -> bool:
        """Whether bare line feeds stand in its header."""
        return self._text.count(b"\n") != self._text.count(b"\r\n")

    @property
    def record_id(self) -> bytes:
        return self.head.get(b"warc-record-id").removeprefix(b"<").removesuffix(b">")

    @property
    def date(self) -> bytes:
        return self.head.get(b"warc-date")

    def pieces(self) -> Iterator[bytes]:
        """What is left of the block; raises `Broken`."""
        for piece in self._reader.take(self._left):
            self._left -= len(piece)
            yield piece

    def close(self) -> str:
        """Read on to the next record or the end; returns what is not to the letter there.

        A block is whole if its line ends are missing, too, as long as nothing but the end or a
        version line stands where Content-Length says that it stops.
        """
        for _ in self.pieces():
            pass
        reader = self._reader
        if reader.hold(4) and reader.buffer.startswith(_CLOSING, reader.at):  # as nearly always
            reader.pass_over(4)
            ends = _CLOSING
            if reader.hold(1) and reader.buffer[reader.at] in b"\r\n":
                ends += reader.line_ends()
        else:
            ends = reader.line_ends()
        self.more = reader.hold(1)
        if self.more and not self._followed(short=_two(ends) is None):
            raise Broken(
                "misframed", "no record follows where its Content-Length says that it stops"
            )
        self.end = self.offset + reader.taken - self._begin
        return _odd_ends(ends)

    def _followed(self, *, short: bool) -> bool:
        """Whether a record follows, or, behind all line ends, what harms none."""
        reader = self._reader
        reader.hold(_LONGEST_VERSION)
        if short:
            return _VERSION_LINE.match(reader.buffer, reader.at) is not None
        start = reader.buffer[reader.at : reader.at + 5]
        return start.upper() == b"WARC/" or start[0] in _NOT_A_RECORD


def _odd_ends(ends: bytes) -> str:
    """What is not to the letter about the line ends behind a record; "" for two CRLF."""
    if ends == _CLOSING:
        return ""
    if _two(ends) is None:
        return f"only {len(ends)} bytes of line ends follow its block, which is whole"
    if ends == b"\n\n":
        return "it ends with bare line feeds"
    return "line ends other than two CRLF follow it"


def _read_head(reader: PieceReader) -> bytes:
    if not reader.hold(5) or reader.buffer[reader.at : reader.at + 5].upper() != b"WARC/":
        raise Broken("bad-header", "no record begins here")
    size = 1 << 10
    while True:
        whole = not reader.hold(size)
        end = _blank_line(reader.buffer, reader.at)
        if 0 <= end <= reader.at + LONGEST_HEAD:
            return reader.pass_over(end - reader.at)
        if whole:
            raise Broken("bad-header", "its header has no end")
        if size >= LONGEST_HEAD:
            raise Broken("bad-header", "its header is longer than a mebibyte")
        size *= 4


def _blank_line(data: bytes, start: int) -> int:
    """Behind the first blank line; -1 if there is none."""
    strict = data.find(b"\n\r\n", start)
    bare = data.find(b"\n\n", start, strict + 1 if strict >= 0 else len(data))
    if bare >= 0:
        return bare + 2
    return strict + 3 if strict >= 0 else -1


def parse_head(text: bytes) -> RecordHead:
    """Take a header apart, its blank line included; raises `Broken`."""
    first, *rest = text.split(b"\n")
    version = first.rstrip(_SPACE)
    if _VERSION.fullmatch(version) is None:
        raise Broken("bad-header", "its first line is no WARC version")
    odd = "" if text.count(b"\n") == text.count(b"\r\n") else "its header has bare line feeds"
    if not version.startswith(b"WARC"):
        odd = "its version line is not in upper case"
    lines: list[bytes] = []
    fields: list[tuple[bytes, bytes]] = []
    for line in rest[:-2]:
        if line[:1] in (b" ", b"\t") and fields:
            name, value = fields[-1]
            fields[-1] = name, (value + b" " + line.strip(_SPACE)).strip(_SPACE)
            lines[-1] += line + b"\n"
            continue
        name, colon, value = line.partition(b":")
        if line[:1] in (b" ", b"\t"):
            colon = b""  # a folded line of nothing
        if not colon or not name.strip(_SPACE):
            odd = "a line of its header is no field"
            name, value = b"", line
        fields.append((name.strip(_SPACE).lower(), value.strip(_SPACE)))
        lines.append(line + b"\n")
    return RecordHead(version.upper(), tuple(lines), tuple(fields), odd, dict(reversed(fields)))


def _length(head: RecordHead) -> int:
    values = [value for name, value in head.fields if name == b"content-length"]
    if len(values) != 1 or _NUMBER.fullmatch(values[0]) is None:
        how = "no" if not values else "several fields" if len(values) > 1 else "no whole number as"
        raise Broken("bad-length", f"it has {how} Content-Length")
    return int(values[0])


# ARC documents, as originals: one line of five or ten fields, so many bytes, a line end.

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
