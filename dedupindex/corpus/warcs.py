"""A corpus as a WARC file of its own, with a CDXJ beside it: records as the bytes they are.

Revisits are written with their originals, once each, so that the file replays by itself. What was
written is read again by the code of `verify` before it gets its name.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from dedupindex import __version__
from dedupindex.capture import Problem
from dedupindex.corpus.captures import Capture, Place, shown
from dedupindex.corpus.output import Kepts, cdxj_line
from dedupindex.corpus.records import Containers, Missing, check
from dedupindex.corpus.report import Report
from dedupindex.corpus.running import nothing
from dedupindex.errors import BadDate, BadInput
from dedupindex.files import whole
from dedupindex.rewrite.cdxj import in_order
from dedupindex.sources.stated import bare
from dedupindex.timestamps import check_date, digits_of_date
from dedupindex.verify.collection import Collection
from dedupindex.verify.finding import REMARK
from dedupindex.warc.arc import DOCUMENT
from dedupindex.warc.ranged import Ranged, Unreadable

ENDING = ".warc.gz"
_LEVEL = 6  # of deflate, for records that are packed here
_CLOSING = b"\r\n\r\n"


def index_of(path: Path) -> Path:
    """The CDXJ that is written beside a WARC."""
    return path.with_name(path.name.removesuffix(ENDING) + ".cdxj")


def as_warc(corpus: Kepts, path: Path, report: Report) -> None:
    """Write `path`, which ends with ``.warc.gz``, and its CDXJ; raises `BadInput`."""
    if not path.name.endswith(ENDING):
        raise BadInput(f"{path}: a WARC is written to a name that ends with {ENDING}")
    beside = index_of(path)
    with whole(beside) as index, whole(path) as stream:
        index.writelines(in_order(_written(corpus, path.name, stream, report)))
        stream.flush()
        for finding in Collection([Path(stream.name)]).findings():
            if finding.level != REMARK:
                told = f"{finding.reason}: {finding.message}"
                report.problems.append(Problem(str(path), finding.offset, told))
    report.bytes = path.stat().st_size + beside.stat().st_size


def _written(corpus: Kepts, name: str, stream: BinaryIO, report: Report) -> Iterator[bytes]:
    """Write all records; yields the lines of the CDXJ."""
    stream.write(_packed(_warcinfo(name)))
    with closing(Containers(corpus.settings.most)) as containers, closing(_Once()) as once:
        for kept in corpus.kept(report, nothing):
            capture = kept.capture
            try:
                own = containers.ranged(capture.record)
                check(own.record, capture.url, "another capture")
                original = None
                if own.record.type == b"revisit" and capture.payload is not None:
                    original = containers.original(capture, own.record)
                if any(one and one.record.type == DOCUMENT for one in (own, original)):
                    raise Missing("it is of an ARC file: bin/convert makes WARC records of these")
                for found, place in ((original, capture.payload), (own, capture.record)):
                    if found is None or place is None or not once.first(place):
                        continue
                    of = _of(capture, found, is_own=found is own)
                    revisit = found.record.type == b"revisit"
                    yield cdxj_line(of, _put(stream, name, found), revisit=revisit)
            except (Missing, Unreadable, BadDate) as error:
                report.errors["warc"] += 1
                told = f"{capture.url} of {capture.timestamp} is not in {name}: {error}"
                report.problems.append(Problem(*capture.record[:2], told))
        report.records += containers.records
        report.containers += containers.opened
        report.bytes_read += containers.bytes


def _of(capture: Capture, found: Ranged, *, is_own: bool) -> Capture:
    """What the CDXJ says of a record: of an original what it says itself."""
    if is_own:
        return capture
    url, date = found.record.values[:2]
    timestamp = digits_of_date(check_date(date)).decode()
    return capture._replace(surt=None, url=shown(bare(url)), timestamp=timestamp)


def _put(stream: BinaryIO, name: str, found: Ranged) -> Place:
    offset = stream.tell()
    if found.gzipped and found.alone:
        stream.write(found.raw)
    else:
        stream.write(_packed(found.record.text + found.block() + _CLOSING))
    return Place(name, offset, stream.tell() - offset)


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

    def first(self, place: Place) -> bool:
        """Whether a place is met for the first time."""
        insert = "INSERT OR IGNORE INTO met VALUES (?, ?)"
        return self._database.execute(insert, place[:2]).rowcount > 0

    def close(self) -> None:
        self._database.close()
