"""Keys and values of the statistics of crawls.

A store maps ``crawl number (4), kind (1), heading`` to amounts, as u64:

    total, strategy, host, mime, status, hour   -> `StatisticsRow`
    times                                       -> first and last lookup (seconds since 1970), sum
                                                   of nanoseconds, histogram of lookup times,
                                                   nanoseconds of the last lookup
    self-report                                 -> `parse_report.SelfReport`; heading: the process
    others                                      -> lookups of others that its captures answered
    refused                                     -> captures refused; heading: the reason
    refused payload                             -> refused captures whose size was stated, bytes
    minute                                      -> minutes since 1970, `StatisticsRow`, sum of
                                                   nanoseconds, histogram by doublings

Amounts under one key are combined: rows, sums of nanoseconds and histograms by sum, first lookups
by minimum, last lookups and self-reports by maximum. A crawl has one key for each minute of the
hour: the row of a later hour takes the place of an earlier one.

Headings are bytes: a host in lower case, a media type, ``200``, ``2026-11-20T09`` (UTC); empty if
not known. That of a minute is a byte, 0 to 59.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import reduce
from typing import Any, NamedTuple

from dedupindex.lookup.savings import class_bytes, known, share_of_bytes
from dedupindex.runtime.report_table import exact_percent

LONGEST = 255  # bytes of a heading; a host name has no more
MOST = (1 << 64) - 1  # the largest number that is counted
KIND = slice(4, 5)  # of a key
BUCKETS = 128  # of lookup times: four for each doubling of nanoseconds, up to 17 s
DOUBLINGS = BUCKETS // 4  # buckets of the lookup times of a minute
NOT_REPORTED = MOST


class StatisticsKind(Enum):
    """The kind byte of a key."""

    TOTAL = b"a"
    STRATEGY = b"b"
    HOST = b"c"
    MIME = b"d"
    STATUS = b"e"
    HOUR = b"f"
    TIMES = b"t"
    SELF_REPORT = b"u"
    OTHERS = b"v"
    MINUTE = b"w"
    REFUSED = b"x"
    REFUSED_PAYLOAD = b"y"


class RefusedPayload(NamedTuple):
    """What the index refused of a crawl's reports; the crawl has stored it, so shares have it."""

    captures: int = 0
    unsized: int = 0  # of these, without a known size of their payload
    bytes: int = 0  # of payload

    def plus(self, other: RefusedPayload) -> RefusedPayload:
        return RefusedPayload(*(min(amount, MOST) for amount in map(int.__add__, self, other)))


NONE_REFUSED = RefusedPayload()


class StatisticsRow(NamedTuple):
    """Counts under one heading. Bytes are of payloads; those of hits are their originals'."""

    lookups: int = 0  # that were answered, claims included
    exact_url: int = 0
    exact_url_bytes: int = 0
    canonical_url: int = 0
    canonical_url_bytes: int = 0
    digest: int = 0
    digest_bytes: int = 0
    listed: int = 0  # lookups by URL only; whether they were hits is not known
    unsized: int = 0  # hits whose original's payload has no known size
    stated_bytes: int = 0  # sizes of captures as askers count, perhaps with headers
    duplicate_stated_bytes: int = 0  # of these, of hits
    stored: int = 0  # captures that were reported
    stored_bytes: int = 0  # of payload
    errors: int = 0  # lookups that were answered by an error
    not_modified: int = 0  # answers 304 to conditional requests, which crawlers report as revisits
    not_modified_bytes: int = 0  # of payload that was not fetched, as far as its size is known
    stored_unsized: int = 0  # captures that were reported without the size of their payload
    not_modified_unsized: int = 0

    @property
    def duplicates(self) -> int:
        """Hits of all match classes."""
        return self.exact_url + self.canonical_url + self.digest

    @property
    def duplicate_bytes(self) -> int:
        """Bytes of payload that need not be stored again."""
        return min(self.exact_url_bytes + self.canonical_url_bytes + self.digest_bytes, MOST)

    @property
    def new(self) -> int:
        """Lookups without a hit."""
        return self.lookups - self.duplicates - self.listed

    def plus(self, other: Sequence[int]) -> StatisticsRow:
        """The sum of two rows; no number of it is more than `MOST`."""
        return StatisticsRow(*(min(amount, MOST) for amount in map(int.__add__, self, other)))

    @classmethod
    def sum_of(cls, rows: Iterable[StatisticsRow]) -> StatisticsRow:
        """The sum of any number of rows."""
        return reduce(cls.plus, rows, cls())

    def as_json(self, refused: RefusedPayload = NONE_REFUSED) -> dict[str, Any]:
        """Return the counts, and the sums and shares that follow from them.

        `refused` is part of new and handled bytes, of the share and of the sizes, not of `stored`.
        """
        columns: dict[str, int] = self._asdict()
        reported, size = self.stored + refused.captures, self.stored_bytes + refused.bytes
        unsized = self.stored_unsized + refused.unsized
        new_bytes = None if self.new and not reported else known(size, reported, unsized)
        duplicate_bytes = known(self.duplicate_bytes, self.duplicates, self.unsized)
        total = min(self.duplicate_bytes + size, MOST)
        sized = self.duplicates + reported, self.unsized + unsized
        return {
            **columns,
            **class_bytes(columns, self.unsized),
            "stored_bytes": known(self.stored_bytes, self.stored, self.stored_unsized),
            "not_modified_bytes": known(
                self.not_modified_bytes, self.not_modified, self.not_modified_unsized
            ),
            "stated_bytes": self.stated_bytes if self.stated_bytes else None,
            "duplicate_stated_bytes": self.duplicate_stated_bytes if self.stated_bytes else None,
            "duplicate_stated_bytes_percent": (
                exact_percent(self.duplicate_stated_bytes, self.stated_bytes)
                if self.stated_bytes
                else None
            ),
            "duplicates": self.duplicates,
            "duplicate_bytes": duplicate_bytes,
            "duplicates_percent": exact_percent(self.duplicates, self.lookups),
            "handled_bytes": None if new_bytes is None else known(total, *sized),
            "duplicate_bytes_percent": (
                None if new_bytes is None else share_of_bytes(self.duplicate_bytes, total, *sized)
            ),
            "new": self.new,
            "new_bytes": new_bytes,
            "sizes": {
                "stated": reported - unsized,
                "of_original": self.duplicates - self.unsized,
                "unknown": sum(sized[1:]) + max(self.new - reported, 0),
            },
        }


