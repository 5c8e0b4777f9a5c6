"""What every source yields and the index holds: one capture.

A capture says: this URL, at this time, answered this payload. Text that came from the web stays
the bytes it was; nothing here decodes, trims or re-spells it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import compress
from typing import Any, NamedTuple

from dedupindex.digest import Digest, Spelling
from dedupindex.timestamps import date_of_digits


class Evidence(IntEnum):
    """How we know of a capture; of two for the same second the lower is the better witness."""

    RECORD = 0  # its own record was read, and its payload had this digest
    ROW = 1  # a row of a CDX or crawl log says so
    NAMED = 2  # a revisit names it as its original
    REVISIT = 3  # a revisit or a refused record: remembered so that no original is made of it


class Covers(IntEnum):
    """Which bytes the payload digest was taken of (they differ for chunked responses).

    As bits: where two have one in common, equal digests mean equal payloads.
    """

    UNKNOWN = 0
    STORED = 1  # the body as stored, chunk framing included
    ENTITY = 2  # the body with its transfer coding removed
    BOTH = 3  # not chunked: the two are the same


class Capture(NamedTuple):
    """One capture. Empty bytes, -1 and 0 (status) stand for "not known".

    >>> with dedupindex.open("my-index") as index:
    ...     (capture,) = index.captures("http://example.com/")
    >>> capture.url, capture.date, capture.status, capture.mime, capture.size
    (b'http://example.com/', b'2017-03-06T04:02:06Z', 200, b'text/html', 606)
    """

    digest: Digest
    spelling: Spelling  # of the digest, as the record or row writes it
    url: bytes  # exact, without the angle brackets that wget writes
    date: bytes  # WARC-Date to the letter, see `timestamps`
    evidence: Evidence = Evidence.RECORD
    covers: Covers = Covers.UNKNOWN
    status: int = 0  # HTTP
    mime: bytes = b""  # media type without parameters, lower case
    size: int = -1  # bytes of payload; of the whole compressed record when `size_of_record`
    size_of_record: bool = False
    record_id: bytes = b""  # without angle brackets
    container: str = ""  # name of the file it lives in
    offset: int = -1  # of its record in the container, compressed bytes where it is compressed
    etag: bytes = b""
    last_modified: bytes = b""
    also: tuple[Digest, ...] = ()  # of the same bytes in other algorithms
    crawl: str = ""  # whose it is, where an index says it


def spelled_alike(capture: Capture, encoding: int) -> bool:
    """Whether a record has its digest in an encoding (see `Spelling`).

    One who cannot see how it is spelled writes a revisit with the digest of his question. Replay
    tools compare the text of the two, and so would not find the original.
    """
    return capture.spelling.encoding == encoding


class OfCrawl(Capture):
    """A capture that a crawl has reported, and that is not of the index itself."""

    __slots__ = ()


class Uncommitted(OfCrawl):
    """A capture of a crawl that goes on, and may yet be cancelled."""

    __slots__ = ()


class Rows(NamedTuple):
    """Captures of rows without surprises (`Evidence.ROW`), column by column: at least one.

    Sources promise of each: SHA-1, a URL of printable ASCII, 14 digits of a date that exists, a
    size of the record below 10**9 and an offset below 10**12, each -1 in all rows or in none, and
    a record id that is a UUID, empty in all rows or in none.
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
        """Each of them."""
        of_record = self.sizes[0] >= 0
        for digest, url, date, (status, mime), size, offset, container, record_id in zip(
            *self[1:], strict=True
        ):
            yield Capture(
                Digest("sha1", digest), self.spelling, url, date_of_digits(date), Evidence.ROW,
                Covers.UNKNOWN, status, mime, size, of_record, record_id, container, offset,
            )  # fmt: skip

    def only(self, wanted: Sequence[object]) -> Rows:
        """Those rows for which `wanted` holds something true."""
        columns: list[Any] = [list(compress(column, wanted)) for column in self[1:]]
        return Rows(self.spelling, *columns)


class RefersTo(NamedTuple):
    """What a revisit says of its original (the WARC-Refers-To fields of WARC 1.1 section 5.7)."""

    url: bytes
    date: bytes
    record_id: bytes = b""


class Revisit(NamedTuple):
    """A revisit record or row: evidence of the original that it names, if it names one."""

    capture: Capture  # of the revisit itself, `Evidence.REVISIT`
    refers_to: RefersTo | None  # None: it cannot be resolved


class Refusal(NamedTuple):
    """A record that is no capture, under the name of the reason that reports count."""

    reason: str
    itself: Capture | None = None  # what of it must never be an original, `Evidence.REVISIT`


class Problem(NamedTuple):
    """Input that is damaged or cannot be read: named to the user, and the exit status is not 0."""

    container: str
    offset: int  # bytes; for text sources the line number
    message: str


Item = Capture | Revisit | Refusal | Problem
"""What a source yields: one of the first three for every record, problems between them."""
