"""The report of a deduplication run, its verification, and its numbers by host."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import orjson

from dedupindex.capture import Problem
from dedupindex.errors import Damaged
from dedupindex.object_store import ObjectFacts, facts_or_none, is_remote, task_rows
from dedupindex.post_crawl.manifest.parquet import Manifest, ManifestContainer, fetch_rows
from dedupindex.post_crawl.rewrite.journal import DIRECTORY, Journal, OffsetMap
from dedupindex.post_crawl.rewrite.result_place import (
    FILE_LEFT,
    DirectoryPlace,
    MissingFile,
    to_verify,
)
from dedupindex.post_crawl.rewrite.rewrite_file import RewriteJob, RewriteOutcome
from dedupindex.post_crawl.rewrite.stored_journal import StoredJournal, download, stored_offsets
from dedupindex.runtime.atomic_replace import Untouched, hash_of
from dedupindex.runtime.duckdb import Database, from_json, open_database, quoted
from dedupindex.runtime.report_table import ReportColumn, Row, Table, Unit, exact_percent
from dedupindex.runtime.spark import Cluster
from dedupindex.runtime.tables import amount, singular
from dedupindex.runtime.workers import side_by_side
from dedupindex.sources.warc_files import Sources
from dedupindex.verify.block_facts import timestamp14
from dedupindex.verify.compare_files import ComparedPart, verify_pair
from dedupindex.verify.file_bytes import Joined, Place, UnreadableFile
from dedupindex.verify.issues import REMARK, Finding
from dedupindex.verify.locate_originals import OriginalHint, OriginalReference

NO_ARCHIVE = "it cannot be read as WARC or ARC"
_NAMED = 100  # findings of a file that are kept, remarks excluded; more are only counted
_HOST = r"^[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#]*@)?([^/?#:]+|\[[^\]/?#]*\])"
_HOST_OF_URL = f"""coalesce(
  nullif(rtrim(lower(regexp_extract(url, {quoted(_HOST)}, 1)), '.'), ''),
  left(lower(split_part(url, ':', 1)), 255))"""
_LONGEST = 1 << 24  # bytes of a line of JSON
_HOST_ORDER = "ORDER BY saved DESC, captures DESC, host"


@dataclass
class Proof:
    """What verification found in one file, or in many."""

    files: int = 0
    size: int = 0  # of the files before, in bytes
    findings: Counter[str] = field(default_factory=Counter)  # by reason
    levels: Counter[str] = field(default_factory=Counter)
    named: list[Finding] = field(default_factory=list)  # the first that are not remarks

    @property
    def sound(self) -> bool:
        """Whether there are only remarks."""
        return set(self.levels) <= {REMARK}

    def add_findings(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self.findings[finding.reason] += 1
            self.levels[finding.level] += 1
            if finding.level != REMARK and len(self.named) < _NAMED:
                self.named.append(finding)

    def add(self, other: Proof) -> None:
        self.files += other.files
        self.size += other.size
        self.findings.update(other.findings)
        self.levels.update(other.levels)
        self.named = [*self.named, *other.named][:_NAMED]


class VerifyJob(NamedTuple):
    job: RewriteJob
    damaged: frozenset[str]  # paths of files in which not all members could be found


def verify_containers(
    verify_job: VerifyJob, containers: list[ManifestContainer], jobs: int,
    cluster: Cluster | None = None,
) -> Iterator[Proof]:  # fmt: skip
    """Compare rewritten files with the files before, by code that has not written them.

    Files are divided for `jobs` processes. A file is compared again as a whole if more than remarks
    is found in a part, so that findings do not depend on how it was divided; one in a store in any
    case. On a Spark `cluster` files are not divided. Yields one proof for each file, in any order.
    """
    if cluster is not None:
        yield from _verify_on(cluster, verify_job, containers)
        return
    parts = verify_job.job.plan.parts(jobs)
    tasks = [_VerifyTask(file, part) for file in containers for part in parts[file.number]]
    proofs: defaultdict[int, list[Proof]] = defaultdict(list)
    again = []
    for file, proof in side_by_side(_verify, verify_job, tasks, jobs):
        found = proofs[file.number]
        found.append(proof)
        if len(found) < len(parts[file.number]):
            continue
        stored = verify_job.job.store or is_remote(file.path)  # a store may err once
        if all(one.sound for one in found) or (len(found) == 1 and not stored):
            whole = Proof(1, file.size)
            for one in found:
                whole.add(one)
            yield whole
        else:
            again.append(_VerifyTask(file, range(file.size)))
        del proofs[file.number]
    for file, proof in side_by_side(_verify, verify_job, again, jobs):
        whole = Proof(1, file.size)
        whole.add(proof)
        yield whole


class _VerifyTask(NamedTuple):
    container: ManifestContainer
    part: range  # of `Plan.parts`


def _verify(verify_job: VerifyJob, task: _VerifyTask) -> tuple[ManifestContainer, Proof]:
    """Compare a part of a file; the proof does not count the file."""
    job, proof = verify_job.job, Proof()
    container, part = task
    places = _original_places(verify_job, container, part)
    old: Place | Joined = to_verify(container.path)
    new: Place = Path(container.path)
    with ExitStack() as copies:
        try:
            if job.out is not None:
                new = job.place.verified(container.name)
            else:  # with its dropped members the file must be the one that was scanned
                pair = _pair_in_place(container, copies)
                if pair is None:
                    return container, proof
                new, old = pair
                if not part.start and hash_of(old.ranges) != container.content_hash:
                    message = "with the members in its journal it is not the file that was scanned"
                    proof.add_findings([Finding("bytes-changed", container.path, -1, "", message)])
            ranges = ComparedPart(part, places.part, part.stop == container.size)
            found = verify_pair(old, new, places.find, places.members, ranges)
            if job.out is None and is_remote(container.path):  # copies were compared
                found = (finding._replace(file=container.path) for finding in found)
            proof.add_findings(found)
        except (UnreadableFile, OSError, Untouched, Damaged) as error:
            proof.add_findings([_unreadable(container, error)])
    return container, proof


def _pair_in_place(container: ManifestContainer, copies: ExitStack) -> tuple[Path, Joined] | None:
    """Return a replaced file, and the file before; None if it has no journal.

    An object, and what is kept of it, are copied into temporary files until `copies` are closed.
    """
    if not is_remote(container.path):
        path, journal = Path(container.path), Journal(Path(container.root), container.name)
        return (path, Joined(path, list(journal.old_content(path)))) if journal.exists() else None
    stored = StoredJournal(container.root, container.name)
    if not stored.exists():
        return None
    beside = Path(copies.enter_context(TemporaryDirectory(prefix="dedupindex-verify-")))
    journal = stored.mirrored(beside, dropped=True)
    path = beside / os.path.basename(container.name)
    download(stored.address, path)
    return path, Joined(path, list(journal.old_content(path)))


def _unreadable(container: ManifestContainer, error: Exception) -> Finding:
    message = f"this, or the file before, cannot be compared: {error}"
    return Finding("unreadable", container.path, -1, "", message)


class _StoredPair(NamedTuple):
    """What an executor of Spark needs to compare a file with the file before, both in a store."""

    container: ManifestContainer
    new: Place
    places: _OriginalPlaces


def _verify_on(
    cluster: Cluster, verify_job: VerifyJob, containers: list[ManifestContainer]
) -> Iterator[Proof]:
    tasks = (
        _StoredPair(
            file,
            verify_job.job.place.verified(file.name),
            _original_places(verify_job, file, range(file.size)),
        )
        for file in containers
    )
    return task_rows(cluster, _verify_on_executor, tasks)


def _verify_on_executor(pair: _StoredPair) -> Iterator[Proof]:
    """Yield the proof of a file; it is compared again if more than remarks is found."""
    container, new, places = pair
    for last in (False, True):
        proof = Proof(1, container.size)
        try:
            old = to_verify(container.path)
            proof.add_findings(verify_pair(old, new, places.find, places.members))
        except (UnreadableFile, OSError) as error:
            proof.add_findings([_unreadable(container, error)])
        if proof.sound or last:
            yield proof
            return


class _OriginalPlaces(NamedTuple):
    """Where the originals of a file's revisits are now, if the plan is right: hints to `verify`."""

    members: list[tuple[int, int]]  # start and end of copies in the file before
    hints: dict[tuple[bytes, bytes], set[OriginalHint]]  # by URL and second
    part: range  # where the part of the file is now

    def find(self, wanted: OriginalReference) -> Iterable[OriginalHint]:
        """See `verify.locate_originals.FindOriginal`."""
        return self.hints.get((wanted.url, timestamp14(wanted.date)), ())


