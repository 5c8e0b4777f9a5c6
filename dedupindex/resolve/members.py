"""Records where they lie: in files here, or on servers that answer for a range of one."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from typing import BinaryIO
from urllib.parse import quote
from urllib.request import Request, urlopen

from dedupindex.errors import BadInput, BadSource
from dedupindex.manifest.line import Container
from dedupindex.warc.reader import read
from dedupindex.warc.record import BrokenRecord, Record
from dedupindex.warc.window import Window

TIMEOUT = 60.0  # seconds without an answer
_PIECE = 1 << 16


class Members:
    """Finds records by container and offset: in the file if it is here, else below a base URL.

    Below each base, a container has the path that it has below the root of its manifest.
    """

    def __init__(self, bases: Sequence[str] = ()) -> None:
        for base in bases:
            if not base.startswith(("http://", "https://")):
                raise BadInput(f"--base-url {base} begins neither with http:// nor https://")
        self._bases = [base.rstrip("/") for base in bases]
        self.counted: Counter[str] = Counter()  # members read here, fetched
        self.fetching = 0.0  # seconds

    @contextmanager
    def record(self, container: Container, offset: int, stored: int) -> Iterator[Record]:
        """The record at `offset` in so many bytes of the container; raises `BadSource`."""
        with self._opened(container, offset, stored) as (file, base):
            window = Window(file, container.path, base=base, size=stored)
            event = next(read(window), None)
            if not isinstance(event, Record):
                raise BadSource(f"{container.path} at {offset}: no record begins there")
            yield event

    def body(
        self, container: Container, offset: int, stored: int, length: int
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
        self, container: Container, offset: int, stored: int
    ) -> Iterator[tuple[BinaryIO, int]]:
        if not self._bases or os.path.exists(container.path):
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

    def _fetch(self, container: Container, offset: int, stored: int, into: BinaryIO) -> None:
        """Write the bytes of a range to `into`; the first base that has them counts."""
        wrong = []
        for base in self._bases:
            url = f"{base}/{quote(os.fsencode(container.name))}"
            into.seek(0)
            into.truncate()
            try:
                got = _range(url, offset, stored, into)
            except (OSError, HTTPException, ValueError) as error:
                wrong.append(f"{url}: {error}")
                continue
            if got == stored:
                into.flush()
                return
            wrong.append(f"{url}: {got} bytes came where {stored} were asked for")
        raise BadSource(f"{container.name} at {offset} cannot be fetched: {'; '.join(wrong)}")


def _range(url: str, offset: int, stored: int, into: BinaryIO) -> int:
    """Fetch a range; returns how many bytes came, of which never more than it has are kept."""
    asked = f"bytes={offset}-{offset + stored - 1}"
    request = Request(url, headers={"Range": asked, "Accept-Encoding": "identity"})
    with urlopen(request, timeout=TIMEOUT) as answer:
        if answer.status != 206:
            raise ValueError(f"the server sends no ranges (status {answer.status})")
        said = answer.headers.get("Content-Range", "")
        if not said.startswith(f"bytes {offset}-{offset + stored - 1}/"):
            raise ValueError(f"another range came: {said[:80]}")
        got = 0
        while got <= stored and (piece := answer.read(_PIECE)):
            got += len(piece)
            into.write(piece)
    return got
