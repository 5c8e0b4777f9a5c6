"""An object as a file: read in blocks, the next one fetched while the last is being used.

A block that breaks off goes on where it did. The object is asked what it is before and after: what
has changed meanwhile `changed` tells, as for a file that is still being written.
"""

from __future__ import annotations

import io
import shutil
import tempfile
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, BinaryIO

from dedupindex.errors import BadSource
from dedupindex.object_store.store_address import WEB, is_remote, kept, scheme_of
from dedupindex.object_store.stores import (
    ObjectFacts,
    facts,
    facts_or_none,
    is_lasting,
    limits,
    patiently,
    pause,
    said_by,
    store_of,
)

LEAST, MOST = 1 << 16, 1 << 23  # bytes of the first block, and of those that follow in order
_SMALLEST = 1 << 14  # bytes that are asked for after failures
_HELD = 2  # blocks: readers step back a little


if TYPE_CHECKING:

    class _File(io.RawIOBase, BinaryIO):  # what it is to all who read it
        pass
else:
    _File = io.RawIOBase


def opened(path: str) -> BinaryIO:
    """A file here, or an object elsewhere, to be read at will; raises `OSError`, `BadSource`."""
    return RemoteFile(path) if is_remote(path) else open(path, "rb")


class RemoteFile(_File):
    """An object, opened to be read at will; at most three blocks of it are in memory.

    A web server that sends no ranges is read once, to an unnamed file in the directory for
    temporary files. Raises `BadSource`, while reading, too.
    """

    def __init__(
        self, address: str, known: ObjectFacts | None = None, *, in_order: bool = False
    ) -> None:
        """`known` is what the object was a moment ago, so that it need not be asked again.

        What is read `in_order`, all of it, comes in large blocks from the first one on.
        """
        self._address = address
        self._blocks = _Blocks(self._fetch, least=MOST if in_order else LEAST)
        self._at = 0
        self._opened: Any = None  # of fsspec
        self._spooled: BinaryIO | None = None
        # Python closes what could not be opened, too.
        if address.endswith("/"):  # fsspec would read what is there without the slash
            raise BadSource(f"{self.name} cannot be read: its name ends with a slash; rename it")
        self.facts = facts(address) if known is None else known
        self.size = self.facts.size

    @property
    def mark(self) -> tuple[int, int, int]:
        """What a file has as time of change, inode and device."""
        return self.facts.mark, 0, 0

    @property
    def name(self) -> str:
        """The address, without what gives access."""
        return kept(self._address)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        if begin + offset < 0:
            raise ValueError("negative seek position")
        self._at = begin + offset
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # as io documents it
        count = self.read_at(memoryview(buffer).cast("B"), self._at)
        self._at += count
        return count

    def read_at(self, into: memoryview, offset: int) -> int:
        """Fill `into` from `offset` on; how many bytes, fewer only at the end."""
        filled, wanted = 0, min(len(into), max(self.size - offset, 0))
        while filled < wanted:
            piece = self._blocks.at(offset + filled, self.size)[: wanted - filled]
            if not piece:
                break
            into[filled : filled + len(piece)] = piece
            filled += len(piece)
        return filled

    def pread(self, count: int, offset: int) -> bytes:
        """As `os.pread`, but fewer bytes come only at the end."""
        into = bytearray(min(count, max(self.size - offset, 0)))
        return bytes(into[: self.read_at(memoryview(into), offset)])

    def range(self, count: int, offset: int) -> bytes:
        """As `pread`, in one request for just these bytes: for records here and there."""
        return self._fetch(offset, max(min(count, self.size - offset), 0))

    def changed(self) -> bool:
        """Whether the object is no longer what it was when it was opened; raises `BadSource`."""
        return facts_or_none(self._address) != self.facts

    def close(self) -> None:
        if not self.closed:
            self._blocks.close()
            for opened in (self._opened, self._spooled):
                if opened is not None:
                    opened.close()
        super().close()

    def _fetch(self, offset: int, length: int) -> bytes:
        """A block; fewer bytes than asked for only of an object that has changed.

        What breaks off is asked for in smaller pieces: fsspec gives nothing of half an answer.
        """
        pieces: list[bytes] = []
        got = failed = 0
        most = length
        while got < length:
            try:
                piece = self._read(offset + got, min(most, length - got))
            except Exception as error:
                failed += 1
                if is_lasting(error) or failed >= limits().tries:
                    return self._given_up(b"".join(pieces), error)
                self._opened, most = None, max(most // 2, _SMALLEST)
                pause(failed)
                continue
            if piece:
                failed = 0
            else:
                failed += 1
                if failed >= limits().tries:
                    return self._given_up(b"".join(pieces), EOFError(f"it ends at {offset + got}"))
                pause(failed)
            pieces.append(piece)
            got += len(piece)
        return b"".join(pieces)

    def _given_up(self, got: bytes, error: Exception) -> bytes:
        """What was read of an object that was replaced; all else is an error."""
        if self.changed():
            return got
        if isinstance(error, BadSource):
            raise error
        raise BadSource(f"{self.name} cannot be read: {said_by(error)}") from error

    def _read(self, offset: int, length: int) -> bytes:
        """Ask once; what comes may be short."""
        if self._spooled is None:
            if self._opened is None:
                store, path = store_of(self._address)
                self._opened = store.open(path, "rb", **self._unbuffered())
            try:
                return self._asked(offset, length)
            except ValueError:  # fsspec's word for a web server that sends no ranges
                if scheme_of(self._address) not in WEB:
                    raise
                self._spooled = patiently(self._address, self._spool)
        self._spooled.seek(offset)
        return self._spooled.read(length)

    def _asked(self, offset: int, length: int) -> bytes:
        """What fsspec reads.

        It keeps an error in the frame that raises it, a circle that would hold on to all that the
        frames of its callers hold until the collector comes, on whatever thread.
        """
        try:
            self._opened.seek(offset)
            data: bytes = self._opened.read(length)
        except Exception as error:
            clear_frames(error.__traceback__)
            raise
        return data[:length]

    def _unbuffered(self) -> dict[str, Any]:
        """How fsspec opens a file without reading more of it than it is asked for."""
        if scheme_of(self._address) in WEB:
            return {"cache_type": "none", "size": self.size}
        return {"cache_type": "none"}

    def _spool(self) -> BinaryIO:
        """The whole object in an unnamed file."""
        store, path = store_of(self._address)
        spooled = tempfile.TemporaryFile()  # noqa: SIM115 (`close` closes it)
        try:
            with closing(store.open(path, "rb", block_size=0)) as stream:
                shutil.copyfileobj(stream, spooled, MOST)
            if spooled.tell() != self.size:
                raise EOFError(f"{spooled.tell():,} bytes came of {self.size:,}")
        except BaseException:
            spooled.close()
            raise
        return spooled


class _Blocks:
    """What was fetched last, and what is being fetched."""

    def __init__(
        self, fetch: Callable[[int, int], bytes], *, least: int = LEAST, most: int = MOST
    ) -> None:
        self._fetch, self._least, self._most = fetch, least, most
        self._held: deque[tuple[int, memoryview]] = deque(maxlen=_HELD)
        self._ahead: tuple[int, Future[bytes]] | None = None
        self._length = least
        self._thread: ThreadPoolExecutor | None = None

    def at(self, offset: int, size: int) -> memoryview:
        """The bytes that are held from `offset` on, at least one; none if the object ends there."""
        if offset >= size:
            return memoryview(b"")
        for start, data in self._held:
            if start <= offset < start + len(data):
                return data[offset - start :]
        in_order = bool(self._held) and offset == self._held[-1][0] + len(self._held[-1][1])
        if self._ahead is not None and self._ahead[0] == offset:
            block = self._ahead[1].result()
            self._ahead = None
        else:
            self._drop()
            self._length = min(2 * self._length, self._most) if in_order else self._least
            block = self._fetch(offset, min(self._length, size - offset))
        data = memoryview(block)
        self._held.append((offset, data))
        follows = offset + len(data)
        if in_order and data and follows < size:
            self._length = min(2 * self._length, self._most)
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "read-ahead")
            length = min(self._length, size - follows)
            self._ahead = follows, self._thread.submit(self._fetch, follows, length)
        return data

    def _drop(self) -> None:
        """Wait for what is no longer wanted: a file of fsspec is read by one thread at a time."""
        if self._ahead is not None:
            self._ahead[1].cancel()
            if not self._ahead[1].cancelled():
                self._ahead[1].exception()
            self._ahead = None

    def close(self) -> None:
        self._drop()
        if self._thread is not None:
            self._thread.shutdown()
