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
from base64 import b64encode
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from dedupindex.post_crawl.convert.deflate import MemberSettings

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
