"""Records where they lie: in files here, in stores, or on servers that have copies of them."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from dedupindex.errors import BadSource
from dedupindex.object_store import RemoteFile, is_remote
from dedupindex.post_crawl.manifest.lines import ManifestContainer
from dedupindex.warc.reader import read
from dedupindex.warc.record import BrokenRecord, Record
from dedupindex.warc.window import Window

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
