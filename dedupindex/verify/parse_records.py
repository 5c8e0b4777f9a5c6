"""Parse WARC records and ARC documents.

A record is read once: `AnyRecord.pieces` yields its block, `AnyRecord.close` checks what follows.
Nothing is repaired. A block whose line ends are wrong is read and reported; a record whose end is
uncertain raises `Broken`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple

from dedupindex.verify.file_bytes import MemberReader
from dedupindex.verify.issues import Broken

LONGEST_HEAD = 1 << 20  # bytes
_VERSION = re.compile(rb"WARC/[0-9]+\.[0-9]+", re.IGNORECASE)
_VERSION_LINE = re.compile(rb"WARC/[0-9]{1,4}\.[0-9]{1,4}[ \t]*\r?\n", re.IGNORECASE)
_LONGEST_VERSION = 32  # bytes
_NUMBER = re.compile(rb"[0-9]{1,18}")
_CLOSING = b"\r\n\r\n"
_TWO_LINE_ENDS = re.compile(rb"(?:\r?\n){2}")
_LINE_ENDS = re.compile(rb"[\r\n]+")
_MAX_RETURNED = 1 << 10  # bytes of line ends
_SPACE = b" \t\r"
_NOT_A_RECORD = b"\0\x1f"  # zeros or a gzip member may follow: no damage to the record before
_NO_ARC_RECORD = "no URL record of an ARC file begins here"
# A URL record: URL, IP address, date, content type, perhaps five more fields, length.
_ARC_LINE = re.compile(
    rb"([a-zA-Z][a-zA-Z0-9+.-]*:[^\n]*?)"
    rb" (?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9a-fA-F]*:[0-9a-fA-F:.]+|-|0) ([0-9]{4,20}) "
    rb"(?:([^\n]*) )?([0-9]{1,18})\r?\n"
)
_ARC_HEADER = re.compile(  # its length may be anything, and its date
    rb"(filedesc:[^\n ]*)(?:[^\n]*? ([0-9]{14}) )?([^\n]* )?(-?[0-9]{1,18})\r?\n"
)
_SCHEME = re.compile(rb"(?:https?|ftp|dns|filedesc|whois|gopher|nntp|mms|rtsp):", re.IGNORECASE)
_LONGEST_LINE = 1 << 16  # bytes
_UNKNOWN = 99  # number of fields between content type and length, if the file does not say
_FIELDS = {
    b"URL IP-address Archive-date Content-type Archive-length": 0,
    b"URL IP-address Archive-date Content-type Result-code Checksum Location Offset Filename "
    b"Archive-length": 5,
}


def unbracket(text: bytes) -> bytes:
    """Remove the angle brackets around a URL or record id."""
    return text.removeprefix(b"<").removesuffix(b">")


Proceed = Callable[[Callable[[bytes], bool]], bool]


def _never(continues: Callable[[bytes], bool]) -> bool:
    return False


def _anything(first: bytes) -> bool:
    return True


class PieceReader:
    """A buffer over pieces of a stream; holds what was asked for and at most one piece more."""

    def __init__(self, piece: Callable[[], bytes], proceed: Proceed = _never) -> None:
        self._piece = piece
        self.proceed = proceed  # with a further frame, at the end of one, see `MemberReader`
        self.buffer = b""
        self.at = 0  # where the next byte is in the buffer
        self.consumed = 0  # bytes

    def hold(self, size: int) -> bool:
        """Buffer `size` bytes; False if there are fewer."""
        while len(self.buffer) - self.at < size:
            more = self._piece()
            if not more:
                return False
            rest = self.buffer[self.at :]
            self.buffer = rest + more if rest else more
            self.at = 0
        return True

    def read(self, size: int) -> bytes:
        """Consume the next `size` bytes, which must be buffered."""
        data = self.buffer[self.at : self.at + size]
        self.at += size
        self.consumed += size
        return data

    def take(self, size: int) -> Iterator[bytes]:
        """Consume the next `size` bytes in pieces; raises `Broken` if there are fewer."""
        while size:
            if not self.hold(1) and not (self.proceed(_anything) and self.hold(1)):
                raise Broken("misframed", f"its block ends {size:,} bytes before its stated length")
            piece = self.read(min(size, len(self.buffer) - self.at))
            size -= len(piece)
            yield piece

    def line_ends(self) -> bytes:
        """Consume line ends; returns the first of them."""
        first = b""
        while self.hold(1) and self.buffer[self.at] in b"\r\n":
            match = _LINE_ENDS.match(self.buffer, self.at)
            assert match is not None
            ends = self.read(match.end() - self.at)
            if len(first) <= _MAX_RETURNED:
                first += ends[:_MAX_RETURNED]
        return first


class RecordHead(NamedTuple):
    version: bytes
    lines: tuple[bytes, ...]  # each field as written, folded lines and line end included
    fields: tuple[tuple[bytes, bytes], ...]  # lower-case name, and value without outer space
    odd: str  # what is not to the letter, "" for nothing
    first: dict[bytes, bytes]  # the first value of each field

    def get(self, name: bytes) -> bytes:
        """The first value of a field (lower-case name); empty without one."""
        return self.first.get(name, b"")

    def has(self, name: bytes) -> bool:
        return name in self.first


class AnyRecord(ABC):
    """A WARC record or an ARC document. Its block must be read before `close`."""

    kind: bytes  # WARC-Type in lower case; ``arc``, or ``arc-header`` for a version block
    url: bytes  # no brackets
    date: bytes  # as WARC-Date
    record_id: bytes  # no brackets
    _not_followed: str  # the message for a length that is wrong
    length: int  # bytes of the block
    head = RecordHead(b"", (), (), "", {})  # of ARC documents

    def __init__(self, reader: PieceReader, offset: int) -> None:
        self._reader = reader
        self.offset = offset
        self._begin = reader.consumed
        self._left = 0  # bytes of the block still to be read
        self.more = False  # another record follows in the same member, once closed
        self.runs_on = False  # and no line end is between them
        self.end = -1  # in an uncompressed file, once closed
        self.member: MemberReader | None = None  # that holds it, see `Container.at`

    def pieces(self) -> Iterator[bytes]:
        """Yield the rest of the block; raises `Broken`."""
        for piece in self._reader.take(self._left):
            self._left -= len(piece)
            yield piece

    def close(self) -> str:
        """Read on to the next record; returns what is odd. Raises `Broken` if none follows."""
        for _ in self.pieces():
            pass
        reader = self._reader
        line_ends = reader.line_ends()
        while len(line_ends) < len(_CLOSING) and not reader.hold(1):
            if not reader.proceed(lambda first: first[0] in b"\r\n"):
                break
            line_ends += reader.line_ends()
        self.more = reader.hold(1)
        if self.more and not self._followed(line_ends):
            raise Broken("misframed", self._not_followed)
        self.end = self.offset + reader.consumed - self._begin
        self.runs_on = self.more and not line_ends and self.kind[:3] != b"arc"
        return self._odd_ends(line_ends)

    @abstractmethod
    def _followed(self, line_ends: bytes) -> bool:
        """Whether a record, zeros or a gzip member follow; a record if line ends are missing."""

    @abstractmethod
    def _odd_ends(self, line_ends: bytes) -> str:
        """What is wrong with the line ends after the block; "" for nothing."""


class CheckedRecord(AnyRecord):
    """A WARC record: version line, fields, a block of the stated length, two line ends."""

    _not_followed = "no record follows where it ends by its Content-Length"

    def __init__(self, reader: PieceReader, offset: int) -> None:
        super().__init__(reader, offset)
        reader.line_ends()
        text = _read_head(reader)
        self.head = parse_head(text)
        self.head_size = len(text)
        self.bare = text.count(b"\n") != text.count(b"\r\n")  # it has line ends without CR
        get = self.head.get
        self.kind = get(b"warc-type").lower()
        self.url = unbracket(get(b"warc-target-uri"))
        self.date = get(b"warc-date")
        self.record_id = unbracket(get(b"warc-record-id"))
        self.length = self._left = _length(self.head)

    def _followed(self, line_ends: bytes) -> bool:
        reader = self._reader
        reader.hold(_LONGEST_VERSION)
        if _TWO_LINE_ENDS.match(line_ends) is None:
            return _VERSION_LINE.match(reader.buffer, reader.at) is not None
        start = reader.buffer[reader.at : reader.at + 5]
        return start.upper() == b"WARC/" or start[0] in _NOT_A_RECORD

    def _odd_ends(self, line_ends: bytes) -> str:
        if line_ends == _CLOSING:
            return ""
        if _TWO_LINE_ENDS.match(line_ends) is None:
            return f"only {len(line_ends)} bytes of line ends follow its block, which is whole"
        if line_ends == b"\n\n":
            return "it ends with bare line feeds"
        return "line ends other than two CRLF follow it"


def _read_head(reader: PieceReader) -> bytes:
    start = b"WARC/"
    while not reader.hold(5) and start.startswith(reader.buffer[reader.at :].upper()):
        if not reader.proceed(_anything):
            break
    if reader.buffer[reader.at : reader.at + 5].upper() != start:
        raise Broken("bad-header", "no record begins here")
    size = 1 << 10
    while True:
        whole = not reader.hold(size)
        if whole and blank_line_end(reader.buffer, reader.at) < 0 and reader.proceed(_anything):
            continue
        end = blank_line_end(reader.buffer, reader.at)
        if 0 <= end <= reader.at + LONGEST_HEAD:
            return reader.read(end - reader.at)
        if whole:
            raise Broken("bad-header", "its header has no end")
        if size >= LONGEST_HEAD:
            raise Broken("bad-header", "its header is longer than a mebibyte")
        size *= 4


def blank_line_end(data: bytes, start: int = 0) -> int:
    """The offset after the first blank line from `start` on; -1 if there is none."""
    strict = data.find(b"\n\r\n", start)
    bare = data.find(b"\n\n", start, strict + 1 if strict >= 0 else len(data))
    if bare >= 0:
        return bare + 2
    return strict + 3 if strict >= 0 else -1


def parse_head(text: bytes) -> RecordHead:
    """Parse a header with its blank line; raises `Broken`."""
    first, *rest = text.split(b"\n")
    version = first.rstrip(_SPACE)
    if _VERSION.fullmatch(version) is None:
        raise Broken("bad-header", "its first line is not a WARC version")
    odd = "" if text.count(b"\n") == text.count(b"\r\n") else "its header has bare line feeds"
    if not version.startswith(b"WARC"):
        odd = "its version line is not in upper case"
    lines: list[bytes] = []
    fields: list[tuple[bytes, bytes]] = []
    for line in rest[:-2]:
        folded = line.startswith((b" ", b"\t"))
        if folded and fields:
            name, value = fields[-1]
            fields[-1] = name, (value + b" " + line.strip(_SPACE)).strip(_SPACE)
            lines[-1] += line + b"\n"
            continue
        name, colon, value = line.partition(b":")
        name = name.strip(_SPACE)
        if folded or not colon or not name:  # or a folded line of nothing
            odd = "a line of its header is no field"
            name, value = b"", line
        fields.append((name.lower(), value.strip(_SPACE)))
        lines.append(line + b"\n")
    return RecordHead(version.upper(), tuple(lines), tuple(fields), odd, dict(reversed(fields)))


def _length(head: RecordHead) -> int:
    values = [value for name, value in head.fields if name == b"content-length"]
    if len(values) != 1 or _NUMBER.fullmatch(values[0]) is None:
        how = "no" if not values else "several fields" if len(values) > 1 else "no whole number as"
        raise Broken("bad-length", f"it has {how} Content-Length")
    return int(values[0])


class ArcDocument(AnyRecord):
    """A document of an ARC file: a URL record, a block of the stated length, a line end."""

    _not_followed = "no document follows where it ends by its length"

    def __init__(self, reader: PieceReader, offset: int, fields: int) -> None:
        super().__init__(reader, offset)
        # The line end that separates documents may precede this one.
        self.has_line_end_before = bool(reader.line_ends()) or self._begin > 0
        line = _read_line(reader)
        match = (_ARC_HEADER if line.startswith(b"filedesc:") else _ARC_LINE).fullmatch(line)
        if match is None:
            raise Broken("bad-header", _NO_ARC_RECORD)
        self.url, digits, rest, length = match.groups(b"")
        self.kind = b"arc-header" if self.url.startswith(b"filedesc:") else b"arc"
        parts = digits[:4], digits[4:6], digits[6:8], digits[8:10], digits[10:12], digits[12:14]
        self.date = b"%b-%b-%bT%b:%b:%bZ" % parts
        self.record_id = b""
        self.length = int(length)
        self.fields = fields  # between content type and length
        if self.kind == b"arc-header":  # its length is often too small: it has two lines at least
            size = _size_of_lines(reader, 2)
            self.length = max(self.length, size)
            names = reader.buffer[reader.at : reader.at + size].partition(b"\n")[2]
            self.fields = _FIELDS.get(names.strip(), _UNKNOWN)
        elif fields == _UNKNOWN or rest.count(b" ") < fields:
            raise Broken("bad-header", "its URL record has not the fields that its file announces")
        self._left = self.length

    def _followed(self, line_ends: bytes) -> bool:
        if self.kind != b"arc":
            return True
        reader = self._reader
        reader.hold(_LONGEST_LINE)
        buffer, at = reader.buffer, reader.at
        if not line_ends and _SCHEME.match(buffer, at) is None:  # a URL of another scheme is none
            return False
        if buffer[at] in _NOT_A_RECORD or buffer.startswith(b"filedesc:", at):
            return True
        end = buffer.find(b"\n", at) + 1
        return end > 0 and _ARC_LINE.fullmatch(buffer, at, end) is not None

    def _odd_ends(self, line_ends: bytes) -> str:
        if self.kind == b"arc" and not line_ends and (self.more or not self.has_line_end_before):
            return "no line end follows its document, which is whole"
        if self.kind == b"arc" and line_ends not in (b"", b"\n", b"\r\n"):
            return "more than one line end follows it"
        return ""


def fields_of(reader: PieceReader) -> int:
    """The number of fields between content type and length in an ARC file, by its beginning."""
    try:
        reader.line_ends()
        reader.hold(len(b"filedesc:"))
        if reader.buffer.startswith(b"filedesc:", reader.at):
            return ArcDocument(reader, 0, 0).fields
    except Broken:
        return _UNKNOWN
    return 0


def _size_of_lines(reader: PieceReader, count: int) -> int:
    """Buffer the next lines; returns their size in bytes, 0 if there are fewer."""
    reader.hold(1 << 10)
    end = reader.at
    for _ in range(count):
        end = reader.buffer.find(b"\n", end) + 1
        if not end:
            return 0
    return end - reader.at


def _read_line(reader: PieceReader) -> bytes:
    size = 256
    while (end := reader.buffer.find(b"\n", reader.at)) < 0 and size <= _LONGEST_LINE:
        if not reader.hold(size):
            size = _LONGEST_LINE
        size *= 4
    if end < 0:
        raise Broken("bad-header", _NO_ARC_RECORD)
    return reader.read(end + 1 - reader.at)


def is_arc(start: bytes) -> bool:
    """Whether a file that begins so is an ARC file."""
    line, end, _ = start.lstrip(b"\r\n").partition(b"\n")
    return start.startswith(b"filedesc:") or _ARC_LINE.fullmatch(line + end) is not None
