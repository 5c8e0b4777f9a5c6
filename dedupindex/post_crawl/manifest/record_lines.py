"""Read a file from its first byte to its last, and make a manifest line of each response.

A line has the reason why its record cannot be rewritten, as far as the file itself shows it. All
records get their digests, so that manifests from before and after a conversion are equal.
WARC-Block-Digest is not checked here, but before a block is dropped.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3
from xxhash import xxh64_intdigest

from dedupindex.capture import Covers, Problem
from dedupindex.digest import Digest
from dedupindex.errors import BadSource
from dedupindex.post_crawl.manifest.parquet import (
    TEXTS,
    Line,
    ManifestContainer,
    ManifestEntry,
    ParquetWriter,
    header_hash,
    lines_file,
    references_file,
)
from dedupindex.runtime.duckdb import Database, connect_one_thread, interruptible
from dedupindex.runtime.workers import Count
from dedupindex.sources.source import GROWING
from dedupindex.sources.warc_files import SourceFile
from dedupindex.timestamps import digits_of_date
from dedupindex.urlkey import unbracket, urlkey
from dedupindex.warc import http
from dedupindex.warc.arc import DOCUMENT, HEADER
from dedupindex.warc.fast_reader import read
from dedupindex.warc.gzip_members import MAGIC, Damage, Filler
from dedupindex.warc.headers import COMMON, Head
from dedupindex.warc.payload_digests import Payload
from dedupindex.warc.random_access import head_at
from dedupindex.warc.reader import Event, is_padding
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
    stated_digest,
)
from dedupindex.warc.request_pairing import FULL, RequestPairing
from dedupindex.warc.window import open_window
from dedupindex.warc.zstd_format import is_zstd

LINE_VERSIONS = (b"WARC/1.0\r\n", b"WARC/1.1\r\n")
_VERSION = re.compile(rb"WARC/1\.[01]\s", re.IGNORECASE)
_LONGEST = 1 << 18  # bytes of all texts of a line
_FAST_STATUSES = {*range(200, 300), *range(400, 600)} - {204, 206}
_FAST_HEADER = 1 << 16  # bytes of a header that the fast path reads
_CONCURRENT = COMMON.index(b"WARC-Concurrent-To")
_KINDS = (b"warcinfo", b"request", b"response", b"resource", b"metadata", b"revisit",
          b"conversion", b"continuation", HEADER, DOCUMENT)  # fmt: skip
_PADDED = "zero bytes stand where a record should: the file is left as it is"
_new = tuple.__new__


class ManifestOptions(NamedTuple):
    """Options that decide what a manifest has."""

    algorithm: str = "sha1"  # of `Line.payload`
    force: bool = False  # take it of the body as stored, whatever the stated digest is of
    skip_empty: bool = False  # leave out responses with an empty body
    host: str = ""  # of the files, if plans are made of the manifests of several hosts


class LineReader:
    def __init__(self, container: int, options: ManifestOptions) -> None:
        self._container = container
        self._algorithm, self._force = options.algorithm, options.force

    def line(self, record: Record) -> Line:
        """Return the line of a response, without `stored`; raises `BrokenRecord`."""
        url, date, record_id, _, stated_text, _, _ = record.values
        reasons = _header_reasons(record)
        try:
            url = http_url(url)
        except Refused as refused:
            url = unbracket(url)
            reasons.append(refused.reason)
        replay_key = 0
        try:
            replay_key = replay_key_of(url, checked_date(date))
        except Refused as refused:
            reasons.append(refused.reason)
        answer, body, no_answer = http_block(record)
        head = b"" if answer is None else answer.head
        coding = b"" if answer is None else answer.coding
        reasons.append(no_answer if answer is None else _answer_reason(answer))
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
        reason = not_original = next(filter(None, reasons), "")
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


def replay_key_of(url: bytes, date: bytes) -> int:
    """Return `Line.replay_key`; `date` is a checked WARC-Date."""
    return xxh64_intdigest(urlkey(url) + digits_of_date(date))


def _header_reasons(record: Record) -> list[str]:
    if record.type == DOCUMENT:
        return ["ambiguous-line"] if record.special else []
    _, _, record_id, content_type, _, _, _ = record.values
    reasons = {
        "unknown-version": _VERSION.match(record.text) is None,
        "not-exact": record.text.count(b"\n") != record.text.count(b"\r\n"),
        "not-http": not is_http_type(content_type),
        "no-record-id": not unbracket(record_id),
    }
    first = irregularity(record) if record.special else ""
    return [first, *(reason for reason, is_true in reasons.items() if is_true)]


def _answer_reason(answer: http.Response) -> str:
    status = answer.status
    if status < 200 or status in (204, 304):
        return "status"
    if 300 <= status < 400:
        return "redirect"
    return "partial" if status == 206 or answer.partial else ""


def _shortened(line: Line) -> Line:
    """Return a line of bounded size: of texts too long for any tool only the beginning is kept."""
    texts = {name: getattr(line, name) for name in TEXTS}
    if sum(map(len, texts.values())) <= _LONGEST:
        return line
    for reason in ("not_rewritable_reason", "not_original_reason"):
        texts[reason] = "too-long"
    return line._replace(**{name: text[:1024] for name, text in texts.items()})


REVISIT, REVISIT_TARGET = "revisit", "refers-to"
"""The two lines that a manifest has for each revisit, by their `Line.not_rewritable_reason`."""
DAMAGED_RECORD = "damaged-record"
"""The line that it has for a response whose header can be read and whose block cannot."""


def revisit_lines(container: int, record: Record) -> tuple[Line, Line]:
    """Return the lines of a revisit: what it refers to, and itself.

    Both have its place. Without a URL of the original, that is of the revisit's own URL.
    """
    url, date, record_id, _, digest, _, _ = record.values
    original = refers_to(record.head.fields)
    make = partial(_reference_line, container, record.offset)
    return (
        make(original.record_id, original.url or unbracket(url), original.date, digest,
             REVISIT_TARGET),
        make(unbracket(record_id), unbracket(url), date, digest, REVISIT),
    )  # fmt: skip


def damaged_line(container: int, offset: int, head: Head) -> Line:
    """Return the line of a damaged record: replay tools index its header, and may choose it.

    Nothing equals it, not even the whole record of which it is a damaged copy. So it has neither
    the digest nor the id that it states.
    """
    url, date = head.values[:2]
    digest = DAMAGED_RECORD.encode()
    return _reference_line(container, offset, b"", unbracket(url), date, digest, DAMAGED_RECORD)


def _reference_line(
    container: int, offset: int, record_id: bytes, url: bytes, date: bytes, digest: bytes, kind: str
) -> Line:
    try:
        replay_key = replay_key_of(http_url(url), checked_date(date))
    except Refused:
        replay_key = 0
    line = Line(
        container, offset, 0, record_id, url, date, digest, b"",
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
        """Return the same as `LineReader.line`, or None if only that can read the record."""
        data, start = record.data, record.start
        if not self._able or data is None or start > _FAST_HEADER:
            return None
        if not data.startswith(LINE_VERSIONS) or (facts := self._read(record)) is None:
            return None
        url, digest, _, covers, status, _, body = facts
        head = data[start : start + record.length - len(body)]
        codings, content_type = http.codings(head), http.content_types(head)
        if len(codings) + len(content_type) > _FAST_HEADER:
            return None
        _, date, record_id, _, stated, _, _ = record.values
        if date != self._date:
            self._date, self._digits = date, digits_of_date(date)
        replay_key = xxh64_intdigest(urlkey(url) + self._digits)
        return _new(Line, (
            self._container, record.offset, record.stored, record_id[1:-1], url, date, stated,
            digest.raw, int(covers), blake3(body).digest(), len(body), status, codings,
            content_type, replay_key, "", "", header_hash(head),
        ))  # fmt: skip


class ManifestTask(NamedTuple):
    number: int
    file: SourceFile
    top: Path
    options: ManifestOptions


class FileRead(NamedTuple):
    """The result of reading a file; without an entry the file is left out."""

    entry: ManifestEntry | None
    problems: list[Problem]


class Scan:
    """A WARC or ARC file, plain or compressed.

    When `lines` has ended, `records` has the counts of records by type, `problems` the offset and
    message of each damage, and `changed` says whether the file changed meanwhile, so that nothing
    of it can be used. A file whose name ends in ``.open``, which a crawler writes, is not read.
    """

    def __init__(
        self, path: str, container: int, options: ManifestOptions,
        on_reference: Callable[[Iterable[Line]], None] = lambda lines: None,
    ) -> None:  # fmt: skip
        """Open the file; raises `BadSource`.

        `on_reference` gets the lines of each revisit and each damaged record.
        """
        self.records: Counter[str] = Counter()
        self.remarks: Counter[str] = Counter()  # see `record.REMARKS`
        self.problems: list[tuple[int, str]] = []
        self.content_hash = ""
        self.changed = path.endswith(".open")
        self.damage = -1  # offset of the first, -1 if there is none
        self._window = open_window(path, path)
        self.size = self._window.size
        self.mark = self._window.version
        start = self._window.read(0, 1 << 16).lstrip(b"\0")
        self._packed = is_zstd(start) or start.startswith(MAGIC)
        self._reader, self._fast = LineReader(container, options), FastLines(container, options)
        self._skip_empty = options.skip_empty
        self._container, self._on_reference = container, on_reference
        not_get = partial(_with_reason, reason="method")
        self._pairing: RequestPairing[Line] = RequestPairing(lambda line: line.record_id, not_get)
        self._pending: tuple[Line, Record] | None = None  # until its end is known

    @property
    def position(self) -> int:
        """Bytes of the file read so far."""
        return self._window.hashed

    def close(self) -> None:
        self._window.close()

    def lines(self) -> Iterator[list[Line]]:
        """Yield all lines in batches, in order of offset; raises `BadSource`."""
        window, pairing, fast = self._window, self._pairing, self._fast
        if not self.changed:
            responses = requests = 0
            for event in read(window):
                if self._pending is not None:
                    self._finish_pending(event)
                if event is None:
                    requests += 1
                elif isinstance(event, Sound) and (line := fast.line(event)) is not None:
                    responses += 1
                    pairing.add(line, event.values[_CONCURRENT])
                    if len(pairing.items) >= FULL:
                        yield pairing.pop_settled()
                else:
                    self._take(event)
            self.records += Counter(request=requests, response=responses)
            self._finish_pending(None)
            yield pairing.pop_settled(everything=True)
            self.content_hash = window.content_hash()
            self.changed = window.changed()
        if not self.size:
            self.problems.append((0, "is empty: it holds no record"))
        if self.changed:
            self.problems.append((self.size, GROWING))

    def _take(self, event: Event) -> None:
        if isinstance(event, Damage):
            self._damage(event.offset, event.message)
            self.records["damaged"] += event.record
            head = head_at(self._window.read, event.offset)
            if head is not None and head.type == b"response":
                self._on_reference([damaged_line(self._container, event.offset, head)])
        elif isinstance(event, Filler):
            if is_padding(self._window, event):
                self._damage(event.offset, _PADDED)
        else:
            try:
                self._record(event)
            except BrokenRecord:
                return  # the reader accounts for it next, as damage
            if event.remark:
                self.remarks[event.remark] += 1
            known = event.type in _KINDS
            self.records[event.type.decode() if known else "unknown"] += 1

    def _record(self, record: Record) -> None:
        if record.type in (b"response", DOCUMENT):
            self._pending = self._reader.line(record), record
        elif record.type == b"request":
            self._pairing.request(record)
        elif record.type == b"revisit":
            self._on_reference(revisit_lines(self._container, record))
        record.finish()

    def _finish_pending(self, event: Event | None) -> None:
        """Add the pending line, whose record ends at `event`."""
        if self._pending is None:
            return
        (line, record), self._pending = self._pending, None
        if self._skip_empty and line.not_original_reason == "empty":
            return
        shared = record.shared or (
            self._packed and isinstance(event, Record | Damage) and event.offset == record.offset
        )
        if shared:
            line = _with_reason(line, "shared-member")
        elif record.remark or self._has_prefix(record):
            line = _with_reason(line, "not-exact")
        line = line._replace(stored=record.stored)
        self._pairing.add(line, record.values[_CONCURRENT])

    def _has_prefix(self, record: Record) -> bool:
        """Whether there are bytes before the record in its member."""
        begin = 0 if self._packed else record.offset
        return record.end not in (-1, begin + record.start + record.length + 4)

    def _damage(self, offset: int, message: str) -> None:
        if self.damage < 0:
            self.damage = offset
        self.problems.append((offset, message))


def _with_reason(line: Line, reason: str) -> Line:
    return line._replace(
        not_rewritable_reason=line.not_rewritable_reason or reason,
        not_original_reason=line.not_original_reason or reason,
    )


def read_container(task: ManifestTask, count: Count) -> FileRead:
    """Read a file and write its lines; they are on disk when this returns."""
    number, file = task.number, task.file
    writer = ParquetWriter(lines_file(task.top, number))
    references = ParquetWriter(references_file(task.top, number))
    try:
        with (
            closing(Scan(file.path, number, task.options, references.add)) as scan,
            interruptible(),
        ):
            position = lines = 0
            for batch in scan.lines():
                writer.add(batch)
                count(scan.position - position, writer.lines - lines)
                position, lines = scan.position, writer.lines
            problems = [Problem(file.path, *problem) for problem in scan.problems]
            if scan.changed:
                return FileRead(None, problems)
            if references.lines:
                references.finish(_database())
            writer.finish(_database(), damage=scan.damage)
            container = ManifestContainer(
                number,
                file.root,
                file.name,
                scan.size,
                *scan.mark,
                scan.content_hash,
                task.options.host,
            )
            counts = lines, dict(scan.records), scan.problems, dict(scan.remarks)
            return FileRead(ManifestEntry(container, *counts), problems)
    except BadSource as error:
        return FileRead(None, [Problem(file.path, -1, str(error))])
    finally:
        references.drop()
        writer.drop()


@cache
def _database() -> Database:
    return connect_one_thread()


def close_database() -> None:
    """Close the database of this process, which cannot fork while that is open."""
    if _database.cache_info().currsize:
        _database().close()
        _database.cache_clear()
