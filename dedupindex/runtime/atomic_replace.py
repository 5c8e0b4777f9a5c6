"""Bytes from one file to another, without looking at them; what a file is, beside its bytes."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Protocol

import blake3

from dedupindex.errors import Damaged, DedupError
from dedupindex.runtime.tables import amount

_PIECE = 1 << 20
_UNABLE = frozenset(
    (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.ETXTBSY)
)


class Left(Exception):
    """A container is left alone; the text says why."""


class Sink(Protocol):
    """Where a rewritten container goes."""

    size: int  # bytes so far

    def copy(self, source: BinaryIO, offset: int, count: int) -> None:
        """Append a range of another file as the bytes it is."""

    def write(self, data: bytes) -> tuple[BinaryIO, int]:
        """Append; returns where it can be read back."""


class FileSink:
    """A file that is being written."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.size = 0

    def copy(self, source: BinaryIO, offset: int, count: int) -> None:
        """See `Sink`; raises `Damaged` if the source has become shorter."""
        into = self.file.fileno()
        while count:
            done = _copied(source.fileno(), into, offset, self.size, count)
            if not done:
                raise Damaged(f"{source.name} became shorter while it was copied")
            offset, self.size, count = offset + done, self.size + done, count - done

    def write(self, data: bytes) -> tuple[BinaryIO, int]:
        """See `Sink`."""
        at = self.size
        left = memoryview(data)
        while left:
            done = os.pwrite(self.file.fileno(), left, self.size)
            self.size, left = self.size + done, left[done:]
        return self.file, at


class DrySink:
    """Counts what a `FileSink` would be given; holds the last write only."""

    def __init__(self) -> None:
        self.size = 0
        self._file = open(os.memfd_create("dry-run"), "w+b", buffering=0)  # noqa: SIM115

    def copy(self, source: BinaryIO, offset: int, count: int) -> None:
        """See `Sink`."""
        self.size += count

    def write(self, data: bytes) -> tuple[BinaryIO, int]:
        """See `Sink`."""
        os.ftruncate(self._file.fileno(), 0)
        os.pwrite(self._file.fileno(), data, 0)
        self.size += len(data)
        return self._file, 0

    def close(self) -> None:
        self._file.close()


class ComparingSink(DrySink):
    """For a dry run where the file is there already: is it what would be written?"""

    def __init__(self, there: BinaryIO) -> None:
        super().__init__()
        self._there, self._same = there, True

    def copy(self, source: BinaryIO, offset: int, count: int) -> None:
        """See `Sink`."""
        self._same = self._same and same_range(source, offset, self._there, self.size, count)
        super().copy(source, offset, count)

    def write(self, data: bytes) -> tuple[BinaryIO, int]:
        """See `Sink`."""
        there = os.pread(self._there.fileno(), len(data), self.size)
        self._same = self._same and there == data
        return super().write(data)

    @property
    def same(self) -> bool:
        """Whether the file has all that was written, and no more."""
        return self._same and os.fstat(self._there.fileno()).st_size == self.size


def _copied(source: int, into: int, offset: int, at: int, count: int) -> int:
    """Copy some bytes, in the kernel if it can; returns how many."""
    try:
        done = os.copy_file_range(source, into, count, offset, at)
        if done:
            return done
    except OSError as error:
        if error.errno not in _UNABLE:
            raise
    data = os.pread(source, min(count, _PIECE), offset)
    return os.pwrite(into, data, at) if data else 0


def same_bytes(left: BinaryIO, right: BinaryIO) -> bool:
    """Whether two files have the same content."""
    size = os.fstat(left.fileno()).st_size
    return os.fstat(right.fileno()).st_size == size and same_range(left, 0, right, 0, size)


def same_range(left: BinaryIO, at: int, right: BinaryIO, there: int, count: int) -> bool:
    """Whether `count` bytes of two files are equal, and there."""
    while count:
        one = os.pread(left.fileno(), min(count, _PIECE), at)
        if not one or one != os.pread(right.fileno(), len(one), there):
            return False
        at, there, count = at + len(one), there + len(one), count - len(one)
    return True


def content_hash(file: BinaryIO) -> str:
    """BLAKE3 in hex of a whole file."""
    running, at = blake3.blake3(), 0
    while data := os.pread(file.fileno(), _PIECE, at):
        running.update(data)
        at += len(data)
    return running.hexdigest()


def hash_of(ranges: Iterable[tuple[Path, int, int]]) -> str:
    """BLAKE3 in hex of ranges of files, one behind the other."""
    running = blake3.blake3()
    for path, offset, count in ranges:
        with open_for_reading(path) as file:
            while count and (data := os.pread(file.fileno(), min(count, _PIECE), offset)):
                running.update(data)
                offset, count = offset + len(data), count - len(data)
    return running.hexdigest()


def keep_metadata(source: BinaryIO, target: BinaryIO) -> None:
    """Give `target` mode, owner, extended attributes and times of `source`; raises `OSError`."""
    was, now = os.fstat(source.fileno()), os.fstat(target.fileno())
    if (was.st_uid, was.st_gid) != (now.st_uid, now.st_gid):
        os.fchown(target.fileno(), was.st_uid, was.st_gid)
    names: list[str] = []
    with suppress(OSError):  # a file system without them
        names = os.listxattr(source.fileno())
    for name in names:
        os.setxattr(target.fileno(), name, os.getxattr(source.fileno(), name))
    os.fchmod(target.fileno(), stat.S_IMODE(was.st_mode))
    os.utime(target.fileno(), ns=(was.st_atime_ns, was.st_mtime_ns))


def being_written(file: BinaryIO) -> bool:
    """Whether some process has the file open for writing, or holds a lock on it."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_UN)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EWOULDBLOCK):
            return True
    return written_to(file)


def written_to(file: BinaryIO) -> bool:
    """Whether some process has the file open for writing. Leaves a lock on it as it is.

    A lease that is asked for and given back tells that, where the kernel and the file system have
    leases; it is refused for files of other users, and then nothing is known.
    """
    descriptor = file.fileno()
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return error.errno in (errno.EAGAIN, errno.EWOULDBLOCK)
    return False


def identity(status: os.stat_result) -> tuple[int, int, int, int]:
    """What changes when a file is written to or replaced."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def room(path: Path) -> int:
    """Bytes that may still be written to the file system of a directory, there or still to be."""
    while not path.exists() and path != path.parent:
        path = path.parent
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def check_room(path: Path, needed: int) -> None:
    """Refuse to begin what would fill the disk; raises `DedupError`."""
    if (free := room(path)) < needed:
        raise DedupError(
            f"{path}: {amount(needed)} may be written, {amount(free)} are free; nothing was begun"
        )


def open_for_reading(path: str | os.PathLike[str]) -> BinaryIO:
    return open(path, "rb", buffering=0)
