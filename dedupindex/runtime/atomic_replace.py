"""Write a file beside the one that it replaces, then rename it; locks and metadata of both.

A new file is written under a temporary name, its *part*, which is locked: a part without a lock is
one that a killed process left. The old file is locked as well, because the lock of a directory does
not keep out a process that reaches the same file through another directory.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, NamedTuple

import blake3

from dedupindex.errors import Damaged, DedupError
from dedupindex.runtime.files import sync_directory
from dedupindex.runtime.tables import amount

PART_NAME = re.compile(r"\.([^/]*)\.[0-9a-f]{12}\.part")  # group 1: the name of the final file
NOT_REPLACED = frozenset(  # of one file: an immutable one, or a mount point
    (errno.EPERM, errno.EACCES, errno.EROFS, errno.EBUSY)
)
LONG_RANGE = 8 << 20  # bytes; a store copies ranges of at least 5 MiB by itself
_CHUNK = 1 << 20
_LONGEST_NAME = 230  # bytes; a longer name is replaced by its hash in the name of a part
_NO_KERNEL_COPY = frozenset(
    (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.ETXTBSY)
)
_NOT_GIVEN = frozenset((errno.EPERM, errno.EINVAL))  # of a user, or of one that a container lacks
_tokens: dict[int, str] = {}  # by process: a fork takes a new one


class Untouched(Exception):
    """A file is left as it is, for the reason in the text."""


# --- temporary files ---


def part_path(path: Path) -> Path:
    """Return the temporary name under which this process writes a file."""
    token = _tokens.setdefault(os.getpid(), os.urandom(6).hex())
    return path.with_name(f".{_stem(path)}.{token}.part")


def _stem(path: Path) -> str:
    encoded = os.fsencode(path.name)
    if len(encoded) <= _LONGEST_NAME:
        return path.name
    return blake3.blake3(encoded).hexdigest()


def open_part(part: Path, buffering: int = 0) -> BinaryIO:
    """Open a part for reading and writing, locked."""
    while True:
        file: BinaryIO = open(part, "w+b", buffering)  # noqa: SIM115
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if is_still(part, file):
            return file
        file.close()  # removed by another process before it was locked


@contextmanager
def removing(part: Path) -> Iterator[None]:
    """Remove the part at the end of the block if it still has its temporary name."""
    try:
        yield
    finally:
        part.unlink(missing_ok=True)


def reopen_read_only(part: Path, file: BinaryIO) -> BinaryIO:
    """Close a finished part and return it opened for reading, so that nobody sees a writer."""
    reader = open_for_reading(part)
    same = os.path.sameopenfile(file.fileno(), reader.fileno())
    file.close()
    with suppress(OSError):
        fcntl.flock(reader, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if not same:
        reader.close()
        raise _replaced(part)
    return reader


def replace_file(part: Path, file: BinaryIO, path: Path) -> None:
    """Rename a finished part to `path`, replacing what is there, and force the name to disk.

    Raises `OSError` if `path` was not replaced, `DedupError` if it was but is not on disk, or if
    the part has vanished.
    """
    if not is_still(part, file):
        raise _replaced(part)
    try:
        os.replace(part, path)
    except OSError:
        if not is_still(path, file):  # NFS may report a failure of a rename that was done
            raise
    _sync(path)


def create_file(part: Path, file: BinaryIO, path: Path) -> None:
    """Like `replace_file`, but raise `FileExistsError` if there is a file at `path`.

    The part may keep its temporary name, too.
    """
    if not is_still(part, file):
        raise _replaced(part)
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError as error:  # a file system without hard links
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, "it is there already", str(path)) from error
        replace_file(part, file, path)
    else:
        _sync(path)


def _replaced(part: Path) -> DedupError:
    return DedupError(f"{part} was replaced by another process; run the same command again")


def _sync(path: Path) -> None:
    try:
        sync_directory(path.parent)
    except OSError as error:
        raise DedupError(
            f"{path}: the new file is there, but the disk fails: {error.strerror}; run the same "
            "again to go on"
        ) from error


def remove_stale_parts(paths: Iterable[Path]) -> None:
    """Remove the parts of these files that no running process has a lock on.

    They stay in a directory that cannot be listed: no file is lost with that.
    """
    folders: dict[Path, set[str]] = {}
    for path in paths:
        folders.setdefault(path.parent, set()).add(_stem(path))
    for folder, stems in folders.items():
        with suppress(FileNotFoundError, PermissionError), os.scandir(folder) as entries:
            for name in [entry.name for entry in entries]:
                if (match := PART_NAME.fullmatch(name)) and match[1] in stems:
                    _remove_stale(folder / name)


def _remove_stale(part: Path) -> None:
    # locked by its writer, renamed meanwhile, or of another user
    unremovable = suppress(BlockingIOError, FileNotFoundError, PermissionError)
    with unremovable, open(part, "r+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_still(part, file):
            part.unlink()


def lock_source(source: BinaryIO) -> None:
    """Lock a file that is to be replaced, until it is closed.

    Raises `Untouched` if another process has a lock on it.
    """
    try:
        fcntl.flock(source, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Untouched("some other process is writing to it, or has a lock on it") from error
    except OSError:
        return  # a file system without locks, or one that locks writable files only


def is_still(path: Path, file: BinaryIO) -> bool:
    """Whether `path` is still the name of an open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except OSError:
        return False


