"""How often crawls have asked: none of a crawl that should be asking is what people must see.

Counted in memory for every lookup, which must cost next to nothing, and written by and by: what a
process counted since then is lost if it is killed, and nothing else.
"""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from dedupindex.crawls.crawl import Crawl
from dedupindex.crawls.store import Reading, Writing
from dedupindex.errors import UnknownCrawl

_ASKED = struct.Struct(">QQQ")  # lookups, first and last in seconds since 1970


class Asked(NamedTuple):
    """What is known of a crawl's lookups. Dates are WARC-Dates, empty for never."""

    lookups: int = 0
    first: str = ""
    last: str = ""


class Counting:
    """Counts lookups by the crawls' names, in any number of threads."""

    def __init__(self) -> None:
        self._names: deque[str] = deque()
        self.note = self._names.append  # atomic, unlike adding to a number
        self.note_all = self._names.extend

    def taken(self) -> Counter[str]:
        """What was counted since this was called last."""
        names = self._names
        return Counter(names.popleft() for _ in range(len(names)))


def asked_of(reading: Reading, crawl: Crawl) -> Asked:
    """What is known of a crawl's lookups."""
    value = reading.txn.get(_key(crawl), db=reading.trees.asked)
    if value is None:
        return Asked()
    lookups, first, last = _ASKED.unpack(value)
    return Asked(lookups, _date(first), _date(last))


def add_asked(writing: Writing, counted: Iterable[tuple[str, int]], now: float) -> None:
    """Add what was counted until `now`, in seconds since 1970; of no crawl, it does not count."""
    for name, count in counted:
        try:
            key = _key(writing.crawl(name))
        except UnknownCrawl:
            continue
        value = writing.txn.get(key, db=writing.trees.asked)
        before, first, last = _ASKED.unpack(value) if value else (0, int(now), 0)
        # Several processes write here, not in the order of their clocks.
        value = _ASKED.pack(before + count, min(first, int(now)), max(last, int(now)))
        writing.txn.put(key, value, db=writing.trees.asked)


def _key(crawl: Crawl) -> bytes:
    return crawl.number.to_bytes(4, "big")


def _date(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
