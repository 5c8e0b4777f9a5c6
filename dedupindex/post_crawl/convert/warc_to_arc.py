"""Reproduce an ARC file from the WARC file that was made of it.

The WARC file is read by `verify`, which shares no code with what wrote it.
"""

from __future__ import annotations

import hashlib
import zlib
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, TypeGuard

import blake3

from dedupindex.post_crawl.convert.arc_layout import (
    CONTENT_TYPE,
    DeflateSettings,
    LayoutEnd,
    read_layout,
)
from dedupindex.verify.block_facts import Issue, read_digest, try_examine
from dedupindex.verify.file_bytes import UnreadableFile, opened
from dedupindex.verify.issues import REASONS, REMARK, Broken, Finding
from dedupindex.verify.parse_records import AnyRecord, CheckedRecord
from dedupindex.verify.walk_file import Container


class NotReproduced(Exception):
    """The ARC file cannot be reproduced; the text says why."""


class NoLayout(NotReproduced):
    """The WARC file was not made of an ARC file."""


def check(path: Path, content_hash: str) -> None:
    """Raise `NotReproduced` unless all records are sound and give the ARC file of this BLAKE3."""
    with TemporaryFile(dir=path.parent) as spool:
        examine(path, spool)
        if rebuild(path, spool, len).blake3 != content_hash:
            raise NotReproduced("it was made of another file")


def examine(path: Path, spool: BinaryIO) -> None:
    """Check all records, and write the layout to `spool`; raises `NotReproduced`."""
    found = False
    for record in _records(path):
        if _is_layout(record):
            found = True
            _spool_layout(record, spool, path)
            continue
        notes: list[Issue] = []
        try_examine(record, notes)
        for reason, message in notes:
            if REASONS[reason] != REMARK:
                raise NotReproduced(f"{path} at {record.offset}: {message}")
    if not found:
        raise NoLayout(f"{path} was made of no ARC file")


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
        raise NotReproduced(f"{path} at {record.offset}: its layout breaks off: {error}") from error
    stated = read_digest(record.head.get(b"warc-block-digest"))
    if stated is None or stated.raw != digest.digest():
        raise NotReproduced(
            f"{path} at {record.offset}: the layout has another digest than is stated"
        )


def rebuild(path: Path, spool: BinaryIO, write: Callable[[bytes], object]) -> LayoutEnd:
    """Pass the bytes of the ARC file to `write`, by the layout in `spool`.

    Raises `NotReproduced`.
    """
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
                raise NotReproduced(f"{path}: more comes of its layout than there was")
    except (ValueError, TypeError, IndexError, KeyError, OverflowError) as error:
        raise NotReproduced(f"{path}: its layout cannot be read: {error}") from error
    except Broken as error:
        raise NotReproduced(f"{path}: a record breaks off: {error}") from error
    raise NotReproduced(f"{path}: its layout has no end")


def _read_end(spool: BinaryIO) -> LayoutEnd:
    """The last line of a layout; raises `ValueError` without one, or if its zeros exceed a file."""
    zeros, last = 0, []
    for last in read_layout(spool):
        zeros += last[1] if last[0] == "zeros" else 0
    if not last or last[0] != "end":
        raise ValueError("it has no end")
    end = LayoutEnd(**last[1])
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
        raise NotReproduced(f"the record at {record.offset} is not the one that was made")
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
    """Makes the bytes of an ARC file."""

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
            self.add(values[0].encode("latin-1"))
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
            raise ValueError(f"nobody knows what {name!r} is")

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
            raise NotReproduced("its records do not make the documents that they were made of")
        if end.exact and (self.size, self._file.hexdigest()) != (end.size, end.blake3):
            raise NotReproduced(
                "its members do not come out as they were: is this another version of zlib?"
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
