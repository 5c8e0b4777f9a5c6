"""Read an index on a cluster: all of a digest at once, so that a lookup waits only once.

There is no snapshot of a cluster. Each answer is true by itself; a load becomes visible while it
runs.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from dedupindex.cache import Cache
from dedupindex.digest import Digest
from dedupindex.errors import Damaged, IndexUnavailable, StrategyUnavailable
from dedupindex.index.engine import IndexCounts, IndexedContainer
from dedupindex.index.engines.cassandra import cassandra_ledger
from dedupindex.index.engines.cassandra import cassandra_schema as schema
from dedupindex.index.engines.cassandra.cql import Row, Session, Statement
from dedupindex.index.engines.cassandra.metadata import About, bytes_of, key_of, number_in, place_in
from dedupindex.index.engines.engine_base import CellView
from dedupindex.index.format import cells, url_index
from dedupindex.index.format.cells import ContainerRef, Keys, split_key
from dedupindex.index.load.runs import in_order
from dedupindex.index.shared_filter import SharedFilter

AT_ONCE = 100  # rows of a digest that are read at first; nearly all digests have fewer
LOOKED_AT = 5_000  # keys that a query by URL reads: about a second
DIGESTS_AT_ONCE = 500  # of these keys that are read side by side
_KEPT = 4096  # digests that a view caches
_HELD = 16 << 20  # bytes of rows that a view caches
_STRETCH = 100  # prefetched digests that are received at once
_BEYOND = b"\xff" * 16  # greater than the rest of any key
_BETWEEN = Statement(
    "SELECT rest, cell FROM KS.capture WHERE dk = ? AND live = 0 AND rest >= ? AND rest < ? LIMIT ?"
)
_ALL_CELLS = Statement("SELECT dk, live, rest, cell FROM KS.capture")
_IN_RANGE = Statement(
    "SELECT dk, live, rest, cell FROM KS.capture WHERE token(dk) > ? AND token(dk) <= ? LIMIT ?"
)
_TOKENS = 1 << 63
_URLS = Statement("SELECT rest, dk FROM KS.url WHERE part = ? AND rest >= ? AND rest <= ? LIMIT ?")
_URL = Statement("SELECT dk FROM KS.url WHERE part = ? AND rest = ? AND dk = ?")
_CONTAINERS = Statement("SELECT name, about FROM KS.container")

Cell = tuple[bytes, bytes]


class Partition(NamedTuple):
    """The first rows of a digest."""

    start: bytes  # the digest's part of keys
    cells: list[Cell]  # of bin/index: the rest of the key, and the cell as it is stored, unchecked
    whole: bool  # whether these are all of bin/index
    reported: list[Row] | None  # of crawls: rest, crawl, cell; None: there may be more

    @classmethod
    def of(cls, start: bytes, rows: list[Row]) -> Partition:
        """Return the partition of its first `AT_ONCE` + 1 rows."""
        own = [(rest, cell) for live, rest, _, cell in rows if not live]
        complete = len(rows) <= AT_ONCE
        reported = [row[1:] for row in rows[len(own) :]]
        return cls(start, own, complete or bool(reported), reported if complete else None)


class Partitions:
    """A cache of partitions, by the digest's part of keys; for any number of threads."""

    def __init__(self, session: Session, received: Callable[[list[Partition]], None]) -> None:
        """`received` is called with prefetched partitions before they can be read."""
        self._session, self._received = session, received
        self.shared: SharedFilter | None = None
        self._known: dict[bytes, Partition] = {}
        self._held = 0  # bytes of their rows
        self._coming: Iterator[tuple[bytes, list[Row]]] = iter(())
        self._awaited: set[bytes] = set()
        self._outage = ""  # why awaited partitions will not come
        self._receiving = threading.Lock()  # two threads would mix up their rows

    def clear(self) -> None:
        self._known.clear()
        self._held = 0
        self._awaited.clear()
        self._coming = iter(())

    def prefetch(self, keys: Iterable[bytes]) -> None:
        """Request many partitions, and receive the first of them."""
        wanted = [key for key in dict.fromkeys(keys) if key not in self._known][:_KEPT]
        if self.shared is not None:
            if len(self._known) > 2 * _KEPT:
                self._known.clear()
            lacking = set(filter(self.shared.lacks, wanted))
            self._known |= {key: Partition.of(key, []) for key in lacking}
            wanted = [key for key in wanted if key not in lacking]
        self._coming = schema.read_partitions(self._session, wanted, AT_ONCE + 1)
        self._awaited, self._outage = set(wanted), ""
        if wanted:
            self._receive()

    def of(self, key: bytes) -> Partition:
        """Return a partition; raises `IndexUnavailable`."""
        if key in self._awaited:
            with self._receiving:
                while key in self._awaited:
                    self._receive()
        found = self._known.get(key)
        if found is None:
            rows: list[Row] = []
            if self.shared is None or not self.shared.lacks(key):
                rows = self._session.execute(schema.PARTITION, key, AT_ONCE + 1)
            found = self._keep(key, rows)
        return found

    def _receive(self) -> None:
        """Receive the next prefetched partitions; an outage is one for all that are awaited."""
        if self._outage:
            raise IndexUnavailable(self._outage)
        try:
            rows = dict(islice(self._coming, _STRETCH))
            kept = [self._keep(key, found) for key, found in rows.items()]
            self._awaited -= rows.keys()
            self._received(kept)
        except IndexUnavailable as error:
            self._outage = str(error)
            raise

    def _keep(self, key: bytes, rows: list[Row]) -> Partition:
        self._held += sum(len(value) for row in rows for value in row if isinstance(value, bytes))
        if len(self._known) >= 2 * _KEPT or self._held > _HELD:
            self._known.clear()
            self._held = 0
        found = self._known[key] = Partition.of(key, rows)
        return found


