"""What a crawl would have saved against an index: captures and bytes, by match class.

A capture of the crawl is looked up as a crawler would have: any original with its digest that was
captured before it, and is not it. The class of the best original says which strategies would have
found it (exact: all three; canonical: CANONICAL_URL and DIGEST_ANY; digest: DIGEST_ANY only), so
one pass tells the saving of every strategy. Media type filters and minimum sizes are tried side
by side. Fields are those of the DeDuplicator's report, and their sums add up to what was read.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, assert_never

from dedupindex.capture import Capture, Item, Problem, Refusal, Revisit
from dedupindex.digest import CUT_DIGEST, EMPTY, is_cut
from dedupindex.errors import BadInput
from dedupindex.index.engine import AHEAD, View
from dedupindex.index.identity import Settings
from dedupindex.lookup.decide import Answer, Match, Query, Strategy, find
from dedupindex.runtime.bounded_counter import Sums
from dedupindex.urlkey import host_of

_SAMPLED = 1000  # lookups that are checked for captures of the index itself
CLASSES = (Match.EXACT_URL, Match.CANONICAL_URL, Match.DIGEST)
COLUMNS = (
    "handled",
    "handled_bytes",
    *(f"{match.value}{unit}" for match in CLASSES for unit in ("", "_bytes")),
)


def _classes_of(strategy: Strategy) -> int:
    match strategy:
        case Strategy.EXACT_URL:
            return 1
        case Strategy.CANONICAL_URL:
            return 2
        case Strategy.DIGEST_ANY:
            return 3
        case _:
            assert_never(strategy)


# Strategy -> the number of classes that it finds, best first.
STRATEGIES = {strategy: _classes_of(strategy) for strategy in sorted(Strategy, key=_classes_of)}

Group = Callable[[Capture], bytes]
GROUPS: dict[str, Group] = {
    "host": lambda capture: host_of(capture.url),
    "mime": lambda capture: capture.mime or b"unknown",
    "status": lambda capture: b"%d" % capture.status if capture.status else b"unknown",
    "day": lambda capture: capture.date[:10],
    "year": lambda capture: capture.date[:4],
}


@dataclass(frozen=True)
class ReportFilter:
    """Which captures a crawler would have looked up."""

    mime: str = ""  # captures whose media type matches are left out; "" leaves none out
    min_size: int = 0  # bytes

    def compiled(self) -> re.Pattern[str] | None:
        try:
            return re.compile(self.mime, re.IGNORECASE) if self.mime else None
        except re.error as error:
            raise BadInput(f"{self.mime!r} is not a regular expression: {error}") from error


@dataclass
class DuplicationReport:
    """Sums over a crawl; `rows` of the first filter are kept by group, on disk if need be."""

    filters: list[ReportFilter]
    by: str = "host"
    status: frozenset[int] = frozenset({200})
    records: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # not looked up, by reason
    revisits: int = 0  # of the duplicates: those that the crawl has written as revisits
    revisit_bytes: int = 0
    lookups: int = 0
    lookup_seconds: float = 0.0
    last_lookup_seconds: float = 0.0
    unsized: int = 0  # handled, but nobody knows how many bytes
    themselves: int = 0  # of the first lookups: found themselves in the index
    problems: list[Problem] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.totals = {chosen: [0] * len(COLUMNS) for chosen in self.filters}
        self.rows = Sums(len(COLUMNS))
        self._patterns = [(chosen, chosen.compiled()) for chosen in self.filters]

    def take(self, items: Iterable[Item], view: View, settings: Settings) -> None:
        """Look every capture of a source up and count it."""
        for item in _foreseen(items, view):
            if isinstance(item, Problem):
                self.problems.append(item)
                continue
            self.records += 1
            if isinstance(item, Refusal):
                self.refused[item.reason] += 1
            elif isinstance(item, Revisit):
                self._take(item.capture, view, settings, revisit=True)
            else:
                self._take(item, view, settings, revisit=False)

    def _take(self, capture: Capture, view: View, settings: Settings, *, revisit: bool) -> None:
        if capture.status not in self.status and not (revisit and not capture.status):
            self.refused["status"] += 1
            return
        if capture.digest in EMPTY or not capture.size:
            self.refused["empty"] += 1
            return
        if is_cut(capture.digest.raw):
            self.refused[CUT_DIGEST] += 1
            return
        answer = self._ask(capture, view, settings)
        if not revisit:
            self._count(capture, answer, max(capture.size, 0))
        elif answer is None:
            self.refused["revisit-of-unknown"] += 1
        else:  # the payload is not here: how long it is, its original knows
            size = max(answer.original.size, 0)
            self.revisits += 1
            self.revisit_bytes += size
            self._count(capture, answer, size)

    def _ask(self, capture: Capture, view: View, settings: Settings) -> Answer | None:
        query = Query(
            digest=capture.digest,
            url=capture.url,
            as_of=capture.date,
            not_record=capture.record_id,
            not_date=b"" if capture.record_id else capture.date,
        )
        start = time.perf_counter()
        answer = find(view, settings, query)
        self.last_lookup_seconds = time.perf_counter() - start
        self.lookup_seconds += self.last_lookup_seconds
        self.lookups += 1
        if self.lookups <= _SAMPLED:
            self.themselves += any(_is(capture, known) for known in _exact(view, settings, capture))
        return answer

    def _count(self, capture: Capture, answer: Answer | None, size: int) -> None:
        self.unsized += capture.size < 0 and not size
        amounts = [1, size] + [0] * (len(COLUMNS) - 2)
        if answer is not None:
            at = 2 + 2 * CLASSES.index(answer.match)
            amounts[at : at + 2] = 1, size
        mime = capture.mime.decode("latin-1")
        for number, (chosen, pattern) in enumerate(self._patterns):
            if size < chosen.min_size or (pattern is not None and pattern.match(mime)):
                continue
            total = self.totals[chosen]
            for column, amount in enumerate(amounts):
                total[column] += amount
            if number == 0:
                self.rows.add(GROUPS[self.by](capture), *amounts)

    def as_json(self, settings: Settings, captures: int, largest: int) -> dict[str, Any]:
        """The report as one object with the `largest` groups, 0 for all; they are in memory."""
        return {**self.head(settings, captures), "groups": list(self.groups(largest))}

    def head(self, settings: Settings, captures: int) -> dict[str, Any]:
        """The report without its groups, of which there may be millions."""
        first = self.totals[self.filters[0]]
        return {
            "records": self.records,
            "not_handled": dict(sorted(self.refused.items())),
            "already_revisits": self.revisits,
            "already_revisits_bytes": self.revisit_bytes,
            **summary(first),
            "size_unknown": self.unsized,
            "filters": [
                {"mime": chosen.mime, "min_size": chosen.min_size, "strategies": saved(total)}
                for chosen, total in self.totals.items()
            ],
            "by": self.by,
            "lookups": self.lookups,
            "average_lookup_ms": round(1000 * self.lookup_seconds / (self.lookups or 1), 4),
            "last_lookup_ms": round(1000 * self.last_lookup_seconds, 4),
            "index": {
                "url_indexed": settings.url_index,
                "digest_indexed": True,
                "canonical_url_available": settings.canonical,
                "digest_includes_algorithm": True,
                "records_in_index": captures,
            },
        }

    def groups(self, count: int) -> Iterator[dict[str, Any]]:
        """The groups with the most bytes handled, largest first; 0 for all of them."""
        for key, sums in self.rows.largest(count, 1):
            yield {self.by: key.decode("utf-8", "backslashreplace"), **summary(sums)}


def _exact(view: View, settings: Settings, capture: Capture) -> list[Capture]:
    return view.exact(capture.digest, capture.url) if settings.url_index else []


def _is(capture: Capture, known: Capture) -> bool:
    """Whether the index holds this very capture."""
    if capture.record_id and known.record_id:
        return capture.record_id == known.record_id
    return capture.date == known.date


def summary(sums: Sequence[int]) -> dict[str, Any]:
    """The columns of a total or group by name, and what follows from them."""
    columns = dict(zip(COLUMNS, sums, strict=True))
    duplicates = sum(columns[match.value] for match in CLASSES)
    duplicate_bytes = sum(columns[f"{match.value}_bytes"] for match in CLASSES)
    return {
        **columns,
        "duplicates": duplicates,
        "duplicate_bytes": duplicate_bytes,
        "duplicates_percent": _percent(duplicates, columns["handled"]),
        "duplicate_bytes_percent": _percent(duplicate_bytes, columns["handled_bytes"]),
        "new": columns["handled"] - duplicates,
        "new_bytes": columns["handled_bytes"] - duplicate_bytes,
    }


def saved(sums: list[int]) -> dict[str, dict[str, int | float]]:
    """What each strategy would have saved."""
    return {
        strategy.value: {
            "captures": sum(sums[2 : 2 + 2 * classes : 2]),
            "bytes": sum(sums[3 : 3 + 2 * classes : 2]),
            "percent": _percent(sum(sums[3 : 3 + 2 * classes : 2]), sums[1]),
        }
        for strategy, classes in STRATEGIES.items()
    }


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 2) if whole else 0.0


def _foreseen(items: Iterable[Item], view: View) -> Iterator[Item]:
    """The items, about whose captures a view has heard before they are looked up."""
    items = iter(items)
    while some := list(islice(items, AHEAD)):
        captures = (item.capture if isinstance(item, Revisit) else item for item in some)
        view.prefetch(one.digest for one in captures if isinstance(one, Capture))
        yield from some