def _original_places(
    verify_job: VerifyJob, container: ManifestContainer, part: range
) -> _OriginalPlaces:
    job, damaged = verify_job
    outside = job.plan.outside()
    places = _OriginalPlaces([], {}, _moved(job, container, part))
    files: dict[int, tuple[Place, OffsetMap | None]] = {}
    for planned in job.plan.copies(container.number, part):
        line, original = planned.line, planned.original
        number = original.container
        places.members.append((line.offset, line.offset + line.stored))
        if number not in files:
            files[number] = _file_now(job, number)
        path, moved = files[number]
        sound = number not in outside and job.plan.container(number).path not in damaged
        offset = moved.new(original.offset) if moved else original.offset
        key = original.url, timestamp14(original.date)
        places.hints.setdefault(key, set()).add(OriginalHint(path, offset, sound))
    return places


def _moved(job: RewriteJob, container: ManifestContainer, part: range) -> range:
    """Return where a part of a file is now."""
    if part == range(container.size):
        return part
    _, moved = _file_now(job, container.number)
    return range(moved.new(part.start), moved.new(part.stop)) if moved else part


def _file_now(job: RewriteJob, number: int) -> tuple[Place, OffsetMap | None]:
    """Return where a file of the plan is now, and its offsets there if they are others."""
    container = job.plan.container(number)
    if number in job.plan.outside():
        return to_verify(container.path), None
    if job.out is None and is_remote(container.path):
        return _object_now(container)
    place = DirectoryPlace(Path(container.root)) if job.out is None else job.place
    root, name = place.state, container.name
    path, journal = place.verified(name), Journal(root, name)
    if place.size(name) in (None, container.size) or not journal.exists():
        return path, None  # a missing file is not looked for among the sources
    now = journal.lines.stat()
    return path, _offsets(root, name, (now.st_ino, now.st_mtime_ns, now.st_size))


