"""Reading an LMDB index: one read transaction over its trees."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import islice
from types import TracebackType
from typing import Any, NamedTuple, cast

import lmdb

from dedupindex.cache import Cache
from dedupindex.capture import Capture
from dedupindex.digest import Digest
from dedupindex.errors import Damaged, IndexUnavailable, StrategyUnavailable
from dedupindex.index.engine import IndexCounts, IndexedContainer, Load
from dedupindex.index.engines.cell_view import Decoding
from dedupindex.index.format import url_index
from dedupindex.index.format.cells import (
    ContainerRef,
    Keys,
    canonical_prefix,
    damaged,
    digest_of_key,
    digest_prefix,
    sealed,
    unsealed,
)
from dedupindex.index.format.fast_answer import PlainAnswers
from dedupindex.index.load.merge_rule import MergeOutcome
from dedupindex.urlkey import urlkey

# The trees of an LMDB index, and what is written to them beside captures.

_BEGIN = {"next_number": 1, "note": {}, "own_digests": True, "ledger": []}
_BEGIN |= {"captures": 0, "digests": 0, "checksum": 0, "transaction": 0}


class IndexTrees(NamedTuple):
    """The trees of a data file."""

    captures: Any
    containers: Any
    names: Any
    meta: Any
    urls: Any = None  # see `byurl`; only with the setting `by_url`

    @classmethod
    def open(cls, env: lmdb.Environment, *, create: bool, by_url: bool) -> IndexTrees:
        trees: list[Any] = [env.open_db(name.encode(), create=create) for name in cls._fields[:-1]]
        trees.append(url_index.open_tree(env, create=create) if by_url else None)
        return cls(*trees)

    def get(self, txn: lmdb.Transaction, name: str) -> Any:
        """A value of meta; raises `Damaged`, also if it is not there: `begin` has set each."""
        key = name.encode()
        value = txn.get(key, db=self.meta)
        if value is None:
            raise Damaged(f"the index has lost its {name!r}; restore it from a copy")
        return json.loads(unsealed(key, bytes(value)))

    def put(self, txn: lmdb.Transaction, name: str, value: Any) -> None:
        key = name.encode()
        txn.put(key, sealed(key, json.dumps(value).encode()), db=self.meta)

    def begin(self, txn: lmdb.Transaction) -> None:
        """Set what `register` goes on from, in a file that is made."""
        for name, value in _BEGIN.items():
            self.put(txn, name, value)

    def register(
        self, txn: lmdb.Transaction, load: Load, outcome: MergeOutcome, *, absolute: bool = False
    ) -> None:
        """Write what a load says beside its captures; counts are changes unless `absolute`."""
        next_number = self.get(txn, "next_number")
        for number, place in load.places:
            next_number = max(next_number, number + 1)
            self._place(txn, number.to_bytes(4, "big"), place)
        self.put(txn, "next_number", next_number)
        for container in load.containers:
            key, text = short(container.name), json.dumps(container._asdict()).encode()
            txn.put(key, sealed(key, text), db=self.containers)
        for name in ("captures", "digests", "checksum"):
            before = 0 if absolute else self.get(txn, name)
            self.put(txn, name, (before + getattr(outcome, name)) % (1 << 64))
        if load.note:
            self.put(txn, "note", load.note)
        if load.runs and not load.own_digests:
            self.put(txn, "own_digests", False)
        self.put(txn, "transaction", txn.id())

    def _place(self, txn: lmdb.Transaction, number: bytes, place: ContainerRef) -> None:
        for key, value in (
            (key_of(place), number),
            (b"#" + number, _bytes(f"{place.crawl}\0{place.container}")),
        ):
            txn.put(key, sealed(key, value), db=self.names)

    def inherit(
        self,
        txn: lmdb.Transaction,
        old: IndexTrees,
        old_txn: lmdb.Transaction,
        dropped: frozenset[str],
    ) -> None:
        """Copy everything but captures from the data file of the generation before."""
        gone = {short(name) for name in dropped}
        for source, target in ((old.containers, self.containers), (old.names, self.names)):
            pairs = cast(Iterable[tuple[bytes, bytes]], old_txn.cursor(db=source))
            for key, value in pairs:
                unsealed(key, value)  # what is damaged does not come along
                if source is not old.containers or key not in gone:
                    txn.put(key, value, db=target)
        for name in ("next_number", "note", "own_digests"):
            self.put(txn, name, old.get(old_txn, name))


def key_of(place: ContainerRef) -> bytes:
    """What the number of a place is found by."""
    if not place.crawl:
        return b"=" + short(place.container)
    return b"@" + sha256(_bytes(f"{place.crawl}\0{place.container}")).digest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def place_in(value: bytes) -> ContainerRef:
    """The place that a number stands for, of what `_place` keeps."""
    crawl, _, name = value.decode("utf-8", "surrogateescape").partition("\0")
    return ContainerRef(name, crawl)


def short(name: str) -> bytes:
    """A container's name as a key: LMDB keys end at 511 bytes, so long names by their hash too."""
    key = _bytes(name)
    if len(key) <= 480:
        return key
    return key[:400] + sha256(key).hexdigest().encode()


