"""A temporary SQLite database for what does not fit into memory, lost if the process ends."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from dedupindex.errors import DedupError


class ScratchDatabase(sqlite3.Connection):
    """Errors of SQLite, such as a full disk, are raised as `DedupError`."""

    def execute(self, *statement: Any) -> sqlite3.Cursor:
        try:
            return super().execute(*statement)
        except sqlite3.OperationalError as error:
            raise _failure(error) from error

    def executemany(self, *statement: Any) -> sqlite3.Cursor:
        try:
            return super().executemany(*statement)
        except sqlite3.OperationalError as error:
            raise _failure(error) from error

    def commit(self) -> None:
        try:
            super().commit()
        except sqlite3.OperationalError as error:
            raise _failure(error) from error


def open_scratch(path: Path | None = None, *, one_thread: bool = True) -> ScratchDatabase:
    """Open a database in a new file, or in a temporary one that SQLite removes.

    Unless `one_thread`, other threads than this may use it, one at a time.
    """
    database = sqlite3.connect(path or "", factory=ScratchDatabase, check_same_thread=one_thread)
    database.execute("PRAGMA journal_mode = OFF")  # nothing is rolled back
    database.execute("PRAGMA synchronous = OFF")
    return database


def _failure(error: sqlite3.OperationalError) -> DedupError:
    return DedupError(
        f"temporary files cannot be written or read: {error}. Set TMPDIR to a directory with more "
        "room, and run the command again"
    )
