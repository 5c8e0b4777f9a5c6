"""What the metadata have left, on disk, in order of containers, to be handed out in chunks.

No chunk has more than so many captures. Where a group has more, of which perhaps only the first is
tried, its further pieces stand in a file of their own, to be fetched if they are needed.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from dedupindex.corpus.locate_containers import Places
from dedupindex.corpus.row import CorpusRow, RecordPlace
from dedupindex.corpus.select import KEYS, Best
from dedupindex.runtime.duckdb import Database
from dedupindex.runtime.files import writing

MOST = 200  # captures of a chunk
_AT_ONCE = 1000  # rows from DuckDB
_CHUNKS = 8  # for each process, if there are captures for so many

Group = list[CorpusRow]  # in the order in which they are tried


class Chunk(NamedTuple):
    """Groups to try; where `then` is not -1, what continues the only one has that number."""

    groups: list[Group]
    then: int = -1


class Chunks(Protocol):
    """All chunks, in order."""

    def __iter__(self) -> Iterator[Chunk]: ...
    def after(self, left: Chunk) -> Chunk | None:
        """What is still to be done of a chunk of which this was left."""


class Spooled:
    """Chunks in the files of a directory."""

    def __init__(self, home: Path) -> None:
        self._first, self._further = home / "first", home / "further"
        self._starts: list[int] = []  # of the pieces in `further`

    def __iter__(self) -> Iterator[Chunk]:
        with open(self._first, "rb") as stream:
            while stream.peek(1):
                yield pickle.load(stream)

    def after(self, left: Chunk) -> Chunk | None:
        """See `Chunks`."""
        if left.groups or left.then < 0:
            return left if left.groups else None
        with open(self._further, "rb") as stream:
            stream.seek(self._starts[left.then])
            chunk: Chunk = pickle.load(stream)
            return chunk

    def fill(
        self, database: Database, best: Best | None, places: Places, jobs: int, count: int,
        table: str = "chosen",
    ) -> None:  # fmt: skip
        """Write what is chosen, `count` captures."""
        size = max(min(count // (jobs * _CHUNKS), MOST), 1)
        with (
            writing(self._first.parent),
            open(self._first, "wb") as first,
            open(self._further, "wb") as further,
        ):
            held: list[Group] = []
            pieces = 0  # of the group that is being read
            last: object = None
            for key, capture in _captures(database, best, places, table):
                same = best is not None and key is not None and key == last
                if same and len(held[-1]) >= MOST:  # a long group stands alone
                    if len(held) > 1:
                        pickle.dump(Chunk(held[:-1]), first)
                    self._put(first, further, held[-1:], pieces, more=True)
                    held, pieces = [[]], pieces + 1
                elif not same and held and (pieces or sum(map(len, held)) >= size):
                    self._put(first, further, held, pieces)
                    held, pieces = [], 0
                if not same:
                    held.append([])
                held[-1].append(capture)
                last = key
            if held:
                self._put(first, further, held, pieces)

    def _put(
        self,
        first: BinaryIO,
        further: BinaryIO,
        groups: list[Group],
        pieces: int,
        *,
        more: bool = False,
    ) -> None:
        """Write a chunk, or a further piece of a group of which some were written."""
        if pieces:
            self._starts.append(further.tell())
        pickle.dump(Chunk(groups, len(self._starts) if more else -1), further if pieces else first)


def _captures(
    database: Database, best: Best | None, places: Places, table: str
) -> Iterator[tuple[object, CorpusRow]]:
    """What is chosen, each with what its group has in common."""
    key = KEYS[best.by] if best is not None else "NULL"
    order = f"k, {best.order}" if best is not None else 'container, "offset", url, "timestamp"'
    rows = database.execute(
        f'SELECT surt, "timestamp", url, mime, status, digest, redirect, meta, length, revisit, '
        "to_url, to_timestamp, coalesce(unmodified, false), container, container, beside, "
        '"offset", at_container, at_beside, at_offset, '
        f"at_length, named_url, named_timestamp, {key} AS k FROM {table} ORDER BY {order}"
    )
    while found := rows.fetchmany(_AT_ONCE):
        for row in found:
            yield row[-1], _capture(row, places)


def _capture(row: tuple[Any, ...], places: Places) -> CorpusRow:
    told, (container, beside, offset), there, named = row[:14], row[14:17], row[17:21], row[21:23]
    at_container, at_beside, at_offset, at_length = there
    length, revisit = told[8], told[9]
    record = _place(places, container, beside, offset, length)
    payload = None
    if revisit and at_container is not None and at_offset is not None:
        payload = _place(places, at_container, at_beside or beside, at_offset, at_length)
    return CorpusRow._make((*told, record, payload, *named))


def _place(
    places: Places,
    container: str | None,
    beside: str | None,
    offset: int | None,
    length: int | None,
) -> RecordPlace:
    found = places.find(container, beside or "") if container else ""
    return RecordPlace(found, -1 if offset is None else offset, -1 if length is None else length)
