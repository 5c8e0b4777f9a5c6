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
from itertools import starmap
from typing import NamedTuple, TypeVar

import orjson

from dedupindex.cache import MEGABYTE, Cache
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

KEPT = 20_000  # rows of hosts, and others, in memory; beyond, headings are left out
TIMES_KEPT = 2000  # crawls whose times are in memory
_SHORT = 2000  # characters of URL and answer; longer lookups are added up at once, not queued
_MINUTE = "%Y-%m-%dT%H:%M"
_HOUR = len("2026-11-20T09")
_SITE = len("https://")  # a path may begin after it

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

_Host = tuple[str, bytes]
"""Crawl and host."""
_Group = tuple[str, bytes, str, bytes, int]
"""Crawl, minute, strategy, media type, status; the hour of what was given back."""


_H = TypeVar("_H")


@dataclass
class StatisticsDelta:
    """Statistics to be added in one transaction. Hosts and groups each count every lookup.

    A row for each combination of both would be many times as many.
    """

    hosts: dict[_Host, list[int]] = field(default_factory=dict)
    groups: dict[_Group, list[int]] = field(default_factory=dict)
    times: dict[str, list[int]] = field(default_factory=dict)  # by crawl: see `statistics_keys`
    others: Counter[str] = field(default_factory=Counter)  # by crawl
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)  # by crawl and reason
    refused_sized: Counter[str] = field(default_factory=Counter)  # of known size, by crawl
    refused_bytes: Counter[str] = field(default_factory=Counter)

    def __bool__(self) -> bool:
        return bool(self.groups or self.others or self.refused)


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
        self._hosts = Cache[str | bytes, bytes](4 * MEGABYTE)  # by the site of a URL
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

    def count_refused(
        self, crawl: str, reasons: Mapping[str, int], captures: Iterable[Capture]
    ) -> None:
        """Count captures that the index has refused, each time they are reported.

        They are counted by reason, and their payload for the crawl as a whole.
        """
        if not reasons:
            return
        sizes = [size for size in map(payload_size, captures) if size >= 0]
        with self._busy:
            self._sums.refused.update({(crawl, key): n for key, n in reasons.items()})
            self._sums.refused_sized[crawl] += len(sizes)
            self._sums.refused_bytes[crawl] += sum(sizes)

    def count_not_modified(self, crawl: str, captures: Iterable[Capture]) -> None:
        """Count revisits whose payloads the server did not send, as they had not changed."""
        with self._busy:
            minute = minute_of(int(self._clock()))
            for item in captures:
                host, mime = counted_host(item.url)[:LONGEST], item.mime[:LONGEST]
                for row in self._rows(crawl, host, minute, "", mime, item.status):
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
                for row in self._rows(crawl, host, minute, "", mime, status):
                    _add_sized(row, "stored", size)

    def take(self) -> StatisticsDelta:
        """Return and clear what was counted; it is false if there is nothing."""
        self.gather()
        with self._busy:
            taken, self._sums = self._sums, StatisticsDelta()
        return taken

    def give_back(self, taken: StatisticsDelta) -> None:
        """Add what could not be written to the counts again, by hours.

        By minutes it could be sixty times as much, and minutes are for those who watch.
        """
        with self._busy:
            for host, amounts in taken.hosts.items():
                row = self._host_row(host)
                row[:] = map(int.__add__, row, amounts)
            for (crawl, unit, *rest), amounts in taken.groups.items():
                row = self._group_row((crawl, unit[:_HOUR], *rest))  # type: ignore[arg-type]
                row[:] = map(int.__add__, row, amounts)
            self._sums.others.update(taken.others)
            self._sums.refused.update(taken.refused)
            self._sums.refused_sized.update(taken.refused_sized)
            self._sums.refused_bytes.update(taken.refused_bytes)
            for crawl, times in taken.times.items():
                mine = self._sums.times.get(crawl) or self._new_times(crawl, times[0])
                mine[:] = combine_times(mine, times)

    def _add(self, lookup: CountedLookup, minute: bytes, now: int) -> None:
        crawl, strategy, url, answer, stated, taken = lookup
        column, size, mime, status = _outcome_of(answer) if isinstance(answer, bytes) else answer
        if len(crawl) > MAX_NAME_LENGTH:
            crawl = crawl[:MAX_NAME_LENGTH]
        place = COLUMN[column] if column else 0
        if column == FAILED.column:
            for row in self._rows(crawl, self._host(url), minute, strategy, mime, status):
                row[place] += 1
            return
        is_hit = place and column != LISTED.column
        for row in self._rows(crawl, self._host(url), minute, strategy, mime, status):
            row[_LOOKUPS] += 1
            if place:
                row[place] += 1
            if stated > 0:
                row[_STATED] += stated
            if is_hit:
                if size < 0:
                    row[_UNSIZED] += 1
                else:
                    row[place + 1] += size
                if stated > 0:
                    row[_DUPLICATE_STATED] += stated
        times = self._sums.times.get(crawl) or self._new_times(crawl, now)
        times[1] = now
        times[2] += taken
        times[3 + _bucket(taken)] += 1
        times[-1] = taken

    def _host(self, url: str | bytes) -> bytes:
        """Return the host under which a URL is counted, which its site (up to the path) has."""
        end = url.find("/", _SITE) if isinstance(url, str) else url.find(b"/", _SITE)
        site = url[:end] if end > 0 else url
        host = self._hosts.get(site)
        if host is None:
            address = url.encode("utf-8", "surrogateescape") if isinstance(url, str) else url
            host = counted_host(address)[:LONGEST]
            if end > 0 and address.startswith((b"http://", b"https://")):
                self._hosts.keep(site, host)
        return host

    def _rows(
        self, crawl: str, host: bytes, minute: bytes, strategy: str, mime: bytes, status: int
    ) -> tuple[list[int], list[int]]:
        """Return the amounts of a host and of a group, to be changed in place."""
        sums, by_host, by_group = self._sums, (crawl, host), (crawl, minute, strategy, mime, status)
        return (
            sums.hosts.get(by_host) or self._host_row(by_host),
            sums.groups.get(by_group) or self._group_row(by_group),
        )

    def _host_row(self, heading: _Host) -> list[int]:
        return _row(self._sums.hosts, heading, (heading[0], b""), ("", b""))

    def _group_row(self, heading: _Group) -> list[int]:
        shorter = (*heading[:3], b"", 0)
        return _row(self._sums.groups, heading, shorter, ("", b"", "", b"", 0))

    def _new_times(self, crawl: str, now: int) -> list[int]:
        times = [now, now, 0, *[0] * BUCKETS, 0]
        if len(self._sums.times) < TIMES_KEPT:
            self._sums.times[crawl] = times
        return times


