"""Count the lookups and reports of crawls.

A lookup is only noted, which must cost next to nothing. A thread adds up what was noted, and once a
second the sums are written. A process that is killed loses what it noted since the last write.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import orjson

from dedupindex.capture import Capture
from dedupindex.crawls.statistics_keys import (
    BUCKETS,
    COLUMN,
    LONGEST,
    WIDTH,
    StatisticsKind,
    combine_times,
    key_of,
)
from dedupindex.crawls.store import Writing
from dedupindex.errors import UnknownCrawl
from dedupindex.lookup.conditions import MAX_NAME_LENGTH
from dedupindex.urlkey import host_of

KEPT = 20_000  # headings in memory if they cannot be written; beyond, hosts are left out
TIMES_KEPT = 2000  # crawls whose times are in memory
SHORT = 2000  # characters of URL and answer; longer lookups are added up at once, not noted
_AT_ONCE = 2000  # rows in one transaction

_LOOKUPS, _LISTED, _UNSIZED = COLUMN["lookups"], COLUMN["listed"], COLUMN["unsized"]
_STATED, _DUPLICATE_STATED = COLUMN["stated_bytes"], COLUMN["duplicate_stated_bytes"]
_ERRORS, _STORED = COLUMN["errors"], COLUMN["stored"]


class Other(Enum):
    """The outcome of a lookup that was not decided by its digest."""

    LISTED = 1  # answered with the captures of its URL
    FAILED = 2  # answered with an error


class Missed(NamedTuple):
    """A lookup without an original."""

    mime: bytes  # as the asker states it


class CountedHit(NamedTuple):
    """What is counted of a hit."""

    match: str  # class
    size: int  # of the payload in bytes, -1 if not known
    mime: bytes
    status: int

    @classmethod
    def of(cls, match: str, original: Capture) -> CountedHit:
        """Make it from the match class and the original."""
        size = -1 if original.size_of_record else original.size
        return cls(match, size, original.mime[:LONGEST], original.status)


Outcome = bytes | CountedHit | Missed | Other | None
"""A JSON answer, a hit, or another outcome; None is a miss without media type."""

Noted = tuple[str, str, str | bytes, Outcome, int, int]
"""Crawl, strategy, URL, outcome, bytes that the asker states (-1: none), nanoseconds taken."""

_Heading = tuple[str, bytes, str, bytes, bytes, int]
"""Crawl, hour, strategy, host, media type, status."""


@dataclass
class StatisticsDelta:
    """Statistics to be added in one transaction."""

    rows: dict[_Heading, list[int]] = field(default_factory=dict)
    times: dict[str, list[int]] = field(default_factory=dict)  # by crawl: see `statistics_keys`
    others: Counter[str] = field(default_factory=Counter)  # by crawl


class LookupCounter:
    """Counts lookups and reports, for any number of threads."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._noted: deque[Noted] = deque()
        self.note_short = self._noted.append  # atomic, unlike incrementing a number
        self._stored: deque[tuple[str, bytes, bytes, int, int]] = deque()
        self._others: deque[str] = deque()
        self.note_others = self._others.append
        """Note the crawl whose capture answered a lookup of others."""
        self._clock = clock
        self._sums = StatisticsDelta()
        self._busy = threading.Lock()

    def note(self, noted: Noted) -> None:
        """Note a lookup; `note_short` is for those whose URL and answer are short."""
        answer = noted[3]
        if len(noted[2]) + (len(answer) if isinstance(answer, bytes) else 0) <= SHORT:
            self.note_short(noted)
            return
        with self._busy:
            now = int(self._clock())
            self._add(noted, hour_of(now), now)

    def note_all(self, several: Iterable[Noted]) -> None:
        """Note lookups."""
        for noted in several:
            self.note(noted)

    def note_stored(self, crawl: str, captures: Iterable[Capture]) -> None:
        """Note captures that a crawl has reported for the first time."""
        self._stored.extend(
            (crawl, host_of(one.url)[:LONGEST], one.mime[:LONGEST], one.status, one.size)
            for one in captures
        )

    def gather(self) -> None:
        """Add up what was noted; to be called often, as it takes memory."""
        with self._busy:
            now = int(self._clock())
            hour = hour_of(now)
            for _ in range(len(self._noted)):
                self._add(self._noted.popleft(), hour, now)
            for _ in range(len(self._others)):
                self._sums.others[self._others.popleft()] += 1
            for _ in range(len(self._stored)):
                crawl, host, mime, status, size = self._stored.popleft()
                row = self._row((crawl, hour, "", host, mime, status))
                row[_STORED] += 1
                row[_STORED + 1] += max(size, 0)

    def take(self) -> list[StatisticsDelta]:
        """Return and clear what was counted, in parts of one transaction each."""
        self.gather()
        with self._busy:
            taken, self._sums = self._sums, StatisticsDelta()
        rows = list(taken.rows.items())
        parts = [
            StatisticsDelta(dict(rows[at : at + _AT_ONCE])) for at in range(0, len(rows), _AT_ONCE)
        ]
        if taken.others and not parts:
            parts.append(StatisticsDelta())
        if parts:
            parts[0].times, parts[0].others = taken.times, taken.others
        return parts

    def give_back(self, part: StatisticsDelta) -> None:
        """Add a part that could not be written to the counts again."""
        with self._busy:
            for heading, amounts in part.rows.items():
                row = self._row(heading)
                row[:] = map(int.__add__, row, amounts)
            self._sums.others.update(part.others)
            for crawl, times in part.times.items():
                mine = self._times(crawl, times[0])
                mine[:] = combine_times(mine, times)

    def _add(self, noted: Noted, hour: bytes, now: int) -> None:
        crawl, strategy, url, outcome, stated, taken = noted
        column, size, mime, status = _meaning(outcome)
        host = host_of(url.encode("utf-8", "surrogateescape") if isinstance(url, str) else url)
        crawl = crawl[:MAX_NAME_LENGTH]
        row = self._row((crawl, hour, strategy, host[:LONGEST], mime[:LONGEST], status))
        if column == _ERRORS:
            row[_ERRORS] += 1
            return
        row[_LOOKUPS] += 1
        if stated > 0:
            row[_STATED] += stated
        if column:
            row[column] += 1
        if column and column != _LISTED:
            if size < 0:
                row[_UNSIZED] += 1
            else:
                row[column + 1] += size
            if stated > 0:
                row[_DUPLICATE_STATED] += stated
        times = self._times(crawl, now)
        times[1] = now
        times[2] += taken
        times[3 + _bucket(taken)] += 1

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

    def _times(self, crawl: str, now: int) -> list[int]:
        times = self._sums.times.get(crawl)
        if times is None:
            times = [now, now, 0, *[0] * BUCKETS]
            if len(self._sums.times) < TIMES_KEPT:
                self._sums.times[crawl] = times
        return times


