"""What only crawlers know: what they did not ask and not report, said as they end or before.

Each process of a crawl says its own numbers, counted since it began, under its own name. So they
may be said again and in any order: of two numbers under one name the greater holds.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple, cast

from dedupindex.crawls.crawl import Crawl
from dedupindex.crawls.rows import MOST, Kind, key_of
from dedupindex.crawls.store import Reading, Writing
from dedupindex.errors import BadInput

_TOLD = struct.Struct(">QQ")
_TELLERS = 1000  # of one crawl


class Told(NamedTuple):
    """What all processes of a crawl said, in captures; None is what nobody said."""

    not_looked_up: int | None = None
    not_reported: int | None = None


NAMES = Told._fields
_NOBODY = MOST


def tell(writing: Writing, crawl: Crawl, numbers: Mapping[str, int], who: str = "") -> None:
    """Keep what `who` says of `NAMES`, perhaps not of all.

    Nothing of a crawl that was dropped. Raises `BadInput` if too many have said something: nothing
    is kept then.
    """
    if not numbers or crawl.dropped:
        return
    key = key_of(crawl.number, Kind.TOLD, who.encode("utf-8", "surrogateescape"))
    value = writing.txn.get(key, db=writing.trees.statistics)
    if value is None and sum(1 for _ in _all(writing, crawl)) >= _TELLERS:
        raise BadInput(f"no more than {_TELLERS} processes of one crawl can count apart")
    before = _TOLD.unpack(value) if value else (_NOBODY, _NOBODY)
    after = [
        _greater(old, min(numbers.get(name, _NOBODY), MOST))
        for name, old in zip(NAMES, before, strict=True)
    ]
    writing.txn.put(key, _TOLD.pack(*after), db=writing.trees.statistics)


def told_of(reading: Reading, crawl: Crawl) -> Told:
    """What the processes of a crawl said, added up."""
    sums: list[int | None] = [None] * len(NAMES)
    for numbers in _all(reading, crawl):
        for place, number in enumerate(numbers):
            if number != _NOBODY:
                sums[place] = (sums[place] or 0) + number
    return Told(*sums)


def _greater(old: int, new: int) -> int:
    return max((one for one in (old, new) if one != _NOBODY), default=_NOBODY)


def _all(reading: Reading, crawl: Crawl) -> Iterator[tuple[int, ...]]:
    prefix = key_of(crawl.number, Kind.TOLD)
    with reading.txn.cursor(db=reading.trees.statistics) as cursor:
        if cursor.set_range(prefix):
            for key, value in cursor:
                if not cast(bytes, key).startswith(prefix):
                    return
                yield _TOLD.unpack(value)