def _object_now(container: ManifestContainer) -> tuple[Place, OffsetMap | None]:
    """Return an object, and its offsets now if a run in place has replaced it."""
    found, moved = facts_or_none(container.path), None
    if found is not None and found.size != container.size:
        with suppress(LookupError):
            moved = _offsets_now(container, found)
    return to_verify(container.path), moved


@lru_cache(256)
def _offsets_now(container: ManifestContainer, now: ObjectFacts) -> OffsetMap:
    """Raises `LookupError`, which is not remembered, if there is no journal."""
    with TemporaryDirectory(prefix="dedupindex-verify-") as beside:
        moved = stored_offsets(container, now.size, Path(beside))
    if moved is None:
        raise LookupError(container.path)
    return moved


@lru_cache(256)
def _offsets(root: Path, name: str, _: tuple[int, int, int]) -> OffsetMap:
    """Return the offset map of a file, read once for all files that refer to it."""
    return Journal(root, name).offsets()


class HostNumbers(NamedTuple):
    host: str
    captures: int
    revisits: int
    bytes_saved: int  # in files
    hosts: int = 1  # that are one row

    @property
    def saves(self) -> bool:
        """Whether it has revisits, or its files are smaller."""
        return bool(self.revisits or self.bytes_saved)

    def as_row(self) -> dict[str, Any]:
        """Return the row of `HOSTS`."""
        return {**self._asdict(), "revisits_percent": exact_percent(self.revisits, self.captures)}


