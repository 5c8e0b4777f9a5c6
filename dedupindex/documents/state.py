"""What a run has hashed so far, in SQLite: a run that was killed goes on with it."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from dedupindex.documents.hashing import Hashed
from dedupindex.documents.list_objects import ListedObject
from dedupindex.errors import FormatFromFuture

FORMAT = 1
_EVERY = 1.0  # seconds between two commits: as much is hashed again after a kill
_SCHEMA = """
CREATE TABLE IF NOT EXISTS about (format INTEGER, pattern BLOB, run TEXT, turn INTEGER);
CREATE TABLE IF NOT EXISTS object (
  path BLOB PRIMARY KEY, size INTEGER, stamp TEXT, hash BLOB, turn INTEGER
) WITHOUT ROWID;
"""


class HashState:
    """Every object with its hash; those that the present run has met are of its turn."""

    def __init__(self, path: Path, pattern: str, run: str) -> None:
        """Open or make it; `run` is the id of a new one. Raises `FormatFromFuture`."""
        self._database = sqlite3.connect(path, isolation_level=None)
        try:
            self._open(path, pattern, run)
        except BaseException:
            self._database.close()
            raise

    def _open(self, path: Path, pattern: str, run: str) -> None:
        self._database.executescript(_SCHEMA)
        about = self._database.execute("SELECT format, run, turn FROM about").fetchone()
        self._begin()
        if about is None:
            about = (FORMAT, run, 0)
            self._database.execute(
                "INSERT INTO about VALUES (?, ?, ?, 0)", (FORMAT, os.fsencode(pattern), run)
            )
        elif about[0] > FORMAT:
            raise FormatFromFuture(f"{path} has format {about[0]}, this knows {FORMAT}")
        self.run: str = about[1]
        self.pattern = pattern
        self._turn = about[2] + 1
        self._database.execute("UPDATE about SET turn = ?", (self._turn,))
        self._fresh = not self._database.execute("SELECT 1 FROM object LIMIT 1").fetchone()
        self._commit_then_begin()

    def close(self) -> None:
        """Keep all that was put."""
        self._database.execute("COMMIT")
        self._database.close()

    def knows(self, found: ListedObject) -> bool:
        """Whether an object was hashed as it is; it then counts as met."""
        if self._fresh or not found.stamp:
            return False
        met = self._database.execute(
            "UPDATE object SET turn = ? WHERE path = ? AND size = ? AND stamp = ?",
            (self._turn, os.fsencode(found.path), found.size, found.stamp),
        )
        return met.rowcount > 0

    def put(self, batch: Iterable[Hashed]) -> None:
        """Keep what was hashed, and count it as met."""
        self._database.executemany(
            "INSERT OR REPLACE INTO object VALUES (?, ?, ?, ?, ?)",
            [(os.fsencode(one.path), one.size, one.stamp, one.digest, self._turn) for one in batch],
        )
        if time.monotonic() > self._due:
            self._commit_then_begin()

    def forget_others(self) -> int:
        """Drop what this run has not met; returns how many those are."""
        gone = self._database.execute("DELETE FROM object WHERE turn <> ?", (self._turn,))
        self._commit_then_begin()
        return gone.rowcount

    def rows(self) -> Iterator[tuple[bytes, int, bytes]]:
        """Path, size and hash of every object, in the order of paths."""
        yield from self._database.execute("SELECT path, size, hash FROM object ORDER BY path")

    def _commit_then_begin(self) -> None:
        self._database.execute("COMMIT")
        self._begin()

    def _begin(self) -> None:
        self._database.execute("BEGIN")
        self._due = time.monotonic() + _EVERY
