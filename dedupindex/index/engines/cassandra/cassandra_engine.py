"""The engine for several machines, on Apache Cassandra or ScyllaDB.

A directory holds the address (``index.json``) and the staged files of builds; all else is in one
keyspace, which many machines read and one at a time loads. A load is not atomic: what a killed one
has written is true by itself. The index answers nothing until its first load has finished.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from dedupindex.cache import Cache
from dedupindex.counts import OnProgress, silent
from dedupindex.errors import BadInput, Damaged, IndexUnavailable
from dedupindex.index.address import Address
from dedupindex.index.engine import (
    PLACES_KEPT,
    PURGES_KEPT,
    Engine,
    IndexCounts,
    Load,
    reread,
    reread_all,
)
from dedupindex.index.engines.cassandra import cassandra_ledger, metadata
from dedupindex.index.engines.cassandra import cassandra_schema as schema
from dedupindex.index.engines.cassandra.cassandra_ledger import Completeness, is_whole
from dedupindex.index.engines.cassandra.cassandra_loader import CassandraLoader
from dedupindex.index.engines.cassandra.cassandra_view import CassandraView
from dedupindex.index.engines.cassandra.cluster_filter import filter_identity
from dedupindex.index.engines.cassandra.cql import Session, Statement, Use, connect, write_all
from dedupindex.index.engines.cassandra.executor_load import (
    ExecutorLoader,
    SharedLoad,
    can_share,
    check_executors,
    shared_address,
)
from dedupindex.index.engines.cassandra.metadata import About, IndexState, Lease, bytes_of
from dedupindex.index.engines.engine_base import CellTally
from dedupindex.index.format import cells
from dedupindex.index.format.cells import Keys, container_of
from dedupindex.index.format.fast_answer import BROKEN
from dedupindex.index.format.ledger import drops_of
from dedupindex.index.format.url_index import listed
from dedupindex.index.identity import Identity, read_identity, unfinished
from dedupindex.index.load.merge_rule import MergeOutcome
from dedupindex.index.load.runs import merge_files, read_run
from dedupindex.index.load.staging import renumbered
from dedupindex.runtime.progress import watched
from dedupindex.runtime.spark import Cluster

_PUT_CONTAINER = Statement(
    "INSERT INTO KS.container (name, about) VALUES (?, ?) USING TIMESTAMP ?", Use.WRITE
)
_REMOVE_CONTAINER = Statement(
    "DELETE FROM KS.container USING TIMESTAMP ? WHERE name = ?", Use.WRITE
)
_CHECKED = 500  # keys whose rows by URL are read side by side


def problems(view: CassandraView, about: About, address: str, on_progress: OnProgress) -> list[str]:
    """Read the whole index back; return what is wrong with it, a sentence each."""
    wrong: list[str] = []
    state, loading, tally = about.state(), about.get("loading") is not None, CellTally()
    try:
        if astray := sum(view.number_of(place) == 0 for _, place in view.places()):
            wrong.append(
                f"{astray:,} containers are not found by their names; read their files again: "
                f"{'; '.join(reread_all(view, address))}"
            )
        rows = watched(view.stored(), "checking", state.captures, on_progress)
        if lost := _check_cells(view, rows, tally, wrong):
            wrong.append(
                f"{lost:,} captures are of containers whose names are lost, and lookups of them "
                f"fail; read their files again: {'; '.join(reread_all(view, address))}"
            )
        containers = sum(1 for _ in view.registrations())
    except (Damaged, *BROKEN) as error:
        return [*wrong, f"the index cannot be read to its end: {error!r}"]
    if loading:  # so that the counts are out of date
        wrong.append(
            "a load is going on, or was interrupted: if none is going on, run its command again"
        )
    elif not lost:
        counts = IndexCounts(state.captures, state.digests, state.containers)
        wrong += tally.differences(containers, counts, state.checksum)
    return wrong


def _check_cells(
    view: CassandraView, rows: Iterator[tuple[bytes, bytes]], tally: CellTally, wrong: list[str]
) -> int:
    """Check all cells; return how many are of containers that have no name."""
    without_name, lost = set[int](), 0
    while chunk := list(islice(rows, _CHECKED)):
        listable = []
        for key, stored in chunk:
            if not cells.is_sound(key, stored):
                wrong.append(str(cells.damaged(key)))
                continue
            cell = cells.unsealed(key, stored)
            if listed(cell):
                listable.append(key)
            numbers = {container_of(entry) for entry in cells.entries_of(cell)} - {0}
            without_name |= {n for n in numbers - without_name if not _has_name(view, n)}
            if not without_name.isdisjoint(numbers):
                lost += 1
            elif defect := view.defect(key, cell):
                wrong.append(defect)
            else:
                tally.add(key, cell)
        if view.by_url:
            wrong += [f"{key.hex()} is not listed by its URL" for key in view.unlisted(listable)]
    return lost


def _has_name(view: CassandraView, number: int) -> bool:
    with suppress(Damaged):  # which decoding reports
        return view.place_or_nowhere(number) is not cells.NOWHERE
    return True


def identity_at(address: Address) -> Identity | None:
    """Return the identity of the index at an address, None if there is none yet."""
    with closing(connect(address)) as session:
        return About(session).identity(str(address)) if schema.tables_exist(session) else None


class CassandraEngine(Engine):
    """An open index on a cluster."""

    def __init__(self, index: Path) -> None:
        self.index = index
        self.identity = read_identity(index)
        self.address = Address.parse(self.identity.engine)
        self._places = Cache[int, cells.ContainerRef](PLACES_KEPT)
        self._signature, self._filter_identity = "", 0
        self._lease: Lease | None = None  # while `writing`
        self._session: Session | None = connect(self.address)
        try:
            self._exists = schema.tables_exist(self._session)
            self._take_identity()
        except BaseException:
            self.close()
            raise

    def _take_identity(self) -> None:
        """Read the identity from the cluster, which may be newer than that of the directory."""
        cluster = None
        if self._exists:
            # The signature first: the index may be replaced between the two.
            self._signature = metadata.signature_of(self._open())
            self._filter_identity = filter_identity(self.address, self._signature)
            cluster = self._about().identity(self.identity.engine)
        if cluster is not None and self.identity.generation:
            metadata.check_same(self.identity, cluster, self.address)
        self.identity = cluster or replace(self.identity, generation=0)

    def _open(self) -> Session:
        if self._session is None:
            raise IndexUnavailable(f"the index at {self.index} is closed")
        return self._session

    def _about(self) -> About:
        return About(self._open())

    def view(self) -> CassandraView:
        if not self.identity.generation:
            raise IndexUnavailable(unfinished(self.index))
        return self._view()

    def _view(self) -> CassandraView:
        settings = self.identity.settings
        view = CassandraView(
            self._open(), settings.keys(), self._places, self.index, by_url=settings.by_url
        )
        view.filter_identity = self._filter_identity
        return view

    def is_current(self) -> bool:
        return metadata.has_signature(self._open(), self._signature)

    def next_number(self) -> int:
        return self._about().next_number() if self._exists else 1

    def metadata(self) -> dict[str, Any]:
        return self._about().state().note if self._exists else {}

    def purges(self) -> list[dict[str, Any]]:
        return self._about().state().purges if self._exists else []

    def load(self, load: Load) -> MergeOutcome:
        """Commit a load; what it has written before an error stays."""
        return self._load(load, None)

    def load_on(self, load: Load, cluster: Cluster) -> MergeOutcome:
        return self._load(load, cluster if can_share(self.address) and load.runs else None)

    def _load(self, load: Load, cluster: Cluster | None) -> MergeOutcome:
        # Damage is found before anything is written.
        used = self._numbers_in([*load.runs, *load.ledger])
        session = self._session = self._open().for_changes()
        schema.create_tables(session, self.address)
        self._exists = True
        held = self._lease
        with nullcontext(held) if held else Lease(session, str(self.address)) as lease:
            metadata.await_executors(self._about(), lease, load.on_progress)
            self._take_identity()
            state = self._about().state()
            whole = Completeness.of(self._about(), state, load)
            if cluster is not None:
                address = shared_address(session, self.address)
                check_executors(cluster, address, lease.text)
            killed = self._begin(state, load, by_executors=cluster is not None)
            now = metadata.register(session, load.places)
            load = load._replace(places=[(now[number], place) for number, place in load.places])
            self._check_named(used - now.keys())
            view, settings = self._view(), self.identity.settings
            rule = load.rule(settings, view.place_or_nowhere)
            gone, keys = load.gone(view), settings.keys()
            loader = CassandraLoader(session, view, rule, state.written, lease)
            writer: CassandraLoader | ExecutorLoader = loader
            if cluster is not None:
                shared = SharedLoad(address, settings, state.written, bool(gone), lease.text)
                writer = ExecutorLoader(cluster, shared, loader, load)
            writer.remember(numbered_anew(_merged(load.ledger), keys, now))
            counts = writer.counts(numbered_anew(load.merged(), keys, now), gone) if gone else {}
            loader.drop(gone)
            batches = numbered_anew(load.merged(), keys, now)
            (writer.add if state.generation else writer.fill)(batches)
            vars(loader.outcome).update(counts)
            loader.forget(drops_of(gone, load.drops))
            self._finish(load, state, loader.outcome, lease, whole, recount=killed)
        return loader.outcome

    @contextmanager
    def writing(self) -> Iterator[None]:
        session = self._session = self._open().for_changes()
        with Lease(session, str(self.address)) as self._lease:
            try:
                yield
            finally:
                self._lease = None

    def ledger_gap(self) -> str:
        about = self._about()
        if not self.identity.generation or is_whole(about, about.state()):
            return ""
        return (
            f"the ledger of {self.address} lacks what another version of dedupindex has loaded, so "
            "it is not known which revisits refer to its captures; read all its files again in one "
            f"command: {reread(str(self.address), ['SOURCE...'])} (or build it anew in another "
            "keyspace)"
        )

    def _numbers_in(self, runs: list[Path]) -> set[int]:
        """Return the container numbers in runs; raises `Damaged` or `IndexUnavailable`."""
        lengths, used = self.identity.settings.keys().lengths(), {0}
        try:
            for chunk in chain.from_iterable(map(read_run, runs)):
                used.update(container_of(staged[lengths[staged[0]] :]) for staged in chunk)
        except OSError as error:
            raise IndexUnavailable(f"{error}; nothing was changed") from error
        return used - {0}

    def _check_named(self, numbers: set[int]) -> None:
        """Raise `IndexUnavailable` if containers of a load have lost their names since staging."""
        if numbers and (lost := metadata.unnamed(self._open(), numbers)):
            raise IndexUnavailable(
                f"the index at {self.address} has lost the names of {len(lost):,} containers since "
                "the sources were read (was it removed meanwhile?); run the same command again"
            )

    def _begin(self, state: IndexState, load: Load, *, by_executors: bool) -> bool:
        """Write that a load begins; return whether one was killed, so that counts are outdated."""
        about = self._about()
        loading = about.get("loading")  # the timestamp of a load that was killed
        killed = loading is not None
        state.written = max(time.time_ns() // 1000, state.written + 2, (loading or 0) + 2)
        if not state.generation:
            if killed:
                self._remove_unfinished()
            about.identify(self.identity, state.written)
        about.put("loading", state.written, state.written)
        if by_executors:
            about.put(metadata.EXECUTORS, metadata.executors_end(self.address), state.written)
        return killed and state.generation > 0

    def _remove_unfinished(self) -> None:
        try:
            schema.truncate_tables(self._open())
        except IndexUnavailable as error:
            raise IndexUnavailable(
                f"what an unfinished first load wrote to {self.address} cannot be removed: "
                f"{error}; run the same command again when all nodes are there"
            ) from error

    def _finish(
        self, load: Load, state: IndexState, outcome: MergeOutcome, lease: Lease,
        whole: Completeness, *, recount: bool,
    ) -> None:  # fmt: skip
        """Write all of a load but captures; the state last, if the lease has lasted."""
        lease.check()
        session, about = self._open(), self._about()
        fresh = {bytes_of(container.name): container for container in load.containers}
        gone = [bytes_of(name) for name in load.dropped if bytes_of(name) not in fresh]
        names = [*fresh, *gone]
        found = session.execute_many((schema.CONTAINER, (name,)) for name in names)
        known = {name for name, rows in zip(names, found, strict=True) if rows}
        write_all(session, [(_REMOVE_CONTAINER, (state.written, name)) for name in gone])
        rows = [
            (name, cells.sealed_text(name, json.dumps(container._asdict())), state.written)
            for name, container in fresh.items()
        ]
        write_all(session, [(_PUT_CONTAINER, row) for row in rows])
        state.containers += len(fresh.keys() - known) - len(known.intersection(gone))
        for name in ("captures", "digests", "checksum"):
            changed = getattr(state, name) + getattr(outcome, name)
            setattr(state, name, changed % (1 << 64))
        if recount:
            view, tally = self._view(), CellTally()
            for key, cell in view.unordered():
                tally.add(key, cell)
            state.captures, state.digests = tally.captures, tally.digests
            state.checksum = tally.checksum
            state.containers = sum(1 for _ in view.registrations())
        state.generation += 1
        state.note = load.metadata or state.note
        state.purges = [*state.purges, *load.purges][-PURGES_KEPT:]
        state.own_digests = state.own_digests and (load.own_digests or not load.runs)
        lease.check()
        whole.write(about, load, self._view().registrations(), state.written)
        about.put("state", asdict(state), state.written)
        about.remove(metadata.EXECUTORS, state.written + 1)
        about.remove("loading", state.written + 1)
        self.identity = replace(self.identity, generation=state.generation)
        self.identity.write(self.index)

    def check(self, on_progress: OnProgress = silent) -> list[str]:
        with self.view() as view:
            wrong = problems(view, self._about(), str(self.address), on_progress)
            wrong += cassandra_ledger.problems(self._open())
            try:
                self.ledger_gap()
                self._about().next_number()
            except Damaged as error:
                wrong.append(str(error))
            return wrong

    def copy(self, target: Path) -> None:
        """Refuse: `copy_index` copies capture by capture, and a cluster has tools of its own."""
        raise BadInput("an index on a cluster has no files to copy")

    def compact(self, on_progress: OnProgress = silent) -> None:
        """Refuse: a cluster compacts by itself."""
        raise BadInput(
            f"the nodes of {self.address} compact by themselves; nodetool compact makes them do so"
        )

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
            self._places.clear()

    def clear_leftovers(self, on_progress: OnProgress = silent) -> None:
        """Make the counts anew if a load was killed: there may be nothing left to load."""
        if self.identity.generation and self._about().get("loading") is not None:
            self.load(Load(on_progress=on_progress))


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


def _merged(runs: list[Path]) -> Iterator[list[bytes]]:
    return merge_files(runs, runs[0].parent) if runs else iter(())
