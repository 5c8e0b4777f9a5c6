"""What a subset needs to know of every record of a file, read from its first byte to its last."""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, NamedTuple

from dedupindex.errors import BadSource
from dedupindex.sources.warc_files import SourceFile
from dedupindex.urls import host_of, unbracket
from dedupindex.warc.arc import DOCUMENT, HEADER
from dedupindex.warc.gzip_members import Damage
from dedupindex.warc.reader import read
from dedupindex.warc.record import MISSING, BrokenRecord, Record
from dedupindex.warc.record_facts import refers_to, says_not_modified, timestamp14
from dedupindex.warc.window import open_window

FULL = frozenset((b"response", b"resource", b"conversion", DOCUMENT))  # what may be an original
INFO = frozenset((b"warcinfo", HEADER))
_BATCH = 1000


class SubsetFilter(NamedTuple):
    """Which records are wanted; what is empty asks for nothing."""

    urls: tuple[bytes, ...] = ()  # they begin with one of these
    hosts: tuple[bytes, ...] = ()  # or are of one of these, or of one below it
    begin: bytes = b""  # the first of 14 digits
    end: bytes = b""  # the last

    def takes(self, url: bytes, moment: bytes) -> bool:
        """Whether a record of this URL and second is wanted."""
        if (self.begin and moment < self.begin) or (self.end and moment > self.end):
            return False
        if not self.urls and not self.hosts:
            return True
        if url.startswith(self.urls):
            return True
        host = host_of(url) if self.hosts else b""
        return any(host == one or host.endswith(b"." + one) for one in self.hosts)


class SubsetRecord(NamedTuple):
    """One record."""

    offset: int
    stored: int  # bytes in the file; of several records in a member the first has them all
    kind: bytes
    wanted: bool
    url: bytes
    moment: bytes  # 14 digits; empty without a date
    record_id: bytes
    digest: bytes  # WARC-Payload-Digest as written
    to_url: bytes = b""
    to_moment: bytes = b""
    to_id: bytes = b""
    modified: bool = True  # False: a revisit that says that nothing was modified
    open: bool = False  # its last line ends are missing


class ScannedFile(NamedTuple):
    """A file that was read: `rows` of the spool, and what is wrong with it."""

    spool: Path
    arc: bool
    zipped: bool
    problems: list[tuple[int, str]]


class SubsetScanTask(NamedTuple):
    """One file to read."""

    file: SourceFile
    spool: Path
    filter: SubsetFilter | None  # None: it may only have originals


def scan(_: None, task: SubsetScanTask) -> ScannedFile:
    """Read a file; of one that cannot be read or changes meanwhile there are no rows."""
    path, problems = task.file.path, list[tuple[int, str]]()
    arc = zipped = False
    try:
        with closing(open_window(path, path)) as window, open(task.spool, "wb") as spool:
            zipped = window.read(0, 2) == b"\x1f\x8b"
            batch: list[tuple[object, ...]] = []
            last: tuple[Record, SubsetRecord] | None = None
            for event in read(window):
                _keep(batch, spool, last)
                last = None
                if isinstance(event, Record):
                    arc = arc or event.type in (HEADER, DOCUMENT)
                    last = event, _row(event, task.filter)
                elif isinstance(event, Damage):
                    problems.append((event.offset, event.message))
            _keep(batch, spool, last, at_least=0)
            if window.changed():
                raise BadSource("it was changed while it was read, and is left out")
    except BadSource as error:
        task.spool.write_bytes(b"")
        problems.append((-1, str(error)))
    return ScannedFile(task.spool, arc, zipped, problems)


def rows(spool: Path) -> Iterator[SubsetRecord]:
    """The rows of a file that was read."""
    with open(spool, "rb") as stream:
        while stream.peek(1):
            yield from (SubsetRecord(*row) for row in marshal.load(stream))


def _keep(
    batch: list[tuple[object, ...]],
    spool: BinaryIO,
    last: tuple[Record, SubsetRecord] | None,
    at_least: int = _BATCH,
) -> None:
    """Take a record over, now that it was read to its end; a broken one is none."""
    if last is not None:
        record, row = last
        try:
            record.finish()
        except BrokenRecord:
            return
        row = row._replace(stored=record.stored, open=record.remark == MISSING)
        batch.append(tuple(row))
    if batch and len(batch) >= at_least:
        marshal.dump(batch, spool)
        batch.clear()


def _row(record: Record, wanted: SubsetFilter | None) -> SubsetRecord:
    url, date, record_id, _, digest, _, _ = record.values
    url, moment = unbracket(url), timestamp14(date)
    takes = wanted is not None and record.type not in INFO and bool(url)
    takes = takes and wanted is not None and wanted.takes(url, moment)
    row = SubsetRecord(
        record.offset, 0, record.type, takes, url, moment, unbracket(record_id), digest
    )
    if record.type != b"revisit":
        return row
    fields = record.head.fields
    original = refers_to(fields)
    return row._replace(
        to_url=original.url,
        to_moment=timestamp14(original.date),
        to_id=original.record_id,
        modified=not says_not_modified(fields),
    )
