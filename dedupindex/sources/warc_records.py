"""Response and revisit records to captures, or to the reason why they are none.

The order of the questions is that of their cost; the last, the payload digest, reads the body.
A capture's digest is always recomputed: half of its use is that it can be trusted.
"""

from __future__ import annotations

from collections.abc import Iterable

from dedupindex.capture import Capture, Covers, Evidence, Revisit
from dedupindex.digest import (
    CUT_DIGEST,
    EMPTY,
    Digest,
    Hash,
    new_hash,
)
from dedupindex.urlkey import is_http, unbracket
from dedupindex.warc import http
from dedupindex.warc.arc import DOCUMENT
from dedupindex.warc.payload_digests import Payload
from dedupindex.warc.record import Record, Sound
from dedupindex.warc.record_facts import (
    FastFacts,
    Refused,
    checked,
    http_block,
    http_url,
    is_http_type,
    refers_to,
    revisit_http,
    says_identical,
    stated_digest,
    timestamp14,
)

# Fast path: the captures of usual responses, see `record_facts.FastFacts`.

_STATUSES = [status for status in range(1000) if status != 206]
_new = tuple.__new__
_RECORD = Evidence.RECORD


class FastCaptures:
    """Makes the captures of one container."""

    def __init__(self, container: str) -> None:
        self._container = container
        self._read = FastFacts(_STATUSES).read

    def capture(self, record: Record) -> Capture | None:
        """Return the capture of a response; None if `Responses.response` must read it.

        Nothing is refused here. `Responses.response` returns the same for every record.
        """
        facts = self._read(record)
        if facts is None:
            return None
        digest, spelling, covers, status, mime, body = facts
        url, date, record_id, _, _, _, _ = record.values
        return _new(Capture, (
            digest, spelling, url, date, _RECORD, covers, status, mime,
            len(body), False, record_id[1:-1],
            self._container, record.offset, b"", b"", (), "",
        ))  # fmt: skip


class Responses:
    """Judges the records of one container."""

    def __init__(
        self, container: str, *, also: tuple[str, ...], etag: bool, verify_block: bool
    ) -> None:
        self._container = container
        self._also = also
        self._etag = etag
        self._verify_block = verify_block
        self._last_date = b"-"  # the last that was checked
        thorough = bool(also) or etag or verify_block
        self.fast = _nothing if thorough else FastCaptures(container).capture

    def response(self, record: Record) -> Capture:
        """The capture that a response record is; raises `Refused` or `BrokenRecord`."""
        if not isinstance(record, Sound) and (capture := self.fast(record)):  # else it was tried
            return capture
        url, date, record_id, content_type, _, _, _ = record.values
        if not is_http_type(content_type):
            raise Refused("not-http")
        url = http_url(url)
        if date != self._last_date:
            self._last_date = checked(date)
        record_id = unbracket(record_id)
        answer, body, reason = http_block(record)
        if answer is None:
            raise Refused(reason)
        if answer.status == 206 or answer.partial:
            raise Refused("partial")
        if len(answer.head) == record.length:
            raise Refused("empty")
        return self._judged(record, url, record_id, answer, body)

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
        etag, modified = self._validators(answer)
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
        fields = record.head.fields
        url, date, record_id, _, text, _, _ = record.values
        url = http_url(url)
        try:
            stated, spelling = stated_digest(text)
            checked(date)
        except Refused:
            stated = None
        if stated is None:
            raise Refused("unresolved-revisit")
        original = refers_to(fields)
        resolved = (
            says_identical(fields)
            and stated not in EMPTY
            and is_http(original.url)
            and timestamp14(original.date)
            and original[:2] != (url, date)
        )
        answer = revisit_http(record)
        etag, modified = self._validators(answer)
        capture = Capture(
            stated, spelling, url, date, Evidence.REVISIT, Covers.UNKNOWN,
            answer.status if answer else 0, answer.mime if answer else b"", -1, False,
            unbracket(record_id), self._container, record.offset, etag, modified,
        )  # fmt: skip
        return Revisit(capture, original if resolved else None)

    def _validators(self, answer: http.Response | None) -> tuple[bytes, bytes]:
        """ETag and Last-Modified, if they are to be kept."""
        if answer is None or not self._etag:
            return b"", b""
        return http.field(answer.head, b"etag"), http.field(answer.head, b"last-modified")


def _nothing(record: Record) -> Capture | None:
    """Replaces `FastCaptures.capture` where options need the reference path."""
