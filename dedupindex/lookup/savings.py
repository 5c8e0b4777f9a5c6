"""Measure how much a crawl would have saved with an index: captures and bytes, by match class.

Each capture is looked up as its crawler would have: any earlier original with its digest, itself
excepted. The class of the best original tells which strategies find it (exact: all three;
canonical: CANONICAL_URL and DIGEST_ANY; digest: DIGEST_ANY only), so one pass measures them all,
for several filters side by side. A policy decides as that of a server does. Fields are those of the
DeDuplicator's report.

Bytes are those of payloads. A source that states none, such as wget's CDX, or states the lengths of
compressed records, such as CDXJ, has captures whose size is not known; that of a duplicate is taken
from its original. A sum of sizes of which none is known is None, not 0.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from shlex import quote
from typing import Any, assert_never

from dedupindex.capture import Capture, Item, Problem, Refusal, Revisit
from dedupindex.digest import CUT_DIGEST, EMPTY, is_cut
from dedupindex.errors import BadInput
from dedupindex.index.engine import AHEAD, Finder, View
from dedupindex.index.identity import Settings
from dedupindex.lookup.decide import Decision, Match, Query, Strategy, decide, find
from dedupindex.lookup.policy import NO_POLICY, Policy
from dedupindex.runtime.bounded_counter import Sums
from dedupindex.runtime.report_table import exact_percent
from dedupindex.timestamps import sort_key
from dedupindex.urlkey import counted_host

_SAMPLED = 1000  # lookups that are checked for captures that the index already holds
CLASSES = (Match.EXACT_URL, Match.CANONICAL_URL, Match.DIGEST)
COLUMNS = (
    "handled",
    "handled_bytes",
    *(f"{match.value}{unit}" for match in CLASSES for unit in ("", "_bytes")),
    "unsized",  # captures whose payload has no known size; they add no bytes
    "unsized_duplicates",  # of these
)
_ROUGH = 0.01  # share of captures of unknown size above which a share of bytes is none


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


SIZES = ("stated", "of_original", "unknown")
"""Where the size of a payload is known from: its own record or line, its original, nowhere."""

# Strategy -> the number of match classes that it finds.
STRATEGIES = {strategy: _classes_of(strategy) for strategy in sorted(Strategy, key=_classes_of)}

# The headings of groups; b"" stands for one that is not known.
GROUPS: dict[str, Callable[[Capture], bytes]] = {
    "host": lambda capture: counted_host(capture.url),
    "mime": lambda capture: capture.mime,
    "status": lambda capture: b"%d" % capture.status if capture.status else b"",
    "day": lambda capture: capture.date[:10],
    "year": lambda capture: capture.date[:4],
}


@dataclass(frozen=True)
class ReportFilter:
    """Which captures a crawler would have looked up."""

    mime: str = ""  # regular expression of media types that are left out; "" for none
    min_size: int = 0  # bytes
    max_age: int | None = None  # seconds between the original and the capture; None: any

    def compile(self) -> re.Pattern[str] | None:
        """Return the compiled `mime`, None for none; raises `BadInput`."""
        try:
            return re.compile(self.mime, re.IGNORECASE) if self.mime else None
        except re.error as error:
            raise BadInput(f"{self.mime!r} is not a regular expression: {error}") from error


ALREADY_INDEXED = (
    "captures that the index already has: {} of the first {}, as of {} (the crawl was added, or "
    "reported by its crawler, or another file has them). They are not counted as their own "
    "duplicates, but as originals of later captures of the crawl; an exact report is made before "
    "that"
)
ONLY_LATER = (
    "without an original, but with one in the index that is later than they are, which does not "
    "count: {}. Each capture is looked up at its own time; index the older crawl first"
)
NOT_INDEXED = (
    "without an original and of media types that the index refuses (--mime {}): {}. Shares count "
    "them as new; --mime {} leaves them out; to count them, build an index with bin/index --all"
)
COUNTED_TWICE = (
    "WARCs were read as well as CDX files or logs: a capture in both is counted twice; "
    "name only one of them"
)


@dataclass
class DuplicationReport:
    """Sums over a crawl; `rows` holds those of the first filter by group, on disk if large."""

    filters: list[ReportFilter]
    by: str = "host"
    status: frozenset[int] = frozenset({200})
    policy: Policy = NO_POLICY
    records: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # not looked up, by reason
    revisits: int = 0  # duplicates that the crawl has written as revisits
    revisit_bytes: int = 0
    revisits_unsized: int = 0
    stored_duplicates: int = 0  # of the first filter: duplicates that the crawl has stored in full
    stored_duplicate_bytes: int = 0
    stored_duplicates_unsized: int = 0
    sizes: Counter[str] = field(default_factory=Counter)  # of captures, by `SIZES`
    lookups: int = 0
    lookup_seconds: float = 0.0
    last_lookup_seconds: float = 0.0
    not_indexed: int = 0  # of the first filter: without an original, of types the index refuses
    self_matches: int = 0  # of the first `_SAMPLED` lookups, captures that the index holds
    held_in: str = ""  # the file of the first of these, as the index has it
    only_later: int = 0  # of the first filter: without an original that is not later, but a later
    refused_by_policy: Counter[str] = field(default_factory=Counter)  # of the first filter, by word
    skipped: int = 0  # of the first filter: the policy says to write not even a revisit
    problems: list[Problem] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)  # what was read: "rows", "records" or both

    def __post_init__(self) -> None:
        self.totals = {chosen: [0] * len(COLUMNS) for chosen in self.filters}
        self.rows = Sums(len(COLUMNS))
        self._patterns = [(chosen, chosen.compile()) for chosen in self.filters]
        self._ages = list(dict.fromkeys(chosen.max_age for chosen in self.filters))
        self._index_mime = ("", False)  # the rule of the index
        self._index_matches = re.compile("(?!)").match

    def add(self, items: Iterable[Item], view: Finder, settings: Settings) -> None:
        """Look up and count every capture of a source.

        `view` is the index, or the index with the crawls that may answer.
        """
        self._index_mime = (settings.mime, settings.whitelist)
        self._index_matches = re.compile(settings.mime or "(?!)", re.IGNORECASE).match
        for item in items:
            if isinstance(item, Problem):
                self.problems.append(item)
                continue
            self.records += 1
            if isinstance(item, Refusal):
                self.refused[item.reason] += 1
            elif isinstance(item, Revisit):
                self._add_capture(item.capture, view, settings, revisit=True)
            else:
                self._add_capture(item, view, settings, revisit=False)

    def _add_capture(
        self, capture: Capture, view: Finder, settings: Settings, *, revisit: bool
    ) -> None:
        if reason := self._refusal_reason(capture, revisit):
            self.refused[reason] += 1
            return
        stated = None if revisit else capture
        original = find(view, settings, _query(capture)) if revisit else None
        if revisit and original is None:
            self.refused["revisit-of-unknown"] += 1
            return
        decisions = {age: self._look_up(capture, age, view, settings) for age in self._ages}
        if original is None:
            original = next((one.answer for one in decisions.values() if one.answer), None)
        size, source = _size_of(stated, original.original if original else None)
        self.sizes[source] += 1
        if revisit:
            self.revisits += 1
            self.revisit_bytes += size or 0
            self.revisits_unsized += size is None
        has_later = partial(_has_later, capture, view, settings)
        self._count(capture, decisions, size, has_later, revisit=revisit)

    def _refusal_reason(self, capture: Capture, revisit: bool) -> str:
        """Return why a capture is not looked up, "" if it is."""
        if capture.status not in self.status and not (revisit and not capture.status):
            return "status"
        if capture.digest in EMPTY or not capture.size:
            return "empty"
        return CUT_DIGEST if is_cut(capture.digest.raw) else ""

    def _look_up(
        self, capture: Capture, age: int | None, view: Finder, settings: Settings
    ) -> Decision:
        query = _query(capture)._replace(max_age=age, policy=self.policy, mime=capture.mime)
        start = time.perf_counter()
        decision = decide(view, settings, query)
        self.last_lookup_seconds = time.perf_counter() - start
        self.lookup_seconds += self.last_lookup_seconds
        self.lookups += 1
        if self.lookups <= _SAMPLED and settings.url_index:
            self._note_held(capture, view)
        original = decision.answer.original if decision.answer else None
        if (
            original is not None
            and original.date == capture.date
            and original.url > capture.url
            and settings.url_index
            and _held(capture, view) is not None
        ):  # else two captures of one second would be originals of each other
            return decide(view, settings, query._replace(accepts=partial(_precedes, capture)))
        return decision

    def _note_held(self, capture: Capture, view: Finder) -> None:
        held = _held(capture, view)
        if held is not None:
            self.self_matches += 1
            self.held_in = self.held_in or held.container

    def _count(
        self,
        capture: Capture,
        decisions: Mapping[int | None, Decision],
        size: int | None,
        has_later: Callable[[], bool],
        *,
        revisit: bool,
    ) -> None:
        """Add a capture to the sums; `has_later` is asked only if it has no original."""
        mime = capture.mime.decode("latin-1")
        for number, (chosen, pattern) in enumerate(self._patterns):
            if (size or 0) < chosen.min_size or (pattern is not None and pattern.match(mime)):
                continue
            decision = decisions[chosen.max_age]
            amounts = _amounts(decision, size)
            total = self.totals[chosen]
            for column, amount in enumerate(amounts):
                total[column] += amount
            if number == 0:
                self.rows.add(GROUPS[self.by](capture), *amounts)
                if decision.answer is None and mime:
                    matches = self._index_matches(mime) is not None
                    self.not_indexed += matches is not self._index_mime[1]
                if decision.policy:
                    self.refused_by_policy[decision.policy] += 1
                elif decision.answer is None:
                    self.only_later += has_later()
                self.skipped += decision.answer is not None and decision.answer.skip
                if decision.answer is not None and not revisit:
                    self.stored_duplicates += 1
                    self.stored_duplicate_bytes += size or 0
                    self.stored_duplicates_unsized += size is None

    def head(self, settings: Settings, captures: int) -> dict[str, Any]:
        """Return the report without its groups, of which there may be millions."""
        first = self.totals[self.filters[0]]
        return {
            "warnings": self.warnings(),
            "records": self.records,
            "refused": dict(sorted(self.refused.items())),
            "already_revisits": self.revisits,
            "already_revisits_bytes": known(
                self.revisit_bytes, self.revisits, self.revisits_unsized
            ),
            "stored_duplicates": self.stored_duplicates,
            "stored_duplicates_bytes": known(
                self.stored_duplicate_bytes, self.stored_duplicates, self.stored_duplicates_unsized
            ),
            **summary(first),
            "sizes": {source: self.sizes[source] for source in SIZES},
            "filters": [
                {**asdict(chosen), "strategies": saved(total)}
                for chosen, total in self.totals.items()
            ],
            "refused_by_policy": dict(sorted(self.refused_by_policy.items())),
            "skipped_by_policy": self.skipped,
            "already_indexed": self.self_matches,
            "only_later": self.only_later,
            "by": self.by,
            "lookups": self.lookups,
            "average_lookup_ms": round(1000 * self.lookup_seconds / (self.lookups or 1), 4),
            "last_lookup_ms": round(1000 * self.last_lookup_seconds, 4),
            "index": index_facts(settings, captures),
        }

    def warnings(self) -> list[str]:
        """Return why the figures may mislead."""
        known = dict[str, bool]()
        if self.self_matches:
            held, first = f"{self.self_matches:,}", f"{min(self.lookups, _SAMPLED):,}"
            known[ALREADY_INDEXED.format(held, first, self.held_in or "a crawl that reports")] = (
                True
            )
        known[COUNTED_TWICE] = len(self.kinds) > 1
        known[ONLY_LATER.format(f"{self.only_later:,}")] = self.only_later > 0
        if self.not_indexed:
            pattern, whitelist = self._index_mime
            rule = quote(pattern) + (" --whitelist" if whitelist else "")
            others = quote(f"(?!{pattern})" if whitelist else pattern)
            known[NOT_INDEXED.format(rule, f"{self.not_indexed:,}", others)] = True
        return [warning for warning, applies in known.items() if applies]

    def groups(self, count: int) -> Iterator[dict[str, Any]]:
        """Yield the `count` groups with the most bytes handled, then captures; 0 for all."""
        for key, sums in self.rows.largest(count, 1, 0):
            yield {self.by: key.decode("utf-8", "backslashreplace") or None, **summary(sums)}


def _query(capture: Capture) -> Query:
    """Return the lookup of a capture that finds neither itself nor a later one."""
    return Query(
        digest=capture.digest,
        url=capture.url,
        as_of=capture.date,
        not_record=capture.record_id,
        accepts=partial(_is_another, capture),
    )


def _size_of(stated: Capture | None, original: Capture | None) -> tuple[int | None, str]:
    """Return the size of a capture's payload, and which of `SIZES` it is."""
    for capture, source in zip((stated, original), SIZES, strict=False):
        if capture is not None and capture.size >= 0 and not capture.size_of_record:
            return capture.size, source
    return None, SIZES[-1]


