"""Captures of WARC and ARC files, scanned from beginning to end, and of WACZ files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple

from dedupindex.capture import Problem
from dedupindex.corpus import capture_list
from dedupindex.corpus.capture_list import Revisits, SourceContext
from dedupindex.corpus.from_cdx import CdxFile, file_of, has_lines, select
from dedupindex.corpus.row import as_text
from dedupindex.errors import BadSource
from dedupindex.object_store import RemoteFile, is_remote, local, open_anywhere
from dedupindex.runtime.tables import singular
from dedupindex.runtime.workers import side_by_side
from dedupindex.sources.discover import detect_kind
from dedupindex.sources.warc_files import find
from dedupindex.urlkey import unbracket, urlkey
from dedupindex.warc import http, record_facts, wacz_members
from dedupindex.warc.arc import DOCUMENT
from dedupindex.warc.fast_reader import read
from dedupindex.warc.gzip_members import Damage, Filler
from dedupindex.warc.record import BrokenRecord, Record
from dedupindex.warc.record_facts import timestamp14
from dedupindex.warc.wacz_members import BROKEN, within
from dedupindex.warc.window import Window, open_window

Row = dict[str, str | int | bool | None]
_CAPTURE_TYPES = frozenset((b"response", b"revisit", b"resource", b"conversion", DOCUMENT))
_MEDIA_TYPE = re.compile(rb"[^\s;,\"]+")
_UNKNOWN = "left out: {:,} records without URL or time"
_SHARED = "several records share one gzip member or zstd frame: all but the first are left out"


class CorpusScanTask(NamedTuple):
    path: str  # or an address
    output: Path  # for a `jsonl_writer`


def scan(_: None, task: CorpusScanTask) -> list[Problem]:
    """Write the captures of a file, and return its problems."""
    problems: list[Problem] = []
    shared: Problem | None = None
    empty, unknown = True, 0
    with capture_list.jsonl_writer(task.output) as add:
        try:
            with _window(task.path) as window:
                last: tuple[Record, Row] | None = None
                for event in read(window):
                    empty &= isinstance(event, Filler)
                    _keep(add, task.path, last)
                    last = None
                    if isinstance(event, Damage):
                        problems.append(Problem(task.path, event.offset, event.message))
                    elif isinstance(event, Record) and event.type in _CAPTURE_TYPES:
                        if event.shared:
                            shared = shared or Problem(task.path, event.offset, _SHARED)
                        elif row := row_of(event):
                            last = event, row
                        else:
                            unknown += 1
                _keep(add, task.path, last)
                if empty:
                    problems.append(Problem(task.path, -1, "holds no record"))
                if window.changed():
                    problems.append(Problem(task.path, -1, "was changed while it was read"))
        except BadSource as error:
            problems.append(Problem(task.path, -1, str(error)))
    if unknown:
        problems.append(Problem(task.path, -1, singular(_UNKNOWN.format(unknown))))
    return [*problems, shared] if shared else problems


@contextmanager
def _window(path: str) -> Iterator[Window]:
    """Open a file, or one in a WACZ; raises `BadSource`."""
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


def _keep(add: capture_list.AddCapture, path: str, last: tuple[Record, Row] | None) -> None:
    """Write a capture, now that its record was read to its end."""
    if last is None:
        return
    record, row = last
    try:
        record.finish()
    except BrokenRecord:
        return  # reported as damage
    stored = record.stored if record.stored > 0 else None
    add(**row, container=path, offset=record.offset, length=stored)


def row_of(record: Record) -> Row | None:
    """Return the columns of a capture; None if it has no URL or no time."""
    url, date, _, content_type, digest, _, _ = record.values
    url = unbracket(url)
    timestamp = timestamp14(date).decode()
    if not url or not timestamp:
        return None
    return {
        "surt": as_text(urlkey(url)),
        "timestamp": timestamp,
        "url": as_text(url),
        "digest": as_text(digest).removeprefix("sha1:") or None,
        "revisit": record.type == b"revisit",
        **_http_columns(record, content_type),
        **(_refers_to(record) if record.type == b"revisit" else {}),
    }


def _http_columns(record: Record, content_type: bytes) -> Row:
    """Return what the HTTP header states, or without one, the media type of the block."""
    if not record.begins_with(b"HTTP/"):
        if record.type == b"revisit":
            return {}
        match = _MEDIA_TYPE.match(content_type)
        return {"mime": as_text(match[0]).lower() if match else None}
    answer = (
        record_facts.revisit_http(record)
        if record.type == b"revisit"
        else record_facts.http_block(record).answer
    )
    if answer is None:
        return {}
    location = http.field(answer.head, b"location") if answer.status // 100 == 3 else b""
    return {
        "mime": as_text(answer.mime) or None,
        "status": answer.status or None,
        "redirect": as_text(location) or None,
    }


def _refers_to(record: Record) -> Row:
    fields = record.head.fields
    named = record_facts.refers_to(fields)
    return {
        "to_url": as_text(named.url) or None,
        "to_timestamp": timestamp14(named.date).decode() or None,
        "unmodified": record_facts.says_not_modified(fields),
    }


@dataclass(frozen=True)
class WarcCaptures:
    """WARC and ARC files, also those in a WACZ.

    WACZ files in directories are skipped: those of Browsertrix are beside the WARC files in them.
    """

    revisits: ClassVar[Revisits] = Revisits.ALL
    sources: tuple[str, ...]
    containers: tuple[str, ...] = ()

    def relation(self, context: SourceContext) -> str:
        zips = [source for source in self.sources if is_wacz_file(source)]
        found = find([source for source in self.sources if source not in zips])
        context.problems.extend(found.problems)
        paths = [file.path for file in found.files] + [
            path for zip in zips for path in _in_wacz(zip)
        ]
        if not paths:
            raise BadSource(f"there is no WARC or ARC file in {', '.join(self.sources)}; a WACZ is "
                            "to be named itself")  # fmt: skip
        tasks = [
            CorpusScanTask(path, context.home / f"{number}.rows")
            for number, path in enumerate(dict.fromkeys(paths))
        ]
        for problems in side_by_side(scan, None, tasks, context.jobs):
            context.problems.extend(problems)
        return capture_list.relation([task.output for task in tasks])


@dataclass(frozen=True)
class WaczCaptures:
    """WACZ files, by their own indexes; the WARC files in those without one are scanned."""

    revisits: ClassVar[Revisits] = Revisits.LISTED
    sources: tuple[str, ...]
    containers: tuple[str, ...] = ()

    def relation(self, context: SourceContext) -> str:
        lines: list[CdxFile] = []
        scanned: list[str] = []
        for number, path in enumerate(dict.fromkeys(map(_absolute, self.sources))):
            home = context.home / f"{number}"
            home.mkdir()
            indexes = _indexes(path, home)
            lines += [
                file_of(unpacked, kind, head, path, home / f"{count}.text")
                for count, (unpacked, kind, head) in enumerate(indexes)
            ]
            if not indexes:
                scanned.append(path)
        parts = [select(lines)] if lines else []
        if scanned:
            parts.append(WarcCaptures(tuple(scanned)).relation(context))
        return " UNION ALL ".join(parts)


def _indexes(path: str, home: Path) -> list[tuple[Path, str, bytes]]:
    """Unpack the indexes of a WACZ that have lines; return path, kind and beginning of each.

    If there are CDX and CDXJ files, only the latter, which have more columns.
    """
    with _zipped(path) as file:
        unpacked = wacz_members.unpack_indexes(file, home)
    indexes = []
    for name, index in unpacked:
        kind, head = detect_kind(str(index))
        if has_lines(head):
            if kind not in capture_list.KINDS:
                raise BadSource(f"{path} has an index that is no CDX or CDXJ: {name}")
            indexes.append((index, kind, head))
    return [found for found in indexes if found[1] == "cdxj"] or indexes


def is_wacz_file(source: str) -> bool:
    if is_remote(source):
        return wacz_members.is_wacz(source)
    return os.path.isfile(local(source)) and detect_kind(local(source))[0] == "wacz"


def _in_wacz(source: str) -> list[str]:
    """Return the WARC files in a WACZ; raises `BadSource`."""
    path = _absolute(source)
    with _zipped(path) as file:
        return wacz_members.containers(path, file)


def _absolute(source: str) -> str:
    return source if is_remote(source) else os.path.abspath(local(source))


@contextmanager
def _zipped(path: str) -> Iterator[BinaryIO | RemoteFile]:
    """Open a WACZ; raises `BadSource` for any defect."""
    try:
        with open_anywhere(path) as file:
            yield file
    except wacz_members.BROKEN as error:
        raise BadSource(f"{path} cannot be read as a WACZ: {error}") from error
