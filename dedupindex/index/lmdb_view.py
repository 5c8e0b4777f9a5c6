"""Reading an LMDB index: its trees, and one read transaction over them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from itertools import islice
from types import TracebackType
from typing import Any, NamedTuple, cast

import lmdb

from dedupindex.capture import Capture
from dedupindex.digest import Digest
from dedupindex.errors import Damaged, IndexUnavailable, StrategyUnavailable
from dedupindex.index import byurl
from dedupindex.index.answer_bytes import BROKEN, PlainAnswers
from dedupindex.index.cells import (
    Keys,
    answers,
    canonical_prefix,
    decode,
    digest_of_key,
    digest_prefix,
    entries_of,
    urlkey_hash,
)
from dedupindex.index.marks import denied
from dedupindex.index.protocol import Container, Counts, Load
from dedupindex.index.settle import Outcome
from dedupindex.urlkey import urlkey

_NAMES_KEPT = 100_000


class Trees(NamedTuple):
    """The trees of a data file."""

    captures: Any
    containers: Any
    names: Any
    meta: Any
    urls: Any = None  # see `byurl`; only with the setting `by_url`

    @classmethod
    def open(cls, env: lmdb.Environment, *, create: bool, by_url: bool) -> Trees:
        trees: list[Any] = [env.open_db(name.encode(), create=create) for name in cls._fields[:-1]]
        trees.append(byurl.open_tree(env, create=create) if by_url else None)
        return cls(*trees)

    def get(self, txn: lmdb.Transaction, name: str) -> Any:
        """A value of meta, None if it is not set."""
        value = txn.get(name.encode(), db=self.meta)
        return None if value is None else json.loads(bytes(value))

    def put(self, txn: lmdb.Transaction, name: str, value: Any) -> None:
        txn.put(name.encode(), json.dumps(value).encode(), db=self.meta)

    def register(
        self, txn: lmdb.Transaction, load: Load, outcome: Outcome, *, absolute: bool = False
    ) -> None:
        """Write what a load says beside its captures; counts are changes unless `absolute`."""
        next_number = self.get(txn, "next_number") or 1
        for number, name in load.names:
            next_number = max(next_number, number + 1)
            self._name(txn, number.to_bytes(4, "big"), name)
        self.put(txn, "next_number", next_number)
        for container in load.containers:
            text = json.dumps(container._asdict()).encode()
            txn.put(short(container.name), text, db=self.containers)
        for name in ("captures", "digests", "checksum"):
            before = 0 if absolute else self.get(txn, name) or 0
            self.put(txn, name, (before + getattr(outcome, name)) % (1 << 64))
        if load.note:
            self.put(txn, "note", load.note)

    def _name(self, txn: lmdb.Transaction, number: bytes, name: str) -> None:
        txn.put(b"=" + short(name), number, db=self.names)
        txn.put(b"#" + number, name.encode("utf-8", "surrogateescape"), db=self.names)

    def inherit(
        self, txn: lmdb.Transaction, old: Trees, old_txn: lmdb.Transaction, dropped: frozenset[str]
    ) -> None:
        """Copy everything but captures from the data file of the generation before."""
        gone = {short(name) for name in dropped}
        for source, target in ((old.containers, self.containers), (old.names, self.names)):
            for key, value in old_txn.cursor(db=source):
                if source is not old.containers or key not in gone:
                    txn.put(key, value, db=target)
        for name in ("next_number", "note"):
            self.put(txn, name, old.get(old_txn, name))


def short(name: str) -> bytes:
    """A container's name as a key: LMDB keys end at 511 bytes, so long names by their hash too."""
    key = name.encode("utf-8", "surrogateescape")
    if len(key) <= 480:
        return key
    return key[:400] + sha256(key).hexdigest().encode()


