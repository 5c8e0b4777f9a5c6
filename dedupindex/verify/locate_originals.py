"""Where a full record of a URL, date and record id may be: places that are read before use."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from functools import partial
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from dedupindex.verify import http
from dedupindex.verify.block_facts import FULL, Facts, bare, examine, facts_of, moment, start_of
from dedupindex.verify.file_bytes import File, UnreadableFile, magics, opened, starts
from dedupindex.verify.issues import Broken, Finding
from dedupindex.verify.parse_records import CheckedRecord
from dedupindex.verify.walk_file import AnyRecord, Container

_MOST_OPEN = 64
_FIELDS = {
    name: re.compile(rb"\n%b:[ \t]*([^\r\n]*[^\s])[ \t]*\r?\n(?![ \t])" % name, re.IGNORECASE)
    for name in (b"warc-type", b"warc-target-uri", b"warc-date")
}


class OriginalReference(NamedTuple):
    """An original, as a revisit names it."""

    url: bytes  # no brackets
    date: bytes
    record_id: bytes  # no brackets, empty if it is not named


class OriginalHint(NamedTuple):
    """A record in a file; a hint: that it is what is wanted is never believed."""

    file: Path
    offset: int
    begins: bool = False  # whether it is known that a record begins there


FindOriginal = Callable[[OriginalReference], Iterable[OriginalHint]]


class OriginalsIndex:
    """The places of all full records in some files, in an SQLite file that processes share."""

    def __init__(self, database: Path) -> None:
        self._path = database
        self._database: sqlite3.Connection | None = None

    def __del__(self) -> None:
        if self._database is not None:
            self._database.close()

    def write(self, found: Iterable[tuple[Path, list[tuple[bytes, int]]]]) -> None:
        """Keep the places of files, as `places` gives them."""
        with closing(sqlite3.connect(self._path)) as database:
            database.execute("PRAGMA journal_mode = OFF")
            database.execute("CREATE TABLE files (path BLOB)")
            database.execute("CREATE TABLE places (key BLOB, file INTEGER, offset INTEGER)")
            for number, (path, rows) in enumerate(found, 1):
                database.execute("INSERT INTO files VALUES (?)", (os.fsencode(path),))
                many = ((key, number, offset) for key, offset in rows)
                database.executemany("INSERT INTO places VALUES (?, ?, ?)", many)
            database.execute("CREATE INDEX by_key ON places (key)")
            database.commit()

    def find(self, wanted: OriginalReference) -> Iterator[OriginalHint]:
        """Places of records of that URL and second."""
        if self._database is None:
            self._database = sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True)
        query = (
            "SELECT path, offset FROM places JOIN files ON files.rowid = file WHERE key = ? "
            "ORDER BY places.rowid"
        )
        for path, offset in self._database.execute(query, (key_of(wanted.url, wanted.date),)):
            yield OriginalHint(Path(os.fsdecode(path)), offset)


class VerifiedOriginal:
    """A full record that was found where it was said to be, and is what was wanted."""

    def __init__(self, record: AnyRecord, again: Callable[[], AnyRecord]) -> None:
        self._record, self._again = record, again
        start, self._rest = start_of(record)
        message = http.read(start)
        self._message = message if message is not None and message.closed else None
        self._size = len(self._message.head) if self._message else 0
        self._start = start[self._size :]

    def body(self) -> Iterator[bytes]:
        """The stored body, read now and once; raises `Broken`."""
        return chain([self._start], self._rest)

    def facts(self) -> Facts:
        """What the record says of itself; raises `Broken`."""
        if isinstance(self._record, CheckedRecord) and self._record.head.has(
            b"warc-payload-digest"
        ):
            return facts_of(self._record, self._message, self._record.length - self._size, ())
        return examine(self._again(), [])[0]


class Shelf:
    """Originals, taken from files that stay open for a while."""

    def __init__(self, find: FindOriginal) -> None:
        self._find = find
        self._open: dict[Path, Container] = {}

    def close(self) -> None:
        while self._open:
            self._open.pop(next(iter(self._open))).file.close()

    def take(self, wanted: OriginalReference) -> Iterator[VerifiedOriginal]:
        """Every full record that is what is wanted, truly there."""
        for place in self._find(wanted):
            try:
                container = self._container(place.file)
                if not place.begins and not container.begins(place.offset):
                    continue
                record = container.at(place.offset)[0]
            except (Broken, UnreadableFile):
                continue
            named = not wanted.record_id or record.record_id in (wanted.record_id, b"")
            same_date = record.date == wanted.date or moment(record.date) == moment(wanted.date)
            if record.kind in FULL and record.url == wanted.url and same_date and named:
                yield VerifiedOriginal(record, partial(_read_again, container, place.offset))

    def _container(self, path: Path) -> Container:
        container = self._open.pop(path, None) or Container(File(path))
        self._open[path] = container  # the last that was used
        if len(self._open) > _MOST_OPEN:
            self._open.pop(next(iter(self._open))).file.close()
        return container


def _read_again(container: Container, offset: int) -> AnyRecord:
    return container.at(offset)[0]


def key_of(url: bytes, date: bytes) -> bytes:
    """URL and second as one key."""
    return blake2b(moment(date) + b" " + url, digest_size=16).digest()


def places(path: Path) -> tuple[Path, list[tuple[bytes, int]]]:
    """Where full records seem to begin in a file. Only the headers of members are inflated.

    What is found in vain (a gzip file in a payload looks like members) does no harm: a place is
    read, and proven to be a true beginning, before it counts.
    """
    found = []
    with suppress(UnreadableFile), opened(path) as file:
        for offset, url, date in _heads(Container(file)):
            found.append((key_of(url, date), offset))
    return path, found


def _heads(container: Container) -> Iterator[tuple[int, bytes, bytes]]:
    """Offset, URL and date of full records."""
    if container.kind == "warc.gz":
        for offset, start in starts(container.file):
            if start.startswith(b"WARC/"):
                yield from _looked_at(container, offset, start)
    elif container.kind == "arc.gz":
        for offset in magics(container.file, 0, container.file.size):
            with suppress(Broken):
                record = container.at(offset)[0]
                if record.kind in FULL:
                    yield offset, record.url, record.date
    else:
        for item in container.each() if container.kind else ():
            if not isinstance(item, Finding) and item.kind in FULL:
                yield item.offset, item.url, item.date


def _looked_at(
    container: Container, offset: int, start: bytes
) -> Iterator[tuple[int, bytes, bytes]]:
    kind = _field(start, b"warc-type")
    if kind and kind.lower() not in FULL:
        return
    url, date = _field(start, b"warc-target-uri"), _field(start, b"warc-date")
    if not kind or not url or not date:  # an unusual header, or one that is longer
        with suppress(Broken):
            record = container.at(offset)[0]
            if record.kind in FULL:
                yield offset, record.url, record.date
        return
    yield offset, bare(url), date


def _field(start: bytes, name: bytes) -> bytes:
    """The value of a field as headers usually have it, else nothing."""
    match = _FIELDS[name].search(start)
    return match[1] if match else b""
