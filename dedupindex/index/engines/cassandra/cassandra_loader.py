"""One load into an index on a cluster: staged entries are merged with what is there, by digest.

Entries of different digests do not depend on each other, so several machines can load digests of
their own side by side (`executor_load`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, groupby, islice
from typing import TypeVar

from dedupindex.index.engine import retry
from dedupindex.index.engines.cassandra import cassandra_schema as schema
from dedupindex.index.engines.cassandra.added_digests import AddedDigests
from dedupindex.index.engines.cassandra.cassandra_ledger import LedgerTable
from dedupindex.index.engines.cassandra.cassandra_view import AT_ONCE, CassandraView, Partition
from dedupindex.index.engines.cassandra.cql import Call, Session, Statement, Use, write_all
from dedupindex.index.engines.cassandra.metadata import Lease, LentLease
from dedupindex.index.format.cells import answers, entries_of, sealed, split_key, unsealed
from dedupindex.index.format.ledger import Drops
from dedupindex.index.format.url_index import listed
from dedupindex.index.load.merge_rule import (
    MergeOutcome,
    MergeRule,
    grouped,
    mark_before,
    settled,
)

PUT = Statement(
    "INSERT INTO KS.capture (dk, live, rest, crawl, cell) VALUES (?, 0, ?, 0, ?) USING TIMESTAMP ?",
    Use.WRITE,
)
REMOVE = Statement(
    "DELETE FROM KS.capture USING TIMESTAMP ? WHERE dk = ? AND live = 0 AND rest = ? AND crawl = 0",
    Use.WRITE,
)
_KEYS = 2000  # that are read, merged and written together
_FIRST_KEYS = 10_000  # that the first load writes together: nodes idle at the end of each
_Item = TypeVar("_Item")
Group = tuple[bytes, list[bytes]]  # a key, and incoming entries under it


class CassandraLoader:
    """One load.

    The first load only writes. Others read the digests that they bring, hundreds side by side. Each
    key is written once, with a later timestamp than in earlier loads, so a killed load can be
    repeated.
    """

    def __init__(
        self,
        session: Session,
        view: CassandraView,
        rule: MergeRule,
        written: int,
        lease: Lease | LentLease,
        *,
        dropped: bool = False,
    ) -> None:
        """`written`: the timestamp of the load; it may use the next one, too.

        `dropped`: whether another loader of this load has removed captures of containers before.
        """
        self._session, self._view, self._rule = session, view, rule
        self._written, self._lease = written + dropped, lease
        self._added = AddedDigests(session, retry)
        self._ledger = LedgerTable(session, rule.keys, written)
        self.outcome = MergeOutcome()

    def fill(self, batches: Iterable[list[bytes]]) -> None:
        """Load staged entries, which come in order, into an empty index."""
        rows = chain.from_iterable(settled(batches, self._rule, self.outcome))
        for chunk in _chunks(rows, _FIRST_KEYS):
            writes = [call for key, cell in chunk for call in self._put(key, cell)]
            self.store([start_of(key) for key, _ in chunk], self._lost() + writes)
        self._write(self._lost())

    def add(self, batches: Iterable[list[bytes]]) -> None:
        """Load staged entries, which come in order."""
        for chunk in _chunks(grouped(batches, self._rule.keys.lengths()), _KEYS):
            self.store(*self._merge_all(chunk))

    def merged(self, batches: Iterable[list[bytes]]) -> Iterator[tuple[list[bytes], list[Call]]]:
        """Yield the digests of each batch, and the writes that `add` would make; write nothing.

        All entries of a digest are in one batch, so that it is counted once.
        """
        for batch in batches:
            yield self._merge_all(list(grouped([batch], self._rule.keys.lengths())))

    def store(self, starts: list[bytes], writes: list[Call]) -> None:
        """Write captures of digests, and what has lost to them."""
        with self._added.listing(set(starts)):  # also if they are there: `added_digests` says why
            self._write(writes)

    def counts(self, batches: Iterable[list[bytes]], gone: Collection[int]) -> dict[str, int]:
        """Return what is added, replaced and unchanged if containers `gone` are then dropped.

        Once they are, nobody knows that the index had what comes in place of their captures.
        """
        rule, outcome = replace(self._rule, gone=gone), MergeOutcome()
        for chunk in _chunks(grouped(batches, rule.keys.lengths()), _KEYS):
            for _, groups, known, _ in self._with_known(chunk):
                for key, entries in groups:
                    before = mark_before(known[key]) if key in known else []
                    rule.settle(key, before + entries, outcome)
            outcome.lost.clear()
        counted = ("added", "replaced", "replaced_by_name", "unchanged")
        return {name: getattr(outcome, name) for name in counted}

    def remember(self, batches: Iterable[list[bytes]]) -> None:
        """Write items to the ledger: before the captures that come with them."""
        for items in batches:
            self._write(self._ledger.puts(items))

    def forget(self, drops: Drops | None) -> None:
        """Remove items from the ledger: after the captures that refuse them, or replace them."""
        if drops is not None:
            for removals in self._ledger.removals(drops):
                self._write(removals)

    def _lost(self) -> list[Call]:
        """Return the writes of what has lost to the captures that are written next."""
        calls = self._ledger.puts(self.outcome.lost)
        self.outcome.lost.clear()
        return calls

    def drop(self, gone: set[int]) -> None:
        """Remove the captures of containers; reads the whole index."""
        if not gone:
            return
        for _, held in groupby(self._view.unordered(), lambda pair: start_of(pair[0])):
            changes = ((key, cell, list[bytes]()) for key, cell in held)
            for writes in _chunks(self._change_digest(changes, gone), _KEYS):
                self._write(self._lost() + writes)
        self._written += 1  # so that a cell that is written again comes after its removal

    def _read(self, starts: list[bytes]) -> dict[bytes, tuple[dict[bytes, bytes], bool]]:
        """Return the cells of digests by key, and whether these are all."""
        found = {}
        for start, rows in schema.read_partitions(self._session, starts, AT_ONCE + 1):
            _, stored, whole, _ = Partition.of(start, rows)
            known = {start + rest: unsealed(start + rest, cell) for rest, cell in stored}
            found[start] = known, whole
        return found

    def _merge_all(self, groups: list[Group]) -> tuple[list[bytes], list[Call]]:
        """Return the digests of incoming entries, and the writes that merge them with the index."""
        writes: list[Call] = []
        for start, keys, known, whole in self._with_known(groups):
            writes += self._merge(start, keys, known, whole)
        return list(dict.fromkeys(start_of(key) for key, _ in groups)), self._lost() + writes

    def _with_known(
        self, groups: list[Group]
    ) -> Iterator[tuple[bytes, list[Group], dict[bytes, bytes], bool]]:
        """Yield each digest of incoming entries with these, and with its cells by key.

        The cells are at least those under the incoming keys, and all if the last value is true.
        """
        starts = list(dict.fromkeys(start_of(key) for key, _ in groups))
        known = retry(partial(self._read, starts))
        for start, keys in groupby(groups, lambda group: start_of(group[0])):
            incoming, (found, whole) = list(keys), known[start]
            if not whole:
                missing = sorted({key for key, _ in incoming} - found.keys())
                found |= retry(partial(self._cells, start, missing))
            yield start, incoming, found, whole

    def _merge(
        self, start: bytes, groups: list[Group], known: dict[bytes, bytes], whole: bool
    ) -> Iterator[Call]:
        """Yield the writes that merge the incoming entries of one digest with its cells."""
        touched = {key for key, _ in groups}

        def others() -> bool:
            rows = known.items() if whole else self._view.cells(start)
            return any(_has_originals(cell) for key, cell in rows if key not in touched)

        changes = ((key, known.get(key), group) for key, group in groups)
        return self._change_digest(changes, others=others)

    def _change_digest(
        self,
        changes: Iterable[tuple[bytes, bytes | None, list[bytes]]],
        gone: Collection[int] = (),
        others: Callable[[], bool] = lambda: False,
    ) -> Iterator[Call]:
        """Yield the writes for keys of one digest, of which cells and incoming entries are given.

        `others` returns whether the digest has captures under further keys.
        """
        outcome, had, has = self.outcome, False, False
        for key, cell, incoming in changes:
            left, before, after = self._rule.replace(key, cell, incoming, outcome, gone)
            had, has = had or before > 0, has or after > 0
            if left and left != cell:
                yield from self._put(key, left)
            elif cell and not left:
                yield REMOVE, (self._written, *split_key(key))
        if had != has and not others():
            outcome.digests += has - had

    def _cells(self, start: bytes, keys: list[bytes]) -> dict[bytes, bytes]:
        calls = ((schema.CELL, (start, key[len(start) :])) for key in keys)
        found = zip(keys, self._session.execute_many(calls), strict=True)
        return {key: unsealed(key, bytes(rows[0][0])) for key, rows in found if rows}

    def _put(self, key: bytes, cell: bytes) -> Iterator[Call]:
        if self._view.by_url and listed(cell):
            yield schema.listing(key)
        yield PUT, (*split_key(key), sealed(key, cell), self._written)

    def _write(self, writes: list[Call]) -> None:
        """Write cells after all else: what is listed by URL, and what has lost to them."""
        write_all(self._session, sorted(writes, key=_is_of_cell), self._lease.check)


def start_of(key: bytes) -> bytes:
    """Return the digest's part of a key or staged entry."""
    return split_key(key)[0]


def _is_of_cell(call: Call) -> bool:
    return call[0] in (PUT, REMOVE)


def _has_originals(cell: bytes) -> bool:
    return any(map(answers, entries_of(cell)))


def _chunks(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    items = iter(items)
    return iter(lambda: list(islice(items, size)), [])
