"""Records made of their revisits and originals, whatever became of the containers in between.

Every run that rewrote a container has left a journal. From the size that it has now they lead back
to each size that it had; each run made it smaller.
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
    Ended,
    Journal,
    JournalEntry,
    Offsets,
    Was,
    entries,
    summary,
)
from dedupindex.post_crawl.rewrite.revisit_record import END
from dedupindex.runtime.atomic_replace import Left, Sink, identity, open_for_reading
from dedupindex.timestamps import digits_of_date
from dedupindex.urlkey import unbracket
from dedupindex.warc import http
from dedupindex.warc.random_access import ExactRecord, NotExact
from dedupindex.warc.reader import read
from dedupindex.warc.record import BrokenRecord, Record
from dedupindex.warc.record_facts import refers_to
from dedupindex.warc.window import open_window

_LEVEL = 6  # as most crawlers compress
_OPEN = 32  # files
_CHAIN = 100  # originals of originals


class Round:
    """What one run did to a container."""

    def __init__(self, told: Path, dropped: Path | None) -> None:
        self.told, self.dropped = told, dropped
        self.base = told.parent.parent
        self.was: Was
        self.ended: Ended
        self.was, self.ended = summary(told)

    @cached_property
    def offsets(self) -> Offsets:
        return Offsets(entries(self.told))


class WrittenRevisit(NamedTuple):
    """A revisit, where it stands now."""

    offset: int
    entry: JournalEntry
    base: Path  # what names without a root are below
    kept: tuple[Path, int] | None  # where the record that was dropped is, if it is kept


def rounds(path: Path, size: int) -> list[Round]:
    """The runs that made of a container what it is, the last first; raises `Damaged`.

    They may have known it below several folders.
    """
    found = []
    names = {path.absolute(), path.resolve()}
    for place, above in [(name, above) for name in names for above in name.parents]:
        journal = Journal(above, str(place.relative_to(above)))
        if journal.exists():
            found.append(
                Round(journal.lines, journal.dropped if journal.dropped.exists() else None)
            )
        found += [Round(told, None) for told in reversed(journal.committed())]
    made = []
    while last := next((one for one in found if one.ended.size == size), None):
        made.append(last)
        found.remove(last)
        size = last.was.size
    return made


def revisits(made: list[Round]) -> Iterator[WrittenRevisit]:
    """All revisits that some runs have made in a container, the last first, in order of offset."""
    streams = [of_round(one, made[:number]) for number, one in enumerate(made)]
    return heapq.merge(*streams, key=lambda found: found.offset)


def of_round(one: Round, later: list[Round]) -> Iterator[WrittenRevisit]:
    taken = 0
    for entry in entries(one.told):
        offset = entry.new_offset
        for after in reversed(later):
            offset = after.offsets.now(offset)
        yield WrittenRevisit(offset, entry, one.base, (one.dropped, taken) if one.dropped else None)
        taken += entry.stored


class Holders:
    """The containers of originals, opened as they are needed, a bounded number at a time.

    `final` says that what other containers have dropped and kept is not to be counted on.
    """

    def __init__(self, *, final: bool = False) -> None:
        self._final = final
        self._files = ExitStack()
        self._open: dict[Path, tuple[BinaryIO, list[Round]]] = {}

    def original(self, made: WrittenRevisit, revisit: ExactRecord) -> ExactRecord:
        """The original of a revisit; raises `NotExact`.

        If that has become a revisit itself, it is what was dropped then, or its original. In a
        container of which no journal tells any more, it is looked for by URL and second.
        """
        first = made
        for _ in range(_CHAIN):
            entry = made.entry
            root = Path(entry.root) if entry.root else made.base
            found = self._find(root / entry.name, entry)
            if found is None:
                return self._named(root / entry.name, first.entry, revisit)
            if isinstance(found, ExactRecord):
                return found
            made = found
        raise NotExact("its original is a revisit of a revisit, without end")

    def opened(self, path: Path) -> BinaryIO:
        """A file, open until many others are."""
        return self._opened(path)[0]

    def close(self) -> None:
        self._files.close()
        self._open.clear()

    def _opened(self, path: Path) -> tuple[BinaryIO, list[Round]]:
        if path not in self._open:
            if len(self._open) >= _OPEN:
                self.close()
            file = self._files.enter_context(open_for_reading(path))
            self._open[path] = file, rounds(path, os.fstat(file.fileno()).st_size)
        return self._open[path]

    def _find(self, path: Path, entry: JournalEntry) -> ExactRecord | WrittenRevisit | None:
        """An original, or the revisit that it became; None if nothing tells where it is now."""
        file, made = self._opened(path)
        sizes = [os.fstat(file.fileno()).st_size, *(one.was.size for one in made)]
        if entry.original_size not in sizes:
            return None
        since = sizes.index(entry.original_size)
        offset = entry.original
        for one in reversed(made[:since]):
            if one.offsets.became(offset):
                return self._became(one, offset)
            offset = one.offsets.now(offset)
        return ExactRecord(file, offset, entry.original_stored)

    def _named(self, path: Path, entry: JournalEntry, revisit: ExactRecord) -> ExactRecord:
        """The record that a revisit names, if it makes what was dropped; raises `NotExact`."""
        named = refers_to(revisit.head.fields)
        file, _ = self._opened(path)
        places = _places(path, identity(os.fstat(file.fileno())))
        for offset, stored in places.get(_key(named.url, named.date), ()):
            with suppress(NotExact):
                found = ExactRecord(file, offset, stored)
                _check(entry, _pieces(entry, revisit, found))
                return found
        raise NotExact(f"{path} is of a size of which no journal tells, and its original not there")

    def _became(self, one: Round, offset: int) -> ExactRecord | WrittenRevisit:
        for found in of_round(one, []):
            if found.entry.offset == offset:
                if found.kept is None or self._final:
                    return found
                dropped, at = found.kept
                return ExactRecord(self.opened(dropped), at, found.entry.stored, last=True)
        raise NotExact("its journal has changed")


@lru_cache(4)
def _places(path: Path, _: tuple[int, int, int, int]) -> dict[bytes, list[tuple[int, int]]]:
    """Where the responses of a container are, by URL and second."""
    found: dict[bytes, list[tuple[int, int]]] = {}
    last: Record | None = None  # it is known how long it is when the next begins
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
    made: Iterator[WrittenRevisit], source: BinaryIO, sink: Sink, *, final: bool = False
) -> None:
    """Write a container with every record as it was; raises `Left`. `final`: see `Holders`."""
    position, holders = 0, Holders(final=final)
    try:
        for found in made:
            sink.copy(source, position, found.offset - position)
            try:
                _write(found, source, holders, sink)
            except NotExact as error:
                raise Left(f"the record at {found.offset} cannot be restored: {error}") from error
            position = found.offset + found.entry.new_stored
    finally:
        holders.close()
    sink.copy(source, position, os.fstat(source.fileno()).st_size - position)


def _write(found: WrittenRevisit, source: BinaryIO, holders: Holders, sink: Sink) -> None:
    """Write one record; raises `NotExact` if it does not come out as it was."""
    entry = found.entry
    if found.kept is not None:
        path, at = found.kept
        dropped = holders.opened(path)
        kept = ExactRecord(dropped, at, entry.stored, last=True)
        _check(entry, _whole(kept))
        sink.copy(dropped, at, entry.stored)
        return
    revisit = ExactRecord(source, found.offset, entry.new_stored)
    original = holders.original(found, revisit)
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


def _whole(record: ExactRecord) -> Iterator[bytes | memoryview]:
    yield record.header
    yield from record.block()
    yield END


def _pieces(
    entry: JournalEntry, revisit: ExactRecord, original: ExactRecord
) -> Iterator[bytes | memoryview]:
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
