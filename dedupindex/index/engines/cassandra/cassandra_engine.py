"""The engine for several machines, on Apache Cassandra or ScyllaDB.

A directory holds the address (``index.json``) and the staged files of builds; all else is in one
keyspace, which many machines read and one at a time loads. A load is not atomic: what a killed one
has written is true by itself. The index answers nothing until its first load has finished.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, TypeVar

from dedupindex.cache import Cache
from dedupindex.counts import OnProgress, silent
from dedupindex.errors import BadInput, Damaged, IndexUnavailable
from dedupindex.index.address import Address
from dedupindex.index.engine import (
    PLACES_KEPT,
    Engine,
    IndexCounts,
    Load,
    reread,
    reread_all,
    retry,
)
from dedupindex.index.engines.cassandra import cassandra_ledger, metadata
from dedupindex.index.engines.cassandra import cassandra_schema as schema
from dedupindex.index.engines.cassandra.added_digests import AddedDigests
from dedupindex.index.engines.cassandra.cassandra_ledger import Completeness, LedgerTable, is_whole
from dedupindex.index.engines.cassandra.cassandra_view import AT_ONCE, CassandraView, Partition
from dedupindex.index.engines.cassandra.cluster_filter import filter_identity
from dedupindex.index.engines.cassandra.cql import Call, Session, Statement, Use, connect, write_all
from dedupindex.index.engines.cassandra.metadata import About, IndexState, Lease, bytes_of
from dedupindex.index.engines.engine_base import CellTally
from dedupindex.index.format import cells
from dedupindex.index.format.cells import (
    Keys,
    answers,
    container_of,
    entries_of,
    sealed,
    split_key,
    unsealed,
)
from dedupindex.index.format.fast_answer import BROKEN
from dedupindex.index.format.ledger import Drops, drops_of
from dedupindex.index.format.url_index import listed
from dedupindex.index.identity import Identity, read_identity, unfinished
from dedupindex.index.load.merge_rule import (
    MergeOutcome,
    MergeRule,
    grouped,
    mark_before,
    settled,
)
from dedupindex.index.load.runs import merge_files, read_run
from dedupindex.index.load.staging import renumbered
from dedupindex.runtime.progress import watched

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

    def load(self, load: Load) -> MergeOutcome:
        """Commit a load; what it has written before an error stays."""
        # Damage is found before anything is written.
        used = self._numbers_in([*load.runs, *load.ledger])
        session = self._session = self._open().for_changes()
        schema.create_tables(session, self.address)
        self._exists = True
        held = self._lease
        with nullcontext(held) if held else Lease(session, str(self.address)) as lease:
            self._take_identity()
            state = self._about().state()
            whole = Completeness.of(self._about(), state, load)
            killed = self._begin(state)
            now = metadata.register(session, load.places)
            load = load._replace(places=[(now[number], place) for number, place in load.places])
            self._check_named(used - now.keys())
            view = self._view()
            rule = load.rule(self.identity.settings, view.place_or_nowhere)
            gone, keys = load.gone(view), self.identity.settings.keys()
            loader = CassandraLoader(session, view, rule, state.written, lease)
            for batch in numbered_anew(_merged(load.ledger), keys, now):
                loader.remember(batch)
            counts = loader.counts(numbered_anew(load.merged(), keys, now), gone) if gone else {}
            loader.drop(gone)
            batches = numbered_anew(load.merged(), keys, now)
            (loader.add if state.generation else loader.fill)(batches)
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
                f"the index at {self.address} has lost the names of {len(lost)} containers since "
                "the sources were read (was it removed meanwhile?); run the same command again"
            )

    def _begin(self, state: IndexState) -> bool:
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
        state.own_digests = state.own_digests and (load.own_digests or not load.runs)
        lease.check()
        whole.write(about, load, self._view().registrations(), state.written)
        about.put("state", asdict(state), state.written)
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

    def clear_leftovers(self) -> None:
        """Make the counts anew if a load was killed: there may be nothing left to load."""
        if self.identity.generation and self._about().get("loading") is not None:
            self.load(Load())


# --- loading: staged entries are merged with what is there, digest by digest ----------------------

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


class CassandraLoader:
    """One load.

    The first load only writes. Others read the digests that they bring, hundreds side by side. Each
    key is written once, with a later timestamp than in earlier loads, so a killed load can be
    repeated.
    """

    def __init__(
        self, session: Session, view: CassandraView, rule: MergeRule, written: int, lease: Lease
    ) -> None:
        """`written`: the timestamp of the load; it may use the next one, too."""
        self._session, self._view, self._rule = session, view, rule
        self._written, self._lease = written, lease
        self._added = AddedDigests(session, retry)
        self._ledger = LedgerTable(session, rule.keys, written)
        self.outcome = MergeOutcome()

    def fill(self, batches: Iterable[list[bytes]]) -> None:
        """Load staged entries, which come in order, into an empty index."""
        rows = chain.from_iterable(settled(batches, self._rule, self.outcome))
        for chunk in _chunks(rows, _FIRST_KEYS):
            writes = [call for key, cell in chunk for call in self._put(key, cell)]
            with self._added.listing({_start(key) for key, _ in chunk}):
                self._write(self._lost() + writes)
        self._write(self._lost())

    def add(self, batches: Iterable[list[bytes]]) -> None:
        """Load staged entries, which come in order."""
        groups = grouped(batches, self._rule.keys.lengths())
        for chunk in _chunks(groups, _KEYS):
            starts = list(dict.fromkeys(_start(key) for key, _ in chunk))
            known = retry(partial(self._read, starts))
            writes: list[Call] = []
            for start, keys in groupby(chunk, lambda group: _start(group[0])):
                writes += self._merge(start, list(keys), *known[start])
            with self._added.listing(starts):  # also if they are there: `added_digests` says why
                self._write(self._lost() + writes)

    def counts(self, batches: Iterable[list[bytes]], gone: Collection[int]) -> dict[str, int]:
        """Return what is added, replaced and unchanged if containers `gone` are then dropped.

        Once they are, nobody knows that the index had what comes in place of their captures.
        """
        rule, outcome = replace(self._rule, gone=gone), MergeOutcome()
        groups = grouped(batches, rule.keys.lengths())
        for chunk in _chunks(groups, _KEYS):
            known = retry(partial(self._read, list(dict.fromkeys(_start(key) for key, _ in chunk))))
            for start, keys in groupby(chunk, lambda group: _start(group[0])):
                found, whole = known[start]
                incoming = dict(keys)
                if not whole:
                    missing = sorted(incoming.keys() - found.keys())
                    found |= retry(partial(self._cells, start, missing))
                for key, entries in incoming.items():
                    before = mark_before(found[key]) if key in found else []
                    rule.settle(key, before + entries, outcome)
            outcome.lost.clear()
        return {name: getattr(outcome, name) for name in ("added", "replaced", "unchanged")}

    def remember(self, items: list[bytes]) -> None:
        """Write items to the ledger: before the captures that come with them."""
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
        for _, held in groupby(self._view.unordered(), lambda pair: _start(pair[0])):
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

    def _merge(
        self,
        start: bytes,
        groups: list[tuple[bytes, list[bytes]]],
        known: dict[bytes, bytes],
        whole: bool,
    ) -> Iterator[Call]:
        """Yield the writes that merge the incoming entries of one digest with its cells.

        `known` are its cells by key, all of them if `whole`.
        """
        touched = {key for key, _ in groups}
        if not whole:
            known |= retry(partial(self._cells, start, sorted(touched - known.keys())))

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
        if self._view.by_url and listed(cell):  # first, so that every capture is listed
            yield schema.listing(key)
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


def _merged(runs: list[Path]) -> Iterator[list[bytes]]:
    return merge_files(runs, runs[0].parent) if runs else iter(())


def _start(key: bytes) -> bytes:
    return split_key(key)[0]


def _has_originals(cell: bytes) -> bool:
    return any(map(answers, entries_of(cell)))


def _chunks(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    items = iter(items)
    return iter(lambda: list(islice(items, size)), [])
