"""Revisits back to the records that they stand for.

While the dropped members are kept, every file comes back bit for bit. Without them each record
is made of its revisit and its original: the record is the same to the bit, its gzip member is not.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from dedupindex.files import sync_directory
from dedupindex.rewrite.container import Left
from dedupindex.rewrite.disk import FileSink, content_hash, keep_metadata, open_for_reading
from dedupindex.rewrite.journal import Entry, Journal, Offsets, Was, entries, summary
from dedupindex.rewrite.recipe import END
from dedupindex.rewrite.writing import part_of
from dedupindex.warc import http
from dedupindex.warc.single import NotExact, Single

_LEVEL = 6  # as most crawlers compress
_OPEN = 32  # files


class Undo(NamedTuple):
    """One container to restore."""

    directory: Path  # where its journal is
    name: str
    out: Path | None  # where it goes; None is in place


@dataclass
class Restored:
    """What became of it."""

    name: str
    state: str  # exact (bit for bit), records (each to the bit), copied, there, left
    records: int = 0
    problem: str = ""
    bytes_after: int = 0


def restore(task: Undo) -> Restored:
    """Restore one container. Raises `OSError` where writing fails; then nothing has changed."""
    try:
        if task.out is None:
            return _in_place(task)
        return _to_directory(task, task.out)
    except Left as left:
        return Restored(task.name, "left", 0, str(left))
    except FileNotFoundError as error:
        return Restored(task.name, "left", 0, f"{error.filename} is not there")


def _in_place(task: Undo) -> Restored:
    path = task.directory / task.name
    journal = Journal(task.directory, task.name)
    was, ended = journal.summary()
    part = part_of(path)
    if not journal.dropped.exists():
        raise Left("its dropped members are gone; use --out to make the records of their originals")
    try:
        with open_for_reading(path) as source, open(part, "w+b", buffering=0) as file:
            if os.fstat(source.fileno()).st_size == was.size:
                if content_hash(source) != was.content_hash:
                    raise Left("it is neither what it was nor what it became")
                journal.clear()  # a run before was killed when all was done but this
                return Restored(task.name, "there", ended.revisits, "", was.size)
            size = _exact(source, journal, was, file)
        os.replace(part, path)
        sync_directory(path.parent)
    finally:
        part.unlink(missing_ok=True)
    journal.clear()
    return Restored(task.name, "exact", ended.revisits, "", size)


def _exact(source: BinaryIO, journal: Journal, was: Was, file: BinaryIO) -> int:
    """Write the file that was, and see that it is; returns its size."""
    sink = FileSink(file)
    with open_for_reading(journal.dropped) as dropped:
        position = taken = 0
        for entry in entries(journal.lines):
            sink.copy(source, position, entry.new_offset - position)
            sink.copy(dropped, taken, entry.stored)
            taken += entry.stored
            position = entry.new_offset + entry.new_stored
    sink.copy(source, position, os.fstat(source.fileno()).st_size - position)
    if content_hash(file) != was.content_hash:
        raise Left("with its dropped members it is not what it was; nothing was replaced")
    _finish(source, file, was)
    return sink.size


def _finish(source: BinaryIO, file: BinaryIO, was: Was | None) -> None:
    keep_metadata(source, file)
    if was is not None:
        os.utime(file.fileno(), ns=(was.mtime_ns, was.mtime_ns))
    os.fsync(file.fileno())


def _to_directory(task: Undo, out: Path) -> Restored:
    target = out / task.name
    target.parent.mkdir(parents=True, exist_ok=True)
    part = part_of(target)
    if target.exists():
        raise Left(f"{target} is there already")
    journal = Journal(task.directory, task.name)
    told = journal.told()
    try:
        with (
            open_for_reading(task.directory / task.name) as source,
            open(part, "w+b", buffering=0) as file,
        ):
            restored = Restored(task.name, "copied")
            if told is None:
                FileSink(file).copy(source, 0, os.fstat(source.fileno()).st_size)
                _finish(source, file, None)
            elif journal.exists() and journal.dropped.exists():
                was, ended = journal.summary()
                _exact(source, journal, was, file)
                restored = Restored(task.name, "exact", ended.revisits)
            else:
                restored = Restored(task.name, "records", _records(task, told, source, file))
            restored.bytes_after = os.fstat(file.fileno()).st_size
        os.replace(part, target)
        sync_directory(target.parent)
        return restored
    finally:
        part.unlink(missing_ok=True)


def _records(task: Undo, told: Path, source: BinaryIO, file: BinaryIO) -> int:
    """Write the file with every record made of its revisit and its original."""
    was, ended = summary(told)
    if os.fstat(source.fileno()).st_size != ended.size:
        raise Left("it is not what its journal says that it became")
    sink, position = FileSink(file), 0
    with ExitStack() as files:
        holders: dict[tuple[str, str], tuple[BinaryIO, Offsets | None]] = {}
        for entry in entries(told):
            sink.copy(source, position, entry.new_offset - position)
            place = entry.root, entry.name
            if place not in holders:
                if len(holders) == _OPEN:
                    files.close()
                    holders.clear()
                base = Path(entry.root) if entry.root else task.directory
                opened = files.enter_context(open_for_reading(base / entry.name))
                moved = Journal(base, entry.name).told()
                holders[place] = opened, Offsets(entries(moved)) if moved else None
            try:
                _record(entry, source, *holders[place], sink)
            except NotExact as error:
                raise Left(
                    f"the record at {entry.new_offset} cannot be restored: {error}"
                ) from error
            position = entry.new_offset + entry.new_stored
    sink.copy(source, position, ended.size - position)
    _finish(source, file, was)
    return ended.revisits


def _record(
    entry: Entry, source: BinaryIO, holder: BinaryIO, moved: Offsets | None, sink: FileSink
) -> None:
    """Write one record; raises `NotExact` if it does not come out as it was."""
    revisit = Single(source, entry.new_offset, entry.new_stored)
    offset = moved.now(entry.original) if moved else entry.original
    original = Single(holder, offset, entry.original_stored)
    running = hashlib.sha256()
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, 31) if revisit.gzipped else None
    for piece in _pieces(entry, revisit, original):
        running.update(piece)
        sink.write(packer.compress(piece) if packer else bytes(piece))
    if packer:
        sink.write(packer.flush())
    if running.hexdigest() != entry.sha256:
        raise NotExact("with its original it is not the record that was there")


def _pieces(entry: Entry, revisit: Single, original: Single) -> Iterator[bytes | memoryview]:
    yield entry.header.encode("latin-1")
    yield from revisit.block()
    held, skip = b"", -1
    for piece in original.block():
        if skip >= 0:
            yield piece
            continue
        held += piece
        skip = http.header_end(held, 0, len(held))
        if skip >= 0:
            yield held[skip:]
    yield END


def commit(journal: Journal) -> int:
    """Let go of the dropped members of a container, for ever; returns their bytes."""
    return journal.commit() if journal.dropped.exists() else 0
