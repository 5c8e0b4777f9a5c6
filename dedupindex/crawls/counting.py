"""Count the lookups and reports of crawls.

Counting a lookup only appends to a queue, which must cost next to nothing. A thread adds up the
queue, and once a second the sums are written. A process that is killed loses what it counted since
the last write.
"""

from __future__ import annotations

import threading
import time
from calendar import timegm
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import orjson

from dedupindex.capture import Capture
from dedupindex.crawls.statistics_keys import (
    BUCKETS,
    COLUMN,
    DOUBLINGS,
    LONGEST,
    WIDTH,
    StatisticsKind,
    combine_times,
    key_of,
    key_of_minute,
)
from dedupindex.crawls.store import Writing
from dedupindex.lookup.conditions import MAX_NAME_LENGTH
from dedupindex.urlkey import counted_host

KEPT = 20_000  # headings in memory if they cannot be written; beyond, hosts are left out
TIMES_KEPT = 2000  # crawls whose times are in memory
_SHORT = 2000  # characters of URL and answer; longer lookups are added up at once, not queued
_AT_ONCE = 2000  # rows in one transaction
_MINUTE = "%Y-%m-%dT%H:%M"
_HOUR = len("2026-11-20T09")

_LOOKUPS, _UNSIZED = COLUMN["lookups"], COLUMN["unsized"]
_STATED, _DUPLICATE_STATED = COLUMN["stated_bytes"], COLUMN["duplicate_stated_bytes"]


class LookupOutcome(NamedTuple):
    """What is counted of an answer."""

    column: str = ""  # match class of a hit, "listed" or "errors"; "" for a miss
    size: int = -1  # of the original's payload in bytes, -1 if not known
    mime: bytes = b""  # of the original; of a miss, as the asker states it
    status: int = 0

    @classmethod
    def of_hit(cls, match: str, original: Capture) -> LookupOutcome:
        """Return the outcome of a match class and original."""
        return cls(match, payload_size(original), original.mime[:LONGEST], original.status)


NO_ORIGINAL = LookupOutcome()
LISTED = LookupOutcome("listed")  # answered with the captures of a URL
FAILED = LookupOutcome("errors")

CountedLookup = tuple[str, str, str | bytes, LookupOutcome | bytes, int, int]
"""Crawl, strategy, URL, outcome or JSON answer, bytes that the asker states or -1, nanoseconds."""

_Heading = tuple[str, bytes, str, bytes, bytes, int]
"""Crawl, minute, strategy, host, media type, status; the hour of what was given back."""


@dataclass
class StatisticsDelta:
    """Statistics to be added in one transaction."""

    rows: dict[_Heading, list[int]] = field(default_factory=dict)
    times: dict[str, list[int]] = field(default_factory=dict)  # by crawl: see `statistics_keys`
    others: Counter[str] = field(default_factory=Counter)  # by crawl
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)  # by crawl and reason


