"""A whole collection: each file by a process of its own, then what refers to what."""

from __future__ import annotations

import marshal
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, NamedTuple, TypeVar

from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.errors import BadSource
from dedupindex.runtime.workers import workers
from dedupindex.verify import revisits
from dedupindex.verify.block_facts import FULL, Facts, Note, bare, checked, moment
from dedupindex.verify.file_bytes import UnreadableFile, opened
from dedupindex.verify.http_blocks import is_cut, read
from dedupindex.verify.issues import Finding
from dedupindex.verify.parse_records import CheckedRecord
from dedupindex.verify.walk_file import AnyRecord, Container, is_archive

# What every revisit of a collection refers to, looked up out of core in SQLite.

_TABLE = """
CREATE TABLE records (
  file INTEGER, offset INTEGER, full INTEGER, own INTEGER,
  moment BLOB, id BLOB, digest BLOB, facts BLOB)
"""
_POSTED = "CREATE TABLE posted (key BLOB PRIMARY KEY) WITHOUT ROWID"
_INDEXES = ("moment", "id", "digest")
_MOST = 64  # records of one URL and second, or of one digest, that are looked at


class ReferenceRow(NamedTuple):
    """A record that refers, or may be referred to."""

    file: int
    offset: int
    facts: Facts
    own: bool  # part of what is checked, not only a place for originals


class References:
    """All rows of a collection; `findings` once they are all there."""

    def __init__(self, path: Path | str = "") -> None:
        self._database = sqlite3.connect(path)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute(_TABLE)
        self._database.execute(_POSTED)

    def close(self) -> None:
        self._database.close()

    def add(self, rows: Iterable[ReferenceRow]) -> None:
        """Keep rows."""
        insert = "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        self._database.executemany(insert, map(_stored, rows))

    def add_posted(self, keys: Iterable[bytes]) -> None:
        """Keep who answers requests other than GET, see `posted_by`."""
        insert = "INSERT OR IGNORE INTO posted VALUES (?)"
        self._database.executemany(insert, ((key,) for key in keys))

    def findings(self, files: list[str]) -> Iterator[Finding]:
        """What is wrong with references, in the order of files; `files` are named by number."""
        for column in _INDEXES:
            self._database.execute(f"CREATE INDEX by_{column} ON records ({column})")
        yield from self._doubles(files)
        query = "SELECT file, offset, facts FROM records WHERE full = 0 AND own ORDER BY rowid"
        for file, offset, stored in self._database.execute(query):
            facts = Facts(*marshal.loads(stored))
            for reason, message in self._judged(facts, file, offset, files):
                record_id = facts.record_id.decode("utf-8", "replace")
                yield Finding(reason, files[file], offset, record_id, message)

    def _doubles(self, files: list[str]) -> Iterator[Finding]:
        query = """
        SELECT id, min(file), offset, count(*) FROM records WHERE own AND id IS NOT NULL
        GROUP BY id HAVING count(*) > 1 ORDER BY min(rowid)
        """
        for record_id, file, offset, count in self._database.execute(query):
            name = record_id.decode("utf-8", "replace")
            message = f"{count} records have this WARC-Record-ID"
            yield Finding("duplicate-record-id", files[file], offset, name, message)

    def _judged(
        self, facts: Facts, file: int, offset: int, files: list[str]
    ) -> Iterator[tuple[str, str]]:
        url = bare(facts.to_url) or facts.url
        if revisits.not_modified(facts.profile) and not (facts.to_date or facts.to_id):
            return
        there = self._at("moment", _moment_key(url, facts.to_date)) if facts.to_date else []
        full = [row for row in there if row.facts.kind in FULL]
        if not full and not facts.to_date:  # said by other findings; is the payload there?
            alike = self._alike(facts)
            meant = [*self._named(facts), *(row for row in alike if row.facts.url == url)]
            full = [row for row in meant if row.facts.kind in FULL]
        if full:
            row = _best(facts, full)
            best = row.facts
            yield from revisits.beside(facts, best)
            own = file, offset
            twins = self._at("moment", _moment_key(facts.url, facts.date))
            others = [one for one in twins if (one.file, one.offset) != own and one != row]
            if any(not _shown_alike(facts, one.facts) for one in others):
                message = "another record has its URL and second, but another payload or header"
                yield "same-moment", message
            if not revisits.not_modified(facts.profile):
                yield from self._found_by_others(facts, best, [row.facts for row in there])
        else:
            yield self._nowhere(facts, url, file, offset, files)

    def _found_by_others(
        self, revisit: Facts, original: Facts, there: list[Facts]
    ) -> Iterator[tuple[str, str]]:
        """Why some replay tool may find another record, or none, where this original is."""
        if original.url != revisit.url and self._is_posted(original):
            yield "unfit-original", "its original answers another request than GET, of another URL"
        if any(_differ(one, original) for one in there):
            yield "ambiguous-original", "another payload has the URL and second of its original"

    def _is_posted(self, facts: Facts) -> bool:
        keys = [b"to " + facts.record_id, *(b"by " + one for one in facts.concurrent)]
        query = "SELECT 1 FROM posted WHERE key = ?"
        return any(self._database.execute(query, (key,)).fetchone() for key in keys)

    def _nowhere(
        self, facts: Facts, url: bytes, file: int, offset: int, files: list[str]
    ) -> tuple[str, str]:
        """Why there is no full record where a revisit says one is."""
        own = bare(facts.to_url) == facts.url and moment(facts.to_date) == moment(facts.date)
        if facts.to_id == facts.record_id != b"" or (own and facts.to_date):
            return "self-reference", "it refers to itself, and nowhere is a full record"
        there = self._at("moment", _moment_key(url, facts.to_date)) if facts.to_date else []
        named = self._named(facts)
        for row in [*there, *named]:
            if row.facts.kind == b"revisit" and (row.file, row.offset) != (file, offset):
                return "chained", f"it refers to a revisit: {files[row.file]} at {row.offset}"
        alike = self._alike(facts)
        for row in [*(row for row in alike if row.facts.url == url), *named, *alike]:
            if row.facts.kind in FULL:
                place = f"{files[row.file]} at {row.offset}"
                if row.facts.url == url:
                    date = row.facts.date.decode("ascii", "replace")
                    return "wrong-date", f"the record of that URL is of {date}: {place}"
                return "misdirected", f"no such URL and date, but the payload is in {place}"
        meant = b" of ".join(filter(None, (url, facts.to_date))).decode("utf-8", "replace")
        return "dangling", f"what it refers to is nowhere in the places given: {meant}"

    def _alike(self, facts: Facts) -> list[ReferenceRow]:
        """Records with the digest of a revisit, unless it says of no payload which it is."""
        stated = read(facts.digest)
        if not facts.digest or (stated is not None and is_cut(stated)):
            return []
        return self._at("digest", _digest_key(facts.digest))

    def _named(self, facts: Facts) -> list[ReferenceRow]:
        return self._at("id", facts.to_id) if facts.to_id else []

    def _at(self, column: str, key: bytes) -> list[ReferenceRow]:
        query = f"SELECT file, offset, facts, own FROM records WHERE {column} = ? "
        query += f"ORDER BY full DESC, rowid LIMIT {_MOST}"
        return [
            ReferenceRow(file, offset, Facts(*marshal.loads(facts)), bool(own))
            for file, offset, facts, own in self._database.execute(query, (key,))
        ]


