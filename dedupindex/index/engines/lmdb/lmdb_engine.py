"""The embedded engine: one memory-mapped B+ tree file, many reading processes, one writer.

``INDEX/data-<generation>.mdb`` holds the trees (`IndexTrees`). A small load is one transaction in
that file. A large one is merged with what is there into a new file with full pages; then
``index.json`` names the new generation. Readers keep the old file until they look again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import cast

import lmdb

from dedupindex.cache import Cache
from dedupindex.errors import Damaged, IndexUnavailable
from dedupindex.index.engine import Load
from dedupindex.index.engines.file_engine import META, FileEngine, meta_after
from dedupindex.index.engines.lmdb.lmdb_file import (
    check_pages,
    environment,
    length_of,
    remove,
    scan,
)
from dedupindex.index.engines.lmdb.lmdb_view import IndexTrees, LmdbView, problems
from dedupindex.index.format import cells, ledger, url_index
from dedupindex.index.format.cells import ContainerRef, answers, sealed
from dedupindex.index.format.ledger import LedgerWriter
from dedupindex.index.identity import read_identity, unfinished
from dedupindex.index.load.merge_rule import (
    Cells,
    MergeOutcome,
    MergeRule,
    grouped,
    settled,
    staged_again,
)
from dedupindex.index.load.runs import merge
from dedupindex.runtime.files import sync_directory

_MAPPED = 3_000_000  # captures after which a file is mapped anew: mapped pages count as memory
REBUILD = 4  # a load of more than a quarter of the index is merged into a new file


class LmdbEngine(FileEngine):
    """An open LMDB index; `write` asks for the right to load."""

    def __init__(self, index: Path, *, write: bool = False) -> None:
        super().__init__(index)
        self._write = write
        self._trees: IndexTrees | None = None  # None before the first load
        if self.identity.generation:
            self._open()

    def _open(self) -> None:
        for attempt in range(3):
            path = self.path
            try:
                check_pages(path)
                env = environment(path, write=self._write)
                self._trees = IndexTrees.open(env, by_url=self.identity.settings.by_url)
                with env.begin() as txn:
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
    def path(self) -> Path:
        """The data file of the current generation."""
        return self.index / f"data-{self.identity.generation}.mdb"

    def view(self) -> LmdbView:
        if self._trees is None:
            raise IndexUnavailable(unfinished(self.index))
        return LmdbView(self._trees, self.keys, self._places)

    def load(self, load: Load) -> MergeOutcome:
        try:
            incoming = sum(path.stat().st_size for path in load.runs)
            if not self._trees or load.dropped or incoming * REBUILD > self.path.stat().st_size:
                return self._rebuild(load)
            return self._put(load, self._trees)
        except (lmdb.Error, OSError) as error:
            raise IndexUnavailable(f"{self.path}: {error}; nothing was changed") from error

    def compact(self) -> None:
        self._rebuild(Load())

    def _rule(self, load: Load) -> MergeRule:
        def place_of(number: int) -> ContainerRef:
            with self.view() as view:
                return view.place_of(number)

        return load.rule(self.identity.settings, place_of)

    def _put(self, load: Load, trees: IndexTrees) -> MergeOutcome:
        """Load in one transaction."""
        rule, outcome = self._rule(load), MergeOutcome()
        with (
            self._ledger_writer(load) as writer,
            trees.env.begin(db=trees.captures, write=True) as txn,
        ):
            for key, group in grouped(load.merged(), rule.keys.lengths()):
                cell = put_one(txn, rule, key, group, outcome)
                if trees.urls is not None and cell and url_index.listed(cell):
                    url_index.put(txn, trees.urls, key)
                writer.add(outcome.lost)
            meta = {name: trees.get(txn, name) for name in META}
            trees.register(txn, load, meta_after(meta, load, outcome, writer.write()))
        length = length_of(trees.env)
        if self.path.stat().st_size < length:  # the last pages were allocated, but never written
            os.truncate(self.path, length)
        return outcome

    def _rebuild(self, load: Load) -> MergeOutcome:
        """Merge the index and a load into a file of the next generation."""
        identity, old = self.identity.next_generation(), self.path
        path = self.index / f"data-{identity.generation}.mdb"
        remove(path)
        with self._ledger_writer(load) as writer:
            try:
                outcome = self._write_file(path, load, writer)
            except BaseException:
                remove(path)
                raise
            finally:
                url_index.clear(self.index)
            sync_directory(self.index)
            identity.write(self.index)  # if this fails, either file may be the named one: keep both
        self.close()
        self.identity = identity
        self._open()
        remove(old)
        return outcome

    def _write_file(self, path: Path, load: Load, writer: LedgerWriter) -> MergeOutcome:
        """Write the index, without dropped containers, and the load to a new file."""
        outcome, rule = MergeOutcome(), self._rule(load)
        batches = settled(merge([load.merged(), self._staged(load)]), rule, outcome)
        trees = self._fill(path, batches, outcome, writer)
        with closing(trees.env) as env:
            with env.begin(write=True) as txn:
                meta = META
                if self._trees is not None:
                    with self._trees.env.begin() as old:
                        trees.inherit(txn, self._trees, old, load.dropped)
                        inherited = ("next_number", "note", "own_digests")
                        meta = META | {name: self._trees.get(old, name) for name in inherited}
                trees.register(txn, load, meta_after(meta, load, outcome, writer.write()))
            env.sync(True)
        return outcome

    def _fill(
        self, path: Path, batches: Iterator[Cells], outcome: MergeOutcome, writer: LedgerWriter
    ) -> IndexTrees:
        """Create a data file from cells, which come in order; the caller closes it."""
        by_url = self.identity.settings.by_url
        urls = url_index.UrlIndexBuilder(self.index) if by_url else None
        env = environment(path, write=True, bulk=True)
        try:
            trees = IndexTrees.open(env, by_url=by_url, create=True)
            mapped = 0
            for batch in batches:
                stored = [(key, sealed(key, cell)) for key, cell in batch]
                with env.begin(db=trees.captures, write=True) as txn, txn.cursor() as cursor:
                    cursor.putmulti(stored, append=True)
                writer.add(outcome.lost)
                if urls is not None:
                    urls.add(batch)
                if outcome.captures - mapped > _MAPPED:
                    mapped = outcome.captures
                    env.close()
                    env = environment(path, write=True, bulk=True)
                    trees = IndexTrees.open(env, by_url=by_url)
            if urls is not None:
                urls.write(env, trees.urls)
        except BaseException:
            env.close()
            raise
        return trees

    def _staged(self, load: Load) -> Iterator[list[bytes]]:
        with self._view_or_none() as view:
            if view is not None:
                yield from staged_again(view.cells(), load.gone(view))

    def forget_dead_readers(self) -> None:
        try:
            if self._trees is not None:
                self._trees.env.reader_check()
        except lmdb.Error as error:
            raise IndexUnavailable(f"{self.path}: {error}") from error

    def check(self) -> list[str]:
        with self.view() as view:
            wrong = problems(view)
            with suppress(Damaged):  # `problems` has named it
                wrong += ledger.problems(self.index, view.ledger())
            return wrong

    def _copy_data(self, target: Path) -> list[str]:
        assert self._trees is not None
        path = target / self.path.name
        try:
            with open(path, "wb") as stream:
                # Page by page: LMDB 0.9's compacting copy crashes on the tree of URLs.
                self._trees.env.copyfd(stream.fileno())
                os.fsync(stream.fileno())
            with closing(environment(path, write=False)) as env:
                trees = IndexTrees.open(env, by_url=self.identity.settings.by_url)
                with LmdbView(trees, self.keys, Cache()) as view:
                    return view.ledger()
        except lmdb.Error as error:
            raise IndexUnavailable(f"copying to {target} failed: {error}") from error

    def close(self) -> None:
        if self._trees is not None:
            self._trees.env.close()
            self._trees = None
            self._places.clear()

    def clear_leftovers(self) -> None:
        url_index.clear(self.index)
        self._clear_ledger()
        for path in self.index.glob("data-*.mdb"):
            if path != self.path or not self.identity.generation:
                remove(path)


def put_one(
    txn: lmdb.Transaction, rule: MergeRule, key: bytes, group: list[bytes], outcome: MergeOutcome
) -> bytes | None:
    """Merge incoming entries into the cell of their key; return the new cell, None for none."""
    stored = cast(bytes | None, txn.get(key))
    cell = None if stored is None else cells.unsealed(key, stored)
    left, before, after = rule.replace(key, cell, group, outcome)
    if left is None:
        if cell:
            txn.delete(key)
    elif left != cell:
        txn.put(key, sealed(key, left))
    if bool(before) != bool(after) and not _has_others(txn, key):
        outcome.digests += 1 if after else -1
    return left


def _has_others(txn: lmdb.Transaction, key: bytes) -> bool:
    """Return whether the digest of `key` has captures under further keys."""
    return any(
        other != key and any(map(answers, cells.entries_of(cells.unsealed(other, stored))))
        for other, stored in scan(txn, None, cells.split_key(key)[0])
    )