class LookupCounter:
    """Counts lookups and reports, for any number of threads."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._lookups: deque[CountedLookup] = deque()
        self._stored: deque[tuple[str, bytes, bytes, int, int]] = deque()
        self._others: deque[str] = deque()
        self.count_other = self._others.append
        """Count a lookup of others for the crawl whose capture answered it."""
        self.ended: Collection[str] = frozenset()
        """The crawls whose lookups are not counted any more, as last read."""
        self._clock = clock
        self._sums = StatisticsDelta()
        self._busy = threading.Lock()

    def count_lookup(self, lookup: CountedLookup) -> None:
        """Count a lookup of a crawl that has not ended.

        If its URL and answer are long, it is counted at once, else it is queued.
        """
        if lookup[0] in self.ended:
            return
        answer = lookup[3]
        if len(lookup[2]) + (len(answer) if isinstance(answer, bytes) else 0) <= _SHORT:
            self._lookups.append(lookup)  # atomic, unlike incrementing a number
            return
        with self._busy:
            now = int(self._clock())
            self._add(lookup, minute_of(now), now)

    def count_lookups(self, lookups: Iterable[CountedLookup]) -> None:
        for lookup in lookups:
            self.count_lookup(lookup)

    def count_stored(self, crawl: str, captures: Iterable[Capture]) -> None:
        """Count captures that a crawl has reported for the first time."""
        self._stored.extend(
            (
                crawl,
                counted_host(item.url)[:LONGEST],
                item.mime[:LONGEST],
                item.status,
                payload_size(item),
            )
            for item in captures
        )

    def count_refused(self, crawl: str, reasons: Mapping[str, int]) -> None:
        """Count captures that the index has refused, by reason, each time they are reported."""
        if reasons:
            with self._busy:
                self._sums.refused.update({(crawl, key): n for key, n in reasons.items()})

    def count_not_modified(self, crawl: str, captures: Iterable[Capture]) -> None:
        """Count revisits whose payloads the server did not send, as they had not changed."""
        with self._busy:
            minute = minute_of(int(self._clock()))
            for item in captures:
                host, mime = counted_host(item.url)[:LONGEST], item.mime[:LONGEST]
                row = self._row((crawl, minute, "", host, mime, item.status))
                _add_sized(row, "not_modified", item.size)

    def gather(self) -> None:
        """Add up the queues; to be called often, as they take memory."""
        with self._busy:
            now = int(self._clock())
            minute = minute_of(now)
            for _ in range(len(self._lookups)):
                self._add(self._lookups.popleft(), minute, now)
            for _ in range(len(self._others)):
                self._sums.others[self._others.popleft()] += 1
            for _ in range(len(self._stored)):
                crawl, host, mime, status, size = self._stored.popleft()
                row = self._row((crawl, minute, "", host, mime, status))
                _add_sized(row, "stored", size)

    def take(self) -> list[StatisticsDelta]:
        """Return and clear what was counted, in parts of one transaction each."""
        self.gather()
        with self._busy:
            taken, self._sums = self._sums, StatisticsDelta()
        rows = list(taken.rows.items())
        parts = [
            StatisticsDelta(dict(rows[at : at + _AT_ONCE])) for at in range(0, len(rows), _AT_ONCE)
        ]
        if (taken.others or taken.refused) and not parts:
            parts.append(StatisticsDelta())
        if parts:
            parts[0].times, parts[0].others = taken.times, taken.others
            parts[0].refused = taken.refused
        return parts

    def give_back(self, part: StatisticsDelta) -> None:
        """Add a part that could not be written to the counts again, by hours.

        By minutes it could be sixty times as much, and minutes are for those who watch.
        """
        with self._busy:
            for (crawl, unit, *rest), amounts in part.rows.items():
                row = self._row((crawl, unit[:_HOUR], *rest))  # type: ignore[arg-type]
                row[:] = map(int.__add__, row, amounts)
            self._sums.others.update(part.others)
            self._sums.refused.update(part.refused)
            for crawl, times in part.times.items():
                mine = self._sums.times.get(crawl) or self._new_times(crawl, times[0])
                mine[:] = combine_times(mine, times)

    def _add(self, lookup: CountedLookup, minute: bytes, now: int) -> None:
        crawl, strategy, url, answer, stated, taken = lookup
        column, size, mime, status = _outcome_of(answer) if isinstance(answer, bytes) else answer
        host = counted_host(url.encode("utf-8", "surrogateescape") if isinstance(url, str) else url)
        crawl = crawl[:MAX_NAME_LENGTH]
        row = self._row((crawl, minute, strategy, host[:LONGEST], mime[:LONGEST], status))
        if column:
            row[COLUMN[column]] += 1
            if column == FAILED.column:
                return
            if column != LISTED.column:
                if size < 0:
                    row[_UNSIZED] += 1
                else:
                    row[COLUMN[column] + 1] += size
                if stated > 0:
                    row[_DUPLICATE_STATED] += stated
        row[_LOOKUPS] += 1
        if stated > 0:
            row[_STATED] += stated
        times = self._sums.times.get(crawl) or self._new_times(crawl, now)
        times[1] = now
        times[2] += taken
        times[3 + _bucket(taken)] += 1
        times[-1] = taken

    def _row(self, heading: _Heading) -> list[int]:
        """Return the amounts of a heading, to be changed in place."""
        rows = self._sums.rows
        row = rows.get(heading)
        if row is None:
            if len(rows) >= KEPT:
                heading = (*heading[:3], b"", b"", 0)
            if len(rows) >= 2 * KEPT:  # these must be names that are no crawls
                heading = ("", b"", "", b"", b"", 0)
            row = rows.setdefault(heading, [0] * WIDTH)
        return row

    def _new_times(self, crawl: str, now: int) -> list[int]:
        times = [now, now, 0, *[0] * BUCKETS, 0]
        if len(self._sums.times) < TIMES_KEPT:
            self._sums.times[crawl] = times
        return times


def payload_size(capture: Capture) -> int:
    """Return the bytes of a capture's payload, -1 if not known."""
    return -1 if capture.size_of_record else capture.size


def _add_sized(row: list[int], name: str, size: int) -> None:
    """Count a capture in the columns of a name; one of unknown size adds no bytes."""
    row[COLUMN[name]] += 1
    if size < 0:
        row[COLUMN[f"{name}_unsized"]] += 1
    else:
        row[COLUMN[f"{name}_bytes"]] += size


