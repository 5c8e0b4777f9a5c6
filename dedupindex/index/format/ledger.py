"""The ledger: copies and revisits, which a purge needs and no lookup reads.

An index keeps one capture of each URL and digest. The captures that lost to it, and the revisits
that were read, are kept in sorted files, ``INDEX/ledger/<name>.led``. The index's data names its
files, so that both change together.

    file       chunk ..., directory, u64 offset of the directory, u32 CRC-32 of it, magic
    chunk      (u32 length, item) each, sorted, compressed
    directory  (u64 offset, u32 length, u32 CRC-32, u8 length of the first item, first item) of each
               chunk, compressed; first items are cut at 80 bytes
    item       key, then a copy or a dependent; or a visit (`visits`)
    copy       an entry, as staged (`cells`)
    dependent  a revisit, under the key of the original that it names: 0xFF, its date (6), the date
               that it names (6, zeros: none), number of its container (4), size of the payload (4,
               all ones: unknown), u32 length of the URL that it names (0: its own; plus 2**31:
               the index refuses such a payload), that URL packed, its own URL packed

New items are merged with the files that are not much larger, so that there are always few.
"""

from __future__ import annotations

import os
import secrets
import shutil
import struct
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from dedupindex.cache import MEGABYTE, Cache
from dedupindex.capture import RefersTo, Revisit
from dedupindex.errors import RESTORE_OR_BUILD, Damaged, DedupError, IndexUnavailable
from dedupindex.index.format.cells import DEPENDENT, Keys, container_of
from dedupindex.index.format.packing import pack, unpack
from dedupindex.index.format.visits import CODE, latest
from dedupindex.index.load.runs import (
    CHUNK,
    RunWriter,
    chunked,
    merge,
    merge_files,
    read_directory,
    write_directory,
)
from dedupindex.runtime.files import atomic_file, sync_directory
from dedupindex.timestamps import date_of_digits, digits_of_date

DIRECTORY, SCRATCH = "ledger", "ledger.new"
Drops = Callable[[bytes, bytes], bool]  # (key, rest of the item) -> whether to remove the item

_PLACE = struct.Struct(">QIIB")
_LENGTH = struct.Struct(">I")
_MAGIC = b"deduled1"
_FIRST = 80  # bytes of an item in a directory: more than a key
_HEAD = struct.Struct(">B6s6sIII")
_UNKNOWN = 0xFFFFFFFF
_REFUSED = 1 << 31
_SMALL = 1 << 20  # bytes of a file that is always merged
_SCRATCH_BYTES = 32 << 20


# --- files ---------------------------------------------------------------------------------------


def read(path: Path, prefix: bytes = b"") -> Iterator[list[bytes]]:
    """Yield the chunks of a file that may hold items with `prefix`.

    Raises `Damaged`; `IndexUnavailable` if the file was merged away before it could be opened.
    """
    try:
        with open(path, "rb", buffering=0) as stream:
            for offset, length, checksum in _chunks(path, stream.fileno(), prefix):
                data = os.pread(stream.fileno(), length, offset)
                if zlib.crc32(data) != checksum:
                    raise _damaged(path)
                yield _unpacked(zlib.decompress(data))
    except (zlib.error, struct.error) as error:
        raise _damaged(path) from error
    except FileNotFoundError as error:
        raise IndexUnavailable(missing(path)) from error
    except OSError as error:
        raise IndexUnavailable(f"{path} cannot be read: {error.strerror}") from error


def missing(path: Path | str) -> str:
    """Say that a file is missing, for those who read without a lock: it may be merged away."""
    return (
        f"{path} is missing: if another process has just written to the index, ask again; else "
        f"{RESTORE_OR_BUILD}"
    )


def _chunks(path: Path, descriptor: int, prefix: bytes) -> list[tuple[int, int, int]]:
    """Return offset, length and CRC-32 of the chunks that may hold items with `prefix`."""
    packed = read_directory(descriptor, _MAGIC)
    if packed is None:
        raise _damaged(path)
    places, first_items = _directory(path.name, packed)
    if not prefix:
        return places
    begin = max(bisect_left(first_items, prefix) - 1, 0)
    end = begin
    while end < len(first_items) and (
        first_items[end] <= prefix or first_items[end].startswith(prefix)
    ):
        end += 1
    return places[begin:end]


_Directory = tuple[list[tuple[int, int, int]], list[bytes]]
_directories = Cache[tuple[str, int], _Directory](32 * MEGABYTE)


