"""The files of a ledger: sorted items, in chunks that are found by what they begin with.

    file       chunk ... directory, u64 offset of the directory, u32 CRC-32 of it, magic
    chunk      (u32 length, item) each, zlib
    directory  u64 offset, u32 length, u32 CRC-32, u8 length and the beginning of the first item of
               each chunk, zlib

Unlike `runs` they stay, so nothing in them depends on who wrote them.
"""

from __future__ import annotations

import os
import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

from dedupindex.errors import Damaged, IndexUnavailable

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
