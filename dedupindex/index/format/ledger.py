"""What an index must know when captures are taken out of it: further copies, and who depends.

An index keeps one capture of each URL and digest. What lost to it, and the revisits that were read,
lie beside it in sorted files (`ledger_file`), ``INDEX/ledger/<name>.led``, which the index's data
names, so that both change together. No lookup reads them.

    item       key, then a copy or a dependent
    copy       an entry, as staged (`cells`)
    dependent  0xFF, date of the revisit (6), date that it names (6, zeros: none), number of its
               container (4), size of the payload (4, all ones: unknown), u32 length of the URL that
               it names (0: its own), that URL packed, its own packed; the key is that of what it
               names

What comes is merged with the files that are not much larger, so there are never many.
"""

from __future__ import annotations

import os
import secrets
import shutil
import struct
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from dedupindex.capture import RefersTo, Revisit
from dedupindex.errors import Damaged, DedupError, IndexUnavailable
from dedupindex.index.format.cells import Keys, container_of
from dedupindex.index.format.packing import pack, unpack
from dedupindex.index.load.runs import CHUNK, RunWriter, merge, merge_files
from dedupindex.runtime.files import sync_directory
from dedupindex.timestamps import date_of_digits, digits_of_date

# The files of a ledger: sorted items, in chunks that are found by what they begin with.

_PLACE = struct.Struct(">QIIB")
_LENGTH = struct.Struct(">I")
_TRAILER = struct.Struct(">QI8s")
_MAGIC = b"deduled1"
_FIRST = 80  # bytes of an item that a directory holds: more than a key


def read(path: Path, prefix: bytes = b"") -> Iterator[list[bytes]]:
    """The chunks of a file, those that cannot hold items with `prefix` left out."""
    try:
        with open(path, "rb", buffering=0) as stream:
            for offset, length, checksum in _chunks(path, stream.fileno(), prefix):
                data = os.pread(stream.fileno(), length, offset)
                if zlib.crc32(data) != checksum:
                    raise _damaged(path)
                yield _unpacked(zlib.decompress(data))
    except (zlib.error, struct.error) as error:
        raise _damaged(path) from error
    except OSError as error:
        raise IndexUnavailable(f"{path} cannot be read: {error.strerror}; ask again") from error


def _chunks(path: Path, descriptor: int, prefix: bytes) -> list[tuple[int, int, int]]:
    size = os.fstat(descriptor).st_size
    if size < _TRAILER.size:
        raise _damaged(path)
    trailer = os.pread(descriptor, _TRAILER.size, size - _TRAILER.size)
    at, checksum, magic = _TRAILER.unpack(trailer)
    packed = os.pread(descriptor, max(size - _TRAILER.size - at, 0), min(at, size))
    if magic != _MAGIC or zlib.crc32(packed) != checksum:
        raise _damaged(path)
    directory, at = zlib.decompress(packed), 0
    places: list[tuple[int, int, int]] = []
    firsts: list[bytes] = []
    while at < len(directory):
        *place, length = _PLACE.unpack_from(directory, at)
        at += _PLACE.size + length
        firsts.append(directory[at - length : at])
        places.append((place[0], place[1], place[2]))
    if not prefix:
        return places
    begin = max(bisect_left(firsts, prefix) - 1, 0)
    end = begin
    while end < len(firsts) and (firsts[end] <= prefix or firsts[end].startswith(prefix)):
        end += 1
    return places[begin:end]


def _damaged(path: Path) -> Damaged:
    return Damaged(f"{path} is damaged; restore the index from a copy, or build it again")


def _packed(chunk: list[bytes]) -> bytes:
    return zlib.compress(b"".join([_LENGTH.pack(len(item)) + item for item in chunk]), 1)