def being_written(file: BinaryIO) -> bool:
    """Whether a process has the file open for writing, or holds a lock on it."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_UN)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EWOULDBLOCK):
            return True
    return has_writer(file)


def has_writer(file: BinaryIO) -> bool:
    """Whether a process has the file open for writing. Does not change a lock on the file.

    The kernel refuses a read lease on such a file. False if it cannot be known: on file systems
    without leases, and for files of other users.
    """
    try:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return error.errno in (errno.EAGAIN, errno.EWOULDBLOCK)
    return False


# --- content and metadata ---


class CopiedRange(NamedTuple):
    """Bytes of a new file that are also in its source."""

    start: int  # in the new file
    offset: int  # in the source
    length: int


class FileSink:
    """Writes the content of a new file."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.size = 0  # bytes so far
        self.copied: list[CopiedRange] = []  # long ones, in order

    def copy(self, source: BinaryIO, offset: int, count: int) -> None:
        """Append `count` bytes of another file; raises `Damaged` if it has become shorter."""
        if count >= LONG_RANGE:
            self.copied.append(CopiedRange(self.size, offset, count))
        while count:
            done = _copy_some(source.fileno(), self.file.fileno(), offset, self.size, count)
            if not done:
                raise Damaged(f"{source.name} became shorter while it was copied")
            offset, self.size, count = offset + done, self.size + done, count - done

    def write(self, data: bytes) -> tuple[BinaryIO, int]:
        """Append; return the file and the offset at which the data can be read back."""
        offset = self.size
        _write_all(self.file, data, offset)
        self.size += len(data)
        return self.file, offset


class DrySink:
    """Has the methods of `FileSink`, but only counts the bytes and holds the last write."""

    def __init__(self) -> None:
        self.size = 0
        self._file = open(os.memfd_create("dry-run"), "w+b", buffering=0)  # noqa: SIM115

    def copy(self, source: BinaryIO, offset: int, count: int) -> None:
        self.size += count

    def write(self, data: bytes) -> tuple[BinaryIO, int]:
        os.ftruncate(self._file.fileno(), 0)
        _write_all(self._file, data, 0)
        self.size += len(data)
        return self._file, 0

    def close(self) -> None:
        self._file.close()


class ComparingSink(DrySink):
    """Compares the content with an existing file, for a dry run."""

    def __init__(self, existing: BinaryIO) -> None:
        super().__init__()
        self._existing, self._same = existing, True

    def copy(self, source: BinaryIO, offset: int, count: int) -> None:
        self._same = self._same and same_range(source, offset, self._existing, self.size, count)
        super().copy(source, offset, count)

    def write(self, data: bytes) -> tuple[BinaryIO, int]:
        existing = os.pread(self._existing.fileno(), len(data), self.size)
        self._same = self._same and existing == data
        return super().write(data)

    @property
    def same(self) -> bool:
        """Whether the file consists of exactly what was written."""
        return self._same and os.fstat(self._existing.fileno()).st_size == self.size


Sink = FileSink | DrySink


