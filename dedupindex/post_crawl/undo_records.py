"""Restore records: each from the dropped member, or from its revisit and its original.

Each run that rewrote a file left a journal and made the file smaller, so the sizes in the journals
lead from the present size back to the first.
"""

from __future__ import annotations

import hashlib
import heapq
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple, get_type_hints

import blake3

from dedupindex.errors import BadSource, Damaged
from dedupindex.object_store import PartialCopy, is_remote
from dedupindex.post_crawl.rewrite.journal import Journal, JournalEntry, OffsetMap, entries, summary
from dedupindex.post_crawl.rewrite.revisit_record import END
from dedupindex.post_crawl.rewrite.undo_directory import names_of
from dedupindex.runtime.atomic_replace import (
    Sink,
    Untouched,
    identity,
    open_for_reading,
)
from dedupindex.timestamps import digits_of_date
from dedupindex.urlkey import unbracket
from dedupindex.warc import http
from dedupindex.warc.headers import BadHead, parse
from dedupindex.warc.random_access import ExactRecord, NotExact, dictionaries_of
from dedupindex.warc.reader import read
from dedupindex.warc.record import BrokenRecord, Record
from dedupindex.warc.record_facts import refers_to
from dedupindex.warc.window import open_window

LEVEL = 6  # as most crawlers compress
_KINDS = get_type_hints(JournalEntry)
_OPEN_FILES = 32
_LONGEST_CHAIN = 100  # originals that became revisits themselves


def check_entry(entry: JournalEntry) -> None:
    """Raise `ValueError` for values that no run writes: the journal is damaged."""
    for name, value in entry._asdict().items():
        if type(value) is not _KINDS[name] or (isinstance(value, int) and value < 0):
            raise ValueError(f"{name} has a value of another kind")
        if isinstance(value, str) and name != "header" and b"\0" in os.fsencode(value):
            raise ValueError(f"{name} has a zero byte")
    entry.header.encode("latin-1")  # which may have any byte


def checked_entries(path: Path) -> Iterator[JournalEntry]:
    """Yield the revisits in a journal, in order of offset; raises `Damaged`."""
    position = new_position = 0
    for entry in entries(path):
        try:
            check_entry(entry)
        except ValueError as error:
            raise Damaged(f"{path} has a line that cannot be read: {error}") from error
        if entry.offset < position or entry.new_offset < new_position:
            raise Damaged(f"{path} has entries that are out of order")
        position, new_position = entry.offset, entry.new_offset + entry.new_stored
        yield entry


class RewriteRun:
    def __init__(self, journal: Path, dropped: Path | None) -> None:
        self.journal, self.dropped = journal, dropped
        self.root = journal.parent.parent
        self.before, self.after = summary(journal)

    @cached_property
    def offsets(self) -> OffsetMap:
        return OffsetMap(checked_entries(self.journal))


class WrittenRevisit(NamedTuple):
    """A revisit at its present offset."""

    offset: int
    entry: JournalEntry
    root: Path  # directory of names that have no root of their own
    dropped: tuple[Path, int] | None  # file and offset of the dropped record, if it is kept


def rewrite_runs(path: Path, size: int) -> list[RewriteRun]:
    """Return the runs that rewrote a file of this size, the last first; raises `Damaged`."""
    found = []
    for directory, name in names_of(path):
        journal = Journal(directory, name)
        if journal.exists():
            dropped = journal.dropped if journal.dropped.exists() else None
            found.append(RewriteRun(journal.lines, dropped))
        found += [RewriteRun(lines, None) for lines in reversed(journal.committed())]
    runs = []
    while last := next((run for run in found if run.after.size == size), None):
        runs.append(last)
        found.remove(last)
        size = last.before.size
    return runs


def revisits(runs: list[RewriteRun]) -> Iterator[WrittenRevisit]:
    """Yield the revisits that some runs, the last first, wrote to a file, in order of offset."""
    streams = [revisits_of_run(run, runs[:number]) for number, run in enumerate(runs)]
    return heapq.merge(*streams, key=lambda found: found.offset)


def revisits_of_run(run: RewriteRun, later: list[RewriteRun]) -> Iterator[WrittenRevisit]:
    """Yield the revisits of one run, at their offsets after `later` runs."""
    taken = 0
    for entry in checked_entries(run.journal):
        offset = entry.new_offset
        for after in reversed(later):
            offset = after.offsets.new(offset)
        dropped = (run.dropped, taken) if run.dropped else None
        yield WrittenRevisit(offset, entry, run.root, dropped)
        taken += entry.stored


class OnOtherHost(NotExact):
    """An original is on a host whose results were not named."""