WIDTH = len(StatisticsRow._fields)
COLUMN = {name: place for place, name in enumerate(StatisticsRow._fields)}
_ROW = struct.Struct(f">{WIDTH}Q")
_TIMES = struct.Struct(f">{3 + BUCKETS + 1}Q")
_COUNT = struct.Struct(">Q")
_PAYLOAD = struct.Struct(">2Q")
_MINUTE = struct.Struct(f">{1 + WIDTH + 1 + DOUBLINGS}Q")

Amounts = Sequence[int]


class AmountCodec(NamedTuple):
    """How amounts of a kind are stored and combined."""

    unpack: Callable[[bytes | memoryview[int]], Amounts]
    pack: Callable[[Amounts], bytes]
    combine: Callable[[Amounts, Amounts], Amounts]


def _sums(one: Amounts, other: Amounts) -> list[int]:
    return list(map(int.__add__, one, other))


def combine_times(one: Amounts, other: Amounts) -> list[int]:
    """Combine amounts of the kind `TIMES`."""
    latest = one if one[1] > other[1] else other
    first, sums = min(one[0], other[0]), _sums(one[2:-1], other[2:-1])
    return [first, latest[1], *sums, latest[-1]]


def _latest_minute(one: Amounts, other: Amounts) -> Amounts:
    if one[0] == other[0]:
        return [one[0], *_sums(one[1:], other[1:])]
    return one if one[0] > other[0] else other


def _greater(one: Amounts, other: Amounts) -> Amounts:
    pairs = zip(one, other, strict=True)
    return [max((n for n in pair if n != NOT_REPORTED), default=NOT_REPORTED) for pair in pairs]


def _unpack_self_report(packed: bytes | memoryview[int]) -> Amounts:
    """Return four numbers; of a report without the last ones only two or three are stored."""
    numbers = struct.unpack(f">{len(packed) // 8}Q", packed)
    return [*numbers, *[NOT_REPORTED] * (4 - len(numbers))]


def _pack_self_report(numbers: Amounts) -> bytes:
    kept = list(numbers)
    while len(kept) > 2 and kept[-1] == NOT_REPORTED:
        kept.pop()
    return struct.pack(f">{len(kept)}Q", *(min(number, MOST) for number in kept))


def _codec(
    struct_: struct.Struct, combine: Callable[[Amounts, Amounts], Amounts] = _sums
) -> AmountCodec:
    def pack(amounts: Amounts) -> bytes:
        try:
            return struct_.pack(*amounts)
        except struct.error:  # a number is too large; looking at each would take as long as packing
            return struct_.pack(*(min(number, MOST) for number in amounts))

    return AmountCodec(struct_.unpack, pack, combine)


CODECS = {
    **dict.fromkeys((kind.value for kind in StatisticsKind), _codec(_ROW)),
    StatisticsKind.TIMES.value: _codec(_TIMES, combine_times),
    StatisticsKind.OTHERS.value: _codec(_COUNT),
    StatisticsKind.REFUSED.value: _codec(_COUNT),
    StatisticsKind.REFUSED_PAYLOAD.value: _codec(_PAYLOAD),
    StatisticsKind.MINUTE.value: _codec(_MINUTE, _latest_minute),
    StatisticsKind.SELF_REPORT.value: AmountCodec(_unpack_self_report, _pack_self_report, _greater),
}


def key_of(number: int, kind: StatisticsKind, heading: bytes = b"") -> bytes:
    """Return the key of a statistic; only `LONGEST` bytes of the heading count."""
    return number.to_bytes(4, "big") + kind.value + heading[:LONGEST]


def key_of_minute(number: int, minute: int) -> bytes:
    """Return the key of a minute since 1970."""
    return key_of(number, StatisticsKind.MINUTE, bytes([minute % 60]))
