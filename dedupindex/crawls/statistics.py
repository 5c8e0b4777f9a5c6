"""Read the statistics of crawls: totals, by host, media type, status, strategy, hour and day.

Rows are read as they are yielded, so memory does not grow with the number of hosts. Headings are
bytes, see `statistics_keys`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import nlargest
from itertools import accumulate, groupby
from typing import NamedTuple

from dedupindex.crawls.counting import bound_of
from dedupindex.crawls.crawl import Crawl
from dedupindex.crawls.parse_report import SelfReport, self_report_of
from dedupindex.crawls.statistics_keys import (
    MOST,
    RefusedPayload,
    StatisticsKind,
    StatisticsRow,
    key_of,
)
from dedupindex.crawls.store import Reading, Writing
from dedupindex.errors import BadQuery, Damaged

BY = {
    "host": StatisticsKind.HOST,
    "mime": StatisticsKind.MIME,
    "status": StatisticsKind.STATUS,
    "strategy": StatisticsKind.STRATEGY,
    "hour": StatisticsKind.HOUR,
    "day": StatisticsKind.HOUR,
}
ORDERS: dict[str, Callable[[StatisticsRow], int]] = {
    "lookups": lambda row: row.lookups,
    "duplicates": lambda row: row.duplicates,
    "duplicate_bytes": lambda row: row.duplicate_bytes,
    "stored": lambda row: row.stored,
    "stored_bytes": lambda row: row.stored_bytes,
}
DROPPED_AT_ONCE = 1000  # rows in one transaction, so that crawls can write in between
_DAY = 10  # characters of an hour that are its day

Headed = tuple[bytes, StatisticsRow]
"""A heading and its row."""


class Times(NamedTuple):
    """When a crawl asked, and how long answers took; a lookup of a batch took its share of it."""

    first: int = 0  # first and last lookup, in seconds since 1970; 0: never
    last: int = 0
    answered: int = 0  # lookups
    average: float = 0.0  # seconds
    p99: float = 0.0  # seconds; up to a quarter too high
    latest: float = 0.0  # seconds that the last lookup took; 0: not known


def total(reading: Reading, crawl: Crawl, self_report: SelfReport | None = None) -> StatisticsRow:
    """Return the totals of a crawl; raises `Damaged` if they are lost.

    `self_report` is read if it is not given.

    Its lookups are also those that the digest filters of its crawlers have answered, of which the
    rows of `rows` know nothing.
    """
    row = _asked(reading, crawl)
    by_filter = (self_report or self_report_of(reading, crawl)).answered_by_filter
    return row._replace(lookups=min(row.lookups + by_filter, MOST)) if by_filter else row


def _asked(reading: Reading, crawl: Crawl) -> StatisticsRow:
    amounts = reading.statistic(key_of(crawl.number, StatisticsKind.TOTAL))
    if amounts is not None:
        return StatisticsRow._make(amounts)
    # In a file the total is written together with the hours; on a cluster it may come later.
    hours = _from(reading, crawl, StatisticsKind.HOUR, b"")
    if reading.needs_merge and not crawl.dropped and any(hours):
        raise Damaged(
            f"the totals of crawl {crawl.name} are lost; bin/index --check says what is damaged"
        )
    return StatisticsRow()


def times(reading: Reading, crawl: Crawl) -> Times:
    """Return when a crawl asked, and how long it waited."""
    amounts = reading.statistic(key_of(crawl.number, StatisticsKind.TIMES))
    if amounts is None:
        return Times()
    first, last, taken, *buckets, latest = amounts
    count = sum(buckets)
    p99 = min(bound_of(bucket_of_p99(buckets)), taken)  # no lookup took longer than all of them
    return Times(first, last, count, taken / count / 1e9, p99 / 1e9, latest / 1e9)


def bucket_of_p99(buckets: Sequence[int]) -> int:
    """Return the place in a histogram below whose upper bound are 99 of 100 values."""
    answered = list(accumulate(buckets))
    return bisect_left(answered, answered[-1] - answered[-1] // 100)


def others(reading: Reading, crawl: Crawl) -> int:
    """Return how many lookups of others a crawl answered; their revisits refer to its captures."""
    amounts = reading.statistic(key_of(crawl.number, StatisticsKind.OTHERS))
    return amounts[0] if amounts else 0


def refused(reading: Reading, crawl: Crawl) -> dict[str, int]:
    """Return how many captures that a crawl reported the index has refused, by reason."""
    found = reading.statistics(key_of(crawl.number, StatisticsKind.REFUSED))
    return {reason.decode(): count for reason, (count,) in found}


def refused_payload(reading: Reading, crawl: Crawl, reasons: dict[str, int]) -> RefusedPayload:
    """Return the sum of what `refused` returned, and its payload.

    Crawls of earlier versions counted no sizes of it: then none is known.
    """
    count = sum(reasons.values())
    if not count:  # most crawls: a page lists many of them
        return RefusedPayload(0, 0, 0)
    amounts = reading.statistic(key_of(crawl.number, StatisticsKind.REFUSED_PAYLOAD))
    sized, size = amounts or (0, 0)
    return RefusedPayload(count, max(count - sized, 0), size)


def captures(reading: Reading, crawl: Crawl) -> tuple[int, int]:
    """Return how many captures a crawl has reported and their bytes; none of a dropped crawl."""
    return (0, 0) if crawl.dropped else reading.counts(crawl)


def rows(reading: Reading, crawl: Crawl, by: str, after: bytes | None = None) -> Iterator[Headed]:
    """Yield the rows of a crawl by one of `BY`, in order, from after a heading on."""
    if by not in BY:
        raise BadQuery(f"there is no report by {by[:64]!r}; there are {', '.join(BY)}")
    kind = BY[by]
    if by != "day":
        yield from _from(reading, crawl, kind, b"" if after is None else after + b"\0")
        return
    hours = _from(reading, crawl, kind, after + b"U" if after else b"")
    for day, group in groupby(hours, key=lambda headed: headed[0][:_DAY]):
        yield day, StatisticsRow.sum_of(row for _, row in group)


def largest(
    reading: Reading, crawl: Crawl, by: str, most: int, order: str = "lookups"
) -> list[Headed]:
    """Return the `most` largest rows by one of `ORDERS`; reads all, a million in a second."""
    if order not in ORDERS:
        raise BadQuery(f"there is no order {order[:64]!r}; there are {', '.join(ORDERS)}")
    value = ORDERS[order]
    return nlargest(most, rows(reading, crawl, by), key=lambda headed: value(headed[1]))


def at_host(reading: Reading, host: bytes) -> Iterator[tuple[Crawl, StatisticsRow]]:
    """Yield the row of a host of each crawl that has one, the oldest crawl first."""
    for crawl in reading.crawls():
        amounts = reading.statistic(key_of(crawl.number, StatisticsKind.HOST, host))
        if amounts is not None and any(amounts):
            yield crawl, StatisticsRow._make(amounts)


def over_time(
    reading: Reading, crawls: Iterable[Crawl], by: str, since: bytes = b""
) -> list[Headed]:
    """Return the sums of crawls by "hour" or "day", in order, from a prefix of a WARC-Date on."""
    sums: dict[bytes, StatisticsRow] = {}
    width = _DAY if by == "day" else len(b"2026-11-20T09")
    for crawl in crawls:
        for hour, row in _from(reading, crawl, StatisticsKind.HOUR, since):
            unit = hour[:width]
            sums[unit] = sums.get(unit, StatisticsRow()).plus(row)
    return sorted(sums.items())


def drop(writing: Writing, crawl: Crawl) -> int:
    """Remove rows of a dropped crawl; return how many, 0 when none are left."""
    return writing.drop_statistics(crawl, DROPPED_AT_ONCE)


def _from(reading: Reading, crawl: Crawl, kind: StatisticsKind, start: bytes) -> Iterator[Headed]:
    """Yield the rows of one kind, from a heading on."""
    for heading, amounts in reading.statistics(key_of(crawl.number, kind), start):
        yield heading, StatisticsRow._make(amounts)
