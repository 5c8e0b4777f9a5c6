"""Save a corpus as a WARC file with a CDXJ; records are copied byte by byte.

Revisits come with their originals, once each, so that the file replays by itself. The code of
`verify` reads the result before the file gets its name.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from dedupindex import __version__
from dedupindex.capture import Problem
from dedupindex.corpus.extract import KeptCapture
from dedupindex.corpus.extract_report import CorpusReport
from dedupindex.corpus.from_warc import row_of
from dedupindex.corpus.lineage import KEY
from dedupindex.corpus.output import WARC, cdxj_line
from dedupindex.corpus.read_records import Containers, MissingRecord
from dedupindex.corpus.row import CorpusRow, RecordPlace
from dedupindex.errors import BadInput, Damaged
from dedupindex.runtime.external_sort import sorted_lines
from dedupindex.runtime.files import atomic_file
from dedupindex.runtime.scratch_database import ScratchDatabase, open_scratch
from dedupindex.verify.collection import Collection
from dedupindex.verify.issues import REMARK
from dedupindex.warc.arc import DOCUMENT
from dedupindex.warc.random_access import RecordAt, Unreadable

_GZIP = 31  # the `wbits` of zlib for gzip
_RECORD_END = b"\r\n\r\n"


def index_of(path: Path) -> Path:
    """Return the path of the CDXJ beside a WARC."""
    return path.with_name(path.name.removesuffix(WARC) + ".cdxj")


def write_warc(
    captures: Iterable[KeptCapture], path: Path, report: CorpusReport, max_record: int,
    made: str = "", stop: bool = False, publisher: str = "",
) -> None:  # fmt: skip
    """Write `path`, which ends with ``.warc.gz``, and its CDXJ; raises `BadInput`.

    The warcinfo record has the `publisher`, and `made`, which says how (`lineage.as_text`). With
    `stop`, raises `Damaged` for the first record that cannot be read.
    """
    if not path.name.endswith(WARC):
        raise BadInput(f"{path}: a WARC is written to a name that ends with {WARC}")
    cdxj = index_of(path)
    appeared = False
    try:
        with atomic_file(cdxj, new=True) as index:
            with atomic_file(path, new=True) as stream:
                warcinfo = _warcinfo(path.name, made, publisher)
                stream.write(zlib.compress(warcinfo, wbits=_GZIP))
                lines = _write_records(captures, path.name, stream, report, max_record, stop=stop)
                index.writelines(sorted_lines(lines))
                stream.flush()
                report.problems.extend(_verify(Path(stream.name), path))
            appeared = True
    except BaseException:
        if appeared:  # it is incomplete without its CDXJ
            path.unlink(missing_ok=True)
        raise


def _verify(written: Path, path: Path) -> Iterator[Problem]:
    """Yield the defects of records, mostly of the originals: one problem for each reason."""
    found = _ProblemSummary()
    for finding in Collection([written]).findings():
        if finding.level != REMARK:
            message = f"{finding.reason}: {finding.message.replace(written.name, path.name)}"
            found.add(finding.reason, Problem(str(path), finding.offset, message))
    return found.problems()


class _ProblemSummary:
    """The first problem of each kind, and the number of others."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self._first: dict[str, Problem] = {}

    def add(self, kind: str, problem: Problem) -> None:
        self._first.setdefault(kind, problem)
        self.count[kind] += 1

    def problems(self) -> Iterator[Problem]:
        for kind, problem in self._first.items():
            others = self.count[kind] - 1
            more = f" (and {others:,} more)" if others else ""
            yield problem._replace(message=f"{problem.message}{more}")


def _write_records(
    captures: Iterable[KeptCapture], name: str, stream: BinaryIO, report: CorpusReport,
    max_record: int, *, stop: bool,
) -> Iterator[bytes]:  # fmt: skip
    """Write all records, and yield the lines of the CDXJ."""
    left_out = _ProblemSummary()  # by WARC file
    with (
        closing(Containers(max_record)) as containers,
        closing(open_scratch()) as written,
    ):
        written.execute("CREATE TABLE written (container TEXT, offset INTEGER, "
                        "PRIMARY KEY (container, offset)) WITHOUT ROWID")  # fmt: skip
        for capture, *_ in captures:
            try:
                own = containers.own(capture)
                original = None
                if own.record.type == b"revisit" and capture.payload is not None:
                    original = containers.original(capture, own.record)
                if any(found and found.record.type == DOCUMENT for found in (own, original)):
                    raise MissingRecord("it is in an ARC file: run bin/convert first")
                for found, place in ((original, capture.payload), (own, capture.record)):
                    if found is None or place is None or not _is_new(written, place):
                        continue
                    row = capture if found is own else _original_row(capture, found)
                    revisit = found.record.type == b"revisit"
                    yield cdxj_line(row, _copy(stream, name, found), revisit=revisit)
            except (MissingRecord, Unreadable) as error:
                container = capture.record.container or capture.container or "-"
                message = f"{capture.url} of {capture.timestamp} is not in {name}: {error}"
                if stop:
                    raise Damaged(message) from error
                left_out.add(container, Problem(container, capture.record.offset, message))
        report.problems.extend(left_out.problems())
        report.errors.update({"warc": left_out.count.total()} if left_out.count else {})
        report.entries -= left_out.count.total()
        report.records += containers.records
        report.containers += containers.opened
        report.bytes_read += containers.bytes


def _original_row(capture: CorpusRow, found: RecordAt) -> CorpusRow:
    """Return the capture of a revisit's original, by its own record."""
    row = row_of(found.record)
    if row is None:
        raise MissingRecord("its original does not say its URL or its time")
    names = ("url", "timestamp", "mime", "status", "digest")
    stated: dict[str, Any] = {name: row.get(name) for name in names}
    return capture._replace(surt=None, **stated)


def _copy(stream: BinaryIO, name: str, found: RecordAt) -> RecordPlace:
    offset = stream.tell()
    if found.gzipped and found.alone:
        stream.write(found.raw)
    else:
        stream.write(zlib.compress(found.record.text + found.block() + _RECORD_END, wbits=_GZIP))
    return RecordPlace(name, offset, stream.tell() - offset)


def _warcinfo(name: str, made: str, publisher: str) -> bytes:
    block = (
        f"software: dedupindex/{__version__}\r\nformat: WARC File Format 1.1\r\n"
        "description: part of a collection, cut out by bin/corpus\r\n"
        + (f"publisher: {publisher}\r\n" if publisher else "")
        + (f"{KEY}: {made}\r\n" if made else "")
    ).encode()
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    head = (
        f"WARC/1.1\r\nWARC-Type: warcinfo\r\nWARC-Date: {now}\r\n"
        f"WARC-Record-ID: <urn:uuid:{uuid4()}>\r\nWARC-Filename: {os.path.basename(name)}\r\n"
        f"Content-Type: application/warc-fields\r\nContent-Length: {len(block)}\r\n\r\n"
    )
    return head.encode("utf-8", "surrogateescape") + block + _RECORD_END


def _is_new(written: ScratchDatabase, place: RecordPlace) -> bool:
    """Remember a place in a temporary database; return False if it was there."""
    insert = "INSERT OR IGNORE INTO written VALUES (?, ?)"
    return written.execute(insert, place[:2]).rowcount > 0
