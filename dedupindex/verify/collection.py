"""Check a collection: the files, several at once, then the references between their records."""

from __future__ import annotations

import marshal
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar

from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.errors import BadSource
from dedupindex.runtime.scratch_database import open_scratch
from dedupindex.runtime.walk_directories import OnError, is_file, walk_visible
from dedupindex.runtime.workers import workers
from dedupindex.verify import revisits
from dedupindex.verify.block_facts import (
    FULL,
    Facts,
    capture_key,
    read_digest,
    timestamp14,
    try_examine,
)
from dedupindex.verify.file_bytes import Elsewhere, Place, UnreadableFile, opened, size_of
from dedupindex.verify.issues import DAMAGE, Finding, Issue
from dedupindex.verify.parse_records import AnyRecord, CheckedRecord, unbracket
from dedupindex.verify.walk_file import Container, is_archive

T = TypeVar("T")
R = TypeVar("R")
ExecutorRows = Callable[[Callable[[Any], Iterable[Any]], Iterable[Any]], Iterator[Any]]
"""Called with work and tasks; yields the results of ``work(task)`` on executors, task by task."""
_BATCH = 1000  # results that are written to a file at once
_ROW = 100  # results in a row of Spark, which holds a thousand rows of any size
_WORTH_A_PROCESS = 8 << 20  # bytes: starting a process costs as much as reading so many
_BEHIND_DAMAGE = "it stands behind damage in its file, where replay tools stop reading"
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
        self._database = open_scratch(path)
        self._database.execute(_TABLE)
        self._database.execute(_POSTED)

    def close(self) -> None:
        self._database.close()

    def add(self, row: ReferenceRow) -> None:
        facts, full = row.facts, row.facts.kind in FULL
        digest = _digest_key(facts.digest) if full and facts.digest else None
        keys = capture_key(facts.url, facts.date), facts.record_id or None, digest
        values = row.file, row.offset, full, row.own, *keys, marshal.dumps(tuple(facts))
        self._database.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)

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
            message = f"{count:,} records have this WARC-Record-ID"
            yield Finding("duplicate-record-id", files[file], offset, name, message)

    def _check(self, facts: Facts, file: int, offset: int, files: list[str]) -> Iterator[Issue]:
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
        where = f" ({files[best.file]} at {best.offset})"
        for reason, message in revisits.original_issues(facts, original):
            yield reason, message + where
        for row in self._of_capture(facts.url, facts.date):
            if (row.file, row.offset) != (file, offset) and row != best:
                same_header = row.facts.header_hash == facts.header_hash
                if not same_header or _differ(row.facts, facts):
                    message = "another record has its URL and second, but another payload or header"
                    yield "same-second", message
                    break
        if not_modified:
            return
        if original.url != facts.url and self._is_posted(original):
            yield (
                "unusable-original",
                f"its original answers another request than GET, of another URL{where}",
            )
        if any(_differ(row.facts, original) for row in dated):
            message = "another payload has the URL and second of its original"
            yield "ambiguous-original", message + where

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
                return "misdirected", f"{_lacking(facts)}, but the payload is in {where}"
        by_id = facts.to_id if not (facts.to_url or facts.to_date) else b""
        named = [by_id] if by_id else filter(None, (url, facts.to_date))
        meant = b" of ".join(named).decode("utf-8", "replace")
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


def _lacking(facts: Facts) -> str:
    """Return what a revisit states of its original of which there is no full record."""
    if facts.to_date:
        return "no such URL and date"
    if facts.to_url:
        return "no such URL"
    named = "the record that it names is not in the places given"
    return f"it states no URL and date, and {named if facts.to_id else 'names no record'}"


def _best(revisit: Facts, full: list[ReferenceRow]) -> ReferenceRow:
    """The best original among records of the same URL and second."""

    def fitness(row: ReferenceRow) -> tuple[bool, bool, bool, bool]:
        facts = row.facts
        same_id, same_date = facts.record_id == revisit.to_id, facts.date == revisit.to_date
        return revisit.digest == facts.digest, same_id, same_date, not facts.not_original_reason

    return max(full, key=fitness)


def _digest_key(text: bytes) -> bytes:
    stated = read_digest(text)
    return text if stated is None else stated.algorithm.encode() + stated.raw