def add_counted(writing: Writing, counted: StatisticsDelta) -> None:
    """Add counts to the statistics, except those of unknown and dropped crawls."""
    numbers: dict[str, int] = {}
    sums: dict[bytes, list[int]] = {}
    for heading, amounts in counted.rows.items():
        number = _number(writing, heading[0], numbers)
        for key in _keys(number, heading) if number else ():
            row = sums.setdefault(key, [0] * WIDTH)
            row[:] = map(int.__add__, row, amounts)
    for key in sorted(sums):
        writing.add(key, sums[key])
    for name, times in counted.times.items():
        if number := _number(writing, name, numbers):
            writing.add(key_of(number, StatisticsKind.TIMES), times)
    for name, count in counted.others.items():
        if number := _number(writing, name, numbers):
            writing.add(key_of(number, StatisticsKind.OTHERS), [count])


def hour_of(now: float) -> bytes:
    """Return the hour of a time in seconds since 1970, as ``2026-11-20T09``."""
    return time.strftime("%Y-%m-%dT%H", time.gmtime(now)).encode()


def bound_of(bucket: int) -> int:
    """Return the upper bound of a bucket, in nanoseconds."""
    doubling, quarter = divmod(bucket, 4)
    return (5 + quarter) << doubling


def _bucket(taken: int) -> int:
    doubling = max(taken.bit_length() - 3, 0)
    return min(4 * doubling + max((taken >> doubling) - 4, 0), BUCKETS - 1)


def _meaning(outcome: Outcome) -> tuple[int, int, bytes, int]:
    """Return the column of an outcome (0: none); size, media type and status of the original."""
    if outcome is None:
        return 0, -1, b"", 0
    if isinstance(outcome, bytes):
        answer = orjson.loads(outcome)
        if not answer["duplicate"]:
            return 0, -1, b"", 0
        original = answer["original"]
        size, mime = original["size"], (original["mime"] or "").encode()
        column = COLUMN[answer["match"]]
        return column, -1 if size is None else size, mime, original["status"] or 0
    if isinstance(outcome, Missed):
        return 0, -1, outcome.mime, 0
    if isinstance(outcome, Other):
        return _LISTED if outcome is Other.LISTED else _ERRORS, -1, b"", 0
    match, size, mime, status = outcome
    return COLUMN[match], size, mime, status


def _number(writing: Writing, name: str, numbers: dict[str, int]) -> int:
    """Return the number of a crawl, 0 if it is unknown or dropped."""
    if name not in numbers:
        try:
            crawl = writing.crawl(name)
            numbers[name] = 0 if crawl.dropped else crawl.number
        except UnknownCrawl:
            numbers[name] = 0
    return numbers[name]


def _keys(number: int, heading: _Heading) -> Iterator[bytes]:
    """Yield the keys of the rows that a heading counts in."""
    _, hour, strategy, host, mime, status = heading
    yield key_of(number, StatisticsKind.TOTAL)
    yield key_of(number, StatisticsKind.HOST, host)
    yield key_of(number, StatisticsKind.MIME, mime)
    yield key_of(number, StatisticsKind.STATUS, b"%d" % status if status else b"")
    yield key_of(number, StatisticsKind.HOUR, hour)
    if strategy:
        yield key_of(number, StatisticsKind.STRATEGY, strategy.encode())