def _write_all(file: BinaryIO, data: bytes, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        done = os.pwrite(file.fileno(), rest, offset)
        offset, rest = offset + done, rest[done:]


def _copy_some(source: int, target: int, offset: int, position: int, count: int) -> int:
    """Copy up to `count` bytes, in the kernel if possible; returns how many."""
    try:
        done = os.copy_file_range(source, target, count, offset, position)
        if done:
            return done
    except OSError as error:
        if error.errno not in _NO_KERNEL_COPY:
            raise
    data = os.pread(source, min(count, _CHUNK), offset)
    return os.pwrite(target, data, position) if data else 0


def same_bytes(left: BinaryIO, right: BinaryIO) -> bool:
    """Whether two files have the same content."""
    size = os.fstat(left.fileno()).st_size
    return os.fstat(right.fileno()).st_size == size and same_range(left, 0, right, 0, size)


def same_range(left: BinaryIO, at: int, right: BinaryIO, there: int, count: int) -> bool:
    """Whether `count` bytes of two files, from these offsets, exist and are equal."""
    while count:
        chunk = os.pread(left.fileno(), min(count, _CHUNK), at)
        if not chunk or chunk != os.pread(right.fileno(), len(chunk), there):
            return False
        at, there, count = at + len(chunk), there + len(chunk), count - len(chunk)
    return True


def content_hash(file: BinaryIO) -> str:
    """Return the BLAKE3 of a whole file, in hex."""
    return range_hash(file, 0, sys.maxsize)


def range_hash(file: BinaryIO, offset: int, count: int) -> str:
    """Return the BLAKE3, in hex, of a range of a file, or of as much of it as there is."""
    running = blake3.blake3()
    _take(running, file, offset, count)
    return running.hexdigest()


def hash_of(ranges: Iterable[tuple[Path, int, int]]) -> str:
    """Return the BLAKE3, in hex, of ranges of files (path, offset, count) end to end."""
    running = blake3.blake3()
    for path, offset, count in ranges:
        with open_for_reading(path) as file:
            _take(running, file, offset, count)
    return running.hexdigest()


def _take(running: blake3.blake3, file: BinaryIO, offset: int, count: int) -> None:
    while count and (data := os.pread(file.fileno(), min(count, _CHUNK), offset)):
        running.update(data)
        offset, count = offset + len(data), count - len(data)


def copy_metadata(source: BinaryIO, target: BinaryIO, *, replaces: bool = True) -> None:
    """Copy mode, owner, extended attributes and times; raises `OSError`.

    A new file, which replaces none, stays with this user if only a privileged one may give it away.
    """
    old, new = os.fstat(source.fileno()), os.fstat(target.fileno())
    mode = stat.S_IMODE(old.st_mode)
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        try:
            os.fchown(target.fileno(), old.st_uid, old.st_gid)
        except OSError as error:
            if replaces or error.errno not in _NOT_GIVEN:
                raise
            mode &= ~(stat.S_ISUID | stat.S_ISGID)  # which would give the rights of another user
    names: list[str] = []
    with suppress(OSError):  # a file system without extended attributes
        names = os.listxattr(source.fileno())
    for name in names:
        os.setxattr(target.fileno(), name, os.getxattr(source.fileno(), name))
    os.fchmod(target.fileno(), mode)
    os.utime(target.fileno(), ns=(old.st_atime_ns, old.st_mtime_ns))


def not_ownable(paths: Iterable[str | Path], directory: Path | None = None) -> list[str]:
    """Return the files whose owner new files in a `directory`, or beside them, cannot have.

    What the system permits is tried with files that have no name.
    """
    known: dict[tuple[Path, int, int], bool] = {}
    found = []
    for path in paths:
        with suppress(OSError):  # told when it is read, or its directory written to
            status = os.stat(path)
            place = directory or Path(path).parent
            owner = status.st_uid, status.st_gid
            if owner == (os.geteuid(), os.getegid()):
                continue
            if (place, *owner) not in known:
                known[place, *owner] = _may_give(place, owner)
            if not known[place, *owner]:
                found.append(str(path))
    return found


def _may_give(directory: Path, owner: tuple[int, int]) -> bool:
    """Whether this user may give a file in a directory to another; raises `OSError`."""
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    with TemporaryFile(dir=directory) as file:
        status = os.fstat(file.fileno())
        try:
            if owner != (status.st_uid, status.st_gid):
                os.fchown(file.fileno(), *owner)
        except OSError as error:
            return error.errno not in _NOT_GIVEN
    return True


def identity(status: os.stat_result) -> tuple[int, int, int, int]:
    """Return what changes when a file is written to or replaced."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def free_space(path: Path) -> int:
    """Return the bytes free in the file system of a directory, which need not exist yet."""
    while not path.exists() and path != path.parent:
        path = path.parent
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def check_free_space(path: Path, needed: int, otherwise: str) -> None:
    """Raise `DedupError` unless `needed` bytes fit; `otherwise` is what helps but making room."""
    if lack := lack_of_space(path, needed):
        raise DedupError(f"{lack}; no archive was written: make room, or {otherwise}")


def lack_of_space(path: Path, needed: int) -> str:
    """Say that `needed` bytes do not fit on the disk; "" if they do."""
    if (free := free_space(path)) >= needed:
        return ""
    return f"{path}: {amount(needed)} may be written, {amount(free)} are free"


def open_for_reading(path: str | os.PathLike[str]) -> BinaryIO:
    return open(path, "rb", buffering=0)
