"""Copy records, with the originals that their revisits refer to, to one file or to a directory.

Records are copied as the bytes they are. The new files are read by `verify` before they get their
names. All records of the sources are listed in an SQLite file in the temporary directory, some
hundred bytes each, so memory does not grow with the collection.
"""

from __future__ import annotations

import marshal
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import chain, groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, NamedTuple

from dedupindex.capture import Problem
from dedupindex.counts import OnProgress, ProgressUpdate, silent
from dedupindex.digest import EMPTY, is_cut
from dedupindex.errors import BadInput, BadSource, DedupError
from dedupindex.object_store import PartialCopy, is_remote
from dedupindex.runtime.atomic_replace import (
    PART_NAME,
    FileSink,
    check_free_space,
    create_file,
    open_for_reading,
    open_part,
    part_path,
    remove_stale_parts,
)
from dedupindex.runtime.scratch_database import open_scratch
from dedupindex.runtime.workers import side_by_side
from dedupindex.sources.warc_files import SourceFile, find, nothing_found
from dedupindex.urlkey import host_of, is_at, unbracket
from dedupindex.verify.collection import Collection
from dedupindex.verify.issues import REMARK, Finding
from dedupindex.warc.arc import DOCUMENT, HEADER
from dedupindex.warc.gzip_members import Damage, zeros_end
from dedupindex.warc.random_access import read_range
from dedupindex.warc.reader import read
from dedupindex.warc.record import MISSING, BrokenRecord, Record
from dedupindex.warc.record_facts import (
    Refused,
    refers_to,
    says_not_modified,
    stated_digest,
    timestamp14,
)
from dedupindex.warc.window import open_window
from dedupindex.warc.zstd_format import (
    Dictionaries,
    UnreadableFrame,
    dictionary_end,
    frame_pieces,
    is_zstd,
)

_FULL = frozenset((b"response", b"resource", b"conversion", DOCUMENT))  # possible originals
_INFO = frozenset((b"warcinfo", HEADER))
_BATCH = 1000  # records written to a spool file at once
_MAX_CANDIDATES = 64  # records of one URL and second, or of one digest, that are looked at
_SUFFIX = ".warc.gz"
_PIECE = 1 << 20  # bytes
_PART = re.compile(r"(?<![^/\s])" + PART_NAME.pattern + r"\b")
_LEVEL = 6  # of deflate, for records of uncompressed files
_TABLE = """
CREATE TABLE records (
  file INTEGER, offset INTEGER, stored INTEGER, full INTEGER, info INTEGER, chosen INTEGER,
  capture BLOB, id BLOB, digest BLOB, url BLOB,
  to_capture BLOB, to_id BLOB, to_url BLOB, modified INTEGER, open INTEGER)
"""
# A row without its file. The first record of a gzip member has `stored` of all of the member;
# `digest` is as written; `modified` is false for revisits of the profile server-not-modified;
# `open` says that the line ends behind the record are missing.
_Row = tuple[object, ...]


class SubsetFilter(NamedTuple):
    """Which records are wanted; an empty condition accepts all."""

    urls: tuple[bytes, ...] = ()  # prefixes
    hosts: tuple[bytes, ...] = ()  # with all hosts below them
    begin: bytes = b""  # 14 digits, inclusive
    end: bytes = b""  # likewise

    def accepts(self, url: bytes, timestamp: bytes) -> bool:
        """Whether a record of this URL and 14-digit timestamp is wanted."""
        if (self.begin and timestamp < self.begin) or (self.end and timestamp > self.end):
            return False
        if (not self.urls and not self.hosts) or url.startswith(self.urls):
            return True
        host = host_of(url) if self.hosts else b""
        return any(is_at(host, name) for name in self.hosts)


@dataclass
class SubsetReport:
    """What a subset has, and what is wrong with it."""

    files: int = 0  # written
    records: int = 0  # wanted, and all that share a gzip member with them
    revisits: int = 0  # among these and among the records that they refer to
    originals: int = 0  # records that are there for revisits alone
    dangling: int = 0  # revisits without an original
    bytes: int = 0
    findings: Counter[str] = field(default_factory=Counter)  # of `verify`, by reason
    problems: list[Problem] = field(default_factory=list)  # of the sources

    def as_json(self) -> dict[str, Any]:
        numbers = {name: value for name, value in vars(self).items() if name != "problems"}
        return {**numbers, "findings": dict(sorted(self.findings.items()))}