def _amounts(decision: Decision, size: int | None) -> list[int]:
    """Return the `COLUMNS` of a capture."""
    amounts = [1, size or 0] + [0] * (len(COLUMNS) - 2)
    if decision.answer is not None:
        at = 2 + 2 * CLASSES.index(decision.answer.match)
        amounts[at : at + 2] = 1, size or 0
    if size is None:
        amounts[-2:] = 1, int(decision.answer is not None)
    return amounts


IndexFacts = Mapping[str, bool | int]
"""What reports say of an index, by the names of `index_facts`."""


def index_facts(settings: Settings, captures: int) -> IndexFacts:
    """Return what reports say of an index with these settings and so many captures."""
    return {
        "url_indexed": settings.url_index,
        "digest_indexed": True,
        "canonical_url_available": settings.canonical,
        "digest_includes_algorithm": True,
        "records_in_index": captures,
    }


def _held(capture: Capture, view: Finder) -> Capture | None:
    """Return a capture as the index holds it, None if it does not."""
    found = view.exact(capture.digest, capture.url)
    return next((other for other in found if _is_same(capture, other)), None)


def _has_later(capture: Capture, view: Finder, settings: Settings) -> bool:
    """Return whether the index has an original of a capture that is later than that."""
    query = Query(capture.digest, capture.url, accepts=partial(_is_later, capture))
    return find(view, settings, query) is not None