class Collection:
    """Archives to check, and others that may have originals; counts what was read."""

    def __init__(
        self,
        paths: Iterable[Place],
        originals: Iterable[Place] = (),
        on_progress: OnProgress = lambda seen: None,
        rows: ExecutorRows | None = None,
    ) -> None:
        """With `rows` executors read the files, else processes of this machine."""
        self._on_progress, self._rows = on_progress, rows
        seen = set[object]()
        self._unreadable: list[Finding] = []  # directories
        on_error = unreadable_to(self._unreadable)
        again = list[Place]()
        self._own = list(_archives(paths, seen, on_error, again))
        self.other_names = len(again)  # of files that are read under another one
        self._others = list(_archives(originals, seen, on_error, again))
        self.files = len(self._own)
        self.records = 0
        self.revisits = 0

    def findings(self) -> Iterator[Finding]:
        """Yield the directories that cannot be listed, what is wrong with records, file by file,
        and then with references.
        """
        paths = self._own + self._others
        yield from self._unreadable
        with (
            TemporaryDirectory(prefix="dedupindex-verify-") as beside,
            closing(References(Path(beside) / "records.sqlite")) as references,
        ):
            for number, examined in self._examine(paths):
                own = number < self.files
                references.add_posted(examined.posted)
                if (facts := examined.facts) is not None:
                    references.add(ReferenceRow(number, examined.offset, facts, own))
                    self.revisits += own and facts.kind == b"revisit"
                if own:
                    self.records += examined.is_record
                    yield from examined.findings
            yield from references.findings([str(path) for path in paths])

    def totals(self) -> dict[str, int]:
        return {"files": self.files, "records": self.records, "revisits": self.revisits}

    def _examine(self, paths: list[Place]) -> Iterator[tuple[int, _Examined]]:
        return in_order(_examined, paths, paths, self._report, self._rows)

    def _report(self, done: int, total: int) -> None:
        self._on_progress(ProgressUpdate("reading", done, total, self.records))


def _archives(
    paths: Iterable[Place], seen: set[object], on_error: OnError, again: list[Place]
) -> Iterator[Place]:
    """The archives at or below `paths`; of a file with several names, one.

    Updates `seen`, and adds the other names to `again`.
    """
    for path in paths:
        check_exists(path)
        for found in archives_below(path, on_error):
            key: object = found
            if isinstance(found, Path):
                status = found.stat()
                key = status.st_dev, status.st_ino
            if key in seen:
                again.append(found)
                continue
            seen.add(key)
            yield found


def check_exists(path: Place) -> None:
    """Raise `BadSource` unless a file or directory of this machine exists."""
    if isinstance(path, Path) and not path.exists():
        raise BadSource(f"{path} does not exist")


def resolved(path: Place) -> Place:
    """Return a path without symbolic links."""
    return path.resolve() if isinstance(path, Path) else path


def unreadable_to(findings: list[Finding]) -> OnError:
    """Return what adds a finding for a directory that cannot be listed, unless there is one."""

    def add(error: OSError) -> None:
        message = f"it cannot be read ({error.strerror}): what it holds is not known"
        finding = Finding("unreadable", os.path.abspath(error.filename), -1, "", message)
        if finding not in findings:
            findings.append(finding)

    return add


def archives_below(path: Place, on_error: OnError) -> Iterator[Place]:
    """Yield a file, or the archives below a directory by name; hidden ones are skipped."""
    if path.is_dir():
        yield from (found for _, found in files_below(path, is_archive, on_error))
    elif isinstance(path, Path) and not path.is_file():
        raise BadSource(f"{path} is neither a file nor a folder")
    else:
        yield path


def files_below(
    path: Place, wanted: Callable[[Place], bool], on_error: OnError
) -> Iterator[tuple[str, Place]]:
    """Yield the names and paths of the `wanted` files below a directory, hidden ones skipped.

    Links are followed as `bin/dedup` follows them: it would else not be seen what that left out.
    """
    if isinstance(path, Elsewhere):
        for name, elsewhere in path.below():
            hidden = any(part.startswith(".") for part in name.split("/"))
            if not hidden and wanted(elsewhere):
                yield name, elsewhere
        return
    for found in map(Path, walk_visible(path, on_error)):
        if is_file(found, on_error) and wanted(found):
            yield str(found.relative_to(path)), found


