"""Load captures into a cluster with the executors of Spark, each a share of the digests.

The driver holds the lease, numbers containers, writes what an index records of itself, and removes
what is dropped; it sends sorted entries, all those of a digest in one share. Executors settle what
is kept and write it, each with a session of its own.

A task runs again, also beside itself, when an executor is lost: it writes the same cells with the
same timestamp. But it counts what it finds, which its earlier run may have written. So the first
load counts entries only, and reads no captures. A later one plans the writes of many shares first,
and counts them; they are written when all are counted. What comes in place of captures that are
dropped is counted before these are removed.

An executor that was cut off must not write later into another load: it checks the lease of the
driver (`LentLease`) before each batch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dedupindex.cache import Cache
from dedupindex.errors import Damaged, DedupError, IndexUnavailable
from dedupindex.index.address import Address
from dedupindex.index.engine import PLACES_KEPT, Load, retry
from dedupindex.index.engines.cassandra.cassandra_loader import CassandraLoader, start_of
from dedupindex.index.engines.cassandra.cassandra_view import CassandraView
from dedupindex.index.engines.cassandra.cluster_filter import CONSISTENCIES
from dedupindex.index.engines.cassandra.cql import Call, Session, Statement, connect
from dedupindex.index.engines.cassandra.metadata import LentLease
from dedupindex.index.format.cells import ContainerRef
from dedupindex.index.identity import Settings
from dedupindex.index.load.merge_rule import MergeOutcome, MergeRule
from dedupindex.index.load.runs import RunWriter, merge_files
from dedupindex.runtime.spark import Cluster, SparkRows

_LEAST, _MOST = 500, 20_000  # entries of a share, about
_SHARES = 4  # for each core, at least, if there are enough entries
_LARGE = 50_000  # entries of a digest that the driver loads itself: no share holds them in memory
_LARGE_BYTES = 16 << 20  # of these, before they are written to disk
_ROW = 1000  # keys whose writes are a row of Spark
_DATACENTER = Statement("SELECT data_center FROM system.local")


class SharedLoad(NamedTuple):
    """What an executor needs to know of a load."""

    address: Address
    settings: Settings
    written: int  # see `CassandraLoader`
    dropped: bool
    lease: str  # text of the driver's

    @contextmanager
    def loader(self) -> Iterator[CassandraLoader]:
        """Open a session and give a loader, which writes while the driver has the lease."""
        with closing(connect(self.address).for_changes()) as session:
            keys = self.settings.keys()
            places = Cache[int, ContainerRef](PLACES_KEPT)
            view = CassandraView(session, keys, places, Path(), by_url=self.settings.by_url)
            rule = MergeRule(keys, self.settings.keep == "latest", view.place_or_nowhere)
            lease = LentLease(session, self.lease)
            yield CassandraLoader(session, view, rule, self.written, lease, dropped=self.dropped)


class PlannedWrites(NamedTuple):
    """Writes that an executor has made and not executed yet."""

    starts: list[bytes]  # digests' parts of keys
    writes: list[Call]


def can_share(address: Address) -> bool:
    """Return whether executors see all that the driver has written."""
    return address.consistency in CONSISTENCIES


def shared_address(session: Session, address: Address) -> Address:
    """Return an address by which executors use nodes of the same datacenter as a session."""
    return replace(address, datacenter=str(session.execute(_DATACENTER)[0][0]))


def check_executors(cluster: Cluster, address: Address, lease: str) -> None:
    """Raise `IndexUnavailable` if executors cannot reach the index; nothing is written before.

    One task for each core is likely to ask each executor, but Spark may not place them so.
    """
    try:
        for _ in cluster.rows(partial(_reach, address, lease), range(cluster.cores)):
            pass
    except DedupError as error:
        raise IndexUnavailable(
            f"an executor cannot write to {address}: {error}; nothing was changed. To load from "
            "this machine alone, run the same command with --resume and without --spark"
        ) from error


def _reach(address: Address, lease: str, number: int) -> Iterator[int]:
    with closing(connect(address)) as session:
        retry(LentLease(session, lease).check)
        yield number


class ExecutorLoader:
    """One load by executors, with the methods of `CassandraLoader` that write what is new."""

    def __init__(
        self, cluster: Cluster, shared: SharedLoad, own: CassandraLoader, load: Load
    ) -> None:
        """`own`: loads what is for no share, and has the outcome of all."""
        self._cluster, self._shared, self._own = cluster, shared, own
        self._scratch = load.runs[0].parent
        self._large = self._large_digests()
        self._most = min(max(load.entries // (_SHARES * cluster.cores), _LEAST), _MOST)

    def remember(self, batches: Iterable[list[bytes]]) -> None:
        """Write items to the ledger."""
        tasks = together(batches, self._most)
        with _resumable():
            for _ in self._cluster.packed_rows(partial(_remember, self._shared), tasks):
                pass

    def counts(self, batches: Iterable[list[bytes]], gone: Collection[int]) -> dict[str, int]:
        """Return what is added, replaced and unchanged if containers `gone` are then dropped."""
        counts = Counter[str]()
        work = partial(_counts, self._shared, frozenset(gone))
        with _resumable():
            for found in self._cluster.packed_rows(work, self._cut(batches)):
                counts.update(found)
        counts.update(self._own.counts(merge_files(self._large.paths, self._scratch), gone))
        return dict(counts)

    def fill(self, batches: Iterable[list[bytes]]) -> None:
        """Load staged entries, which come in order, into an empty index."""
        work = partial(_fill, self._shared)
        with _resumable():
            for outcome in self._cluster.packed_rows(work, self._cut(batches)):
                self._own.outcome.include(outcome)
        self._own.fill(merge_files(self._large.paths, self._scratch))

    def add(self, batches: Iterable[list[bytes]]) -> None:
        """Load staged entries, which come in order."""
        plan = partial(_plan, self._shared)
        with _resumable():
            for kept in self._cluster.kept_packed(plan, self._cut(batches)):
                self._store(kept)
        self._own.add(merge_files(self._large.paths, self._scratch))

    def _store(self, kept: SparkRows[PlannedWrites | MergeOutcome]) -> None:
        """Count all planned writes, then let executors write them."""
        outcomes = [row for row in kept.filtered(_is_outcome) if isinstance(row, MergeOutcome)]
        planned = sum(kept.applied(partial(_store, self._shared)))
        if len(outcomes) != planned:
            raise DedupError("Spark has lost results of tasks")
        for outcome in outcomes:
            self._own.outcome.include(outcome)

    def _cut(self, batches: Iterable[list[bytes]]) -> Iterator[list[bytes]]:
        """Yield shares; what is not in one is in `_large` afterwards."""
        self._large = self._large_digests()
        for held in whole_digests(batches, self._large):
            yield from _parts(held, self._most)
        self._large.flush()

    def _large_digests(self) -> RunWriter:
        """Return a writer of runs, which overwrites those of the writer before."""
        return RunWriter(self._scratch, "large", run_bytes=_LARGE_BYTES)


@contextmanager
def _resumable() -> Iterator[None]:
    """Raise errors of Spark and of tasks as `IndexUnavailable`, with what to do."""
    try:
        yield
    except Damaged:
        raise
    except DedupError as error:
        raise IndexUnavailable(
            f"the load by executors was interrupted: {error}; to finish it, run the same command "
            "again with --resume (without --spark to load from this machine alone)"
        ) from error


def together(batches: Iterable[list[bytes]], least: int) -> Iterator[list[bytes]]:
    """Yield the items of batches in lists of at least so many, but for the last: a task each."""
    held = list[bytes]()
    for batch in batches:
        held += batch
        if len(held) >= least:
            yield held
            held = []
    if held:
        yield held


def whole_digests(batches: Iterable[list[bytes]], large: RunWriter) -> Iterator[list[bytes]]:
    """Yield staged entries, all those of a digest in one list, except of very large digests.

    The entries of these go to `large`, all or none of a digest.
    """
    held, big = list[bytes](), b""
    for batch in batches:
        at = bisect_right(batch, big, key=lambda staged: staged[: len(big)]) if big else 0
        large.extend(batch[:at])
        held += batch[at:]
        if not held:
            continue
        big, last = b"", start_of(held[-1])
        begin = bisect_left(held, last)  # where the last digest begins, which may go on
        if begin:
            yield held[:begin]
        held = held[begin:]
        if len(held) > _LARGE:
            large.extend(held)
            held, big = [], last
    if held:
        yield held


def _parts(entries: list[bytes], most: int) -> Iterator[list[bytes]]:
    """Yield staged entries in lists of whole digests, of `most` entries if digests have fewer."""
    at = 0
    while at < len(entries):
        last = start_of(entries[min(at + most, len(entries)) - 1])
        end = bisect_right(entries, last, at, key=lambda staged: staged[: len(last)])  # noqa: B023
        yield entries[at:end]
        at = end


def _is_outcome(row: PlannedWrites | MergeOutcome) -> bool:
    return isinstance(row, MergeOutcome)


# --- on executors ---------------------------------------------------------------------------------


def _remember(shared: SharedLoad, items: list[bytes]) -> Iterator[int]:
    with shared.loader() as loader:
        loader.remember([items])
        yield len(items)


def _counts(
    shared: SharedLoad, gone: Collection[int], entries: list[bytes]
) -> Iterator[dict[str, int]]:
    with shared.loader() as loader:
        yield loader.counts([entries], gone)


def _fill(shared: SharedLoad, entries: list[bytes]) -> Iterator[MergeOutcome]:
    with shared.loader() as loader:
        loader.fill([entries])
        yield loader.outcome


def _plan(shared: SharedLoad, entries: list[bytes]) -> Iterator[PlannedWrites | MergeOutcome]:
    with shared.loader() as loader:
        for starts, writes in loader.merged(_parts(entries, _ROW)):
            yield PlannedWrites(starts, writes)
        yield loader.outcome


def _store(shared: SharedLoad, rows: Iterator[PlannedWrites | MergeOutcome]) -> Iterator[int]:
    """Execute planned writes; yield 1 for the end of each plan."""
    with shared.loader() as loader:
        for row in rows:
            if isinstance(row, PlannedWrites):
                loader.store(row.starts, row.writes)
            else:
                yield 1