def _row(rows: dict[_H, list[int]], heading: _H, shorter: _H, shortest: _H) -> list[int]:
    """Return the amounts of a heading, or those of a shorter one if there are too many."""
    row = rows.get(heading)
    if row is None:
        if len(rows) >= KEPT:
            heading = shorter
        if len(rows) >= 2 * KEPT:  # these must be names that are no crawls
            heading = shortest
        row = rows.setdefault(heading, [0] * WIDTH)
    return row


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
    rows: dict[bytes, list[int]] = {}  # by key
    minutes: dict[tuple[int, bytes], list[int]] = {}
    for (name, host), amounts in counted.hosts.items():
        if number := _number(writing, name, numbers):
            rows[key_of(number, StatisticsKind.HOST, host)] = amounts
    for (name, unit, strategy, mime, status), amounts in counted.groups.items():
        if number := _number(writing, name, numbers):
            for kind, heading in _headings(unit[:_HOUR], strategy, mime, status):
                _add_row(rows, key_of(number, kind, heading), amounts)
            if len(unit) > _HOUR:
                _add_row(minutes, (number, unit), amounts)
    for key, row in sorted([*rows.items(), *starmap(_of_minute, minutes.items())]):
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
    for name, sized in counted.refused_sized.items():
        if number := _number(writing, name, numbers):
            amounts = [sized, counted.refused_bytes[name]]
            writing.add(key_of(number, StatisticsKind.REFUSED_PAYLOAD), amounts)


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


def _add_row(rows: dict[_H, list[int]], heading: _H, amounts: Sequence[int]) -> None:
    row = rows.get(heading)
    rows[heading] = [*amounts] if row is None else list(map(int.__add__, row, amounts))


def _headings(
    hour: bytes, strategy: str, mime: bytes, status: int
) -> Iterator[tuple[StatisticsKind, bytes]]:
    """Yield what a group is counted under; reports of captures have no strategy."""
    yield StatisticsKind.TOTAL, b""
    yield StatisticsKind.MIME, mime
    yield StatisticsKind.STATUS, b"%d" % status if status else b""
    yield StatisticsKind.HOUR, hour
    if strategy:
        yield StatisticsKind.STRATEGY, strategy.encode()


def _of_minute(heading: tuple[int, bytes], row: Sequence[int]) -> tuple[bytes, list[int]]:
    """Return key and amounts of the lookups of a crawl in a minute."""
    number, unit = heading
    minute = timegm(time.strptime(unit.decode(), _MINUTE)) // 60
    return key_of_minute(number, minute), [minute, *row, 0, *[0] * DOUBLINGS]
