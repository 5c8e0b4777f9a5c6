"""The embedded engine: one memory-mapped B+ tree file, many reading processes, one writer.

``INDEX/data-<generation>.mdb`` holds the trees (`IndexTrees`). A small load is one transaction in
that file. A large one is merged with what is there into a new file with full pages; then
``index.json`` names the new generation. Readers keep the old file until they look again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, cast

import lmdb

from dedupindex.cache import Cache
from dedupindex.counts import OnProgress, silent
from dedupindex.errors import RESTORE_OR_BUILD, Damaged, IndexUnavailable, StrategyUnavailable
from dedupindex.index.engine import IndexCounts, IndexedContainer, Load
from dedupindex.index.engines.engine_base import (
    META,
    CellTally,
    FileEngine,
    FileView,
    all_cells,
    meta_after,
)
from dedupindex.index.engines.lmdb import lmdb_file
from dedupindex.index.engines.lmdb.lmdb_file import environment, scan
from dedupindex.index.format import cells, ledger, url_index
from dedupindex.index.format.cells import ContainerRef, Keys, answers, sealed
from dedupindex.index.format.fast_answer import BROKEN, PlainAnswers
from dedupindex.index.format.ledger import LedgerWriter
from dedupindex.index.identity import read_identity, unfinished
from dedupindex.index.load import merge_rule
from dedupindex.index.load.merge_rule import Cells, MergeOutcome, MergeRule
from dedupindex.index.load.runs import merge
from dedupindex.runtime.files import sync_directory
from dedupindex.runtime.progress import watched

_MAPPED = 3_000_000  # captures after which a file is mapped anew: mapped pages count as memory
REBUILD = 4  # a load of more than a quarter of the index is merged into a new file


class IndexTrees(NamedTuple):
    """The trees of a data file."""

    env: lmdb.Environment
    captures: Any  # key -> cell
    containers: Any  # name -> registration, JSON
    names: Any  # container number -> crawl and name, and back
    meta: Any  # name -> JSON
    urls: Any = None  # see `url_index`; only with the setting `by_url`

    @classmethod
    def open(cls, env: lmdb.Environment, *, by_url: bool, create: bool = False) -> IndexTrees:
        """Open the trees of `env`, which is closed if that fails."""
        try:
            trees: list[Any] = [
                env.open_db(name.encode(), create=create) for name in cls._fields[1:-1]
            ]
            trees.append(url_index.open_tree(env, create=create) if by_url else None)
        except BaseException:
            env.close()
            raise
        return cls(env, *trees)

    def get(self, txn: lmdb.Transaction, name: str) -> Any:
        """Return a value of `meta`; raises `Damaged`, also if it is missing."""
        key = name.encode()
        value = txn.get(key, db=self.meta)
        if value is None and name == "purges":  # of an index that was made before there were any
            return []
        if value is None:
            raise Damaged(f"the index has lost its {name!r}; restore it from a copy")
        return json.loads(cells.unsealed(key, bytes(value)))

    def put(self, txn: lmdb.Transaction, name: str, value: Any) -> None:
        key = name.encode()
        txn.put(key, cells.sealed(key, json.dumps(value).encode()), db=self.meta)

    def register(self, txn: lmdb.Transaction, load: Load, meta: dict[str, Any]) -> None:
        """Write all of a load but captures; `meta` is what the index then records of itself."""
        for number, place in load.places:
            text = _bytes(f"{place.crawl}\0{place.container}")
            for key, value in ((key_of(place), number.to_bytes(4)), (number_key(number), text)):
                txn.put(key, cells.sealed(key, value), db=self.names)
        for container in load.containers:
            key, value = short(container.name), json.dumps(container._asdict()).encode()
            txn.put(key, cells.sealed(key, value), db=self.containers)
        for name, recorded in {**meta, "transaction": txn.id()}.items():
            self.put(txn, name, recorded)

    def inherit(
        self,
        txn: lmdb.Transaction,
        old: IndexTrees,
        old_txn: lmdb.Transaction,
        dropped: frozenset[str],
    ) -> None:
        """Copy containers, but for the dropped ones, and their names from the last generation."""
        gone = {short(name) for name in dropped}
        for source, target in ((old.containers, self.containers), (old.names, self.names)):
            for key, value in scan(old_txn, source):
                cells.unsealed(key, value)  # damage is not copied
                if source is not old.containers or key not in gone:
                    txn.put(key, value, db=target)


def number_key(number: int) -> bytes:
    """Return the key in `names` of what a container number stands for."""
    return b"#" + number.to_bytes(4)


def key_of(place: ContainerRef) -> bytes:
    """Return the key in `names` of a container's number."""
    if not place.crawl:
        return b"=" + short(place.container)
    return b"@" + sha256(_bytes(f"{place.crawl}\0{place.container}")).digest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _place_in(value: bytes) -> ContainerRef:
    crawl, _, name = value.decode("utf-8", "surrogateescape").partition("\0")
    return ContainerRef(name, crawl)


