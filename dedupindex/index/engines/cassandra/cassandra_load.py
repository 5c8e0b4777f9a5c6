"""Loading an index on a cluster: staged entries settled with what is there, digest by digest.

The first load reads nothing: what the runs leave is written as it comes. Another reads the digests
that it brings, a few hundred at a time, side by side. Each key is written once, with a timestamp
that is later than that of any load before, so that a load which is killed and run again ends in
the same index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, islice
from typing import Any, TypeVar

from dedupindex.index.engines.cassandra.cassandra_schema import Statements, listing
from dedupindex.index.engines.cassandra.cassandra_view import (
    AT_ONCE,
    CassandraView,
    Cell,
    Partition,
)
from dedupindex.index.engines.cassandra.cql import Session, Statement, patiently, write_all
from dedupindex.index.engines.cassandra.metadata import Lease
from dedupindex.index.format.cells import DIGEST_KEY, Keys, answers, entries_of, sealed, unsealed
from dedupindex.index.format.tombstones import container_in, lives_in, with_container
from dedupindex.index.format.url_index import listed
from dedupindex.index.load.merge_rule import (
    MergeOutcome,
    MergeRule,
    checksum,
    grouped,
    mark_before,
    mark_each,
    settled,
)

_KEYS = 2000  # that are read, settled and written together
_Item = TypeVar("_Item")
_Asked = tuple[Statement, Sequence[Any]]


class CassandraLoader:
    """One load, as long as its lease lasts."""

    def __init__(
        self,
        session: Session,
        statements: Statements,
        view: CassandraView,
        rule: MergeRule,
        written: int,
        lease: Lease,
    ) -> None:
        """`written`: the timestamp of what is written, the next one included."""
        self._session, self._on, self._view = session, statements, view
        self._rule, self._written, self._lease = rule, written, lease
        self.outcome = MergeOutcome()

    def fill(self, batches: Iterable[list[bytes]]) -> None:
        """Write what staged entries, which come in order, leave in an index that holds nothing."""
        for cells in settled(batches, self._rule, self.outcome):
            self.outcome.lost.clear()
            self._write([asked for key, cell in cells for asked in self._put(key, cell)])

    def add(self, batches: Iterable[list[bytes]]) -> None:
        """Settle staged entries, which come in order, with what is there."""
        groups = grouped(batches, self._rule.keys.lengths())
        for chunk in _chunks(groups, _KEYS):
            starts = list(dict.fromkeys(_start(key) for key, _ in chunk))
            known = patiently(partial(self._read, starts))
            writes: list[_Asked] = []
            for start, keys in groupby(chunk, lambda group: _start(group[0])):
                self._digest(start, list(keys), known[start], writes)
            self.outcome.lost.clear()
            self._write(writes)

    def drop(self, gone: set[int]) -> None:
        """Take the captures of containers out; reads everything."""
        if not gone:
            return
        for _, cells in groupby(self._view.unordered(), lambda cell: _start(cell[0])):
            self._drop_of(cells, gone)
        self._written += 1  # a cell that is written again comes after its removal

    def _drop_of(self, cells: Iterable[Cell], gone: set[int]) -> None:
        """Take what is gone out of one digest."""
        outcome, held, holds = self.outcome, False, False
        writes: list[_Asked] = []
        for key, cell in cells:
            entries = list(entries_of(cell))
            stay = [entry for entry in entries if not lives_in(entry, gone)]
            answering = sum(map(answers, entries))
            held = held or answering > 0
            if len(stay) == len(entries):
                holds = holds or answering > 0
                continue
            before = outcome.captures
            outcome.captures -= answering
            left = self._rule.settle(key, mark_each(stay), outcome)
            holds = holds or outcome.captures > before - answering
            writes += self._change(key, cell, left)
            if len(writes) >= _KEYS:
                self._write(writes)
                writes = []
        outcome.digests += holds - held
        outcome.lost.clear()
        self._write(writes)

    def _read(self, starts: list[bytes]) -> dict[bytes, tuple[dict[bytes, bytes], bool]]:
        """Of digests the cells by key, and whether these are all."""
        asked = ((self._on.partition, (start, AT_ONCE + 1)) for start in starts)
        found = map(Partition.of, starts, self._session.execute_many(asked))
        return {
            one.start: (
                {one.start + rest: unsealed(one.start + rest, cell) for rest, cell in one.cells},
                one.whole,
            )
            for one in found
        }

    def _digest(
        self,
        start: bytes,
        groups: list[tuple[bytes, list[bytes]]],
        known: tuple[dict[bytes, bytes], bool],
        writes: list[_Asked],
    ) -> None:
        """Settle the incoming entries of one digest."""
        cells, whole = known
        if not whole:
            keys = [key for key, _ in groups if key not in cells]
            cells |= patiently(partial(self._cells, start, keys))
        outcome, touched, holds = self.outcome, set[bytes](), False
        for key, group in groups:
            cell = cells.get(key)
            entries = mark_before(cell) if cell else []
            held = sum(map(answers, entries_of(cell))) if cell else 0
            outcome.captures -= held
            before = outcome.captures
            left = self._rule.settle(key, entries + group, outcome)
            holds = holds or outcome.captures > before
            touched.add(key)
            writes += self._change(key, cell, left)
        held_here = any(_answering(cells[key]) for key in touched if key in cells)
        if held_here != holds and not self._others(start, cells, whole, touched):
            outcome.digests += holds - held_here

    def _others(
        self, start: bytes, cells: dict[bytes, bytes], whole: bool, touched: set[bytes]
    ) -> bool:
        """Whether a digest has captures under keys that are not touched."""
        if any(_answering(cell) for key, cell in cells.items() if key not in touched):
            return True
        if whole:
            return False
        rows = self._view.cells(start)
        return any(_answering(cell) for key, cell in rows if key not in touched)

    def _cells(self, start: bytes, keys: list[bytes]) -> dict[bytes, bytes]:
        asked = ((self._on.cell, (start, key[len(start) :])) for key in keys)
        found = zip(keys, self._session.execute_many(asked), strict=True)
        return {key: unsealed(key, bytes(rows[0][0])) for key, rows in found if rows}

    def _change(self, key: bytes, cell: bytes | None, left: bytes | None) -> Iterator[_Asked]:
        """What to write for what is left under a key, and the checksum kept right."""
        if cell == left:
            return
        if cell:
            self.outcome.checksum -= checksum([(key, cell)])
        if left:
            self.outcome.checksum += checksum([(key, left)])
            yield from self._put(key, left)
        else:
            start = _start(key)
            yield self._on.remove, (self._written, start, key[len(start) :])

    def _put(self, key: bytes, cell: bytes) -> Iterator[_Asked]:
        if self._view.by_url and listed(cell):  # before it is there: what is there is listed
            yield listing(self._on, key)
        end = DIGEST_KEY[key[0]]
        yield self._on.put, (key[:end], key[end:], sealed(key, cell), self._written)

    def _write(self, writes: list[_Asked]) -> None:
        self._lease.check()
        write_all(self._session, writes)


def numbered_anew(
    batches: Iterable[list[bytes]], keys: Keys, now: dict[int, int]
) -> Iterator[list[bytes]]:
    """Staged entries with other container numbers, in the order that they had."""
    lengths = keys.lengths()
    for batch in batches:
        found = []
        for staged in batch:
            end = lengths[staged[0]]
            entry = staged[end:]
            number = container_in(entry)
            if now.get(number, number) != number:
                entry = with_container(entry, now[number])
            found.append(staged[:end] + entry)
        yield found


def container_number(staged: bytes, lengths: list[int]) -> int:
    """The container number in a staged entry, 0 if it has none."""
    return container_in(staged[lengths[staged[0]] :])


def _start(key: bytes) -> bytes:
    return key[: DIGEST_KEY[key[0]]]


def _answering(cell: bytes) -> bool:
    return any(map(answers, entries_of(cell)))


def _chunks(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    items = iter(items)
    return iter(lambda: list(islice(items, size)), [])
