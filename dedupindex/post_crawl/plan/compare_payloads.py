"""Byte by byte: whether what the plan would drop is what its original has, in the files of now.

BLAKE3 has said so of the files as they were read. This reads them again, and so also finds those
that have changed since; whatever is not equal, or cannot be read, stays.
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
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, BinaryIO

from blake3 import blake3

from dedupindex.errors import BadInput, BadSource
from dedupindex.object_store import RemoteFile, is_remote
from dedupindex.post_crawl.manifest.lines import ManifestContainer
from dedupindex.runtime.duckdb import Database, insert
from dedupindex.runtime.progress import Say, ThrottledProgress
from dedupindex.warc.reader import read
from dedupindex.warc.record import BrokenRecord, Record
from dedupindex.warc.window import Window

# Records where they lie: in files here, in stores, or on servers that have copies of them.

if TYPE_CHECKING:
    from dedupindex.object_store.http_ranges import Server


class Members:
    """Finds records by container and offset: in the file if it is here, else below a base URL.

    Below each base, a container has the path that it has below the root of its manifest.
    """

    def __init__(self, bases: Sequence[str] = ()) -> None:
        """Raises `BadInput` for a base that is no URL."""
        self._servers: list[Server] = []
        if bases:
            from dedupindex.object_store.http_ranges import Server  # and with it all of HTTP

            self._servers += map(Server, bases)
        self._had: dict[str, Server] = {}  # which had a container, to be asked first
        self.counted: Counter[str] = Counter()  # members read here, in stores, of copies
        self.fetching = 0.0  # seconds

    def close(self) -> None:
        for server in self._servers:
            server.close()

    @contextmanager
    def record(self, container: ManifestContainer, offset: int, stored: int) -> Iterator[Record]:
        """The record at `offset` in so many bytes of the container; raises `BadSource`."""
        with self._opened(container, offset, stored) as (file, base):
            window = Window(file, container.path, base=base, size=stored)
            event = next(read(window), None)
            if not isinstance(event, Record):
                raise BadSource(f"{container.path} at {offset}: no record begins there")
            yield event

    def body(
        self, container: ManifestContainer, offset: int, stored: int, length: int
    ) -> Generator[bytes, None, None]:
        """The last `length` bytes of the block of a record, bit by bit; raises `BadSource`."""
        with self.record(container, offset, stored) as record:
            skipped = record.length - length
            if skipped < 0:
                raise BadSource(f"{container.path} at {offset}: the record is shorter than it was")
            try:
                for piece in record.pieces():
                    if skipped >= len(piece):
                        skipped -= len(piece)
                        continue
                    yield bytes(piece[skipped:] if skipped else piece)
                    skipped = 0
            except BrokenRecord as error:
                raise BadSource(f"{container.path} at {offset}: {error}") from error

    @contextmanager
    def _opened(
        self, container: ManifestContainer, offset: int, stored: int
    ) -> Iterator[tuple[BinaryIO, int]]:
        if is_remote(container.path) and not self._servers:
            with RemoteFile(container.path) as remote:
                self.counted["remote"] += 1
                yield remote, offset
            return
        if not self._servers or os.path.exists(container.path):
            try:
                file: BinaryIO = open(container.path, "rb")  # noqa: SIM115
            except OSError as error:
                raise BadSource(f"{container.path} cannot be read: {error.strerror}") from error
            with file:
                self.counted["local"] += 1
                yield file, offset
            return
        begin = time.monotonic()
        with tempfile.TemporaryFile() as held:
            self._fetch(container, offset, stored, held)
            self.fetching += time.monotonic() - begin
            self.counted["fetched"] += 1
            yield held, 0

    def _fetch(
        self, container: ManifestContainer, offset: int, stored: int, into: BinaryIO
    ) -> None:
        """Write the bytes of a range to `into`; the first base that has them counts."""
        from dedupindex.object_store.http_ranges import FAILURES  # slow: HTTP

        name, wrong = os.fsencode(container.name), []
        had = self._had.get(container.path)
        for server in sorted(self._servers, key=lambda server: server is not had):
            into.seek(0)
            into.truncate()
            try:
                got = server.fetch(name, offset, stored, into)
            except FAILURES as error:
                wrong.append(f"{server.url(name)}: {error}")
                continue
            if got == stored:
                into.flush()
                self._had[container.path] = server
                return
            wrong.append(f"{server.url(name)}: {got} bytes came where {stored} were asked for")
        raise BadSource(f"{container.name} at {offset} cannot be fetched: {'; '.join(wrong)}")


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
        telling = ThrottledProgress(self._say)
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
