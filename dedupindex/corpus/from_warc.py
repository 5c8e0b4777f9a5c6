"""Captures of WARC and ARC files, which are their own metadata, and of those in a WACZ."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple

from dedupindex.capture import Problem
from dedupindex.corpus.capture_list import (
    KINDS,
    JsonlWriter,
    Revisits,
    SourceContext,
    looked_at,
    relation,
)
from dedupindex.corpus.from_cdx import CdxFile, file_of, has_lines, select
from dedupindex.corpus.row import shown
from dedupindex.errors import BadSource
from dedupindex.object_store import RemoteFile, is_remote, local, open_anywhere
from dedupindex.runtime.workers import side_by_side
from dedupindex.sources.warc_files import find
from dedupindex.urlkey import unbracket, urlkey
from dedupindex.warc import http, wacz_members
from dedupindex.warc.arc import DOCUMENT
from dedupindex.warc.fast_reader import read
from dedupindex.warc.gzip_members import Damage, Filler
from dedupindex.warc.record import BrokenRecord, Record
from dedupindex.warc.record_facts import (
    http_block,
    refers_to,
    revisit_http,
    says_not_modified,
    timestamp14,
)
from dedupindex.warc.wacz_members import BROKEN, within
from dedupindex.warc.window import Window, open_window

# The captures of a WARC or ARC file, as a CDX would have them and a little more.

Row = dict[str, str | int | bool | None]
_WANTED = frozenset((b"response", b"revisit", b"resource", b"conversion", DOCUMENT))
_MEDIA_TYPE = re.compile(rb"[^\s;,\"]+")
_UNKNOWN = "of {:,} records nobody can tell the URL or the time: they are left out"
_SHARED = "several records share one gzip member: all but the first are left out"


class CorpusScanTask(NamedTuple):
    """A file to read."""

    path: str  # or an address
    spool: Path


class ScanResult(NamedTuple):
    """What is wrong with one."""

    problems: list[Problem]


def scan(_: None, task: CorpusScanTask) -> ScanResult:
    """Read a file; of one that cannot be read there are no captures."""
    problems: list[Problem] = []
    shared: Problem | None = None
    empty, unknown = True, 0
    with JsonlWriter(task.spool) as rows:
        try:
            with _window(task.path) as window:
                last: tuple[Record, Row] | None = None
                for event in read(window):
                    empty &= isinstance(event, Filler)
                    _keep(rows, task.path, last)
                    last = None
                    if isinstance(event, Damage):
                        problems.append(Problem(task.path, event.offset, event.message))
                    elif isinstance(event, Record) and event.type in _WANTED:
                        if event.shared:
                            shared = shared or Problem(task.path, event.offset, _SHARED)
                        elif row := row_of(event):
                            last = event, row
                        else:
                            unknown += 1
                _keep(rows, task.path, last)
                if empty:
                    problems.append(Problem(task.path, -1, "holds no record"))
                if window.changed():
                    problems.append(Problem(task.path, -1, "was changed while it was read"))
        except BadSource as error:
            problems.append(Problem(task.path, -1, str(error)))
    if unknown:
        problems.append(Problem(task.path, -1, _UNKNOWN.format(unknown)))
    return ScanResult([*problems, shared] if shared else problems)


@contextmanager
def _window(path: str) -> Iterator[Window]:
    """The bytes of a file, or of one that is in a WACZ; raises `BadSource`."""
    parts = within(path)
    outer, name = parts or (path, "")
    with closing(open_window(outer, outer)) as window:
        if not name:
            yield window
            return
        try:
            begin, size = wacz_members.find(name, window.file)
        except BROKEN as error:
            raise BadSource(f"{path} cannot be read: {error}") from error
        yield Window(window.file, path, base=begin, size=size)


def _keep(rows: JsonlWriter, path: str, last: tuple[Record, Row] | None) -> None:
    """Take a capture over, now that its record was read to its end."""
    if last is None:
        return
    record, row = last
    try:
        record.finish()
    except BrokenRecord:
        return  # which is damage, and told as that
    stored = record.stored if record.stored > 0 else None
    rows.add(**row, container=path, offset=record.offset, length=stored)


def row_of(record: Record) -> Row | None:
    """What is known of a capture; None if it has no URL or no time."""
    url, date, _, content_type, digest, _, _ = record.values
    url = unbracket(url)
    timestamp = timestamp14(date).decode()
    if not url or not timestamp:
        return None
    return {
        "surt": shown(urlkey(url)),
        "timestamp": timestamp,
        "url": shown(url),
        "digest": shown(digest).removeprefix("sha1:") or None,
        "revisit": record.type == b"revisit",
        **_answered(record, content_type),
        **(_refers_to(record) if record.type == b"revisit" else {}),
    }


def _answered(record: Record, content_type: bytes) -> Row:
    """What the HTTP header says; of records without one what their own says of the block."""
    if not record.begins_with(b"HTTP/"):
        if record.type == b"revisit":
            return {}
        match = _MEDIA_TYPE.match(content_type)
        return {"mime": shown(match[0]).lower() if match else None}
    answer = revisit_http(record) if record.type == b"revisit" else http_block(record).answer
    if answer is None:
        return {}
    location = http.field(answer.head, b"location") if answer.status // 100 == 3 else b""
    return {
        "mime": shown(answer.mime) or None,
        "status": answer.status or None,
        "redirect": shown(location) or None,
    }


def _refers_to(record: Record) -> Row:
    fields = record.head.fields
    named = refers_to(fields)
    return {
        "to_url": shown(named.url) or None,
        "to_timestamp": timestamp14(named.date).decode() or None,
        "unmodified": says_not_modified(fields),
    }


@dataclass(frozen=True)
class OfContainers:
    """WARC and ARC files, which are read from their first byte to their last; those of a WACZ, too.

    In directories WACZ files are passed over: those of Browsertrix stand beside the files in them.
    """

    revisits: ClassVar[Revisits] = Revisits.ALL
    sources: tuple[str, ...]
    places: tuple[str, ...] = ()

    def relation(self, work: SourceContext) -> str:
        zips = [source for source in self.sources if is_wacz_file(source)]
        found = find([source for source in self.sources if source not in zips], elsewhere=True)
        work.problems.extend(found.problems)
        paths = [file.path for file in found.files] + [one for zip in zips for one in _in_wacz(zip)]
        if not paths:
            raise BadSource(f"there is no WARC or ARC file in {', '.join(self.sources)}; a WACZ is "
                            "to be named itself")  # fmt: skip
        tasks = [
            CorpusScanTask(path, work.home / f"{number}.rows")
            for number, path in enumerate(dict.fromkeys(paths))
        ]
        for scanned in side_by_side(scan, None, tasks, work.jobs):
            work.problems.extend(scanned.problems)
        return relation([task.spool for task in tasks])


@dataclass(frozen=True)
class OfWacz:
    """WACZ files: of each the index in it tells, or if that has no lines the files in it."""

    revisits: ClassVar[Revisits] = Revisits.LISTED
    sources: tuple[str, ...]
    places: tuple[str, ...] = ()

    def relation(self, work: SourceContext) -> str:
        lines: list[CdxFile] = []
        scanned: list[str] = []
        for number, path in enumerate(dict.fromkeys(map(_full, self.sources))):
            home = work.home / f"{number}"
            home.mkdir()
            told = _indexes(path, home)
            lines += [
                file_of(here, kind, head, path, home / f"{count}.text")
                for count, (here, kind, head) in enumerate(told)
            ]
            if not told:
                scanned.append(path)
        parts = [select(lines)] if lines else []
        if scanned:
            parts.append(OfContainers(tuple(scanned)).relation(work))
        return " UNION ALL ".join(parts)


def _indexes(path: str, home: Path) -> list[tuple[Path, str, bytes]]:
    """The indexes of a WACZ that tell, unpacked, with kind and beginning: those that have lines.

    Of both kinds those of CDXJ do, as they say more: the others will be of the same captures.
    """
    with _zipped(path) as file:
        unpacked = wacz_members.unpack_indexes(file, home)
    told = []
    for name, here in unpacked:
        kind, head = looked_at(str(here))
        if has_lines(head):
            if kind not in KINDS:
                raise BadSource(f"{path} has an index that is no CDX or CDXJ: {name}")
            told.append((here, kind, head))
    return [one for one in told if one[1] == "cdxj"] or told


def is_wacz_file(source: str) -> bool:
    if is_remote(source):
        return wacz_members.is_wacz(source)
    return os.path.isfile(local(source)) and looked_at(local(source))[0] == "wacz"


def _in_wacz(source: str) -> list[str]:
    """The containers in a WACZ; raises `BadSource`."""
    path = _full(source)
    with _zipped(path) as file:
        return wacz_members.containers(path, file)


def _full(source: str) -> str:
    return source if is_remote(source) else os.path.abspath(local(source))


@contextmanager
def _zipped(path: str) -> Iterator[BinaryIO | RemoteFile]:
    """A WACZ to be read; raises `BadSource` for all that is wrong with it."""
    try:
        with open_anywhere(path) as file:
            yield file
    except wacz_members.BROKEN as error:
        raise BadSource(f"{path} cannot be read as a WACZ: {error}") from error