class OriginalFinder:
    """Finds originals; if `final`, not among members that other files have dropped and kept.

    `hosts` are the directories in which the results of other hosts are mounted, `stores` the
    addresses of results, by the directory of their journals.
    """

    def __init__(
        self, hosts: Mapping[str, Path], stores: Mapping[Path, str], *, final: bool = False
    ) -> None:
        self._hosts, self._final = hosts, final
        self._stores = {os.path.realpath(one): store for one, store in stores.items()}
        self._files = ExitStack()
        self._open: dict[Path, tuple[BinaryIO, list[RewriteRun]]] = {}
        self._copies: dict[Path, PartialCopy] = {}  # of files in stores

    def lacks_host(self, entry: JournalEntry) -> bool:
        """Whether an original is on a host whose directory is not known."""
        return bool(entry.host) and entry.host not in self._hosts

    def original(self, written: WrittenRevisit, revisit: ExactRecord) -> ExactRecord:
        """Return the original of a revisit; raises `NotExact`.

        If the original has become a revisit itself, it is what was dropped then, or its original.
        In a file whose journals do not reach back, it is searched by URL and second.
        """
        with _naming(written.entry):
            return self._original(written, revisit)

    def _original(self, written: WrittenRevisit, revisit: ExactRecord) -> ExactRecord:
        first = written
        for _ in range(_LONGEST_CHAIN):
            entry = written.entry
            path = self._path(written)
            found = self._find(path, entry)
            if found is None:
                return self._search(path, first.entry, revisit)
            if isinstance(found, ExactRecord):
                return found
            written = found
        raise NotExact("it is a revisit of a revisit, in a cycle")

    def _root(self, written: WrittenRevisit) -> Path:
        """Return the directory of the original's file; raises `NotExact`."""
        entry = written.entry
        if entry.host:
            if self.lacks_host(entry):
                in_store = os.path.realpath(written.root) in self._stores
                option = "originals s3://BUCKET/PREFIX" if in_store else f"host {entry.host}=DIR"
                place = "address" if in_store else "directory"
                raise OnOtherHost(
                    f"it is on the host {entry.host}: name the {place} of its results with "
                    f"bin/undedup --{option}"
                )
            return self._hosts[entry.host]
        return Path(entry.root) if entry.root else written.root

    def _path(self, written: WrittenRevisit) -> Path:
        """Return the path of the original's file, or what stands for it if that is in a store."""
        entry = written.entry
        if is_remote(entry.root):
            path, address = Path("/", entry.root, entry.name), f"{entry.root}/{entry.name}"
        else:
            root = self._root(written)
            path, store = root / entry.name, self._stores.get(os.path.realpath(root))
            address = f"{store}/{entry.name}" if store else ""
        if address and path not in self._open:
            self._make_room()
            copy = self._files.enter_context(closing(PartialCopy(address)))
            self._copies[path] = copy
            self._open[path] = copy.file, rewrite_runs(path, copy.size)
        return path

    def close(self) -> None:
        self._files.close()
        self._open.clear()
        self._copies.clear()

    def _make_room(self) -> None:
        if len(self._open) >= _OPEN_FILES:
            self.close()

    def opened(self, path: Path) -> tuple[BinaryIO, list[RewriteRun]]:
        """Open a file for reading, and find its runs; it is closed when many others are open."""
        if path not in self._open:
            self._make_room()
            file = self._files.enter_context(open_for_reading(path))
            self._open[path] = file, rewrite_runs(path, os.fstat(file.fileno()).st_size)
        return self._open[path]

    def _find(self, path: Path, entry: JournalEntry) -> ExactRecord | WrittenRevisit | None:
        """Return an original, or the revisit that it became; None if no journal has its offset."""
        file, runs = self.opened(path)
        sizes = [os.fstat(file.fileno()).st_size, *(run.before.size for run in runs)]
        if entry.original_size not in sizes:
            return None
        offset = entry.original
        for run in reversed(runs[: sizes.index(entry.original_size)]):
            if run.offsets.is_revisit(offset):
                return self._replaced(run, offset, file)
            offset = run.offsets.new(offset)
        if path in self._copies:
            self._copies[path].need(offset, entry.original_stored)
        return ExactRecord(file, offset, entry.original_stored)

    def _search(self, path: Path, entry: JournalEntry, revisit: ExactRecord) -> ExactRecord:
        """Return the record that a revisit names, if it makes what was dropped; or `NotExact`."""
        if path in self._copies:
            raise NotExact(f"{entry.name} in the store has a size that no journal has")
        named = refers_to(revisit.head.fields)
        file, _ = self.opened(path)
        places = _places(path, identity(os.fstat(file.fileno())))
        for offset, stored in places.get(_key(named.url, named.date), ()):
            with suppress(NotExact):
                found = ExactRecord(file, offset, stored)
                _check(entry, _pieces(entry, revisit, found))
                return found
        raise NotExact(f"{path} has a size that no journal has, and the original is not in it")

    def _replaced(
        self, run: RewriteRun, offset: int, file: BinaryIO
    ) -> ExactRecord | WrittenRevisit:
        for found in revisits_of_run(run, []):
            if found.entry.offset == offset:
                if found.dropped is None or self._final:
                    return found
                dropped, at = found.dropped
                return ExactRecord(
                    self.opened(dropped)[0], at, found.entry.stored, last=True,
                    dictionaries=dictionaries_of(file),
                )  # fmt: skip
        raise NotExact("its journal has changed")