def _is_later(capture: Capture, original: Capture) -> bool:
    return sort_key(original.date) > sort_key(capture.date)


def _precedes(capture: Capture, original: Capture) -> bool:
    """Return whether an original comes before a capture in the order in which lookups prefer."""
    mine, theirs = sort_key(capture.date), sort_key(original.date)
    return (theirs, original.url) < (mine, capture.url)


def _is_another(capture: Capture, original: Capture) -> bool:
    return capture.url != original.url or not _is_same(capture, original)


def _is_same(capture: Capture, other: Capture) -> bool:
    if capture.record_id and other.record_id:
        return capture.record_id == other.record_id
    return capture.date == other.date


def summary(sums: Sequence[int]) -> dict[str, Any]:
    """Return the columns of a total or group by name, and what is computed from them.

    Bytes are None if there are captures, and the size of none is known, also those of one match
    class. So is their share if the size of more than a hundredth is not known.
    """
    columns: dict[str, Any] = dict(zip(COLUMNS, sums, strict=True))
    handled, unsized, among = sums[0], *sums[-2:]
    duplicates = sum(columns[match.value] for match in CLASSES)
    duplicate_bytes = sum(columns[f"{match.value}_bytes"] for match in CLASSES)
    new, new_bytes = handled - duplicates, sums[1] - duplicate_bytes
    return {
        **columns,
        **class_bytes(columns, among),
        "handled_bytes": known(sums[1], handled, unsized),
        "duplicates": duplicates,
        "duplicate_bytes": known(duplicate_bytes, duplicates, among),
        "duplicates_percent": exact_percent(duplicates, handled),
        "duplicate_bytes_percent": share_of_bytes(duplicate_bytes, sums[1], handled, unsized),
        "new": new,
        "new_bytes": known(new_bytes, new, unsized - among),
    }


