"""What every source yields and the index holds: one capture.

A capture says: this URL, at this time, answered this payload. Text that came from the web stays
the bytes it was; nothing here decodes, trims or re-spells it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from dedupindex.digest import Digest, Spelling


class Evidence(IntEnum):
    """How we know of a capture; of two for the same second the lower is the better witness."""

    RECORD = 0  # its own record was read, and its payload had this digest
    ROW = 1  # a row of a CDX or crawl log says so
    NAMED = 2  # a revisit names it as its original
    REVISIT = 3  # a revisit or a refused record: remembered so that no original is made of it


class Covers(IntEnum):
    """Which bytes the payload digest was taken of (they differ for chunked responses)."""

    UNKNOWN = 0
    STORED = 1  # the body as stored, chunk framing included
    ENTITY = 2  # the body with its transfer coding removed
    BOTH = 3  # not chunked: the two are the same


class Capture(NamedTuple):
    """One capture. Empty bytes, -1 and 0 (status) stand for "not known"."""

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
