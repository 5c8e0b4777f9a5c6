"""The SQLite database in which warcprox 2 keeps what it has stored (``--dedup-db-file``).

The table ``dedup`` has one of two shapes (warcprox/dedup.py):

    key, value                   "sha1:…|bucket", {"id": …, "url": …, "date": …}
    digest_key, url, date, id    the same in columns, a file for each bucket (Trough)

A row has as much of a capture as a revisit would: status and media type are unknown
(`Evidence.NAMED`). Other tables, such as the statistics that are by default in the same file, are
left alone.

A running warcprox is not disturbed: the database is opened read-only, and read in short
transactions, because warcprox gives up on a row that it cannot write within five seconds.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from blake3 import blake3

from dedupindex.capture import Capture, Evidence, Item, Problem, Refusal
from dedupindex.errors import BadDate, BadDigest, BadSource
from dedupindex.sources.rows import read_digest
from dedupindex.sources.source import GROWING, NO_STATUS, Source, SourceOptions
from dedupindex.timestamps import check_date
from dedupindex.urlkey import is_http, unbracket

SQLITE = b"SQLite format 3\0"
_TABLE = re.compile(rb"CREATE TABLE [\"'`\[]?dedup[\"'`\]]?\s*\(", re.IGNORECASE)
_SHAPES = (("key", "value"), ("digest_key", "url", "date", "id"))
_VIEW = "SELECT 1 FROM sqlite_master WHERE type = 'view' AND name = 'dedup'"
_AT_ONCE = 1000  # rows of a transaction
_READ_BYTES = 1 << 20
_PATIENCE = 60.0  # seconds to wait for a writer
_DAMAGE = (sqlite3.Error, UnicodeDecodeError)  # the second: of names in a damaged schema
_WAL_MODE = 2  # at byte 19 of the file (SQLite's "Database File Format", 1.3)


def is_warcprox_database(head: bytes) -> bool:
    """Return whether a file begins like a database with a table of the name ``dedup``."""
    return head.startswith(SQLITE) and _TABLE.search(head) is not None


class WarcproxSource(Source):
    """A database of warcprox."""

    def __init__(self, name: str, source: str | BinaryIO, options: SourceOptions) -> None:
        if not isinstance(source, str):
            raise BadSource(f"{name} is a database, which is only read as a file on this machine")
        # What is not yet merged into the file counts, too. So a later run sees by size and hash
        # that the database has changed, and asks for --replace.
        self._file, self._log = Path(source), Path(f"{source}-wal")
        super().__init__(name, sum(map(_size, (self._file, self._log))))
        self._algorithm = options.digest_algorithm
        self._position = 0
        self._immutable = _is_immutable(self._file, self._log)
        self._modified = self._file.stat().st_mtime_ns
        self._database = _connect(self._file, immutable=self._immutable)

    @property
    def position(self) -> int:
        return self._position

    def close(self) -> None:
        self._database.close()

    def items(self) -> Iterator[Item]:
        self.content_hash = _hash_of(self._file, self._log)
        try:
            yield from self._items()
        except _DAMAGE as error:
            raise BadSource(f"{self.name} cannot be read: {error}") from error
        yield from self._further_unreadable(-1, "rows")
        if self._immutable and self._file.stat().st_mtime_ns != self._modified:
            self.changed = True
            yield Problem(self.name, -1, GROWING)
        self._position = self.size

    def _items(self) -> Iterator[Item]:
        columns = {
            row[1].decode("utf-8", "replace")
            for row in self._database.execute("PRAGMA table_info(dedup)")
        }
        shape = next((shape for shape in _SHAPES if columns.issuperset(shape)), None)
        is_view = self._database.execute(_VIEW).fetchone() is not None
        if shape is None or is_view or "rowid" in columns:  # rows are counted by SQLite's own
            columns_found = f" (it has {', '.join(sorted(columns))})" if columns else ""
            raise BadSource(
                f"{self.name} has no table dedup with warcprox's columns{columns_found}"
            )
        (last,) = self._database.execute("SELECT max(rowid) FROM dedup").fetchone()
        # Not one long SELECT: its lock would keep warcprox from writing.
        query = (
            f"SELECT rowid, {', '.join(shape)} FROM dedup WHERE rowid > ? ORDER BY rowid LIMIT ?"
        )
        last_id = -(1 << 63)
        while rows := self._database.execute(query, (last_id, _AT_ONCE)).fetchall():
            for row_id, *values in rows:
                if row_id <= last_id:
                    raise BadSource(f"{self.name} cannot be read: its rows are out of order")
                last_id = row_id
                yield from self._item(row_id, values)
            self._position = min(self.size, self.size * max(last_id, 0) // max(last or 1, 1))

    def _item(self, row_id: int, values: list[Any]) -> Iterator[Item]:
        try:
            key, fields = _parse(values)
            yield self._capture(key, *fields)
        except BadDate:
            yield Refusal("bad-date")
        except BadDigest:
            yield Refusal("bad-digest")
        except (ValueError, RecursionError) as error:
            yield from self._unreadable(-1, f"row {row_id}: {error}: {str(values)[:160]}")

    def _capture(self, key: bytes, record_id: bytes, url: bytes, date: bytes) -> Item:
        exact = unbracket(url)
        if not is_http(exact):
            return Refusal("not-http")
        digest, spelling = read_digest(key, self._algorithm)
        capture = Capture(
            digest, spelling, exact, check_date(date), Evidence.NAMED,
            record_id=unbracket(record_id), container=self.name,
        )  # fmt: skip
        self.remarks[NO_STATUS] += 1
        return capture


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _is_immutable(file: Path, log: Path) -> bool:
    """Return whether nobody writes to a database in the mode with a log (WAL).

    Opened in the usual way, it would get new files beside it.
    """
    with open(file, "rb") as stream:
        return stream.read(20)[19:] == bytes((_WAL_MODE,)) and not _size(log)


def _connect(file: Path, *, immutable: bool) -> sqlite3.Connection:
    """Open a database read-only; raises `BadSource`."""
    address = f"{file.absolute().as_uri()}?{'immutable=1' if immutable else 'mode=ro'}"
    try:
        database = sqlite3.connect(address, uri=True, timeout=_PATIENCE)
        database.text_factory = bytes
        database.execute("PRAGMA schema_version").fetchone()
    except _DAMAGE as error:
        raise BadSource(
            f"{file} cannot be opened: {error}; if a writer was killed, open it once with warcprox "
            "or sqlite3, which completes or takes back what was begun"
        ) from error
    return database


def _hash_of(*files: Path) -> str:
    """Return the BLAKE3 of files. They are not mapped, because a log may be cut meanwhile."""
    running = blake3()
    for path in filter(_size, files):
        with open(path, "rb") as stream:
            while data := stream.read(_READ_BYTES):
                running.update(data)
    return running.hexdigest()


def _parse(values: list[Any]) -> tuple[bytes, list[bytes]]:
    """Return digest, and record id, URL and date, of a row; raises `ValueError`."""
    if len(values) == 2:
        key, value = values
        row = json.loads(value) if isinstance(value, bytes) else None
        if not isinstance(row, dict):
            raise ValueError("the value is no JSON object")
        found = [row.get(name) for name in ("id", "url", "date")]
        found = [text.encode("latin-1") if isinstance(text, str) else text for text in found]
    else:
        key, url, date, record_id = values
        found = [record_id or b"", url, date]
    fields = [text for text in found if isinstance(text, bytes)]
    if not isinstance(key, bytes) or len(fields) < len(found):
        raise ValueError("digest, id, URL or date is missing or no text")
    return key.partition(b"|")[0], fields
