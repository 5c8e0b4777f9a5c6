"""What a process counts of crawls on a cluster: rows of its own, never changed by another.

A row is the sum, under one heading, of what this process counted since a moment; it is written
again whenever it grows, later than before, and so may be written twice. After a while the sums are
forgotten and others begin, in rows beside them. Who reads joins all rows of a heading. Counters of
the database would count twice what is sent twice.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

from xxhash import xxh3_64_intdigest

from dedupindex.crawls.statistics_keys import FORMS, KIND, AmountForm, Amounts, StatisticsKind
from dedupindex.crawls.stores.cassandra_crawl_tables import HOST_PARTS, CrawlStatements
from dedupindex.index.engines.cassandra.cql import Session
from dedupindex.index.format.cells import sealed

COUNTS = b"k"  # the kind of captures and bytes of a crawl, which may shrink
SINCE = 3600.0  # seconds that sums grow for
KEPT = 20_000  # sums, before others begin
_WIDE = 16  # bytes of one of them


def _unpacked(value: bytes | memoryview[int]) -> Amounts:
    places = range(0, len(value), _WIDE)
    return [int.from_bytes(value[at : at + _WIDE], "big", signed=True) for at in places]


def _packed(amounts: Amounts) -> bytes:
    return b"".join(amount.to_bytes(_WIDE, "big", signed=True) for amount in amounts)


_FORM = AmountForm(_unpacked, _packed, lambda one, other: list(map(int.__add__, one, other)))


def form_of(kind: bytes) -> AmountForm:
    """How amounts of a kind are kept and joined."""
    return _FORM if kind == COUNTS else FORMS[kind]


def parts_of(kind: bytes) -> int:
    """In how many partitions the headings of a kind are: there may be millions of hosts."""
    return HOST_PARTS if kind == StatisticsKind.HOST.value else 1


def part_of(kind: bytes, heading: bytes) -> int:
    """The partition of a heading."""
    return xxh3_64_intdigest(heading) % parts_of(kind)


class Tallies:
    """The sums of a process, for all its threads."""

    def __init__(self, session: Session, said: CrawlStatements) -> None:
        self._session, self._said = session, said
        self._writer, self._since = secrets.token_bytes(12), int(time.time())
        self._sums: dict[bytes, Amounts] = {}  # by the key of `rows`
        self._moment = 0  # microseconds since 1970: the later of two rows stays
        self._busy = threading.Lock()

    def add(self, additions: Iterable[tuple[bytes, Amounts]]) -> None:
        """Join amounts to the sums, durably; raises `IndexUnavailable`, then nothing is added."""
        added = list(additions)
        with self._busy:
            sums, rows = self._sums_of(len(added)), dict[bytes, Amounts]()
            for key, amounts in added:
                before = sums.get(key)
                after = form_of(key[KIND]).joined(before, amounts) if before else amounts
                sums[key] = rows[key] = after
            self._moment = max(self._moment + 1, int(time.time() * 1e6))
            written = [self._row(key, amounts) for key, amounts in rows.items()]
        try:
            for _ in self._session.execute_many((self._said.put_statistic, row) for row in written):
                pass
        except BaseException:
            with self._busy:
                for key, amounts in added:
                    if key in sums:
                        sums[key] = _without(key[KIND], sums[key], amounts)
            raise

    def _sums_of(self, more: int) -> dict[bytes, Amounts]:
        now = int(time.time())
        if len(self._sums) + more > KEPT or now - self._since > SINCE:
            self._sums, self._since = {}, max(now, self._since + 1)
        return self._sums

    def _row(self, key: bytes, amounts: Amounts) -> Sequence[Any]:
        kind, heading = key[KIND], key[KIND.stop :]
        packed = sealed(key, form_of(kind).packed(amounts))
        number, part = int.from_bytes(key[: KIND.start], "big"), part_of(kind, heading)
        return number, kind, part, heading, self._writer, self._since, packed, self._moment


def _without(kind: bytes, sums: Amounts, amounts: Amounts) -> Amounts:
    """Sums, but for what was joined to them; moments and what was told stay, and do no harm."""
    if kind == StatisticsKind.TOLD.value:
        return sums
    kept = 2 if kind == StatisticsKind.TIMES.value else 0
    return [*sums[:kept], *map(int.__sub__, sums[kept:], amounts[kept:])]
