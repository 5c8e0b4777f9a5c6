"""The BLAKE3 of one object, noticing when it changes meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache, partial
from typing import NamedTuple

from blake3 import blake3

from dedupindex.documents.list_objects import ListedObject, stamp_of
from dedupindex.errors import BadSource
from dedupindex.object_store import ObjectFacts, RemoteFile, is_remote

LARGE = 1 << 26  # bytes from which an object is hashed by several threads
_PIECE = 1 << 19  # bytes read at a time: they are hashed while a core's cache has them
_LARGE_PIECE = 1 << 24  # enough for all threads
_REMOTE_PIECE = 1 << 20
AT_ONCE = 16  # objects that a process reads from a store side by side
_COARSE = 2_000_000_000  # nanoseconds: the coarsest time stamps of file systems

CHANGED = "was written to while it was hashed; run the same again when it is at rest"


class Hashed(NamedTuple):
    """What came of an object."""

    path: str
    size: int = 0
    stamp: str = ""
    digest: bytes = b""
    problem: str = ""  # why there is no digest


def hash_all(threads: int, batch: Sequence[ListedObject]) -> list[Hashed]:
    """Hash objects one after the other, those elsewhere side by side; large ones by threads."""
    if batch and is_remote(batch[0].path):
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(partial(_hash_object, threads), batch))
    return [_hash(found, threads) for found in batch]


def _hash(found: ListedObject, threads: int) -> Hashed:
    try:
        return _hash_file(found.path, threads)
    except OSError as error:
        return Hashed(found.path, problem=f"cannot be read: {error.strerror or error}")


def _hash_object(threads: int, found: ListedObject) -> Hashed:
    """An object in a store or on a web server."""
    address = found.path
    try:
        known = ObjectFacts(found.size, found.stamp)
        with closing(RemoteFile(address, known, in_order=True)) as file:
            hasher, size = blake3(max_threads=threads if found.size >= LARGE else 1), 0
            while piece := file.read(_REMOTE_PIECE):
                hasher.update(piece)
                size += len(piece)
            if size != found.size or file.changed():
                return Hashed(address, problem=CHANGED)
    except BadSource as error:
        return Hashed(address, problem=str(error).removeprefix(f"{address} "))
    return Hashed(address, size, found.stamp, hasher.digest())


def _hash_file(path: str, threads: int) -> Hashed:
    """Raises `OSError`. Read, not mapped: a file that is cut off meanwhile would kill us."""
    begin = time.time_ns()
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait for ever
    try:
        before = os.fstat(file)
        large = before.st_size >= LARGE
        hasher, size = blake3(max_threads=threads if large else 1), 0
        buffer = _buffer(_LARGE_PIECE if large else _PIECE)
        while size < before.st_size and (count := os.readv(file, [buffer])):
            hasher.update(buffer[:count])
            size += count
        after = os.fstat(file)
    finally:
        os.close(file)
    stamp = stamp_of(after)
    if size != before.st_size or size != after.st_size or stamp != stamp_of(before):
        return Hashed(path, problem=CHANGED)
    if max(after.st_mtime_ns, after.st_ctime_ns) > begin - _COARSE:
        stamp = ""  # a change to come may bear the same time
    return Hashed(path, size, stamp, hasher.digest())


@cache
def _buffer(length: int) -> memoryview:
    """The same one again and again: making it costs as much as hashing it."""
    return memoryview(bytearray(length))