def _directory(name: str, packed: bytes) -> _Directory:
    """Return the places of the chunks of a file, and their first items.

    They are cached: a file never changes, and its name is random.
    """
    cached = _directories.get((name, zlib.crc32(packed)))
    if cached is not None:
        return cached
    directory, at = zlib.decompress(packed), 0
    places: list[tuple[int, int, int]] = []
    first_items: list[bytes] = []
    while at < len(directory):
        offset, length, checksum, first = _PLACE.unpack_from(directory, at)
        at += _PLACE.size + first
        first_items.append(directory[at - first : at])
        places.append((offset, length, checksum))
    size = 300 * len(places)  # bytes of memory, about
    return _directories.keep((name, zlib.crc32(packed)), (places, first_items), size + 100)


def _damaged(path: Path) -> Damaged:
    return Damaged(f"{path} is damaged: {RESTORE_OR_BUILD}")


def _unpacked(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        end = at + 4 + _LENGTH.unpack_from(data, at)[0]
        found.append(data[at + 4 : end])
        at = end
    return found


def write(path: Path, chunks: Iterator[list[bytes]]) -> int:
    """Write sorted items to a file, force it to disk and return how many items there were."""
    directory, count = [], 0
    with atomic_file(path) as stream:
        for chunk in chunks:
            count += len(chunk)
            data = zlib.compress(b"".join([_LENGTH.pack(len(item)) + item for item in chunk]), 1)
            first = chunk[0][:_FIRST]
            place = _PLACE.pack(stream.tell(), len(data), zlib.crc32(data), len(first))
            directory.append(place + first)
            stream.write(data)
        write_directory(stream, zlib.compress(b"".join(directory), 1), _MAGIC)
    return count


def items(index: Path, names: list[str], prefix: bytes = b"") -> Iterator[bytes]:
    """Yield the items of files that begin with `prefix`, in order, each once; raises as `read`."""
    for batch in _unique(merge([read(index / DIRECTORY / name, prefix) for name in names])):
        for item in batch:
            if item.startswith(prefix):
                yield item


def split_items(found: Iterator[bytes], keys: Keys) -> Iterator[tuple[bytes, bytes]]:
    """Yield the key of each copy and dependent among items, and what follows it."""
    lengths = keys.lengths()
    for item in found:
        if item[:1] == CODE:
            continue
        end = lengths[item[0]]
        yield item[:end], item[end:]


def _unique(batches: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
    """Yield chunks of sorted items, each item once."""
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


def problems(index: Path, names: list[str]) -> list[str]:
    """Read all files and return what is wrong with them, a sentence each."""
    wrong: list[str] = []
    for path in (index / DIRECTORY / name for name in names):
        try:
            last = b""
            for chunk in read(path):
                if [last, *chunk] != sorted([last, *chunk]):
                    wrong.append(f"{path} is out of order")
                last = chunk[-1]
        except DedupError as error:
            wrong.append(str(error))
    return wrong


def clear(index: Path, names: list[str]) -> None:
    """Remove the files that are not among `names`."""
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


# --- dependents ----------------------------------------------------------------------------------


class Dependent(NamedTuple):
    """A revisit that was read: without the original that it names it cannot be replayed."""

    url: bytes
    date: bytes
    container: int  # number
    size: int  # bytes of its payload, -1 unknown
    names_url: bytes
    names_date: bytes  # empty: it names none
    refused: bool = False  # the index would not take its payload; reports do not count it

    @classmethod
    def of(cls, body: bytes) -> Dependent:
        """Return the dependent of an item; `body` is what follows the key."""
        _, own, named, container, size, length = _HEAD.unpack_from(body)
        length, refused, at = length & ~_REFUSED, length >= _REFUSED, _HEAD.size
        url = unpack(body[at + length :])
        return cls(
            url,
            _decode_date(own),
            container,
            -1 if size == _UNKNOWN else size,
            unpack(body[at : at + length]) if length else url,
            _decode_date(named) if any(named) else b"",
            refused,
        )


def dependent(revisit: Revisit, keys: Keys, container: int, *, refused: bool = False) -> bytes:
    """Return the item of a revisit; `container` is the number of its own container.

    `refused`: the index would not take the payload if it were stored here.
    """
    itself = revisit.capture
    refers_to = revisit.refers_to or RefersTo(itself.url, b"")
    named = _encode_date(refers_to.date) if refers_to.date else bytes(6)
    url = pack(refers_to.url) if refers_to.url != itself.url else b""
    size = itself.size if 0 <= itself.size < _UNKNOWN and not itself.size_of_record else _UNKNOWN
    length = len(url) | (_REFUSED if refused else 0)
    head = _HEAD.pack(DEPENDENT, _encode_date(itself.date), named, container, size, length)
    return keys.key_of(itself.digest, refers_to.url) + head + url + pack(itself.url)


def own_capture(body: bytes) -> tuple[bytes, bytes]:
    """Return the second (6 bytes) and the packed URL of a revisit itself, of its `body`."""
    length = _HEAD.unpack_from(body)[-1] & ~_REFUSED
    return body[1:7], body[_HEAD.size + length :]


def _encode_date(date: bytes) -> bytes:
    return int(digits_of_date(date)).to_bytes(6, "big")


def _decode_date(number: bytes) -> bytes:
    return date_of_digits(b"%014d" % int.from_bytes(number, "big"))


# --- changes -------------------------------------------------------------------------------------


def drops_of(dropped: set[int], drops: Drops | None) -> Drops | None:
    """Return a test for the items that `drops` matches or that are in dropped containers."""
    if not dropped:
        return drops

    def matches(key: bytes, body: bytes) -> bool:
        return container_of(body) in dropped or bool(drops and drops(key, body))

    return matches


class LedgerWriter:
    """Writes what a load brings, under the write lock; the load commits the names of the files."""

    def __init__(
        self, index: Path, names: list[str], arrived: list[Path], drops: Drops | None, keys: Keys
    ) -> None:
        """`names`: the present files, less what `drops` matches; `arrived`: runs of dependents."""
        self._index, self._directory, self._scratch = index, index / DIRECTORY, index / SCRATCH
        self._names, self._arrived, self._drops = names, arrived, drops
        self._lengths = keys.lengths()
        self._kept = names
        self._writer: RunWriter | None = None

    def __enter__(self) -> LedgerWriter:
        clear(self._index, self._names)
        return self

    def add(self, lost: list[bytes]) -> None:
        """Take staged copies, and empty the list."""
        if not lost:
            return
        if self._writer is None:
            self._scratch.mkdir()
            self._writer = RunWriter(self._scratch, "lost", run_bytes=_SCRATCH_BYTES)
        self._writer.extend(list(lost))
        lost.clear()

    def write(self) -> list[str]:
        """Write all to disk; return the names of the files that the index is to name."""
        runs = list(self._arrived)
        if self._writer is not None:
            self._writer.flush()
            runs += self._writer.paths
        if not runs and not (self._drops and self._names):
            return self._names
        self._directory.mkdir(exist_ok=True)
        merged = self._to_merge(sum(path.stat().st_size for path in runs))
        sources = [read(self._directory / name) for name in merged]
        if drops := self._drops:
            sources = [self._without(drops, chunks) for chunks in sources]
        if runs:
            sources.append(merge_files(runs, runs[0].parent))
        name = f"{secrets.token_hex(8)}.led"  # never one that an older state has named
        kept = latest(chain.from_iterable(_unique(merge(sources))), self._lengths[0])
        count = write(self._directory / name, chunked(kept))
        sync_directory(self._index)
        self._kept = [old for old in self._names if old not in merged] + [name] * bool(count)
        return self._kept

    def _to_merge(self, size: int) -> list[str]:
        """Return the files to merge with new items of `size` bytes: all, if items are dropped."""
        if self._drops:
            return self._names
        try:
            sizes = {name: (self._directory / name).stat().st_size for name in self._names}
        except FileNotFoundError as error:  # the lock is held: no other load has merged it away
            raise IndexUnavailable(
                f"{error.filename} is missing; nothing was changed: {RESTORE_OR_BUILD}"
            ) from error
        merged: list[str] = []
        for name in sorted(self._names, key=sizes.__getitem__):
            if sizes[name] > max(2 * size, _SMALL):
                break
            merged.append(name)
            size += sizes[name]
        return merged

    def _without(self, drops: Drops, chunks: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
        for chunk in chunks:
            kept = []
            for item in chunk:
                end = self._lengths[item[0]]
                if not drops(item[:end], item[end:]):
                    kept.append(item)
            yield kept

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:  # else it is not known which files are named: the next load removes them
            clear(self._index, self._kept)
