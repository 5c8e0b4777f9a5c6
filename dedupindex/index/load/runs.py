"""Sorted runs on disk: an external sort of staged entries, in bounded memory.

A build writes what fits into memory as a sorted run; loading merges all runs in one pass. It fills
the pages of the index and has a constant rate; random puts have a quarter of it, and take 200 bytes
a record, not 137 (measured).

    run     chunk ..., directory, u64 offset of the directory, u32 CRC-32 of it, magic
    chunk   a sorted list of at most CHUNK staged entries (marshal)
    staged  key followed by entry; the first byte of the key implies its length

Runs are temporary files, read by the interpreter that wrote them.
"""

from __future__ import annotations

import marshal
import os
import struct
import sys
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, TypeVar

from dedupindex.errors import Damaged
from dedupindex.runtime.files import atomic_file

_T = TypeVar("_T")
CHUNK = 2048  # entries
RUN_BYTES = 160 << 20  # of staged entries in a run; about twice that in memory
_SORTED_BYTES = 32 << 20  # the same for `in_order`
SORTING = "sorting-"  # begins the name of a directory of `in_order`; one that is killed leaves it
FAN_IN = 128  # runs merged at once; more are merged in steps

_OVERHEAD = 49  # bytes of memory that a bytes object in a list takes beyond its content
_TRAILER = struct.Struct(">QI8s")
_MAGIC = b"dedurun1"


class RunWriter:
    """Collects staged entries and writes them as runs ``<name>-<n>.run`` in a directory."""

    def __init__(self, directory: Path, name: str, *, run_bytes: int = RUN_BYTES) -> None:
        self._directory, self._name, self._limit = directory, name, run_bytes
        self._staged: list[bytes] = []
        self._bytes = 0
        self._committed = 0, 0  # runs and staged entries that `roll_back` keeps
        self.paths: list[Path] = []

    def extend(self, staged: list[bytes]) -> None:
        """Add entries; writes a run when there are enough of them."""
        self._staged += staged
        self._bytes += sum(map(len, staged)) + _OVERHEAD * len(staged)
        if self._bytes >= self._limit:
            self.flush()

    def begin(self) -> None:
        """Mark the point to which `roll_back` returns."""
        self._committed = len(self.paths), len(self._staged)

    def roll_back(self) -> None:
        """Drop all entries added since `begin`."""
        runs, staged = self._committed
        for path in self.paths[runs:]:
            path.unlink()
        del self.paths[runs:], self._staged[staged:]

    def flush(self) -> None:
        """Write the remaining entries; all runs are on disk when this returns."""
        runs, kept = self._committed
        for entries in (self._staged[:kept], self._staged[kept:]):
            if not entries:
                continue
            entries.sort()
            path = self._directory / f"{self._name}-{len(self.paths)}.run"
            write_run(path, (entries[at : at + CHUNK] for at in range(0, len(entries), CHUNK)))
            self.paths.append(path)
        self._committed = runs + bool(kept), 0
        self._staged, self._bytes = [], 0


def write_run(path: Path, chunks: Iterable[list[bytes]]) -> None:
    """Write sorted chunks to a run, atomically."""
    places = []
    with atomic_file(path) as stream:
        for chunk in chunks:
            data = marshal.dumps(chunk)
            places.append((stream.tell(), len(data), zlib.crc32(data)))
            stream.write(data)
        write_directory(stream, marshal.dumps(places), _MAGIC)


def spread(items: Sequence[_T], most: int) -> Sequence[_T]:
    """Return at most so many items at equal distances, with the first and the last."""
    if len(items) <= most:
        return items
    return [items[at * (len(items) - 1) // max(most - 1, 1)] for at in range(most)]


def write_directory(stream: BinaryIO, directory: bytes, magic: bytes) -> None:
    """End a file of chunks with its directory and a trailer."""
    stream.write(directory + _TRAILER.pack(stream.tell(), zlib.crc32(directory), magic))


def read_directory(descriptor: int, magic: bytes) -> bytes | None:
    """Return the directory of a file of chunks, None if the file is damaged or cut."""
    end = os.fstat(descriptor).st_size - _TRAILER.size
    if end < 0:
        return None
    at, checksum, found = _TRAILER.unpack(os.pread(descriptor, _TRAILER.size, end))
    directory = os.pread(descriptor, max(end - at, 0), min(at, end))
    return directory if found == magic and zlib.crc32(directory) == checksum else None


def read_run(path: Path, most: int = sys.maxsize) -> Iterator[list[bytes]]:
    """Yield the chunks of a run, or `most` of them at equal distances; raises `Damaged`."""
    damaged = Damaged(f"{path} is damaged; run the same command again without --resume")
    with open(path, "rb", buffering=0) as stream:
        directory = read_directory(stream.fileno(), _MAGIC)
        if directory is None:
            raise damaged
        for start, length, expected in spread(marshal.loads(directory), most):
            data = os.pread(stream.fileno(), length, start)
            if zlib.crc32(data) != expected:
                raise damaged
            yield marshal.loads(data)


class _RunHead:
    """The current chunk of a run, and the position in it."""

    __slots__ = ("at", "chunk", "chunks")

    def __init__(self, chunks: Iterator[list[bytes]]) -> None:
        self.chunks = chunks
        self.chunk: list[bytes] = []
        self.at = 0

    def fill(self) -> bool:
        """Read the next chunk if need be; return False at the end of the run."""
        while self.at >= len(self.chunk):
            chunk = next(self.chunks, None)
            if chunk is None:
                return False
            self.chunk, self.at = chunk, 0
        return True


def merge(runs: list[Iterator[list[bytes]]]) -> Iterator[list[bytes]]:
    """Yield all entries of sorted runs in order, in lists of any length.

    Each step takes from every run the entries up to the earliest end of a current chunk, and sorts
    them, which is a merge done in C: timsort finds the sorted slices.
    """
    heads = [_RunHead(run) for run in runs]
    while heads := [head for head in heads if head.fill()]:
        bound = min([head.chunk[-1] for head in heads])
        batch: list[bytes] = []
        for head in heads:
            if head.chunk[head.at] > bound:
                continue
            end = bisect_right(head.chunk, bound, head.at)
            batch += head.chunk[head.at : end]
            head.at = end
        batch.sort()
        yield batch


def merge_files(paths: list[Path], directory: Path) -> Iterator[list[bytes]]:
    """Yield the merged entries of run files; more than `FAN_IN` are merged in steps."""
    paths, step = sorted(paths), 0
    while len(paths) > FAN_IN:
        merged = directory / f"merged-{step}.run"
        write_run(merged, merge([read_run(path) for path in paths[:FAN_IN]]))
        paths, step = [*paths[FAN_IN:], merged], step + 1
    yield from merge([read_run(path) for path in paths])


def chunked(items: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Yield items in lists of `CHUNK`, as `write_run` takes them."""
    while chunk := list(islice(items, CHUNK)):
        yield chunk


def in_order(items: Iterable[bytes], scratch: Path) -> Iterator[bytes]:
    """Yield items sorted; if there are many, on disk, in a temporary directory in `scratch`."""
    items = iter(items)
    held = list(islice(items, CHUNK))
    if len(held) < CHUNK:
        yield from sorted(held)
        return
    with TemporaryDirectory(dir=scratch, prefix=SORTING) as folder:
        writer = RunWriter(Path(folder), "sorted", run_bytes=_SORTED_BYTES)
        for chunk in chain([held], chunked(items)):
            writer.extend(chunk)
        writer.flush()
        for batch in merge_files(writer.paths, Path(folder)):
            yield from batch
