"""Progress of a run, and the counts of a build."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dedupindex.errors import Damaged


@dataclass(frozen=True)
class ProgressUpdate:
    """The progress of a run."""

    phase: str  # such as "reading"
    bytes: int = 0
    of: int = 0  # bytes in all; 0 if not known
    records: int = 0
    part: float | None = None  # of the phase, from 0 to 1, if it has no bytes

    @property
    def share(self) -> float | None:
        """The finished part of the phase, from 0 to 1; None if not known."""
        done = self.bytes / self.of if self.part is None and self.of else self.part
        return None if done is None else min(max(done, 0.0), 1.0)


OnProgress = Callable[[ProgressUpdate], None]


def silent(seen: ProgressUpdate) -> None:
    """Show no progress."""


_NUMBERS = (
    *("containers", "known", "purged", "records", "revisits", "added", "replaced", "unchanged"),
    "replaced_by_name",
)


@dataclass
class BuildTally:
    """The counts of a build. Every record is accounted for:

    ``records = added + replaced + unchanged + sum(refused)`` at the end of a run.
    """

    containers: int = 0  # read in this run
    known: int = 0  # skipped, as they were indexed before and have not changed
    purged: int = 0  # of these, files whose captures were purged
    records: int = 0
    revisits: int = 0  # of these; each counts below as the original that it names
    added: int = 0  # captures with a new URL and digest
    replaced: int = 0  # captures that replaced one in the index
    replaced_by_name: int = 0  # of these, equal ones in a container whose name sorts first
    unchanged: int = 0  # captures for which one in the index was kept
    refused: Counter[str] = field(default_factory=Counter)  # by reason
    refused_in: dict[str, str] = field(default_factory=dict)  # by reason, a file that has such
    remarks: Counter[str] = field(default_factory=Counter)  # on records that were read nevertheless
    seconds: float = 0.0

    def add(self, other: BuildTally) -> None:
        """Add the counts of another part of the run."""
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.refused.update(other.refused)
        for reason, file in other.refused_in.items():  # the first by name, however work is divided
            self.refused_in[reason] = min(file, self.refused_in.get(reason, file))
        self.remarks.update(other.remarks)

    def check(self) -> None:
        """Raise `Damaged` if a record is unaccounted for."""
        accounted = self.added + self.replaced + self.unchanged + self.refused.total()
        if accounted != self.records:
            raise Damaged(
                f"{self.records:,} records were read but {accounted:,} are accounted for; "
                "this is a defect of dedupindex, please report it with the sources"
            )

    def as_json(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in _NUMBERS},
            "refused": dict(sorted(self.refused.items())),
            "refused_in": dict(sorted(self.refused_in.items())),
            "remarks": dict(sorted(self.remarks.items())),
            "seconds": round(self.seconds, 3),
        }
