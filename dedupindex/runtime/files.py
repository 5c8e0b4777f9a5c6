"""Atomic writing of files and directories, and lock files."""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from stat import S_ISREG
from typing import IO, BinaryIO

from dedupindex.counts import OnProgress, ProgressUpdate, silent
from dedupindex.errors import BadInput, IndexBusy

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)  # a disk, or what a user may have of it, is full
_TICK = 0.1  # seconds between two attempts to lock a file
_TURN = 30.0  # seconds to wait for another process
NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = (*NO_SPACE, errno.EFBIG)


def write_file(path: Path, data: bytes) -> None:
    """Replace a file atomically, see `atomic_path`."""
    with atomic_file(path) as stream:
        stream.write(data)


def unwritable(directory: Path) -> str:
    """Return that this process cannot write to a directory, and what to do about it."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # it has no name, as in a container
        user = str(os.geteuid())
    return (
        f"{directory} cannot be written to by the user {user}, or its disk is read-only: give this "
        "user write access to the directory and all files in it, or use their owner, and start "
        "this again"
    )


@contextmanager
def atomic_file(path: Path, *, new: bool = False) -> Iterator[BinaryIO]:
    """Yield a stream whose content replaces `path`, see `atomic_path`."""
    with atomic_path(path, new=new) as beside, open(beside, "wb") as stream:
        yield stream


@contextmanager
def atomic_path(path: Path, *, new: bool = False) -> Iterator[Path]:
    """Yield the name of a file to write; it is forced to disk, then renamed to `path`.

    So readers see the old file or the new one. If the block fails, `path` stays as it is. With
    `new` no file is replaced, not even one that appeared meanwhile; raises `BadInput`. Of a link
    the file that it leads to is replaced; raises `BadInput` for what is no regular file. The
    `OSError` of a full disk, or of a directory that cannot be written to, names the file.
    """
    if not new:
        path = _replaceable(path)
    beside = _beside(path)
    try:
        with named_errors(path):
            yield beside
            with open(beside, "rb") as stream:
                os.fsync(stream.fileno())
        if new:
            _appear(beside, path)
        else:
            os.replace(beside, path)
    except BaseException as error:
        if isinstance(error, OSError) and str(error.filename) == str(beside):
            error.filename = str(path)  # which people have typed
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
    sync_directory(path.absolute().parent)


def check_writable(path: Path) -> None:
    """Raise the error that `atomic_path` would raise, before there is anything to write.

    The file beside `path` is made and removed, so nothing is left. The error names `path`.
    """
    beside = _beside(_replaceable(path))
    try:
        with named_errors(path):
            open(beside, "wb").close()
            beside.unlink()
    except OSError as error:
        error.filename = str(path)  # which people have typed
        raise


def _replaceable(path: Path) -> Path:
    """Return the file that a path leads to; raises `BadInput` if it is a device, say."""
    if path.exists() and not path.is_file():
        raise BadInput(f"{path} is no regular file, and is not replaced")
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.part")


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Add the file name to the `OSError` of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL and error.filename is None:
            error.filename = str(path)
        raise


def data_files(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield all files below a directory with their status, also while others come and go.

    Lock files are left out: their size says nothing, and readers write them.
    """
    for path in directory.rglob("*"):
        with suppress(OSError):
            status = path.stat()
            if S_ISREG(status.st_mode) and not path.name.endswith("lock"):
                yield path, status


def size_on_disk(file: os.stat_result) -> int:
    """Return the bytes of a file without its holes, which files of LMDB may have."""
    return min(file.st_size, file.st_blocks * 512)


def require_directory(path: Path) -> None:
    """Raise `BadInput` if there is no directory in which `path` can be written."""
    if not path.absolute().parent.is_dir():
        raise BadInput(f"{path} cannot be written: its directory does not exist")


def make_directory(path: Path, what: str) -> None:
    """Make a directory and those above it; raises `BadInput`, which says `what` it is."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{path}, {what}, cannot be made: {error.strerror}") from error


def already_exists(path: Path) -> BadInput:
    """Return the error for an archive that exists already."""
    return BadInput(
        f"{path} exists, and archives are never overwritten: name another, or remove it"
    )


def _appear(beside: Path, path: Path) -> None:
    try:
        os.link(beside, path)
    except FileExistsError:
        raise already_exists(path) from None
    except OSError:  # a file system without hard links
        if os.path.lexists(path):
            raise already_exists(path) from None
        os.replace(beside, path)
    else:
        os.unlink(beside)


def check_name(path: str) -> None:
    """Raise `BadInput` for a name that is not UTF-8, which JSON and DuckDB cannot represent."""
    if not is_utf8(path):
        raise BadInput(f"{shown_name(path)}: this name is not UTF-8: rename it, or give it a link")


def shown_name(path: str) -> str:
    """Return the name of a file with bytes that are not UTF-8 escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def is_utf8(path: str) -> bool:
    """Return whether the name of a file is UTF-8."""
    return path.encode("utf-8", "replace").decode() == path


def sync_directory(path: Path) -> None:
    """Force a directory to disk; only then is a rename in it durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def stable_directory(directory: Path) -> Iterator[Path]:
    """Yield a path to a directory that is valid even if it is renamed; raises `OSError`."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


@contextmanager
def exclusive(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file `path`; raises `IndexBusy` at once if another process holds it.

    The kernel releases the lock if its holder is killed. A holder may remove the file; who opened
    it before opens the new one.
    """
    with _locked(path, "a+b", fcntl.LOCK_EX, what):
        yield


@contextmanager
def exclusive_in_turn(
    path: Path, what: str, on_progress: OnProgress = silent, wait: float = _TURN
) -> Iterator[None]:
    """As `exclusive`, but wait some seconds for another process that holds the lock file.

    A server that merges a crawl holds that of an index for seconds, and nobody sees it coming.
    `on_progress` is called from time to time meanwhile.
    """
    end = time.monotonic() + wait
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(exclusive(path, what))
                break
            except IndexBusy:
                if time.monotonic() >= end:
                    raise
                on_progress(ProgressUpdate("waiting for another process that writes"))
                time.sleep(_TICK)
        yield


@contextmanager
def shared(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file `path` as a reader; raises `IndexBusy` as `exclusive` does."""
    with _locked(path, "rb", fcntl.LOCK_SH, what):
        yield


@contextmanager
def _locked(path: Path, mode: str, how: int, what: str) -> Iterator[None]:
    while True:
        with open(path, mode) as stream:
            _lock(stream, how, what)
            is_same = False
            with suppress(FileNotFoundError):  # its holder has removed it meanwhile
                is_same = os.path.samestat(path.stat(), os.fstat(stream.fileno()))
            if is_same:
                yield
                return


def _lock(stream: IO[bytes], how: int, what: str) -> None:
    try:
        fcntl.flock(stream, how | fcntl.LOCK_NB)
    except OSError as error:
        raise IndexBusy(f"another process is writing to {what}; try again later") from error


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield a new directory, which replaces `path` when the block ends without error.

    Leftovers of a killed run are removed by the next.
    """
    parent, name = path.absolute().parent, path.absolute().name
    beside, old = parent / f".{name}.new", parent / f".{name}.old"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        yield beside
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.replace(path, old)
        os.replace(beside, path)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    sync_directory(parent)
    shutil.rmtree(old, ignore_errors=True)
