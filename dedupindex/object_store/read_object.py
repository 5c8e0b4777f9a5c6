"""Read an object as a file, in blocks; the next block is fetched ahead.

An interrupted block is continued where it broke off. `RemoteFile.changed` compares the facts of the
object with those at opening.
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

from dedupindex.errors import SOURCE_ERRORS, BadSource
from dedupindex.object_store.store_address import S3, WEB, is_remote, redacted, scheme_of
from dedupindex.object_store.stores import (
    ObjectFacts,
    error_text,
    facts,
    facts_or_none,
    given_up,
    is_lasting,
    limits,
    pause,
    store_of,
    with_retries,
)

LEAST, MOST = 1 << 16, 1 << 23  # bytes of the first block, and of later ones read in order
_SMALLEST = 1 << 14  # bytes of a request after failures
_HELD = 2  # blocks in memory, as readers seek back a little


if TYPE_CHECKING:

    class _BinaryFile(io.RawIOBase, BinaryIO):  # the type that readers expect
        pass
else:
    _BinaryFile = io.RawIOBase


def open_anywhere(path: str) -> BinaryIO:
    """Open a local file or a remote object to read; raises `OSError`, `BadSource`."""
    return RemoteFile(path) if is_remote(path) else open(path, "rb")


class RemoteFile(_BinaryFile):
    """An object as a seekable file; at most three blocks of it are in memory.

    An object of a web server without range requests is read once, to a temporary file. All methods
    raise `BadSource`.
    """

    def __init__(
        self, address: str, known: ObjectFacts | None = None, *, in_order: bool = False
    ) -> None:
        """Open an object; `known` saves the request for its facts.

        With `in_order`, for reading all of it, the first block is large, too.
        """
        self._address = address
        self._blocks = _Blocks(self._fetch, least=MOST if in_order else LEAST)
        self._at = 0
        self._opened: Any = None  # of fsspec
        self._spooled: BinaryIO | None = None
        # From here on `close` works; Python calls it also if this raises.
        if address.endswith("/"):  # fsspec would read the object without the slash
            raise BadSource(f"{self.name} cannot be read: its name ends with a slash; rename it")
        self.facts = facts(address) if known is None else known
        self.size = self.facts.size

    @property
    def version(self) -> tuple[int, int, int]:
        """What identifies a version, in place of mtime, inode and device of a file."""
        return self.facts.version, 0, 0

    @property
    def address(self) -> str:
        """The address as it was given."""
        return self._address

    @property
    def name(self) -> str:
        """The address, without credentials."""
        return redacted(self._address)

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
        """Fill `into` from `offset` on; return the number of bytes, less only at the end."""
        filled, wanted = 0, min(len(into), max(self.size - offset, 0))
        while filled < wanted:
            piece = self._blocks.at(offset + filled, self.size)[: wanted - filled]
            if not piece:
                break
            into[filled : filled + len(piece)] = piece
            filled += len(piece)
        return filled

    def pread(self, count: int, offset: int) -> bytes:
        """As `os.pread`, but with fewer bytes only at the end."""
        into = bytearray(min(count, max(self.size - offset, 0)))
        return bytes(into[: self.read_at(memoryview(into), offset)])

    def range(self, count: int, offset: int) -> bytes:
        """As `pread`, but request only these bytes: for single records."""
        return self._fetch(offset, max(min(count, self.size - offset), 0))

    def changed(self) -> bool:
        """Return whether the object has changed since it was opened; raises `BadSource`."""
        return facts_or_none(self._address) != self.facts

    def close(self) -> None:
        if not self.closed:
            self._blocks.close()
            for opened in (self._opened, self._spooled):
                if opened is not None:
                    opened.close()
        super().close()

    def _fetch(self, offset: int, length: int) -> bytes:
        """Read a block; it is shorter than asked for only if the object has changed.

        After a failure smaller pieces are requested, as fsspec drops incomplete responses.
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
                    return self._after_failure(b"".join(pieces), error)
                self._opened, most = None, max(most // 2, _SMALLEST)
                pause(failed)
                continue
            if piece:
                failed = 0
            else:
                failed += 1
                if failed >= limits().tries:
                    return self._after_failure(
                        b"".join(pieces), EOFError(f"it ends at {offset + got}")
                    )
                pause(failed)
            pieces.append(piece)
            got += len(piece)
        return b"".join(pieces)

    def _after_failure(self, got: bytes, error: Exception) -> bytes:
        """Return what was read of an object that has changed; else raise `BadSource`."""
        if self.changed():
            return got
        if isinstance(error, SOURCE_ERRORS):
            raise error
        tries = 1 if is_lasting(error) else limits().tries
        message = f"{self.name} cannot be read: {error_text(error)}"
        raise given_up(message, error, tries) from error

    def _read(self, offset: int, length: int) -> bytes:
        """Read once; the result may be short."""
        if self._spooled is None:
            if self._opened is None:
                self._opened = self._open()
            try:
                return self._read_opened(offset, length)
            except ValueError:  # fsspec raises it for a web server without range requests
                if scheme_of(self._address) not in WEB:
                    raise
                self._spooled = with_retries(self._address, self._spool)
        self._spooled.seek(offset)
        return self._spooled.read(length)

    def _open(self) -> Any:
        """Open the object with fsspec, without a request where its facts are enough.

        S3 is asked with each range whether the ETag is still the same, so that bytes of an object
        that was replaced never come.
        """
        store, path = store_of(self._address)
        scheme, stamp = scheme_of(self._address), self.facts.stamp
        is_etag = scheme in S3 and stamp.startswith('"')
        if not is_etag and scheme not in WEB:
            return store.open(path, "rb", cache_type="none")
        opened = store.open(path, "rb", cache_type="none", size=self.size)
        if is_etag:
            opened.details = {"name": path, "size": self.size, "ETag": stamp}
            if not getattr(store, "local_expiry_check", False):  # it compares ETags itself
                name = "read_kw" if hasattr(opened, "read_kw") else "req_kw"  # of older versions
                setattr(opened, name, {**getattr(opened, name), "IfMatch": stamp})
        return opened

    def _read_opened(self, offset: int, length: int) -> bytes:
        """Read with fsspec.

        Its errors refer to the frame that raised them; this cycle would keep everything in the
        frames of the callers alive until the garbage collector runs, on any thread.
        """
        try:
            self._opened.seek(offset)
            data: bytes = self._opened.read(length)
        except Exception as error:
            clear_frames(error.__traceback__)
            raise
        return data[:length]

    def _spool(self) -> BinaryIO:
        """Copy the whole object to a temporary file."""
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
    """The last blocks, and the one that is fetched ahead."""

    def __init__(
        self, fetch: Callable[[int, int], bytes], *, least: int = LEAST, most: int = MOST
    ) -> None:
        self._fetch, self._least, self._most = fetch, least, most
        self._held: deque[tuple[int, memoryview]] = deque(maxlen=_HELD)
        self._ahead: tuple[int, Future[bytes]] | None = None
        self._length = least
        self._thread: ThreadPoolExecutor | None = None

    def at(self, offset: int, size: int) -> memoryview:
        """Return bytes from `offset` on, at least one unless the object ends there."""
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
        """Drop the block fetched ahead; wait for it, as fsspec files are not thread-safe."""
        if self._ahead is not None:
            self._ahead[1].cancel()
            if not self._ahead[1].cancelled():
                self._ahead[1].exception()
            self._ahead = None

    def close(self) -> None:
        self._drop()
        if self._thread is not None:
            self._thread.shutdown()
