"""The data file of an LMDB index: opened, checked, removed."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

import lmdb

from dedupindex.errors import RESTORE_OR_BUILD, Damaged, IndexUnavailable
from dedupindex.runtime.files import stable_directory
from dedupindex.runtime.lmdb_disk import MAX_READERS, full_hint, reserve_lock

DAMAGE = (
    lmdb.BadTxnError,  # of what is read after an error
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.PageFullError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
)
MAP_SIZE = 1 << 40  # bytes of address space, not of disk: the largest an index may grow

_META = struct.Struct("=16xII16xI92x8xQ")  # of a page: magic, version, page size, transaction
_MAGIC, _DATA_VERSION = 0xBEEFC0DE, 1
_READS = 20  # of the two meta pages, which a writer may be changing


class _Meta(NamedTuple):
    """The content of one of the two meta pages, which commits write in turn."""

    magic: int
    version: int
    page: int  # bytes
    transaction: int  # the last that was committed


def open_in(home: Path, path: Path, *, write: bool, **options: Any) -> lmdb.Environment:
    """Open the file at `path`, `home` is its `stable_directory`; `options` as of `lmdb.open`.

    LMDB opens a file and its lock by path, one after the other: they might be of two directories.
    Killed readers are cleared: they would keep all pages of their state, and the file would grow.
    """
    try:
        if options.get("lock", True):
            reserve_lock(home / path.name)
        env = lmdb.open(
            os.fsencode(home / path.name),
            subdir=False,
            map_size=MAP_SIZE if write else 0,
            readonly=not write,
            max_readers=MAX_READERS,
            max_spare_txns=32,
            **options,
        )
        env.reader_check()
        return env
    except lmdb.Error as error:
        raise type(error)(str(error).replace(str(home), str(path.parent))) from None
    except OSError as error:
        error.filename = str(path)
        raise


def environment(path: Path, *, write: bool, bulk: bool = False) -> lmdb.Environment:
    """Open a data file; `bulk` creates it, and forces nothing to disk until `sync` is called.

    Raises `Damaged` if the file is cut: reading beyond its end kills the process.
    """
    with stable_directory(path.parent) as home:
        if not bulk and path.is_file() and not path.stat().st_size:
            raise Damaged(f"{path} is empty: {RESTORE_OR_BUILD}")
        env = open_in(
            home,
            path,
            write=write,
            lock=write or os.access(home, os.W_OK),  # readers of a read-only copy need no lock
            create=bulk,
            max_dbs=5,
            readahead=bulk,  # lookups are random: read-ahead would evict pages that are in use
            sync=not bulk,
            metasync=not bulk,
        )
    if not bulk and path.stat().st_size < length_of(env):
        env.close()
        raise Damaged(f"{path} is cut: {RESTORE_OR_BUILD}")
    return env


def scan(
    txn: lmdb.Transaction, tree: Any, prefix: bytes = b"", start: bytes = b""
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys with a prefix, from `prefix + start` on, and what is stored, in order.

    `tree` None is the transaction's own.
    """
    with txn.cursor(db=tree) as cursor:
        if cursor.set_range(prefix + start):
            for key, stored in cast(Iterator[tuple[bytes, bytes]], cursor):
                if not key.startswith(prefix):
                    return
                yield key, stored


def unopened(path: Path, error: Exception) -> Damaged | IndexUnavailable:
    """Return the error for a file that cannot be opened, with what to do about it."""
    if isinstance(error, FileNotFoundError):
        return IndexUnavailable(f"{path} is missing: {RESTORE_OR_BUILD}")
    if isinstance(error, lmdb.InvalidError | lmdb.VersionMismatchError) and _begins_right(path):
        return IndexUnavailable(
            f"{path}-lock is damaged, or of another version of LMDB: end all processes that use "
            "the index, then remove that file"
        )
    if isinstance(error, DAMAGE):
        found = str(error).replace(f"{path}: ", "")
        return Damaged(f"{path} is damaged ({found}): {RESTORE_OR_BUILD}")
    reason = error.strerror if isinstance(error, OSError) else None
    return IndexUnavailable(f"{path} cannot be opened: {reason or error}")


def failed(path: Path, error: lmdb.Error) -> IndexUnavailable:
    """Return the error for a file that cannot be read or written, which is open."""
    return IndexUnavailable(f"{path}: {error}{full_hint(path)}")


def check_pages(path: Path) -> None:
    """Raise `Damaged` unless the two meta pages of a file agree; `OSError`.

    LMDB trusts the one with the higher transaction, which a flipped bit may make the older one.
    """
    for _ in range(_READS):
        with open(path, "rb", buffering=0) as stream:
            first = _meta(stream.read(_META.size))
            if first is None or first[:2] != (_MAGIC, _DATA_VERSION):
                return  # it is being created, or LMDB itself refuses it
            stream.seek(first.page)
            second = _meta(stream.read(_META.size))
        if second is not None and _agree(first, second):
            return
    raise Damaged(
        f"{path} is damaged: its first two pages contradict each other; {RESTORE_OR_BUILD}"
    )


def _begins_right(path: Path) -> bool:
    """Return whether a file begins as a data file of LMDB."""
    with suppress(OSError), open(path, "rb") as stream:
        first = _meta(stream.read(_META.size))
        return first is not None and first[:2] == (_MAGIC, _DATA_VERSION)
    return False


def _meta(data: bytes) -> _Meta | None:
    return _Meta(*_META.unpack(data)) if len(data) == _META.size else None


def _agree(first: _Meta, second: _Meta) -> bool:
    one, other = first.transaction, second.transaction
    return (
        first[:3] == second[:3]
        and first.page & (first.page - 1) == 0
        and 256 <= first.page <= 1 << 16
        and (one == other == 0 or (abs(one - other) == 1 and one & 1 == 0))
    )


def length_of(env: lmdb.Environment) -> int:
    """Return the bytes that a data file must have."""
    return int((env.info()["last_pgno"] + 1) * env.stat()["psize"])


def remove(path: Path) -> None:
    """Remove a data file and its lock, if they exist."""
    for name in (path, path.with_name(path.name + "-lock")):
        with suppress(FileNotFoundError):
            name.unlink()
