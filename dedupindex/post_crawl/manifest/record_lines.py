"""Response records to lines, each with the reason why it is no revisit or no original, if any.

Nothing is left unread: what can be neither has its digests too, so that manifests from before and
after a conversion say the same. Every clause here can be told from one record; those that need
another are for the stages behind. WARC-Block-Digest is checked by whoever drops a block.
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
_LONGEST = 1 << 18  # bytes of all values of a line


class ManifestOptions(NamedTuple):
    """What a manifest is to hold."""

    algorithm: str = "sha1"  # of `Line.payload`
    force: bool = False  # take it of the body as stored, whatever the stated digest is of
    skip_empty: bool = False  # leave responses with nothing in their body out


class _Answer(NamedTuple):
    """What is stored of an HTTP response."""

    body: Iterable[bytes | memoryview]
    reason: str  # why it is none
    status: int = 0
    coding: bytes = b""  # Transfer-Encoding, lower case
    codings: bytes = b"\n"
    content_type: bytes = b""
    partial: bool = False
    header: bytes = b""  # see `Line`


class Judge:
    """Makes the lines of one container."""

    def __init__(self, container: int, options: ManifestOptions) -> None:
        self._container = container
        self._algorithm, self._force = options.algorithm, options.force
        self._entities = True  # whether the last digest of a chunked body was of its entity

    def line(self, record: Record) -> Line:
        """The line of any response record; raises `BrokenRecord`.

        `Line.stored` is not known yet, nor whether the record is framed to the letter.
        """
        url, date, record_id, _, stated_text, _, _ = record.values
        reasons = list(_of_header(record))
        try:
            url = http_url(url)
        except Refused as refused:
            url = unbracket(url)
            reasons.append(refused.reason)
        moment = 0
        try:
            moment = moment_of(url, checked_date(date))
        except Refused as refused:
            reasons.append(refused.reason)
        answer = _answer(record)
        reasons += _of_answer(answer)
        stated = None
        try:
            stated = stated_digest(stated_text)[0]
            if stated is None and record.type != DOCUMENT:
                reasons.append("chunked-without-digest" if answer.coding else "no-digest")
        except Refused as refused:
            reasons.append(refused.reason)
        covers, payload, strong, length, empty, cut = self._hashed(answer, stated)
        if empty and not answer.reason:
            reasons.insert(0, "empty")
        if covers is Covers.UNKNOWN:
            reasons.append("cut-digest" if cut else "digest-mismatch")
        stay = unfit = reasons[0] if reasons else ""
        if record.type == DOCUMENT:
            stay, unfit = (
                "arc",
                unfit or ("chunked-without-digest" if answer.coding else "no-digest"),
            )
        line = Line(
            self._container, record.offset, 0, unbracket(record_id), url, date, stated_text,
            payload, covers, strong, length, answer.status, answer.codings,
            answer.content_type, moment, stay, unfit, answer.header,
        )  # fmt: skip
        return short(line)

    def _hashed(
        self, answer: _Answer, stated: Digest | None
    ) -> tuple[Covers, bytes, bytes, int, bool, bool]:
        """What the stated digest covers, our digests and the length of the body, read once.

        Then whether the body is empty, and whether the stated digest was cut at a zero byte.
        """
        algorithm = self._algorithm
        first = algorithm if stated is None else stated.algorithm
        payload, strong = Payload(first, (algorithm,), answer.coding), blake3()
        for piece in answer.body:
            payload.update(piece)
            strong.update(piece)
        verdict = payload.match(stated)
        covers, digests = verdict or (Covers.UNKNOWN, [])
        if self._force or not digests:
            digests = payload.stored.digests()
        cut = verdict is None and payload.was_cut(stated)
        length = payload.stored.length
        return covers, digests[-1].raw, strong.digest(), length, payload.empty, cut


def moment_of(url: bytes, date: bytes) -> int:
    """What replay tools look a capture up by, as one number; `date` is a checked WARC-Date."""
    return xxh64_intdigest(urlkey(url) + digits_of_date(date))


def _of_header(record: Record) -> Iterator[str]:
    """What the header of a record says against it."""
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


def _answer(record: Record) -> _Answer:
    """The HTTP response in the block of a record."""
    answer, body, reason = http_block(record)
    if answer is None:
        return _Answer(body, reason)
    head = answer.head
    return _Answer(
        body, "", answer.status, answer.coding, http.codings(head), http.content_types(head),
        answer.partial, header_hash(head),
    )  # fmt: skip


def _of_answer(answer: _Answer) -> Iterator[str]:
    """What the HTTP response says against its record."""
    status = answer.status
    if answer.reason:
        yield answer.reason
    elif status < 200 or status in (204, 304):
        yield "status"
    elif 300 <= status < 400:
        yield "redirect"
    elif status == 206 or answer.partial:
        yield "partial"


def short(line: Line) -> Line:
    """A line that can be held: of values that no tool could use only the beginning is kept."""
    texts = line.record_id, line.url, line.date, line.digest, line.coding, line.content_type
    if sum(map(len, texts)) <= _LONGEST:
        return line
    record_id, url, date, digest, coding, content_type = (text[:1024] for text in texts)
    return line._replace(
        record_id=record_id, url=url, date=date, digest=digest, coding=coding,
        content_type=content_type, stay="too-long", unfit="too-long",
    )  # fmt: skip


# A revisit that was there before, and what it refers to: that record must stay what it is.

REVISIT, STANDING = "revisit", "standing"  # what is said of the record meant, and of its own


def reference(container: int, record: Record) -> Line:
    """A line with the place of a revisit, and the record id, URL, date, digest of what it means.

    Empty is what it does not say; the URL is then its own, the moment 0. Its payload is unknown.
    """
    original = refers_to(record.head.fields)
    url = original.url or unbracket(record.values[0])
    return _line(container, record, original.record_id, url, original.date, REVISIT)


def standing(container: int, record: Record) -> Line:
    """A line with the place of a revisit, and its own record id, URL, date and digest."""
    url, date, record_id = record.values[:3]
    return _line(container, record, unbracket(record_id), unbracket(url), date, STANDING)


def _line(
    container: int, record: Record, record_id: bytes, url: bytes, date: bytes, what: str
) -> Line:
    try:
        moment = moment_of(http_url(url), checked_date(date))
    except Refused:
        moment = 0
    line = Line(
        container, record.offset, 0, record_id, url, date, record.values[4], b"",
        int(Covers.UNKNOWN), b"", 0, 0, b"\n", b"", moment, what, what,
    )  # fmt: skip
    return short(line)._replace(stay=what, unfit=what)


# Fast path: the lines of usual responses, see `record_facts.FastFacts`.

_STATUSES = {*range(200, 300), *range(400, 600)} - {204, 206}
_new = tuple.__new__
_LONG = 1 << 16  # bytes of a header that has no surprises


class FastLines:
    """Makes the lines of one container."""

    def __init__(self, container: int, options: ManifestOptions) -> None:
        self._container = container
        self._able = not options.force
        self._date = self._digits = b""  # the last date, and its 14 digits
        self._read = FastFacts(_STATUSES, options.algorithm).read

    def line(self, record: Sound) -> Line | None:
        """Return the line of a response; None if `Judge.line` must read it, which returns the same.

        The record is of WARC 1.0 or 1.1 and of a status that has a body: it may become a revisit,
        and be an original.
        """
        data, start = record.data, record.start
        if not self._able or data is None or not data.startswith(LINE_VERSIONS) or start > _LONG:
            return None
        facts = self._read(record)
        if facts is None:
            return None
        digest, _, covers, status, _, body = facts
        head = data[start : start + record.length - len(body)]
        codings, content_type = http.codings(head), http.content_types(head)
        if len(codings) + len(content_type) > _LONG:
            return None
        url, date, record_id, _, stated, _, _ = record.values
        if date != self._date:
            self._date, self._digits = date, digits_of_date(date)
        moment = xxh64_intdigest(urlkey(url) + self._digits)
        return _new(Line, (
            self._container, record.offset, record.stored, record_id[1:-1], url, date, stated,
            digest.raw, int(covers), blake3(body).digest(), len(body), status, codings,
            content_type, moment, "", "", header_hash(head),
        ))  # fmt: skip
