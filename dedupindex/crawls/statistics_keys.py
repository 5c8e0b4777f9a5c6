"""A row of statistics: what a crawl asked and stored under one heading, in captures and bytes.

A store has under ``number (4), kind (1), heading`` amounts, as u64:

    total, strategy, host, mime, status, hour   -> `StatisticsRow`
    times                                       -> first and last lookup (seconds since 1970),
                                                   nanoseconds of all, and how many took how long
    told                                        -> `told.SelfReport`, the heading being who said it
    others                                      -> lookups of others that its captures answered

Of two amounts under one key that are joined, those of a row and the nanoseconds are added up, the
earlier first and the later last lookup count, and the greater of what was told.

Headings are bytes: a host in lower case, a media type, ``200``, ``2026-11-20T09`` (UTC). An empty
one stands for what is not known.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple

LONGEST = 255  # bytes of a heading that are kept; a host name has no more
MOST = (1 << 64) - 1  # that a number can be: more is not counted
KIND = slice(4, 5)  # of a key
BUCKETS = 128  # of times: four to every doubling of nanoseconds, up to 17 s
NOBODY = MOST  # told it


class StatisticsKind(Enum):
    """What is kept of a crawl; the byte in the key."""

    TOTAL = b"a"
    STRATEGY = b"b"
    HOST = b"c"
    MIME = b"d"
    STATUS = b"e"
    HOUR = b"f"
    TIMES = b"t"
    TOLD = b"u"
    OTHERS = b"v"


class StatisticsRow(NamedTuple):
    """Counts and bytes under one heading. Bytes of hits are those of the original's payload."""

    lookups: int = 0  # that were answered, claims included
    exact_url: int = 0
    exact_url_bytes: int = 0
    canonical_url: int = 0
    canonical_url_bytes: int = 0
    digest: int = 0
    digest_bytes: int = 0
    listed: int = 0  # asked by URL only: the asker compares digests itself, and does not say
    unsized: int = 0  # hits whose original's payload has no known size
    stated_bytes: int = 0  # what askers said that their captures have, in their own way
    duplicate_stated_bytes: int = 0  # the same of hits
    stored: int = 0  # captures that were reported
    stored_bytes: int = 0  # of payload
    errors: int = 0  # lookups that were answered by an error

    @property
    def duplicates(self) -> int:
        """Hits of all classes."""
        return self.exact_url + self.canonical_url + self.digest

    @property
    def duplicate_bytes(self) -> int:
        """Bytes of payload that need not be stored again."""
        return self.exact_url_bytes + self.canonical_url_bytes + self.digest_bytes

    @property
    def new(self) -> int:
        """Lookups without a hit."""
        return self.lookups - self.duplicates - self.listed

    def plus(self, other: Sequence[int]) -> StatisticsRow:
        """The sum of two rows."""
        return StatisticsRow(*map(int.__add__, self, other))

    def as_json(self) -> dict[str, Any]:
        """All of it, and what follows from it."""
        return {
            **self._asdict(),
            "duplicates": self.duplicates,
            "duplicate_bytes": self.duplicate_bytes,
            "duplicates_percent": percent(self.duplicates, self.lookups),
            "new": self.new,
        }


WIDTH = len(StatisticsRow._fields)
COLUMN = {name: place for place, name in enumerate(StatisticsRow._fields)}
_ROW = struct.Struct(f">{WIDTH}Q")
_TIMES = struct.Struct(f">{3 + BUCKETS}Q")
_TOLD = struct.Struct(">QQ")
_OTHERS = struct.Struct(">Q")

Amounts = Sequence[int]


class AmountForm(NamedTuple):
    """How amounts of a kind are kept, and joined."""

    unpacked: Callable[[bytes | memoryview[int]], Amounts]
    packed: Callable[[Amounts], bytes]
    joined: Callable[[Amounts, Amounts], Amounts]


def _packed(amounts: Amounts) -> bytes:
    return _ROW.pack(*(min(amount, MOST) for amount in amounts))


def _added(one: Amounts, other: Amounts) -> Amounts:
    return list(map(int.__add__, one, other))


def joined_times(one: Amounts, other: Amounts) -> list[int]:
    """The amounts of two times."""
    return [min(one[0], other[0]), max(one[1], other[1]), *map(int.__add__, one[2:], other[2:])]


def _greater(one: Amounts, other: Amounts) -> Amounts:
    pairs = zip(one, other, strict=True)
    return [max((n for n in pair if n != NOBODY), default=NOBODY) for pair in pairs]


FORMS = {
    **dict.fromkeys(
        (kind.value for kind in StatisticsKind), AmountForm(_ROW.unpack, _packed, _added)
    ),
    StatisticsKind.TIMES.value: AmountForm(
        _TIMES.unpack, lambda times: _TIMES.pack(*times), joined_times
    ),
    StatisticsKind.OTHERS.value: AmountForm(
        _OTHERS.unpack, lambda counts: _OTHERS.pack(min(counts[0], MOST)), _added
    ),
    StatisticsKind.TOLD.value: AmountForm(_TOLD.unpack, lambda told: _TOLD.pack(*told), _greater),
}


def key_of(number: int, kind: StatisticsKind, heading: bytes = b"") -> bytes:
    """Where something of a crawl is kept; only `LONGEST` bytes of the heading count."""
    return number.to_bytes(4, "big") + kind.value + heading[:LONGEST]


def percent(part: int, whole: int) -> float:
    """A share, 0 of nothing."""
    return round(100 * part / whole, 2) if whole else 0.0
