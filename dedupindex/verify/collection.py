"""Check a collection: the files, several at once, then the references between their records."""

from __future__ import annotations

import marshal
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, NamedTuple, TypeVar

from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.errors import BadSource
from dedupindex.runtime.workers import workers
from dedupindex.verify import revisits
from dedupindex.verify.block_facts import (
    FULL,
    Facts,
    Issue,
    capture_key,
    read_digest,
    timestamp14,
    try_examine,
)
from dedupindex.verify.file_bytes import UnreadableFile, opened
from dedupindex.verify.issues import Finding
from dedupindex.verify.parse_records import AnyRecord, CheckedRecord, unbracket
from dedupindex.verify.walk_file import Container, is_archive

T = TypeVar("T")
R = TypeVar("R")
_BATCH = 1000  # records
_WORTH_A_PROCESS = 8 << 20  # bytes: starting a process costs as much as reading so many
_MAX_RECORDS = 64  # of one URL and second, or of one digest, that are looked at
_TABLE = """
CREATE TABLE records (
  file INTEGER, offset INTEGER, full INTEGER, own INTEGER,
  capture BLOB, id BLOB, digest BLOB, facts BLOB)
"""
_POSTED = "CREATE TABLE posted (key BLOB PRIMARY KEY) WITHOUT ROWID"


class ReferenceRow(NamedTuple):
    """A revisit, or a record that one may refer to."""

    file: int
    offset: int
    facts: Facts
    own: bool  # it is checked, and not only a possible original


