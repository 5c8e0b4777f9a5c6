"""What a record says and what is in it: its block read once, every digest recomputed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

from dedupindex.verify import http
from dedupindex.verify.http_blocks import Stated, Sum, cut_of, is_empty, read
from dedupindex.verify.issues import Broken
from dedupindex.verify.parse_records import ArcDocument, CheckedRecord, RecordHead

_DATE = re.compile(
    rb"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
    rb"T(?:[01][0-9]|2[0-3]):[0-5][0-9]:(?:[0-5][0-9]|60)(?:\.[0-9]{1,9})?Z"
)
FULL = frozenset((b"response", b"resource", b"arc"))  # what a revisit may refer to
_METHOD = re.compile(rb"([A-Z]{1,16}) [^\r\n]* HTTP/")
_HTTP_KINDS = frozenset((b"response", b"request", b"revisit"))
_NEEDS_URI = frozenset(
    (b"response", b"resource", b"request", b"revisit", b"conversion", b"continuation")
)
_SINGLE = frozenset(
    b"warc-" + name
    for name in (
        b"type record-id date target-uri payload-digest block-digest truncated profile refers-to "
        b"refers-to-target-uri refers-to-date"
    ).split()
)
_VERSIONS = frozenset((b"WARC/0.17", b"WARC/0.18", b"WARC/1.0", b"WARC/1.1", b"WARC/1.2"))
Note = tuple[str, str]  # reason, message


class Facts(NamedTuple):
    """What a reference needs to know of a record, at either end of it."""

    kind: bytes
    url: bytes  # no brackets
    date: bytes
    record_id: bytes  # no brackets
    digest: bytes  # WARC-Payload-Digest as it is written
    sums: tuple[bytes, ...]  # without a digest: SHA-1 of the stored body, and of the entity
    status: int
    coding: bytes  # Transfer-Encoding and Content-Encoding
    length: int  # bytes of the stored body
    claimed: int  # HTTP Content-Length, -1
    headed: bool  # there is an HTTP header
    unfit: str  # why it can be no original, "" if it can
    profile: bytes = b""
    to_url: bytes = b""  # as written
    to_date: bytes = b""
    to_id: bytes = b""  # no brackets
    version: bytes = b""
    concurrent: tuple[bytes, ...] = ()  # WARC-Concurrent-To, no brackets
    method: bytes = b""  # of a request
    corrupt: bool = False  # the payload is not, or may not be, what its digests say
    partial: bool = False  # the HTTP header says that this is part of a document
    header_hash: bytes = b""  # of the HTTP header as it stands; empty if there is none


Examined = tuple[Facts, http.Http | None]


def moment(date: bytes) -> bytes:
    """The second of a date, as 14 digits; empty if it is no date."""
    return re.sub(rb"[^0-9]", b"", date[:19]) if is_date(date) else b""


def is_date(date: bytes) -> bool:
    """Whether a date is one as WARC-Date has to be, sub-seconds allowed."""
    return _DATE.fullmatch(date) is not None


def bare(text: bytes) -> bytes:
    """Without the angle brackets around it."""
    return text.removeprefix(b"<").removesuffix(b">")


def examine(record: CheckedRecord | ArcDocument, notes: list[Note]) -> Examined:
    """Read the block of a record; `notes` takes what is wrong with it. Raises `Broken`."""
    if isinstance(record, ArcDocument):
        return _read(record, None, None, notes)
    head = record.head
    notes.extend(_header_notes(record))
    block = _stated(head.get(b"warc-block-digest"), "block", notes)
    payload = _stated(head.get(b"warc-payload-digest"), "payload", notes)
    if head.has(b"warc-segment-number") or record.kind == b"revisit":
        payload = None  # of all segments together; of the original
    return _read(record, block, payload, notes)


def _stated(text: bytes, what: str, notes: list[Note]) -> Stated | None:
    stated = read(text) if text else None
    if text and stated is None:
        shown = text[:80].decode("utf-8", "replace")
        notes.append(("digest-not-checked", f"its {what} digest is {shown!r}"))
    return stated


def _header_notes(record: CheckedRecord) -> Iterator[Note]:
    head = record.head
    if head.odd:
        yield "not-exact", head.odd
    if head.version not in _VERSIONS:
        yield "unknown-version", f"its version is {head.version.decode('ascii', 'replace')}"
    if not record.record_id:
        yield "no-record-id", "it has no WARC-Record-ID"
    if not is_date(record.date):
        shown = record.date[:40].decode("utf-8", "replace")
        yield "bad-date", f"its WARC-Date is {shown!r}"
    if not record.url and record.kind in _NEEDS_URI:
        yield "no-target-uri", "its WARC-Target-URI is missing or empty"
    names = Counter(name for name, _ in head.fields if name in _SINGLE)
    for name in sorted(name for name, count in names.items() if count > 1):
        yield "repeated-field", f"{name.decode('ascii')} stands there more than once"


class _Body:
    """The sums of a body, as stored and without chunks."""

    def __init__(self, algorithm: str, chunked: bool) -> None:
        self.stored = Sum(algorithm)
        self.entity = Sum(algorithm) if chunked else None
        self.length = 0
        self._chunks = http.Entity()

    def add(self, data: bytes) -> None:
        self.length += len(data)
        self.stored.add(data)
        if self.entity is not None:
            for piece in self._chunks.feed(data):
                self.entity.add(piece)

    @property
    def sums(self) -> tuple[bytes, ...]:
        if self.entity is not None and self._chunks.whole:
            return self.stored.raw, self.entity.raw
        return (self.stored.raw,)


def _read(
    record: CheckedRecord | ArcDocument,
    block: Stated | None,
    payload: Stated | None,
    notes: list[Note],
) -> Examined:
    start, rest = start_of(record)
    message = None
    if record.kind == b"request":
        message = http.parse(start) if payload else None
    elif record.kind in _HTTP_KINDS or isinstance(record, ArcDocument):
        message = http.read(start)
    if message is not None and not message.closed and record.kind != b"revisit":
        message = None
    size = len(message.head) if message else 0
    wanted = payload or (Stated("sha1", b"") if record.kind in FULL else None)
    body = _Body(wanted.algorithm, bool(message and message.transfer)) if wanted else None
    whole = Sum(block.algorithm) if block else None
    length = 0
    for data in _chain(start, rest):
        if whole is not None:
            whole.add(data)
        if body is not None:
            body.add(data[size:] if length == 0 and size else data)
        length += len(data)
    if whole is not None and block is not None and whole.raw != block.raw:
        if record.kind == b"revisit" and is_empty(block):
            notes.append(("empty-block-digest", "its WARC-Block-Digest is that of nothing"))
        else:
            notes.append(("block-digest", "its block has another digest than WARC-Block-Digest"))
    if payload and body and payload.raw not in body.sums:
        if payload.raw in map(cut_of, body.sums):
            notes.append(("payload-digest", "its payload digest was cut at its first zero byte"))
        else:
            notes.append(("payload-digest", "its payload has another digest than is stated"))
    notes.extend(_block_notes(record, length, payload))
    sums = body.sums if body and not payload else ()
    held = payload is not None and body is not None and payload.raw in body.sums
    broken = whole is not None and block is not None and whole.raw != block.raw
    facts = facts_of(record, message, length - size, sums)
    asked = _METHOD.match(start) if record.kind == b"request" else None
    return facts._replace(
        method=asked[1] if asked else b"",
        corrupt=not held and (payload is not None or broken),
    ), message


def start_of(record: CheckedRecord | ArcDocument) -> tuple[bytes, Iterator[bytes]]:
    """The block up to the end of an HTTP header, if it has one, and the pieces behind."""
    pieces = record.pieces()
    start = next(pieces, b"")
    like_http = record.kind in _HTTP_KINDS or isinstance(record, ArcDocument)
    while like_http and len(start) < http.LONGEST_HEAD and http.head_end(start) < 0:
        if len(start) >= 5 and not start.startswith(b"HTTP/") and record.kind != b"request":
            break
        more = next(pieces, b"")
        if not more:
            break
        start += more
    return start, pieces


def _chain(start: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if start:
        yield start
    yield from rest


def _block_notes(
    record: CheckedRecord | ArcDocument, length: int, payload: Stated | None
) -> Iterator[Note]:
    if length or isinstance(record, ArcDocument):
        return
    http_like = record.head.get(b"content-type").lower().startswith(b"application/http")
    if record.kind in (b"response", b"request") and http_like:
        yield "empty-block", "its block is empty: not even an HTTP header is there"
    elif payload is not None and not is_empty(payload) and record.kind in FULL:
        yield "empty-block", "its block is empty, but its payload digest is that of something"


def facts_of(
    record: CheckedRecord | ArcDocument,
    message: http.Http | None,
    length: int,
    sums: tuple[bytes, ...],
) -> Facts:
    """What a record says, of a body of `length` bytes."""
    head = record.head if isinstance(record, CheckedRecord) else None
    get = head.get if head else lambda name: b""
    return Facts(
        record.kind,
        record.url,
        record.date,
        record.record_id,
        get(b"warc-payload-digest"),
        sums,
        message.status if message else 0,
        message.transfer + b";" + message.coding if message else b"",
        length,
        message.claimed if message else -1,
        message is not None,
        _unfit(record, length),
        get(b"warc-profile"),
        get(b"warc-refers-to-target-uri"),
        get(b"warc-refers-to-date"),
        bare(get(b"warc-refers-to")),
        head.version if head else b"",
        _concurrent(head) if head else (),
        partial=message is not None and message.partial,
        header_hash=blake2b(message.head, digest_size=16).digest() if message else b"",
    )


def _concurrent(head: RecordHead) -> tuple[bytes, ...]:
    name = b"warc-concurrent-to"
    if not head.has(name):
        return ()
    return tuple(bare(one) for key, value in head.fields if key == name for one in value.split())


def _unfit(record: CheckedRecord | ArcDocument, length: int) -> str:
    if not length:
        return "its payload is empty"
    if isinstance(record, ArcDocument):
        return ""
    if record.head.has(b"warc-truncated"):
        return "it is truncated"
    if record.head.has(b"warc-segment-number"):
        return "it is only a segment"
    return ""


def checked(record: CheckedRecord | ArcDocument, notes: list[Note]) -> Examined | None:
    """As `examine`; None if the record broke off, which is left to who closes it."""
    try:
        return examine(record, notes)
    except Broken:
        return None
