"""Sums by key in bounded memory: a web archive has more hosts than a report may hold."""

from __future__ import annotations

import heapq
import marshal
import tempfile
from collections.abc import Iterator
from itertools import groupby
from operator import add, itemgetter
from typing import IO

KEYS_IN_MEMORY = 200_000  # about 60 MB
_CHUNK = 4096

Row = tuple[bytes, tuple[int, ...]]


class Sums:
    """Adds tuples of whole numbers by key; what does not fit waits in sorted temporary files."""

    def __init__(self, width: int, *, keys_in_memory: int = KEYS_IN_MEMORY) -> None:
        self._sums: dict[bytes, list[int]] = {}
        self._width, self._limit = width, keys_in_memory
        self._spilled: list[IO[bytes]] = []

    def add(self, key: bytes, *amounts: int) -> None:
        """Add `amounts`, one for each column, to the sums of `key`."""
        sums = self._sums.get(key)
        if sums is None:
            if len(self._sums) >= self._limit:
                self._spill()
            sums = self._sums[key] = [0] * self._width
        for column, amount in enumerate(amounts):
            sums[column] += amount

    def items(self) -> Iterator[Row]:
        """Every key with its sums, in the order of keys."""
        parts = [iter(self._sorted()), *map(_read, self._spilled)]
        for key, rows in groupby(heapq.merge(*parts), key=itemgetter(0)):
            total = (0,) * self._width
            for _, sums in rows:
                total = tuple(map(add, total, sums))
            yield key, total

    def largest(self, count: int, column: int) -> list[Row]:
        """The `count` keys with the largest sums in a column, largest first; 0 for all of them."""
        if not count:
            return sorted(self.items(), key=lambda row: (-row[1][column], row[0]))
        return heapq.nsmallest(count, self.items(), key=lambda row: (-row[1][column], row[0]))

    def _sorted(self) -> list[Row]:
        return sorted((key, tuple(sums)) for key, sums in self._sums.items())

    def _spill(self) -> None:
        stream = tempfile.TemporaryFile(prefix="dedupindex-sums-")  # noqa: SIM115  closed by items' end or exit
        rows = self._sorted()
        for at in range(0, len(rows), _CHUNK):
            marshal.dump(rows[at : at + _CHUNK], stream)
        self._spilled.append(stream)
        self._sums = {}


def _read(stream: IO[bytes]) -> Iterator[Row]:
    stream.seek(0)
    while True:
        try:
            rows: list[Row] = marshal.load(stream)
        except EOFError:
            return
        yield from rows
