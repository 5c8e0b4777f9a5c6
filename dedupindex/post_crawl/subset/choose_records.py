"""Which records a subset has: those that are wanted, and what their revisits refer to.

All records are in an SQLite file in the temporary directory, some hundred bytes each, so memory
stays the same whatever the size of the collection.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from dedupindex.digest import EMPTY, is_cut
from dedupindex.post_crawl.subset.scan import FULL, INFO, SubsetRecord
from dedupindex.warc.record_facts import Refused, stated_digest

_TABLE = """
CREATE TABLE records (
  file INTEGER, offset INTEGER, stored INTEGER, full INTEGER, info INTEGER, chosen INTEGER,
  moment BLOB, id BLOB, digest BLOB, url BLOB,
  to_moment BLOB, to_id BLOB, to_url BLOB, modified INTEGER, open INTEGER)
"""
_MOST = 64  # records of one URL and second, or of one digest, that are looked at


class RecordSpan(NamedTuple):
    """Bytes of a file to copy: a record, or the member that it is in."""

    file: int
    offset: int
    stored: int
    open: bool  # the last line ends of the record are missing


class RecordChoice:
    """All records of a collection, and which of them were chosen."""

    def __init__(self, path: Path | str = "") -> None:
        self.wanted = self.revisits = self.originals = self.dangling = 0
        self._database = sqlite3.connect(path)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute(_TABLE)

    def close(self) -> None:
        self._database.close()

    def add(self, file: int, rows: Iterable[SubsetRecord]) -> None:
        """Take the records of a file."""
        kept = (
            row for row in rows if row.wanted or row.kind in FULL | INFO or row.kind == b"revisit"
        )
        insert = f"INSERT INTO records VALUES ({', '.join('?' * 15)})"
        self._database.executemany(insert, (_stored(file, row) for row in kept))

    def resolve(self) -> None:
        """Choose what the chosen refer to, and what says how their files were made."""
        execute = self._database.execute
        for column in ("moment", "id", "digest"):
            execute(f"CREATE INDEX by_{column} ON records ({column})")
        execute("CREATE INDEX by_place ON records (file, offset)")
        # A member is copied whole: what else is in it is chosen with it.
        execute(
            "UPDATE records SET chosen = 1 WHERE (file, offset) IN "
            "(SELECT file, offset FROM records WHERE chosen)"
        )
        self.wanted = execute("SELECT count(*) FROM records WHERE chosen").fetchone()[0]
        waiting = execute("SELECT rowid FROM records WHERE chosen AND to_id IS NOT NULL").fetchall()
        while waiting:
            for (number,) in waiting:
                self._refer(number)
            waiting = execute(
                "SELECT rowid FROM records WHERE chosen = 2 AND to_id IS NOT NULL"
            ).fetchall()
            execute("UPDATE records SET chosen = 3 WHERE chosen = 2")
        execute(
            "UPDATE records SET chosen = 3 WHERE rowid IN (SELECT (SELECT info.rowid FROM records "
            "info WHERE info.file = one.file AND info.offset <= one.offset AND info.info "
            "ORDER BY info.offset DESC LIMIT 1) FROM records one WHERE one.chosen)"
        )

    def pieces(self) -> Iterator[RecordSpan]:
        """What is to be copied, in the order of files."""
        query = (
            "SELECT file, offset, max(stored), max(open) FROM records WHERE chosen "
            "GROUP BY file, offset ORDER BY file, offset"
        )
        for row in self._database.execute(query):
            yield RecordSpan(*row)

    def _refer(self, number: int) -> None:
        """Choose the original of a revisit."""
        query = "SELECT moment, digest, url, to_moment, to_id, to_url, modified FROM records "
        row = self._database.execute(query + "WHERE rowid = ?", (number,)).fetchone()
        own, digest, url, to_moment, to_id, to_url, modified = row
        if not modified and not to_moment and not to_id:
            return  # it needs no record
        self.revisits += 1
        digest = digest if modified else None
        found = self._at("moment", to_moment or own, digest, number)
        found = found or (self._at("id", to_id, digest, number) if to_id else 0)
        if not found and digest and _says_which(digest):
            found = self._at("digest", digest, digest, number, to_url or url)
            found = found or self._at("digest", digest, digest, number)
        if not found:
            self.dangling += 1
            return
        query = "UPDATE records SET chosen = 2 WHERE rowid = ? AND NOT chosen"
        self.originals += self._database.execute(query, (found,)).rowcount

    def _at(
        self, column: str, key: bytes, digest: bytes | None, own: int, url: bytes | None = None
    ) -> int:
        """A record that may be meant: a full one, chosen before, of the same digest; 0 if none."""
        only = "AND full " if column == "digest" else ""  # a revisit with it has no payload either
        query = (
            f"SELECT rowid, digest, url FROM records WHERE {column} = ? AND rowid != ? {only}"
            f"ORDER BY full DESC, chosen DESC, rowid LIMIT {_MOST}"
        )
        for number, there, of in self._database.execute(query, (key, own)):
            same = digest is None or there is None or there == digest
            if same and (url is None or of == url):
                return int(number)
        return 0


def _says_which(digest: bytes) -> bool:
    """Return whether a digest tells payloads apart: it is neither cut nor that of nothing."""
    try:
        stated = stated_digest(digest)[0]
    except Refused:
        return True
    return stated is not None and stated not in EMPTY and not is_cut(stated.raw)


def _stored(file: int, row: SubsetRecord) -> tuple[object, ...]:
    revisit = row.kind == b"revisit"
    to = _key(row.to_moment, row.to_url or row.url) if row.to_moment else b""
    return (
        *(file, row.offset, row.stored, row.kind in FULL, row.kind in INFO, int(row.wanted)),
        *(_key(row.moment, row.url), row.record_id or None, row.digest or None, row.url),
        *((to, row.to_id, row.to_url, row.modified) if revisit else (None, None, None, None)),
        row.open,
    )


def _key(moment: bytes, url: bytes) -> bytes:
    return blake2b(moment + b" " + url, digest_size=16).digest()