def is_single(name: str) -> bool:
    """Return whether a subset of this name is one file, and not a directory."""
    return name.lower().endswith(_SUFFIX)


def export(
    sources: Sequence[str], originals: Sequence[str], wanted: SubsetFilter, out: Path,
    processes: int = 1, on_finding: Callable[[Finding], None] = lambda finding: None,
    on_progress: OnProgress = silent,
) -> SubsetReport:  # fmt: skip
    """Write the wanted records of `sources`, and the records that their revisits refer to.

    These may also be in `originals`. `on_finding` gets what is wrong with the subset, remarks left
    out. Raises `BadSource`, `DedupError`, and `BadInput` if a file of the subset exists already.
    """
    single = is_single(out.name)
    if single and os.path.lexists(out):
        raise BadInput(f"{out} exists already")
    found, others = find(sources), find(originals)
    if not found.files and not found.problems:
        raise nothing_found(sources)
    paths = {file.path for file in found.files}
    files = [*found.files, *(file for file in others.files if file.path not in paths)]
    report = SubsetReport(problems=found.problems + others.problems)
    with TemporaryDirectory(prefix="dedupindex-export-") as name:
        temporary = Path(name)
        tasks = [
            _ScanTask(file, temporary / str(number), wanted if number < len(paths) else None)
            for number, file in enumerate(files)
        ]
        with closing(_RecordTable(temporary / "records.sqlite", report)) as table:
            done, seen, total = dict[Path, _SourceScan](), 0, sum(file.size for file in files)
            for scan in side_by_side(_scan, None, tasks, processes):
                done[scan.spool] = scan
                seen += files[int(scan.spool.name)].size
                on_progress(ProgressUpdate("reading", seen, total))
            scans = [done[task.spool] for task in tasks]
            for number, scan in enumerate(scans):
                table.add(number, _spooled(scan.spool))
                scan.spool.unlink()
                path = files[number].path
                report.problems += [Problem(path, *problem) for problem in scan.problems]
            table.choose_referenced()
            if report.records:
                sources_of = [
                    _SubsetSource(file, scan, out if single else out / file.name, single)
                    for file, scan in zip(files, scans, strict=True)
                ]
                _write(table, sources_of, report, on_finding, on_progress)
    return report


# Reading the sources.


class _SourceScan(NamedTuple):
    """The result of reading a source: its rows are in `spool`."""

    spool: Path
    arc: bool
    compression: str  # "gzip", "zstd" or ""
    problems: list[tuple[int, str]]  # offset (-1: the whole file) and message


class _ScanTask(NamedTuple):
    file: SourceFile
    spool: Path
    filter: SubsetFilter | None  # None: the file may only provide originals


def _scan(_: None, task: _ScanTask) -> _SourceScan:
    """Read a source to its end; no rows if it cannot be read, or changes meanwhile."""
    path, problems = task.file.path, list[tuple[int, str]]()
    arc, compression = False, ""
    try:
        with closing(open_window(path, path)) as window, open(task.spool, "wb") as spool:
            start = window.read(zeros_end(window, 0), 4)  # which a reader skips
            compression = "gzip" if start[:2] == b"\x1f\x8b" else "zstd" if is_zstd(start) else ""
            batch: list[_Row] = []
            last: Record | None = None  # its size is known when the reader has gone on
            for event in chain(read(window), [None]):
                if last is not None:
                    with suppress(BrokenRecord):  # which is left out
                        last.finish()
                        batch += _row(last, task.filter)
                    last = None
                if len(batch) >= _BATCH:
                    marshal.dump(batch, spool)
                    batch.clear()
                if isinstance(event, Record):
                    arc = arc or event.type in (HEADER, DOCUMENT)
                    last = event
                elif isinstance(event, Damage):
                    problems.append((event.offset, event.message))
            marshal.dump(batch, spool)
            if window.changed():
                raise BadSource("it was changed while it was read, and is left out")
    except BadSource as error:
        task.spool.write_bytes(b"")
        problems.append((-1, str(error)))
    return _SourceScan(task.spool, arc, compression, problems)


