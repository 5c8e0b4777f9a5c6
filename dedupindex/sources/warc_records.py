"""WARC and ARC files as sources of captures.

Each record becomes one `Capture`, `Revisit`, or `Refusal` with the reason why it is neither. Bytes
that cannot be read as records are a `Problem`, with a `Refusal` if a record was lost. The digest of
every capture is recomputed. Cheap checks come first; the last one hashes the body.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from itertools import chain

from dedupindex.capture import (
    UNRESOLVED,
    Capture,
    Covers,
    Evidence,
    Item,
    Problem,
    Refusal,
    Revisit,
)
from dedupindex.digest import CUT_DIGEST, EMPTY, Digest, Hash, is_cut, new_hash
from dedupindex.sources.source import DEFAULTS, GROWING, Source, SourceOptions
from dedupindex.urlkey import is_http, unbracket
from dedupindex.warc import http
from dedupindex.warc.arc import DOCUMENT, HEADER
from dedupindex.warc.fast_reader import read
from dedupindex.warc.gzip_members import Filler
from dedupindex.warc.headers import COMMON
from dedupindex.warc.payload_digests import Payload
from dedupindex.warc.reader import is_padding
from dedupindex.warc.record import BrokenRecord, Record, Sound
from dedupindex.warc.record_facts import (
    FastFacts,
    Refused,
    checked_date,
    http_block,
    http_url,
    irregularity,
    is_http_type,
    refers_to,
    revisit_http,
    says_identical,
    stated_digest,
    timestamp14,
)
from dedupindex.warc.request_pairing import FULL, RequestPairing
from dedupindex.warc.window import Openable, open_window

_REFUSALS = {
    b"request": Refusal("request-record"),
    b"warcinfo": Refusal("warcinfo-record"),
    b"metadata": Refusal("metadata-record"),
    b"resource": Refusal("resource-record"),
    b"conversion": Refusal("conversion-record"),
    b"continuation": Refusal("segmented"),
    HEADER: Refusal("warcinfo-record"),
}
_REQUEST = _REFUSALS[b"request"]
_UNKNOWN = Refusal("unknown-record-type")
_CONCURRENT = COMMON.index(b"WARC-Concurrent-To")
_STATUSES = [status for status in range(1000) if status != 206]  # of the fast path
_new = tuple.__new__
_RECORD = Evidence.RECORD


class ArchiveSource(Source):
    """A file with records. One whose name ends in ``.open`` is not read."""

    reads_records = True

    def __init__(self, name: str, source: Openable) -> None:
        """Open the file, or spool the stream; raises `BadSource`."""
        self._window = open_window(name, source)
        super().__init__(name, self._window.size)

    def close(self) -> None:
        self._window.close()

    def items(self) -> Iterator[Item]:
        """See `Source.items`."""
        return chain.from_iterable(self.batches())

    def batches(self) -> Iterator[list[Item]]:
        """See `Source.batches`."""
        if self.name.endswith(".open"):
            self.changed = True
            yield [Problem(self.name, 0, GROWING)]
            return
        yield from self._read()
        self.content_hash = self._window.content_hash()
        self.changed = self._window.changed()
        self._window.close()
        if self.changed:
            yield [Problem(self.name, self.size, GROWING)]

    @abstractmethod
    def _read(self) -> Iterator[list[Item]]:
        """Yield the items of all records in batches."""


class WarcSource(ArchiveSource):
    """A WARC or ARC file, plain or gzipped."""

    def __init__(self, name: str, source: Openable, options: SourceOptions = DEFAULTS) -> None:
        super().__init__(name, source)
        self._responses = Responses(name, options)
        self._pairing: RequestPairing[Item] = RequestPairing(_id_of, _refused)
        self._shared = False  # whether members with several records were reported

    @property
    def position(self) -> int:
        return self._window.hashed

    def _read(self) -> Iterator[list[Item]]:
        if not self.size:
            yield [Problem(self.name, 0, "is empty: it holds no record")]
        pairing, fast = self._pairing, self._responses.fast
        items, add, add_unrelated = pairing.items, pairing.add, pairing.add_unrelated
        for event in read(self._window):
            if event is None:
                add_unrelated(_REQUEST)
            elif event.__class__ is Sound and (found := fast(event)):
                add(found, event.values[_CONCURRENT])
            elif isinstance(event, Record):
                self._add(event)
            elif isinstance(event, Filler):
                if is_padding(self._window, event):
                    self.damage.setdefault(self.name, event.offset)
            else:
                self.damage.setdefault(self.name, event.offset)
                pairing.add(Problem(self.name, event.offset, event.message))
                if event.record:
                    pairing.add(Refusal("damaged"))
            if len(items) >= FULL:
                yield pairing.pop_settled()
        yield pairing.pop_settled(everything=True)

    def _add(self, record: Record) -> None:
        """Add the item of a record, unless the record turns out to be broken."""
        try:
            try:
                item = self._item(record)
            except Refused as refused:
                item = _refusal(record, refused.reason)
                if refused.problem:
                    record.finish()
                    self._pairing.add(Problem(self.name, record.offset, refused.problem))
            if record.data is None:
                record.finish()
        except BrokenRecord:
            return  # the reader reports it next, as damage
        if record.remark:
            self.remarks[record.remark] += 1
        self._pairing.add(item, record.values[_CONCURRENT])

    def _item(self, record: Record) -> Item:
        kind = record.type
        if kind == b"request":
            self._pairing.request(record)
        if record.shared:
            if not self._shared:
                self._shared = True
                message = (
                    "several records share one gzip member or zstd frame, so that replay tools "
                    "find only the first: recompress the file record by record"
                )
                self._pairing.add(Problem(self.name, record.offset, message))
            return _refusal(record, "shared-member")
        if record.special:
            reason = "ambiguous-line" if kind == DOCUMENT else irregularity(record)
            if reason:
                return _refusal(record, reason)
        if kind == b"response" or kind == DOCUMENT:
            return self._responses.response(record)
        if kind == b"revisit":
            return self._responses.revisit(record)
        return _REFUSALS.get(kind, _UNKNOWN)


def _refusal(record: Record, reason: str) -> Refusal:
    """Return the refusal of a record, with a tombstone if it states URL, date and digest.

    The tombstone keeps revisits and rows from naming a response or revisit as an original.
    """
    if record.type not in (b"response", b"revisit"):
        return Refusal(reason)
    url, date, _, _, text, _, _ = record.values
    try:
        url, date, (digest, spelling) = http_url(url), checked_date(date), stated_digest(text)
    except Refused:
        return Refusal(reason)
    if digest is None or is_cut(digest.raw):  # no original can have it
        return Refusal(reason)
    return Refusal(reason, Capture(digest, spelling, url, date, Evidence.REVISIT))


def _id_of(item: Item) -> bytes | None:
    """Return the record id of a capture or revisit, which may answer a request."""
    if isinstance(item, Revisit):
        item = item.capture
    return item.record_id if isinstance(item, Capture) else None


def _refused(item: Item) -> Refusal:
    """Return the refusal of the answer to another method, with its tombstone."""
    if isinstance(item, Revisit):
        return Refusal("method", item.capture)
    assert isinstance(item, Capture)
    return Refusal("method", item._replace(evidence=Evidence.REVISIT))


class Responses:
    """Turns the responses and revisits of one container into captures."""

    def __init__(self, container: str, options: SourceOptions) -> None:
        self._container = container
        self._also, self._etag = options.also, options.etag
        self._facts = None if options.also or options.etag else FastFacts(_STATUSES).read

    def fast(self, record: Record) -> Capture | None:
        """Return the capture of a response; None if `response` must read it.

        Nothing is refused here, and `response` returns the same for every record.
        """
        if self._facts is None or (facts := self._facts(record)) is None:
            return None
        url, digest, spelling, covers, status, mime, body = facts
        _, date, record_id, _, _, _, _ = record.values
        return _new(Capture, (
            digest, spelling, url, date, _RECORD, covers, status, mime,
            len(body), False, record_id[1:-1],
            self._container, record.offset, b"", b"", (), "",
        ))  # fmt: skip

    def response(self, record: Record) -> Capture:
        """Return the capture of a response; raises `Refused` or `BrokenRecord`."""
        if not isinstance(record, Sound) and (capture := self.fast(record)):
            return capture
        url, date, record_id, content_type, _, _, _ = record.values
        if not is_http_type(content_type):
            raise Refused("not-http")
        url = http_url(url)
        checked_date(date)
        record_id = unbracket(record_id)
        answer, body, reason = http_block(record)
        if answer is None:
            raise Refused(reason)
        if answer.status == 206 or answer.partial:
            raise Refused("partial")
        if len(answer.head) == record.length:
            raise Refused("empty")
        if not record_id and record.type != DOCUMENT:
            raise Refused("no-record-id")
        return self._verified(record, url, record_id, answer, body)

    def _verified(
        self,
        record: Record,
        url: bytes,
        record_id: bytes,
        answer: http.Response,
        body: Iterable[bytes | memoryview],
    ) -> Capture:
        """Return the capture of a response, whose digests are verified against its body."""
        stated, spelling = stated_digest(record.values[4])
        if stated is None and answer.coding:
            raise Refused("chunked-without-digest")
        algorithm = "sha1" if stated is None else stated.algorithm
        payload = Payload(algorithm, self._also, answer.coding)
        block = self._block_hash(record, answer, stated)
        for piece in body:
            payload.update(piece)
            if block is not None:
                block[1].update(piece)
        if payload.empty:
            raise Refused("empty")
        match = payload.match(stated)
        bad_block = block is not None and block[0].raw != block[1].digest()
        if match is None and not bad_block and payload.was_cut(stated):
            raise Refused(CUT_DIGEST)  # the payload is whole: there is no damage to report
        if match is None or bad_block:
            what = "WARC-Payload-Digest" if match is None else "WARC-Block-Digest"
            raise Refused("digest-mismatch", f"{what} does not match the bytes")
        covers, digests = match
        etag, modified = self._validators(answer)
        return Capture(
            digests[0], spelling, url, record.values[1], Evidence.RECORD, covers,
            answer.status, answer.mime, payload.stored.length, False, record_id,
            self._container, record.offset, etag, modified, tuple(digests[1:]),
        )  # fmt: skip

    def _block_hash(
        self, record: Record, answer: http.Response, stated: Digest | None
    ) -> tuple[Digest, Hash] | None:
        """Return the stated block digest and a running hash of the block, fed with its HTTP header.

        None if the record states a payload digest: a second hash over all bytes adds little.
        """
        if record.type == DOCUMENT or stated is not None:
            return None
        block = stated_digest(record.head.fields.get(b"WARC-Block-Digest", b""))[0]
        if block is None:
            return None
        running = new_hash(block.algorithm)
        running.update(answer.head)
        return block, running

    def revisit(self, record: Record) -> Revisit:
        """Return the revisit of a revisit record; raises `Refused` or `BrokenRecord`."""
        fields = record.head.fields
        url, date, record_id, _, text, _, _ = record.values
        url = http_url(url)
        try:
            stated, spelling = stated_digest(text)
            checked_date(date)
        except Refused:
            stated = None
        if stated is None:
            raise Refused(UNRESOLVED)
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
        """Return ETag and Last-Modified, empty if they are not kept."""
        if answer is None or not self._etag:
            return b"", b""
        return http.field(answer.head, b"etag"), http.field(answer.head, b"last-modified")
