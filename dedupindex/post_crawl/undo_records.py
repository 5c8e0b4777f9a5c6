"""Make dropped records from their revisits and originals, even after several runs.

Every run that rewrote a file has left a journal. Each run made the file smaller, so the sizes in
the journals lead from the present size back to the first.
"""

from __future__ import annotations

import hashlib
import heapq
import os
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple

import blake3

from dedupindex.errors import BadSource
from dedupindex.post_crawl.rewrite.journal import (
    Journal,
    JournalEntry,
    OffsetMap,
    entries,
    summary,
)
from dedupindex.post_crawl.rewrite.revisit_record import END
from dedupindex.runtime.atomic_replace import Sink, Untouched, identity, open_for_reading
from dedupindex.timestamps import digits_of_date
from dedupindex.urlkey import unbracket
from dedupindex.warc import http
from dedupindex.warc.random_access import ExactRecord, NotExact
from dedupindex.warc.reader import read
from dedupindex.warc.record import BrokenRecord, Record
from dedupindex.warc.record_facts import refers_to
from dedupindex.warc.window import open_window

_LEVEL = 6  # as most crawlers compress
_OPEN_FILES = 32
_LONGEST_CHAIN = 100  # originals that became revisits themselves


class RewriteRun:
    """What one run did to a file."""

    def __init__(self, journal: Path, dropped: Path | None) -> None:
        self.journal, self.dropped = journal, dropped
        self.root = journal.parent.parent
        self.before, self.after = summary(journal)

    @cached_property
    def offsets(self) -> OffsetMap:
        return OffsetMap(entries(self.journal))


class WrittenRevisit(NamedTuple):
    """A revisit at its present offset."""

    offset: int
    entry: JournalEntry
    root: Path  # directory of names that have no root of their own
    dropped: tuple[Path, int] | None  # file and offset of the dropped record, if it is kept


def rewrite_runs(path: Path, size: int) -> list[RewriteRun]:
    """Return the runs that rewrote a file of this size, the last first; raises `Damaged`.

    Each run may have known the file below another directory.
    """
    found = []
    for name in {path.absolute(), path.resolve()}:
        for directory in name.parents:
            journal = Journal(directory, str(name.relative_to(directory)))
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
    for entry in entries(run.journal):
        offset = entry.new_offset
        for after in reversed(later):
            offset = after.offsets.new(offset)
        dropped = (run.dropped, taken) if run.dropped else None
        yield WrittenRevisit(offset, entry, run.root, dropped)
        taken += entry.stored


