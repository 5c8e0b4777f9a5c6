"""Find the full record that a revisit refers to. Places are hints: the record is always read."""

from __future__ import annotations

import pickle
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dedupindex.runtime.scratch_database import open_scratch
from dedupindex.verify.block_facts import (
    FULL,
    Facts,
    capture_key,
    examine,
    facts_of,
    open_body,
    timestamp14,
)
from dedupindex.verify.collection import ExecutorRows, in_order
from dedupindex.verify.file_bytes import Place, UnreadableFile, open_file, opened
from dedupindex.verify.http_message import HttpHead
from dedupindex.verify.issues import Broken, Finding
from dedupindex.verify.parse_records import AnyRecord, unbracket
from dedupindex.verify.walk_file import Container

_MAX_OPEN = 64
_REFERENCE = -1  # in place of an offset: the key is that of what a revisit refers to
_KIND, _URL, _DATE = (  # fields as most headers have them
    re.compile(rb"\n%b:[ \t]*([^\r\n]*[^\s])[ \t]*\r?\n(?![ \t])" % name, re.IGNORECASE)
    for name in (b"warc-type", b"warc-target-uri", b"warc-date")
)


class OriginalReference(NamedTuple):
    url: bytes  # no brackets
    date: bytes
    record_id: bytes  # no brackets; empty if it is not stated


def reference(revisit: Facts) -> OriginalReference:
    """What a revisit refers to: at its own URL if it states none."""
    url = unbracket(revisit.to_url) or revisit.url
    return OriginalReference(url, revisit.to_date, revisit.to_id)


class OriginalHint(NamedTuple):
    file: Place
    offset: int
    begins: bool = False  # a record certainly begins there


FindOriginal = Callable[[OriginalReference], Iterable[OriginalHint]]


class OriginalsIndex:
    """Places of the full records of some files, in an SQLite file that processes share."""

    def __init__(self, database: Path) -> None:
        self._path = database
        self._database: sqlite3.Connection | None = None

    def __del__(self) -> None:
        if self._database is not None:
            self._database.close()

    def add_files(self, files: list[Place], rows: ExecutorRows | None = None) -> None:
        """Write the places of all full records in files; once.

        With `rows` executors read the files, and `known_to` knows what their revisits refer to.
        """
        with closing(open_scratch(self._path)) as database:
            database.execute("CREATE TABLE files (path BLOB)")
            database.execute("CREATE TABLE places (key BLOB, file INTEGER, offset INTEGER)")
            database.execute("CREATE TABLE wanted (file INTEGER, key BLOB)")
            names = ((pickle.dumps(path),) for path in files)
            database.executemany("INSERT INTO files VALUES (?)", names)
            work = partial(record_places, references=rows is not None)
            for number, (key, offset) in in_order(work, files, files, rows=rows):
                if offset == _REFERENCE:
                    database.execute("INSERT INTO wanted VALUES (?, ?)", (number, key))
                else:
                    row = key, number + 1, offset
                    database.execute("INSERT INTO places VALUES (?, ?, ?)", row)
            database.execute("CREATE INDEX by_key ON places (key)")
            database.execute("CREATE INDEX by_file ON wanted (file)")
            database.commit()

    def find(self, wanted: OriginalReference) -> Iterator[OriginalHint]:
        """Yield places of records of the same URL and second."""
        return self._find(_key_of(wanted))

    def known_to(self, number: int, more: Iterable[bytes] = ()) -> KnownOriginals:
        """Return the places of what the revisits of a file of `add_files` refer to.

        Also those of `more` keys. The number -1 is of no file.
        """
        query = "SELECT DISTINCT key FROM wanted WHERE file = ?"
        keys = {key for (key,) in self._opened().execute(query, (number,))} | set(more)
        return KnownOriginals({key: list(self._find(key)) for key in keys})

    def _find(self, key: bytes) -> Iterator[OriginalHint]:
        query = (
            "SELECT path, offset FROM places JOIN files ON files.rowid = file WHERE key = ? "
            "ORDER BY places.rowid"
        )
        for path, offset in self._opened().execute(query, (key,)):
            yield OriginalHint(pickle.loads(path), offset)  # noqa: S301 (`add_files` wrote it)

    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            # With Spark a thread of its own takes the tasks, which are made here.
            address = f"{self._path.absolute().as_uri()}?mode=ro"
            self._database = sqlite3.connect(address, uri=True, check_same_thread=False)
        return self._database


class KnownOriginals:
    """A part of an `OriginalsIndex`, for an executor; collects the keys that it lacks."""

    def __init__(self, places: Mapping[bytes, list[OriginalHint]]) -> None:
        self._places = places
        self.missing = set[bytes]()

    def find(self, wanted: OriginalReference) -> Iterable[OriginalHint]:
        key = _key_of(wanted)
        if key not in self._places:
            self.missing.add(key)
        return self._places.get(key, ())


def _key_of(wanted: OriginalReference) -> bytes:
    return capture_key(wanted.url, wanted.date)


class UnusableOriginal(Broken):
    """An original is damaged, or its file cannot be read; the text says which file and why."""