class References:
    """Checks references in an SQLite file: first `add` all records, then take `findings`."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute(_TABLE)
        self._database.execute(_POSTED)

    def close(self) -> None:
        self._database.close()

    def add(self, rows: Iterable[ReferenceRow]) -> None:
        insert = "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        self._database.executemany(insert, map(_sql_row, rows))

    def add_posted(self, keys: Iterable[bytes]) -> None:
        """Add the keys of records that answer requests other than GET, see `_posted_keys`."""
        insert = "INSERT OR IGNORE INTO posted VALUES (?)"
        self._database.executemany(insert, ((key,) for key in keys))

    def findings(self, files: list[str]) -> Iterator[Finding]:
        """Yield what is wrong with references, by file; `files` are their names by number."""
        for column in ("capture", "id", "digest"):
            self._database.execute(f"CREATE INDEX by_{column} ON records ({column})")
        yield from self._duplicate_ids(files)
        query = "SELECT file, offset, facts FROM records WHERE full = 0 AND own ORDER BY rowid"
        for file, offset, stored in self._database.execute(query):
            facts = Facts(*marshal.loads(stored))
            for reason, message in self._check(facts, file, offset, files):
                record_id = facts.record_id.decode("utf-8", "replace")
                yield Finding(reason, files[file], offset, record_id, message)

    def _duplicate_ids(self, files: list[str]) -> Iterator[Finding]:
        query = """
        SELECT id, min(file), offset, count(*) FROM records WHERE own AND id IS NOT NULL
        GROUP BY id HAVING count(*) > 1 ORDER BY min(rowid)
        """
        for record_id, file, offset, count in self._database.execute(query):
            name = record_id.decode("utf-8", "replace")
            message = f"{count} records have this WARC-Record-ID"
            yield Finding("duplicate-record-id", files[file], offset, name, message)

    def _check(self, facts: Facts, file: int, offset: int, files: list[str]) -> Iterator[Issue]:
        """Yield what is wrong with the reference of a revisit."""
        not_modified = revisits.not_modified(facts.profile)
        if not_modified and not (facts.to_date or facts.to_id):
            return
        url = unbracket(facts.to_url) or facts.url
        dated = self._of_capture(url, facts.to_date) if facts.to_date else []
        full = [row for row in dated if row.facts.kind in FULL]
        if not full and not facts.to_date:  # which is reported; look for the payload
            same_digest = [row for row in self._of_digest(facts) if row.facts.url == url]
            full = [row for row in self._of_id(facts) + same_digest if row.facts.kind in FULL]
        if not full:
            yield self._missing(facts, url, dated, (file, offset), files)
            return
        best = _best(facts, full)
        original = best.facts
        yield from revisits.original_issues(facts, original)
        for row in self._of_capture(facts.url, facts.date):
            if (row.file, row.offset) != (file, offset) and row != best:
                same_header = row.facts.header_hash == facts.header_hash
                if not same_header or _differ(row.facts, facts):
                    message = "another record has its URL and second, but another payload or header"
                    yield "same-moment", message
                    break
        if not_modified:
            return
        if original.url != facts.url and self._is_posted(original):
            yield "unfit-original", "its original answers another request than GET, of another URL"
        if any(_differ(row.facts, original) for row in dated):
            yield "ambiguous-original", "another payload has the URL and second of its original"

    def _is_posted(self, facts: Facts) -> bool:
        keys = [b"to " + facts.record_id, *(b"by " + request for request in facts.concurrent)]
        query = "SELECT 1 FROM posted WHERE key = ?"
        return any(self._database.execute(query, (key,)).fetchone() for key in keys)

    def _missing(
        self, facts: Facts, url: bytes, dated: list[ReferenceRow], place: tuple[int, int],
        files: list[str],
    ) -> Issue:  # fmt: skip
        """Why a revisit has no full record of the URL and date that it states."""
        same_second = timestamp14(facts.to_date) == timestamp14(facts.date)
        own = unbracket(facts.to_url) == facts.url and same_second
        if facts.to_id == facts.record_id != b"" or (own and facts.to_date):
            return "self-reference", "it refers to itself, and nowhere is a full record"
        same_id, same_digest = self._of_id(facts), self._of_digest(facts)
        for row in dated + same_id:
            if row.facts.kind == b"revisit" and (row.file, row.offset) != place:
                return "chained", f"it refers to a revisit: {files[row.file]} at {row.offset}"
        same_both = [row for row in same_digest if row.facts.url == url]
        for row in same_both + same_id + same_digest:
            if row.facts.kind in FULL:
                where = f"{files[row.file]} at {row.offset}"
                if row.facts.url == url:
                    date = row.facts.date.decode("ascii", "replace")
                    return "wrong-date", f"the record of that URL is of {date}: {where}"
                return "misdirected", f"no such URL and date, but the payload is in {where}"
        meant = b" of ".join(filter(None, (url, facts.to_date))).decode("utf-8", "replace")
        return "dangling", f"what it refers to is nowhere in the places given: {meant}"

    def _of_capture(self, url: bytes, date: bytes) -> list[ReferenceRow]:
        return self._select("capture", capture_key(url, date))

    def _of_digest(self, facts: Facts) -> list[ReferenceRow]:
        """The records with the digest of a revisit; none if that is cut."""
        stated = read_digest(facts.digest)
        if not facts.digest or (stated is not None and stated.is_cut):
            return []
        return self._select("digest", _digest_key(facts.digest))

    def _of_id(self, facts: Facts) -> list[ReferenceRow]:
        return self._select("id", facts.to_id) if facts.to_id else []

    def _select(self, column: str, key: bytes) -> list[ReferenceRow]:
        query = f"SELECT file, offset, facts, own FROM records WHERE {column} = ? "
        query += f"ORDER BY full DESC, rowid LIMIT {_MAX_RECORDS}"
        return [
            ReferenceRow(file, offset, Facts(*marshal.loads(facts)), bool(own))
            for file, offset, facts, own in self._database.execute(query, (key,))
        ]


def _posted_keys(request: Facts) -> list[bytes]:
    """Keys for the answer to a request, which the request names, or which names the request."""
    return [b"by " + request.record_id, *(b"to " + answer for answer in request.concurrent)]


def _differ(one: Facts, other: Facts) -> bool:
    """Whether two records certainly have different payloads."""
    mine, theirs = _digests(one), _digests(other)
    comparable = {algorithm for algorithm, _ in mine} & {algorithm for algorithm, _ in theirs}
    return bool(comparable) and not mine & theirs


def _digests(facts: Facts) -> set[tuple[str, bytes]]:
    stated = read_digest(facts.digest)
    return {(stated.algorithm, stated.raw)} if stated else {("sha1", raw) for raw in facts.computed}


def _best(revisit: Facts, full: list[ReferenceRow]) -> ReferenceRow:
    """The best original among records of the same URL and second."""

    def fitness(row: ReferenceRow) -> tuple[bool, bool, bool]:
        same = revisit.digest == row.facts.digest
        return same, row.facts.record_id == revisit.to_id, row.facts.date == revisit.to_date

    return max(full, key=fitness)


def _sql_row(row: ReferenceRow) -> tuple[object, ...]:
    facts = row.facts
    return (
        row.file,
        row.offset,
        facts.kind in FULL,
        row.own,
        capture_key(facts.url, facts.date),
        facts.record_id or None,
        _digest_key(facts.digest) if facts.digest and facts.kind in FULL else None,
        marshal.dumps(tuple(facts)),
    )


def _digest_key(text: bytes) -> bytes:
    stated = read_digest(text)
    return text if stated is None else stated.algorithm.encode() + stated.raw


class Collection:
    """Archives to check, and others that may have originals; counts what was read."""

    def __init__(
        self,
        paths: Iterable[Path],
        originals: Iterable[Path] = (),
        on_progress: OnProgress = lambda seen: None,
    ) -> None:
        self._on_progress = on_progress
        seen: set[tuple[int, int]] = set()
        self._own = list(_archives(paths, seen))
        self._others = list(_archives(originals, seen))
        self.files = len(self._own)
        self.records = 0
        self.revisits = 0

    def findings(self) -> Iterator[Finding]:
        """Yield what is wrong with records, file by file; then with references."""
        paths = self._own + self._others
        with (
            TemporaryDirectory(prefix="dedupindex-verify-") as beside,
            closing(References(Path(beside) / "records.sqlite")) as references,
        ):
            tasks = [(path, Path(beside) / str(number)) for number, path in enumerate(paths)]
            size, done = size_of(paths), 0
            for number, spool in enumerate(in_order(_read, tasks, size)):
                yield from self._add(references, spool, number, own=number < len(self._own))
                spool.unlink()
                done += size_of(paths[number : number + 1])
                self._on_progress(ProgressUpdate("reading", done, size, self.records))
            yield from references.findings([str(path) for path in paths])

    def totals(self) -> dict[str, int]:
        return {"files": self.files, "records": self.records, "revisits": self.revisits}

    def _add(
        self, references: References, spool: Path, number: int, *, own: bool
    ) -> Iterator[Finding]:
        for records, rows, findings, posted in spooled(spool):
            references.add_posted(posted)
            if own:
                self.records += records
                yield from (Finding(*finding) for finding in findings)
            stored = [ReferenceRow(number, offset, Facts(*facts), own) for offset, facts in rows]
            self.revisits += sum(own and row.facts.kind == b"revisit" for row in stored)
            references.add(stored)


def verify_collection(paths: Iterable[Path], originals: Iterable[Path] = ()) -> Iterator[Finding]:
    """Check archives; originals may also be in files that are not checked."""
    return Collection(paths, originals).findings()


def _archives(paths: Iterable[Path], seen: set[tuple[int, int]]) -> Iterator[Path]:
    """The archives at or below `paths`; of a file with several names, one. Updates `seen`."""
    for path in paths:
        if not path.exists():
            raise BadSource(f"{path} does not exist")
        for found in archives_below(path):
            status = found.stat()
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                yield found


def archives_below(path: Path, wanted: Callable[[Path], bool] = is_archive) -> Iterator[Path]:
    """Yield a file itself, or the `wanted` files below a directory, sorted by name.

    Hidden files are skipped: journals, and files that are being written.
    """
    if not path.is_dir():
        if not path.is_file():
            raise BadSource(f"{path} is neither a file nor a folder")
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            found = Path(folder, name)
            if not name.startswith(".") and found.is_file() and wanted(found):
                yield found


def size_of(paths: Iterable[Path]) -> int:
    """The total size of files, without those that do not exist."""
    size = 0
    for path in paths:
        with suppress(OSError):
            size += path.stat().st_size
    return size


def in_order(work: Callable[[T], R], tasks: list[T], size: int) -> Iterator[R]:
    """Run tasks on `size` bytes of files, in several processes; yields results in their order."""
    jobs = min(len(os.sched_getaffinity(0)), len(tasks), size // _WORTH_A_PROCESS)
    if jobs < 2:
        yield from map(work, tasks)
        return
    with workers(jobs) as pool:
        yield from pool.map(work, tasks)


def _read(task: tuple[Path, Path]) -> Path:
    """Examine all records of a file; writes the results to a spool file and returns it."""
    path, spool = task
    with open(spool, "wb") as stream:
        batch = _Batch(stream)
        try:
            with opened(path) as file:
                container = Container(file)
                for item in container.each():
                    if isinstance(item, Finding):
                        batch.findings.append(tuple(item))
                    else:
                        batch.take(container, item)
                    batch.write(at_least=_BATCH)
        except UnreadableFile as error:
            batch.findings.append(tuple(Finding("unreadable", str(path), -1, "", str(error))))
        batch.write()
    return spool


class _Batch:
    """Results on their way to a spool file."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.records = 0
        self.rows: list[tuple[int, tuple[object, ...]]] = []
        self.findings: list[tuple[object, ...]] = []
        self.posted: list[bytes] = []  # see `_posted_keys`

    def take(self, container: Container, record: AnyRecord) -> None:
        """Examine one record."""
        issues: list[Issue] = []
        examined = try_examine(record, issues)
        if examined is not None:
            facts, message = examined
            if facts.kind in FULL or facts.kind == b"revisit":
                self.rows.append((record.offset, tuple(facts)))
            elif facts.method not in (b"", b"GET"):
                self.posted.extend(_posted_keys(facts))
            if facts.kind == b"revisit" and isinstance(record, CheckedRecord):
                issues.extend(revisits.own_issues(record, facts))
                issues.extend(revisits.http_issues(message, facts))
        self.records += record.kind != b"arc-header"
        for reason, text in issues:
            finding = container.finding(reason, record.offset, text, record.record_id)
            self.findings.append(tuple(finding))

    def write(self, at_least: int = 0) -> None:
        """Write what was added, if it is enough."""
        if self.records + len(self.findings) >= at_least:
            batch = self.records, self.rows, self.findings, self.posted
            marshal.dump(batch, self._stream)
            self.records, self.rows, self.findings, self.posted = 0, [], [], []


def spooled(spool: Path) -> Iterator[Any]:
    """Yield what a process wrote to a file with `marshal`."""
    with open(spool, "rb") as stream:
        while stream.peek(1):
            yield marshal.load(stream)