def in_order(
    work: Callable[[T], Iterable[R]],
    tasks: Iterable[T],
    files: Sequence[Place],
    on_done: Callable[[int, int], None] = lambda done, total: None,
    rows: ExecutorRows | None = None,
) -> Iterator[tuple[int, R]]:
    """Yield the number and each result of every task, in the order of tasks.

    Each task reads one of `files`; large ones are read in several processes, or with `rows` all on
    executors. `on_done` is called after each task, with the bytes of the files that were read and
    of all.
    """
    sizes = list(map(size_of, files))
    jobs = min(len(os.sched_getaffinity(0)), len(files), sum(sizes) // _WORTH_A_PROCESS)
    with ExitStack() as stack:
        results: Iterator[Iterable[R]] = map(work, tasks)
        if rows is not None:
            results = _by_task(rows(partial(_batches, work), tasks))
        elif jobs > 1:  # their results may be too many for memory
            beside = stack.enter_context(TemporaryDirectory(prefix="dedupindex-verify-"))
            spools = [Path(beside, str(number)) for number in range(len(files))]
            pool = stack.enter_context(workers(jobs))
            results = map(_spooled, pool.map(_spool, repeat(work), tasks, spools))
        done = 0
        for number, found in enumerate(results):
            for result in found:
                yield number, result
            done += sizes[number]
            on_done(done, sum(sizes))


def _batches(work: Callable[[T], Iterable[R]], task: T) -> Iterator[list[R]]:
    """Yield the results of a task in lists, the last of which is empty."""
    results = iter(work(task))
    while batch := list(islice(results, _ROW)):
        yield batch
    yield []


def _by_task(batches: Iterator[list[R]]) -> Iterator[Iterator[R]]:
    """Yield an iterator for each task over its results, to be exhausted before the next."""
    for first in batches:
        yield chain.from_iterable(chain([first], iter(partial(next, batches), []) if first else ()))


def _spool(work: Callable[[T], Iterable[object]], task: T, spool: Path) -> Path:
    with open(spool, "wb") as stream:
        results = iter(work(task))
        while batch := list(islice(results, _BATCH)):
            pickle.dump(batch, stream)
    return spool


def _spooled(spool: Path) -> Iterator[Any]:
    with open(spool, "rb") as stream:
        while stream.peek(1):
            yield from pickle.load(stream)  # noqa: S301 (nobody else has this file)
    spool.unlink()


class _Examined(NamedTuple):
    """What one record states, and what is wrong with it; or what is between records."""

    findings: list[Finding]
    offset: int = -1
    facts: Facts | None = None  # of a revisit, or of what one may refer to
    posted: Sequence[bytes] = ()  # see `_posted_keys`
    is_record: bool = False


def _examined(path: Place) -> Iterator[_Examined]:
    """Examine all of a file."""
    behind_damage = False
    try:
        with opened(path) as file:
            container = Container(file)
            for item in container.each():
                if isinstance(item, Finding):
                    behind_damage = behind_damage or item.level == DAMAGE
                    yield _Examined([item])
                    continue
                examined = _examine(container, item)
                if behind_damage and (facts := examined.facts) is not None:
                    reason = facts.not_original_reason or _BEHIND_DAMAGE
                    facts = facts._replace(not_original_reason=reason)
                    examined = examined._replace(facts=facts)
                yield examined
    except UnreadableFile as error:
        yield _Examined([Finding("unreadable", str(path), -1, "", str(error))])


def _examine(container: Container, record: AnyRecord) -> _Examined:
    issues: list[Issue] = []
    referable, posted = None, list[bytes]()
    if (examined := try_examine(record, issues)) is not None:
        facts, message = examined
        if facts.kind in FULL or facts.kind == b"revisit":
            referable = facts
        elif facts.method not in (b"", b"GET"):
            posted = _posted_keys(facts)
        if facts.kind == b"revisit" and isinstance(record, CheckedRecord):
            issues.extend(revisits.own_issues(record, facts))
            issues.extend(revisits.http_issues(message, facts))
    at, name = record.offset, record.record_id
    findings = [container.finding(reason, at, message, name) for reason, message in issues]
    return _Examined(findings, record.offset, referable, posted, record.kind != b"arc-header")
