"""Which records a subset has: those that are wanted, and what their revisits refer to.

All records are in an SQLite file in the temporary directory, some hundred bytes each, so memory
stays the same whatever the size of the collection.
"""

from __future__ import annotations

import marshal
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, NamedTuple

from dedupindex.digest import EMPTY, is_cut
from dedupindex.errors import BadSource
from dedupindex.sources.warc_files import SourceFile
from dedupindex.urlkey import host_of, unbracket
from dedupindex.warc.arc import DOCUMENT, HEADER
from dedupindex.warc.gzip_members import Damage
from dedupindex.warc.reader import read
from dedupindex.warc.record import MISSING, BrokenRecord, Record
from dedupindex.warc.record_facts import (
    Refused,
    refers_to,
    says_not_modified,
    stated_digest,
    timestamp14,
)
from dedupindex.warc.window import open_window

# What a subset needs to know of every record of a file, read from its first byte to its last.

FULL = frozenset((b"response", b"resource", b"conversion", DOCUMENT))  # what may be an original
INFO = frozenset((b"warcinfo", HEADER))
_BATCH = 1000


class SubsetFilter(NamedTuple):
    """Which records are wanted; what is empty asks for nothing."""

    urls: tuple[bytes, ...] = ()  # they begin with one of these
    hosts: tuple[bytes, ...] = ()  # or are of one of these, or of one below it
    begin: bytes = b""  # the first of 14 digits
    end: bytes = b""  # the last

    def takes(self, url: bytes, moment: bytes) -> bool:
        """Whether a record of this URL and second is wanted."""
        if (self.begin and moment < self.begin) or (self.end and moment > self.end):
            return False
        if not self.urls and not self.hosts:
            return True
        if url.startswith(self.urls):
            return True
        host = host_of(url) if self.hosts else b""
        return any(host == one or host.endswith(b"." + one) for one in self.hosts)


class SubsetRecord(NamedTuple):
    """One record."""

    offset: int
    stored: int  # bytes in the file; of several records in a member the first has them all
    kind: bytes
    wanted: bool
    url: bytes
    moment: bytes  # 14 digits; empty without a date
    record_id: bytes
    digest: bytes  # WARC-Payload-Digest as written
    to_url: bytes = b""
    to_moment: bytes = b""
    to_id: bytes = b""
    modified: bool = True  # False: a revisit that says that nothing was modified
    open: bool = False  # its last line ends are missing


class ScannedFile(NamedTuple):
    """A file that was read: `rows` of the spool, and what is wrong with it."""

    spool: Path
    arc: bool
    zipped: bool
    problems: list[tuple[int, str]]


class SubsetScanTask(NamedTuple):
    """One file to read."""

    file: SourceFile
    spool: Path
    filter: SubsetFilter | None  # None: it may only have originals


def scan(_: None, task: SubsetScanTask) -> ScannedFile:
    """Read a file; of one that cannot be read or changes meanwhile there are no rows."""
    path, problems = task.file.path, list[tuple[int, str]]()
    arc = zipped = False
    try:
        with closing(open_window(path, path)) as window, open(task.spool, "wb") as spool:
            zipped = window.read(0, 2) == b"\x1f\x8b"
            batch: list[tuple[object, ...]] = []
            last: tuple[Record, SubsetRecord] | None = None
            for event in read(window):
                _keep(batch, spool, last)
                last = None
                if isinstance(event, Record):
                    arc = arc or event.type in (HEADER, DOCUMENT)
                    last = event, _row(event, task.filter)
                elif isinstance(event, Damage):
                    problems.append((event.offset, event.message))
            _keep(batch, spool, last, at_least=0)
            if window.changed():
                raise BadSource("it was changed while it was read, and is left out")
    except BadSource as error:
        task.spool.write_bytes(b"")
        problems.append((-1, str(error)))
    return ScannedFile(task.spool, arc, zipped, problems)


def rows(spool: Path) -> Iterator[SubsetRecord]:
    """The rows of a file that was read."""
    with open(spool, "rb") as stream:
        while stream.peek(1):
            yield from (SubsetRecord(*row) for row in marshal.load(stream))


def _keep(
    batch: list[tuple[object, ...]],
    spool: BinaryIO,
    last: tuple[Record, SubsetRecord] | None,
    at_least: int = _BATCH,
) -> None:
    """Take a record over, now that it was read to its end; a broken one is none."""
    if last is not None:
        record, row = last
        try:
            record.finish()
        except BrokenRecord:
            return
        row = row._replace(stored=record.stored, open=record.remark == MISSING)
        batch.append(tuple(row))
    if batch and len(batch) >= at_least:
        marshal.dump(batch, spool)
        batch.clear()


def _row(record: Record, wanted: SubsetFilter | None) -> SubsetRecord:
    url, date, record_id, _, digest, _, _ = record.values
    url, moment = unbracket(url), timestamp14(date)
    takes = wanted is not None and record.type not in INFO and bool(url)
    takes = takes and wanted is not None and wanted.takes(url, moment)
    row = SubsetRecord(
        record.offset, 0, record.type, takes, url, moment, unbracket(record_id), digest
    )
    if record.type != b"revisit":
        return row
    fields = record.head.fields
    original = refers_to(fields)
    return row._replace(
        to_url=original.url,
        to_moment=timestamp14(original.date),
        to_id=original.record_id,
        modified=not says_not_modified(fields),
    )


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
