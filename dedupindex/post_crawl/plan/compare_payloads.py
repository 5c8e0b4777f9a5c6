"""Compare the payloads of a plan with those of their originals, byte by byte, as they are now.

Hashes were taken when the files were scanned, and files may have changed since. What differs or
cannot be read is not rewritten.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, BinaryIO

from blake3 import blake3

from dedupindex.errors import BadInput, BadSource
from dedupindex.object_store import RemoteFile, is_remote
from dedupindex.post_crawl.manifest.parquet import ManifestContainer, fetch_rows
from dedupindex.runtime.duckdb import Database, insert
from dedupindex.runtime.progress import Say, ThrottledProgress
from dedupindex.warc.reader import read
from dedupindex.warc.record import BrokenRecord, Record
from dedupindex.warc.window import Window
from dedupindex.warc.zstd_format import DictionaryCache

if TYPE_CHECKING:
    from dedupindex.object_store.http_ranges import RangeServer

HELD = 8 << 20  # bytes; a shorter body is read once for all its copies
_BATCH = 1024  # rows
_SAMPLE = re.compile(r"sample[ =:]?([0-9]+)")


class RecordReader:
    """Reads records from local files, else from the same path below a base URL."""

    def __init__(self, bases: Sequence[str] = ()) -> None:
        """Raises `BadInput` for a base that is not a URL."""
        self._servers: list[RangeServer] = []
        if bases:
            from dedupindex.object_store.http_ranges import RangeServer  # slow: HTTP

            self._servers += map(RangeServer, bases)
        self._preferred: dict[str, RangeServer] = {}  # the server that had a file
        self._dictionaries = DictionaryCache()
        self.counts: Counter[str] = Counter()  # of records read here, in stores, from servers
        self.fetching = 0.0  # seconds

    def close(self) -> None:
        for server in self._servers:
            server.close()

    def body(
        self, container: ManifestContainer, offset: int, stored: int, length: int
    ) -> Generator[bytes, None, None]:
        """Yield the last `length` bytes of the block of a record, in pieces; raises `BadSource`."""
        where = f"{container.path} at {offset}"
        with self._opened(container, offset, stored) as (file, base, origin):
            self.counts[origin] += 1
            window = Window(file, container.path, base=base, size=stored)
            read_range = partial(self._range, container)
            dictionaries = partial(self._dictionaries.get, container.path, read_range)
            record = next(read(window, dictionaries), None)
            if not isinstance(record, Record):
                raise BadSource(f"{where}: no record begins there")
            skipped = record.length - length
            if skipped < 0:
                raise BadSource(f"{where}: the record is shorter than it was")
            try:
                for piece in record.pieces():
                    if skipped < len(piece):
                        yield bytes(piece[skipped:] if skipped else piece)
                    skipped = max(skipped - len(piece), 0)
            except BrokenRecord as error:
                raise BadSource(f"{where}: {error}") from error

    def _range(self, container: ManifestContainer, offset: int, count: int) -> bytes:
        with self._opened(container, offset, count) as (file, base, _):
            return Window(file, container.path, base=base, size=count).read(0, count)

    @contextmanager
    def _opened(
        self, container: ManifestContainer, offset: int, stored: int
    ) -> Iterator[tuple[BinaryIO, int, str]]:
        """Yield a file with a range of a container, its offset in that, and where it was read."""
        if is_remote(container.path) and not self._servers:
            with RemoteFile(container.path) as remote:
                yield remote, offset, "remote"
        elif not self._servers or os.path.exists(container.path):
            try:
                file: BinaryIO = open(container.path, "rb")  # noqa: SIM115
            except OSError as error:
                raise BadSource(f"{container.path} cannot be read: {error.strerror}") from error
            with file:
                yield file, offset, "local"
        else:
            begin = time.monotonic()
            with tempfile.TemporaryFile() as fetched:
                self._fetch(container, offset, stored, fetched)
                self.fetching += time.monotonic() - begin
                yield fetched, 0, "fetched"

    def _fetch(
        self, container: ManifestContainer, offset: int, stored: int, target: BinaryIO
    ) -> None:
        """Write a range of a file to `target`, from the first server that has it."""
        from dedupindex.object_store.http_ranges import FAILURES  # slow: HTTP

        name, failures = os.fsencode(container.name), []
        preferred = self._preferred.get(container.path)
        for server in sorted(self._servers, key=lambda server: server is not preferred):
            target.seek(0)
            target.truncate()
            try:
                count = server.fetch(name, offset, stored, target)
            except FAILURES as error:
                failures.append(f"{server.url(name)}: {error}")
                continue
            if count == stored:
                target.flush()
                self._preferred[container.path] = server
                return
            failures.append(f"{server.url(name)}: {count} bytes received, not {stored}")
        raise BadSource(f"{container.name} at {offset} cannot be fetched: {'; '.join(failures)}")


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
        self, reader: RecordReader, containers: dict[int, ManifestContainer], say: Say
    ) -> None:
        self._reader, self._containers, self._say = reader, containers, say

    def run(self, database: Database, compare: Compare) -> None:
        """Change the outcome of copies that differ from their original, or cannot be read."""
        if not compare.sample:
            return
        chosen = "SELECT DISTINCT original FROM outcomes WHERE outcome = 'copy'"
        if compare.sample > 0:
            chosen = f"SELECT * FROM ({chosen}) ORDER BY hash(original) LIMIT {compare.sample}"
        database.execute("CREATE TABLE failed (place BIGINT, reason VARCHAR)")
        failed: list[tuple[int | str, ...]] = []
        progress, counts = ThrottledProgress(self._say), self._reader.counts
        for _, rows in groupby(_rows(database.cursor(), chosen), key=itemgetter(0)):
            counts["clusters"] += 1
            progress("payloads compared", counts["clusters"])
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
