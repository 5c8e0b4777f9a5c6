"""Reproduce an ARC file from the WARC file that was made of it.

The WARC file is read by `verify`, which shares no code with what wrote it. The block of its last
record is the layout of the ARC file, a JSON array a line:

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

import hashlib
import json
import zlib
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, NamedTuple, TypeGuard

import blake3

from dedupindex.errors import BadSource
from dedupindex.post_crawl.convert.conversion import NotConverted
from dedupindex.verify.block_facts import read_digest, try_examine
from dedupindex.verify.file_bytes import UnreadableFile, opened
from dedupindex.verify.issues import REASONS, REMARK, Broken, Finding, Issue
from dedupindex.verify.parse_records import AnyRecord, CheckedRecord
from dedupindex.verify.walk_file import Container
from dedupindex.warc.gzip_members import LONGEST_HEADER, header_length
from dedupindex.warc.window import Window

CONTENT_TYPE = b"application/vnd.dedupindex.arc-layout"
_FEED = 1 << 16  # bytes read at once
_PIECE = 1 << 20  # bytes inflated at once
_TRAILER = 8  # bytes: CRC-32 and length
_BYTES_PER_LINE = 3 << 14  # stored bytes; a multiple of 3, for base64


class DeflateSettings(NamedTuple):
    level: int
    memory: int

    def compressor(self) -> zlib._Compress:
        return zlib.compressobj(self.level, zlib.DEFLATED, -zlib.MAX_WBITS, self.memory)


DEFAULT_SETTINGS = DeflateSettings(6, 8)
_ALL_SETTINGS = (
    DEFAULT_SETTINGS,
    *(DeflateSettings(level, memory) for memory in (8, 9) for level in (9, *range(1, 9))),
)


def find_settings(
    window: Window, offset: int, likely: DeflateSettings
) -> tuple[bytes, DeflateSettings] | None:
    """Return gzip header and settings that reproduce a member, if any; try `likely` first."""
    size = header_length(window.read(offset, LONGEST_HEADER))
    for settings in (likely, *_ALL_SETTINGS) if size >= 0 else ():
        if _reproduces(settings, window, offset + size):
            return window.read(offset, size), settings
    return None


def _reproduces(settings: DeflateSettings, window: Window, position: int) -> bool:
    """Whether compressing the content of the deflate data at `position` gives the same bytes."""
    inflater, compressor = zlib.decompressobj(-zlib.MAX_WBITS), settings.compressor()
    compared = position
    try:
        while not inflater.eof:
            feed = inflater.unconsumed_tail
            if not feed:
                feed = window.read(position, _FEED)
                position += len(feed)
                if not feed:
                    break
            made = compressor.compress(inflater.decompress(feed, _PIECE))
            if window.read(compared, len(made)) != made:
                return False
            compared += len(made)
    except zlib.error:
        return False
    made = compressor.flush()
    rest = window.read(compared, len(made) + _TRAILER)
    return len(rest) == len(made) + _TRAILER and rest.startswith(made) and inflater.eof


class LayoutEnd(NamedTuple):
    """Facts of the ARC file."""

    name: str  # without directories
    size: int
    blake3: str  # of the file
    content: str  # BLAKE3 of what its members hold
    exact: bool  # whether all stored bytes can be reproduced


_END_TYPES = (str, int, str, str, bool)


def write_line(spool: BinaryIO, *values: Any) -> None:
    spool.write(json.dumps(values).encode("ascii") + b"\n")


def write_kept(spool: BinaryIO, window: Window, offset: int, end: int) -> None:
    """Write the lines of a member that is kept as stored."""
    write_line(spool, "kept", True)
    for at in range(offset, end, _BYTES_PER_LINE):
        size = min(end - at, _BYTES_PER_LINE)
        data = window.read(at, size)
        if len(data) != size:
            raise BadSource("it became shorter while it was read")
        write_line(spool, "bytes", b64encode(data).decode("ascii"))


def read_layout(spool: BinaryIO) -> Iterator[list[Any]]:
    """Yield the lines of a layout; raises `ValueError` for other content."""
    spool.seek(0)
    for line in spool:
        try:
            values = json.loads(line)
        except RecursionError:
            values = None
        if not isinstance(values, list) or not values:
            raise ValueError("not a line of a layout")
        yield values


class NotReproduced(NotConverted):
    """The ARC file cannot be reproduced; the text says why."""


class NoLayout(NotReproduced):
    """The WARC file was not made of an ARC file."""


def check(path: Path, content_hash: str) -> None:
    """Raise `NotReproduced` unless all records are sound and give the ARC file of this BLAKE3."""
    with TemporaryFile(dir=path.parent) as spool:
        examine(path, spool)
        if rebuild(path, spool, len).blake3 != content_hash:
            raise NotReproduced("it was made from another file")


def examine(path: Path, spool: BinaryIO) -> Counter[bytes]:
    """Check all records, and write the layout to `spool`; raises `NotReproduced`.

    Returns how many records of each type there are.
    """
    found, kinds = False, Counter[bytes]()
    for record in _records(path):
        if _is_layout(record):
            found = True
            _spool_layout(record, spool, path)
            continue
        kinds[record.kind] += 1
        notes: list[Issue] = []
        try_examine(record, notes)
        for reason, message in notes:
            if REASONS[reason] != REMARK:
                raise NotReproduced(f"{path} at {record.offset}: {message}")
    if not found:
        raise NoLayout(f"{path} was not made from an ARC file")
    return kinds


def _spool_layout(record: CheckedRecord, spool: BinaryIO, path: Path) -> None:
    """Replace the content of `spool` by a layout; raises `NotReproduced`."""
    spool.seek(0)
    spool.truncate()
    digest = hashlib.sha1()
    try:
        for piece in record.pieces():
            spool.write(piece)
            digest.update(piece)
    except Broken as error:
        raise NotReproduced(
            f"{path} at {record.offset}: its layout is incomplete: {error}"
        ) from error
    stated = read_digest(record.head.get(b"warc-block-digest"))
    if stated is None or stated.raw != digest.digest():
        raise NotReproduced(
            f"{path} at {record.offset}: the layout has another digest than is stated"
        )


def rebuild(path: Path, spool: BinaryIO, write: Callable[[bytes], object]) -> LayoutEnd:
    """Pass the ARC file to `write`, as the layout in `spool` says; raises `NotReproduced`."""
    blocks = (
        record for record in _records(path) if not _is_layout(record) and record.kind != b"warcinfo"
    )
    arc = _ArcBuilder(write)
    try:
        end = _read_end(spool)
        for name, *values in read_layout(spool):
            if name == "end":
                arc.check(end)
                return end
            if name == "block":
                for piece in _block(blocks, values[0]):
                    arc.add(piece)
            else:
                arc.follow(name, values)
            if end.exact and arc.size > end.size:
                raise NotReproduced(f"{path}: its layout produces more bytes than the ARC file had")
    except (ValueError, TypeError, IndexError, KeyError, OverflowError) as error:
        raise NotReproduced(f"{path}: its layout cannot be read: {error}") from error
    except Broken as error:
        raise NotReproduced(f"{path}: a record is incomplete: {error}") from error
    raise NotReproduced(f"{path}: its layout has no end")


def _read_end(spool: BinaryIO) -> LayoutEnd:
    """The last line of a layout; raises `ValueError` without one, or if its zeros exceed a file."""
    zeros, last = 0, []
    for last in read_layout(spool):
        zeros += abs(last[1]) if last[0] == "zeros" else 0
    if not last or last[0] != "end":
        raise ValueError("it has no end")
    end = LayoutEnd(**last[1])
    if tuple(map(type, end)) != _END_TYPES or end.size < 0:
        raise ValueError("its end has values of other types")
    if zeros > end.size:
        raise ValueError("it has more zeros than there were bytes")
    return end


def _block(blocks: Iterator[AnyRecord], length: int) -> Iterator[bytes]:
    record = next(blocks, None)
    if record is None:
        raise NotReproduced("a record is missing")
    if record.kind == b"revisit":
        raise NotReproduced(f"the record at {record.offset} is a revisit: bin/undedup it first")
    if record.length != length:
        raise NotReproduced(
            f"the record at {record.offset} does not have the length that the layout states"
        )
    return record.pieces()


def _records(path: Path) -> Iterator[AnyRecord]:
    """All records, each to be read before the next; raises `NotReproduced` for damage."""
    try:
        with opened(path) as file:
            for item in Container(file).each():
                if not isinstance(item, Finding):
                    yield item
                elif item.level != REMARK:
                    raise NotReproduced(f"{path} at {item.offset}: {item.message}")
    except (UnreadableFile, Broken) as error:
        raise NotReproduced(f"{path}: {error}") from error


def _is_layout(record: AnyRecord) -> TypeGuard[CheckedRecord]:
    return (
        isinstance(record, CheckedRecord)
        and record.kind == b"metadata"
        and record.head.get(b"content-type") == CONTENT_TYPE
    )


class _ArcBuilder:
    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._file, self._content = blake3.blake3(), blake3.blake3()
        self.size = 0
        self._write = write
        self._plain = True
        self._compressor: zlib._Compress | None = None
        self._checksum = self._length = 0  # of the member

    def follow(self, name: str, values: list[Any]) -> None:
        """Follow a line of the layout, "block" and "end" excluded."""
        if name == "text":
            self.add(str.encode(values[0], "latin-1"))
        elif name == "bytes":
            self._store(b64decode(values[0], validate=True))
        elif name in ("made", "kept"):
            self._end_member()
            self._plain = False
            if name == "made":
                self._compressor = DeflateSettings(values[1], values[2]).compressor()
                self._store(bytes.fromhex(values[0]))
        elif name == "zeros":
            self._end_member()
            for at in range(0, values[0], 1 << 20):
                self._store(bytes(min(values[0] - at, 1 << 20)))
        else:
            raise ValueError(f"unknown instruction {name!r:.80}")

    def add(self, data: bytes) -> None:
        """Add content of the member or of the uncompressed file."""
        self._content.update(data)
        if self._plain:
            self._store(data)
        elif self._compressor is not None:
            self._checksum = zlib.crc32(data, self._checksum)
            self._length += len(data)
            self._store(self._compressor.compress(data))

    def check(self, end: LayoutEnd) -> None:
        """End the file; raises `NotReproduced` if it is not that of `end`."""
        self._end_member()
        if self._content.hexdigest() != end.content:
            raise NotReproduced("its records differ from the documents of the ARC file")
        if end.exact and (self.size, self._file.hexdigest()) != (end.size, end.blake3):
            raise NotReproduced(
                "its members cannot be reproduced: is this another version of zlib?"
            )

    def _end_member(self) -> None:
        if self._compressor is not None:
            self._store(self._compressor.flush())
            for number in (self._checksum, self._length & 0xFFFFFFFF):
                self._store(number.to_bytes(4, "little"))
        self._compressor = None
        self._checksum = self._length = 0

    def _store(self, data: bytes) -> None:
        self._file.update(data)
        self.size += len(data)
        self._write(data)
