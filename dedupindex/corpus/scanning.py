"""The captures of a WARC or ARC file, as a CDX would have them and a little more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from dedupindex.capture import Problem
from dedupindex.corpus.row import shown
from dedupindex.corpus.spool import JsonlWriter
from dedupindex.errors import BadSource
from dedupindex.urlkey import urlkey
from dedupindex.urls import unbracket
from dedupindex.warc import http
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
from dedupindex.warc import wacz_members
from dedupindex.warc.wacz_members import BROKEN, within
from dedupindex.warc.window import Window, open_window

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
