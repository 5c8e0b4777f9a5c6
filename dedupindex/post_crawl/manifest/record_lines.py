"""Make the manifest line of a response record, with the reasons why it cannot be rewritten.

Only reasons that are known from the record itself are found here. All records get their digests,
so that manifests from before and after a conversion are equal. WARC-Block-Digest is not checked
here, but before a block is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from blake3 import blake3
from xxhash import xxh64_intdigest

from dedupindex.capture import Covers
from dedupindex.digest import Digest
from dedupindex.post_crawl.manifest.lines import Line, header_hash
from dedupindex.timestamps import digits_of_date
from dedupindex.urlkey import unbracket, urlkey
from dedupindex.warc import http
from dedupindex.warc.arc import DOCUMENT
from dedupindex.warc.payload_digests import Payload
from dedupindex.warc.record import Record, Sound
from dedupindex.warc.record_facts import (
    FastFacts,
    Refused,
    checked_date,
    http_block,
    http_url,
    irregularity,
    is_http_type,
    refers_to,
    stated_digest,
)

LINE_VERSIONS = (b"WARC/1.0\r\n", b"WARC/1.1\r\n")
_VERSION = re.compile(rb"WARC/1\.[01]\s", re.IGNORECASE)
_LONGEST = 1 << 18  # bytes of all texts of a line
_FAST_STATUSES = {*range(200, 300), *range(400, 600)} - {204, 206}
_FAST_HEADER = 1 << 16  # bytes of a header that the fast path reads
_new = tuple.__new__


class ManifestOptions(NamedTuple):
    """Options that decide what a manifest has."""

    algorithm: str = "sha1"  # of `Line.payload`
    force: bool = False  # take it of the body as stored, whatever the stated digest is of
    skip_empty: bool = False  # leave out responses with an empty body


class LineReader:
    """Makes the lines of one container."""

    def __init__(self, container: int, options: ManifestOptions) -> None:
        self._container = container
        self._algorithm, self._force = options.algorithm, options.force

    def line(self, record: Record) -> Line:
        """Return the line of a response record; raises `BrokenRecord`.

        `Line.stored` is not known yet, nor whether the record is framed exactly.
        """
        url, date, record_id, _, stated_text, _, _ = record.values
        reasons = list(_header_reasons(record))
        try:
            url = http_url(url)
        except Refused as refused:
            url = unbracket(url)
            reasons.append(refused.reason)
        replay_key = 0
        try:
            replay_key = _replay_key(url, checked_date(date))
        except Refused as refused:
            reasons.append(refused.reason)
        answer, body, no_answer = http_block(record)
        head = b"" if answer is None else answer.head
        coding = b"" if answer is None else answer.coding
        reasons += [no_answer] if answer is None else _answer_reasons(answer)
        no_digest = "chunked-without-digest" if coding else "no-digest"
        stated = None
        try:
            stated = stated_digest(stated_text)[0]
            if stated is None and record.type != DOCUMENT:
                reasons.append(no_digest)
        except Refused as refused:
            reasons.append(refused.reason)
        payload, strong = self._payload(body, stated, coding)
        verdict = payload.match(stated)
        covers, digests = verdict or (Covers.UNKNOWN, [])
        if self._force or not digests:
            digests = payload.stored.digests()
        if payload.empty and answer is not None:
            reasons.insert(0, "empty")
        if covers is Covers.UNKNOWN:
            cut = verdict is None and payload.was_cut(stated)
            reasons.append("cut-digest" if cut else "digest-mismatch")
        reason = not_original = reasons[0] if reasons else ""
        if record.type == DOCUMENT:
            reason, not_original = "arc", reason or no_digest
        line = Line(
            self._container, record.offset, 0, unbracket(record_id), url, date, stated_text,
            digests[-1].raw, covers, strong, payload.stored.length,
            answer.status if answer else 0, http.codings(head) if answer else b"\n",
            http.content_types(head) if answer else b"", replay_key, reason, not_original,
            header_hash(head) if answer else b"",
        )  # fmt: skip
        return _shortened(line)

    def _payload(
        self, body: Iterable[bytes | memoryview], stated: Digest | None, coding: bytes
    ) -> tuple[Payload, bytes]:
        """Read the body once; returns what took its payload digests, and its BLAKE3."""
        first = self._algorithm if stated is None else stated.algorithm
        payload, strong = Payload(first, (self._algorithm,), coding), blake3()
        for piece in body:
            payload.update(piece)
            strong.update(piece)
        return payload, strong.digest()


def _replay_key(url: bytes, date: bytes) -> int:
    """Return `Line.replay_key`; `date` is a checked WARC-Date."""
    return xxh64_intdigest(urlkey(url) + digits_of_date(date))


def _header_reasons(record: Record) -> Iterator[str]:
    _, _, record_id, content_type, _, _, _ = record.values
    if record.type == DOCUMENT:
        if record.special:
            yield "ambiguous-line"
        return
    if record.special and (reason := irregularity(record)):
        yield reason
    if _VERSION.match(record.text) is None:
        yield "unknown-version"
    if record.text.count(b"\n") != record.text.count(b"\r\n"):
        yield "not-exact"
    if not is_http_type(content_type):
        yield "not-http"
    if not unbracket(record_id):
        yield "no-record-id"


def _answer_reasons(answer: http.Response) -> Iterator[str]:
    status = answer.status
    if status < 200 or status in (204, 304):
        yield "status"
    elif 300 <= status < 400:
        yield "redirect"
    elif status == 206 or answer.partial:
        yield "partial"


def _shortened(line: Line) -> Line:
    """Return a line of bounded size: of texts too long for any tool only the beginning is kept."""
    texts = line.record_id, line.url, line.date, line.digest, line.coding, line.content_type
    if sum(map(len, texts)) <= _LONGEST:
        return line
    record_id, url, date, digest, coding, content_type = (text[:1024] for text in texts)
    return line._replace(
        record_id=record_id, url=url, date=date, digest=digest, coding=coding,
        content_type=content_type, not_rewritable_reason="too-long", not_original_reason="too-long",
    )  # fmt: skip


REVISIT, REVISIT_TARGET = "revisit", "refers-to"
"""The two lines that a manifest has for each revisit, by their `Line.not_rewritable_reason`."""


def revisit_lines(container: int, record: Record) -> tuple[Line, Line]:
    """Return the lines of a revisit record: what it refers to, and the revisit itself.

    Both have the place of the revisit. The first has the record id, URL and date that the revisit
    names, empty if it names none, where its own URL takes the place of the URL.
    """
    url, date, record_id = record.values[:3]
    original = refers_to(record.head.fields)
    return (
        _revisit_line(container, record, original.record_id, original.url or unbracket(url),
                      original.date, REVISIT_TARGET),
        _revisit_line(container, record, unbracket(record_id), unbracket(url), date, REVISIT),
    )  # fmt: skip


def _revisit_line(
    container: int, record: Record, record_id: bytes, url: bytes, date: bytes, kind: str
) -> Line:
    try:
        replay_key = _replay_key(http_url(url), checked_date(date))
    except Refused:
        replay_key = 0
    line = Line(
        container, record.offset, 0, record_id, url, date, record.values[4], b"",
        int(Covers.UNKNOWN), b"", 0, 0, b"\n", b"", replay_key, kind, kind,
    )  # fmt: skip
    return _shortened(line)._replace(not_rewritable_reason=kind, not_original_reason=kind)


class FastLines:
    """Fast path of `LineReader` for regular responses, see `record_facts.FastFacts`."""

    def __init__(self, container: int, options: ManifestOptions) -> None:
        self._container = container
        self._able = not options.force
        self._date = self._digits = b""  # the last date, and its 14 digits
        self._read = FastFacts(_FAST_STATUSES, options.algorithm).read

    def line(self, record: Sound) -> Line | None:
        """Return the same as `LineReader.line`, or None if only that can read the record.

        The response is one that may become a revisit and be an original.
        """
        data, start = record.data, record.start
        if (
            not self._able
            or data is None
            or not data.startswith(LINE_VERSIONS)
            or start > _FAST_HEADER
        ):
            return None
        facts = self._read(record)
        if facts is None:
            return None
        digest, _, covers, status, _, body = facts
        head = data[start : start + record.length - len(body)]
        codings, content_type = http.codings(head), http.content_types(head)
        if len(codings) + len(content_type) > _FAST_HEADER:
            return None
        url, date, record_id, _, stated, _, _ = record.values
        if date != self._date:
            self._date, self._digits = date, digits_of_date(date)
        replay_key = xxh64_intdigest(urlkey(url) + self._digits)
        return _new(Line, (
            self._container, record.offset, record.stored, record_id[1:-1], url, date, stated,
            digest.raw, int(covers), blake3(body).digest(), len(body), status, codings,
            content_type, replay_key, "", "", header_hash(head),
        ))  # fmt: skip
