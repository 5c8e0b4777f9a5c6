"""Read the bytes of a container through one buffer, hashing them.

The buffer is small enough for the processor's cache; a memory map would kill the process if the
file shrank. Damaged parts are read again, so a pipe is first spooled to a temporary file.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, BinaryIO

import blake3

from dedupindex.errors import BadSource
from dedupindex.object_store import RemoteFile, is_remote
from dedupindex.runtime.atomic_replace import identity

CHUNK = 1 << 20  # bytes held at a time
_PIECE = 1 << 18


class Window:
    """A range of an open file, by default all of it; offsets count from the start of the range.

    `buffer` holds `filled` bytes from `start` on. Every operation raises `BadSource` if the file
    cannot be read.
    """

    def __init__(
        self, file: BinaryIO, name: str, *, base: int = 0, size: int = -1, path: Path | None = None
    ) -> None:
        self.file = file
        self._name = name
        self._base = base
        self._whole = size < 0
        self._bytes = file if isinstance(file, RemoteFile) else _Local(file, path)
        self.size = max(self._bytes.size - base, 0) if size < 0 else size
        self.buffer = bytearray(min(CHUNK, self.size))
        self.view = memoryview(self.buffer)
        self.start = 0
        self.filled = 0
        self.hashed = 0  # bytes from the beginning that are in the hash
        self._hash = blake3.blake3()

    def load(self, position: int) -> None:
        """Fill the buffer with the bytes from `position` on."""
        if position > self.hashed:
            self._hash_to(position)
        wanted = min(len(self.buffer), self.size - position)
        filled = 0
        try:
            while filled < wanted:
                into = self.view[filled:wanted]
                count = self._bytes.read_at(into, self._base + position + filled)
                if not count:  # the file has shrunk, see `changed`
                    self.size = position + filled
                    break
                filled += count
        except OSError as error:
            raise BadSource(f"{self._name} cannot be read: {error}") from error
        self.start, self.filled = position, filled
        self._take_hash(position, self.view[:filled])

    def take(self, position: int) -> bytes:
        """Return bytes from `position` on without the buffer, but hashed; for plain files."""
        if position > self.hashed:
            self._hash_to(position)
        data = self.read(position, _PIECE)
        if not data:
            self.size = min(self.size, position)
        self._take_hash(position, memoryview(data))
        return data

    def _take_hash(self, position: int, data: memoryview) -> None:
        new = position + len(data) - self.hashed
        if new > 0:
            self._hash.update(data[len(data) - new :])
            self.hashed += new

    def read(self, position: int, count: int) -> bytes:
        """Return `count` bytes from `position`, without the buffer; fewer only at the end."""
        try:
            return self._bytes.pread(
                max(min(count, self.size - position), 0), self._base + position
            )
        except OSError as error:
            raise BadSource(f"{self._name} cannot be read: {error}") from error

    def content_hash(self) -> str:
        """Return the BLAKE3 in hex of the whole range, reading what was not read yet."""
        self._hash_to(self.size)
        return self._hash.hexdigest()

    def changed(self) -> bool:
        """Return whether the file has changed since it was opened."""
        return self._bytes.changed()

    @property
    def version(self) -> tuple[int, int, int]:
        """Time of change in nanoseconds, inode and device; of an object its version, and zeros."""
        return self._bytes.version

    def close(self) -> None:
        """Close the file, unless the window is a part of it."""
        if self._whole:
            self.file.close()

    def _hash_to(self, position: int) -> None:
        while self.hashed < min(position, self.size):
            self.load(self.hashed)


class _Local:
    """A local file."""

    def __init__(self, file: BinaryIO, path: Path | None) -> None:
        self._path = path
        self._descriptor = file.fileno()
        self._before = os.fstat(self._descriptor)
        self.size = self._before.st_size

    @property
    def version(self) -> tuple[int, int, int]:
        return self._before.st_mtime_ns, self._before.st_ino, self._before.st_dev

    def read_at(self, into: memoryview, offset: int) -> int:
        return os.preadv(self._descriptor, [into], offset)

    def pread(self, count: int, offset: int) -> bytes:
        return os.pread(self._descriptor, count, offset)

    def changed(self) -> bool:
        try:
            now = [os.fstat(self._descriptor)]
            if self._path is not None:
                now.append(os.stat(self._path))
        except OSError:
            return True
        return any(identity(status) != identity(self._before) for status in now)


Openable = BinaryIO | str | os.PathLike[str] | Window


def open_window(name: str, source: Openable) -> Window:
    """Open a regular file or an address, or spool a binary stream; raises `BadSource`."""
    try:
        if isinstance(source, Window):
            return source
        if isinstance(source, RemoteFile):
            return Window(source, name)
        if isinstance(source, str) and is_remote(source):
            return Window(RemoteFile(source), name)
        if not isinstance(source, str | os.PathLike):
            return Window(spool(source), name)
        path = Path(source)
        if not stat.S_ISREG(path.stat().st_mode):
            raise BadSource(f"{name} is not a regular file")
        return Window(open(path, "rb", buffering=0), name, path=path)
    except (OSError, ValueError) as error:
        raise BadSource(f"{name} cannot be read: {error}") from error


def spool(stream: IO[bytes]) -> BinaryIO:
    """Copy the rest of a stream to an unnamed file, and close the stream."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 (the window closes it)
    try:
        with stream:
            shutil.copyfileobj(stream, file, CHUNK)
        file.flush()
    except BaseException:
        file.close()
        raise
    return file


class Cursor:
    """A decoded stream that is read forward; `at` is the position in `buffer`."""

    def __init__(
        self,
        piece: Callable[[], bytes],
        buffer: bytes = b"",
        *,
        position: int = 0,
        sound: Callable[[], bool] = lambda: True,
    ) -> None:
        self.sound = sound  # whether the end of the stream is its proper end
        self.buffer = buffer
        self.at = 0
        self._piece = piece
        self._base = position  # of the buffer's first byte in the stream

    @property
    def position(self) -> int:
        """Bytes from the beginning of the stream."""
        return self._base + self.at

    @property
    def held(self) -> int:
        """Bytes in the buffer not yet read."""
        return len(self.buffer) - self.at

    def hold(self, count: int) -> bool:
        """Read `count` bytes into the buffer; return False if the stream ends before."""
        if len(self.buffer) - self.at >= count:
            return True
        pieces = [self.buffer[self.at :]]
        held = len(pieces[0])
        while held < count and (piece := self._piece()):
            pieces.append(piece)
            held += len(piece)
        self._base += self.at
        self.at = 0
        self.buffer = b"".join(pieces)
        return held >= count

    def take(self, most: int) -> bytes:
        """Return 1 to `most` bytes; none at the end of the stream."""
        if not self.hold(1):
            return b""
        data = self.buffer[self.at : self.at + most]
        self.at += len(data)
        return data

    def skip_line_ends(self) -> int:
        """Skip CR and LF; return how many."""
        skipped = 0
        while self.hold(1) and self.buffer[self.at] in b"\r\n":
            count = self.held - len(self.buffer[self.at :].lstrip(b"\r\n"))
            self.at += count
            skipped += count
        return skipped


def cursor_at(window: Window, offset: int, *, hashed: bool = False) -> Cursor:
    """Return a cursor over the file from `offset` on; `hashed`: reading it feeds the hash."""
    position = offset

    def piece() -> bytes:
        nonlocal position
        if hashed:
            data = window.take(position) if position < window.size else b""
        else:
            data = window.read(position, 1 << 14)
        position += len(data)
        return data

    return Cursor(piece, position=offset)
