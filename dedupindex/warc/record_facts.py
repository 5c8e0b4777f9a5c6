"""Read the facts of a WARC record (WARC 1.1 section 5); only `verify` has its own reader.

Facts are URL, date, record id, payload digest, profile, and the original that a revisit refers to.
Values are bytes, without the angle brackets of URLs and record ids. Of a repeated field the first
counts. The HTTP header is separated from the body here and parsed by `warc.http`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha1
from itertools import chain
from typing import NamedTuple

from dedupindex.capture import Covers, RefersTo
from dedupindex.digest import (
    CANONICAL,
    FROM_BASE32,
    Digest,
    Spelling,
    new_hash,
    parse_spelled,
    sha1_of_base32,
)
from dedupindex.errors import BadDate, BadDigest
from dedupindex.timestamps import check_date, digits_of_date
from dedupindex.urlkey import is_http, unbracket
from dedupindex.warc import http
from dedupindex.warc.headers import VERSIONS
from dedupindex.warc.record import Record

_HTTP_TYPE = re.compile(rb"application/http\s*(?:;.*)?", re.IGNORECASE | re.DOTALL)
_IDENTICAL = re.compile(
    rb"<?https?://netpreserve\.org/warc/(?:0\.18|1\.[0-2])/revisit/identical-payload-digest>?"
)
_NOT_MODIFIED = b"server-not-modified"
_SCHEMES = (b"http://", b"https://")
_PLAIN, _MEDIA_TYPES = http.PLAIN.match, http.MEDIA_TYPES
_BOTH, _ENTITY, _STORED = Covers.BOTH, Covers.ENTITY, Covers.STORED
_new = tuple.__new__
_MAX_TYPES, _LONGEST_TYPE = 1000, 300  # cached values of Content-Type, and bytes of one

_http_types: set[bytes] = set()  # a cache of Content-Type values that mean HTTP


class Refused(Exception):
    """The record is not a capture; reports count the `reason` and show the `problem`."""

    def __init__(self, reason: str, problem: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.problem = problem


def http_url(url: bytes) -> bytes:
    """Return the URL of WARC-Target-URI without the brackets that wget writes.

    Raises `Refused`: "no-url", or "not-http" for a URL of another scheme (section 5.14).
    """
    url = unbracket(url)
    if not url:
        raise Refused("no-url")
    if not is_http(url):
        raise Refused("not-http")
    return url


def checked_date(date: bytes) -> bytes:
    """Return a WARC-Date if it is valid; raises `Refused`: "bad-date" (section 5.4)."""
    try:
        return check_date(date)
    except BadDate as error:
        raise Refused("bad-date") from error


def timestamp14(date: bytes) -> bytes:
    """Return the 14 digits (UTC) of a WARC-Date without its fraction; empty if it is invalid."""
    try:
        return digits_of_date(check_date(date))
    except BadDate:
        return b""


def stated_digest(text: bytes) -> tuple[Digest | None, Spelling]:
    """Return the digest of a header field and its spelling; None if `text` is empty.

    `text` is a WARC-Payload-Digest or WARC-Block-Digest (sections 5.8 and 5.9). Raises `Refused`:
    "bad-digest".
    """
    if not text:
        return None, CANONICAL
    try:
        return parse_spelled(text.decode("ascii"))
    except (BadDigest, UnicodeDecodeError) as error:
        raise Refused("bad-digest") from error


def is_http_type(content_type: bytes) -> bool:
    """Return whether a Content-Type means that the block is an HTTP message (section 6.3)."""
    if content_type in _http_types:
        return True
    if _HTTP_TYPE.fullmatch(content_type) is None:
        return False
    if len(_http_types) < _MAX_TYPES and len(content_type) <= _LONGEST_TYPE:
        _http_types.add(content_type)
    return True


def irregularity(record: Record) -> str:
    """Return why a `special` record is not a capture; empty if it may be one.

    A revisit may be truncated, because it has no payload (section 6.7.2).
    """
    head = record.head
    if head.repeated:
        return "repeated-field"
    if head.version not in VERSIONS:
        return "unknown-version"
    if b"WARC-Segment-Number" in head.fields:
        return "segmented"
    return "truncated" if record.type == b"response" else ""


def refers_to(fields: Mapping[bytes, bytes]) -> RefersTo:
    """Return the original that a revisit names, unchecked (sections 5.11 to 5.13)."""
    return RefersTo(
        unbracket(fields.get(b"WARC-Refers-To-Target-URI", b"")),
        fields.get(b"WARC-Refers-To-Date", b""),
        unbracket(fields.get(b"WARC-Refers-To", b"")),
    )


def says_identical(fields: Mapping[bytes, bytes]) -> bool:
    """Return whether a revisit has the profile identical-payload-digest (section 6.7.2).

    Versions 0.18 to 1.2 are accepted, with or without angle brackets.
    """
    return _IDENTICAL.fullmatch(fields.get(b"WARC-Profile", b"")) is not None


def says_not_modified(fields: Mapping[bytes, bytes]) -> bool:
    """Return whether a revisit has the profile server-not-modified (section 6.7.3)."""
    return _NOT_MODIFIED in fields.get(b"WARC-Profile", b"")


def record_ids(text: bytes) -> frozenset[bytes]:
    """Return the record ids, without brackets, of WARC-Record-ID or WARC-Concurrent-To.

    Several values of the latter are joined by spaces in `headers` (section 5.7).
    """
    return frozenset([unbracket(part) for part in text.split()])


class Block(NamedTuple):
    """The block of a record, divided after its HTTP header."""

    answer: http.Response | None  # None: there is no complete HTTP header
    body: Iterator[bytes | memoryview]  # the body in pieces; without a header the block
    reason: str = ""  # why there is no header: "not-http" or "no-end-of-headers"


def http_block(record: Record) -> Block:
    """Divide the block of a response (section 6.3). The body may raise `BrokenRecord`."""
    if record.data is None:
        return divided(record.pieces())
    return divided_at(record.data, record.start, record.start + record.length)


def divided_at(data: bytes, start: int, stop: int) -> Block:
    """Divide the block from `start` up to `stop`."""
    block = memoryview(data)[start:stop]
    if not data.startswith(b"HTTP/", start, stop):
        return Block(None, iter([block]), "not-http")
    answer = http.parse(data, start, stop)
    if answer is None:
        return Block(None, iter([block]), "no-end-of-headers")
    return Block(answer, iter([block[answer.body - start :]]))


def divided(pieces: Iterator[bytes | memoryview]) -> Block:
    """Divide a streamed block, holding only its HTTP header."""
    held = b""
    for piece in pieces:
        held += piece
        if not held.startswith(b"HTTP/"[: len(held)]):
            break
        answer = http.parse(held, 0, len(held))
        if answer is not None:
            rest = memoryview(held)[answer.body :]
            return Block(answer, chain([rest], pieces) if rest else pieces)
        if len(held) > http.LONGEST:
            break
    reason = "no-end-of-headers" if held.startswith(b"HTTP/") else "not-http"
    return Block(None, chain([held], pieces), reason)


def revisit_http(record: Record) -> http.Response | None:
    """Return the HTTP header of a revisit, even without its blank line; None if it has none."""
    held = b""
    for piece in record.pieces():
        held += piece
        if len(held) > http.LONGEST or http.header_end(held, 0, len(held)) >= 0:
            break
    if not held.startswith(b"HTTP/"):
        return None
    return http.parse(held + b"\r\n\r\n", 0, len(held) + 4)


Fast = tuple[bytes, Digest, Spelling, Covers, int, bytes, memoryview]
"""URL, digest, its spelling, what it covers; HTTP status, media type, and the body as stored."""


class FastFacts:
    """A fast path that reads all facts of a regular response, as nearly all are, in one step.

    A regular response is short, has a body that is not partial, and states the right digest; its
    URL has a scheme in lower case, its record id has brackets. The functions above return the same
    facts for every record.
    """

    def __init__(self, statuses: Iterable[int], algorithm: str = "") -> None:
        """`statuses` and `algorithm` (empty for any) are those of regular responses."""
        self._statuses = {b"%03d" % status: status for status in statuses}
        self._algorithm, self._sha1 = algorithm, algorithm in ("", "sha1")
        self._date = b"-"  # the last that was checked
        self._entities = True  # whether the last digest of a chunked body covered its entity

    def read(self, record: Record) -> Fast | None:
        """Return the facts of a response that is not `special`; None if it is not regular."""
        url, date, record_id, content_type, text, _, _ = record.values
        data, start = record.data, record.start
        if url[:1] == b"<" and url[-1:] == b">":  # wget's
            url = url[1:-1]
        if (
            data is None
            or not url.startswith(_SCHEMES)
            or not (date == self._date or self._is_date(date))
            or not (content_type in _http_types or is_http_type(content_type))
            or record_id[:1] != b"<"
            or record_id[-1:] != b">"
            or len(record_id) < 3
        ):
            return None
        stop = start + record.length
        match = _PLAIN(data, start, stop)
        if match is None:
            return None
        at, (code, line, chunked, other_line) = match.end(), match.groups()
        status = self._statuses.get(code)
        if status is None or at == stop:
            return None
        body = memoryview(data)[at:stop]
        if chunked:
            found = self._chunked(text, data, at, stop)
            mime = _MEDIA_TYPES[other_line if line is None else line]
            return (url, *found, status, mime, body) if found else None
        if self._sha1 and text[:5] == b"sha1:" and len(text) == 37:  # nearly always
            try:
                raw = int(text[5:].translate(FROM_BASE32), 32).to_bytes(20)
            except ValueError:
                return None
            if sha1(body, usedforsecurity=False).digest() != raw:
                return None
            return (
                url,
                _new(Digest, ("sha1", raw)),
                CANONICAL,
                _BOTH,
                status,
                _MEDIA_TYPES[line],
                body,
            )
        stated = self._stated(text)
        if stated is None or _hashed(stated[0].algorithm, [body]) != stated[0].raw:
            return None
        return url, *stated, _BOTH, status, _MEDIA_TYPES[line], body

    def _chunked(
        self, text: bytes, data: bytes, at: int, stop: int
    ) -> tuple[Digest, Spelling, Covers] | None:
        """Verify the digest of a chunked body with one hash, of its entity or of it as stored.

        A tool always hashes the same of the two, so the one that matched last time is tried.
        """
        if self._entities:
            pieces, covers = http.plain_chunks(data, at, stop), _ENTITY
        else:
            pieces, covers = [memoryview(data)[at:stop]], _STORED
        stated = self._stated(text)
        if stated is None or not pieces or not http.has_chunk(data, at, stop):
            return None
        if _hashed(stated[0].algorithm, pieces) != stated[0].raw:
            self._entities = not self._entities
            return None
        return *stated, covers

    def _stated(self, text: bytes) -> tuple[Digest, Spelling] | None:
        try:
            if self._sha1 and text[:5] == b"sha1:" and len(text) == 37:
                return Digest("sha1", sha1_of_base32(text[5:])), CANONICAL
            digest, spelling = stated_digest(text)
        except (Refused, ValueError):
            return None
        if digest is None or self._algorithm not in ("", digest.algorithm):
            return None
        return digest, spelling

    def _is_date(self, date: bytes) -> bool:
        if not timestamp14(date):
            return False
        self._date = date
        return True


def _hashed(algorithm: str, pieces: list[memoryview]) -> bytes:
    running = sha1(usedforsecurity=False) if algorithm == "sha1" else new_hash(algorithm)
    for piece in pieces:
        running.update(piece)
    return running.digest()
