"""Named outcomes, counted. What was read must add up to what became of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dedupindex.errors import Damaged


@dataclass(frozen=True)
class ProgressUpdate:
    """How far a run is."""

    phase: str  # as "reading"
    bytes: int = 0
    of: int = 0  # bytes; 0 if nobody knows
    records: int = 0
    part: float | None = None  # of the phase, from 0 to 1, where bytes do not tell

    @property
    def share(self) -> float | None:
        """How much of the phase is done, from 0 to 1; None if nobody knows."""
        done = self.bytes / self.of if self.part is None and self.of else self.part
        return None if done is None else min(max(done, 0.0), 1.0)


OnProgress = Callable[[ProgressUpdate], None]


@dataclass
class BuildTally:
    """What one run of the indexer did, to the last record.

    ``records = added + replaced + unchanged + sum(refused)`` holds when a run has ended.
    """

    containers: int = 0  # read in this run
    known: int = 0  # skipped: indexed before, unchanged
    purged: int = 0  # of these: their captures were purged, and stay away
    records: int = 0
    added: int = 0  # URL and digest new to the index
    replaced: int = 0  # took the place of the capture that was there
    unchanged: int = 0  # the capture that was there stays
    refused: Counter[str] = field(default_factory=Counter)  # by reason
    remarks: Counter[str] = field(default_factory=Counter)  # on records that were read all the same
    seconds: float = 0.0

    def add(self, other: BuildTally) -> None:
        """Count what another part of the same run did."""
        self.containers += other.containers
        self.known += other.known
        self.purged += other.purged
        self.records += other.records
        self.added += other.added
        self.replaced += other.replaced
        self.unchanged += other.unchanged
        self.refused.update(other.refused)
        self.remarks.update(other.remarks)

    def check(self) -> None:
        """Raise `Damaged` if a record is unaccounted for."""
        accounted = self.added + self.replaced + self.unchanged + self.refused.total()
        if accounted != self.records:
            raise Damaged(
                f"{self.records} records were read but {accounted} are accounted for; "
                "this is a defect of dedupindex, please report it with the sources"
            )

    def as_json(self) -> dict[str, Any]:
        return {
            "containers": self.containers,
            "known": self.known,
            "purged": self.purged,
            "records": self.records,
            "added": self.added,
            "replaced": self.replaced,
            "unchanged": self.unchanged,
            "refused": dict(sorted(self.refused.items())),
            "remarks": dict(sorted(self.remarks.items())),
            "seconds": round(self.seconds, 3),
        }