def _unpacked(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        end = at + 4 + _LENGTH.unpack_from(data, at)[0]
        found.append(data[at + 4 : end])
        at = end
    return found


def write(path: Path, chunks: Iterator[list[bytes]]) -> int:
    """Write sorted items, which are on disk when this returns; how many there are."""
    directory, count = [], 0
    with open(path, "wb") as stream:
        for chunk in chunks:
            count += len(chunk)
            data, first = _packed(chunk), chunk[0][:_FIRST]
            place = _PLACE.pack(stream.tell(), len(data), zlib.crc32(data), len(first))
            directory.append(place + first)
            stream.write(data)
        packed = zlib.compress(b"".join(directory), 1)
        stream.write(packed + _TRAILER.pack(stream.tell(), zlib.crc32(packed), _MAGIC))
        stream.flush()
        os.fsync(stream.fileno())
    return count


DIRECTORY, SCRATCH = "ledger", "ledger.new"
DEPENDENT = 0xFF  # the first byte, greater than that of any entry: dependents follow the copies
Drops = Callable[[bytes, bytes], bool]  # of a key and what follows it: whether it is to go

_HEAD = struct.Struct(">B6s6sIII")
_UNKNOWN = 0xFFFFFFFF
_SMALL = 1 << 20  # bytes of a file that is always merged with what comes
_SCRATCH_BYTES = 32 << 20


class Dependent(NamedTuple):
    """A revisit that was read: without the original that it names, nothing replays it."""

    url: bytes
    date: bytes
    container: int  # number
    size: int  # bytes of payload that it stands for, -1 unknown
    names_url: bytes
    names_date: bytes  # empty: it names none

    @classmethod
    def of(cls, body: bytes) -> Dependent:
        """What an item says behind its key."""
        _, own, named, container, size, length = _HEAD.unpack_from(body)
        at = _HEAD.size
        url = unpack(body[at + length :])
        return cls(
            url,
            _date(own),
            container,
            -1 if size == _UNKNOWN else size,
            unpack(body[at : at + length]) if length else url,
            _date(named) if any(named) else b"",
        )


def dependent(revisit: Revisit, keys: Keys, container: int) -> bytes:
    """The item of a revisit; `container` is the number of its own."""
    itself = revisit.capture
    refers_to = revisit.refers_to or RefersTo(itself.url, b"")
    named = _moment(refers_to.date) if refers_to.date else bytes(6)
    url = pack(refers_to.url) if refers_to.url != itself.url else b""
    size = itself.size if 0 <= itself.size < _UNKNOWN and not itself.size_of_record else _UNKNOWN
    head = _HEAD.pack(DEPENDENT, _moment(itself.date), named, container, size, len(url))
    return keys.of(itself.digest, refers_to.url) + head + url + pack(itself.url)


def _moment(date: bytes) -> bytes:
    return int(digits_of_date(date)).to_bytes(6, "big")


def _date(moment: bytes) -> bytes:
    return date_of_digits(b"%014d" % int.from_bytes(moment, "big"))


def dependent_lives_in(body: bytes) -> int:
    """The number of a dependent's container."""
    return int.from_bytes(body[13:17], "big")


def items(index: Path, names: list[str], prefix: bytes = b"") -> Iterator[bytes]:
    """The items of files in order, each once; with `prefix` those that begin with it.

    Raises `Damaged`; `IndexUnavailable` if a file was merged away before it could be opened.
    """
    last = b""
    for batch in merge([read(index / DIRECTORY / name, prefix) for name in names]):
        for item in batch:
            if item != last and item.startswith(prefix):
                yield item
            last = item


def problems(index: Path, names: list[str]) -> list[str]:
    """What is wrong with the files, in sentences."""
    wrong: list[str] = []
    for name in names:
        try:
            last = b""
            for chunk in read(index / DIRECTORY / name):
                if chunk != sorted(chunk) or chunk[0] < last:
                    wrong.append(f"{index / DIRECTORY / name} is out of order")
                last = chunk[-1]
        except DedupError as error:
            wrong.append(str(error))
    return wrong


class Keeper:
    """Takes what a load brings for the ledger; the files it names are true with the load.

    To be entered; the caller holds the index's write lock.
    """

    def __init__(
        self, index: Path, names: list[str], arrived: list[Path], drops: Drops | None, keys: Keys
    ) -> None:
        """`names`: the files until now, of which what `drops` takes is to go; `arrived`: runs."""
        self._index, self._directory = index, index / DIRECTORY
        self._names, self._arrived, self._drops = names, arrived, drops
        self._lengths = keys.lengths()
        self._kept = names

    def __enter__(self) -> Keeper:
        clear(self._index, self._names)
        self._scratch = self._index / SCRATCH
        self._writer: RunWriter | None = None
        return self

    def take(self, lost: list[bytes]) -> None:
        """Copies, staged, that lost; the list is emptied."""
        if not lost:
            return
        if self._writer is None:
            self._scratch.mkdir()
            self._writer = RunWriter(self._scratch, "lost", run_bytes=_SCRATCH_BYTES)
        self._writer.extend(list(lost))
        lost.clear()

    def names(self) -> list[str]:
        """The files that the index shall name from now on; they are on disk."""
        runs = list(self._arrived)
        if self._writer is not None:
            self._writer.flush()
            runs += self._writer.paths
        if not runs and not (self._drops and self._names):
            return self._names
        self._directory.mkdir(exist_ok=True)
        stay, merged = self._parted(sum(path.stat().st_size for path in runs))
        sources = [self._left(read(self._directory / name)) for name in merged]
        if runs:
            sources.append(merge_files(runs, runs[0].parent))
        name = f"{secrets.token_hex(8)}.led"  # never one that an older state has named
        count = write(self._directory / name, _each_once(merge(sources)))
        sync_directory(self._directory)
        sync_directory(self._index)
        self._kept = [*stay, name] if count else stay
        return self._kept

    def _parted(self, size: int) -> tuple[list[str], list[str]]:
        """Files that stay, and those that are merged with what comes; all, if something goes."""
        if self._drops:
            return [], self._names
        sizes = {name: (self._directory / name).stat().st_size for name in self._names}
        merged: list[str] = []
        for name in sorted(self._names, key=sizes.__getitem__):
            if sizes[name] > max(2 * size, _SMALL):
                break
            merged.append(name)
            size += sizes[name]
        return [name for name in self._names if name not in merged], merged

    def _left(self, chunks: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
        """Items from before, without those that go; what comes in their place may be the same."""
        drops, lengths = self._drops, self._lengths
        if not drops:
            yield from chunks
            return
        for chunk in chunks:
            ends = [lengths[item[0]] for item in chunk]
            yield [
                item
                for item, end in zip(chunk, ends, strict=True)
                if not drops(item[:end], item[end:])
            ]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            clear(self._index, self._kept)  # else nobody knows which are true: another time


def _each_once(batches: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
    """Chunks of items, each item once."""
    last, chunk = b"", list[bytes]()
    for batch in batches:
        for item in batch:
            if item != last:
                chunk.append(item)
            last = item
        if len(chunk) >= CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def clear(index: Path, names: list[str]) -> None:
    """Remove the files that the index does not name."""
    shutil.rmtree(index / SCRATCH, ignore_errors=True)
    if (index / DIRECTORY).exists():
        for path in (index / DIRECTORY).iterdir():
            if path.name not in names:
                path.unlink(missing_ok=True)


def copy(index: Path, names: list[str], target: Path) -> None:
    """Copy files; raises `FileNotFoundError` if one was merged away meanwhile."""
    if not names:
        return
    directory = target / DIRECTORY
    directory.mkdir(exist_ok=True)
    for name in names:
        shutil.copyfile(index / DIRECTORY / name, directory / name)
        with open(directory / name, "rb") as stream:
            os.fsync(stream.fileno())
    sync_directory(directory)


def drops_of(dropped: set[int], drops: Drops | None) -> Drops | None:
    """What is to go from a ledger: what `drops` takes, and what lives in dropped containers."""
    if not dropped:
        return drops

    def of_both(key: bytes, body: bytes) -> bool:
        container = dependent_lives_in(body) if body[0] == DEPENDENT else container_of(body)
        return container in dropped or bool(drops and drops(key, body))

    return of_both
