"""The report of a deduplication run, and its numbers by host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from dedupindex.capture import Problem
from dedupindex.errors import as_called
from dedupindex.object_store import is_remote
from dedupindex.post_crawl.manifest.parquet import Manifest, ManifestContainer, fetch_rows
from dedupindex.post_crawl.manifest.record_lines import REVISIT_TARGET
from dedupindex.post_crawl.plan.plan_file import Totals
from dedupindex.post_crawl.reasons import in_words
from dedupindex.post_crawl.rewrite.protection import protecting_directory
from dedupindex.post_crawl.rewrite.result_place import FILE_LEFT, MissingFile, earlier_results_text
from dedupindex.post_crawl.rewrite.rewrite_outcome import (
    RewriteOutcome,
    referring_text,
    zstd_text,
)
from dedupindex.post_crawl.rewrite.undo_directory import DIRECTORY
from dedupindex.post_crawl.verify_results import Proof
from dedupindex.runtime.duckdb import Database, from_json, number, open_database, quoted
from dedupindex.runtime.report_table import ReportColumn, Row, Table, Unit, exact_percent
from dedupindex.runtime.tables import amount, json_bytes, names_text, singular
from dedupindex.sources.warc_files import Sources

NO_ARCHIVE = "it cannot be read as WARC or ARC"
_PLACES = 5  # directories that are named
_DAMAGED = 20  # files with damage that are named with their number of places
_EQUAL = 1000  # files that are copies of others and are named
_HOST = r"^[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#]*@)?(\[[^\]/?#]*\]|[^/?#:]+)"
_HOST_OF_URL = f"""coalesce(
  nullif(rtrim(lower(regexp_extract(url, {quoted(_HOST)}, 1)), '.'), ''),
  left(lower(split_part(url, ':', 1)), 255))"""
_LONGEST = 1 << 24  # bytes of a line of JSON
_HOST_ORDER = "ORDER BY saved DESC, captures DESC, host"


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
        ReportColumn("bytes", "in files", Unit.BYTES),
        ReportColumn("option", "what could change it", Unit.TEXT),
    ),
    order="captures",
)
_OPTIONS = {  # of reasons that depend on how the command was called
    "no-earlier-original": "in stages: bin/resolve --later",
    "no-gain": "a smaller --min-gain",
    "small": "a smaller --min-size",
    "status-differs": "--any-status",
    "type-differs": "without --same-type",
    "indexed": "bin/index --add --crawl NAME",
    "protected-original": "undo the run that refers to it (docs/stages.md#protected-originals)",
    FILE_LEFT: "remove the cause, which is named with the file, and repeat",
}
REASONS = "docs/stages.md#manifest, #resolve and #rewrite say more about each reason"
_UNDO_BYTES = 1000  # more than what is kept to undo most revisits
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


def unique_text(report: DedupReport) -> str:
    """Say what `DedupReport.unique` counts: also originals of revisits that were there before."""
    what = "without a duplicate"
    return f"{what} that is stored in full" if report.revisits_before else what


def refused_rows(
    refused: Mapping[str, int], stored: Mapping[str, int], captures: int, min_gain: int = 1
) -> list[dict[str, Any]]:
    """Return the rows of `REFUSED`, those of most captures first, from their numbers by reason.

    `stored` has the bytes that they take in their files, as far as these are known.
    """
    return [
        {
            "reason": in_words(reason),
            "captures": count,
            "captures_percent": exact_percent(count, captures),
            "bytes": stored.get(reason),
            "option": "" if (reason, min_gain) == _LEAST else _OPTIONS.get(reason, ""),
        }
        for reason, count in sorted(refused.items(), key=lambda one: (-one[1], one[0]))
    ]


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


class EqualFile(NamedTuple):
    file: str
    equals: str  # another file of the same bytes

    def in_words(self) -> str:
        return f"{self.file} equals {self.equals}"


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
    damaged_in: Counter[str] = field(default_factory=Counter)  # the same, by name of the file
    captures: int = 0  # responses among them
    unique: int = 0  # captures without an equal
    originals: int = 0
    revisits: int = 0  # that were made
    written: bool = False  # whether results were made, or replaced
    revisits_before: int = 0  # records that were revisits already
    revisits_missing: int = 0  # of these, whose original is in none of the sources, or damaged
    file_copies: int = 0  # files that equal another one byte for byte
    file_copies_bytes: int = 0
    equal_files: list[EqualFile] = field(default_factory=list)  # the first of them
    bytes_before: int = 0  # with a directory of results, of the files that were copied to it
    bytes_after: int = 0  # of the same files
    linked_files: int = 0  # of these, other names of the same files, whose results are files
    linked_bytes: int = 0  # of these, in `bytes_before`; not on disk
    journal: int = 0  # bytes that are kept to undo this run
    removable: int = 0  # of these, the removed records of a run in place, until it is committed
    journals: int = 0  # bytes that are kept to undo this run and earlier ones
    undoable: bool = False  # whether runs in place keep removed records
    earlier_undoable: bool = False  # and earlier ones than this run
    min_gain: int = 1  # bytes that a revisit had to save
    refused: Counter[str] = field(default_factory=Counter)  # have an equal but stay, by reason
    refused_bytes: Counter[str] = field(default_factory=Counter)  # that these take in their files
    planned_left: int = 0  # bytes of planned copies that have not become revisits, nor are refused
    hosts: list[HostNumbers] = field(default_factory=list)  # the first, and all others as one
    all_hosts: Path | None = None  # a line of JSON for each; there may be millions
    left: list[Problem] = field(default_factory=list)  # files left alone, and damage in files
    absent: list[MissingFile] = field(default_factory=list)
    # Results that existed and refer to files that were left alone, by the paths of their sources.
    referring: dict[str, str] = field(default_factory=dict)
    uncounted: int = 0  # of `absent`, what is not among `files`: it cannot be opened
    unlisted: set[str] = field(default_factory=set)  # what was not copied and has no known size
    comparable: list[tuple[str, str]] = field(default_factory=list)  # see `results_of_each`
    moved: list[tuple[str, str]] = field(default_factory=list)  # root and name, if not in place
    outside: Counter[str] = field(default_factory=Counter)  # revisits by files that an index names
    protects: bool = True  # whether runs on these files are told, not those on objects in place
    unread_originals: int = 0  # captures that stay, as files of the index are gone or changed
    zstd_originals: Counter[str] = field(default_factory=Counter)  # see `RewriteOutcome`
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

    def count_missing(self, manifest: Manifest, beside: Path, memory: str) -> None:
        """Count the earlier revisits that name an original which no line of the manifest is.

        An original is found by its record id, or by urlkey and second; a revisit that names
        neither is not counted.
        """
        if not self.revisits_before:
            return
        with open_database(beside, memory, 0) as (database, _):
            there = f"read_parquet({quoted(manifest.parquet)})"
            self.revisits_missing = number(
                database,
                f"""
                SELECT count(*) FROM read_parquet({quoted(manifest.references)})
                WHERE not_rewritable_reason = {quoted(REVISIT_TARGET)}
                  AND (replay_key <> 0 OR record_id <> '')
                  AND (replay_key = 0 OR replay_key NOT IN (SELECT replay_key FROM {there}))
                  AND (record_id = '' OR record_id NOT IN (SELECT record_id FROM {there}))""",
            )

    def revisits_before_text(self) -> str:
        """Say what is known of the originals of revisits that were there before."""
        count = f"revisits that were there before: {self.revisits_before:,}"
        if not self.revisits_missing:
            return f"{count}; this run keeps their originals"
        return (
            f"{count}; of these, with an original that is whole in no source: "
            f"{self.revisits_missing:,} (bin/verify --originals WHERE says whether earlier crawls "
            "have it)"
        )

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
        first: dict[str, ManifestContainer] = {}  # BLAKE3 of a file -> the first that has it
        for entry in sorted(manifest.entries.values(), key=lambda one: one.container.key):
            file = entry.container
            same = first.setdefault(file.content_hash, file)
            linked = file.inode and (file.device, file.inode) == (same.device, same.inode)
            if file.size and not linked and same is not file:
                self.file_copies += 1
                self.file_copies_bytes += file.size
                if len(self.equal_files) < _EQUAL:
                    self.equal_files.append(EqualFile(file.place, same.place))
            self.captures += entry.lines
            self.records += entry.readable
            self.damaged += entry.damaged
            if entry.damaged:
                self.damaged_in[file.name] += entry.damaged
            self.revisits_before += entry.records.get("revisit", 0)
            for path, offset, message in entry.located_problems():
                self.leave(path, message, offset)

    def add_plan(self, totals: Totals) -> None:
        self.unique, self.originals = totals.unique, totals.originals
        self.refused.update(totals.kept)
        self.refused_bytes.update(totals.kept_bytes)
        self.planned_left, self.unread_originals = totals.stored, totals.unread_originals

    def add_file(self, outcome: RewriteOutcome) -> None:
        self.files += outcome.files
        self.revisits += outcome.revisits
        self.bytes_before += outcome.bytes_before
        self.bytes_after += outcome.bytes_after
        self.journal += outcome.journal
        self.removable += outcome.removed if self.in_place else 0
        self.refused.update(outcome.refused)
        self.refused_bytes.update(outcome.refused_bytes)
        self.planned_left -= outcome.removed + outcome.refused_bytes.total()
        self.outside.update(outcome.outside)
        self.protects = self.protects and not (self.in_place and is_remote(outcome.path))
        self.zstd_originals.update(outcome.zstd_originals)
        if outcome.state == "left_alone":
            self.leave(outcome.path, outcome.problem)

    def add_unlisted(self, directory: str) -> None:
        """Add a directory that cannot be listed, so what is in it was not copied."""
        self.unlisted.add(directory)
        self.add_missing(directory, 0, 0)

    @property
    def lacking(self) -> list[MissingFile]:
        """What was not copied, and has no result of an earlier run."""
        return [file for file in self.absent if not file.existing_bytes]

    def earlier_results_text(self) -> str:
        """Say which results of earlier runs stay as they are; empty if none do."""
        return earlier_results_text(self.absent)

    def absent_text(self) -> str:
        """Say how much was not copied; empty if all was, or has a result of an earlier run."""
        found = []
        if files := [file for file in self.lacking if file.file not in self.unlisted]:
            found += [f"{len(files):,} files", amount(sum(file.bytes for file in files))]
        if self.unlisted:
            many = (
                "1 directory" if len(self.unlisted) == 1 else f"{len(self.unlisted):,} directories"
            )
            found.append(f"{many} of unknown size, which cannot be listed")
        if uncounted := self.uncounted:
            found[-1] += (
                f" ({uncounted:,} of these cannot be opened, as a link that leads nowhere or a "
                f"pipe, and {'is' if uncounted == 1 else 'are'} not among the {self.files:,} files)"
            )
        return singular(", ".join(found))

    def damaged_text(self) -> str:
        """Say in how many places of which files no record can be read; empty if there are none."""
        if not self.damaged:
            return ""
        places = [f"{count:,} in {name}" for name, count in self.damaged_in.most_common()]
        return (
            f"places where a record cannot be read: {self.damaged:,} "
            f"({names_text(places, _DAMAGED)})"
        )

    def add_missing(self, file: str, size: int, there: int) -> None:
        """Add a file that was not copied: its bytes count neither before nor after."""
        self.absent.append(MissingFile(file, size, there))
        self.bytes_before -= size
        self.bytes_after -= size

    @property
    def protected_in(self) -> list[str]:
        """The directories in which the run protects originals outside."""
        if not self.protects:
            return []
        return sorted(set(filter(None, map(protecting_directory, +self.outside))))

    def protected_text(self) -> str:
        """Say where originals outside are protected from later runs; empty if none are."""
        if not (places := self.protected_in):
            return ""
        are = "would be" if self.dry_run else "are"
        return (
            f"these originals {are} protected from later runs there, by entries in "
            f"{names_text(places, _PLACES)}"
        )

    def count_left(self) -> None:
        """Add the captures in files that were left alone to the refused ones."""
        counted = self.unique + self.originals + self.revisits + self.refused.total()
        if counted < self.captures:
            self.refused[FILE_LEFT] = self.captures - counted
            self.refused_bytes[FILE_LEFT] = self.planned_left

    def refused_rows(self) -> list[dict[str, Any]]:
        """Return the rows of `REFUSED`."""
        return refused_rows(self.refused, self.refused_bytes, self.captures, self.min_gain)

    @property
    def bytes_saved(self) -> int:
        """Bytes by which all files are smaller; `hosts` divide them."""
        return self.bytes_before - self.bytes_after

    @property
    def bytes_on_disk(self) -> int:
        """Bytes of the files before the run, each once, whatever its names."""
        return self.bytes_before - self.linked_bytes

    @property
    def bytes_saved_net(self) -> int:
        """Bytes that all take less on disk, with those that are kept to undo the run."""
        return self.bytes_on_disk - self.bytes_after - self.journal

    @property
    def bytes_saved_committed(self) -> int:
        """Bytes by which all files are smaller after ``--commit``, with what is kept even then."""
        return self.bytes_saved_net + self.removable

    @property
    def journal_place(self) -> str:
        """Where the bytes are that are kept to undo runs."""
        return f"{self.state / DIRECTORY if self.state else DIRECTORY}/"

    def net_text(self) -> str:
        """Say what the files take with the bytes that are kept to undo the run."""
        return _than_before(self.bytes_saved_net)

    def committed_text(self) -> str:
        """Say what they take with the bytes that are still kept when the run is committed."""
        return _than_before(self.bytes_saved_committed)

    def gain_text(self) -> str:
        """Say what to do if revisits save less than what undoes them takes; else empty."""
        if not self.revisits or self.bytes_saved_committed + self.linked_bytes > 0:
            return ""
        return (
            f"what undoes a revisit takes more than these save: --min-gain {_UNDO_BYTES} makes no "
            "revisit that saves less"
        )

    def zstd_text(self) -> str:
        """Say which revisits many replay tools cannot show; empty if there are none."""
        return as_called(zstd_text(self.zstd_originals, dry=self.dry_run, in_place=self.in_place))

    def referring_text(self) -> str:
        """Say which results refer to what may not be there; empty if none do."""
        return as_called(referring_text(list(self.referring.values())))

    def linked_text(self) -> str:
        """Say what links to files of the set mean for its size; empty if there are none."""
        if not self.linked_files:
            return ""
        dry = self.dry_run
        links = f"{self.linked_files:,} files are links to others; their results"
        own = "would be files of their own" if dry else "are files of their own"
        if self.linked_files == 1:
            links = "1 file is a link to another; its result"
            own = "would be a file of its own" if dry else "is a file of its own"
        return (
            f"{links} {own}. On disk all took {amount(self.bytes_on_disk)} before; the results "
            f"{'would take' if dry else 'take'} "
            f"{_than_before(self.bytes_on_disk - self.bytes_after)}"
        )

    def hosts_text(self) -> str:
        """Say why the hosts do not add up to what is saved on disk; empty if they do."""
        if not self.linked_bytes:
            return ""
        return (
            f"The hosts add up to {amount(self.bytes_saved)}: with {amount(self.linked_bytes)} of "
            "links, which took no room before. On disk the files "
            f"{'would take' if self.dry_run else 'take'} "
            f"{_than_before(self.bytes_on_disk - self.bytes_after)}."
        )

    def copies_text(self) -> str:
        """Say what copies of whole files mean for a run; empty if there are none."""
        if not self.file_copies:
            return ""
        files = f"{self.file_copies:,} files are copies of others"
        if self.file_copies == 1:
            files = "1 file is a copy of another"
        return (
            f"{files} ({amount(self.file_copies_bytes)} before): what both have is stored twice, "
            "and revisits of it name no record id; run without the copies if you can"
        )

    def earlier_text(self) -> str:
        """Say what is kept to undo earlier runs, too; empty if there is nothing."""
        if self.journals <= self.journal:
            return ""
        return f"{amount(self.journals)} are kept in all, with those of earlier runs"

    def not_verified_text(self) -> str:
        """Say why files of a run were not verified; empty if all were."""
        if not (others := self.files - self.proof.files):
            return ""
        why = "not changed" if self.in_place else "not readable as archives, or not written"
        why += ", or named above as referring to such" if self.referring else ""
        return singular(f"not verified, because {why}: {others:,} files")

    def as_json(self, more: Mapping[str, Any] | None = None) -> Iterator[bytes]:
        """Yield one JSON object in pieces, with `more` fields."""
        yield json_bytes({**self._without_hosts(), **(more or {})})[:-1] + b',"hosts":['
        if self.all_hosts is not None:
            with open(self.all_hosts, "rb") as hosts:
                for number, line in enumerate(hosts):
                    yield (b"," if number else b"") + line.rstrip(b"\n")
        yield b"]}\n"

    def _without_hosts(self) -> dict[str, Any]:
        numbers = (
            "dry_run", "files", "skipped", "records", "damaged", "captures", "unique", "originals",
            "revisits", "revisits_before", "revisits_missing", "bytes_before", "bytes_after",
        )  # fmt: skip
        return {
            **{name: getattr(self, name) for name in numbers},
            "damaged_in": dict(sorted(self.damaged_in.items())),
            "skipped_files": self.skipped_files,
            "file_copies": self.file_copies,
            "file_copies_bytes": self.file_copies_bytes,
            "equal_files": [equal._asdict() for equal in self.equal_files],
            "linked_files": self.linked_files,
            "linked_bytes": self.linked_bytes,
            "journal_bytes": self.journals,
            "journal_bytes_added": self.journal,
            "bytes_saved": self.bytes_saved,
            "bytes_saved_net": self.bytes_saved_net,
            "bytes_saved_committed": self.bytes_saved_committed,
            "refused": dict(sorted(self.refused.items())),
            "refused_bytes": dict(sorted(self.refused_bytes.items())),
            "problems": [problem.as_json() for problem in self.left],
            "not_copied": [absent._asdict() for absent in self.absent],
            "not_listed": sorted(self.unlisted),
            "refer_to_left_alone": sorted(self.referring.values()),
            "outside": dict(sorted((+self.outside).items())),
            "protected_in": self.protected_in,
            "unread_originals": self.unread_originals,
            "originals_in_zstd": self.zstd_originals.total(),
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


def _than_before(saved: int) -> str:
    if not saved:
        return "as much as before"
    return f"{amount(abs(saved))} {'less' if saved > 0 else 'more'} than before"