def _row(record: Record, wanted: SubsetFilter | None) -> list[_Row]:
    """Return the row of a record, if the record is wanted or may be needed by another."""
    raw_url, date, record_id, _, digest, _, _ = record.values
    url, timestamp = unbracket(raw_url), timestamp14(date)
    is_info, is_full = record.type in _INFO, record.type in _FULL
    chosen = wanted is not None and not is_info and url != b"" and wanted.accepts(url, timestamp)
    if not (chosen or is_full or is_info or record.type == b"revisit"):
        return []
    reference: _Row = (None, None, None, None)
    if record.type == b"revisit":
        original = refers_to(record.head.fields)
        to_second = timestamp14(original.date)
        to_capture = _capture_key(to_second, original.url or url) if to_second else b""
        modified = not says_not_modified(record.head.fields)
        reference = (to_capture, original.record_id, original.url, modified)
    capture = _capture_key(timestamp, url)
    identifiers = (capture, unbracket(record_id) or None, digest or None, url)
    kind = (is_full, is_info, int(chosen))
    is_open = record.remark == MISSING
    return [(record.offset, record.stored, *kind, *identifiers, *reference, is_open)]


def _capture_key(timestamp: bytes, url: bytes) -> bytes:
    return blake2b(timestamp + b" " + url, digest_size=16).digest()


def _spooled(spool: Path) -> Iterator[_Row]:
    with open(spool, "rb") as stream:
        while stream.peek(1):
            yield from marshal.load(stream)


# Choosing the records.


class _RecordSpan(NamedTuple):
    """Bytes of a file to copy: a record, or the gzip member that holds it."""

    file: int
    offset: int
    stored: int
    open: bool  # the line ends behind the record are missing


