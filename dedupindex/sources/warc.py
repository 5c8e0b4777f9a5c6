"""WARC and ARC files as a source of captures.

Each record is answered once: as a `Capture`, as a `Revisit`, or as a `Refusal` that says why it is
neither. Bytes that could not be read as records are a `Problem`, and a `Refusal` if a record was
lost with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Self

from dedupindex.capture import Capture, Evidence, Item, Problem, Refusal, Revisit
from dedupindex.digest import is_cut
from dedupindex.sources.source import GROWING
from dedupindex.sources.warc_records import Responses
from dedupindex.warc.arc import DOCUMENT, HEADER
from dedupindex.warc.fast_reader import read
from dedupindex.warc.gzip_members import Filler
from dedupindex.warc.headers import COMMON
from dedupindex.warc.record import BrokenRecord, Record, Sound
from dedupindex.warc.record_facts import (
    Refused,
    checked,
    http_url,
    irregularity,
    stated_digest,
)
from dedupindex.warc.request_pairing import FULL, RequestPairing
from dedupindex.warc.window import Openable, open_window

_REASONS = {
    b"request": "request-record",
    b"warcinfo": "warcinfo-record",
    b"metadata": "metadata-record",
    b"resource": "resource-record",
    b"conversion": "conversion-record",
    b"continuation": "segmented",
    HEADER: "warcinfo-record",
}
_REFUSALS = {kind: Refusal(reason) for kind, reason in _REASONS.items()}
_REQUEST = _REFUSALS[b"request"]
_UNKNOWN = Refusal("unknown-record-type")
_CONCURRENT = COMMON.index(b"WARC-Concurrent-To")


class WarcSource:
    """A WARC or ARC file, plain or gzipped; see `sources.protocol.Source`.

    When `items` has ended, `changed` says whether the file was still being written: then what was
    yielded must be dropped, and the last item is a `Problem` that says so. A name that ends in
    ``.open``, as crawlers write it, is not read at all.
    """

    def __init__(
        self,
        name: str,
        source: Openable,
        *,
        also: tuple[str, ...] = (),
        etag: bool = False,
        verify_block: bool = False,
    ) -> None:
        """Open the file, or spool the stream; raises `BadSource`.

        `also` names digest algorithms to compute besides the stated one. `etag` keeps ETag and
        Last-Modified. `verify_block` checks WARC-Block-Digest too, a second hash over all bytes.
        """
        self.name = name
        self.changed = False
        self.content_hash = ""
        self.filler = 0  # bytes that hold no record and do no harm
        self.remarks: Counter[str] = Counter()  # on records that were read, see `record.REMARKS`
        self._window = open_window(name, source)
        self.size = self._window.size
        self._responses = Responses(name, also=also, etag=etag, verify_block=verify_block)
        self._pairing: RequestPairing[Item] = RequestPairing(_id_of, _refused)
        self._shared = False  # whether a problem has told of members with several records

    @property
    def position(self) -> int:
        """Bytes of the file read so far."""
        return self._window.hashed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._window.close()

    def items(self) -> Iterator[Item]:
        """See `Source.items`."""
        window = self._window
        if self.name.endswith(".open"):
            self.changed = True
            yield Problem(self.name, 0, GROWING)
            return
        if not self.size:
            yield Problem(self.name, 0, "is empty: it holds no record")
        pairing, fast = self._pairing, self._responses.fast
        for event in read(window):
            if event is None:
                pairing.add_unrelated(_REQUEST)
            elif isinstance(event, Sound) and (found := fast(event)):
                pairing.add(found, event.values[_CONCURRENT])
            elif isinstance(event, Record):
                self._answer(event)
            elif isinstance(event, Filler):
                self.filler += event.stored
            else:
                pairing.add(Problem(self.name, event.offset, event.message))
                if event.record:
                    pairing.add(Refusal("damaged"))
            if len(pairing.items) >= FULL:
                yield from pairing.leave()
        yield from pairing.leave(everything=True)
        self.content_hash = window.content_hash()
        self.changed = window.changed()
        window.close()
        if self.changed:
            yield Problem(self.name, self.size, GROWING)

    def _answer(self, record: Record) -> None:
        """Add the one item that a record is worth, unless it turns out to be broken."""
        try:
            try:
                item = self._judged(record)
            except Refused as refused:
                item = _refusal(record, refused.reason)
                if refused.problem:
                    record.finish()
                    self._pairing.add(Problem(self.name, record.offset, refused.problem))
            if record.data is None:
                record.finish()
        except BrokenRecord:
            return  # the reader accounts for it next, as damage
        if record.remark:
            self.remarks[record.remark] += 1
        self._pairing.add(item, record.values[_CONCURRENT])

    def _judged(self, record: Record) -> Item:
        kind = record.type
        if kind == b"request":
            self._pairing.request(record)
        if record.shared:
            return self._unreachable(record)
        if record.special:
            reason = "ambiguous-line" if kind == DOCUMENT else irregularity(record)
            if reason:
                return _refusal(record, reason)
        if kind == b"response" or kind == DOCUMENT:
            return self._responses.response(record)
        if kind == b"revisit":
            return self._responses.revisit(record)
        return _REFUSALS.get(kind, _UNKNOWN)

    def _unreachable(self, record: Record) -> Refusal:
        if not self._shared:
            self._shared = True
            message = (
                "several records share one gzip member, so that replay tools find only the first: "
                "recompress the file record by record"
            )
            self._pairing.add(Problem(self.name, record.offset, message))
        return _refusal(record, "shared-member")


def _refusal(record: Record, reason: str) -> Refusal:
    """The refusal of a record, with what no revisit and no row may make an original of.

    That is a response or revisit of which URL, date and the digest it states are known.
    """
    if record.type not in (b"response", b"revisit"):
        return Refusal(reason)
    url, date, _, _, text, _, _ = record.values
    try:
        url, date, (digest, spelling) = http_url(url), checked(date), stated_digest(text)
    except Refused:
        return Refusal(reason)
    if digest is None or is_cut(digest.raw):  # no original can have it
        return Refusal(reason)
    return Refusal(reason, Capture(digest, spelling, url, date, Evidence.REVISIT))


def _id_of(item: Item) -> bytes | None:
    """The record id of what a request may have been answered."""
    if isinstance(item, Revisit):
        item = item.capture
    return item.record_id if isinstance(item, Capture) else None


def _refused(item: Item) -> Refusal:
    """What the answer to another method is, with what is never to be an original."""
    if isinstance(item, Revisit):
        return Refusal("method", item.capture)
    assert isinstance(item, Capture)
    return Refusal("method", item._replace(evidence=Evidence.REVISIT))
