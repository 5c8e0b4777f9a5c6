"""Sorted runs on disk: how captures wait, in bounded memory, until the index takes them.

Builders collect entries, sort a memory's worth, and write it as a run; loading merges all runs
in one pass. Sorted loading fills the pages of the index to the brim and runs at a constant rate,
where random puts slow down with size (measured at four times the rate, and 137 against 200 bytes
a record). Nothing depends on digests being spread evenly.

    run    chunk ... directory, u64 offset of the directory, u32 CRC-32 of it, magic
    chunk  a list of staged entries, sorted (marshal), at most CHUNK of them
    staged key followed by entry; the key's first byte tells its length

Runs are our own temporary files, read by the same interpreter that wrote them, checked by CRC.
"""

from __future__ import annotations

import marshal
import os
import struct
import sys
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from dedupindex.errors import Damaged
from dedupindex.runtime.files import sync_directory

_T = TypeVar("_T")
CHUNK = 2048  # entries
RUN_BYTES = 160 << 20  # of staged entries before a run is written; about twice that in memory
_SORTED_BYTES = 32 << 20  # the same where items are sorted beside other work
FAN_IN = 128  # runs merged at once; more are merged in steps

_OVERHEAD = 49  # bytes that a bytes object and its place in a list add in memory
_TRAILER = struct.Struct(">QI8s")
_MAGIC = b"dedurun1"


class RunWriter:
    """Collects staged entries and writes them as runs ``<name>-<n>.run`` in a directory."""

    def __init__(self, directory: Path, name: str, *, run_bytes: int = RUN_BYTES) -> None:
        self._directory, self._name, self._limit = directory, name, run_bytes
        self._staged: list[bytes] = []
        self._bytes = 0
        self._sure = 0, 0  # runs and staged entries that no `roll_back` takes away
        self.paths: list[Path] = []

    def extend(self, staged: list[bytes]) -> None:
        """Take entries; writes a run when a memory's worth has come together."""
        self._staged += staged
        self._bytes += sum(map(len, staged)) + _OVERHEAD * len(staged)
        if self._bytes >= self._limit:
            self.flush()

    def begin(self) -> None:
        """From here on entries may be taken back."""
        self._sure = len(self.paths), len(self._staged)

    def roll_back(self) -> None:
        """Drop all entries since `begin`."""
        runs, staged = self._sure
        for path in self.paths[runs:]:
            path.unlink()
        del self.paths[runs:], self._staged[staged:]

    def flush(self) -> None:
        """Write what is left; the runs are on disk when this returns."""
        runs, sure = self._sure
        for entries in (self._staged[:sure], self._staged[sure:]) if sure else (self._staged,):
            if entries:
                self._write(entries)
        self._sure = runs + bool(sure), 0
        self._staged, self._bytes = [], 0

    def _write(self, entries: list[bytes]) -> None:
        entries.sort()
        path = self._directory / f"{self._name}-{len(self.paths)}.run"
        write_run(path, (entries[at : at + CHUNK] for at in range(0, len(entries), CHUNK)))
        self.paths.append(path)


def write_run(path: Path, chunks: Iterable[list[bytes]]) -> None:
    """Write sorted chunks as a run that appears whole or not at all."""
    beside = path.with_suffix(".part")
    places = []
    with open(beside, "wb") as stream:
        for chunk in chunks:
            data = marshal.dumps(chunk)
            places.append((stream.tell(), len(data), zlib.crc32(data)))
            stream.write(data)
        directory = marshal.dumps(places)
        trailer = _TRAILER.pack(stream.tell(), zlib.crc32(directory), _MAGIC)
        stream.write(directory + trailer)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(beside, path)
    sync_directory(path.parent)


def evenly(items: Sequence[_T], most: int) -> Sequence[_T]:
    """At most so many items, spread over all; the first and the last are among them."""
    if len(items) <= most:
        return items
    return [items[at * (len(items) - 1) // max(most - 1, 1)] for at in range(most)]


def read_run(path: Path, most: int = sys.maxsize) -> Iterator[list[bytes]]:
    """The chunks of a run, or `most` of them, spread over it.

    Raises `Damaged` if a bit of these has changed since it was written.
    """
    with open(path, "rb", buffering=0) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size < _TRAILER.size:
            raise Damaged(f"{path} is cut; run the same command again without --resume")
        read = partial(os.pread, stream.fileno())
        at, checksum, magic = _TRAILER.unpack(read(_TRAILER.size, size - _TRAILER.size))
        directory = read(max(size - _TRAILER.size - at, 0), min(at, size))
        if magic != _MAGIC or zlib.crc32(directory) != checksum:
            raise Damaged(f"{path} is damaged; run the same command again without --resume")
        for start, length, expected in evenly(marshal.loads(directory), most):
            data = read(length, start)
            if zlib.crc32(data) != expected:
                raise Damaged(f"{path} is damaged; run the same command again without --resume")
            yield marshal.loads(data)


class _Head:
    """The current chunk of one run and how far it is used up."""

    __slots__ = ("at", "chunk", "chunks")

    def __init__(self, chunks: Iterator[list[bytes]]) -> None:
        self.chunks = chunks
        self.chunk: list[bytes] = []
        self.at = 0

    def fill(self) -> bool:
        """Whether something is left, reading on if need be."""
        while self.at >= len(self.chunk):
            chunk = next(self.chunks, None)
            if chunk is None:
                return False
            self.chunk, self.at = chunk, 0
        return True


def merge(runs: list[Iterator[list[bytes]]]) -> Iterator[list[bytes]]:
    """All entries of sorted runs in order, in lists that never split equal keys' neighbours late.

    Each step takes from every run what is not after the earliest end of a current chunk; sorting
    those slices is a merge, done in C (timsort finds the runs).
    """
    heads = [_Head(run) for run in runs]
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
    """The merged entries of run files, in steps if there are many."""
    paths, step = sorted(paths), 0
    while len(paths) > FAN_IN:
        merged = directory / f"merged-{step}.run"
        write_run(merged, merge([read_run(path) for path in paths[:FAN_IN]]))
        paths, step = [*paths[FAN_IN:], merged], step + 1
    yield from merge([read_run(path) for path in paths])


def in_order(items: Iterable[bytes], scratch: Path) -> Iterator[bytes]:
    """Items of any number, sorted: many in a directory that is made in `scratch`."""
    items = iter(items)
    held = list(islice(items, CHUNK))
    if len(held) < CHUNK:
        yield from sorted(held)
        return
    with TemporaryDirectory(dir=scratch, prefix="sorting-") as folder:
        writer = RunWriter(Path(folder), "sorted", run_bytes=_SORTED_BYTES)
        while held:
            writer.extend(held)
            held = list(islice(items, CHUNK))
        writer.flush()
        for batch in merge_files(writer.paths, Path(folder)):
            yield from batch
