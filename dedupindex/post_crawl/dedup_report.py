"""What a run came to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from dedupindex.capture import Problem
from dedupindex.post_crawl.manifest.parquet import Manifest
from dedupindex.post_crawl.plan.hosts import Host
from dedupindex.post_crawl.plan.plan_file import Totals
from dedupindex.post_crawl.proof import Proof
from dedupindex.post_crawl.rewrite.rewrite_file import RewriteOutcome

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