HOSTS = Table(
    "By host, those with the most bytes saved first",
    (
        ReportColumn("host", "host", Unit.TEXT),
        ReportColumn("captures", "captures"),
        ReportColumn("revisits", "revisits"),
        ReportColumn("revisits_percent", "revisits, %", Unit.PERCENT),
        ReportColumn("bytes_saved", "saved in files", Unit.BYTES),
    ),
    order="bytes_saved",
)
REFUSED = Table(
    "Duplicates that were not rewritten",
    (
        ReportColumn("reason", "reason", Unit.TEXT),
        ReportColumn("captures", "captures"),
        ReportColumn("captures_percent", "captures, %", Unit.PERCENT),
        ReportColumn("option", "what could change it", Unit.TEXT),
    ),
    order="captures",
)
_OPTIONS = {  # of reasons that depend on how the command was called
    "no-earlier-original": "bin/resolve --later",
    "no-gain": "a smaller --min-gain",
    "small": "a smaller --min-size",
    "status-differs": "--any-status",
    "type-differs": "without --same-type",
    "indexed": "bin/index --add --crawl NAME",
    FILE_LEFT: "see the files named above",
}
REASONS = "docs/post-crawl.md#manifest, #resolve and #rewrite explain each reason"
_LEAST = "no-gain", 1  # no option allows a smaller gain


def hosts_table(*, dry_run: bool) -> Table:
    """Return `HOSTS` with a title that does not claim that a dry run saved anything."""
    would = "By host, those that would save the most bytes first"
    return replace(HOSTS, title=would) if dry_run else HOSTS


def refused_table(rows: Sequence[Row], *, dry_run: bool) -> Table:
    """Return `REFUSED`, likewise, without the options if no row has one."""
    title = "Duplicates that would not be rewritten" if dry_run else REFUSED.title
    columns = REFUSED.columns
    if not any(row["option"] for row in rows):
        columns = tuple(column for column in columns if column.name != "option")
    return replace(REFUSED, title=title, columns=columns)


def host_lines(hosts: Mapping[str, Sequence[int]]) -> Iterator[bytes]:
    """Yield lines for `by_host`, from the revisits and saved bytes of hosts."""
    for host, (revisits, saved) in hosts.items():
        yield orjson.dumps({"host": host, "revisits": revisits, "saved": saved}) + b"\n"


def by_host(
    lines: str, spool: Path, most: int, memory: str, all_hosts: Path | None = None
) -> list[HostNumbers]:
    """Return the hosts with most bytes saved, then all others as one, unless that is all zero.

    `lines` is a glob of Parquet files of a manifest, `spool` has `host_lines`. All hosts are
    written to `all_hosts`.
    """
    types = {"host": "VARCHAR", "revisits": "BIGINT", "saved": "BIGINT"}
    with open_database(spool.parent, memory, 0) as (database, _):
        database.execute(f"""
            CREATE TABLE hosts AS
            SELECT coalesce(c.host, r.host) AS host, coalesce(captures, 0) AS captures,
              coalesce(revisits, 0) AS revisits, coalesce(saved, 0) AS saved
            FROM (SELECT {_HOST_OF_URL} AS host, count(*) AS captures
                  FROM read_parquet({quoted(lines)}) GROUP BY 1) AS c
            FULL JOIN (
              SELECT host, sum(revisits) AS revisits, sum(saved) AS saved
              FROM {from_json([spool], types, _LONGEST)} GROUP BY 1) AS r ON c.host = r.host""")
        first = list(_hosts(database, f"{_HOST_ORDER} LIMIT {most}"))
        if all_hosts is not None:
            with open(all_hosts, "wb") as stream:
                for host in _hosts(database, _HOST_ORDER):
                    stream.write(orjson.dumps(HOSTS.as_json(host.as_row())) + b"\n")
        query = f"""
            SELECT count(*), sum(captures), sum(revisits), sum(saved)
            FROM (SELECT * FROM hosts {_HOST_ORDER} OFFSET {most})"""
        count, *others = next(fetch_rows(database, query))
    captures, revisits, saved = (int(value or 0) for value in others)
    rest = HostNumbers(f"{count:,} others", captures, revisits, saved, count)
    return [*first, rest] if captures or rest.saves else first