class OriginalFinder:
    """Finds originals; opens a bounded number of files at a time.

    With `final`, the members that other files have dropped and kept are not used.
    """

    def __init__(self, *, final: bool = False) -> None:
        self._final = final
        self._files = ExitStack()
        self._open: dict[Path, tuple[BinaryIO, list[RewriteRun]]] = {}

    def original(self, written: WrittenRevisit, revisit: ExactRecord) -> ExactRecord:
        """Return the original of a revisit; raises `NotExact`.

        If the original has become a revisit itself, it is what was dropped then, or its original.
        In a file whose journals do not reach back, it is searched by URL and second.
        """
        first = written
        for _ in range(_LONGEST_CHAIN):
            entry = written.entry
            root = Path(entry.root) if entry.root else written.root
            found = self._find(root / entry.name, entry)
            if found is None:
                return self._search(root / entry.name, first.entry, revisit)
            if isinstance(found, ExactRecord):
                return found
            written = found
        raise NotExact("its original is a revisit of a revisit, without end")

    def opened(self, path: Path) -> BinaryIO:
        """Open a file for reading; it is closed when many others are open."""
        return self._opened(path)[0]

    def close(self) -> None:
        self._files.close()
        self._open.clear()

    def _opened(self, path: Path) -> tuple[BinaryIO, list[RewriteRun]]:
        if path not in self._open:
            if len(self._open) >= _OPEN_FILES:
                self.close()
            file = self._files.enter_context(open_for_reading(path))
            self._open[path] = file, rewrite_runs(path, os.fstat(file.fileno()).st_size)
        return self._open[path]

    def _find(self, path: Path, entry: JournalEntry) -> ExactRecord | WrittenRevisit | None:
        """Return an original, or the revisit that it became; None if no journal has its offset."""
        file, runs = self._opened(path)
        sizes = [os.fstat(file.fileno()).st_size, *(run.before.size for run in runs)]
        if entry.original_size not in sizes:
            return None
        offset = entry.original
        for run in reversed(runs[: sizes.index(entry.original_size)]):
            if run.offsets.is_revisit(offset):
                return self._replaced(run, offset)
            offset = run.offsets.new(offset)
        return ExactRecord(file, offset, entry.original_stored)

    def _search(self, path: Path, entry: JournalEntry, revisit: ExactRecord) -> ExactRecord:
        """Return the record that a revisit names, if it makes what was dropped; or `NotExact`."""
        named = refers_to(revisit.head.fields)
        file, _ = self._opened(path)
        places = _places(path, identity(os.fstat(file.fileno())))
        for offset, stored in places.get(_key(named.url, named.date), ()):
            with suppress(NotExact):
                found = ExactRecord(file, offset, stored)
                _check(entry, _pieces(entry, revisit, found))
                return found
        raise NotExact(f"{path} has a size that no journal has, and the original is not in it")

    def _replaced(self, run: RewriteRun, offset: int) -> ExactRecord | WrittenRevisit:
        for found in revisits_of_run(run, []):
            if found.entry.offset == offset:
                if found.dropped is None or self._final:
                    return found
                dropped, at = found.dropped
                return ExactRecord(self.opened(dropped), at, found.entry.stored, last=True)
        raise NotExact("its journal has changed")


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
    revisits: Iterator[WrittenRevisit], source: BinaryIO, sink: Sink, *, final: bool = False
) -> None:
    """Write a file with all records restored; raises `Untouched`. See `OriginalFinder`."""
    position, originals = 0, OriginalFinder(final=final)
    try:
        for found in revisits:
            sink.copy(source, position, found.offset - position)
            try:
                _write(found, source, originals, sink)
            except NotExact as error:
                raise Untouched(
                    f"the record at {found.offset} cannot be restored: {error}"
                ) from error
            position = found.offset + found.entry.new_stored
    finally:
        originals.close()
    sink.copy(source, position, os.fstat(source.fileno()).st_size - position)


def _write(found: WrittenRevisit, source: BinaryIO, originals: OriginalFinder, sink: Sink) -> None:
    """Write one record; raises `NotExact` if it is not as it was."""
    entry = found.entry
    if found.dropped is not None:
        path, at = found.dropped
        dropped = originals.opened(path)
        record = ExactRecord(dropped, at, entry.stored, last=True)
        _check(entry, chain([record.header], record.block(), [END]))
        sink.copy(dropped, at, entry.stored)
        return
    revisit = ExactRecord(source, found.offset, entry.new_stored)
    original = originals.original(found, revisit)
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, 31) if revisit.gzipped else None

    def written() -> Iterator[bytes | memoryview]:
        for piece in _pieces(entry, revisit, original):
            sink.write(packer.compress(piece) if packer else bytes(piece))
            yield piece

    _check(entry, written())
    if packer:
        sink.write(packer.flush())


def _check(entry: JournalEntry, pieces: Iterator[bytes | memoryview]) -> None:
    running = hashlib.sha256()
    for piece in pieces:
        running.update(piece)
    if running.hexdigest() != entry.sha256:
        raise NotExact("with its original it is not the record that was there")


def _pieces(
    entry: JournalEntry, revisit: ExactRecord, original: ExactRecord
) -> Iterator[bytes | memoryview]:
    """Yield the dropped record: its header, the HTTP header of the revisit, the original's body."""
    yield entry.header.encode("latin-1")
    yield from revisit.block()
    held, skip = b"", -1
    for piece in original.block():
        if skip >= 0:
            yield piece
            continue
        held += piece
        skip = http.header_end(held, 0, len(held))
        if skip >= 0:
            yield held[skip:]
    yield END