def posted_by(request: Facts) -> list[bytes]:
    """By what the answer to a request is known: it is named there, or names the request."""
    return [b"by " + request.record_id, *(b"to " + one for one in request.concurrent)]


def _differ(one: Facts, other: Facts) -> bool:
    """Whether two records certainly have different payloads."""
    mine, theirs = _sums(one), _sums(other)
    alike = {algorithm for algorithm, _ in mine} & {algorithm for algorithm, _ in theirs}
    return bool(alike) and not mine & theirs


def _shown_alike(one: Facts, other: Facts) -> bool:
    """Whether replay shows the same, whichever of two records of a URL and second it takes."""
    return one.header_hash == other.header_hash and not _differ(one, other)


def _sums(facts: Facts) -> set[tuple[str, bytes]]:
    stated = read(facts.digest)
    return {(stated.algorithm, stated.raw)} if stated else {("sha1", one) for one in facts.sums}


def _best(revisit: Facts, full: list[ReferenceRow]) -> ReferenceRow:
    """The record that is meant, where several have the URL and second."""

    def fitness(row: ReferenceRow) -> tuple[bool, bool, bool]:
        same = revisit.digest == row.facts.digest
        return same, row.facts.record_id == revisit.to_id, row.facts.date == revisit.to_date

    return max(full, key=fitness)


def _stored(row: ReferenceRow) -> tuple[object, ...]:
    facts = row.facts
    return (
        row.file,
        row.offset,
        facts.kind in FULL,
        row.own,
        _moment_key(facts.url, facts.date),
        facts.record_id or None,
        _digest_key(facts.digest) if facts.digest and facts.kind in FULL else None,
        marshal.dumps(tuple(facts)),
    )


def _moment_key(url: bytes, date: bytes) -> bytes:
    return blake2b(moment(date) + b" " + url, digest_size=16).digest()


