"""Builders of intact and odd WARC and ARC bytes, and a function that reads them as a source."""

from __future__ import annotations

import hashlib
import zlib
from base64 import b32encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dedupindex.capture import Capture, Item, Problem, Refusal, Revisit
from dedupindex.sources.source import SourceOptions
from dedupindex.sources.warc_records import WarcSource
from dedupindex.warc.gzip_members import Filler
from dedupindex.warc.reader import Event, read
from dedupindex.warc.record import BrokenRecord, Record
from dedupindex.warc.window import open_window
from tests.support import paths

DATA = paths.DATA / "warc"
DATE = b"2026-11-20T09:14:17Z"
URL = b"http://example.com/"
END = b"\r\n\r\n"
HTTP = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n"
IDENTICAL = b"http://netpreserve.org/warc/1.0/revisit/identical-payload-digest"
NOT_MODIFIED = b"http://netpreserve.org/warc/1.0/revisit/server-not-modified"


def gz(data: bytes, level: int = 6) -> bytes:
    """One gzip member."""
    packer = zlib.compressobj(level, zlib.DEFLATED, 31)
    return packer.compress(data) + packer.flush()


def sha1(data: bytes) -> bytes:
    """A payload digest as wget and Heritrix write it."""
    return b"sha1:" + b32encode(hashlib.sha1(data).digest())


def record_id(number: int) -> bytes:
    return b"<urn:uuid:00000000-0000-4000-8000-%012d>" % number


def record(
    kind: bytes,
    block: bytes = b"",
    *more: tuple[bytes, bytes],
    number: int = 1,
    version: bytes = b"WARC/1.0",
    eol: bytes = b"\r\n",
    end: bytes = END,
    **fields: bytes | None,
) -> bytes:
    """A record. `fields` replace the usual ones (``Target_URI``); None leaves one out.

    Names get their ``WARC-`` but for those that begin with ``Content``.
    """
    usual: dict[str, bytes | None] = {
        "Type": kind,
        "Target_URI": URL,
        "Date": DATE,
        "Record_ID": record_id(number),
        "Content_Type": b"application/http; msgtype=" + kind,
        "Content_Length": b"%d" % len(block),
    }
    usual.update(fields)
    lines = [version]
    for name, value in usual.items():
        if value is not None:
            prefix = "" if name.startswith("Content") else "WARC-"
            lines.append((prefix + name.replace("_", "-")).encode() + b": " + value)
    lines += [name + b": " + value for name, value in more]
    return eol.join(lines) + eol + eol + block + end


def response(
    body: bytes = b"payload", *more: tuple[bytes, bytes], head: bytes = HTTP, **options: Any
) -> bytes:
    """A response record that states the digest of its stored body."""
    options.setdefault("Payload_Digest", sha1(body))
    return record(b"response", head + body, *more, **options)


def request(method: bytes = b"GET", number: int = 2, **options: Any) -> bytes:
    return record(b"request", method + b" / HTTP/1.1\r\nHost: x\r\n\r\n", number=number, **options)


def revisit(block: bytes = HTTP, **options: Any) -> bytes:
    options.setdefault("Profile", IDENTICAL)
    options.setdefault("Payload_Digest", sha1(b"payload"))
    options.setdefault("Refers_To_Target_URI", b"http://example.org/first")
    options.setdefault("Refers_To_Date", b"2025-01-01T00:00:00Z")
    options.setdefault("number", 3)
    return record(b"revisit", block, **options)


def chunked(*pieces: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + end


CHUNKED_HTTP = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass
class Answer:
    """The items and events of a container."""

    items: list[Item]
    source: WarcSource
    events: list[Event]

    @property
    def words(self) -> list[str]:
        """One word for each item: a reason, or what it is."""
        return [word(item) for item in self.items]

    @property
    def captures(self) -> list[Capture]:
        return [item for item in self.items if isinstance(item, Capture)]

    @property
    def capture(self) -> Capture:
        (capture,) = self.captures
        return capture

    @property
    def revisit(self) -> Revisit:
        (revisit,) = [item for item in self.items if isinstance(item, Revisit)]
        return revisit

    @property
    def filler(self) -> int:
        """Bytes between records that are skipped."""
        return sum(event.stored for event in self.events if isinstance(event, Filler))

    @property
    def problems(self) -> list[tuple[int, str]]:
        return [(item.offset, item.message) for item in self.items if isinstance(item, Problem)]

    @property
    def problem(self) -> str:
        ((_, message),) = self.problems
        return message


def word(item: Item) -> str:
    return item.reason if isinstance(item, Refusal) else type(item).__name__.lower()


def events_of(path: Path) -> list[Event]:
    """Return the events of a file, and check that they cover every byte of it."""
    window = open_window(path.name, path)
    size = window.size
    events = []
    for event in read(window):
        if isinstance(event, Record):
            try:
                event.finish()
            except BrokenRecord:
                continue
        events.append(event)
    assert sum(event.stored for event in events) == size == path.stat().st_size
    assert all(event.stored >= 0 for event in events)
    window.close()
    return events


def ask(path: Path, data: bytes | None = None, **options: Any) -> Answer:
    """Write `data` to `path`, if given, and read it as a source."""
    if data is not None:
        path.write_bytes(data)
    with WarcSource(path.name, path, SourceOptions(**options)) as source:
        items = list(source.items())
    return Answer(items, source, events_of(path))
