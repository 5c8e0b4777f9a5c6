"""A WARC file that was made of an ARC file, read afresh, and the ARC file made of it again.

It is read by the code of `verify`, which shares nothing with the code that wrote it.
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

from dedupindex.post_crawl.convert.arc_layout import CONTENT_TYPE, DeflateSettings, End, lines
from dedupindex.verify.block_facts import Note, checked
from dedupindex.verify.file_bytes import UnreadableFile, opened
from dedupindex.verify.http_blocks import read
from dedupindex.verify.issues import REASONS, REMARK, Broken, Finding
from dedupindex.verify.parse_records import CheckedRecord
from dedupindex.verify.walk_file import AnyRecord, Container

Write = Callable[[bytes], object]


class NotBack(Exception):
    """The ARC file cannot be made; the text says why."""


class NoLayout(NotBack):
    """The WARC file was made of no ARC file."""


def check(path: Path, content_hash: str) -> None:
    """Raise `NotBack` unless every record is sound and the ARC file of this hash comes of them."""
    with TemporaryFile(dir=path.parent) as spool:
        examine(path, spool)
        if rebuild(path, spool, len).blake3 != content_hash:
            raise NotBack("it was made of another file")


def examine(path: Path, spool: BinaryIO) -> None:
    """Check every record, and write the layout to `spool`; raises `NotBack`."""
    found = False
    for record in _records(path):
        if _is_layout(record):
            found = True
            _take(record, spool, path)
            continue
        notes: list[Note] = []
        checked(record, notes)
        for reason, message in notes:
            if REASONS[reason] != REMARK:
                raise NotBack(f"{path} at {record.offset}: {message}")
    if not found:
        raise NoLayout(f"{path} was made of no ARC file")


def _take(record: CheckedRecord, spool: BinaryIO, path: Path) -> None:
    """Write the layout to `spool`, in place of what is in it; raises `NotBack`."""
    spool.seek(0)
    spool.truncate()
    running = hashlib.sha1()
    try:
        for piece in record.pieces():
            spool.write(piece)
            running.update(piece)
    except Broken as error:
        raise NotBack(f"{path} at {record.offset}: its layout breaks off: {error}") from error
    stated = read(record.head.get(b"warc-block-digest"))
    if stated is None or stated.raw != running.digest():
        raise NotBack(f"{path} at {record.offset}: the layout has another digest than is stated")


def rebuild(path: Path, spool: BinaryIO, write: Write) -> End:
    """Make the ARC file as the layout in `spool` says, and `write` it; raises `NotBack`."""
    blocks = (record for record in _records(path) if not _is_layout(record))
    blocks = (record for record in blocks if record.kind != b"warcinfo")
    arc = _Arc(write)
    try:
        end = _end(spool)
        for name, *words in lines(spool):
            if name == "end":
                return _compared(arc, end)
            if name == "block":
                for piece in _block(blocks, words[0]):
                    arc.add(piece)
            else:
                arc.obey(name, words)
            if end.exact and arc.size > end.size:
                raise NotBack(f"{path}: more comes of its layout than there was")
    except (ValueError, TypeError, IndexError, KeyError, OverflowError) as error:
        raise NotBack(f"{path}: its layout cannot be read: {error}") from error
    except Broken as error:
        raise NotBack(f"{path}: a record breaks off: {error}") from error
    raise NotBack(f"{path}: its layout has no end")


def _end(spool: BinaryIO) -> End:
    """The last line of a layout; raises `ValueError` if it is none, or zeros cannot be true."""
    zeros, last = 0, []
    for last in lines(spool):
        zeros += last[1] if last[0] == "zeros" else 0
    if not last or last[0] != "end":
        raise ValueError("it has no end")
    end = End(**last[1])
    if zeros > end.size:
        raise ValueError("it has more zeros than there were bytes")
    return end


def _block(blocks: Iterator[AnyRecord], length: int) -> Iterator[bytes]:
    record = next(blocks, None)
    if record is None:
        raise NotBack("a record is missing")
    if record.kind == b"revisit":
        raise NotBack(f"the record at {record.offset} is a revisit: bin/undedup it first")
    if record.length != length:
        raise NotBack(f"the record at {record.offset} is not the one that was made")
    return record.pieces()


def _compared(arc: _Arc, end: End) -> End:
    arc.close()
    if arc.content.hexdigest() != end.content:
        raise NotBack("its records do not make the documents that they were made of")
    if end.exact and (arc.size, arc.file.hexdigest()) != (end.size, end.blake3):
        raise NotBack("its members do not come out as they were: is this another version of zlib?")
    return end


def _records(path: Path) -> Iterator[AnyRecord]:
    """All records, each to be read before the next; raises `NotBack` for damage."""
    try:
        with opened(path) as file:
            for item in Container(file).each():
                if not isinstance(item, Finding):
                    yield item
                elif item.level != REMARK:
                    raise NotBack(f"{path} at {item.offset}: {item.message}")
    except (UnreadableFile, Broken) as error:
        raise NotBack(f"{path}: {error}") from error


def _is_layout(record: AnyRecord) -> TypeGuard[CheckedRecord]:
    return (
        isinstance(record, CheckedRecord)
        and record.kind == b"metadata"
        and record.head.get(b"content-type") == CONTENT_TYPE
    )


class _Arc:
    """The ARC file as it comes to be."""

    def __init__(self, write: Write) -> None:
        self.file, self.content = blake3.blake3(), blake3.blake3()
        self.size = 0
        self._write = write
        self._plain = True
        self._packer: zlib._Compress | None = None
        self._checksum = self._length = 0  # of the member

    def obey(self, name: str, words: list[Any]) -> None:
        """Do what a line of the layout says."""
        if name == "text":
            self.add(words[0].encode("latin-1"))
        elif name == "bytes":
            self._store(b64decode(words[0], validate=True))
        elif name in ("made", "kept"):
            self.close()
            self._plain = False
            if name == "made":
                self._packer = DeflateSettings(words[1], words[2]).deflater()
                self._store(bytes.fromhex(words[0]))
        elif name == "zeros":
            self.close()
            for at in range(0, words[0], 1 << 20):
                self._store(bytes(min(words[0] - at, 1 << 20)))
        else:
            raise ValueError(f"nobody knows what {name!r} is")

    def add(self, data: bytes) -> None:
        """What a member holds, or a plain file."""
        self.content.update(data)
        if self._plain:
            self._store(data)
        elif self._packer is not None:
            self._checksum = zlib.crc32(data, self._checksum)
            self._length += len(data)
            self._store(self._packer.compress(data))

    def close(self) -> None:
        """End the member, if there is one that is made."""
        if self._packer is not None:
            self._store(self._packer.flush())
            for number in (self._checksum, self._length & 0xFFFFFFFF):
                self._store(number.to_bytes(4, "little"))
        self._packer = None
        self._checksum = self._length = 0

    def _store(self, data: bytes) -> None:
        self.file.update(data)
        self.size += len(data)
        self._write(data)
