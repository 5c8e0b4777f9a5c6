"""The embedded engine: one memory-mapped B+ tree file, many reading processes, one writer.

``INDEX/data-<generation>.mdb`` holds the trees of `lmdb_trees`. A small load goes into them in one
transaction; a large one is merged with what is there into a new file, whose pages are full, and the
identity then names the new generation. Readers keep the old file until they look again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import lmdb

from dedupindex.cache import Cache
from dedupindex.errors import Damaged, IndexUnavailable
from dedupindex.index.engine import PLACES_KEPT, Load, numbers_of
from dedupindex.index.engines.lmdb.lmdb_file import (
    check_pages,
    environment,
    length_of,
    problems,
    put_one,
    remove,
)
from dedupindex.index.engines.lmdb.lmdb_view import IndexTrees, LmdbView
from dedupindex.index.format import ledger, url_index
from dedupindex.index.format.cells import ContainerRef, Keys, sealed
from dedupindex.index.format.ledger import Keeper, drops_of
from dedupindex.index.identity import read_identity, unfinished
from dedupindex.index.load.merge_rule import (
    Cells,
    MergeOutcome,
    MergeRule,
    grouped,
    settled,
    staged_again,
)
from dedupindex.index.load.runs import merge, merge_files
from dedupindex.runtime.files import sync_directory

COPIES_TRIED = 10
_MAPPED = 3_000_000  # captures after which a file is mapped anew: its pages count as memory
REBUILD = 4  # a load of more than a quarter of the index is merged into a new file


class LmdbEngine:
    """An open LMDB index; `write` asks for the right to load."""

    def __init__(self, index: Path, *, write: bool = False) -> None:
        self.index = index
        self._write = write
        self.identity = read_identity(index)
        self._env: lmdb.Environment | None = None
        self._trees: IndexTrees | None = None
        self._places = Cache[int, ContainerRef](PLACES_KEPT)
        if self.identity.generation:
            self._open()

    def _open(self) -> None:
        for attempt in range(3):
            path = self.path
            try:
                check_pages(path)
                self._env = environment(path, write=self._write)
                if path.stat().st_size < length_of(self._env):
                    self.close()
                    raise Damaged(f"{path} is cut; restore it from a copy, or build it again")
                by_url = self.identity.settings.by_url
                self._trees = IndexTrees.open(self._env, create=False, by_url=by_url)
                with self._env.begin() as txn:
                    if self._trees.get(txn, "transaction") != txn.id():
                        raise Damaged(f"{path} is damaged: it has an old state; build it again")
                return
            except (lmdb.Error, OSError) as error:
                self.close()
                self.identity = read_identity(self.index)
                if self.path == path or attempt == 2:
                    raise IndexUnavailable(f"{path} cannot be opened: {error}") from error
            except Damaged:
                self.close()
                raise

    @property
    def keys(self) -> Keys:
        """How its keys are made."""
        return self.identity.settings.keys()

    @property
    def path(self) -> Path:
        """The data file of the current generation."""
        return self.index / f"data-{self.identity.generation}.mdb"

    def view(self) -> LmdbView:
        """A read transaction; see `protocol.View`."""
        if self._env is None or self._trees is None:
            raise IndexUnavailable(unfinished(self.index))
        return LmdbView(self._env, self._trees, self.keys, self._places)

    def number_of(self, place: ContainerRef) -> int:
        if self._env is None or self._trees is None:
            return 0
        with self.view() as view:
            return view.number_of(place)

    def next_number(self) -> int:
        if self._env is None or self._trees is None:
            return 1
        with self._env.begin() as txn:
            return int(self._trees.get(txn, "next_number"))

    def note(self) -> dict[str, Any]:
        if self._env is None or self._trees is None:
            return {}
        with self._env.begin() as txn:
            return dict(self._trees.get(txn, "note"))

    def load(self, load: Load) -> MergeOutcome:
        """Take in a load; see `protocol.Engine.load`."""
        load = load._replace(places=list(load.places))  # it is read twice
        try:
            incoming = sum(path.stat().st_size for path in load.runs)
            if self._env is None or load.dropped or incoming * REBUILD > self.path.stat().st_size:
                return self._rebuild(load)
            return self._put(load)
        except (lmdb.Error, OSError) as error:
            raise IndexUnavailable(f"{self.path}: {error}; nothing was changed") from error

    def compact(self) -> None:
        """Write the captures anew, pages full, as a new generation; readers go on meanwhile."""
        self._rebuild(Load([], (), []))

    def _rule(self, load: Load) -> MergeRule:
        fresh = dict(load.places)
        settings = self.identity.settings

        def place_of(number: int) -> ContainerRef:
            return fresh.get(number) or self._place(number)

        return MergeRule(settings.keys(), settings.keep == "latest", place_of)

    def _place(self, number: int) -> ContainerRef:
        with self.view() as view:
            return view.place_of(number)

    def _put(self, load: Load) -> MergeOutcome:
        """A small load, in one transaction."""
        assert self._env is not None and self._trees is not None
        rule, outcome, trees = self._rule(load), MergeOutcome(), self._trees
        scratch = load.runs[0].parent if load.runs else self.index
        with (
            self._keeper(load, set()) as keeper,
            self._env.begin(db=trees.captures, write=True) as txn,
        ):
            for key, group in grouped(merge_files(load.runs, scratch), rule.keys.lengths()):
                cell = put_one(txn, rule, key, group, outcome)
                if trees.urls is not None and cell and url_index.listed(cell):
                    url_index.put(txn, trees.urls, key)
                keeper.take(outcome.lost)
            trees.register(txn, load, outcome)
            trees.put(txn, "ledger", keeper.names())
        length = length_of(self._env)
        if self.path.stat().st_size < length:  # its last pages were allocated, but not needed
            os.truncate(self.path, length)
        return outcome

    def _rebuild(self, load: Load) -> MergeOutcome:
        """What is there and the load, merged in order into a file of the next generation."""
        identity = self.identity.next_generation()
        path = self.index / f"data-{identity.generation}.mdb"
        remove(path)
        gone = self._numbers_of(load.dropped)
        with self._keeper(load, gone) as keeper:
            try:
                outcome = self._write_file(path, load, gone, keeper)
            except BaseException:
                remove(path)
                raise
            finally:
                url_index.clear(self.index)
            sync_directory(self.index)
            before = self.path if self._env is not None else None
            identity.write(self.index)  # if this fails, either file may be the named one: both stay
        self.close()
        self.identity = identity
        self._open()
        if before is not None:
            remove(before)
        return outcome

    def _write_file(self, path: Path, load: Load, gone: set[int], keeper: Keeper) -> MergeOutcome:
        """Write what is there, without the containers that are gone, and the load."""
        outcome, rule = MergeOutcome(), self._rule(load)
        scratch = load.runs[0].parent if load.runs else self.index
        sources = [merge_files(load.runs, scratch)] if load.runs else []
        if self._env is not None:
            sources.append(self._staged(gone))
        env, trees = self._fill(path, settled(merge(sources), rule, outcome), outcome, keeper)
        try:
            with env.begin(write=True) as txn:
                trees.begin(txn)
                if self._env is not None and self._trees is not None:
                    with self._env.begin() as old:
                        trees.inherit(txn, self._trees, old, load.dropped)
                trees.register(txn, load, outcome, absolute=True)
                trees.put(txn, "ledger", keeper.names())
            env.sync(True)
        finally:
            env.close()
        return outcome

    def _keeper(self, load: Load, gone: set[int]) -> Keeper:
        names: list[str] = []
        if self._env is not None:
            with self.view() as view:
                names = view.ledger()
        return Keeper(self.index, names, load.ledger, drops_of(gone, load.drops), self.keys)

    def _numbers_of(self, names: frozenset[str]) -> set[int]:
        if self._env is None:
            return set()
        with self.view() as view:
            return numbers_of(view, names)

    def _fill(
        self, path: Path, settled_cells: Iterator[Cells], outcome: MergeOutcome, keeper: Keeper
    ) -> tuple[lmdb.Environment, IndexTrees]:
        """A new data file with captures that come in order."""
        by_url = self.identity.settings.by_url
        lister = url_index.Lister(self.index) if by_url else None
        env = environment(path, write=True, bulk=True)
        try:
            trees = IndexTrees.open(env, create=True, by_url=by_url)
            mapped = 0
            for cells in settled_cells:
                stored = [(key, sealed(key, cell)) for key, cell in cells]
                with env.begin(db=trees.captures, write=True) as txn, txn.cursor() as cursor:
                    cursor.putmulti(stored, append=True)
                keeper.take(outcome.lost)
                if lister is not None:
                    lister.take(cells)
                if outcome.captures - mapped > _MAPPED:
                    mapped = outcome.captures
                    env.close()
                    env = environment(path, write=True, bulk=True)
                    trees = IndexTrees.open(env, create=False, by_url=by_url)
            if lister is not None:
                lister.write(env, trees.urls)
        except BaseException:
            env.close()
            raise
        return env, trees

    def _staged(self, gone: set[int]) -> Iterator[list[bytes]]:
        """What the index holds, as sorted chunks of staged entries marked as from before."""
        with self.view() as view:
            yield from staged_again(view.cells(), gone)

    def forget_dead_readers(self) -> None:
        """See `protocol.Engine`."""
        try:
            if self._env is not None:
                self._env.reader_check()
        except lmdb.Error as error:
            raise IndexUnavailable(f"{self.path}: {error}") from error

    def check(self) -> list[str]:
        """Read everything back; see `protocol.Engine.check`."""
        with self.view() as view:
            wrong = problems(view)
            with suppress(Damaged):  # which is named already
                wrong += ledger.problems(self.index, view.ledger())
            return wrong

    def copy(self, target: Path) -> None:
        """A copy of one consistent state, made while others read and write."""
        if self._env is None:
            raise IndexUnavailable(unfinished(self.index))
        try:
            for _ in range(COPIES_TRIED):
                with open(target / self.path.name, "wb") as stream:
                    # Page by page: LMDB 0.9's compacting copy crashes on the tree of `byurl`.
                    self._env.copyfd(stream.fileno())
                    os.fsync(stream.fileno())
                with suppress(FileNotFoundError):  # a load came between: copy its state instead
                    ledger.copy(self.index, self._ledger_of(target / self.path.name), target)
                    break
            else:
                raise IndexUnavailable(f"copying {self.index} failed: it changes all the time")
        except (lmdb.Error, OSError) as error:
            raise IndexUnavailable(f"copying to {target} failed: {error}") from error
        sync_directory(target)
        self.identity.write(target)

    def _ledger_of(self, path: Path) -> list[str]:
        """The files of the ledger that a data file names."""
        env = environment(path, write=False)
        try:
            trees = IndexTrees.open(env, create=False, by_url=self.identity.settings.by_url)
            with LmdbView(env, trees, self.keys, Cache()) as view:
                return view.ledger()
        finally:
            env.close()

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None
            self._places.clear()

    def clear_leftovers(self) -> None:
        """Remove data files that a killed build left behind (the caller holds the write lock)."""
        url_index.clear(self.index)
        with self._keeper(Load([], (), []), set()):
            pass  # it does so for the ledger
        for path in self.index.glob("data-*.mdb"):
            if path != self.path or not self.identity.generation:
                remove(path)