class LmdbView(Decoding):
    """A read transaction; see `protocol.View`. Enter it with ``with``."""

    __slots__ = ("_env", "_places", "keys", "trees", "txn")

    def __init__(
        self, env: lmdb.Environment, trees: IndexTrees, keys: Keys, places: Cache[int, ContainerRef]
    ) -> None:
        self._env, self.trees, self.keys, self._places = env, trees, keys, places

    def __enter__(self) -> LmdbView:
        try:
            self.txn = self._env.begin(db=self.trees.captures)
        except lmdb.Error as error:
            raise IndexUnavailable(f"the index cannot be read: {error}") from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.txn.abort()
        if isinstance(error, lmdb.Error):
            raise IndexUnavailable(f"the index cannot be read: {error}") from error

    def exact(self, digest: Digest, url: bytes) -> list[Capture]:
        key = self.keys.of(digest, url)
        try:
            cell = self._cell(key)
        except lmdb.Error as error:
            raise IndexUnavailable(f"the index cannot be read: {error}") from error
        if cell is None:
            return []
        return [capture for capture in self.decoded(key, cell) if capture.url == url]

    def canonical(self, digest: Digest, key: bytes, limit: int) -> list[Capture]:
        found = self._range(canonical_prefix(digest, key), limit)
        return [capture for capture in found if urlkey(capture.url) == key]

    def any(self, digest: Digest, limit: int) -> list[Capture]:
        return self._range(digest_prefix(digest), limit)

    def denies(self, digest: Digest, capture: Capture) -> bool:
        key = self.keys.of(digest, capture.url)
        try:
            return self.denied_in(key, self._cell(key), capture)
        except lmdb.Error as error:
            raise IndexUnavailable(f"the index cannot be read: {error}") from error

    def cells_at(self, sought: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See `Decoding`."""
        if self.trees.urls is None:
            raise StrategyUnavailable(url_index.MISSING)
        trees = self.trees
        try:
            for prefix in url_index.prefixes(self.txn, trees.captures, trees.urls, sought):
                yield from self._under(prefix)
        except lmdb.Error as error:
            raise IndexUnavailable(f"the index cannot be read: {error}") from error

    def plain(self) -> PlainAnswers | None:
        """What answers plain questions as bytes, for as long as the file is open."""
        if not self.keys.canonical:
            return None
        env, trees, keys, places = self._env, self.trees, self.keys, self._places

        def name_of(number: int) -> str:
            with LmdbView(env, trees, keys, places) as view:
                return view.place_of(number).container

        return PlainAnswers(env, trees.captures, keys, name_of)

    def cursor(self) -> lmdb.Cursor:
        """A cursor at the captures, for `PlainAnswers.answer`."""
        return self.txn.cursor()

    def _range(self, prefix: bytes, limit: int) -> list[Capture]:
        found: list[Capture] = []
        try:
            for key, cell in islice(self._under(prefix), max(limit, 0)):
                found += self.decoded(key, cell)
        except lmdb.Error as error:
            raise IndexUnavailable(f"the index cannot be read: {error}") from error
        return found

    def _cell(self, key: bytes) -> bytes | None:
        """What is under a key; raises `Damaged`."""
        stored = self.txn.get(key)
        return None if stored is None else unsealed(key, stored)

    def _under(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys that begin so, and their cells; raises `Damaged`."""
        with self.txn.cursor() as cursor:
            if not cursor.set_range(prefix):
                return
            for key, stored in cast(Iterator[tuple[bytes, bytes]], cursor):
                if not key.startswith(prefix):
                    return
                yield key, unsealed(key, stored)

    def place_of(self, number: int) -> ContainerRef:
        """What a container number stands for."""
        place = self._places.get(number)
        if place is None:
            key = b"#" + number.to_bytes(4, "big")
            value = self.txn.get(key, db=self.trees.names)
            if value is None:
                raise Damaged(f"container number {number} has no name; restore the index")
            place = self._places.keep(number, place_in(unsealed(key, value)))
        return place

    def number_of(self, place: ContainerRef) -> int:
        """The container number of a place, 0 if it has none."""
        key = key_of(place)
        number = self.txn.get(key, db=self.trees.names)
        return 0 if number is None else int.from_bytes(unsealed(key, number), "big")

    def places(self) -> Iterator[tuple[int, ContainerRef]]:
        """Every container number, and what it stands for."""
        with self.txn.cursor(db=self.trees.names) as cursor:
            if cursor.set_range(b"#"):
                for key, value in cast(Iterator[tuple[bytes, bytes]], cursor):
                    if key[:1] != b"#":
                        break
                    yield int.from_bytes(key[1:], "big"), place_in(unsealed(key, value))

    def cells(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """The keys that begin so, in order, and their cells."""
        if prefix:
            yield from self._under(prefix)
            return
        whole = self.keys.lengths()
        for key, stored in self.stored():
            # A flipped bit may lead to a page of another tree, whose values have right checksums.
            if not 0 < key[0] < len(whole) or len(key) != whole[key[0]]:
                raise damaged(key)
            yield key, unsealed(key, stored)

    def stored(self) -> Iterator[tuple[bytes, bytes]]:
        """All keys, in order, and what is stored under them, unchecked."""
        return iter(self.txn.cursor())

    def ledger(self) -> list[str]:
        """The files of the ledger."""
        return list(self.trees.get(self.txn, "ledger"))

    def captures(self) -> Iterator[tuple[Digest, Capture]]:
        for key, cell in self.cells():
            for capture in self.decoded(key, cell):
                yield digest_of_key(key), capture

    def containers(self) -> Iterator[IndexedContainer]:
        for key, value in self.txn.cursor(db=self.trees.containers):
            yield IndexedContainer(**json.loads(unsealed(key, value)))

    def container(self, name: str) -> IndexedContainer | None:
        key = short(name)
        value = self.txn.get(key, db=self.trees.containers)
        return None if value is None else IndexedContainer(**json.loads(unsealed(key, value)))

    def own_digests(self) -> bool:
        return bool(self.trees.get(self.txn, "own_digests"))

    def counts(self) -> IndexCounts:
        return IndexCounts(
            self.trees.get(self.txn, "captures"),
            self.trees.get(self.txn, "digests"),
            self.txn.stat(self.trees.containers)["entries"],
        )