@contextmanager
def _naming(entry: JournalEntry) -> Iterator[None]:
    """Name the original of an entry in what is raised: the file and offset of the scan."""
    try:
        yield
    except NotExact as error:
        where = f"its original, {entry.name} at {entry.original}"
        raise type(error)(f"{where}: {error}") from error


@lru_cache(4)
def _places(path: Path, _: tuple[int, int, int, int]) -> dict[bytes, list[tuple[int, int]]]:
    """Return offset and size of the responses of a file, by URL and second."""
    found: dict[bytes, list[tuple[int, int]]] = {}
    last: Record | None = None  # its size is known when the next record begins
    with suppress(BadSource), closing(open_window(path.name, path)) as window:
        for event in chain(read(window), [None]):
            if last is not None:
                url, date = last.values[:2]
                with suppress(BrokenRecord):
                    last.finish()
                    found.setdefault(_key(unbracket(url), date), []).append(
                        (last.offset, last.stored)
                    )
            last = event if isinstance(event, Record) and event.type == b"response" else None
    return found


def _key(url: bytes, date: bytes) -> bytes:
    return blake3.blake3(url + b"\0" + digits_of_date(date)).digest(16)


def write_records(
    revisits: Iterator[WrittenRevisit], source: BinaryIO, sink: Sink, originals: OriginalFinder
) -> bool:
    """Write a file with all records restored; raises `Untouched`.

    Returns whether the bytes of all are as they were: no record was compressed again.
    """
    position, exact = 0, True
    for found in revisits:
        if found.offset < position:
            raise Untouched("its journals do not agree")
        sink.copy(source, position, found.offset - position)
        try:
            exact &= _write(found, source, originals, sink)
        except NotExact as error:
            raise Untouched(f"the record at {found.offset} cannot be restored: {error}") from error
        position = found.offset + found.entry.new_stored
    sink.copy(source, position, os.fstat(source.fileno()).st_size - position)
    return exact


def _write(found: WrittenRevisit, source: BinaryIO, originals: OriginalFinder, sink: Sink) -> bool:
    """Write one record and return whether it was not compressed again.

    Raises `NotExact` if it is not as it was.
    """
    entry = found.entry
    if found.dropped is not None:
        path, at = found.dropped
        dropped, _ = originals.opened(path)
        _check_dropped(entry, dropped, at, source)
        sink.copy(dropped, at, entry.stored)
        return True
    revisit = ExactRecord(source, found.offset, entry.new_stored)
    original = originals.original(found, revisit)
    packer = revisit.packer(_size(entry), LEVEL)

    def written() -> Iterator[bytes | memoryview]:
        for piece in _pieces(entry, revisit, original):
            sink.write(packer.compress(piece) if packer else bytes(piece))
            yield piece

    with _naming(entry):
        _check(entry, written())
    if packer:
        sink.write(packer.flush())
    return packer is None


def damaged_text(journal: Journal, name: str, source: BinaryIO) -> str:
    """Say how many dropped members of a run are not the records of their entries; "" for none.

    `name` is what to call the file with the dropped members, `source` the rewritten file, which may
    have their dictionary. Raises `Damaged` if the journal cannot be read.
    """
    count, damaged = 0, 0
    with open_for_reading(journal.dropped) as dropped:
        for found in revisits_of_run(RewriteRun(journal.lines, journal.dropped), []):
            assert found.dropped is not None
            count += 1
            try:
                _check_dropped(found.entry, dropped, found.dropped[1], source)
            except NotExact:
                damaged += 1
    return f"{damaged:,} of {count:,} removed records in {name} are damaged" if damaged else ""


def _check_dropped(entry: JournalEntry, dropped: BinaryIO, at: int, source: BinaryIO) -> None:
    """Raise `NotExact` if a dropped member is not the record of its entry."""
    record = ExactRecord(dropped, at, entry.stored, last=True, dictionaries=dictionaries_of(source))
    _check(entry, chain([record.header], record.block(), [END]))


def _size(entry: JournalEntry) -> int:
    """Return the bytes of a dropped record, decompressed; raises `NotExact`."""
    header = entry.header.encode("latin-1")
    try:
        return len(header) + parse(header[: -len(END)]).length + len(END)
    except BadHead as error:
        raise NotExact(str(error)) from error


def _check(entry: JournalEntry, pieces: Iterator[bytes | memoryview]) -> None:
    running = hashlib.sha256()
    for piece in pieces:
        running.update(piece)
    if running.hexdigest() != entry.sha256:
        raise NotExact("the record does not come out as the one that was dropped")


def _pieces(
    entry: JournalEntry, revisit: ExactRecord, original: ExactRecord
) -> Iterator[bytes | memoryview]:
    """Yield the dropped record: its header, the HTTP header of the revisit, the original's body."""
    yield entry.header.encode("latin-1")
    yield from revisit.block()
    yield from body_of(original)
    yield END


def body_of(original: ExactRecord) -> Iterator[bytes | memoryview]:
    """Yield the block of a record behind its HTTP header."""
    held, skip = b"", -1
    for piece in original.block():
        if skip >= 0:
            yield piece
            continue
        held += piece
        skip = http.header_end(held, 0, len(held))
        if skip >= 0:
            yield held[skip:]
