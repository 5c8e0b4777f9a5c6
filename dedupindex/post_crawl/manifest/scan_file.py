"""Read one file from its first byte to its last, and write its lines to the manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import NamedTuple

from dedupindex.capture import Problem
from dedupindex.errors import BadSource
from dedupindex.post_crawl.manifest.lines import Line, ManifestContainer
from dedupindex.post_crawl.manifest.parquet import (
    ManifestEntry,
    ParquetWriter,
    lines_file,
    references_file,
)
from dedupindex.post_crawl.manifest.record_lines import (
    FastLines,
    LineReader,
    ManifestOptions,
    revisit_lines,
)
from dedupindex.runtime.duckdb import Database, one_thread
from dedupindex.runtime.workers import Count
from dedupindex.sources.source import GROWING
from dedupindex.sources.warc_files import SourceFile
from dedupindex.warc.arc import DOCUMENT, HEADER
from dedupindex.warc.fast_reader import read
from dedupindex.warc.gzip_members import MAGIC, Damage, Filler
from dedupindex.warc.headers import COMMON
from dedupindex.warc.reader import Event
from dedupindex.warc.record import BrokenRecord, Record, Sound
from dedupindex.warc.request_pairing import FULL, RequestPairing
from dedupindex.warc.window import open_window

_CONCURRENT = COMMON.index(b"WARC-Concurrent-To")
_KINDS = (b"warcinfo", b"request", b"response", b"resource", b"metadata", b"revisit",
          b"conversion", b"continuation", HEADER, DOCUMENT)  # fmt: skip
_PADDED = "zero bytes stand where a record should: the file is left as it is"


class ManifestTask(NamedTuple):
    """One file to read."""

    number: int
    file: SourceFile
    top: Path
    options: ManifestOptions


class FileRead(NamedTuple):
    """The result of reading a file; without an entry the file is left out."""

    entry: ManifestEntry | None
    problems: list[Problem]


class Scan:
    """A WARC or ARC file, plain or gzipped.

    When `lines` has ended, `records` has the counts of records by type, `problems` the offset and
    message of each damage, and `changed` says whether the file changed meanwhile, so that nothing
    of it can be used. A file whose name ends in ``.open``, which a crawler writes, is not read.
    """

    def __init__(
        self, path: str, container: int, options: ManifestOptions,
        on_revisit: Callable[[Iterable[Line]], None] = lambda lines: None,
    ) -> None:  # fmt: skip
        """Open the file; raises `BadSource`. `on_revisit` gets the lines of each revisit."""
        self.records: Counter[str] = Counter()
        self.remarks: Counter[str] = Counter()  # see `record.REMARKS`
        self.problems: list[tuple[int, str]] = []
        self.content_hash = ""
        self.changed = path.endswith(".open")
        self.damaged = False
        self._window = open_window(path, path)
        self.size = self._window.size
        self.mark = self._window.version
        start = self._window.read(0, 1 << 16).lstrip(b"\0")
        self._gzip = start.startswith(MAGIC)
        self._reader, self._fast = LineReader(container, options), FastLines(container, options)
        self._skip_empty = options.skip_empty
        self._container, self._on_revisit = container, on_revisit
        self._pairing: RequestPairing[Line] = RequestPairing(lambda line: line.record_id, _not_get)
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
        elif isinstance(event, Filler):
            if self._window.read(event.offset, 1) == b"\0":
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
            self._on_revisit(revisit_lines(self._container, record))
        record.finish()

    def _finish_pending(self, event: Event | None) -> None:
        """Add the pending line, whose record ends at `event`."""
        if self._pending is None:
            return
        (line, record), self._pending = self._pending, None
        if self._skip_empty and line.not_original_reason == "empty":
            return
        shared = record.shared or (
            self._gzip and isinstance(event, Record | Damage) and event.offset == record.offset
        )
        if shared:
            line = _with_reason(line, "shared-member")
        elif record.remark or self._has_prefix(record):
            line = _with_reason(line, "not-exact")
        line = line._replace(stored=record.stored)
        self._pairing.add(line, record.values[_CONCURRENT])

    def _has_prefix(self, record: Record) -> bool:
        """Whether there are bytes before the record in its member."""
        begin = 0 if self._gzip else record.offset
        return record.end not in (-1, begin + record.start + record.length + 4)

    def _damage(self, offset: int, message: str) -> None:
        self.damaged = True
        self.problems.append((offset, message))


def _with_reason(line: Line, reason: str) -> Line:
    return line._replace(
        not_rewritable_reason=line.not_rewritable_reason or reason,
        not_original_reason=line.not_original_reason or reason,
    )


def _not_get(line: Line) -> Line:
    """Return the line of a response to another request than GET."""
    return _with_reason(line, "method")


def read_container(task: ManifestTask, count: Count) -> FileRead:
    """Read a file and write its lines; they are on disk when this returns."""
    path = task.file.path
    references = ParquetWriter(references_file(task.top, task.number))
    try:
        with closing(Scan(path, task.number, task.options, references.add)) as scan:
            return _write_lines(task, scan, references, count)
    except BadSource as error:
        return FileRead(None, [Problem(path, -1, str(error))])
    finally:
        references.drop()


def _write_lines(
    task: ManifestTask, scan: Scan, references: ParquetWriter, count: Count
) -> FileRead:
    file = task.file
    writer = ParquetWriter(lines_file(task.top, task.number))
    try:
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
        writer.finish(_database(), reason="damaged" if scan.damaged else "")
    finally:
        writer.drop()
    container = ManifestContainer(
        task.number, file.root, file.name, scan.size, *scan.mark, scan.content_hash
    )
    entry = ManifestEntry(
        container, writer.lines, dict(scan.records), scan.problems, dict(scan.remarks)
    )
    return FileRead(entry, problems)


@cache
def _database() -> Database:
    """Return the database of this process."""
    return one_thread()
