"""Files that are written beside the one whose place they take, and the locks on both.

A lock of a directory keeps out who names the same directory, no more: a file may be reached through
several. So whoever replaces a file holds it, and whoever writes a new one has a name of its own for
that, and a lock on it, by which a part of a killed process is told from one of a living.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import blake3

from dedupindex.errors import DedupError
from dedupindex.post_crawl.rewrite.rewrite_file import Left
from dedupindex.runtime.atomic_replace import open_for_reading
from dedupindex.runtime.files import sync_directory

PART = re.compile(r"\.([^/]*)\.[0-9a-f]{12}\.part")  # the name of a part; 1 is that of its file
_LONGEST = 230  # bytes of a name to which more can be added
_tokens: dict[int, str] = {}  # of this process


def part_of(path: Path) -> Path:
    """Under which name this process writes a file, beside its own."""
    token = _tokens.setdefault(os.getpid(), os.urandom(6).hex())
    return path.with_name(f".{_stem(path)}.{token}.part")


def _stem(path: Path) -> str:
    encoded = os.fsencode(path.name)
    return path.name if len(encoded) <= _LONGEST else blake3.blake3(encoded).hexdigest()


def new_part(part: Path, buffering: int = 0) -> BinaryIO:
    """Open a part for writing, locked."""
    while True:
        file: BinaryIO = open(part, "w+b", buffering)  # noqa: SIM115
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if _is(part, os.fstat(file.fileno())):
            return file
        file.close()  # swept away before it was locked


@contextmanager
def removed(part: Path) -> Iterator[None]:
    """Let nothing stay under the name of a file that is not whole."""
    try:
        yield
    finally:
        part.unlink(missing_ok=True)


def sealed(part: Path, file: BinaryIO) -> BinaryIO:
    """A part open for reading only, so that nobody takes it for one that is still being written."""
    written = os.fstat(file.fileno())
    again = open_for_reading(part)
    file.close()
    with suppress(OSError):
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if not os.path.samestat(written, os.fstat(again.fileno())):
        again.close()
        raise DedupError(f"{part} was replaced by another process; run the same again")
    return again


def put(part: Path, file: BinaryIO, path: Path) -> None:
    """Give a part that is whole its name.

    Raises `OSError` if that was not done, `DedupError` if it was, or cannot be.
    """
    written = os.fstat(file.fileno())
    if not _is(part, written):
        raise DedupError(f"{part} was replaced by another process; run the same again")
    try:
        os.replace(part, path)
    except OSError:
        if not _is(path, written):  # else it was done all the same, as on NFS
            raise
    _sync(path)


def put_new(part: Path, file: BinaryIO, path: Path) -> None:
    """As `put`, for a name that nothing has; raises `FileExistsError` if something has it by now.

    The part may keep its own name, too.
    """
    if not _is(part, os.fstat(file.fileno())):
        raise DedupError(f"{part} was replaced by another process; run the same again")
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError as error:  # a file system without hard links
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, "it is there already", str(path)) from error
        put(part, file, path)
        return
    _sync(path)


def _sync(path: Path) -> None:
    try:
        sync_directory(path.parent)
    except OSError as error:
        raise DedupError(
            f"{path}: the new file is there, but the disk fails: {error.strerror}; run the same "
            "again to go on"
        ) from error


def sweep(paths: Iterable[Path]) -> None:
    """Remove the parts of some files that killed processes left."""
    folders: dict[Path, set[str]] = {}
    for path in paths:
        folders.setdefault(path.parent, set()).add(_stem(path))
    for folder, stems in folders.items():
        with suppress(FileNotFoundError), os.scandir(folder) as entries:
            for name in [entry.name for entry in entries]:
                if (part := PART.fullmatch(name)) and part[1] in stems:
                    _sweep(folder / name)


def _sweep(part: Path) -> None:
    try:
        with open(part, "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(part, os.fstat(file.fileno())):
                part.unlink()
    except (BlockingIOError, FileNotFoundError, PermissionError):
        return  # it is being written, or no longer there, or of somebody else


def hold(source: BinaryIO) -> None:
    """Keep others from replacing a file until it is closed; raises `Left` if one is about to."""
    try:
        fcntl.flock(source, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Left("some other process is writing to it, or has a lock on it") from error
    except OSError:
        return  # a file system without locks, or where only who may write has them


def is_still(path: Path, source: BinaryIO) -> bool:
    """Whether a file has still the name by which it was opened."""
    return _is(path, os.fstat(source.fileno()))


def _is(path: Path, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), status)
    except OSError:
        return False