class LmdbView:
    """A read transaction; see `protocol.View`. Enter it with ``with``."""

    __slots__ = ("_env", "_names", "keys", "trees", "txn")

    def __init__(
        self, env: lmdb.Environment, trees: Trees, keys: Keys, names: dict[int, str]
    ) -> None:
        self._env, self.trees, self.keys, self._names = env, trees, keys, names

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
            cell = self.txn.get(key)
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
            cell = self.txn.get(key)
            return cell is not None and denied(entries_of(cell), capture)
        except lmdb.Error as error:
            raise IndexUnavailable(f"the index cannot be read: {error}") from error
        except BROKEN as error:
            raise Damaged(f"the entry under {key.hex()} is damaged: {error!r}") from error

    def at_url(self, url: bytes) -> Iterator[Capture]:
        found = self._listed(self.keys.tail(url)[: byurl.URL])
        return (capture for capture in found if capture.url == url)

    def at_urlkey(self, key: bytes) -> Iterator[Capture]:
        if not self.keys.canonical:
            raise StrategyUnavailable(byurl.MISSING)
        found = self._listed(urlkey_hash(key))
        return (capture for capture in found if urlkey(capture.url) == key)

    def _listed(self, sought: bytes) -> Iterator[Capture]:
        """Captures whose keys, after their own digest, begin so."""
        if self.trees.urls is None:
            raise StrategyUnavailable(byurl.MISSING)
        trees = self.trees
        try:
            for prefix in byurl.prefixes(self.txn, trees.captures, trees.urls, sought):
                for key, cell in self._under(prefix):
                    for capture in self.decoded(key, cell):
                        if capture.digest == digest_of_key(key):
                            yield capture
        except lmdb.Error as error:
            raise IndexUnavailable(f"the index cannot be read: {error}") from error

    def plain(self) -> PlainAnswers | None:
        """What answers plain questions as bytes, for as long as the file is open."""
        if not self.keys.canonical:
            return None
        env, trees, keys, names = self._env, self.trees, self.keys, self._names

        def name_of(number: int) -> str:
            with LmdbView(env, trees, keys, names) as view:
                return view.name_of(number)

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

    def _under(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys that begin so, and their cells."""
        with self.txn.cursor() as cursor:
            if not cursor.set_range(prefix):
                return
            for key, cell in cast(Iterator[tuple[bytes, bytes]], cursor):
                if not key.startswith(prefix):
                    return
                yield key, cell

    def decoded(self, key: bytes, cell: bytes) -> list[Capture]:
        """The originals of a cell; raises `Damaged`."""
        try:
            return [
                decode(key, entry, self.name_of) for entry in entries_of(cell) if answers(entry)
            ]
        except BROKEN as error:
            raise Damaged(f"the entry under {key.hex()} is damaged: {error!r}") from error

    def name_of(self, number: int) -> str:
        """The name that a container number stands for."""
        name = self._names.get(number)
        if name is None:
            value = self.txn.get(b"#" + number.to_bytes(4, "big"), db=self.trees.names)
            if value is None:
                raise KeyError(f"container number {number} has no name")
            name = value.decode("utf-8", "surrogateescape")
            if len(self._names) >= _NAMES_KEPT:
                self._names.clear()
            self._names[number] = name
        return name

    def number_of(self, name: str) -> int:
        """The number of a container's name, 0 if it has none."""
        key = b"=" + short(name)
        return int.from_bytes(self.txn.get(key, db=self.trees.names) or b"", "big")

    def cells(self) -> Iterator[tuple[bytes, bytes]]:
        """Every key and cell, in order."""
        yield from self.txn.cursor()

    def captures(self) -> Iterator[tuple[Digest, Capture]]:
        for key, cell in self.txn.cursor():
            for capture in self.decoded(key, cell):
                yield digest_of_key(key), capture

    def containers(self) -> Iterator[Container]:
        for _, value in self.txn.cursor(db=self.trees.containers):
            yield Container(**json.loads(value))

    def container(self, name: str) -> Container | None:
        value = self.txn.get(short(name), db=self.trees.containers)
        return None if value is None else Container(**json.loads(value))

    def counts(self) -> Counts:
        return Counts(
            self.trees.get(self.txn, "captures") or 0,
            self.trees.get(self.txn, "digests") or 0,
            self.txn.stat(self.trees.containers)["entries"],
        )
