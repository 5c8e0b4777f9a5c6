"""A response as it stands in its file now, and all that must hold before anything refers to it.

The same is asked of what is to become a revisit and of its original; whoever wrote the plan may
have seen other files. The body is read once, by `judge.compared`, and both digests are taken then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

from dedupindex.capture import Covers
from dedupindex.digest import Hash, new_hash
from dedupindex.post_crawl.rewrite.revisit_record import ADDED
from dedupindex.urls import unbracket
from dedupindex.warc import http
from dedupindex.warc.headers import Head
from dedupindex.warc.payload_digests import Payload
from dedupindex.warc.random_access import NotExact, Single
from dedupindex.warc.record_facts import (
    Refused,
    checked,
    divided,
    http_url,
    is_http_type,
    stated_digest,
)

_VERSIONS = (b"WARC/1.0\r\n", b"WARC/1.1\r\n")
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")


class NotRewritable(Refused):
    """A copy stays a response, for a `reason` that is counted."""


class StoredResponse:
    """A response record; every operation raises `Refused` with the reason why it is none."""

    def __init__(self, file: BinaryIO, offset: int, stored: int) -> None:
        try:
            self.single = Single(file, offset, stored)
        except NotExact as error:
            raise NotRewritable("not-exact", str(error)) from error
        self.header = self.single.header
        head = self.single.head
        _check(self.header, head)
        fields = head.fields
        self.url = http_url(fields.get(b"WARC-Target-URI", b""))
        self.date = checked(fields.get(b"WARC-Date", b""))
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
        judged = payload.judge(self._stated)
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
