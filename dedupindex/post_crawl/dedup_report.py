"""What a run came to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from dedupindex.capture import Problem
from dedupindex.post_crawl.manifest.lines import ManifestContainer
from dedupindex.post_crawl.manifest.parquet import Manifest
from dedupindex.post_crawl.plan.plan_file import Totals
from dedupindex.post_crawl.plan.plan_writer import Host
from dedupindex.post_crawl.rewrite.journal import Journal, Offsets
from dedupindex.post_crawl.rewrite.rewrite_file import RewriteJob, RewriteOutcome
from dedupindex.runtime.atomic_replace import hash_of
from dedupindex.verify.block_facts import timestamp14
from dedupindex.verify.compare_files import verify_pair
from dedupindex.verify.file_bytes import Joined, UnreadableFile
from dedupindex.verify.issues import REMARK, Finding
from dedupindex.verify.locate_originals import OriginalHint, OriginalReference

# What came out, verified by code that did not write it, with the places of originals as hints.

_NAMED = 100  # findings of a file that are no remarks; more are only counted


@dataclass
class Proof:
    """What was found in one file, or in many."""

    files: int = 0
    size: int = 0  # of the files before, in bytes
    findings: Counter[str] = field(default_factory=Counter)  # by reason
    levels: Counter[str] = field(default_factory=Counter)
    named: list[Finding] = field(default_factory=list)  # the first that are no remarks

    @property
    def sound(self) -> bool:
        """Whether there is nothing but remarks."""
        return set(self.levels) <= {REMARK}

    def take(self, findings: Iterator[Finding]) -> None:
        """Count what was found in a file."""
        for finding in findings:
            self.findings[finding.reason] += 1
            self.levels[finding.level] += 1
            if finding.level != REMARK and len(self.named) < _NAMED:
                self.named.append(finding)

    def add(self, other: Proof) -> None:
        """Count another file."""
        self.files += other.files
        self.size += other.size
        self.findings.update(other.findings)
        self.levels.update(other.levels)
        self.named += islice(other.named, max(_NAMED - len(self.named), 0))


class Proving(NamedTuple):
    """What is proven of each container."""

    job: RewriteJob
    damaged: frozenset[str]  # files of which not all members could be followed


def prove(proving: Proving, container: ManifestContainer) -> Proof:
    """Compare a container with what it was; every revisit that was made must rebuild its record."""
    job, proof = proving.job, Proof(1, container.size)
    originals = _Originals(proving, container)
    try:
        if job.out is not None:
            old, new = Path(container.path), job.out / container.name
            proof.take(verify_pair(old, new, originals.find, originals.members))
        else:
            _prove_in_place(container, originals, proof)
    except (UnreadableFile, OSError) as error:
        message = f"this, or the file before, cannot be compared: {error}"
        proof.take(iter([Finding("unreadable", container.path, -1, "", message)]))
    return proof


def _prove_in_place(container: ManifestContainer, originals: _Originals, proof: Proof) -> None:
    """With its dropped members a container must be the file that was scanned, to the bit."""
    new = Path(container.path)
    journal = Journal(Path(container.root), container.name)
    if not journal.exists():
        return
    ranges = list(journal.stretches(new))
    if hash_of(ranges) != container.content_hash:
        message = "with the members in its journal it is not the file that was scanned"
        proof.take(iter([Finding("bytes-changed", container.path, -1, "", message)]))
    old = Joined(new, ranges)
    proof.take(verify_pair(old, new, originals.find, originals.members))


class _Originals:
    """Where the originals of a container's revisits are now, for `verify`, which reads them.

    It believes that records begin where the plan says: whoever made the manifest has followed them
    from the beginning of each file.
    """

    def __init__(self, proving: Proving, container: ManifestContainer) -> None:
        self._job, self._damaged = job, _ = proving
        self._files: dict[int, tuple[Path, Offsets | None]] = {}
        self._places: dict[tuple[bytes, bytes], set[OriginalHint]] = {}
        self.members: list[tuple[int, int]] = []  # where copies begin and end in the file before
        for planned in job.plan.of(container.number):
            line, original = planned.line, planned.original
            self.members.append((line.offset, line.offset + line.stored))
            place = self._place(original.container, original.offset)
            key = original.url, timestamp14(original.date)
            self._places.setdefault(key, set()).add(place)

    def find(self, wanted: OriginalReference) -> Iterable[OriginalHint]:
        """See `verify.originals.FindOriginal`."""
        return self._places.get((wanted.url, timestamp14(wanted.date)), ())

    def _place(self, number: int, offset: int) -> OriginalHint:
        if number not in self._files:
            self._files[number] = self._file(number)
        path, moved = self._files[number]
        plan = self._job.plan
        followed = number not in plan.outside() and plan.place(number).path not in self._damaged
        return OriginalHint(path, moved.now(offset) if moved else offset, followed)

    def _file(self, number: int) -> tuple[Path, Offsets | None]:
        job = self._job
        holder = job.plan.place(number)
        if number in job.plan.outside():
            return Path(holder.path), None  # an index has named it
        root = Path(holder.root) if job.out is None else job.out
        path, journal = root / holder.name, Journal(root, holder.name)
        if not path.exists():  # nor is the file before an excuse: the results must stand alone
            return path, None
        if path.stat().st_size == holder.size or not journal.exists():
            return path, None
        now = journal.lines.stat()
        return path, _offsets(root, holder.name, (now.st_ino, now.st_mtime_ns, now.st_size))


@lru_cache(256)
def _offsets(root: Path, name: str, _: tuple[int, int, int]) -> Offsets:
    """Where what stood in a container stands now; read once for all that refer to it."""
    return Journal(root, name).offsets()


FILE_LEFT = "file-left"


class Absent(NamedTuple):
    """A file that was not copied to the folder of the results."""

    file: str
    bytes: int
    there: int  # bytes of the file that has its name there, perhaps of an earlier run


@dataclass
class DedupReport:
    """Numbers of a run; those of a dry run are those of the real one.

    ``captures = unique + originals + revisits + sum(refused)``. Copies in files that were left
    alone are refused for that (`FILE_LEFT`).
    """

    dry_run: bool
    files: int = 0
    skipped: int = 0  # files met that are neither WARC nor ARC
    records: int = 0  # of all kinds
    captures: int = 0  # responses among them
    unique: int = 0  # captures that nothing equals
    originals: int = 0
    revisits: int = 0  # that were made
    bytes_before: int = 0
    bytes_after: int = 0  # with a folder, of what is in it
    journal: int = 0  # bytes of what is kept to undo it
    refused: Counter[str] = field(default_factory=Counter)  # equal to another, by why they stay
    hosts: list[Host] = field(default_factory=list)  # the first, and all others as one
    every_host: Path | None = None  # all of them, a line of JSON for each, which may be millions
    left: list[Problem] = field(default_factory=list)  # files left alone, and damage in files
    absent: list[Absent] = field(default_factory=list)
    outside: Counter[str] = field(default_factory=Counter)  # revisits by files that an index names
    proof: Proof = field(default_factory=Proof)
    work: Path = Path()
    seconds: dict[str, float] = field(default_factory=dict)
    _known: set[Problem] = field(default_factory=set)
    _files: set[str] = field(default_factory=set)

    def leave(self, file: str, why: str, offset: int = -1) -> None:
        """Name a file that was left alone, or damage in one."""
        problem = Problem(file, offset, why)
        said = problem._replace(message=why.removeprefix("it "))  # by whomever
        if said not in self._known:
            self._known.add(said)
            self.left.append(problem)
            self._files.add(file)

    def names(self, file: str) -> bool:
        """Whether something is said of this file."""
        return file in self._files

    def take_manifest(self, manifest: Manifest) -> None:
        """Count what was read, and name what is damaged."""
        for entry in manifest.entries.values():
            self.captures += entry.lines
            self.records += sum(entry.records.values())
            for path, offset, message in entry.told():
                self.leave(path, message, offset)

    def take_plan(self, totals: Totals) -> None:
        """Count what the plan says of captures that are no copies."""
        self.unique, self.originals = totals.unique, totals.originals
        self.refused.update(totals.stayed)

    def take_file(self, outcome: RewriteOutcome) -> None:
        """Count what became of a file."""
        self.files += outcome.files
        self.revisits += outcome.revisits
        self.bytes_before += outcome.bytes_before
        self.bytes_after += outcome.bytes_after
        self.refused.update(outcome.refused)
        self.outside.update(outcome.outside)
        if outcome.state == "left":
            self.leave(outcome.path, outcome.problem)

    def miss(self, file: str, size: int, there: int) -> None:
        """Count what is in the folder of the results instead of a file that was counted."""
        self.absent.append(Absent(file, size, there))
        self.bytes_after += there - size

    def add_up(self) -> None:
        """Count what is in files that were left alone."""
        told = self.unique + self.originals + self.revisits + self.refused.total()
        if told < self.captures:
            self.refused[FILE_LEFT] = self.captures - told

    def as_json(self) -> Iterator[bytes]:
        """One object, piece by piece."""
        yield orjson.dumps(self._without_hosts())[:-1] + b',"hosts":['
        if self.every_host is not None:
            with open(self.every_host, "rb") as hosts:
                for number, line in enumerate(hosts):
                    yield (b"," if number else b"") + line.rstrip(b"\n")
        yield b"]}\n"

    def _without_hosts(self) -> dict[str, Any]:
        return {
            "dry_run": self.dry_run,
            "files": self.files,
            "skipped": self.skipped,
            "records": self.records,
            "captures": self.captures,
            "unique": self.unique,
            "originals": self.originals,
            "revisits": self.revisits,
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "journal_bytes": self.journal,
            "refused": dict(sorted(self.refused.items())),
            "left": [
                {"file": file, "offset": offset, "why": why} for file, offset, why in self.left
            ],
            "not_copied": [absent._asdict() for absent in self.absent],
            "outside": dict(sorted((+self.outside).items())),
            "verified": {
                "files": self.proof.files,
                "findings": dict(sorted(self.proof.findings.items())),
            },
            "work": str(self.work),
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
        }