def add_counted(writing: Writing, counted: StatisticsDelta) -> None:
    """Add counts to the statistics, except those of unknown and dropped crawls."""
    numbers: dict[str, int] = {}
    sums: dict[int, tuple[_Hosts, _Groups]] = {}  # by number of the crawl
    for (name, unit, strategy, host, mime, status), amounts in counted.rows.items():
        number = _number(writing, name, numbers)
        if not number:
            continue
        hosts, groups = sums.setdefault(number, ({}, {}))
        _add_row(hosts, host, amounts)
        _add_row(groups, (unit, strategy, mime, status), amounts)
    for key, row in sorted(_keyed(sums)):
        writing.add(key, row)
    for name, times in counted.times.items():
        if number := _number(writing, name, numbers):
            writing.add(key_of(number, StatisticsKind.TIMES), times)
            if times[1] - times[0] < 60:  # else they could not be written at once
                writing.add(*_minute_of_times(number, times))
    for name, count in counted.others.items():
        if number := _number(writing, name, numbers):
            writing.add(key_of(number, StatisticsKind.OTHERS), [count])
    for (name, reason), count in counted.refused.items():
        if number := _number(writing, name, numbers):
            writing.add(key_of(number, StatisticsKind.REFUSED, reason.encode()), [count])


def minute_of(now: float) -> bytes:
    """Return the minute of a time in seconds since 1970, as ``2026-11-20T09:31``."""
    return time.strftime(_MINUTE, time.gmtime(now)).encode()


def _minute_of_times(number: int, times: Sequence[int]) -> tuple[bytes, list[int]]:
    """Return key and amounts of the minute in which the last of these lookups was answered."""
    minute, (taken, *buckets) = times[1] // 60, times[2:-1]
    doublings = [sum(buckets[at : at + 4]) for at in range(0, BUCKETS, 4)]
    return key_of_minute(number, minute), [minute, *[0] * WIDTH, taken, *doublings]


def bound_of(bucket: int) -> int:
    """Return the upper bound of a bucket, in nanoseconds."""
    doubling, quarter = divmod(bucket, 4)
    return (5 + quarter) << doubling


def _bucket(taken: int) -> int:
    doubling = taken.bit_length() - 3
    if doubling <= 0:
        return max(taken - 4, 0)
    return min(4 * doubling + (taken >> doubling) - 4, BUCKETS - 1)


def _outcome_of(answer: bytes) -> LookupOutcome:
    """Return the outcome of a JSON answer."""
    content = orjson.loads(answer)
    if not content["duplicate"]:
        return NO_ORIGINAL
    original = content["original"]
    size, mime = original["size"], (original["mime"] or "").encode()
    size = -1 if size is None else size
    return LookupOutcome(content["match"], size, mime, original["status"] or 0)


def _number(writing: Writing, name: str, numbers: dict[str, int]) -> int:
    """Return the number of a crawl, 0 if it is unknown or dropped."""
    if name not in numbers:
        crawl = writing.crawl_named(name)
        numbers[name] = crawl.number if crawl and not crawl.dropped else 0
    return numbers[name]


_Hosts = dict[bytes, list[int]]
_Groups = dict[tuple[bytes, str, bytes, int], list[int]]
"""Amounts by minute, strategy, media type and status: few, but there may be thousands of hosts."""

_H = TypeVar("_H")


def _add_row(rows: dict[_H, list[int]], heading: _H, amounts: Sequence[int]) -> None:
    row = rows.get(heading)
    rows[heading] = [*amounts] if row is None else list(map(int.__add__, row, amounts))


def _keyed(sums: Mapping[int, tuple[_Hosts, _Groups]]) -> Iterator[tuple[bytes, list[int]]]:
    """Yield sums of crawls with their keys; reports of captures have no strategy."""
    for number, (hosts, groups) in sums.items():
        rows: dict[tuple[StatisticsKind, bytes], list[int]] = {}
        minutes: dict[bytes, list[int]] = {}
        for (unit, strategy, mime, status), amounts in groups.items():
            if len(unit) > _HOUR:
                _add_row(minutes, unit, amounts)
            for kind, heading in (
                (StatisticsKind.TOTAL, b""),
                (StatisticsKind.MIME, mime),
                (StatisticsKind.STATUS, b"%d" % status if status else b""),
                (StatisticsKind.HOUR, unit[:_HOUR]),
                (StatisticsKind.STRATEGY, strategy.encode()),
            ):
                if heading or kind is not StatisticsKind.STRATEGY:
                    _add_row(rows, (kind, heading), amounts)
        for (kind, heading), row in rows.items():
            yield key_of(number, kind, heading), row
        for unit, row in minutes.items():
            minute = timegm(time.strptime(unit.decode(), _MINUTE)) // 60
            yield key_of_minute(number, minute), [minute, *row, 0, *[0] * DOUBLINGS]
        for host, row in hosts.items():
            yield key_of(number, StatisticsKind.HOST, host), row
