"""The data file of an LMDB index: opened, measured, removed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import lmdb

from dedupindex.files import pinned

MAP_SIZE = 1 << 40  # address space, not disk: the largest an index may grow


def open_in(home: Path, path: Path, **options: Any) -> lmdb.Environment:
    """As `lmdb.open`, of the file at `path`, whose directory is pinned as `home`.

    LMDB opens a file and its lock one after the other: by path they might be of two directories.
    """
    try:
        return lmdb.open(os.fsencode(home / path.name), subdir=False, **options)
    except lmdb.Error as error:
        raise type(error)(str(error).replace(str(home), str(path.parent))) from None


def environment(path: Path, *, write: bool, bulk: bool = False) -> lmdb.Environment:
    """Open a data file; `bulk` makes it, and forces nothing to disk before it is told to."""
    with pinned(path.parent) as home:
        return open_in(
            home,
            path,
            map_size=MAP_SIZE if write else 0,
            readonly=not write,
            lock=write or os.access(home, os.W_OK),  # readers of a read-only copy need none
            create=bulk,
            max_dbs=5,
            max_readers=1024,
            max_spare_txns=32,
            readahead=bulk,  # lookups are random: reading ahead would only evict what is hot
            sync=not bulk,
            metasync=not bulk,
        )


def length_of(env: lmdb.Environment) -> int:
    """Bytes that a data file must have; reading beyond a file's end would kill the process."""
    return int((env.info()["last_pgno"] + 1) * env.stat()["psize"])


def remove(path: Path) -> None:
    """Remove a data file, if it is there, and its lock."""
    for name in (path, path.with_name(path.name + "-lock")):
        with suppress(FileNotFoundError):
            name.unlink()
