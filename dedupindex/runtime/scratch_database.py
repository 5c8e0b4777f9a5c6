"""A temporary SQLite database for what does not fit into memory, lost if the process ends."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from dedupindex.errors import DedupError


class _ScratchCursor(sqlite3.Cursor):
    def execute(self, *statement: Any) -> _ScratchCursor:
        with _TranslatedErrors():
            super().execute(*statement)
        return self

    def executemany(self, *statement: Any) -> _ScratchCursor:
        with _TranslatedErrors():
            super().executemany(*statement)
        return self

    def __next__(self) -> Any:  # sorted rows are read from temporary files, too
        with _TranslatedErrors():
            return super().__next__()

    def fetchone(self) -> Any:
        with _TranslatedErrors():
            return super().fetchone()

    def fetchmany(self, *size: Any) -> list[Any]:
        with _TranslatedErrors():
            return super().fetchmany(*size)

    def fetchall(self) -> list[Any]:
        with _TranslatedErrors():
            return super().fetchall()


class ScratchDatabase(sqlite3.Connection):
    """Errors of SQLite, such as a full disk, are raised as `DedupError`."""

    def execute(self, *statement: Any) -> _ScratchCursor:
        return _ScratchCursor(self).execute(*statement)

    def executemany(self, *statement: Any) -> _ScratchCursor:
        return _ScratchCursor(self).executemany(*statement)

    def commit(self) -> None:
        with _TranslatedErrors():
            super().commit()


def open_scratch(path: Path | None = None, *, one_thread: bool = True) -> ScratchDatabase:
    """Open a database in a new file, or in a temporary one that SQLite removes.

    Unless `one_thread`, other threads than this may use it, one at a time.
    """
    database = sqlite3.connect(path or "", factory=ScratchDatabase, check_same_thread=one_thread)
    database.execute("PRAGMA journal_mode = OFF")  # nothing is rolled back
    database.execute("PRAGMA synchronous = OFF")
    return database


class _TranslatedErrors:  # quicker for each row than a generator
    def __enter__(self) -> None:
        """Nothing is needed before."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, sqlite3.OperationalError):
            raise DedupError(
                f"temporary files cannot be written or read: {error}. Set TMPDIR to a directory "
                "with more room, and run the command again"
            ) from error
