"""What a record states, and whether its block is what it states: every digest is recomputed."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from dedupindex.verify.http_message import ChunkedDecoder, HttpHead, parse_http
from dedupindex.verify.issues import Broken, Issue
from dedupindex.verify.parse_records import (
    LONGEST_HEAD,
    AnyRecord,
    CheckedRecord,
    blank_line_end,
    unbracket,
)

_DATE = re.compile(
    rb"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
    rb"T(?:[01][0-9]|2[0-3]):[0-5][0-9]:(?:[0-5][0-9]|60)(?:\.[0-9]{1,9})?Z"
)
FULL = frozenset((b"response", b"resource", b"arc"))  # what a revisit may refer to
_METHOD = re.compile(rb"([A-Z]{1,16}) [^\r\n]* HTTP/")
_HTTP_KINDS = frozenset((b"response", b"request", b"revisit", b"arc"))
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
_DIGEST_SIZES = {"md5": 16, "sha1": 20, "sha256": 32, "sha384": 48, "sha512": 64}
_MAX_CACHED = 300  # bytes of a digest field
_BASE32 = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", b"0123456789ABCDEFGHIJKLMNOPQRSTUV")
_SHA1 = re.compile(rb"sha1:[A-Z2-7]{32}")
CUT_AT_ZERO = "its payload digest was cut at its first zero byte"
_NO_HTTP = HttpHead(b"", 0, b"", b"", -1, False, False)


class StatedDigest(NamedTuple):
    """A digest of an algorithm that can be recomputed."""

    algorithm: str
    raw: bytes

    @property
    def is_cut(self) -> bool:
        """Whether it looks like a digest copied as a C string: cut at its first zero byte.

        Some writers fill the rest with zeros. With three zeros or less, 17 bytes of a SHA-1 are
        left, enough to tell payloads apart.
        """
        return self.raw.endswith(bytes(4))

    @property
    def is_empty(self) -> bool:
        return self.raw == hashlib.new(self.algorithm, usedforsecurity=False).digest()


def read_digest(text: bytes) -> StatedDigest | None:
    """Parse a digest field; None for unknown algorithms and spellings."""
    return _parsed(text) if len(text) <= _MAX_CACHED else _parsed.__wrapped__(text)


@lru_cache(4096)
def _parsed(text: bytes) -> StatedDigest | None:
    if _SHA1.fullmatch(text):  # as most tools write it
        return StatedDigest("sha1", int(text[5:].translate(_BASE32), 32).to_bytes(20, "big"))
    label, colon, value = text.decode("ascii", "replace").partition(":")
    algorithm = label.lower().replace("-", "")
    size = _DIGEST_SIZES.get(algorithm)
    digits = value.rstrip("=")
    if not colon or size is None:
        return None
    try:
        if len(value) == 2 * size:
            return StatedDigest(algorithm, bytes.fromhex(value))
        if len(digits) == -(-8 * size // 5):
            raw = base64.b32decode(digits + "=" * (-len(digits) % 8), casefold=True)
        elif len(digits) == -(-4 * size // 3):
            standard = digits.replace("-", "+").replace("_", "/")
            raw = base64.b64decode(standard + "=" * (-len(digits) % 4), validate=True)
        else:
            return None
    except (ValueError, binascii.Error):
        return None
    return StatedDigest(algorithm, raw)


def is_standard_spelling(text: bytes) -> bool:
    """Whether a digest is spelled as in the standard's examples: base32, or hex in lower case."""
    label, _, value = text.partition(b":")
    stated = read_digest(text)
    if stated is None or label != stated.algorithm.encode():
        return False
    if len(value) == 32 and stated.algorithm == "sha1":
        return value == value.upper()
    return value in (base64.b32encode(stated.raw), stated.raw.hex().encode())


