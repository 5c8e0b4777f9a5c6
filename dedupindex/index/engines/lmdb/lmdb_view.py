"""Read an LMDB index: a read transaction over its trees."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, NamedTuple

import lmdb

from dedupindex.cache import Cache
from dedupindex.errors import Damaged, IndexUnavailable, StrategyUnavailable
from dedupindex.index.engine import IndexCounts, IndexedContainer, Load
from dedupindex.index.engines.cell_view import CellTally
from dedupindex.index.engines.file_engine import FileView
from dedupindex.index.engines.lmdb.lmdb_file import scan
from dedupindex.index.format import cells, url_index
from dedupindex.index.format.cells import ContainerRef, Keys
from dedupindex.index.format.fast_answer import BROKEN, PlainAnswers


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

    def __init__(self, trees: IndexTrees, keys: Keys, places: Cache[int, ContainerRef]) -> None:
        super().__init__(keys, places)
        self.trees = trees

    def __enter__(self) -> LmdbView:
        try:
            self.txn = self.trees.env.begin(db=self.trees.captures)
        except lmdb.Error as error:
            raise _unavailable(error) from error
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.txn.abort()
        if isinstance(error, lmdb.Error):
            raise _unavailable(error) from error

    def cell(self, key: bytes) -> bytes | None:
        try:
            stored = self.txn.get(key)
        except lmdb.Error as error:
            raise _unavailable(error) from error
        return None if stored is None else cells.unsealed(key, stored)

    def cells(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        try:
            if prefix:
                for key, stored in scan(self.txn, self.trees.captures, prefix):
                    yield key, cells.unsealed(key, stored)
                return
            whole = self.keys.lengths()
            for key, stored in self.txn.cursor():
                # A flipped bit may lead to a page of another tree, whose checksums are right.
                if not 0 < key[0] < len(whole) or len(key) != whole[key[0]]:
                    raise cells.damaged(key)
                yield key, cells.unsealed(key, stored)
        except lmdb.Error as error:
            raise _unavailable(error) from error

    def cells_at(self, tail: bytes) -> Iterator[tuple[bytes, bytes]]:
        if self.trees.urls is None:
            raise StrategyUnavailable(url_index.MISSING)
        trees = self.trees
        try:
            for prefix in url_index.prefixes(self.txn, trees.captures, trees.urls, tail):
                yield from self.cells(prefix)
        except lmdb.Error as error:
            raise _unavailable(error) from error

    def plain(self) -> PlainAnswers | None:
        """Return the fast path; it may be used as long as the file is open."""
        if not self.keys.canonical:
            return None
        trees, keys, places = self.trees, self.keys, self._places

        def name_of(number: int) -> str:
            with LmdbView(trees, keys, places) as view:
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


def _unavailable(error: lmdb.Error) -> IndexUnavailable:
    return IndexUnavailable(f"the index cannot be read: {error}")


# --- check ---------------------------------------------------------------------------------------


def problems(view: LmdbView) -> list[str]:
    """Read the whole index back; return what is wrong with it, a sentence each."""
    wrong: list[str] = []
    try:
        _check_captures(view, wrong)
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


def _check_captures(view: LmdbView, wrong: list[str]) -> None:
    last, tally, urls = b"", CellTally(), view.trees.urls
    for key, cell in _sound(view, view.trees.captures, wrong):
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
