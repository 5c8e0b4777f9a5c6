"""A corpus as a WARC file of its own, with a CDXJ beside it: records as the bytes they are.

Revisits are written with their originals, once each, so that the file replays by itself. What was
written is read again by the code of `verify` before it gets its name.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from dedupindex import __version__
from dedupindex.capture import Problem
from dedupindex.corpus.extract import nothing
from dedupindex.corpus.extract_report import CorpusReport
from dedupindex.corpus.from_warc import row_of
from dedupindex.corpus.output import WARC, Kepts, cdxj_line
from dedupindex.corpus.read_records import Containers, MissingRecord
from dedupindex.corpus.row import CorpusRow, RecordPlace
from dedupindex.errors import BadInput
from dedupindex.runtime.external_sort import sorted_lines
from dedupindex.runtime.files import atomic_file
from dedupindex.verify.collection import Collection
from dedupindex.verify.issues import REMARK
from dedupindex.warc.arc import DOCUMENT
from dedupindex.warc.random_access import Ranged, Unreadable

_LEVEL = 6  # of deflate, for records that are packed here
_CLOSING = b"\r\n\r\n"


def index_of(path: Path) -> Path:
    """The CDXJ that is written beside a WARC."""
    return path.with_name(path.name.removesuffix(WARC) + ".cdxj")


def as_warc(corpus: Kepts, path: Path, report: CorpusReport) -> None:
    """Write `path`, which ends with ``.warc.gz``, and its CDXJ; raises `BadInput`."""
    if not path.name.endswith(WARC):
        raise BadInput(f"{path}: a WARC is written to a name that ends with {WARC}")
    beside = index_of(path)
    appeared = False
    try:
        with atomic_file(beside, new=True) as index:
            with atomic_file(path, new=True) as stream:
                index.writelines(sorted_lines(_written(corpus, path.name, stream, report)))
                stream.flush()
                report.problems.extend(_found(Path(stream.name), path))
            appeared = True
    except BaseException:
        if appeared:  # without its CDXJ it is not whole
            path.unlink(missing_ok=True)
        raise
    report.bytes = path.stat().st_size + beside.stat().st_size


def _found(written: Path, path: Path) -> Iterator[Problem]:
    """What is wrong with records, most often as they were stored: one line for each reason."""
    found = _Firsts()
    for finding in Collection([written]).findings():
        if finding.level != REMARK:
            told = f"{finding.reason}: {finding.message.replace(written.name, path.name)}"
            found.add(finding.reason, Problem(str(path), finding.offset, told))
    return found.problems()


class _Firsts:
    """The first problem of each kind, and how many more there are."""

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


def _written(corpus: Kepts, name: str, stream: BinaryIO, report: CorpusReport) -> Iterator[bytes]:
    """Write all records; yields the lines of the CDXJ."""
    stream.write(_packed(_warcinfo(name)))
    left = _Firsts()  # of each container
    with closing(Containers(corpus.settings.most)) as containers, closing(_Once()) as once:
        for kept in corpus.kept(report, nothing):
            capture = kept.capture
            try:
                own = containers.own(capture)
                original = None
                if own.record.type == b"revisit" and capture.payload is not None:
                    original = containers.original(capture, own.record)
                if any(one and one.record.type == DOCUMENT for one in (own, original)):
                    raise MissingRecord(
                        "it is of an ARC file: bin/convert makes WARC records of these"
                    )
                for found, place in ((original, capture.payload), (own, capture.record)):
                    if found is None or place is None or not once.first(place):
                        continue
                    of = _of(capture, found, is_own=found is own)
                    revisit = found.record.type == b"revisit"
                    yield cdxj_line(of, _put(stream, name, found), revisit=revisit)
            except (MissingRecord, Unreadable) as error:
                container = capture.record.container or capture.container or "-"
                told = f"{capture.url} of {capture.timestamp} is not in {name}: {error}"
                left.add(container, Problem(container, capture.record.offset, told))
        report.problems.extend(left.problems())
        report.errors.update({"warc": left.count.total()} if left.count else {})
        report.entries -= left.count.total()
        report.records += containers.records
        report.containers += containers.opened
        report.bytes_read += containers.bytes


def _of(capture: CorpusRow, found: Ranged, *, is_own: bool) -> CorpusRow:
    """What the CDXJ says of a record: of an original what it says itself."""
    if is_own:
        return capture
    said = row_of(found.record)
    if said is None:
        raise MissingRecord("its original does not say its URL or its time")
    names = ("url", "timestamp", "mime", "status", "digest")
    known: dict[str, Any] = {name: said.get(name) for name in names}
    return capture._replace(surt=None, **known)


def _put(stream: BinaryIO, name: str, found: Ranged) -> RecordPlace:
    offset = stream.tell()
    if found.gzipped and found.alone:
        stream.write(found.raw)
    else:
        stream.write(_packed(found.record.text + found.block() + _CLOSING))
    return RecordPlace(name, offset, stream.tell() - offset)


def _packed(record: bytes) -> bytes:
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, 31)
    return packer.compress(record) + packer.flush()


def _warcinfo(name: str) -> bytes:
    block = (
        f"software: dedupindex/{__version__}\r\nformat: WARC File Format 1.1\r\n"
        "description: part of a collection, cut out by bin/corpus\r\n"
    ).encode()
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    head = (
        f"WARC/1.1\r\nWARC-Type: warcinfo\r\nWARC-Date: {now}\r\n"
        f"WARC-Record-ID: <urn:uuid:{uuid4()}>\r\nWARC-Filename: {os.path.basename(name)}\r\n"
        f"Content-Type: application/warc-fields\r\nContent-Length: {len(block)}\r\n\r\n"
    )
    return head.encode("utf-8", "surrogateescape") + block + _CLOSING


class _Once:
    """Which places were met, in an SQLite file that is never seen."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute("CREATE TABLE met (container TEXT, offset INTEGER, "
                               "PRIMARY KEY (container, offset)) WITHOUT ROWID")  # fmt: skip

    def first(self, place: RecordPlace) -> bool:
        """Whether a place is met for the first time."""
        insert = "INSERT OR IGNORE INTO met VALUES (?, ?)"
        return self._database.execute(insert, place[:2]).rowcount > 0

    def close(self) -> None:
        self._database.close()
