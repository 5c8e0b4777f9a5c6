"""A row of statistics: what a crawl asked and stored under one heading, in captures and bytes.

The tree ``statistics`` of the store has under ``number (4), kind (1), heading``:

    total, strategy, host, mime, status, hour   -> `Row`, its numbers as u64
    times                                       -> `counting.Times`
    told                                        -> `told.Told`, the heading being who said it

Headings are bytes: a host in lower case, a media type, ``200``, ``2026-11-20T09`` (UTC). An empty
one stands for what is not known.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

LONGEST = 255  # bytes of a heading that are kept; a host name has no more
MOST = (1 << 64) - 1  # that a number can be: more is not counted


class Kind(Enum):
    """What is kept of a crawl; the byte in the key."""

    TOTAL = b"a"
    STRATEGY = b"b"
    HOST = b"c"
    MIME = b"d"
    STATUS = b"e"
    HOUR = b"f"
    TIMES = b"t"
    TOLD = b"u"


class Row(NamedTuple):
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

    def plus(self, other: Sequence[int]) -> Row:
        """The sum of two rows."""
        return Row(*map(int.__add__, self, other))

    def as_json(self) -> dict[str, Any]:
        """All of it, and what follows from it."""
        return {
            **self._asdict(),
            "duplicates": self.duplicates,
            "duplicate_bytes": self.duplicate_bytes,
            "duplicates_percent": percent(self.duplicates, self.lookups),
            "new": self.new,
        }


WIDTH = len(Row._fields)
COLUMN = {name: place for place, name in enumerate(Row._fields)}
_ROW = struct.Struct(f">{WIDTH}Q")


def packed(amounts: Sequence[int]) -> bytes:
    """A row as bytes."""
    return _ROW.pack(*(min(amount, MOST) for amount in amounts))


def unpacked(value: bytes | memoryview[int]) -> Row:
    """The row of bytes; raises `struct.error`."""
    return Row(*_ROW.unpack(value))


def key_of(number: int, kind: Kind, heading: bytes = b"") -> bytes:
    """Where something of a crawl is kept; only `LONGEST` bytes of the heading count."""
    return number.to_bytes(4, "big") + kind.value + heading[:LONGEST]


def percent(part: int, whole: int) -> float:
    """A share, 0 of nothing."""
    return round(100 * part / whole, 2) if whole else 0.0
