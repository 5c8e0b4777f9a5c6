"""The trees of an LMDB index, and what is written to them beside captures.

captures    key -> cell
containers  name of a container -> its registration, JSON
names       "=" and a name, or "@" and a hash of crawl and name, -> container number;
            "#" and a number -> crawl, NUL, name
meta        counts, checksum, note, the next number, files of the ledger, the last transaction: JSON
urls        see `byurl`

All values but those of `urls`, which only find, are stored with a checksum (`cells.sealed`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, NamedTuple, cast

import lmdb

from dedupindex.errors import Damaged
from dedupindex.index.engine import Load
from dedupindex.index.format import url_index
from dedupindex.index.format.cells import ContainerRef, sealed, unsealed
from dedupindex.index.load.merge_rule import MergeOutcome

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