def _digest_key(text: bytes) -> bytes:
    stated = read(text)
    return text if stated is None else stated.algorithm.encode() + stated.raw


T = TypeVar("T")
R = TypeVar("R")
_BATCH = 1000
_WORTH_A_PROCESS = 8 << 20  # bytes: starting one costs as much as reading so many


class Collection:
    """What is checked, and places where further originals are; counts what was read."""

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
        """Everything that is wrong: with records, file by file; then with references."""
        paths = self._own + self._others
        with TemporaryDirectory(prefix="dedupindex-verify-") as beside:
            references = References(Path(beside) / "records.sqlite")
            try:
                spools = [Path(beside) / str(number) for number in range(len(paths))]
                tasks = list(zip(paths, spools, strict=True))
                size, done = size_of(paths), 0
                for number, spool in enumerate(in_order(_read, tasks, size)):
                    own = number < len(self._own)
                    yield from self._take(references, spool, number, own)
                    spool.unlink()
                    done += size_of(paths[number : number + 1])
                    self._on_progress(ProgressUpdate("reading", done, size, self.records))
                yield from references.findings([str(path) for path in paths])
            finally:
                references.close()

    def totals(self) -> dict[str, int]:
        """What was read."""
        return {"files": self.files, "records": self.records, "revisits": self.revisits}

    def _take(
        self, references: References, spool: Path, number: int, own: bool
    ) -> Iterator[Finding]:
        for records, rows, findings, posted in _batches(spool):
            references.add_posted(posted)
            if own:
                self.records += records
                yield from (Finding(*finding) for finding in findings)
            stored = [ReferenceRow(number, offset, Facts(*facts), own) for offset, facts in rows]
            self.revisits += sum(own and row.facts.kind == b"revisit" for row in stored)
            references.add(stored)


def verify_collection(paths: Iterable[Path], originals: Iterable[Path] = ()) -> Iterator[Finding]:
    """Check archives, whoever wrote them; originals may also be in files that are not checked."""
    return Collection(paths, originals).findings()


def _archives(paths: Iterable[Path], seen: set[tuple[int, int]]) -> Iterator[Path]:
    """The archives at or below `paths`, each file once, whatever names it has."""
    for path in paths:
        if not path.exists():
            raise BadSource(f"{path} does not exist")
        for found in archives_below(path):
            status = found.stat()
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                yield found


def archives_below(path: Path, wanted: Callable[[Path], bool] = is_archive) -> Iterator[Path]:
    """A file itself, or the archives below a directory, sorted by name; `wanted` knows them.

    Names that begin with a dot are passed over: journals, and files that are not whole.
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
    """How large files are together, those that are gone left out."""
    size = 0
    for path in paths:
        with suppress(OSError):
            size += path.stat().st_size
    return size


def in_order(work: Callable[[T], R], tasks: list[T], size: int) -> Iterator[R]:
    """Do the tasks, of `size` bytes together, side by side; results in their order."""
    jobs = min(len(os.sched_getaffinity(0)), len(tasks), size // _WORTH_A_PROCESS)
    if jobs < 2:
        yield from map(work, tasks)
        return
    with workers(jobs) as pool:
        yield from pool.map(work, tasks)


def _read(task: tuple[Path, Path]) -> Path:
    """Examine every record of a file; what is found goes to a spool file."""
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
        self.posted: list[bytes] = []  # see `posted_by`

    def take(self, container: Container, record: AnyRecord) -> None:
        """Examine one record."""
        notes: list[Note] = []
        examined = checked(record, notes)
        if examined is not None:
            facts, message = examined
            if facts.kind in FULL or facts.kind == b"revisit":
                self.rows.append((record.offset, tuple(facts)))
            elif facts.method not in (b"", b"GET"):
                self.posted.extend(posted_by(facts))
            if facts.kind == b"revisit" and isinstance(record, CheckedRecord):
                notes.extend(revisits.alone(record, facts))
                notes.extend(revisits.headers(message, facts))
        self.records += record.kind != b"arc-header"
        for reason, text in notes:
            finding = container.finding(reason, record.offset, text, record.record_id)
            self.findings.append(tuple(finding))

    def write(self, at_least: int = 0) -> None:
        """Write what has gathered, if it is enough."""
        if self.records + len(self.findings) >= at_least:
            batch = self.records, self.rows, self.findings, self.posted
            marshal.dump(batch, self._stream)
            self.records, self.rows, self.findings, self.posted = 0, [], [], []


def _batches(spool: Path) -> Iterator[tuple[int, list[Any], list[Any], list[bytes]]]:
    with open(spool, "rb") as stream:
        while stream.peek(1):
            yield marshal.load(stream)
