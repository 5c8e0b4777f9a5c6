"""Whether one response may become a revisit of another, from the bytes of both, read now.

Whatever a manifest or a plan says is but a hint (a wrong revisit destroys a page for ever). The
bodies are compared byte by byte, so that no digest has to be believed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from dedupindex.capture import Covers
from dedupindex.digest import Hash, new_hash
from dedupindex.post_crawl.manifest.lines import Line
from dedupindex.post_crawl.plan.plan_file import MatchCriteria, Planned
from dedupindex.post_crawl.rewrite.revisit_record import ADDED, END, Reference, named_date, revisit
from dedupindex.timestamps import digits_of_date
from dedupindex.urlkey import unbracket
from dedupindex.warc import http
from dedupindex.warc.headers import LENGTH, Head
from dedupindex.warc.payload_digests import Payload
from dedupindex.warc.random_access import ExactRecord, NotExact
from dedupindex.warc.record_facts import (
    Refused,
    checked_date,
    divided,
    http_url,
    is_http_type,
    stated_digest,
)

# A response as it stands in its file now, and all that must hold before anything refers to it.

_VERSIONS = (b"WARC/1.0\r\n", b"WARC/1.1\r\n")
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")


class NotRewritable(Refused):
    """A copy stays a response, for a `reason` that is counted."""


class StoredResponse:
    """A response record; every operation raises `Refused` with the reason why it is none."""

    def __init__(self, file: BinaryIO, offset: int, stored: int) -> None:
        try:
            self.single = ExactRecord(file, offset, stored)
        except NotExact as error:
            raise NotRewritable("not-exact", str(error)) from error
        self.header = self.single.header
        head = self.single.head
        _check(self.header, head)
        fields = head.fields
        self.url = http_url(fields.get(b"WARC-Target-URI", b""))
        self.date = checked_date(fields.get(b"WARC-Date", b""))
        self.record_id = unbracket(fields.get(b"WARC-Record-ID", b""))
        self.digest = fields.get(b"WARC-Payload-Digest", b"")
        if not self.record_id:
            raise NotRewritable("no-record-id")
        if _CONTROL.search(self.url) or _CONTROL.search(self.record_id):
            raise NotRewritable("control-character")
        self.length = head.length  # bytes of the block
        self.http = b""  # its HTTP header
        self.status = 0
        self.content_type = b""
        self.codings = b""  # see `http.codings`
        self._coding = b""
        self._stated = stated_digest(self.digest)[0]
        self._block_digest = stated_digest(fields.get(b"WARC-Block-Digest", b""))[0]
        self._body = self._begin()

    def _begin(self) -> Iterator[bytes | memoryview]:
        """Read the HTTP header; returns the body, in pieces."""
        answer, body, reason = divided(self._pieces())
        if answer is None:
            raise NotRewritable(reason)
        if answer.status == 206 or answer.partial:
            raise NotRewritable("partial")
        if 300 <= answer.status < 400:
            raise NotRewritable("redirect")
        if answer.status < 200 or answer.status == 204:
            raise NotRewritable("status")
        if answer.body == self.length:
            raise NotRewritable("empty")
        self.http, self.status, self._coding = answer.head, answer.status, answer.coding
        self.content_type = http.content_types(answer.head)
        self.codings = http.codings(answer.head)
        return body

    @property
    def body(self) -> int:
        """Bytes of the body."""
        return self.length - len(self.http)

    def pieces(self) -> Iterator[bytes | memoryview]:
        """The body, once, with its end checked."""
        return self._body

    def _pieces(self) -> Iterator[bytes | memoryview]:
        try:
            yield from self.single.block()
        except NotExact as error:
            raise NotRewritable("not-exact", str(error)) from error

    def payload(self) -> Payload:
        """What the body is to be fed to."""
        return Payload(self._stated.algorithm if self._stated else "sha1", (), self._coding)

    def block_hash(self) -> Hash | None:
        """Takes the digest of the block, its HTTP header seen; None if none is stated."""
        if self._block_digest is None:
            return None
        running = new_hash(self._block_digest.algorithm)
        running.update(self.http)
        return running

    def verify(self, payload: Payload, block: Hash | None) -> None:
        """Compare what was taken with what the record states."""
        if payload.empty:
            raise NotRewritable("empty")
        judged = payload.match(self._stated)
        if judged is None and payload.was_cut(self._stated):
            raise NotRewritable("cut-digest")
        if judged is None or judged[0] is Covers.UNKNOWN:
            raise NotRewritable("digest-mismatch")
        if self._block_digest and block and block.digest() != self._block_digest.raw:
            raise NotRewritable("digest-mismatch")


def _check(header: bytes, head: Head) -> None:
    """What the WARC header alone tells."""
    if head.type != b"response":
        raise NotRewritable("not-a-response")
    if not header.startswith(_VERSIONS):
        raise NotRewritable("unknown-version")
    if head.repeated:
        raise NotRewritable("repeated-field")
    names = {name.lower() for name, _ in head.pairs}
    if b"warc-truncated" in names:
        raise NotRewritable("truncated")
    if b"warc-segment-number" in names:
        raise NotRewritable("segmented")
    if not names.isdisjoint(ADDED):
        raise NotRewritable("unexpected-field")
    if not is_http_type(head.fields.get(b"Content-Type", b"")):
        raise NotRewritable("not-http")


_PIECE = 1 << 18
Pieces = Iterator[bytes | memoryview]


class RecordOnDisk(NamedTuple):
    """Where a record stands now."""

    file: BinaryIO
    offset: int
    stored: int
    identity: tuple[int, int]  # device and inode


class Judged(NamedTuple):
    """A response that may become a revisit."""

    response: StoredResponse
    original: StoredResponse
    record: bytes  # of the revisit
    sha256: str  # in hex, of the dropped record, inflated


def judge(
    planned: Planned,
    candidate: RecordOnDisk,
    original: RecordOnDisk,
    alike: MatchCriteria,
    *,
    minimum: int = 0,
) -> Judged:
    """The revisit that a response becomes; raises `Refused` with the reason why it stays.

    Reasons that begin with ``original-`` are about the original. `minimum` is in bytes of body.
    What only the neighbours of a record tell is taken from the plan (the method of its request),
    so each must be the record that the plan means.
    """
    if candidate[1:] == original[1:]:
        raise NotRewritable("same-record")
    response = StoredResponse(*candidate[:3])
    if not _meant(response, planned.line):
        raise NotRewritable("changed")
    if response.body < minimum:
        raise NotRewritable("small")
    try:
        first = StoredResponse(*original[:3])
    except Refused as refused:
        raise NotRewritable("original-" + refused.reason, refused.problem) from refused
    if not _meant(first, planned.original):
        raise NotRewritable("original-changed")
    _check_pair(response, first, alike)
    sha256 = compared(response, first)
    named = first.record_id if planned.original.record_id else b""  # none where it is ambiguous
    reference = Reference(first.url, first.date, named, first.digest)
    return Judged(response, first, revisit(response.header, response.http, reference), sha256)


def _meant(response: StoredResponse, line: Line) -> bool:
    """Whether a response is that of a line."""
    same = response.url == line.url and response.date == line.date
    return same and line.record_id in (b"", response.record_id)


def _check_pair(response: StoredResponse, first: StoredResponse, alike: MatchCriteria) -> None:
    """What the headers of both tell."""
    if response.record_id == first.record_id:
        raise NotRewritable("same-record")
    if not first.digest:
        raise NotRewritable("original-no-digest")
    if response.digest not in (b"", first.digest):
        raise NotRewritable("digest-differs")
    if response.status != first.status and not alike.any_status:
        raise NotRewritable("status-differs")
    if response.content_type != first.content_type and alike.same_type:
        raise NotRewritable("type-differs")
    if response.codings != first.codings:
        raise NotRewritable("coding-differs")
    if response.body != first.body:
        raise NotRewritable("body-differs")
    same_second = digits_of_date(response.date) == digits_of_date(first.date)
    if response.url == first.url and same_second and response.http != first.http:
        raise NotRewritable("same-moment")  # replay shows the header of either


def compared(response: StoredResponse, first: StoredResponse) -> str:
    """SHA-256 of the whole response, when all digests hold and the bodies are equal.

    Raises `Refused`. Both are read side by side, whatever their size. Both state the same payload
    digest, to the letter, or the response states none; so it is taken once.
    """
    payload = first.payload()
    blocks = response.block_hash(), first.block_hash()
    whole = hashlib.sha256(response.header + response.http)
    for piece, other in in_step(response.pieces(), first.pieces()):
        if piece.tobytes() != other.tobytes():  # views would be compared item by item
            raise NotRewritable("body-differs")
        payload.update(piece)
        whole.update(piece)
        for block in blocks:
            if block is not None:
                block.update(piece)
    response.verify(payload, blocks[0])
    try:
        first.verify(payload, blocks[1])
    except Refused as refused:
        raise NotRewritable("original-" + refused.reason) from refused
    whole.update(END)
    return whole.hexdigest()


def in_step(left: Pieces, right: Pieces) -> Iterator[tuple[memoryview, memoryview]]:
    """Two streams in pieces of equal length, the last perhaps without its other half."""
    one = two = memoryview(b"")
    while True:
        if not one:
            one = memoryview(next(left, b""))
        if not two:
            two = memoryview(next(right, b""))
        count = min(len(one), len(two))
        if not count:
            if one or two:
                yield one, two
            return
        yield one[:count], two[:count]
        one, two = one[count:], two[count:]


def rebuilt(stored: ExactRecord, judged: Judged) -> bool:
    """Whether a revisit, read back, and its original make the block that was dropped.

    The bodies were found equal, byte by byte; so what must be right is where they begin, the HTTP
    header in front, and the header that names the original.
    """
    response, first = judged.response, judged.original
    try:
        block = b"".join(stored.block())
    except NotExact:
        return False
    fields = stored.head.fields
    return (
        stored.head.type == b"revisit"
        and not stored.head.repeated
        and block == response.http
        and len(block) + first.body == response.length
        and fields[LENGTH] == b"%d" % len(block)
        and fields.get(b"WARC-Payload-Digest") == first.digest
        and fields.get(b"WARC-Refers-To-Target-URI") == first.url
        and fields.get(b"WARC-Refers-To-Date") == named_date(response.header, first.date)
        and _kept(response.single.head) == _kept(stored.head)
    )


_CHANGED = frozenset(
    (
        b"warc-type", b"content-length", b"warc-block-digest", b"warc-payload-digest",
        b"warc-profile", b"warc-truncated", b"warc-refers-to", b"warc-refers-to-target-uri",
        b"warc-refers-to-date",
    )
)  # fmt: skip


def _kept(head: Head) -> list[tuple[bytes, bytes]]:
    return [pair for pair in head.pairs if pair[0].lower() not in _CHANGED]
