"""Measure how well ETag and Last-Modified predict that a page has changed, by host or media type.

Each capture of a crawl is compared with the last earlier visit of its URL that an index knows. The
payload digests say whether the page has changed; a validator that both state predicts it:

    kept      it is the same, and so is the payload: a conditional request saves the transfer
    lost      it is the same, but the payload is another one: a conditional request loses it
    needless  it is another one, and the payload is the same: fetched in full for nothing
    (the rest of those that state it has changed, and the payload, too)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dedupindex.capture import Capture, Item, Problem, Revisit
from dedupindex.digest import EMPTY
from dedupindex.index.format.visits import Visit
from dedupindex.lookup.last_capture import opaque
from dedupindex.lookup.savings import GROUPS
from dedupindex.runtime.bounded_counter import Sums
from dedupindex.timestamps import digits_of_date

VALIDATORS = {"etag": "ETag", "last_modified": "Last-Modified"}
_OUTCOMES = ("stated", "kept", "kept_bytes", "lost", "needless")
COLUMNS = (
    *("compared", "changed"),
    *(f"{name}_{outcome}" for name in VALIDATORS for outcome in _OUTCOMES),
)


@dataclass
class ValidatorReport:
    """Sums over the captures of a crawl; groups are on disk if there are many."""

    by: str = "host"
    status: frozenset[int] = frozenset({200})
    records: int = 0
    first: int = 0  # captures of URLs that were not known before
    other_digest: int = 0  # captures whose digest is of another algorithm than the earlier one
    problems: list[Problem] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._total = [0] * len(COLUMNS)
        self._rows = Sums(len(COLUMNS))

    def add(self, item: Item, earlier: Iterable[Visit]) -> None:
        """Count an item of a source; `earlier` are visits of its URL, in any order."""
        if isinstance(item, Problem):
            self.problems.append(item)
            return
        self.records += 1
        if (capture := self.capture_of(item)) is None:
            return
        digits = digits_of_date(capture.date)
        before = [
            visit
            for visit in earlier
            if visit.status // 100 in (0, 2, 3) and digits_of_date(visit.date) < digits
        ]
        if not before:
            self.first += 1
            return
        last = max(before, key=lambda visit: visit.date)
        if last.digest.algorithm != capture.digest.algorithm:
            self.other_digest += 1
            return
        amounts = _amounts(capture, last)
        self._total = list(map(int.__add__, self._total, amounts))
        self._rows.add(GROUPS[self.by](capture), *amounts)

    def capture_of(self, item: Item) -> Capture | None:
        """Return the capture that is compared for an item, None if none is."""
        if not isinstance(item, Capture | Revisit):
            return None
        capture = item.capture if isinstance(item, Revisit) else item
        usable = capture.status in self.status and capture.digest not in EMPTY
        return capture if usable else None

    def head(self) -> dict[str, Any]:
        """Return the report without its groups."""
        return {
            "records": self.records,
            "first": self.first,
            "other_digest": self.other_digest,
            "by": self.by,
            **dict(zip(COLUMNS, self._total, strict=True)),
        }

    def groups(self, count: int) -> Iterator[dict[str, Any]]:
        """Yield the `count` groups with the most captures compared, largest first; 0 for all."""
        for key, sums in self._rows.largest(count, 0):
            heading = key.decode("utf-8", "backslashreplace") or None
            yield {self.by: heading, **dict(zip(COLUMNS, sums, strict=True))}


def _amounts(capture: Capture, last: Visit) -> list[int]:
    """Return the `COLUMNS` of a capture and the visit before it."""
    changed = capture.digest != last.digest
    amounts = [1, int(changed)]
    for name in VALIDATORS:
        now, then = (opaque(getattr(item, name)) for item in (capture, last))
        if not (now and then):
            amounts += [0] * len(_OUTCOMES)
            continue
        kept, size = now == then and not changed, max(capture.size, 0)
        amounts += [1, int(kept), size if kept else 0]
        amounts += [int(now == then and changed), int(now != then and not changed)]
    return amounts