class VerifiedOriginal:
    """A full record that is what a revisit refers to; its methods raise `UnusableOriginal`."""

    def __init__(self, container: Container, record: AnyRecord) -> None:
        self._container, self._record = container, record
        self._message: HttpHead | None = None

    @property
    def place(self) -> str:
        """Its file and offset, for a message."""
        return f"{self._container.name} at {self._record.offset}"

    def body(self) -> Iterator[bytes]:
        """Yield its body in pieces, once, before `facts`."""
        with self._reading():
            self._message, body = open_body(self._record)
            yield from body

    def facts(self) -> Facts:
        record = self._record
        if record.head.has(b"warc-payload-digest"):
            size = len(self._message.head) if self._message else 0
            return facts_of(record, self._message, record.length - size, ())
        with self._reading():
            return examine(self._container.at(record.offset), [])[0]

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (Broken, UnreadableFile) as error:
            reason = "original-damaged" if isinstance(error, Broken) else "unreadable"
            message = f"its original, {self.place}, cannot be read: {error}"
            raise UnusableOriginal(reason, message) from error


class OriginalReader:
    """Reads originals; keeps the files open that were used last."""

    def __init__(self, find: FindOriginal) -> None:
        self._find = find
        self._open: dict[Place, Container] = {}

    def close(self) -> None:
        while self._open:
            self._open.pop(next(iter(self._open))).file.close()

    def read(self, wanted: OriginalReference) -> Iterator[VerifiedOriginal]:
        """Yield all full records that match a reference."""
        for place in self._find(wanted):
            try:
                container = self._container(place.file)
                if not place.begins and not container.begins(place.offset):
                    continue
                record = container.at(place.offset)
            except (Broken, UnreadableFile):
                continue
            named = not wanted.record_id or record.record_id in (wanted.record_id, b"")
            same_date = record.date == wanted.date or timestamp14(record.date) == timestamp14(
                wanted.date
            )
            if record.kind in FULL and record.url == wanted.url and same_date and named:
                yield VerifiedOriginal(container, record)

    def _container(self, path: Place) -> Container:
        container = self._open.pop(path, None) or Container(open_file(path, scattered=True))
        self._open[path] = container  # last in the order of use
        if len(self._open) > _MAX_OPEN:
            self._open.pop(next(iter(self._open))).file.close()
        return container


def record_places(path: Place, *, references: bool) -> Iterator[tuple[bytes, int]]:
    """Yield the key and offset of each full record of a file, by the beginnings of its members.

    Some may be wrong, as a gzip file in a payload looks like members: `OriginalReader` proves them.
    With `references` also the key of what each revisit refers to, and `_REFERENCE`.
    """
    with suppress(UnreadableFile), opened(path) as file:
        for offset, url, date in _located(Container(file), references=references):
            yield capture_key(url, date), offset


def _located(container: Container, *, references: bool) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield offset, URL and date of each full record, and of the references of revisits."""
    kinds = FULL | {b"revisit"} if references else FULL
    if container.zipped and container.kind.startswith("warc"):
        for offset, start in container.beginnings.starts():
            if start.startswith(b"WARC/"):
                yield from _zipped_record(container, offset, start, kinds)
    elif container.zipped:
        for offset in container.beginnings.magics(0, container.file.size):
            yield from _parsed_record(container, offset, kinds)
    else:
        for item in container.each() if container.kind else ():
            if not isinstance(item, Finding) and item.kind in kinds:
                yield _row_of(item)


def _zipped_record(
    container: Container, offset: int, start: bytes, kinds: Set[bytes]
) -> Iterator[tuple[int, bytes, bytes]]:
    kind = _KIND.search(start)
    if kind and kind[1].lower() not in kinds:
        return
    url, date = _URL.search(start), _DATE.search(start)
    if kind and kind[1].lower() in FULL and url and date:
        yield offset, unbracket(url[1]), date[1]
    else:  # a revisit, or the header is unusual, or longer than `start`
        yield from _parsed_record(container, offset, kinds)


def _parsed_record(
    container: Container, offset: int, kinds: Set[bytes]
) -> Iterator[tuple[int, bytes, bytes]]:
    with suppress(Broken):
        record = container.at(offset)
        if record.kind in kinds:
            yield _row_of(record)


def _row_of(record: AnyRecord) -> tuple[int, bytes, bytes]:
    if record.kind in FULL:
        return record.offset, record.url, record.date
    wanted = reference(facts_of(record, None, 0, ()))
    return _REFERENCE, wanted.url, wanted.date


def rebuilt_block(originals: OriginalsIndex, path: Path, offset: int) -> Iterator[bytes]:
    """Yield the block that a revisit and its original make; raises `Broken` without these."""
    try:
        with opened(path) as file, closing(OriginalReader(originals.find)) as reader:
            record = Container(file).at(offset)
            if record.kind != b"revisit":
                raise Broken("record-changed", "no revisit is there")
            facts, message = examine(record, [])
            original = next(reader.read(reference(facts)), None)
            if original is None:
                raise Broken("original-missing", "no full record of its URL and date is found")
            yield message.head if message else b""
            yield from original.body()
    except UnreadableFile as error:
        raise Broken("unreadable", str(error)) from error