def hosts_without_revisits(hosts: Sequence[HostNumbers]) -> int:
    """Return how many hosts of a report have no revisit, also among those that are one row."""
    return sum(host.hosts for host in hosts if not host.saves)


def _hosts(database: Database, order: str) -> Iterator[HostNumbers]:
    query = f"SELECT host, captures, revisits, saved FROM hosts {order}"
    for host, *counts in fetch_rows(database, query):
        yield HostNumbers(host, *map(int, counts))


@dataclass
class DedupReport:
    """Numbers of a run; those of a dry run are those of the real one.

    ``captures = unique + originals + revisits + sum(refused)``. Copies in files that were left
    alone are refused for that reason (`FILE_LEFT`).
    """

    dry_run: bool
    in_place: bool = False
    files: int = 0
    skipped: int = 0  # files that are neither WARC nor ARC
    skipped_files: list[str] = field(default_factory=list)  # the first of them
    records: int = 0  # of all types
    damaged: int = 0  # places in which no record could be read
    captures: int = 0  # responses among them
    unique: int = 0  # captures without an equal
    originals: int = 0
    revisits: int = 0  # that were made
    revisits_before: int = 0  # records that were revisits already
    bytes_before: int = 0  # with a directory of results, of the files that were copied to it
    bytes_after: int = 0  # of the same files
    journal: int = 0  # bytes that are kept to undo this run
    journals: int = 0  # bytes that are kept to undo this run and earlier ones
    undoable: bool = False  # whether a run in place keeps removed records
    min_gain: int = 1  # bytes that a revisit had to save
    refused: Counter[str] = field(default_factory=Counter)  # have an equal but stay, by reason
    hosts: list[HostNumbers] = field(default_factory=list)  # the first, and all others as one
    all_hosts: Path | None = None  # a line of JSON for each; there may be millions
    left: list[Problem] = field(default_factory=list)  # files left alone, and damage in files
    absent: list[MissingFile] = field(default_factory=list)
    outside: Counter[str] = field(default_factory=Counter)  # revisits by files that an index names
    proof: Proof = field(default_factory=Proof)
    indexed: int | None = None  # files that an index read again; None: no index was updated
    work: Path = Path()
    state: Path | None = None  # where the journals are, if the results are in a store
    seconds: dict[str, float] = field(default_factory=dict)
    _known: set[Problem] = field(default_factory=set)
    _files: set[str] = field(default_factory=set)

    def leave(self, file: str, why: str, offset: int = -1) -> None:
        """Add a file that was left alone, or damage in one, unless it is known."""
        problem = Problem(file, offset, why)
        same = problem._replace(message=why.removeprefix("it "))  # stages word it differently
        if same not in self._known:
            self._known.add(same)
            self.left.append(problem)
            self._files.add(file)

    def names(self, file: str) -> bool:
        """Whether there is a problem of this file."""
        return file in self._files

    def add_found(self, found: Sources, problems: Iterable[Problem]) -> None:
        """Add the problems of reading files, and the files that are no archives."""
        for path, offset, message in (*found.problems, *problems):
            self.leave(path, message, offset)
        for file in found.others:
            if not self.names(file.path):
                self.leave(file.path, NO_ARCHIVE)

    def add_manifest(self, manifest: Manifest) -> None:
        for entry in manifest.entries.values():
            self.captures += entry.lines
            self.records += entry.readable
            self.damaged += entry.damaged
            self.revisits_before += entry.records.get("revisit", 0)
            for path, offset, message in entry.located_problems():
                self.leave(path, message, offset)

    def add_file(self, outcome: RewriteOutcome) -> None:
        self.files += outcome.files
        self.revisits += outcome.revisits
        self.bytes_before += outcome.bytes_before
        self.bytes_after += outcome.bytes_after
        self.journal += outcome.journal
        self.refused.update(outcome.refused)
        self.outside.update(outcome.outside)
        if outcome.state == "left_alone":
            self.leave(outcome.path, outcome.problem)

    def add_missing(self, file: str, size: int, there: int) -> None:
        """Add a file that was not copied: its bytes count neither before nor after."""
        self.absent.append(MissingFile(file, size, there))
        self.bytes_before -= size
        self.bytes_after -= size

    def count_left(self) -> None:
        """Add the captures in files that were left alone to the refused ones."""
        counted = self.unique + self.originals + self.revisits + self.refused.total()
        if counted < self.captures:
            self.refused[FILE_LEFT] = self.captures - counted

    def refused_rows(self) -> list[dict[str, Any]]:
        """Return the rows of `REFUSED`."""
        return [
            {
                "reason": reason,
                "captures": count,
                "captures_percent": exact_percent(count, self.captures),
                "option": "" if (reason, self.min_gain) == _LEAST else _OPTIONS.get(reason, ""),
            }
            for reason, count in sorted(self.refused.items(), key=lambda one: (-one[1], one[0]))
        ]

    @property
    def bytes_saved(self) -> int:
        """Bytes by which all files are smaller."""
        return self.bytes_before - self.bytes_after

    @property
    def bytes_saved_net(self) -> int:
        """Bytes by which all files are smaller, with those that are kept to undo the run."""
        return self.bytes_saved - self.journal

    @property
    def journal_place(self) -> str:
        """Where the bytes are that are kept to undo runs."""
        return f"{self.state / DIRECTORY if self.state else DIRECTORY}/"

    def net_text(self) -> str:
        """Say what the files take with the bytes that are kept to undo the run."""
        if not (net := self.bytes_saved_net):
            return "as much as before"
        return f"{amount(abs(net))} {'less' if net > 0 else 'more'} than before"

    def earlier_text(self) -> str:
        """Say what is kept to undo earlier runs, too; empty if there is nothing."""
        if self.journals <= self.journal:
            return ""
        return f"{amount(self.journals)} with what is kept to undo earlier runs"

    def not_verified_text(self) -> str:
        """Say why files of a run were not verified; empty if all were."""
        if not (others := self.files - self.proof.files):
            return ""
        why = "not changed" if self.in_place else "not readable as archives, or not written"
        return singular(f"not verified, because {why}: {others:,} files")

    def as_json(self, more: Mapping[str, Any] | None = None) -> Iterator[bytes]:
        """Yield one JSON object in pieces, with `more` fields."""
        yield orjson.dumps({**self._without_hosts(), **(more or {})})[:-1] + b',"hosts":['
        if self.all_hosts is not None:
            with open(self.all_hosts, "rb") as hosts:
                for number, line in enumerate(hosts):
                    yield (b"," if number else b"") + line.rstrip(b"\n")
        yield b"]}\n"

    def _without_hosts(self) -> dict[str, Any]:
        numbers = (
            "dry_run", "files", "skipped", "records", "damaged", "captures", "unique", "originals",
            "revisits", "revisits_before", "bytes_before", "bytes_after",
        )  # fmt: skip
        return {
            **{name: getattr(self, name) for name in numbers},
            "skipped_files": self.skipped_files,
            "journal_bytes": self.journals,
            "journal_bytes_added": self.journal,
            "bytes_saved": self.bytes_saved,
            "bytes_saved_net": self.bytes_saved_net,
            "refused": dict(sorted(self.refused.items())),
            "problems": [problem.as_json() for problem in self.left],
            "not_copied": [absent._asdict() for absent in self.absent],
            "outside": dict(sorted((+self.outside).items())),
            "verified": {
                "files": self.proof.files,
                "findings": dict(sorted(self.proof.findings.items())),
            },
            "indexed": self.indexed,
            "work": str(self.work),
            "seconds": {
                name.replace(" ", "_"): round(value, 3) for name, value in self.seconds.items()
            },
        }
