"""Response and revisit records to captures, or to the reason why they are none.

The order of the questions is that of their cost; the last, the payload digest, reads the body.
A capture's digest is always recomputed: half of its use is that it can be trusted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain

from dedupindex.capture import Capture, Covers, Evidence, RefersTo, Revisit
from dedupindex.digest import (
    CUT_DIGEST,
    EMPTY,
    Digest,
    Hash,
    new_hash,
)
from dedupindex.errors import BadDate
from dedupindex.sources.warc_fast import Usual
from dedupindex.timestamps import check_date
from dedupindex.warc import http
from dedupindex.warc.arc import DOCUMENT
from dedupindex.warc.headers import VERSIONS
from dedupindex.warc.payload_digests import Payload
from dedupindex.warc.record import Record
from dedupindex.warc.record_facts import Refused, bare, checked, http_url, stated_digest

HTTP_TYPE = re.compile(rb"application/http\s*(?:;.*)?", re.IGNORECASE | re.DOTALL)
_IDENTICAL = re.compile(
    rb"<?https?://netpreserve\.org/warc/(?:0\.18|1\.[0-2])/revisit/identical-payload-digest>?"
)


class Responses:
    """Judges the records of one container."""

    def __init__(
        self, container: str, *, also: tuple[str, ...], etag: bool, verify_block: bool
    ) -> None:
        self._container = container
        self._also = also
        self._etag = etag
        self._verify_block = verify_block
        self._thorough = bool(also) or etag or verify_block
        self._last_date = b"-"  # the last that was checked
        self._entities = True  # whether the last digest of a chunked body was of its entity
        self._types: set[bytes] = set()  # values of Content-Type known to say HTTP
        self.usual = Usual(container, self._types)

    def response(self, record: Record) -> Capture:
        """The capture that a response record is; raises `Refused` or `BrokenRecord`."""
        url, date, record_id, content_type, _, _, _ = record.values
        if content_type not in self._types:
            self._check_type(content_type)
        url = http_url(url)
        if date != self._last_date:
            self._last_date = checked(date)
            self.usual.learn_day(date)
        record_id = bare(record_id)
        data = record.data
        if data is None:
            return self._long(record, url, record_id)
        start = record.start
        stop = start + record.length
        if not data.startswith(b"HTTP/", start):
            raise Refused("not-http")
        answer = http.parse(data, start, stop)
        if answer is None:
            raise Refused("no-end-of-headers")
        if answer.status == 206 or answer.partial:
            raise Refused("partial")
        if answer.body == stop:
            raise Refused("empty")
        if answer.coding == b"chunked" and not self._thorough and record_id:
            capture = self._chunked(record, url, record_id, answer)
            if capture is not None:
                return capture
        return self._judged(record, url, record_id, answer, [memoryview(data)[answer.body : stop]])

    def _chunked(
        self, record: Record, url: bytes, record_id: bytes, answer: http.Response
    ) -> Capture | None:
        """The capture that a well-chunked response is, None if it takes both hashes to tell.

        The tool that wrote a file always hashes the same bytes, either as stored or the entity.
        """
        data, stop = record.data, record.start + record.length
        stated, spelling = stated_digest(record.values[4])
        if data is None or stated is None:
            return None
        pieces = http.plain_chunks(data, answer.body, stop)
        if not pieces:
            return None
        running = new_hash(stated.algorithm)
        for piece in pieces if self._entities else [memoryview(data)[answer.body : stop]]:
            running.update(piece)
        if running.digest() != stated.raw:
            self._entities = not self._entities
            return None
        return Capture(
            stated, spelling, url, record.values[1], Evidence.RECORD,
            Covers.ENTITY if self._entities else Covers.STORED, answer.status, answer.mime,
            stop - answer.body, False, record_id, self._container, record.offset,
        )  # fmt: skip

    def _long(self, record: Record, url: bytes, record_id: bytes) -> Capture:
        """A response that is streamed."""
        pieces = record.pieces()
        held = b""
        for piece in pieces:
            held += piece
            if not held.startswith(b"HTTP/"[: len(held)]):
                raise Refused("not-http")
            answer = http.parse(held, 0, len(held))
            if answer is not None:
                if answer.status == 206 or answer.partial:
                    raise Refused("partial")
                body = chain([held[answer.body :]], pieces)
                return self._judged(record, url, record_id, answer, body)
            if len(held) > http.LONGEST:
                break
        raise Refused("no-end-of-headers" if held.startswith(b"HTTP/") else "not-http")

    def _judged(
        self,
        record: Record,
        url: bytes,
        record_id: bytes,
        answer: http.Response,
        body: Iterable[bytes | memoryview],
    ) -> Capture:
        """The capture of any response, its body read here once."""
        if not record_id and record.type != DOCUMENT:
            raise Refused("no-record-id")
        stated, spelling = stated_digest(record.values[4])
        if stated is None and answer.coding:
            raise Refused("chunked-without-digest")
        algorithm = "sha1" if stated is None else stated.algorithm
        payload = Payload(algorithm, self._also, answer.coding)
        block = self._block_check(record, answer, stated)
        for piece in body:
            payload.update(piece)
            if block is not None:
                block[1].update(piece)
        if payload.empty:
            raise Refused("empty")
        verdict = payload.judge(stated)
        other_block = block is not None and block[0].raw != block[1].digest()
        if verdict is None and not other_block and payload.was_cut(stated):
            raise Refused(CUT_DIGEST)  # the payload is whole: there is no damage to tell of
        if verdict is None or other_block:
            what = "WARC-Payload-Digest" if verdict is None else "WARC-Block-Digest"
            raise Refused("digest-mismatch", f"{what} is not that of the bytes it stands for")
        covers, digests = verdict
        etag = modified = b""
        if self._etag:
            etag = http.field(answer.head, b"etag")
            modified = http.field(answer.head, b"last-modified")
        return Capture(
            digests[0], spelling, url, record.values[1], Evidence.RECORD, covers,
            answer.status, answer.mime, payload.stored.length, False, record_id,
            self._container, record.offset, etag, modified, tuple(digests[1:]),
        )  # fmt: skip

    def _block_check(
        self, record: Record, answer: http.Response, stated: Digest | None
    ) -> tuple[Digest, Hash] | None:
        """The stated digest of the block and a running one that has seen its HTTP header.

        It would cost a second hash over every byte to learn what the payload digest has told
        already, but for the header. So it is checked where there is no payload digest, or on wish.
        """
        if record.type == DOCUMENT or (stated is not None and not self._verify_block):
            return None
        block = stated_digest(record.head.fields.get(b"WARC-Block-Digest", b""))[0]
        if block is None:
            return None
        running = new_hash(block.algorithm)
        running.update(answer.head)
        return block, running

    def revisit(self, record: Record) -> Revisit:
        """What a revisit record says; raises `Refused` or `BrokenRecord`."""
        head = record.head
        url, date, record_id, content_type, text, _, _ = record.values
        url = http_url(url)
        try:
            stated, spelling = stated_digest(text)
            check_date(date)
        except (Refused, BadDate):
            stated = None
        if stated is None:
            raise Refused("unresolved-revisit")
        refers_to = None
        if _IDENTICAL.fullmatch(head.fields.get(b"WARC-Profile", b"")) and stated not in EMPTY:
            refers_to = _refers_to(head.fields)
        if refers_to is not None and (refers_to.url, refers_to.date) == (url, date):
            refers_to = None
        status, mime, etag, modified = self._revisited(record)
        capture = Capture(
            stated, spelling, url, date, Evidence.REVISIT, Covers.UNKNOWN,
            status, mime, -1, False, bare(record_id),
            self._container, record.offset, etag, modified,
        )  # fmt: skip
        return Revisit(capture, refers_to)

    def _revisited(self, record: Record) -> tuple[int, bytes, bytes, bytes]:
        """Status, media type, ETag and Last-Modified in the block of a revisit, if it has them."""
        block = b""
        for piece in record.pieces():
            block += piece
            if len(block) > http.LONGEST or http.header_end(block, 0, len(block)) >= 0:
                break
        if not block.startswith(b"HTTP/"):
            return 0, b"", b"", b""
        answer = http.parse(block + b"\r\n\r\n", 0, len(block) + 4)
        assert answer is not None
        if not self._etag:
            return answer.status, answer.mime, b"", b""
        etag, modified = (http.field(answer.head, name) for name in (b"etag", b"last-modified"))
        return answer.status, answer.mime, etag, modified

    def _check_type(self, content_type: bytes) -> None:
        if HTTP_TYPE.fullmatch(content_type) is None:
            raise Refused("not-http")
        if len(self._types) < 1000 and len(content_type) <= 300:
            self._types.add(content_type)


def special(record: Record) -> str:
    """Why a record with `Record.special` is no capture; empty if that is no reason."""
    head = record.head
    if head.repeated:
        return "repeated-field"
    if head.version not in VERSIONS:
        return "unknown-version"
    if b"WARC-Segment-Number" in head.fields:
        return "segmented"
    return "truncated" if record.type == b"response" else ""


def _refers_to(fields: dict[bytes, bytes]) -> RefersTo | None:
    """What the fields of a revisit name as its original; None unless by URL and date."""
    try:
        url = http_url(fields.get(b"WARC-Refers-To-Target-URI", b""))
        date = checked(fields.get(b"WARC-Refers-To-Date", b""))
    except Refused:
        return None
    return RefersTo(url, date, bare(fields.get(b"WARC-Refers-To", b"")))
