"""Byte by byte: whether what the plan would drop is what its original has, in the files of now.

BLAKE3 has said so of the files as they were read. This reads them again, and so also finds those
that have changed since; whatever is not equal, or cannot be read, stays.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

from blake3 import blake3

from dedupindex.errors import BadInput, BadSource
from dedupindex.post_crawl.manifest.lines import ManifestContainer
from dedupindex.post_crawl.plan.members import Members
from dedupindex.runtime.duckdb import Database, insert
from dedupindex.runtime.progress import Say, Telling

HELD = 8 << 20  # bytes: a shorter body is read once for all its copies
_FETCHED = 1024  # rows at a time
_SAMPLE = re.compile(r"sample[ =:]?([0-9]+)")


@dataclass(frozen=True)
class Compare:
    """Which clusters are compared: a payload with all its copies is one."""

    sample: int = 0  # so many of them; -1: all

    @classmethod
    def parse(cls, text: str) -> Compare:
        """Read ``always``, ``sample N`` or ``strong-digest``; raises `BadInput`."""
        if match := _SAMPLE.fullmatch(text):
            return cls(int(match[1]))
        if text in ("always", "strong-digest"):
            return cls(-1 if text == "always" else 0)
        raise BadInput(f"--compare {text}: there are always, sample N and strong-digest")


class Comparing:
    """Goes through the clusters of a run."""

    def __init__(self, members: Members, places: dict[int, ManifestContainer], say: Say) -> None:
        self.counted = members.counted
        self._say = say
        self._members, self._places = members, places

    def run(self, database: Database, compare: Compare) -> None:
        """Let those of ``outcomes`` stay that differ from their original, or cannot be read."""
        if not compare.sample:
            return
        chosen = "SELECT DISTINCT original FROM outcomes WHERE outcome = 'copy'"
        if compare.sample > 0:
            chosen = f"SELECT * FROM ({chosen}) ORDER BY hash(original) LIMIT {compare.sample}"
        database.execute("CREATE TABLE failed (place BIGINT, reason VARCHAR)")
        failed: list[tuple[int | str, ...]] = []
        telling = Telling(self._say)
        for _, rows in groupby(_rows(database.cursor(), chosen), key=itemgetter(0)):
            self.counted["clusters"] += 1
            telling("payloads compared", self.counted["clusters"])
            for found in self._cluster(rows):
                failed.append(found)
                if len(failed) == _FETCHED:
                    insert(database, "failed", failed)
                    failed.clear()
        insert(database, "failed", failed)
        database.execute("""
            UPDATE outcomes SET outcome = reason FROM failed
            WHERE outcomes.place = failed.place""")

    def _cluster(self, rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[int, str]]:
        """The places that stay, with the reason. The original comes first."""
        original, wrong = _Body(self._members, self._places, next(rows)), ""
        try:
            original.read()
        except BadSource:
            wrong = "original-unreadable"
        for row in rows:
            why = wrong or self._why_not(original, _Body(self._members, self._places, row))
            self.counted[why or "equal"] += 1
            if why:
                yield row[1], why

    def _why_not(self, original: _Body, copy: _Body) -> str:
        self.counted["bytes"] += copy.length
        try:
            with closing(original.pieces()) as left, closing(copy.pieces()) as right:
                return "" if same_bytes(left, right) else "differs"
        except BadSource:
            return "unreadable"


class _Body:
    """The stored body that a row names, read as often as it is wanted, or held if it is short."""

    def __init__(
        self, members: Members, places: dict[int, ManifestContainer], row: tuple[Any, ...]
    ) -> None:
        _, _, number, offset, stored, self.length, self._strong = row
        self._where = places[number], offset, stored, self.length
        self._members = members
        self._held: bytes | None = None

    def read(self) -> None:
        """See that the body is the one that was scanned; raises `BadSource`."""
        running = blake3()
        held = []
        for piece in self._members.body(*self._where):
            running.update(piece)
            if self.length <= HELD:
                held.append(piece)
        if running.digest() != self._strong:
            raise BadSource(f"{self._where[0].path} at {self._where[1]}: not what was scanned")
        if self.length <= HELD:
            self._held = b"".join(held)

    def pieces(self) -> Generator[bytes, None, None]:
        if self._held is not None:
            yield self._held
        else:
            yield from self._members.body(*self._where)


def same_bytes(left: Iterator[bytes], right: Iterator[bytes]) -> bool:
    """Whether two streams have the same bytes, however they are cut."""
    mine = theirs = b""
    while True:
        mine = mine or next(left, b"")
        theirs = theirs or next(right, b"")
        count = min(len(mine), len(theirs))
        if not count:
            return not mine and not theirs
        if mine[:count] != theirs[:count]:
            return False
        mine, theirs = mine[count:], theirs[count:]


def _rows(database: Database, originals: str) -> Iterator[tuple[Any, ...]]:
    """The lines of clusters, the original of each before its copies."""
    found = database.execute(f"""
        WITH compared AS ({originals})
        SELECT original, place, container, "offset", stored, length, strong FROM lines
        JOIN (SELECT original, place FROM outcomes JOIN compared USING (original)
              WHERE outcome = 'copy'
              UNION ALL SELECT original, original FROM compared) USING (place)
        ORDER BY original, place <> original, place""")
    while rows := found.fetchmany(_FETCHED):
        yield from rows
