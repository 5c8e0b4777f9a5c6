"""The statistics of crawls, read: totals, by host, media type, status, strategy, hour and day.

Everything is read as it is asked for: no more is held than is yielded, however many hosts there
are. Headings are bytes, see `rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import nlargest
from typing import NamedTuple

from dedupindex.crawls.counting import bound_of
from dedupindex.crawls.crawl import Crawl
from dedupindex.crawls.statistics_keys import StatisticsKind, StatisticsRow, key_of
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
DROPPED_AT_ONCE = 1000  # rows, in one transaction: crawls write in between
_DAY = 10  # letters of an hour that are its day

Headed = tuple[bytes, StatisticsRow]
"""A heading and its row."""


class Times(NamedTuple):
    """When a crawl asked, and how long answers took. Of lookups in batches, their share."""

    first: int = 0  # of the lookups, in seconds since 1970; 0: never
    last: int = 0
    answered: int = 0  # as many lookups
    average: float = 0.0  # seconds
    p99: float = 0.0  # seconds that 99 of 100 took at most; up to a quarter too high


def total(reading: Reading, crawl: Crawl) -> StatisticsRow:
    """All that a crawl asked and stored; raises `Damaged` if that is lost."""
    amounts = reading.statistic(key_of(crawl.number, StatisticsKind.TOTAL))
    if amounts is not None:
        return StatisticsRow._make(amounts)
    # Where it is one file the total is written with the hours; on a cluster it may come later.
    if (
        reading.beside
        and not crawl.dropped
        and any(_under(reading, crawl, StatisticsKind.HOUR, b""))
    ):
        raise Damaged(
            f"the totals of crawl {crawl.name} are lost; bin/index --check says what is damaged"
        )
    return StatisticsRow()


def times(reading: Reading, crawl: Crawl) -> Times:
    """When a crawl asked, and how long it waited."""
    amounts = reading.statistic(key_of(crawl.number, StatisticsKind.TIMES))
    if amounts is None:
        return Times()
    first, last, taken, *buckets = amounts
    count = sum(buckets)
    left, at = count - count // 100, -1  # as many were not slower
    while left > 0:
        at += 1
        left -= buckets[at]
    return Times(first, last, count, taken / count / 1e9, bound_of(at) / 1e9)


def others(reading: Reading, crawl: Crawl) -> int:
    """How many lookups of others were answered with what a crawl reported.

    Each of them has probably stored a revisit that needs it.
    """
    amounts = reading.statistic(key_of(crawl.number, StatisticsKind.OTHERS))
    return amounts[0] if amounts else 0


def rows(reading: Reading, crawl: Crawl, by: str, after: bytes | None = None) -> Iterator[Headed]:
    """Every row of a crawl by one of `BY`, in the order of headings, beyond `after`."""
    kind = _kind(by)
    if by != "day":
        yield from _under(reading, crawl, kind, b"" if after is None else after + b"\0")
        return
    day, sums = b"", StatisticsRow()
    for hour, row in _under(reading, crawl, kind, after + b"U" if after else b""):
        if hour[:_DAY] != day:
            if day:
                yield day, sums
            day, sums = hour[:_DAY], StatisticsRow()
        sums = sums.plus(row)
    if day:
        yield day, sums


def largest(
    reading: Reading, crawl: Crawl, by: str, most: int, order: str = "lookups"
) -> list[Headed]:
    """The `most` rows of a crawl that come first by one of `ORDERS`, largest first.

    It holds no more than those, and looks at all: a second for a million hosts.
    """
    if order not in ORDERS:
        raise BadQuery(f"there is no order {order[:64]!r}; there are {', '.join(ORDERS)}")
    value = ORDERS[order]
    return nlargest(most, rows(reading, crawl, by), key=lambda headed: value(headed[1]))


def at_host(reading: Reading, host: bytes) -> Iterator[tuple[Crawl, StatisticsRow]]:
    """What each crawl has of a host, in the order in which crawls began."""
    for crawl in reading.crawls():
        row = _get(reading, key_of(crawl.number, StatisticsKind.HOST, host))
        if any(row):
            yield crawl, row


def over_time(
    reading: Reading, crawls: Iterable[Crawl], by: str, since: bytes = b"", until: bytes = b""
) -> list[Headed]:
    """The sums of crawls by "hour" or "day", in the order of time, where there are any.

    `since` and `until` (not included) are WARC-Dates or begin as one.
    """
    sums: dict[bytes, StatisticsRow] = {}
    width = _DAY if by == "day" else len(b"2026-11-20T09")
    for crawl in crawls:
        for hour, row in _under(reading, crawl, StatisticsKind.HOUR, since):
            if until and hour >= until:
                break
            unit = hour[:width]
            sums[unit] = sums.get(unit, StatisticsRow()).plus(row)
    return sorted(sums.items())


def drop(writing: Writing, crawl: Crawl, most: int = DROPPED_AT_ONCE) -> int:
    """Take away rows of a crawl that is dropped; how many: there are no more if it is 0."""
    return writing.drop_statistics(crawl, most)


def _kind(by: str) -> StatisticsKind:
    try:
        return BY[by]
    except KeyError:
        raise BadQuery(f"there is no report by {by[:64]!r}; there are {', '.join(BY)}") from None


def _get(reading: Reading, key: bytes) -> StatisticsRow:
    amounts = reading.statistic(key)
    return StatisticsRow() if amounts is None else StatisticsRow._make(amounts)


def _under(reading: Reading, crawl: Crawl, kind: StatisticsKind, start: bytes) -> Iterator[Headed]:
    """Rows of one kind, from a heading on."""
    for heading, amounts in reading.statistics(key_of(crawl.number, kind), start):
        yield heading, StatisticsRow._make(amounts)