class _RecordTable:
    """The records of all sources; counts in the report what is chosen.

    Column `chosen` is 0 for what is not copied, 1 for what was wanted, 2 for originals whose own
    reference is yet to be followed, 3 for other records that are copied.
    """

    def __init__(self, path: Path, report: SubsetReport) -> None:
        self._report = report
        self._database = open_scratch(path)
        self._database.execute(_TABLE)

    def close(self) -> None:
        self._database.close()

    def add(self, file: int, rows: Iterable[_Row]) -> None:
        insert = f"INSERT INTO records VALUES ({file}, {', '.join('?' * 14)})"
        self._database.executemany(insert, rows)

    def choose_referenced(self) -> None:
        """Choose what the chosen records refer to, and the warcinfo records of both."""
        execute = self._database.execute
        for column in ("capture", "id", "digest"):
            execute(f"CREATE INDEX by_{column} ON records ({column})")
        execute("CREATE INDEX by_place ON records (file, offset)")
        # A gzip member is copied whole: choose all of its records.
        execute(
            "UPDATE records SET chosen = 1 WHERE (file, offset) IN "
            "(SELECT file, offset FROM records WHERE chosen)"
        )
        self._report.records = execute("SELECT count(*) FROM records WHERE chosen").fetchone()[0]
        query = "SELECT rowid FROM records WHERE chosen = ? AND to_id IS NOT NULL"
        revisits = execute(query, (1,)).fetchall()
        while True:
            for (number,) in revisits:
                self._choose_original(number)
            execute(
                "UPDATE records SET chosen = 2 WHERE NOT chosen AND rowid IN (SELECT (SELECT "
                "info.rowid FROM records info WHERE info.file = one.file AND info.offset <= "
                "one.offset AND info.info ORDER BY info.offset DESC LIMIT 1) FROM records one "
                "WHERE one.chosen IN (1, 2))"
            )
            execute(
                "UPDATE records SET chosen = 2 WHERE NOT chosen AND (file, offset) IN "
                "(SELECT file, offset FROM records WHERE chosen = 2)"
            )
            revisits = execute(query, (2,)).fetchall()
            execute("UPDATE records SET chosen = 3 WHERE chosen = 2")
            if not revisits:
                break

    def spans(self) -> Iterator[_RecordSpan]:
        """Yield what is to be copied, by file and offset."""
        query = (
            "SELECT file, offset, max(stored), max(open) FROM records WHERE chosen "
            "GROUP BY file, offset ORDER BY file, offset"
        )
        for row in self._database.execute(query):
            yield _RecordSpan(*row)

    def _choose_original(self, revisit: int) -> None:
        query = "SELECT digest, url, to_capture, to_id, to_url, modified FROM records "
        row = self._database.execute(query + "WHERE rowid = ?", (revisit,)).fetchone()
        digest, url, to_capture, to_id, to_url, modified = row
        if not modified and not to_capture and not to_id:
            return  # it can be replayed alone
        self._report.revisits += 1
        digest = digest if modified else None
        found = self._find("capture", to_capture, digest, revisit) if to_capture else 0
        found = found or (self._find("id", to_id, digest, revisit) if to_id else 0)
        if not found and digest and _identifies_payload(digest):
            found = self._find("digest", digest, digest, revisit, to_url or url)
            found = found or self._find("digest", digest, digest, revisit)
        if not found:
            self._report.dangling += 1
            return
        query = "UPDATE records SET chosen = 2 WHERE rowid = ? AND NOT chosen"
        self._report.originals += self._database.execute(query, (found,)).rowcount

    def _find(
        self, column: str, key: bytes, digest: bytes | None, revisit: int, url: bytes | None = None
    ) -> int:
        """The best record of a key, digest and URL, full and chosen if possible; 0: none.

        Only a full record has a payload; a revisit may lead to one, if it is named.
        """
        kind = "full" if column == "digest" else "(full OR to_id IS NOT NULL)"
        query = (
            f"SELECT rowid, digest, url FROM records WHERE {column} = ? AND rowid != ? AND {kind} "
            f"ORDER BY full DESC, chosen DESC, rowid LIMIT {_MAX_CANDIDATES}"
        )
        for number, its_digest, its_url in self._database.execute(query, (key, revisit)):
            same = digest is None or its_digest is None or its_digest == digest
            if same and (url is None or its_url == url):
                return int(number)
        return 0


def _identifies_payload(digest: bytes) -> bool:
    """Whether a digest is neither cut nor that of the empty payload."""
    try:
        stated = stated_digest(digest)[0]
    except Refused:
        return True
    return stated is not None and stated not in EMPTY and not is_cut(stated.raw)


# Writing the subset.


class _SubsetSource(NamedTuple):
    file: SourceFile
    scan: _SourceScan
    target: Path
    single: bool  # all go to one WARC file


def _write(
    table: _RecordTable, sources: list[_SubsetSource], report: SubsetReport,
    on_finding: Callable[[Finding], None], on_progress: OnProgress,
) -> None:  # fmt: skip
    """Write and verify the files of the subset, then give them their names."""
    targets: dict[Path, _SubsetSource] = {}  # and the first of their sources
    needed = 0  # bytes
    for span in table.spans():
        source = sources[span.file]
        path = source.target
        if source.single and source.scan.arc:
            raise BadInput(
                f"{source.file.path} is an ARC file, which does not go into {path}: "
                "give -o a directory instead of a .warc.gz, or convert the ARC files first "
                "(bin/convert)"
            )
        if targets.setdefault(path, source) is not source and not source.single:
            raise BadInput(f"two files would both become {path}: export them into two directories")
        needed += span.stored
    for path in targets:
        if os.path.lexists(path):
            raise BadInput(f"{path} exists already")
    target = next(iter(targets)).parent
    check_free_space(target, needed, "select less (--url, --host, --from, --to)")
    for path in targets:
        path.parent.mkdir(parents=True, exist_ok=True)
    remove_stale_parts(targets)  # remove what interrupted runs left
    with ExitStack() as parts:
        for path in targets:
            parts.callback(part_path(path).unlink, missing_ok=True)
        _copy(table, sources, needed, on_progress)
        collection = Collection([part_path(path) for path in targets], on_progress=on_progress)
        _verify(collection, report, on_finding)
        for path in targets:
            report.bytes += part_path(path).stat().st_size
            with open_for_reading(part_path(path)) as whole:
                try:
                    create_file(part_path(path), whole, path)
                except FileExistsError as error:  # written by another process
                    raise BadInput(f"{path} exists already") from error
            report.files += 1


