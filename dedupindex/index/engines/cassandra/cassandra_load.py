"""Load an index on a cluster: merge staged entries with what is there, digest by digest.

The first load only writes. Others read the digests that they bring, hundreds side by side. Each key
is written once, with a later timestamp than in earlier loads, so a killed load can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import groupby, islice
from typing import TypeVar

from dedupindex.index.engine import retry
from dedupindex.index.engines.cassandra.cassandra_schema import CELL, PARTITION, listing
from dedupindex.index.engines.cassandra.cassandra_view import AT_ONCE, CassandraView, Partition
from dedupindex.index.engines.cassandra.cql import Call, Session, Statement, Use, write_all
from dedupindex.index.engines.cassandra.metadata import Lease
from dedupindex.index.format.cells import Keys, answers, entries_of, sealed, split_key, unsealed
from dedupindex.index.format.url_index import listed
from dedupindex.index.load.merge_rule import MergeOutcome, MergeRule, grouped, settled
from dedupindex.index.load.staging import renumbered

PUT = Statement(
    "INSERT INTO KS.capture (dk, live, rest, crawl, cell) VALUES (?, 0, ?, 0, ?) USING TIMESTAMP ?",
    Use.WRITE,
)
REMOVE = Statement(
    "DELETE FROM KS.capture USING TIMESTAMP ? WHERE dk = ? AND live = 0 AND rest = ? AND crawl = 0",
    Use.WRITE,
)
_KEYS = 2000  # that are read, merged and written together
_Item = TypeVar("_Item")


class CassandraLoader:
    """One load."""

    def __init__(
        self,
        session: Session,
        view: CassandraView,
        rule: MergeRule,
        written: int,
        lease: Lease,
    ) -> None:
        """`written`: the timestamp of the load; it may use the next one, too."""
        self._session, self._view, self._rule = session, view, rule
        self._written, self._lease = written, lease
        self.outcome = MergeOutcome()

    def fill(self, batches: Iterable[list[bytes]]) -> None:
        """Load staged entries, which come in order, into an empty index."""
        for cells in settled(batches, self._rule, self.outcome):
            self.outcome.lost.clear()
            self._write([call for key, cell in cells for call in self._put(key, cell)])

    def add(self, batches: Iterable[list[bytes]]) -> None:
        """Load staged entries, which come in order."""
        groups = grouped(batches, self._rule.keys.lengths())
        for chunk in _chunks(groups, _KEYS):
            starts = list(dict.fromkeys(_start(key) for key, _ in chunk))
            known = retry(partial(self._read, starts))
            writes: list[Call] = []
            for start, keys in groupby(chunk, lambda group: _start(group[0])):
                writes += self._merge(start, list(keys), *known[start])
            self._write(writes)

    def drop(self, gone: set[int]) -> None:
        """Remove the captures of containers; reads the whole index."""
        if not gone:
            return
        for _, cells in groupby(self._view.unordered(), lambda cell: _start(cell[0])):
            changes = ((key, cell, list[bytes]()) for key, cell in cells)
            for writes in _chunks(self._change_digest(changes, gone), _KEYS):
                self._write(writes)
        self._written += 1  # so that a cell that is written again comes after its removal

    def _read(self, starts: list[bytes]) -> dict[bytes, tuple[dict[bytes, bytes], bool]]:
        """Return the cells of digests by key, and whether these are all."""
        calls = ((PARTITION, (start, AT_ONCE + 1)) for start in starts)
        found = map(Partition.of, starts, self._session.execute_many(calls))
        return {
            start: (
                {start + rest: unsealed(start + rest, cell) for rest, cell in partition.cells},
                partition.whole,
            )
            for start, partition in zip(starts, found, strict=True)
        }

    def _merge(
        self,
        start: bytes,
        groups: list[tuple[bytes, list[bytes]]],
        cells: dict[bytes, bytes],
        whole: bool,
    ) -> Iterator[Call]:
        """Yield the writes that merge the incoming entries of one digest with its cells."""
        touched = {key for key, _ in groups}
        if not whole:
            cells |= retry(partial(self._cells, start, sorted(touched - cells.keys())))
        changes = ((key, cells.get(key), group) for key, group in groups)
        others = partial(self._others, start, cells, whole, touched)
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
        outcome.lost.clear()

    def _others(
        self, start: bytes, cells: dict[bytes, bytes], whole: bool, touched: set[bytes]
    ) -> bool:
        """Return whether a digest has captures under keys that are not touched."""
        if any(_has_originals(cell) for key, cell in cells.items() if key not in touched):
            return True
        if whole:
            return False
        rows = self._view.cells(start)
        return any(_has_originals(cell) for key, cell in rows if key not in touched)

    def _cells(self, start: bytes, keys: list[bytes]) -> dict[bytes, bytes]:
        calls = ((CELL, (start, key[len(start) :])) for key in keys)
        found = zip(keys, self._session.execute_many(calls), strict=True)
        return {key: unsealed(key, bytes(rows[0][0])) for key, rows in found if rows}

    def _put(self, key: bytes, cell: bytes) -> Iterator[Call]:
        if self._view.by_url and listed(cell):  # first, so that every capture is listed
            yield listing(key)
        yield PUT, (*split_key(key), sealed(key, cell), self._written)

    def _write(self, writes: list[Call]) -> None:
        self._lease.check()
        write_all(self._session, writes)


def numbered_anew(
    batches: Iterator[list[bytes]], keys: Keys, now: dict[int, int]
) -> Iterator[list[bytes]]:
    """Yield staged entries with the container numbers of `now`, in their old order."""
    if all(number == given for number, given in now.items()):
        return batches
    lengths = keys.lengths()

    def given(number: int) -> int:
        return now.get(number, number)

    return ([renumbered(staged, lengths, given) for staged in batch] for batch in batches)


def _start(key: bytes) -> bytes:
    return split_key(key)[0]


def _has_originals(cell: bytes) -> bool:
    return any(map(answers, entries_of(cell)))


def _chunks(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    items = iter(items)
    return iter(lambda: list(islice(items, size)), [])