def short(name: str) -> bytes:
    """Return a container's name as a key; a long one with a hash: LMDB's limit is 511 bytes."""
    key = _bytes(name)
    if len(key) <= 480:
        return key
    return key[:400] + sha256(key).hexdigest().encode()


class LmdbView(FileView):
    """A read transaction; a context manager."""

    __slots__ = ("trees", "txn")

    def __init__(
        self, index: Path, trees: IndexTrees, keys: Keys, places: Cache[int, ContainerRef]
    ) -> None:
        super().__init__(index, keys, places)
        self.trees = trees

    def __enter__(self) -> LmdbView:
        try:
            self.txn = self.trees.env.begin(db=self.trees.captures)
        except lmdb.Error as error:
            raise _unread(error) from error
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.txn.abort()
        if isinstance(error, lmdb.Error):
            raise _unread(error) from error

    def cell(self, key: bytes) -> bytes | None:
        try:
            stored = self.txn.get(key)
        except lmdb.Error as error:
            raise _unread(error) from error
        return None if stored is None else cells.unsealed(key, stored)

    def cells(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        if not prefix:
            yield from self.cells_from(b"")
            return
        try:
            for key, stored in scan(self.txn, self.trees.captures, prefix):
                yield key, cells.unsealed(key, stored)
        except lmdb.Error as error:
            raise _unread(error) from error

    def cells_from(self, begin: bytes) -> Iterator[tuple[bytes, bytes]]:
        try:
            whole = self.keys.lengths()
            cursor = self.txn.cursor()
            for key, stored in cursor if cursor.set_range(begin) else ():
                # A flipped bit may lead to a page of another tree, whose checksums are right.
                if not 0 < key[0] < len(whole) or len(key) != whole[key[0]]:
                    raise cells.damaged(key)
                yield key, cells.unsealed(key, stored)
        except lmdb.Error as error:
            raise _unread(error) from error

    def first_cells(self, prefix: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        try:
            cursor = self.txn.cursor()
            more = cursor.set_range(prefix)
            while more and len(found) < limit:
                key, stored = cursor.item()
                if not key.startswith(prefix):
                    break
                found.append((key, cells.unsealed(key, stored)))
                more = cursor.next()
        except lmdb.Error as error:
            raise _unread(error) from error
        return found

    def cells_at(self, tail: bytes) -> Iterator[tuple[bytes, bytes]]:
        if self.trees.urls is None:
            raise StrategyUnavailable(url_index.MISSING)
        trees = self.trees
        try:
            for prefix in url_index.prefixes(self.txn, trees.captures, trees.urls, tail):
                yield from self.cells(prefix)
        except lmdb.Error as error:
            raise _unread(error) from error

    def plain(self) -> PlainAnswers | None:
        """Return the fast path; it may be used as long as the file is open."""
        if not self.keys.canonical:
            return None
        index, trees, keys, places = self.index, self.trees, self.keys, self._places

        def name_of(number: int) -> str:
            with LmdbView(index, trees, keys, places) as view:
                return view.place_of(number).container

        return PlainAnswers(trees.env, trees.captures, keys, name_of)

    def cursor(self) -> lmdb.Cursor:
        """Return a cursor of the captures, for `PlainAnswers.answer`."""
        return self.txn.cursor()

    def _read_place(self, number: int) -> ContainerRef:
        key = number_key(number)
        value = self.txn.get(key, db=self.trees.names)
        if value is None:
            raise Damaged(f"container number {number} has no name; restore the index")
        return _place_in(cells.unsealed(key, value))

    def number_of(self, place: ContainerRef) -> int:
        key = key_of(place)
        number = self.txn.get(key, db=self.trees.names)
        return 0 if number is None else int.from_bytes(cells.unsealed(key, number), "big")

    def places(self) -> Iterator[tuple[int, ContainerRef]]:
        for key, value in scan(self.txn, self.trees.names, b"#"):
            yield int.from_bytes(key[1:], "big"), _place_in(cells.unsealed(key, value))

    def meta(self, name: str) -> Any:
        return self.trees.get(self.txn, name)

    def containers(self) -> Iterator[IndexedContainer]:
        for key, value in self.txn.cursor(db=self.trees.containers):
            yield IndexedContainer(**json.loads(cells.unsealed(key, value)))

    def container(self, name: str) -> IndexedContainer | None:
        key = short(name)
        value = self.txn.get(key, db=self.trees.containers)
        return None if value is None else IndexedContainer(**json.loads(cells.unsealed(key, value)))

    def counts(self) -> IndexCounts:
        return IndexCounts(
            self.meta("captures"),
            self.meta("digests"),
            self.txn.stat(self.trees.containers)["entries"],
        )


def _unread(error: lmdb.Error) -> Damaged | IndexUnavailable:
    if isinstance(error, lmdb_file.DAMAGE):
        return Damaged(f"the index is damaged ({error}): {RESTORE_OR_BUILD}")
    return IndexUnavailable(f"the index cannot be read: {error}")


# --- check ---------------------------------------------------------------------------------------


def problems(view: LmdbView, on_progress: OnProgress) -> list[str]:
    """Read the whole index back; return what is wrong with it, a sentence each."""
    wrong: list[str] = []
    try:
        _check_captures(view, wrong, on_progress)
        for tree in (view.trees.containers, view.trees.meta):
            for _ in _sound(view, tree, wrong):
                pass
        _check_names(view, wrong)
    except (lmdb.Error, Damaged, *BROKEN, TypeError) as error:
        wrong.append(f"the index cannot be read to its end: {error!r}")
    return wrong


def _sound(view: LmdbView, tree: Any, wrong: list[str]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a tree whose checksums are right."""
    for key, stored in view.txn.cursor(db=tree):
        if view.txn.get(key, db=tree) != stored:  # damage of inner pages, unseen by a scan
            wrong.append(f"what is stored under {key.hex()} is not found by its key")
        try:
            yield key, cells.unsealed(key, stored)
        except Damaged as error:
            wrong.append(str(error))


def _check_names(view: LmdbView, wrong: list[str]) -> None:
    for key, value in _sound(view, view.trees.names, wrong):
        number = int.from_bytes(key[1:] if key[:1] == b"#" else value)
        try:
            place = view.place_of(number)
            if key not in (key_of(place), number_key(number)):
                wrong.append(f"container number {number} has another name")
            elif view.number_of(place) != number:
                wrong.append(f"container number {number} is not found by its name")
        except Damaged as error:
            wrong.append(str(error))


def _check_captures(view: LmdbView, wrong: list[str], on_progress: OnProgress) -> None:
    last, tally, urls = b"", CellTally(), view.trees.urls
    total = view.txn.stat(view.trees.captures)["entries"]
    sound = _sound(view, view.trees.captures, wrong)
    for key, cell in watched(sound, "checking", total, on_progress):
        if key <= last:
            wrong.append(f"keys are out of order at {key.hex()}")
        last = key
        if defect := view.defect(key, cell):
            wrong.append(defect)
            continue
        tally.add(key, cell)
        if urls is not None and url_index.listed(cell) and not url_index.holds(view.txn, urls, key):
            wrong.append(f"the capture under {key.hex()} is not listed by its URL")
    counts = view.counts()
    wrong += tally.differences(counts.containers, counts, view.meta("checksum"))


# --- the engine -----------------------------------------------------------------------------------


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
                lmdb_file.check_pages(path)
                env = environment(path, write=self._write)
                self._trees = IndexTrees.open(env, by_url=self.identity.settings.by_url)
                with env.begin() as txn:
                    if self._trees.get(txn, "transaction") != txn.id():
                        raise Damaged(f"{path} has an old state: {RESTORE_OR_BUILD}")
                return
            except (lmdb.Error, OSError) as error:
                self.close()
                self.identity = read_identity(self.index)
                if self.path == path or attempt == 2:
                    if isinstance(error, lmdb.NotFoundError):  # a tree that every data file has
                        raise Damaged(f"{path} is damaged: {RESTORE_OR_BUILD}") from error
                    raise lmdb_file.unopened(path, error) from error
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
        return LmdbView(self.index, self._trees, self.keys, self._places)

    def _load(self, load: Load) -> MergeOutcome:
        try:
            incoming = sum(path.stat().st_size for path in load.runs)
            if not self._trees or load.dropped or incoming * REBUILD > self.path.stat().st_size:
                return self._rebuild(load)
            return self._put(load, self._trees)
        except (lmdb.Error, OSError) as error:
            raise IndexUnavailable(f"{self.path}: {error}; nothing was changed") from error

    def compact(self, on_progress: OnProgress = silent) -> None:
        self._rebuild(Load(on_progress=on_progress))

    def _rule(self, load: Load) -> MergeRule:
        def place_of(number: int) -> ContainerRef:
            with self.view() as view:
                return view.place_of(number)

        with self._view_or_none() as view:
            gone = load.gone(view)
        return load.rule(self.identity.settings, place_of, gone)

    def _put(self, load: Load, trees: IndexTrees) -> MergeOutcome:
        """Load in one transaction."""
        rule, outcome = self._rule(load), MergeOutcome()
        with (
            self._ledger_writer(load) as writer,
            trees.env.begin(db=trees.captures, write=True) as txn,
        ):
            for key, group in merge_rule.grouped(load.merged(), rule.keys.lengths()):
                cell = put_one(txn, rule, key, group, outcome)
                if trees.urls is not None and cell and url_index.listed(cell):
                    url_index.put(txn, trees.urls, key)
                writer.add(outcome.lost)
            meta = {name: trees.get(txn, name) for name in META}
            trees.register(txn, load, meta_after(meta, load, outcome, writer.write()))
        length = lmdb_file.length_of(trees.env)
        if self.path.stat().st_size < length:  # the last pages were allocated, but never written
            os.truncate(self.path, length)
        return outcome

    def _rebuild(self, load: Load) -> MergeOutcome:
        """Merge the index and a load into a file of the next generation."""
        identity, old = self.identity.next_generation(), self.path
        path = self.index / f"data-{identity.generation}.mdb"
        lmdb_file.remove(path)
        with self._ledger_writer(load) as writer:
            try:
                outcome = self._write_file(path, load, writer)
            except BaseException:
                lmdb_file.remove(path)
                raise
            finally:
                url_index.clear(self.index)
            sync_directory(self.index)
            identity.write(self.index)  # if this fails, either file may be the named one: keep both
        self.close()
        self.identity = identity
        self._open()
        lmdb_file.remove(old)
        return outcome

    def _write_file(self, path: Path, load: Load, writer: LedgerWriter) -> MergeOutcome:
        """Write the index, without dropped containers, and the load to a new file."""
        outcome, rule = MergeOutcome(), self._rule(load)
        batches = merge_rule.settled(merge([load.merged(), self._staged(load)]), rule, outcome)
        trees = self._fill(path, batches, outcome, writer)
        with closing(trees.env) as env:
            with env.begin(write=True) as txn:
                meta = META
                if self._trees is not None:
                    with self._trees.env.begin() as old:
                        trees.inherit(txn, self._trees, old, load.dropped)
                        inherited = ("next_number", "note", "own_digests", "purges")
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
                # A load reports its own entries, which come in the same order.
                on_progress = silent if load.runs else load.on_progress
                held = all_cells(view, "rewriting", on_progress)
                yield from merge_rule.staged_again(held)

    def forget_dead_readers(self) -> None:
        try:
            if self._trees is not None:
                self._trees.env.reader_check()
        except lmdb.Error as error:
            raise lmdb_file.failed(self.path, error) from error

    def check(self, on_progress: OnProgress = silent) -> list[str]:
        with self.view() as view:
            wrong = problems(view, on_progress)
            with suppress(Damaged):  # `problems` has named it
                wrong += ledger.problems(self.index, view.ledger_files())
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
                with LmdbView(target, trees, self.keys, Cache()) as view:
                    return view.ledger_files()
        except lmdb.Error as error:
            raise IndexUnavailable(f"copying to {target} failed: {error}") from error

    def close(self) -> None:
        if self._trees is not None:
            self._trees.env.close()
            self._trees = None
            self._places.clear()

    def clear_leftovers(self, on_progress: OnProgress = silent) -> None:
        url_index.clear(self.index)
        self._clear_ledger()
        for path in self.index.glob("data-*.mdb"):
            if path != self.path or not self.identity.generation:
                lmdb_file.remove(path)


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
