"""The counts of a corpus run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from dedupindex.capture import Problem
from dedupindex.corpus.row import CorpusRow
from dedupindex.runtime.bounded_counter import Sums
from dedupindex.urlkey import host_of

GROUPS = ("host", "media type", "year")  # by which captures that are written are counted


@dataclass
class CorpusReport:
    """Counts in the order of the work: metadata, records, output."""

    refused: int = 0  # lines of the metadata that are not captures
    revisits: int = 0  # that passed conditions when originals were looked up
    chosen: int = 0  # captures whose metadata matched
    tried: int = 0  # of these; the rest of a group is skipped after its best
    dropped: int = 0  # captures that `drop_failed` left out
    entries: int = 0  # captures written or yielded
    errors: Counter[str] = field(default_factory=Counter)  # entries with an error, by what failed
    records: int = 0  # read from containers
    containers: int = 0  # opened, counted in each process
    bytes_read: int = 0  # of containers
    bytes: int = 0  # written
    problems: list[Problem] = field(default_factory=list)  # of the metadata
    seconds: float = 0.0
    groups: dict[str, Sums] = field(default_factory=dict, compare=False, repr=False)

    def count(self, row: CorpusRow) -> None:
        """Count a capture that is written, also by host, media type and year."""
        self.entries += 1
        host = host_of(row.url.encode("utf-8", "surrogateescape"))
        headings = (host, (row.mime or "").encode("utf-8", "replace"), row.timestamp[:4].encode())
        for by, name in zip(GROUPS, headings, strict=True):
            if by not in self.groups:
                self.groups[by] = Sums(1)
            self.groups[by].add(name, 1)

    def as_json(self) -> dict[str, Any]:
        return {
            **{name: value for name, value in vars(self).items() if name != "groups"},
            "errors": dict(sorted(self.errors.items())),
            "problems": len(self.problems),
            "seconds": round(self.seconds, 3),
        }

    @property
    def whole(self) -> bool:
        """Whether everything could be read."""
        return not (self.errors or self.problems or self.refused or self.dropped)

    def source_problems(self) -> str:
        """Describe the problems of the sources in a sentence."""
        refused = f"lines of the metadata that are no captures: {self.refused:,}"
        first = f"{self.problems[0].container}: {self.problems[0].message}" if self.problems else ""
        more = f" (and {len(self.problems) - 1:,} problems more)" if len(self.problems) > 1 else ""
        return "; ".join(filter(None, (refused * bool(self.refused), first + more)))