def known(total: int, captures: int, unsized: int) -> int | None:
    """Return a sum of sizes, None if there are captures and the size of none is known."""
    return None if captures and unsized == captures else total


def class_bytes(columns: Mapping[str, int], unsized: int) -> dict[str, int | None]:
    """Return the bytes of each match class, None if it has hits and the size of none is known.

    `unsized` hits of all classes have no known size. No payload that is stored is empty.
    """
    found: dict[str, int | None] = {}
    for match in CLASSES:
        hits, size = columns[match.value], columns[f"{match.value}_bytes"]
        found[f"{match.value}_bytes"] = None if not size and 0 < hits <= unsized else size
    return found


def share_of_bytes(part: int, whole: int, captures: int, unsized: int) -> float | None:
    """Return a share of bytes in per cent, None if too many of the captures have no size."""
    return None if unsized > _ROUGH * captures else exact_percent(part, whole)


def saved(sums: list[int]) -> dict[str, dict[str, int | float | None]]:
    """Return the captures, bytes and per cent of bytes that each strategy would have saved."""
    result = {}
    for strategy, classes in STRATEGIES.items():
        end = 2 + 2 * classes
        captures, size = sum(sums[2:end:2]), sum(sums[3 : end + 1 : 2])
        result[strategy.value] = {
            "captures": captures,
            "captures_percent": exact_percent(captures, sums[0]),
            "bytes": None if not size and 0 < captures <= sums[-1] else size,
            "percent": share_of_bytes(size, sums[1], sums[0], sums[-2]),
        }
    return result


def prefetched(items: Iterable[Item], view: View) -> Iterator[Item]:
    """Yield the items; a networked view reads the digests of many in one round trip."""
    items = iter(items)
    while chunk := list(islice(items, AHEAD)):
        captures = (item.capture if isinstance(item, Revisit) else item for item in chunk)
        view.prefetch(item.digest for item in captures if isinstance(item, Capture))
        yield from chunk