class Facts(NamedTuple):
    """What is known of a record that refers to another, or is referred to."""

    kind: bytes
    url: bytes  # no brackets
    date: bytes
    record_id: bytes  # no brackets
    digest: bytes  # WARC-Payload-Digest as written
    computed: tuple[bytes, ...]  # without `digest`: SHA-1 of the stored body, and without chunks
    status: int
    coding: bytes  # Transfer-Encoding and Content-Encoding
    length: int  # bytes of the stored body
    content_length: int  # of the HTTP header, -1
    has_http: bool  # there is an HTTP header
    not_original_reason: str  # why no revisit may refer to it, "" if one may
    profile: bytes = b""
    to_url: bytes = b""  # as written
    to_date: bytes = b""
    to_id: bytes = b""  # no brackets
    version: bytes = b""
    concurrent: tuple[bytes, ...] = ()  # WARC-Concurrent-To, no brackets
    method: bytes = b""  # of a request
    corrupt: bool = False  # the payload is not, or may not be, what its digests state
    partial: bool = False  # by its HTTP header it is part of a document
    header_hash: bytes = b""  # of the HTTP header as written; empty without one


def capture_key(url: bytes, date: bytes) -> bytes:
    return hashlib.blake2b(timestamp14(date) + b" " + url, digest_size=16).digest()


@lru_cache(256)
def timestamp14(date: bytes) -> bytes:
    """The 14 digits of a date; empty if it is not a date."""
    return re.sub(rb"[^0-9]", b"", date[:19]) if is_date(date) else b""


@lru_cache(256)
def is_date(date: bytes) -> bool:
    """Whether this is a valid WARC-Date, fractions of seconds allowed."""
    return _DATE.fullmatch(date) is not None


def examine(record: AnyRecord, issues: list[Issue]) -> tuple[Facts, HttpHead | None]:
    """Read a record to its end; append to `issues` what is wrong with it. Raises `Broken`."""
    head = record.head
    if isinstance(record, CheckedRecord):
        issues.extend(_header_issues(record))
    block = _stated(head.get(b"warc-block-digest"), "block", issues)
    payload = _stated(head.get(b"warc-payload-digest"), "payload", issues)
    if head.has(b"warc-segment-number") or record.kind == b"revisit":
        payload = None  # it is that of all segments together, or of the original
    start, rest = _start_of(record)
    message = _http_head(record, start, has_digest=payload is not None)
    size = len(message.head) if message else 0
    algorithm = payload.algorithm if payload else "sha1" if record.kind in FULL else ""
    body = _BodyHash(algorithm, bool(message and message.transfer)) if algorithm else None
    block_hash = hashlib.new(block.algorithm, usedforsecurity=False) if block else None
    length = 0
    for number, data in enumerate(chain([start], rest)):
        if block_hash is not None:
            block_hash.update(data)
        if body is not None:
            body.add(data if number else data[size:])
        length += len(data)
    computed = body.digests if body else ()
    block_differs = bool(block and block_hash and block_hash.digest() != block.raw)
    payload_differs = payload is not None and payload.raw not in computed
    if block_differs and record.kind == b"revisit" and block and block.is_empty:
        issues.append(("empty-block-digest", "its WARC-Block-Digest is that of no bytes"))
    elif block_differs:
        issues.append(("block-digest", "its block has another digest than WARC-Block-Digest"))
    if payload_differs and payload and payload.raw in map(_cut, computed):
        issues.append(("payload-digest", CUT_AT_ZERO))
    elif payload_differs:
        issues.append(("payload-digest", "its payload has another digest than is stated"))
    if not length:
        issues.extend(_empty_block_issues(record, payload))
    facts = facts_of(record, message, length - size, () if payload else computed)
    method = _METHOD.match(start) if record.kind == b"request" else None
    return facts._replace(
        method=method[1] if method else b"", corrupt=payload_differs if payload else block_differs
    ), message


def try_examine(record: AnyRecord, issues: list[Issue]) -> tuple[Facts, HttpHead | None] | None:
    """As `examine`; None if the record breaks off, which `AnyRecord.close` will report."""
    try:
        return examine(record, issues)
    except Broken:
        return None


def _stated(text: bytes, which: str, issues: list[Issue]) -> StatedDigest | None:
    stated = read_digest(text) if text else None
    if text and stated is None:
        shown = text[:80].decode("utf-8", "replace")
        issues.append(("digest-not-checked", f"its {which} digest is {shown!r}"))
    return stated


