"""The last hour of crawls by minutes, and what in it needs attention.

The stores keep it for all processes, each of which adds its counts once a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dedupindex.crawls import statistics
from dedupindex.crawls.counting import bound_of
from dedupindex.crawls.crawl import Crawl, CrawlState
from dedupindex.crawls.crawl_report import all_refused, warning
from dedupindex.crawls.parse_report import self_report_of
from dedupindex.crawls.statistics_keys import (
    DOUBLINGS,
    WIDTH,
    StatisticsKind,
    StatisticsRow,
    key_of,
)
from dedupindex.crawls.store import Reading
from dedupindex.runtime.tables import duration

HOUR = 60  # minutes that are kept
RECENT = 5  # minutes in which errors and slow answers are reported
SILENT = 5  # minutes without a lookup after which a crawl is said to be silent
SLOW = 0.1  # seconds; for crawlers that ask for each response an answer should be far quicker
_BUCKETS_OF_DOUBLING = 4
_FEW = 10  # a tenth of the captures may be stored without a lookup: their lookup is an hour old


class MinuteCounts(NamedTuple):
    """What was counted in a minute, or in several."""

    minute: int  # since 1970; of several the first
    row: StatisticsRow = StatisticsRow()
    taken: int = 0  # nanoseconds of all lookups
    doublings: Sequence[int] = (0,) * DOUBLINGS  # lookups by time: a bucket for each doubling

    @property
    def average(self) -> float:
        """Seconds that a lookup took, 0.0 without lookups."""
        count = sum(self.doublings)
        return self.taken / count / 1e9 if count else 0.0

    @property
    def p99(self) -> float:
        """Seconds in which 99 of 100 lookups were answered, at most twice as much; 0.0: none."""
        if not any(self.doublings):
            return 0.0
        return min(_bound(statistics.bucket_of_p99(self.doublings)), self.taken / 1e9)

    @property
    def slow(self) -> int:
        """Lookups that took longer than `SLOW`, without those that may have taken less."""
        first = next(bucket for bucket in range(DOUBLINGS) if _bound(bucket) > SLOW)
        return sum(self.doublings[first + 1 :])

    def plus(self, other: MinuteCounts) -> MinuteCounts:
        doublings = list(map(int.__add__, self.doublings, other.doublings))
        return MinuteCounts(
            self.minute, self.row.plus(other.row), self.taken + other.taken, doublings
        )


def _bound(doubling: int) -> float:
    """Return the upper bound of a bucket, in seconds."""
    return bound_of(_BUCKETS_OF_DOUBLING * (doubling + 1) - 1) / 1e9


def last_hour(reading: Reading, crawls: Iterable[Crawl], now: float) -> list[MinuteCounts]:
    """Return the sums of crawls in each of the last 60 minutes, the current one last."""
    latest = int(now) // 60
    minutes = {number: MinuteCounts(number) for number in range(latest - HOUR + 1, latest + 1)}
    for crawl in crawls:
        prefix = key_of(crawl.number, StatisticsKind.MINUTE)
        for _, (number, *amounts) in reading.statistics(prefix):
            if number in minutes:  # else it was counted in an earlier hour
                row = StatisticsRow._make(amounts[:WIDTH])
                counts = MinuteCounts(number, row, amounts[WIDTH], amounts[WIDTH + 1 :])
                minutes[number] = minutes[number].plus(counts)
    return list(minutes.values())


def sum_of(minutes: Sequence[MinuteCounts]) -> MinuteCounts:
    """Return the sum of at least one minute."""
    total = minutes[0]
    for counts in minutes[1:]:
        total = total.plus(counts)
    return total


def attention(
    reading: Reading, crawl: Crawl, minutes: Sequence[MinuteCounts], now: float
) -> list[str]:
    """Return sentences about an open crawl that asks late, slowly or not at all.

    `minutes` are those of `last_hour` of this crawl.
    """
    if crawl.state is not CrawlState.OPEN:
        return []
    total = statistics.total(reading, crawl)
    found = []
    captures, _ = statistics.captures(reading, crawl)
    never = warning(crawl, total, captures)
    if never:
        found.append(never)
    last = statistics.times(reading, crawl).last
    if last and now - last >= SILENT * 60:
        found.append(f"no lookup for {duration((now - last) // 60 * 60)}")
    if reason := _unasked(reading, crawl, sum_of(minutes).row):
        found.append(reason)
    refused = statistics.refused(reading, crawl)
    if refused and not captures:
        found.append(all_refused(refused))
    recent = sum_of(minutes[-RECENT:])
    slow = f"lookups that took more than {SLOW * 1000:.0f} ms"
    for count, what in ((recent.slow, slow), (recent.row.errors, "lookups answered with an error")):
        if count:
            found.append(f"{what}, of the last {RECENT} minutes: {count:,}")
    return found


def _unasked(reading: Reading, crawl: Crawl, hour: StatisticsRow) -> str:
    """Return a sentence if a crawl stores clearly more than its lookups found to be new."""
    told = self_report_of(reading, crawl)
    if told.answered_by_filter:
        return ""  # the filters of its crawlers do not say when they answered
    new = hour.lookups - hour.duplicates
    missing = hour.stored - new - (told.not_looked_up or 0)
    if missing * _FEW <= hour.stored:
        return ""
    return (
        f"captures stored in the last hour: {hour.stored:,}, but lookups that found nothing "
        f"before: {new:,}"
    )
