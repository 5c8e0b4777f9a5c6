"""How a gzip member was deflated: the settings of zlib that make the same bytes of its content.

Nearly every ARC file was compressed by zlib, alone or in Java. What zlib makes depends on level and
memory, not on the pieces in which it is fed, so these two numbers can stand for the whole member.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import NamedTuple

from dedupindex.warc.recovery import LONGEST_HEADER, header_length, judge
from dedupindex.warc.window import Window

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
