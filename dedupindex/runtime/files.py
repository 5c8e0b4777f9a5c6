"""Files that appear whole or not at all, and one writer at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

from dedupindex.errors import BadInput, IndexBusy

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` beside `path`, force it to disk, then rename: a reader sees old or new."""
    with whole(path) as stream:
        stream.write(data)


@contextmanager
def whole(path: Path, *, new: bool = False) -> Iterator[BinaryIO]:
    """As `write_whole`, for what comes piece by piece: `path` appears when the block ends well.

    What is `new` takes the place of nothing, not even of what somebody else has just written;
    raises `BadInput`. `OSError` of a full disk has the name of the file.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with writing(path), open(beside, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if new:
            _appear(beside, path)
        else:
            os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Let an `OSError` of a full disk say what was written; of itself it names no file."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL and error.filename is None:
            error.filename = str(path)
        raise


def taken(path: Path) -> BadInput:
    """What is to be said of an archive that is there already."""
    return BadInput(
        f"{path} is there, and no archive is ever overwritten: name another, or remove it"
    )


def _appear(beside: Path, path: Path) -> None:
    try:
        os.link(beside, path)
    except FileExistsError:
        raise taken(path) from None
    except OSError:  # a file system without hard links
        if os.path.lexists(path):
            raise taken(path) from None
        os.replace(beside, path)
    else:
        os.unlink(beside)


def check_name(path: str) -> None:
    """Raise `BadInput` for a name that is no UTF-8: neither JSON nor DuckDB can spell it."""
    try:
        path.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise BadInput(f"{shown}: this name is no UTF-8: rename it, or give it a link") from None


def sync_directory(path: Path) -> None:
    """Force the names in a directory to disk (a rename is durable only after this)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def pinned(directory: Path) -> Iterator[Path]:
    """A name of a directory that stays its own when another takes its place; raises `OSError`."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


@contextmanager
def exclusive(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file `path`; `IndexBusy` at once if another process holds it.

    The kernel lets go of the lock when its holder dies, so a killed writer blocks nobody.
    """
    with open(path, "a+b") as stream:
        _lock(stream, fcntl.LOCK_EX, what)
        yield


@contextmanager
def shared(path: Path, what: str) -> Iterator[None]:
    """Let nobody hold the lock file `path` as `exclusive` does; raises `IndexBusy` likewise."""
    with open(path, "rb") as stream:
        _lock(stream, fcntl.LOCK_SH, what)
        yield


def _lock(stream: IO[bytes], how: int, what: str) -> None:
    try:
        fcntl.flock(stream, how | fcntl.LOCK_NB)
    except OSError as error:
        raise IndexBusy(f"another process is writing to {what}; try again later") from error


# Directories that appear whole or not at all.


@contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """A directory to fill, which takes the place of `path` when the block ends well.

    What a killed run has left is removed by the next.
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
