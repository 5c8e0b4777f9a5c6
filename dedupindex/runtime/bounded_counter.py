"""Sums by key in bounded memory, as a web archive may have millions of hosts.

Sums are in a dictionary; when it is full they are added to a temporary database of SQLite, on disk.
"""

from __future__ import annotations

from collections.abc import Iterator

from dedupindex.runtime.scratch_database import open_scratch

KEYS_IN_MEMORY = 200_000  # about 60 MB

_MOST = (1 << 62) - 1  # larger sums are this, so that SQLite can add two

Row = tuple[bytes, tuple[int, ...]]


class Sums:
    """Adds tuples of whole numbers by key."""

    def __init__(self, width: int, *, keys_in_memory: int = KEYS_IN_MEMORY) -> None:
        self._sums: dict[bytes, list[int]] = {}
        self._width, self._limit = width, keys_in_memory
        # the garbage collector may close it in any thread
        self._database = open_scratch(one_thread=False)
        columns = [f"c{number}" for number in range(width)]
        self._database.execute(f"CREATE TABLE sums (key BLOB PRIMARY KEY, {', '.join(columns)})")
        marks = ", ".join("?" * (width + 1))
        added = ", ".join(f"{name} = min({name} + excluded.{name}, {_MOST})" for name in columns)
        self._upsert = f"INSERT INTO sums VALUES ({marks}) ON CONFLICT (key) DO UPDATE SET {added}"

    def __del__(self) -> None:
        self._database.close()

    def add(self, key: bytes, *amounts: int) -> None:
        """Add `amounts`, one for each column, to the sums of `key`."""
        sums = self._sums.get(key)
        if sums is None:
            if len(self._sums) >= self._limit:
                self._spill()
            sums = self._sums[key] = [0] * self._width
        for column, amount in enumerate(amounts):
            sums[column] += amount

    def __len__(self) -> int:
        """The number of keys."""
        self._spill()
        return int(self._database.execute("SELECT count(*) FROM sums").fetchone()[0])

    def items(self) -> Iterator[Row]:
        """Yield every key with its sums, in the order of keys."""
        return self._rows("ORDER BY key")

    def largest(self, count: int, *columns: int) -> Iterator[Row]:
        """Yield the `count` keys with the largest sums in columns, largest first; 0 for all."""
        order = ", ".join(f"c{column} DESC" for column in columns)
        return self._rows(f"ORDER BY {order}, key LIMIT {count or -1}")

    def _rows(self, order: str) -> Iterator[Row]:
        self._spill()
        for key, *sums in self._database.execute(f"SELECT * FROM sums {order}"):
            yield key, tuple(sums)

    def _spill(self) -> None:
        rows = ((key, *(min(amount, _MOST) for amount in sums)) for key, sums in self._sums.items())
        self._database.executemany(self._upsert, rows)
        self._sums = {}
