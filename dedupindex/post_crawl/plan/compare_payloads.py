"""Compare the payloads of a plan with those of their originals, byte by byte, as they are now.

Hashes were taken when the files were scanned, and files may have changed since. What differs or
cannot be read is not rewritten.
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

from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.errors import BadInput, BadSource
from dedupindex.post_crawl.manifest.parquet import ManifestContainer, fetch_rows
from dedupindex.post_crawl.plan.record_reader import RecordReader
from dedupindex.runtime.duckdb import Database, insert, number

HELD = 8 << 20  # bytes; a shorter body is read once for all its copies
_BATCH = 1024  # rows
_SAMPLE = re.compile(r"sample[ =:]?([0-9]+)")


@dataclass(frozen=True)
class Compare:
    """How many groups of duplicates are compared; a payload with all its copies is one group."""

    sample: int = 0  # -1: all

    @classmethod
    def parse(cls, text: str) -> Compare:
        """Read ``always``, ``sample N`` or ``strong-digest``; raises `BadInput`."""
        if match := _SAMPLE.fullmatch(text):
            return cls(int(match[1]))
        if text in ("always", "strong-digest"):
            return cls(-1 if text == "always" else 0)
        raise BadInput(f"--compare {text}: give always, sample N or strong-digest")


class PayloadComparison:
    """Compares groups of duplicates; adds to the counts of the reader."""

    def __init__(
        self,
        reader: RecordReader,
        containers: dict[int, ManifestContainer],
        on_progress: OnProgress,
    ) -> None:
        self._reader, self._containers = reader, containers
        self._on_progress = on_progress

    def run(self, database: Database, compare: Compare) -> None:
        """Change the outcome of copies that differ from their original, or cannot be read."""
        if not compare.sample:
            return
        chosen = "SELECT DISTINCT original FROM outcomes WHERE outcome = 'copy'"
        if compare.sample > 0:
            chosen = f"SELECT * FROM ({chosen}) ORDER BY hash(original) LIMIT {compare.sample}"
        database.execute("CREATE TABLE failed (place BIGINT, reason VARCHAR)")
        failed: list[tuple[int | str, ...]] = []
        counts = self._reader.counts
        total = number(database, f"SELECT count(*) FROM ({chosen})")
        for _, rows in groupby(_rows(database.cursor(), chosen), key=itemgetter(0)):
            part = counts["clusters"] / max(total, 1)
            self._on_progress(ProgressUpdate("comparing", counts["bytes"], part=part))
            counts["clusters"] += 1
            failed += self._failures(rows)
            if len(failed) >= _BATCH:
                insert(database, "failed", failed)
                failed.clear()
        insert(database, "failed", failed)
        database.execute("""
            UPDATE outcomes SET outcome = reason FROM failed
            WHERE outcomes.place = failed.place""")

    def _failures(self, rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[int, str]]:
        """Yield the places of copies that are not rewritten, and why. The original comes first."""
        original, held, problem = next(rows), None, ""
        try:
            held = self._checked(original)
        except BadSource:
            problem = "original-unreadable"
        for row in rows:
            reason = problem or self._difference(original, held, row)
            self._reader.counts[reason or "equal"] += 1
            if reason:
                yield row[1], reason

    def _checked(self, row: tuple[Any, ...]) -> bytes | None:
        """Return the body, None if longer than `HELD`; raises `BadSource` if it has changed."""
        length, strong = row[5:]
        running, held = blake3(), []
        for piece in self._body(row):
            running.update(piece)
            if length <= HELD:
                held.append(piece)
        if running.digest() != strong:
            raise BadSource(f"line {row[1]}: not what was scanned")
        return b"".join(held) if length <= HELD else None

    def _body(self, row: tuple[Any, ...]) -> Generator[bytes, None, None]:
        _, _, container, offset, stored, length, _ = row
        return self._reader.body(self._containers[container], offset, stored, length)

    def _difference(
        self, original: tuple[Any, ...], held: bytes | None, copy: tuple[Any, ...]
    ) -> str:
        self._reader.counts["bytes"] += copy[5]
        try:
            with closing(self._body(copy)) as right:
                if held is not None:
                    return "" if same_bytes(iter([held]), right) else "differs"
                with closing(self._body(original)) as left:
                    return "" if same_bytes(left, right) else "differs"
        except BadSource:
            return "unreadable"


def same_bytes(left: Iterator[bytes | memoryview], right: Iterator[bytes | memoryview]) -> bool:
    """Whether two streams have the same bytes, however they are divided."""
    return all(one.tobytes() == other.tobytes() for one, other in in_step(left, right))


def in_step(
    left: Iterator[bytes | memoryview], right: Iterator[bytes | memoryview]
) -> Iterator[tuple[memoryview, memoryview]]:
    """Yield two streams in pieces of equal length; if one is longer, the last pair differs."""
    one = other = memoryview(b"")
    while True:
        one = one or memoryview(next(left, b""))
        other = other or memoryview(next(right, b""))
        count = min(len(one), len(other))
        if not count:
            if one or other:
                yield one, other
            return
        yield one[:count], other[:count]
        one, other = one[count:], other[count:]


def _rows(database: Database, originals: str) -> Iterator[tuple[Any, ...]]:
    """Yield the lines of groups, the original of each before its copies."""
    return fetch_rows(
        database,
        f"""
        WITH compared AS ({originals})
        SELECT original, place, container, "offset", stored, length, strong FROM lines
        JOIN (SELECT original, place FROM outcomes JOIN compared USING (original)
              WHERE outcome = 'copy'
              UNION ALL SELECT original, original FROM compared) USING (place)
        ORDER BY original, place <> original, place""",
    )
