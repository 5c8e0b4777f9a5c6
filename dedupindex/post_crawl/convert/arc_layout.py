"""The layout of an ARC file: how to make it of the blocks of the WARC file that replaces it.

The layout is the block of the last record of the WARC file, a JSON array a line:

    ["made", HEADER, LEVEL, MEMORY]   begin a gzip member: its header in hex, settings of deflate
    ["kept", true]                    begin a gzip member that zlib does not reproduce
    ["bytes", BASE64]                 stored bytes of the member that is kept
    ["text", TEXT]                    bytes around blocks, in Latin-1: URL records, line ends
    ["block", LENGTH]                 the block of the next record
    ["zeros", COUNT]                  zero bytes between members
    ["end", LayoutEnd]                name, size and hashes of the ARC file

Texts and blocks are what the member holds, inflated.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from dedupindex.warc.gzip_members import LONGEST_HEADER, header_length
from dedupindex.warc.window import Window

CONTENT_TYPE = b"application/vnd.dedupindex.arc-layout"
_FEED = 1 << 16  # bytes read at once
_PIECE = 1 << 20  # bytes inflated at once
_TRAILER = 8  # bytes: CRC-32 and length
_BYTES_PER_LINE = 3 << 14  # stored bytes


class DeflateSettings(NamedTuple):
    """Parameters of zlib."""

    level: int
    memory: int

    def compressor(self) -> zlib._Compress:
        return zlib.compressobj(self.level, zlib.DEFLATED, -zlib.MAX_WBITS, self.memory)


DEFAULT_SETTINGS = DeflateSettings(6, 8)
_ALL_SETTINGS = (
    DEFAULT_SETTINGS,
    *(DeflateSettings(level, memory) for memory in (8, 9) for level in (9, *range(1, 9))),
)


class SettingsSearch:
    """Finds the settings that reproduce each gzip member; tries the last successful ones first."""

    def __init__(self) -> None:
        self._last = DEFAULT_SETTINGS

    def find(self, window: Window, offset: int) -> tuple[bytes, DeflateSettings | None]:
        """Return the gzip header at `offset` and the settings; None if no settings fit."""
        size = header_length(window.read(offset, LONGEST_HEADER))
        if size < 0:
            return b"", None
        header = window.read(offset, size)
        for settings in (self._last, *_ALL_SETTINGS):
            if _reproduces(settings, window, offset + size):
                self._last = settings
                return header, settings
        return header, None


def _reproduces(settings: DeflateSettings, window: Window, position: int) -> bool:
    """Whether compressing the content of the deflate data at `position` gives the same bytes."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    compressor = settings.compressor()
    compared = position
    try:
        for data in _inflated(window, position, inflater):
            made = compressor.compress(data)
            if window.read(compared, len(made)) != made:
                return False
            compared += len(made)
    except zlib.error:
        return False
    made = compressor.flush()
    rest = window.read(compared, len(made) + _TRAILER)
    return len(rest) == len(made) + _TRAILER and rest.startswith(made) and inflater.eof


def _inflated(window: Window, position: int, inflater: zlib._Decompress) -> Iterator[bytes]:
    while not inflater.eof:
        feed = inflater.unconsumed_tail or window.read(position, _FEED)
        if not feed:
            return
        if not inflater.unconsumed_tail:
            position += len(feed)
        yield inflater.decompress(feed, _PIECE)


class LayoutEnd(NamedTuple):
    """Facts of the ARC file."""

    name: str  # without directories
    size: int
    blake3: str  # of the file
    content: str  # BLAKE3 of what its members hold
    exact: bool  # whether all stored bytes can be reproduced


class LayoutWriter:
    """Writes the lines of a layout to a spool file."""

    def __init__(self, spool: BinaryIO) -> None:
        self.spool = spool

    def write(self, *values: Any) -> None:
        self.spool.write(json.dumps(values).encode("ascii") + b"\n")

    def write_kept(self, stored: Iterator[bytes]) -> None:
        """Write a member as the bytes it is."""
        self.write("kept", True)
        for data in stored:
            for at in range(0, len(data), _BYTES_PER_LINE):
                self.write("bytes", b64encode(data[at : at + _BYTES_PER_LINE]).decode("ascii"))


def read_layout(spool: BinaryIO) -> Iterator[list[Any]]:
    """Yield the lines of a layout; raises `ValueError` for other content."""
    spool.seek(0)
    for line in spool:
        values = json.loads(line)
        if not isinstance(values, list) or not values:
            raise ValueError("not a line of a layout")
        yield values