def _copy(
    table: _RecordTable, sources: list[_SubsetSource], needed: int, on_progress: OnProgress
) -> None:
    """Copy the chosen records, `needed` bytes, file by file, and force them to disk."""
    copied = 0
    for target, spans_of_target in groupby(table.spans(), lambda span: sources[span.file].target):
        with open_part(part_path(target)) as part:
            sink = FileSink(part)
            for number, spans in groupby(spans_of_target, lambda span: span.file):
                file, scan, _, single = sources[number]
                line_ends = b"" if scan.compression else b"\n" if scan.arc else b"\r\n\r\n"
                with _open_unchanged(file) as (source, need):
                    read_source, dictionaries = partial(read_range, source), None
                    need(0, 0)
                    if scan.compression == "zstd":
                        dictionaries = Dictionaries.read(read_source)
                        if not single:
                            sink.copy(source, 0, dictionary_end(read_source))
                    for span in spans:
                        need(span.offset, span.stored)
                        copied += span.stored
                        on_progress(ProgressUpdate("copying", copied, needed))
                        if single and scan.compression != "gzip":
                            pieces = _pieces(source, file.path, span, dictionaries)
                            _compress(pieces, sink)
                        else:
                            sink.copy(source, span.offset, span.stored)
                            if span.open:  # so that every reader finds the next record
                                sink.write(line_ends)
            os.fsync(part.fileno())


@contextmanager
def _open_unchanged(file: SourceFile) -> Iterator[tuple[BinaryIO, Callable[[int, int], None]]]:
    """Open a source; yields also what is called before a range is read: of an object it reads it.

    Raises `DedupError` if it is not the file that was read before, and `BadSource`.
    """
    with ExitStack() as stack:
        if is_remote(file.path):
            copy = stack.enter_context(closing(PartialCopy(file.path)))
            source, need, now = copy.file, copy.need, (copy.size, copy.version, 0)
        else:
            source = stack.enter_context(open_for_reading(file.path))
            status = os.fstat(source.fileno())
            need, now = _need_nothing, (status.st_size, status.st_mtime_ns, status.st_ino)
        if now != (file.size, file.mtime_ns, file.inode):
            raise DedupError(f"{file.path} was changed since it was read; nothing was written")
        yield source, need


def _need_nothing(offset: int, count: int) -> None:
    """A range of a file of this machine can be read."""


def _pieces(
    source: BinaryIO, name: str, span: _RecordSpan, dictionaries: Dictionaries | None
) -> Iterator[bytes]:
    """Yield records without compression; raises `DedupError` for frames that are damaged now.

    `dictionaries` are those of a zstd file; None if the file has no compression.
    """
    offset, end, read = span.offset, span.offset + span.stored, partial(read_range, source)
    if dictionaries is None:
        while data := read(offset, min(end - offset, _PIECE)):
            yield data
            offset += len(data)
        return
    try:
        yield from frame_pieces(read, offset, end, dictionaries)
    except UnreadableFrame as error:
        raise DedupError(f"{name} at {offset}: its zstd frames {error}") from error


def _compress(pieces: Iterable[bytes], sink: FileSink) -> None:
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, 31)
    for data in pieces:
        sink.write(compressor.compress(data))
    sink.write(compressor.flush())


def _verify(
    collection: Collection, report: SubsetReport, on_finding: Callable[[Finding], None]
) -> None:
    """Read every record again, and resolve each reference within the subset alone."""
    for finding in collection.findings():
        report.findings[finding.reason] += 1
        if finding.level != REMARK:
            file, message = (_PART.sub(r"\1", text) for text in (finding.file, finding.message))
            on_finding(finding._replace(file=file, message=message))
    report.dangling = max(report.dangling, report.findings["dangling"])
