"""The data file of an LMDB index: opened, measured, removed."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

import lmdb

from dedupindex.errors import Damaged
from dedupindex.index.engines.lmdb.lmdb_view import LmdbView, key_of
from dedupindex.index.format import url_index
from dedupindex.index.format.cells import (
    DIGEST_KEY,
    answers,
    digest_of_key,
    digest_prefix,
    entries_of,
    sealed,
    unsealed,
)
from dedupindex.index.format.fast_answer import BROKEN
from dedupindex.index.load.merge_rule import MergeOutcome, MergeRule, checksum, mark_before
from dedupindex.runtime.files import pinned

MAP_SIZE = 1 << 40  # address space, not disk: the largest an index may grow

_META = struct.Struct("=16xII16xI92x8xQ")  # of a page: magic, version, page size, transaction
_MAGIC, _DATA_VERSION = 0xBEEFC0DE, 1
_LOOKED = 20  # times: whoever commits meanwhile changes one page, then the other


class _Meta(NamedTuple):
    """What one of the two first pages of a file says; each is written by every other commit."""

    magic: int
    version: int
    page: int  # bytes
    transaction: int  # the last that was committed


def open_in(home: Path, path: Path, **options: Any) -> lmdb.Environment:
    """As `lmdb.open`, of the file at `path`, whose directory is pinned as `home`.

    LMDB opens a file and its lock one after the other: by path they might be of two directories.

    A process that was killed while it read has left an entry in the table of readers. As long as
    the entry is there, no page that it could read is used again, and every load makes the file
    larger; so such entries are cleared.
    """
    try:
        env = lmdb.open(os.fsencode(home / path.name), subdir=False, **options)
        env.reader_check()
        return env
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


def check_pages(path: Path) -> None:
    """Raise `Damaged` unless the first two pages of a file agree; `OSError`.

    LMDB believes the page with the higher transaction: if a bit of that flips, it answers from an
    old state, and if one of the page size does, it reads anything.
    """
    for _ in range(_LOOKED):
        with open(path, "rb", buffering=0) as stream:
            first = _meta(stream.read(_META.size))
            if first is None or first[:2] != (_MAGIC, _DATA_VERSION):
                return  # it is being made, or LMDB itself refuses it
            stream.seek(first.page)
            second = _meta(stream.read(_META.size))
        if second is not None and _agree(first, second):
            return
    raise Damaged(
        f"{path} is damaged: its first two pages contradict each other; restore the index from a "
        "copy, or build it again"
    )


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
    """Bytes that a data file must have; reading beyond a file's end would kill the process."""
    return int((env.info()["last_pgno"] + 1) * env.stat()["psize"])


def remove(path: Path) -> None:
    """Remove a data file, if it is there, and its lock."""
    for name in (path, path.with_name(path.name + "-lock")):
        with suppress(FileNotFoundError):
            name.unlink()


# One key of an LMDB index changed in place, and what the index counts kept right.


def put_one(
    txn: lmdb.Transaction, rule: MergeRule, key: bytes, group: list[bytes], outcome: MergeOutcome
) -> bytes | None:
    """Settle incoming entries with what is under its key, and keep the counts right.

    Returns the cell that is there now.
    """
    stored = cast(bytes | None, txn.get(key))
    cell = None if stored is None else unsealed(key, stored)
    entries = mark_before(cell) if cell else []
    held = sum(map(answers, entries_of(cell))) if cell else 0
    outcome.captures -= held
    others = 0 if held else _holds(txn, key)
    holds = outcome.captures
    settled_cell = rule.settle(key, entries + group, outcome)
    holds = outcome.captures - holds
    if settled_cell is None:
        if cell:
            txn.delete(key)
    elif settled_cell != cell:
        txn.put(key, sealed(key, settled_cell))
    if cell:
        outcome.checksum -= checksum([(key, cell)])
    if settled_cell:
        outcome.checksum += checksum([(key, settled_cell)])
    if holds and not held:
        outcome.digests += not others
    elif held and not holds:
        outcome.digests -= not _holds(txn, key)
    return settled_cell


def _holds(txn: lmdb.Transaction, key: bytes) -> bool:
    """Whether the digest of `key` has a capture in the index."""
    digest = key[: DIGEST_KEY[key[0]]]
    with txn.cursor() as cursor:
        if cursor.set_range(digest):
            for other, stored in cast(Iterable[tuple[bytes, bytes]], cursor):
                if not other.startswith(digest):
                    return False
                if any(map(answers, entries_of(unsealed(other, stored)))):
                    return True
    return False


# Reading a whole LMDB index back: is what is stored what was written?.


def problems(view: LmdbView) -> list[str]:
    """What is wrong, in sentences: order, keys, entries, names and counts are all read back."""
    wrong: list[str] = []
    try:
        _check_captures(view, wrong)
        for tree in (view.trees.containers, view.trees.meta):
            for _ in _sound(view, tree, wrong):
                pass
        _check_names(view, wrong)
    except (lmdb.Error, Damaged, *BROKEN, TypeError) as error:
        wrong.append(f"the index cannot be read to its end: {error!r}")
    return wrong


def _sound(view: LmdbView, tree: Any, wrong: list[str]) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a tree that have their checksums; the others are named."""
    for key, stored in view.txn.cursor(db=tree):
        if view.txn.get(key, db=tree) != stored:
            wrong.append(f"what is stored under {key.hex()} is not found by its key")
        try:
            yield key, unsealed(key, stored)
        except Damaged as error:
            wrong.append(str(error))


def _check_names(view: LmdbView, wrong: list[str]) -> None:
    for key, value in _sound(view, view.trees.names, wrong):
        number = int.from_bytes(key[1:] if key[:1] == b"#" else value, "big")
        try:
            place = view.place_of(number)
            if key not in (key_of(place), b"#" + number.to_bytes(4, "big")):
                wrong.append(f"container number {number} has another name")
            elif view.number_of(place) != number:
                wrong.append(f"container number {number} is not found by its name")
        except Damaged as error:
            wrong.append(str(error))


def _check_captures(view: LmdbView, wrong: list[str]) -> None:
    last, captures, digests, prefix, total = b"", 0, 0, b"", 0
    urls = view.trees.urls
    for key, stored in view.stored():
        if key <= last:
            wrong.append(f"keys are out of order at {key.hex()}")
        last = key
        if view.txn.get(key) != stored:  # the way there is damaged: readers in order do not see it
            wrong.append(f"what is stored under {key.hex()} is not found by its key")
        try:
            cell = unsealed(key, stored)
            found = view.decoded(key, cell)
            digest = digest_prefix(digest_of_key(key))
            for capture in found:
                if view.keys.of(digest_of_key(key), capture.url) != key:
                    wrong.append(f"the entry under {key.hex()} belongs under another key")
        except (Damaged, *BROKEN) as error:
            wrong.append(f"the entry under {key.hex()} is damaged: {error}")
            continue
        total += checksum([(key, cell)])
        captures += len(found)
        if urls is not None and url_index.listed(cell) and not url_index.holds(view.txn, urls, key):
            wrong.append(f"the capture under {key.hex()} is not listed by its URL")
        digests += bool(found) and digest != prefix
        prefix = digest if found else prefix
    counted = view.counts()
    if (captures, digests) != (counted.captures, counted.digests):
        wrong.append(
            f"{captures} captures of {digests} digests are there, "
            f"{counted.captures} of {counted.digests} were counted"
        )
    if total % (1 << 64) != view.trees.get(view.txn, "checksum"):
        wrong.append("what is stored is not what was written (its checksum is another)")
