"""What a step came to, and the reports that all of them make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_NAMED = 20


@dataclass
class Step:
    """One of the seven."""

    name: str
    did: str  # in a few words
    numbers: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)  # the first; `failed` counts all
    failed: int = 0
    seconds: float = 0.0

    @property
    def sound(self) -> bool:
        return not self.failed

    def fail(self, problem: str, count: int = 1) -> None:
        """Note what is not as it should be."""
        self.failed += count
        if len(self.problems) < _NAMED:
            self.problems.append(problem)

    def expect(self, numbers: Mapping[str, tuple[int, int]]) -> None:
        """Note numbers, each with what it should be."""
        for name, (found, wanted) in numbers.items():
            self.numbers[name] = found
            if found != wanted:
                self.fail(f"{name.replace('_', ' ')}: {found:,}, not {wanted:,}")

    def as_json(self) -> dict[str, Any]:
        return {
            "step": self.name,
            "did": self.did,
            "sound": self.sound,
            **self.numbers,
            "failed": self.failed,
            "problems": self.problems,
            "seconds": round(self.seconds, 3),
        }
