"""Reading an index on a cluster: all of a digest at once, so that a lookup waits only once.

There is no state of a whole cluster to read from. Each answer is true by itself; a load becomes
visible while it goes on.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from dedupindex.cache import Cache
from dedupindex.capture import Capture
from dedupindex.digest import Digest
from dedupindex.errors import Damaged, IndexUnavailable, StrategyUnavailable
from dedupindex.index.engine import IndexCounts, IndexedContainer
from dedupindex.index.engines.cassandra import cassandra_schema
from dedupindex.index.engines.cassandra.cassandra_schema import Statements
from dedupindex.index.engines.cassandra.cql import Row, Session, Statement
from dedupindex.index.engines.cassandra.metadata import About, bytes_of, key_of, number_in, place_in
from dedupindex.index.engines.cell_view import Decoding
from dedupindex.index.format import url_index
from dedupindex.index.format.cells import (
    DIGEST_KEY,
    ContainerRef,
    Keys,
    answers,
    canonical_prefix,
    container_of,
    digest_of_key,
    digest_prefix,
    entries_of,
    is_sound,
    unsealed,
    unsealed_text,
)
from dedupindex.index.load.runs import in_order
from dedupindex.urlkey import urlkey

# What a view of a cluster knows of digests, and reads ahead while others are looked at.

AT_ONCE = 100  # rows of a digest that are read at first; nearly all digests have fewer
_KEPT = 4096  # digests that a view remembers
_HELD = 16 << 20  # bytes of rows that a view remembers: a cell may have long URLs
_STRETCH = 100  # digests of those read ahead that are taken in at once

Cell = tuple[bytes, bytes]


class Partition(NamedTuple):
    """The first rows of a digest."""

    start: bytes  # of its keys
    cells: list[Cell]  # of what bin/index took in: what of a key follows the digest, and the cell
    # as it is stored: `cells.unsealed` checks it
    whole: bool  # whether that is all that it took in
    reported: list[Row] | None  # what crawls report: rest, crawl, cell; None: there may be more

    @classmethod
    def of(cls, start: bytes, rows: list[Row]) -> Partition:
        """The first `AT_ONCE` rows and, if there is one, another."""
        own = [(rest, cell) for live, rest, _, cell in rows if not live]
        there = len(rows) <= AT_ONCE
        reported = [row[1:] for row in rows[len(own) :]]
        return cls(start, own, there or bool(reported), reported if there else None)


class Partitions:
    """The first rows of digests, by the digest's part of a key; any number of threads may ask."""

    def __init__(
        self, session: Session, statement: Statement, came: Callable[[list[Partition]], None]
    ) -> None:
        """`came` is told what was read ahead, before anybody looks at it."""
        self._session, self._statement, self._came = session, statement, came
        self._known: dict[bytes, Partition] = {}
        self._held = 0  # bytes of their rows
        self._coming: Iterator[tuple[bytes, list[Row]]] = iter(())
        self._awaited: set[bytes] = set()
        self._outage = ""  # why what is awaited will not come
        self._busy = threading.Lock()  # of two who take at once one would take the other's rows

    def forget(self) -> None:
        """Forget everything."""
        self._known.clear()
        self._held = 0
        self._awaited.clear()
        self._coming = iter(())

    def ahead(self, keys: Iterable[bytes]) -> None:
        """Ask for many, and take in the first of them."""
        wanted = [key for key in dict.fromkeys(keys) if key not in self._known][:_KEPT]
        asked = ((self._statement, (key, AT_ONCE + 1)) for key in wanted)
        self._coming = zip(wanted, self._session.execute_many(asked), strict=True)
        self._awaited, self._outage = set(wanted), ""
        if wanted:
            self._take()

    def of(self, key: bytes) -> Partition:
        """What is there of a digest; raises `IndexUnavailable`."""
        if key in self._awaited:
            with self._busy:
                while key in self._awaited:
                    self._take()
        found = self._known.get(key)
        if found is None:
            rows = self._session.execute(self._statement, key, AT_ONCE + 1)
            found = self._keep(key, rows)
        return found

    def _take(self) -> None:
        """Take in what comes next; an outage is one for all that is awaited still."""
        if self._outage:
            raise IndexUnavailable(self._outage)
        try:
            came = dict(islice(self._coming, _STRETCH))
            kept = [self._keep(key, rows) for key, rows in came.items()]
            self._awaited -= came.keys()
            self._came(kept)
        except IndexUnavailable as error:
            self._outage = str(error)
            raise

    def _keep(self, key: bytes, rows: list[Row]) -> Partition:
        self._held += sum(len(one) for row in rows for one in row if isinstance(one, bytes))
        if len(self._known) >= 2 * _KEPT or self._held > _HELD:
            self._known.clear()
            self._held = 0
        found = self._known[key] = Partition.of(key, rows)
        return found


