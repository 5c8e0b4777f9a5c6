"""What only crawlers know: what they did not ask and not report, said as they end or before.

Each process of a crawl says its own numbers, counted since it began, under its own name. So they
may be said again and in any order: of two numbers under one name the greater holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dedupindex.crawls.crawl import Crawl
from dedupindex.crawls.statistics_keys import MOST, NOBODY, StatisticsKind, key_of
from dedupindex.crawls.store import Reading, Writing
from dedupindex.errors import BadInput

_TELLERS = 1000  # of one crawl


class SelfReport(NamedTuple):
    """What all processes of a crawl said, in captures; None is what nobody said."""

    not_looked_up: int | None = None
    not_reported: int | None = None


NAMES = SelfReport._fields


def tell(writing: Writing, crawl: Crawl, numbers: Mapping[str, int], who: str = "") -> None:
    """Keep what `who` says of `NAMES`, perhaps not of all.

    Nothing of a crawl that was dropped. Raises `BadInput` if too many have said something: nothing
    is kept then.
    """
    if not numbers or crawl.dropped:
        return
    key = key_of(crawl.number, StatisticsKind.TOLD, who.encode("utf-8", "surrogateescape"))
    everybody = writing.statistics(key_of(crawl.number, StatisticsKind.TOLD))
    if writing.statistic(key) is None and sum(1 for _ in everybody) >= _TELLERS:
        raise BadInput(f"no more than {_TELLERS} processes of one crawl can count apart")
    writing.add(key, [min(numbers.get(name, NOBODY), MOST) for name in NAMES])


def told_of(reading: Reading, crawl: Crawl) -> SelfReport:
    """What the processes of a crawl said, added up."""
    sums: list[int | None] = [None] * len(NAMES)
    for _, numbers in reading.statistics(key_of(crawl.number, StatisticsKind.TOLD)):
        for place, number in enumerate(numbers):
            if number != NOBODY:
                sums[place] = (sums[place] or 0) + number
    return SelfReport(*sums)
