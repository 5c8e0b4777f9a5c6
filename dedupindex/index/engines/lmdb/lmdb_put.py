"""One key of an LMDB index changed in place, and what the index counts kept right."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import lmdb

from dedupindex.index.format.cells import DIGEST_KEY, answers, entries_of, sealed, unsealed
from dedupindex.index.load.merge_rule import MergeOutcome, MergeRule, checksum, mark_before


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