def _cut(raw: bytes) -> bytes:
    """A digest as written by tools that copy it as a C string."""
    return raw.split(b"\0", 1)[0].ljust(len(raw), b"\0")


def _header_issues(record: CheckedRecord) -> Iterator[Issue]:
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
        yield "repeated-field", f"{name.decode('ascii')} occurs more than once"


def _empty_block_issues(record: AnyRecord, payload: StatedDigest | None) -> Iterator[Issue]:
    is_http = record.head.get(b"content-type").lower().startswith(b"application/http")
    if record.kind in (b"response", b"request") and is_http:
        yield "empty-block", "its block is empty: not even an HTTP header is there"
    elif payload is not None and not payload.is_empty and record.kind in FULL:
        yield "empty-block", "its block is empty, but its payload digest is that of some bytes"


class _BodyHash:
    def __init__(self, algorithm: str, chunked: bool) -> None:
        self._stored = hashlib.new(algorithm, usedforsecurity=False)
        self._dechunked = self._stored.copy() if chunked else None
        self._decoder = ChunkedDecoder()

    def add(self, data: bytes) -> None:
        self._stored.update(data)
        if self._dechunked is not None:
            for piece in self._decoder.feed(data):
                self._dechunked.update(piece)

    @property
    def digests(self) -> tuple[bytes, ...]:
        if self._dechunked is not None and self._decoder.whole:
            return self._stored.digest(), self._dechunked.digest()
        return (self._stored.digest(),)


def _http_head(record: AnyRecord, start: bytes, *, has_digest: bool) -> HttpHead | None:
    begins = has_digest if record.kind == b"request" else start.startswith(b"HTTP/")
    if not begins or record.kind not in _HTTP_KINDS:
        return None
    message = parse_http(start)
    return message if message.closed or record.kind == b"revisit" else None


def open_body(record: AnyRecord) -> tuple[HttpHead | None, Iterator[bytes]]:
    """The HTTP header of a record if a blank line ends it, and the pieces of the body."""
    start, rest = _start_of(record)
    message = parse_http(start) if start.startswith(b"HTTP/") else None
    if message is None or not message.closed:
        return None, chain([start], rest)
    return message, chain([start[len(message.head) :]], rest)


def _start_of(record: AnyRecord) -> tuple[bytes, Iterator[bytes]]:
    """The block up to the end of its HTTP header at least, and the pieces that follow."""
    pieces = record.pieces()
    start = next(pieces, b"")
    is_http = record.kind in _HTTP_KINDS
    while is_http and len(start) < LONGEST_HEAD and blank_line_end(start) < 0:
        if len(start) >= 5 and not start.startswith(b"HTTP/") and record.kind != b"request":
            break
        more = next(pieces, b"")
        if not more:
            break
        start += more
    return start, pieces


def facts_of(
    record: AnyRecord, message: HttpHead | None, length: int, computed: tuple[bytes, ...]
) -> Facts:
    """The facts of a record with a body of `length` bytes."""
    head = record.head
    get = head.get
    concurrent = b"warc-concurrent-to"
    fields = head.fields if head.has(concurrent) else ()
    ids = b" ".join(value for name, value in fields if name == concurrent).split()
    header = message or _NO_HTTP
    return Facts(
        record.kind, record.url, record.date, record.record_id, get(b"warc-payload-digest"),
        computed, header.status, header.transfer + b";" + header.coding, length,
        header.content_length, message is not None, _not_original_reason(record, length),
        get(b"warc-profile"), get(b"warc-refers-to-target-uri"), get(b"warc-refers-to-date"),
        unbracket(get(b"warc-refers-to")), head.version, tuple(map(unbracket, ids)),
        partial=header.partial,
        header_hash=hashlib.blake2b(message.head, digest_size=16).digest() if message else b"",
    )  # fmt: skip


def _not_original_reason(record: AnyRecord, length: int) -> str:
    if not length:
        return "its payload is empty"
    if record.head.has(b"warc-truncated"):
        return "it is truncated"
    if record.head.has(b"warc-segment-number"):
        return "it is only a segment"
    return ""
