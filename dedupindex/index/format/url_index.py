"""List captures by URL in a second LMDB tree, for clients that have no digest yet.

Clients of the CDX server API send a URL and compare digests themselves. Keys of captures begin
with the digest, so an index built with ``--by-url`` lists each capture a second time:

    key    algorithm (1 byte)
    value  the 6 bytes of the capture's key that follow the digest (urlkey and URL hash), then the
           first 4 bytes of the digest; LMDB keeps the values of a key sorted, without overhead

All values of a URL are one range; two seeks lead from each to the capture. Values are hashes: the
URL in the entry decides, so values may be shared, and one left over from a removed capture is
harmless. A query reads at most `LOOKED_AT` values.
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
LOOKED_AT = 50_000  # values read for a query: half a second
_DIGEST = 4
_BEYOND = b"\xff" * 16  # greater than what follows the digest in any key
_ALGORITHMS = [bytes([code]) for code in range(1, len(DIGEST_KEY))]
MISSING = (
    "the index has no list of captures by URL, or none by canonical URL; build it again with "
    "bin/index --by-url (and without --no-canonicalized), or ask with a digest too"
)
SCRATCH = "by-url"  # directory below that of the index, in which values are sorted


def open_tree(
    env: lmdb.Environment, *, txn: lmdb.Transaction | None = None, create: bool = True
) -> Any:
    """Open the tree in an environment."""
    return env.open_db(b"urls", txn=txn, create=create, dupsort=True, dupfixed=True)


def value_of(key: bytes) -> bytes:
    """Return the value that lists a capture's key."""
    end = DIGEST_KEY[key[0]]
    return key[end : end + URL] + key[1 : 1 + _DIGEST]


def listed(cell: bytes) -> bool:
    """Return whether a cell belongs into the list: it has an original under its own digest."""
    return any(answers(entry) and not entry[1] & ALSO for entry in entries_of(cell))


def put(txn: lmdb.Transaction, tree: Any, key: bytes) -> None:
    """List a capture's key, unless it is listed."""
    txn.put(key[:1], value_of(key), dupdata=False, db=tree)


def holds(txn: lmdb.Transaction, tree: Any, key: bytes) -> bool:
    """Return whether a capture's key is listed."""
    with txn.cursor(db=tree) as cursor:
        return bool(cursor.set_key_dup(key[:1], value_of(key)))


def prefixes(txn: lmdb.Transaction, captures: Any, tree: Any, tail: bytes) -> Iterator[bytes]:
    """Yield each prefix, digest and `URL` bytes, of keys with a tail, which may be cut."""
    left = LOOKED_AT
    with txn.cursor(db=tree) as values, txn.cursor(db=captures) as cursor:
        for code in _ALGORITHMS:
            found = values.set_range_dup(code, tail)
            while found and left:
                value = cast(bytes, values.value())
                if not value.startswith(tail):
                    break
                left -= 1
                yield from _complete(cursor, code + value[URL:], value[:URL])
                found = values.next_dup()


def _complete(cursor: lmdb.Cursor, start: bytes, tail: bytes) -> Iterator[bytes]:
    """Yield digest and `tail` for each digest that begins with `start` and has such a key."""
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


class UrlIndexBuilder:
    """Build the tree of a new data file: values are sorted on disk, then appended in order."""

    def __init__(self, index: Path) -> None:
        self._directory = index / SCRATCH
        clear(index)
        self._directory.mkdir()
        self._writer = RunWriter(self._directory, "values")

    def add(self, cells: Iterable[tuple[bytes, bytes]]) -> None:
        """Collect captures, in any order."""
        self._writer.extend([key[:1] + value_of(key) for key, cell in cells if listed(cell)])

    def write(self, env: lmdb.Environment, tree: Any) -> None:
        """Write all values to the tree, which must be empty."""
        self._writer.flush()
        last = b""
        for batch in merge_files(self._writer.paths, self._directory):
            values = sorted(set(batch) - {last})
            last = values[-1] if values else last
            for at in range(0, len(values), CHUNK):
                pairs = [(value[:1], value[1:]) for value in values[at : at + CHUNK]]
                with env.begin(db=tree, write=True) as txn, txn.cursor() as cursor:
                    cursor.putmulti(pairs, append=True)


def clear(index: Path) -> None:
    """Remove the scratch directory of a `UrlIndexBuilder`."""
    shutil.rmtree(index / SCRATCH, ignore_errors=True)