class CassandraView(Decoding):
    """What a cluster answers; see `protocol.View`."""

    def __init__(
        self,
        session: Session,
        statements: Statements,
        keys: Keys,
        places: Cache[int, ContainerRef],
        scratch: Path,
        *,
        by_url: bool = False,
    ) -> None:
        self._session, self._on, self.keys = session, statements, keys
        self._places, self._scratch, self.by_url = places, scratch, by_url
        self._partitions = Partitions(session, statements.partition, self._name)

    def __enter__(self) -> CassandraView:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._partitions.forget()

    # --- lookups ---------------------------------------------------------------------------------

    def ahead(self, digests: Iterable[Digest]) -> None:
        """Read what lookups of these digests will ask for, side by side.

        The first of it is there on return, the rest comes while the first is looked at.
        """
        self._partitions.ahead(map(digest_prefix, digests))

    def partition(self, key: bytes) -> Partition:
        """The first rows of a digest."""
        return self._partitions.of(key)

    def _name(self, found: list[Partition]) -> None:
        """Read the names of all containers in them that are not known yet."""
        numbers = {
            container_of(entry)
            for one in found
            for rest, stored in one.cells
            if is_sound(one.start + rest, stored)  # else it is told who asks for it
            for entry in entries_of(unsealed(one.start + rest, stored))
            if answers(entry)
        }
        unknown = sorted(numbers - self._places.keys() - {0})
        if not unknown:
            return
        asked = ((self._on.place, (number,)) for number in unknown)
        for number, rows in zip(unknown, self._session.execute_many(asked), strict=True):
            if rows:
                with suppress(Damaged):  # which is told who asks for it
                    self._remember(number, rows[0])

    def cell(self, key: bytes) -> bytes | None:
        """What is under a key; raises `Damaged`."""
        start, rest = _parted(key)
        known = self.partition(start)
        for one, stored in known.cells:
            if one == rest:
                return unsealed(key, stored)
        if known.whole:
            return None
        rows = self._session.execute(self._on.cell, start, rest)
        return unsealed(key, bytes(rows[0][0])) if rows else None

    def exact(self, digest: Digest, url: bytes) -> list[Capture]:
        key = self.keys.of(digest, url)
        cell = self.cell(key)
        if cell is None:
            return []
        return [capture for capture in self.decoded(key, cell) if capture.url == url]

    def canonical(self, digest: Digest, key: bytes, limit: int) -> list[Capture]:
        start, begin = _parted(canonical_prefix(digest, key))
        known = self.partition(start)
        if known.whole:
            cells = [pair for pair in known.cells if pair[0].startswith(begin)]
        else:
            cells = self._rows(start, begin, limit)
        found = self._decoded(start, cells[: max(limit, 0)])
        return [capture for capture in found if urlkey(capture.url) == key]

    def any(self, digest: Digest, limit: int) -> list[Capture]:
        start = digest_prefix(digest)
        known = self.partition(start)
        cells = known.cells
        if not known.whole and len(cells) < limit:
            cells = self._rows(start, b"", limit)
        return self._decoded(start, cells[: max(limit, 0)])

    def _rows(self, start: bytes, begin: bytes, limit: int) -> list[Row]:
        """The first rows of a digest that bin/index took in and whose rest begins so."""
        return self._session.execute(self._on.between, start, begin, _next(begin), max(limit, 1))

    def denies(self, digest: Digest, capture: Capture) -> bool:
        key = self.keys.of(digest, capture.url)
        return self.denied_in(key, self.cell(key), capture)

    def cells_at(self, sought: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See `Decoding`."""
        for key in self.listed(sought):
            if cell := self.cell(key):
                yield key, cell

    def listed(self, sought: bytes) -> Iterator[bytes]:
        """The keys that are listed by URL and, after the digest, begin so.

        What stands under their digests is read before they are yielded, side by side.
        """
        if not self.by_url:
            raise StrategyUnavailable(url_index.MISSING)
        keys = cassandra_schema.keys_at(self._session, self._on, sought)
        while some := list(islice(keys, cassandra_schema.AT_ONCE)):
            self._partitions.ahead(_parted(key)[0] for key in some)
            yield from some

    def unlisted(self, keys: Sequence[bytes]) -> Iterable[bytes]:
        """Of keys those that are not listed by URL."""
        return cassandra_schema.missing(self._session, self._on, keys)

    def _decoded(self, start: bytes, cells: list[Cell]) -> list[Capture]:
        return [one for key, cell in _opened(start, cells) for one in self.decoded(key, cell)]

    # --- names -----------------------------------------------------------------------------------

    def place_of(self, number: int) -> ContainerRef:
        """What a container number stands for."""
        place = self._places.get(number)
        if place is None:
            rows = self._session.execute(self._on.place, number)
            if not rows:
                raise KeyError(f"container number {number} has no name")
            place = self._remember(number, rows[0])
        return place

    def _remember(self, number: int, row: Row) -> ContainerRef:
        return self._places.keep(number, place_in(number, row))

    def number_of(self, place: ContainerRef) -> int:
        """The container number of a place, 0 if it has none."""
        key = key_of(place)
        rows = self._session.execute(self._on.number, key)
        number = number_in(key, rows[0][0]) if rows else 0
        if number and number not in self._places:
            if not (named := self._session.execute(self._on.place, number)):
                return 0  # it has lost its name: who uses it brings the name again
            self._remember(number, named[0])
        return number

    def places(self) -> Iterator[tuple[int, ContainerRef]]:
        for page in self._session.scan(self._on.places):
            for row in page:
                yield row[0], place_in(row[0], row[1:])

    def registrations(self) -> Iterator[IndexedContainer]:
        """Every registered container, in no order."""
        for page in self._session.scan(self._on.containers):
            for name, about in page:
                yield IndexedContainer(**json.loads(unsealed_text(bytes(name), about)))

    def containers(self) -> Iterator[IndexedContainer]:
        found = self.registrations()
        named = (bytes_of(one.name) + b"\0" + json.dumps(one).encode() for one in found)
        for item in in_order(named, self._scratch):
            yield IndexedContainer(*json.loads(item.partition(b"\0")[2]))

    def container(self, name: str) -> IndexedContainer | None:
        key = bytes_of(name)
        rows = self._session.execute(self._on.container, key)
        return IndexedContainer(**json.loads(unsealed_text(key, rows[0][0]))) if rows else None

    # --- all of it -------------------------------------------------------------------------------

    def counts(self) -> IndexCounts:
        state = About(self._session, self._on).state()
        if not state.generation:
            raise IndexUnavailable(
                "the index in the cluster is gone, or its first build is going on"
            )
        return IndexCounts(state.captures, state.digests, state.containers)

    def own_digests(self) -> bool:
        return About(self._session, self._on).state().own_digests

    def ledger(self) -> list[str]:
        """A cluster keeps none."""
        return []

    def unordered(self) -> Iterator[Cell]:
        """All keys and cells; those of a digest come together, and in order. Raises `Damaged`."""
        for key, stored in self.stored():
            yield key, unsealed(key, stored)

    def stored(self) -> Iterator[Cell]:
        """As `unordered`, but as they are stored, unchecked."""
        for page in self._session.scan(self._on.all_cells):
            for start, live, rest, cell in page:
                if not live:
                    yield start + rest, cell

    def cells(self, prefix: bytes = b"") -> Iterator[Cell]:
        """In order, which a cluster does not have: all is read, and sorted on disk if need be."""
        if prefix and len(prefix) >= DIGEST_KEY[prefix[0]]:
            start, begin = _parted(prefix)
            statement, values = self._on.between, (start, begin, _next(begin), 2**31 - 1)
            for page in self._session.scan(statement, *values):
                yield from _opened(start, page)
            return
        lengths = self.keys.lengths()
        found = (key + cell for key, cell in self.unordered() if key.startswith(prefix))
        for item in in_order(found, self._scratch):
            end = lengths[item[0]]
            yield item[:end], item[end:]

    def captures(self) -> Iterator[tuple[Digest, Capture]]:
        for key, cell in self.cells():
            for capture in self.decoded(key, cell):
                yield digest_of_key(key), capture


def _parted(key: bytes) -> tuple[bytes, bytes]:
    """The digest's part of a key, and the rest."""
    end = DIGEST_KEY[key[0]]
    return key[:end], key[end:]


def _opened(start: bytes, rows: Iterable[Row | Cell]) -> Iterator[Cell]:
    """Keys and cells of rows of a digest; raises `Damaged`."""
    for rest, stored in rows:
        yield start + rest, unsealed(start + rest, stored)


def _next(begin: bytes) -> bytes:
    """What comes after everything that begins so; a rest is shorter than 16 bytes."""
    return begin + b"\xff" * 16
