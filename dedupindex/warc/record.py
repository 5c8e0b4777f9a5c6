"""A WARC or ARC record, held in memory or streamed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dedupindex.warc.headers import Head, Values, parse
from dedupindex.warc.window import Cursor

PIECE = 1 << 18  # bytes of a streamed block at a time
CUT = "a record is shorter than its Content-Length"
LEADING = "leading-line-ends"
MISSING = "missing-line-ends"
EXTRA = "extra-line-ends"
BARE = "bare-line-feeds"
LOWER_CASE = "lower-case-version"
NO_CHECKSUM = "no-checksum"
REMARKS = {  # irregularities of records that were read
    LEADING: "line ends precede the record in its gzip member or zstd frame",
    MISSING: "fewer than two line ends (in an ARC file, none) follow its block",
    EXTRA: "more than two line ends (in an ARC file, one) follow its block",
    BARE: "bare line feeds are in its header or after its block in place of CRLF",
    LOWER_CASE: "its version line is not in upper case, as warc/1.0",
    NO_CHECKSUM: "its zstd frame has no checksum, so that damage may go unnoticed",
}


class BrokenRecord(Exception):
    """The record has no proper end; the reader reports it as `Damage`."""


class Record:
    """A record of a container.

    `data` holds a short record; its block begins at `start`. A long one is streamed, once:
    `pieces` raises `BrokenRecord` if it is damaged, as does `finish`, which must be called for a
    record that is not read to its end.
    """

    __slots__ = (
        "_broken", "_close", "_cursor", "_left", "_text", "data", "end", "length",
        "offset", "remark", "shared", "special", "start", "stored", "type", "values",
    )  # fmt: skip

    def __init__(
        self,
        offset: int,
        stored: int,
        kind: bytes,
        values: Values,
        special: bool,
        data: bytes | None,
        start: int,
        length: int,
    ) -> None:
        self.offset = offset  # of the member, or of the record in a plain file
        self.stored = stored  # bytes of the file that it takes, once it has ended
        self.type = kind  # lower case
        self.values = values  # of `headers.COMMON`
        self.special = special  # see `Head.special`
        self.data = data
        self.start = start
        self.length = length  # bytes of the block
        self.end = -1  # of the record in its plain file or inflated member, once it was read
        self.remark = ""  # a key of `REMARKS`, once it has ended
        self.shared = False  # not the first of its member, so that no offset leads to it
        self._text = b""
        self._close: Close | None = None

    def stream(self, text: bytes, cursor: Cursor, close: Close) -> None:
        """Make this a long record, whose block follows in `cursor`.

        `close` reads the line ends after the block and returns what is wrong there.
        """
        self._text = text
        self._cursor = cursor
        self._close = close
        self._left = self.length
        self._broken = ""

    @property
    def text(self) -> bytes:
        """The header, with its blank line."""
        return self._text if self.data is None else self.data[: self.start]

    @property
    def head(self) -> Head:
        """The header, with all its fields."""
        return parse(self.text.rstrip(b"\r\n"))

    @property
    def block(self) -> memoryview:
        """The block of a short record."""
        assert self.data is not None
        return memoryview(self.data)[self.start : self.start + self.length]

    def begins_with(self, start: bytes) -> bool:
        """Return whether the block begins with `start`."""
        if self.data is not None:
            return self.data.startswith(start, self.start, self.start + self.length)
        self._cursor.hold(len(start))
        return self._cursor.buffer.startswith(start, self._cursor.at)

    def pieces(self) -> Iterator[bytes | memoryview]:
        """Yield the block in pieces; raises `BrokenRecord` if it has no proper end."""
        if self.data is not None:
            yield self.block
            return
        while self._left and not self._broken:
            data = self._cursor.take(min(self._left, PIECE))
            self._left -= len(data)
            if data:
                yield data
            else:
                self._broken = CUT
        if self._close is not None and not self._broken:
            self._broken = self._close(self)
            self._close = None
        if self._broken:
            raise BrokenRecord(self._broken)

    def finish(self) -> None:
        """Read to the end; raises `BrokenRecord` if that is not where it should be."""
        if self.data is None:
            for _ in self.pieces():
                pass


class Sound(Record):
    """A short record without irregularities: alone in its member, and not `special`."""

    __slots__ = ()


Close = Callable[[Record], str]
