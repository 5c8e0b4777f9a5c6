"""Captures by URL alone: a further tree, for askers that have no digest yet.

Crawlers that speak the dialect of CDX servers send a URL and compare the digest themselves. The
keys of captures begin with the digest, so an index that shall answer them lists its captures a
second time, as short as that can be done:

    key    algorithm (1), so few that they cost nothing
    value  of the capture's key the first 6 bytes after the digest (urlkey and URL hash), then the
           first 4 of the digest: many under one key, sorted, without any overhead of their own

The values of a URL are one range, and each leads to the captures' tree by two seeks. They only
find: the URL in the entry decides. So a value that is shared by two keys is listed once, and one
whose capture is gone does no harm. A page that changes with every harvest has very many, in the
order of digests; no question looks at more than `LOOKED_AT`, or it would hold up all others.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import lmdb

from dedupindex.index.format.cells import ALSO, DIGEST_KEY, answers, entries_of
from dedupindex.index.load.runs import CHUNK, RunWriter, merge_files

URL = 6  # bytes of a key's tail that find a URL; its urlkey alone is found by 4
LOOKED_AT = 50_000  # values, half a second
_DIGEST = 4
_BEYOND = b"\xff" * 16  # greater than what follows the digest in any key
_ALGORITHMS = [bytes([code]) for code in range(1, len(DIGEST_KEY))]
MISSING = (
    "the index has no list of captures by URL, or none by canonical URL; build it again with "
    "bin/index --by-url (and without --no-canonicalized), or ask with a digest too"
)
SCRATCH = "by-url"  # the directory, in that of the index, in which values are sorted


def open_tree(
    env: lmdb.Environment, *, txn: lmdb.Transaction | None = None, create: bool = True
) -> Any:
    """The tree of an environment."""
    return env.open_db(b"urls", txn=txn, create=create, dupsort=True, dupfixed=True)


def value_of(key: bytes) -> bytes:
    """What the tree holds of a capture's key."""
    end = DIGEST_KEY[key[0]]
    return key[end : end + URL] + key[1 : 1 + _DIGEST]


def listed(cell: bytes) -> bool:
    """Whether a cell has a capture that answers, and under its own digest."""
    return any(answers(entry) and not entry[1] & ALSO for entry in entries_of(cell))


def put(txn: lmdb.Transaction, tree: Any, key: bytes) -> None:
    """List a capture's key; nothing changes if it is listed."""
    txn.put(key[:1], value_of(key), dupdata=False, db=tree)


def holds(txn: lmdb.Transaction, tree: Any, key: bytes) -> bool:
    """Whether a capture's key is listed."""
    with txn.cursor(db=tree) as cursor:
        return bool(cursor.set_key_dup(key[:1], value_of(key)))


def prefixes(txn: lmdb.Transaction, captures: Any, tree: Any, sought: bytes) -> Iterator[bytes]:
    """What the keys of captures begin with whose tail begins with `sought`, each once.

    Looks at no more than `LOOKED_AT` values.
    """
    left = LOOKED_AT
    with txn.cursor(db=tree) as values, txn.cursor(db=captures) as cursor:
        for code in _ALGORITHMS:
            found = values.set_range_dup(code, sought)
            while found and left:
                value = cast(bytes, values.value())
                if not value.startswith(sought):
                    break
                left -= 1
                yield from _whole(cursor, code + value[URL:], value[:URL])
                found = values.next_dup()


def _whole(cursor: lmdb.Cursor, start: bytes, tail: bytes) -> Iterator[bytes]:
    """Of the digests that begin with `start` those that have a key with `tail` behind them."""
    length = DIGEST_KEY[start[0]]
    found = cursor.set_range(start)
    while found:
        digest = cast(bytes, cursor.key())[:length]
        if not digest.startswith(start):
            return
        prefix = digest + tail
        if cursor.set_range(prefix) and cast(bytes, cursor.key()).startswith(prefix):
            yield prefix
        found = cursor.set_range(digest + _BEYOND)


class Lister:
    """Lists the captures of a data file that is being made: sorted on disk, then appended."""

    def __init__(self, index: Path) -> None:
        self._directory = index / SCRATCH
        clear(index)
        self._directory.mkdir()
        self._writer = RunWriter(self._directory, "values")

    def take(self, cells: Iterable[tuple[bytes, bytes]]) -> None:
        """Note captures, in any order."""
        self._writer.extend([key[:1] + value_of(key) for key, cell in cells if listed(cell)])

    def write(self, env: lmdb.Environment, tree: Any) -> None:
        """Put what was noted into the tree, which is empty."""
        self._writer.flush()
        last = b""
        for batch in merge_files(self._writer.paths, self._directory):
            values = sorted(set(batch) - {last})
            if not values:
                continue
            last = values[-1]
            for at in range(0, len(values), CHUNK):
                pairs = [(value[:1], value[1:]) for value in values[at : at + CHUNK]]
                with env.begin(db=tree, write=True) as txn, txn.cursor() as cursor:
                    cursor.putmulti(pairs, append=True)


def clear(index: Path) -> None:
    """Remove what a `Lister` wrote to disk for sorting."""
    shutil.rmtree(index / SCRATCH, ignore_errors=True)
