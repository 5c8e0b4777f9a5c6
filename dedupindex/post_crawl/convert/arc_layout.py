"""How to make an ARC file of the blocks of a WARC file: a JSON array a line, in order of the file.

    ["made", HEADER, LEVEL, MEMORY]   a gzip member begins: its header in hex, and how to deflate
    ["kept", HEADER]                  one that zlib does not make again; without HEADER, never mind
    ["bytes", BASE64]                 the next stored bytes of the member that is kept
    ["text", TEXT]                    so stands in the ARC file: URL records, line ends (Latin-1)
    ["block", LENGTH]                 here stands the block of the next record
    ["zeros", COUNT]                  zero bytes between members
    ["end", FACTS]                    name, size, hashes

Texts and blocks are what the member holds, inflated. The lines are the block of the last record.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from dedupindex.warc.gzip_members import LONGEST_HEADER, header_length, judge
from dedupindex.warc.window import Window

# How a gzip member was deflated: the settings of zlib that make the same bytes of its content.

_FEED = 1 << 16
_PIECE = 1 << 20  # bytes inflated in one go
_TRAILER = 8  # bytes: CRC-32 and length


class DeflateSettings(NamedTuple):
    """Of a deflater."""

    level: int
    memory: int

    def deflater(self) -> zlib._Compress:
        return zlib.compressobj(self.level, zlib.DEFLATED, -zlib.MAX_WBITS, self.memory)


USUAL = DeflateSettings(6, 8)
_ALL = (
    USUAL,
    *(DeflateSettings(level, memory) for memory in (8, 9) for level in (9, *range(1, 9))),
)


class MemberSettings(NamedTuple):
    """A member, as it can be made again; without settings it has to be kept."""

    header: bytes
    settings: DeflateSettings | None


class Search:
    """Finds the settings of one member after the other, beginning with those found last."""

    def __init__(self) -> None:
        self._last = USUAL

    def at(self, window: Window, offset: int) -> MemberSettings:
        """The member at `offset`, if it is sound."""
        size = header_length(window.read(offset, LONGEST_HEADER))
        if size < 0:
            return MemberSettings(b"", None)
        header = window.read(offset, size)
        for settings in (self._last, *(one for one in _ALL if one != self._last)):
            if _made(window, offset + size, settings):
                self._last = settings
                return MemberSettings(header, settings)
        return MemberSettings(header, None)


def _made(window: Window, position: int, settings: DeflateSettings) -> bool:
    """Whether `settings` make the deflate data at `position` of what it inflates to."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    deflater = settings.deflater()
    compared = position
    try:
        for data in _inflated(window, position, inflater):
            made = deflater.compress(data)
            if window.read(compared, len(made)) != made:
                return False
            compared += len(made)
    except zlib.error:
        return False
    made = deflater.flush()
    there = window.read(compared, len(made) + _TRAILER)
    # What is left behind the last block is the trailer, and other members.
    return len(there) == len(made) + _TRAILER and there.startswith(made) and inflater.eof


def _inflated(window: Window, position: int, inflater: zlib._Decompress) -> Iterator[bytes]:
    while not inflater.eof:
        feed = inflater.unconsumed_tail or window.read(position, _FEED)
        if not feed:
            return
        if not inflater.unconsumed_tail:
            position += len(feed)
        yield inflater.decompress(feed, _PIECE)


def size_of(window: Window, offset: int) -> int:
    """Bytes of the gzip member at `offset`; 0 if it is not sound."""
    return max(judge(window, offset).end - offset, 0)


CONTENT_TYPE = b"application/vnd.dedupindex.arc-layout"
_KEPT = 3 << 14  # stored bytes a line


class End(NamedTuple):
    """What the ARC file was."""

    name: str  # of the file, without folders
    size: int
    blake3: str  # of the file
    content: str  # BLAKE3 of all that its members hold
    exact: bool  # whether the stored bytes of every member can be made again


class LayoutWriter:
    """Lines that are being written to a spool file."""

    def __init__(self, spool: BinaryIO) -> None:
        self.spool = spool

    def made(self, found: MemberSettings) -> None:
        assert found.settings is not None
        self._write("made", found.header.hex(), *found.settings)

    def kept(self, stored: Iterator[bytes]) -> None:
        self._write("kept", True)
        for data in stored:
            for at in range(0, len(data), _KEPT):
                self._write("bytes", b64encode(data[at : at + _KEPT]).decode("ascii"))

    def text(self, data: bytes) -> None:
        self._write("text", data.decode("latin-1"))

    def block(self, length: int) -> None:
        self._write("block", length)

    def zeros(self, count: int) -> None:
        self._write("zeros", count)

    def end(self, end: End) -> None:
        self._write("end", end._asdict())

    def _write(self, *words: Any) -> None:
        self.spool.write(json.dumps(words).encode("ascii") + b"\n")


def lines(spool: BinaryIO) -> Iterator[list[Any]]:
    """The lines of a layout from its beginning; raises `ValueError` for what is none."""
    spool.seek(0)
    for line in spool:
        words = json.loads(line)
        if not isinstance(words, list) or not words:
            raise ValueError("not a line of a layout")
        yield words