class CassandraView(CellView):
    """What the cluster answers; a context manager."""

    def __init__(
        self,
        session: Session,
        keys: Keys,
        places: Cache[int, ContainerRef],
        scratch: Path,
        *,
        by_url: bool = False,
    ) -> None:
        super().__init__(keys, places)
        self._session, self._scratch, self.by_url = session, scratch, by_url
        self._partitions = Partitions(session, self._read_names)
        self.filter_identity = 0  # of filters of this index
        self._last: tuple[bytes, Any] = b"", None  # digest's part of keys, and its token

    def __enter__(self) -> CassandraView:
        return self

    def __exit__(self, *_: object) -> None:
        self._partitions.clear()

    # --- lookups ---------------------------------------------------------------------------------

    def use_filter(self, shared: SharedFilter) -> bool:
        own = shared.of(self.filter_identity)
        self._partitions.shared = shared if own else None
        return own

    def prefetch(self, digests: Iterable[Digest]) -> None:
        """Read digests side by side; returns with the first, the others follow as they are used."""
        self._partitions.prefetch(map(cells.digest_prefix, digests))

    def reported(self, start: bytes) -> list[Row] | None:
        return self._partitions.of(start).reported

    def _read_names(self, found: list[Partition]) -> None:
        """Read the names of all their containers that are not cached."""
        numbers = {
            cells.container_of(entry)
            for partition in found
            for rest, stored in partition.cells
            if cells.is_sound(partition.start + rest, stored)  # a lookup reports the others
            for entry in cells.entries_of(cells.unsealed(partition.start + rest, stored))
            if cells.answers(entry)
        }
        unknown = sorted(numbers - self._places.keys() - {0})
        if not unknown:
            return
        calls = ((schema.PLACE, (number,)) for number in unknown)
        for number, rows in zip(unknown, self._session.execute_many(calls), strict=True):
            if rows:
                with suppress(Damaged):  # which a lookup reports
                    self._places.keep(number, place_in(number, rows[0]))

    def cell(self, key: bytes) -> bytes | None:
        start, rest = split_key(key)
        known = self._partitions.of(start)
        for other, stored in known.cells:
            if other == rest:
                return cells.unsealed(key, stored)
        if known.whole:
            return None
        rows = self._session.execute(schema.CELL, start, rest)
        return cells.unsealed(key, bytes(rows[0][0])) if rows else None

    def first_cells(self, prefix: bytes, limit: int) -> list[Cell]:
        start, begin = split_key(prefix)
        known = self._partitions.of(start)
        rows = [pair for pair in known.cells if pair[0].startswith(begin)]
        if not known.whole and len(rows) < limit:
            end = begin + _BEYOND
            rows = self._session.execute(_BETWEEN, start, begin, end, limit)
        return list(_unsealed(start, rows[:limit]))

    def cells_at(self, tail: bytes) -> Iterator[Cell]:
        for key in self.listed(tail):
            if cell := self.cell(key):
                yield key, cell

    def listed(self, tail: bytes) -> Iterator[bytes]:
        """Yield at most `LOOKED_AT` keys, and prefetch their digests; see `Finder.listed`."""
        if not self.by_url:
            raise StrategyUnavailable(url_index.MISSING)
        part, rest = tail[: schema.PART], tail[schema.PART :]
        rows = self._session.execute(_URLS, part, rest, rest + _BEYOND, LOOKED_AT)
        keys = (bytes(dk) + part + bytes(found) for found, dk in rows)
        while chunk := list(islice(keys, DIGESTS_AT_ONCE)):
            self._partitions.prefetch(split_key(key)[0] for key in chunk)
            yield from chunk

    def unlisted(self, keys: Sequence[bytes]) -> Iterable[bytes]:
        """Return those of `keys` that are not listed by URL."""
        found = self._session.execute_many((_URL, schema.row_of(key)) for key in keys)
        return (key for key, rows in zip(keys, found, strict=True) if not rows)

    # --- containers ------------------------------------------------------------------------------

    def _read_place(self, number: int) -> ContainerRef:
        rows = self._session.execute(schema.PLACE, number)
        if not rows:
            raise KeyError(f"container number {number} has no name")
        return place_in(number, rows[0])

    def place_or_nowhere(self, number: int) -> ContainerRef:
        """Like `place_of`; a capture whose container has lost its name loses to one with a name."""
        with suppress(KeyError):
            return self.place_of(number)
        return cells.NOWHERE

    def number_of(self, place: ContainerRef) -> int:
        key = key_of(place)
        rows = self._session.execute(schema.NUMBER, key)
        number = number_in(key, rows[0][0]) if rows else 0
        if number and number not in self._places:
            if not (named := self._session.execute(schema.PLACE, number)):
                return 0  # its name is lost: the next load of the container writes it again
            self._places.keep(number, place_in(number, named[0]))
        return number

    def places(self) -> Iterator[tuple[int, ContainerRef]]:
        for page in self._session.scan(schema.PLACES):
            for row in page:
                yield row[0], place_in(row[0], row[1:])

    def registrations(self) -> Iterator[IndexedContainer]:
        """Yield every indexed container, in any order."""
        for page in self._session.scan(_CONTAINERS):
            for name, about in page:
                yield IndexedContainer(**json.loads(cells.unsealed_text(bytes(name), about)))

    def containers(self) -> Iterator[IndexedContainer]:
        named = (
            bytes_of(container.name) + b"\0" + json.dumps(container).encode()
            for container in self.registrations()
        )
        for item in in_order(named, self._scratch):
            yield IndexedContainer(*json.loads(item.partition(b"\0")[2]))

    def container(self, name: str) -> IndexedContainer | None:
        key = bytes_of(name)
        rows = self._session.execute(schema.CONTAINER, key)
        return (
            IndexedContainer(**json.loads(cells.unsealed_text(key, rows[0][0]))) if rows else None
        )

    # --- the whole index -------------------------------------------------------------------------

    def counts(self) -> IndexCounts:
        state = About(self._session).state()
        if not state.generation:
            raise IndexUnavailable(
                "the index in the cluster is gone, or its first build is going on"
            )
        return IndexCounts(state.captures, state.digests, state.containers)

    def own_digests(self) -> bool:
        return About(self._session).state().own_digests

    def ledger(self, prefix: bytes = b"") -> Iterator[bytes]:
        """Yield items; unless the prefix has a digest, everything is read, and sorted on disk."""
        if prefix:
            return cassandra_ledger.of_prefix(self._session, prefix)
        return in_order(self.ledger_by_digest(), self._scratch)

    def in_ledger(self, prefixes: Sequence[bytes]) -> Iterator[bool]:
        return cassandra_ledger.has_digests(self._session, prefixes)

    def has_ledger(self) -> bool:
        return cassandra_ledger.has_items(self._session)

    def cells_by_digest(self) -> Iterator[Cell]:
        return self.unordered()

    def ledger_by_digest(self) -> Iterator[bytes]:
        return cassandra_ledger.unordered(self._session)

    def position(self, key: bytes) -> tuple[Any, bytes]:
        start = split_key(key)[0]
        if start != self._last[0]:
            self._last = start, self._session.token(start)
        return self._last[1], key

    def spread_cells(self, ranges: int, most: int) -> Iterator[Cell]:
        bounds = [_TOKENS * (2 * at - ranges) // ranges for at in range(ranges)] + [_TOKENS - 1]
        calls = ((_IN_RANGE, (after, last, AT_ONCE)) for after, last in pairwise(bounds))
        for rows in self._session.execute_many(calls):
            own = (start + rest for start, live, rest, _ in rows if not live)
            stored = (cell for _, live, _, cell in rows if not live)
            for key, cell in islice(zip(own, stored, strict=True), most):
                yield key, cells.unsealed(key, cell)

    def unordered(self) -> Iterator[Cell]:
        """Yield all keys and cells, those of a digest together and in order; raises `Damaged`."""
        for key, stored in self.stored():
            yield key, cells.unsealed(key, stored)

    def stored(self) -> Iterator[Cell]:
        """Like `unordered`, but yields cells as they are stored, unchecked."""
        for page in self._session.scan(_ALL_CELLS):
            for start, live, rest, cell in page:
                if not live:
                    yield start + rest, cell

    def cells(self, prefix: bytes = b"") -> Iterator[Cell]:
        """Yield cells; unless the prefix has a digest, everything is read, and sorted on disk."""
        if prefix and len(prefix) >= cells.DIGEST_KEY[prefix[0]]:
            start, begin = split_key(prefix)
            values = start, begin, begin + _BEYOND, 2**31 - 1
            for page in self._session.scan(_BETWEEN, *values):
                yield from _unsealed(start, page)
            return
        yield from self._sorted_cells(lambda key: key.startswith(prefix))

    def cells_from(self, begin: bytes) -> Iterator[Cell]:
        """Yield cells as `View.cells_from` says; everything is read, and sorted on disk."""
        return self._sorted_cells(lambda key: key >= begin)

    def _sorted_cells(self, wanted: Callable[[bytes], bool]) -> Iterator[Cell]:
        lengths = self.keys.lengths()
        items = (key + cell for key, cell in self.unordered() if wanted(key))
        for item in in_order(items, self._scratch):
            end = lengths[item[0]]
            yield item[:end], item[end:]


def _unsealed(start: bytes, rows: Iterable[Row | Cell]) -> Iterator[Cell]:
    """Yield the keys and cells of rows of a digest; raises `Damaged`."""
    for rest, stored in rows:
        yield start + rest, cells.unsealed(start + rest, stored)
