"""What a view of a cluster knows of digests, and reads ahead while others are looked at."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from dedupindex.errors import IndexUnavailable
from dedupindex.index.engines.cassandra.cql import Row, Session, Statement

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
