"""Captures, as sources yield them and the index holds them: this URL had this payload at this time.

Text from the web is kept as bytes, exactly as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import compress
from typing import Any, NamedTuple

from dedupindex.digest import Digest, Spelling
from dedupindex.timestamps import date_of_digits


class Evidence(IntEnum):
    """The evidence of a capture; of two captures of the same second the lower value wins."""

    RECORD = 0  # the record was read
    ROW = 1  # a row of a CDX or crawl log lists it, or a crawler reported that it wrote it
    NAMED = 2  # a revisit refers to it
    REVISIT = 3  # a revisit or refused record, kept so that it never becomes an original


class Covers(IntEnum):
    """Which bytes the payload digest is of; they differ for responses with a transfer coding.

    As bits: equal digests mean equal payloads if both have a bit in common.
    """

    UNKNOWN = 0
    STORED = 1  # the body as stored, with its transfer coding
    ENTITY = 2  # the body without transfer coding
    BOTH = 3  # there is no transfer coding


class Capture(NamedTuple):
    """One capture. Empty bytes, -1 and status 0 mean "not known".

    >>> with dedupindex.open("my-index") as index:
    ...     (capture,) = index.captures("http://example.com/")
    >>> capture.url, capture.date, capture.status, capture.mime, capture.size
    (b'http://example.com/', b'2017-03-06T04:02:06Z', 200, b'text/html', 606)
    """

    digest: Digest
    spelling: Spelling  # of the digest in the record or row
    url: bytes  # exact, without angle brackets
    date: bytes  # WARC-Date, as in the record
    evidence: Evidence = Evidence.RECORD
    covers: Covers = Covers.UNKNOWN
    status: int = 0  # HTTP
    mime: bytes = b""  # media type without parameters, lower case
    size: int = -1  # bytes of payload; of the compressed record if `size_of_record`
    size_of_record: bool = False
    record_id: bytes = b""  # without angle brackets
    container: str = ""  # name of its file
    offset: int = -1  # of its record in the file, in compressed bytes
    etag: bytes = b""
    last_modified: bytes = b""
    also: tuple[Digest, ...] = ()  # of the same payload in other algorithms
    crawl: str = ""  # that captured it, if an index knows it


def has_digest_encoding(capture: Capture, encoding: int) -> bool:
    """Return whether the digest of a record has an encoding of `Spelling`.

    A crawler that does not see the spelling writes the digest of its lookup into the revisit.
    Replay tools compare the text, and would not find an original with another encoding.
    """
    return capture.spelling.encoding == encoding


class OfCrawl(Capture):
    """A capture that a crawl has reported, and that the index itself does not hold."""

    __slots__ = ()


class Uncommitted(OfCrawl):
    """A capture of an open crawl, which may be cancelled."""

    __slots__ = ()


class Rows(NamedTuple):
    """Captures of one or more plain CDX rows (`Evidence.ROW`), as columns.

    Every row has a SHA-1, a URL of printable ASCII, and a valid date of 14 digits. Sizes of records
    are below 10**9 and offsets below 10**12, each -1 in all rows or in none. Record ids are UUIDs,
    or empty in all rows.
    """

    spelling: Spelling
    digests: Sequence[bytes]  # bare
    urls: Sequence[bytes]
    dates: Sequence[bytes]
    kinds: Sequence[tuple[int, bytes]]  # status and media type
    sizes: Sequence[int]
    offsets: Sequence[int]
    containers: Sequence[str]
    record_ids: Sequence[bytes]

    def captures(self) -> Iterator[Capture]:
        """Yield the captures."""
        of_record = self.sizes[0] >= 0
        for digest, url, date, (status, mime), size, offset, container, record_id in zip(
            *self[1:], strict=True
        ):
            yield Capture(
                Digest("sha1", digest), self.spelling, url, date_of_digits(date), Evidence.ROW,
                Covers.UNKNOWN, status, mime, size, of_record, record_id, container, offset,
            )  # fmt: skip

    def only(self, wanted: Sequence[object]) -> Rows:
        """Return the rows for which `wanted` has a true value."""
        columns: list[Any] = [list(compress(column, wanted)) for column in self[1:]]
        return Rows(self.spelling, *columns)


class RefersTo(NamedTuple):
    """The WARC-Refers-To fields of a revisit (WARC 1.1 section 5.7)."""

    url: bytes
    date: bytes
    record_id: bytes = b""


class Revisit(NamedTuple):
    """A revisit record or row."""

    capture: Capture  # of the revisit itself, `Evidence.REVISIT`
    refers_to: RefersTo | None  # None if it does not name its original


class Refusal(NamedTuple):
    """A record that is refused, and the reason under which reports count it."""

    reason: str
    itself: Capture | None = None  # a capture that must never be an original, `Evidence.REVISIT`


SKIPPED = frozenset(
    (
        *("request-record", "warcinfo-record", "metadata-record", "resource-record"),
        *("conversion-record", "unknown-record-type", "alias"),
    )
)
"""Reasons of refusals by type alone: reports count such records and rows as skipped."""

UNRESOLVED = "unresolved-revisit"
"""The reason for a revisit that names no original: it is kept, but adds none."""

ORDINARY = frozenset(
    (
        *("status", "mime", "too-small", "empty", "partial", "truncated", "method", "not-http"),
        *("fetch-failed", "unwritten", "uncommitted", "not-payload-digest", "rewritten-url"),
        "purged",
    )
)
"""Reasons of refusals that are no defect of the file: settings, or what crawls have as well."""


class Problem(NamedTuple):
    """Input that is damaged or unreadable; it is shown, and the exit status is not 0."""

    container: str
    offset: int  # bytes; for text sources the line number
    message: str

    def as_json(self) -> dict[str, str | int]:
        return {"file": self.container, "offset": self.offset, "why": self.message}


Item = Capture | Revisit | Refusal | Problem
"""What a source yields: one of the first three for each record, and problems between them."""
