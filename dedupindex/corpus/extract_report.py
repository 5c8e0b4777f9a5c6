"""What became of what a corpus was asked for, in numbers that add up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from dedupindex.capture import Problem


@dataclass
class CorpusReport:
    """``chosen = entries + left_out`` where each capture of the metadata was tried."""

    refused: int = 0  # lines of the metadata that are no captures
    revisits: int = 0  # that conditions have left when originals were looked for
    chosen: int = 0  # captures that their metadata has left
    tried: int = 0  # of these: what is behind the best of a group is not looked at
    entries: int = 0  # written, or yielded
    errors: Counter[str] = field(default_factory=Counter)  # entries that have one, by what failed
    records: int = 0  # read from containers
    containers: int = 0  # opened, by each process that did
    bytes_read: int = 0  # of containers
    bytes: int = 0  # written
    problems: list[Problem] = field(default_factory=list)  # of the metadata
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        said = {name: value for name, value in vars(self).items() if name != "problems"}
        return {
            **said,
            "errors": dict(sorted(self.errors.items())),
            "problems": len(self.problems),
            "seconds": round(self.seconds, 3),
        }

    @property
    def whole(self) -> bool:
        """Whether all that was asked for could be read."""
        return not (self.errors or self.problems or self.refused)

    def told(self) -> str:
        """What is wrong with the sources, in a sentence."""
        refused = f"lines of the metadata that are no captures: {self.refused:,}"
        first = f"{self.problems[0].container}: {self.problems[0].message}" if self.problems else ""
        more = f" (and {len(self.problems) - 1:,} problems more)" if len(self.problems) > 1 else ""
        return "; ".join(filter(None, (refused * bool(self.refused), first + more)))
