"""Numbers of containers that crawls on a cluster name: each server gives them out of a block.

They are places of the index, of no crawl. Two servers may give a container a number each: both are
its own, and name it.
"""

from __future__ import annotations

import threading

from dedupindex.cache import MEGABYTE, Cache
from dedupindex.errors import Damaged
from dedupindex.index.engines.cassandra.cassandra_places import (
    key_of,
    number_in,
    place_in,
    put_number,
    put_place,
)
from dedupindex.index.engines.cassandra.cassandra_schema import Statements
from dedupindex.index.engines.cassandra.cql import Session
from dedupindex.index.engines.cassandra.metadata import About
from dedupindex.index.format.cells import ContainerRef

BLOCK = 64  # numbers; crawlers write to a few containers at once
_KEPT = 4 * MEGABYTE  # of memory, for names and for numbers


class FileNumbers:
    """Gives numbers, for all threads of a process, and says what they stand for."""

    def __init__(self, session: Session, on: Statements) -> None:
        self._session, self._on = session, on
        self._free = range(0)
        self._busy = threading.Lock()
        self._numbers = Cache[str, int](_KEPT)
        self._names = Cache[int, str](_KEPT)

    def number_of(self, name: str) -> int:
        """The number of a container, given now if it has none."""
        return self._numbers.get(name) or self._numbers.keep(name, self._number_of(name))

    def name_of(self, number: int) -> str:
        """The name of a container; raises `Damaged`."""
        name = self._names.get(number)
        return self._names.keep(number, self._name_of(number)) if name is None else name

    def _number_of(self, name: str) -> int:
        place = ContainerRef(name)
        with self._busy:
            found = self._session.execute(self._on.number, key_of(place))
            if found:
                return number_in(key_of(place), found[0][0])
            if not self._free:
                first = About(self._session, self._on).take_numbers(BLOCK)
                self._free = range(first, first + BLOCK)
            number, self._free = self._free[0], self._free[1:]
            # Who finds a number finds its place.
            for statement, values in (
                put_place(self._on, number, place),
                put_number(self._on, number, place),
            ):
                self._session.execute(statement, *values)
            return number

    def _name_of(self, number: int) -> str:
        found = self._session.execute(self._on.place, number)
        if not found:
            raise Damaged(
                f"container number {number} has no name; bin/index --check says what is damaged"
            )
        return place_in(number, found[0]).container
