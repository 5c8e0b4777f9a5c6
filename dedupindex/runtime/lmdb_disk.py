"""What LMDB needs of a disk: its lock file, and a name for a full disk."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

from dedupindex.runtime.atomic_replace import free_space
from dedupindex.runtime.files import NO_SPACE

MAX_READERS = 1024  # of a data file, in all processes
_BYTES = 64 * MAX_READERS + 4096  # more than LMDB needs: 64 for a reader, and a head
_FULL = 1 << 20  # bytes that are free


def reserve_lock(path: Path) -> None:
    """Take disk space for the lock file of a data file before LMDB maps it; raises `OSError`.

    LMDB leaves holes in it, and the kernel kills a process that writes to one on a full disk.
    A lock file that others may use keeps its size: theirs is the one that they have mapped.
    """
    lock = path.with_name(f"{path.name}-lock")
    try:
        with suppress(FileNotFoundError):
            _allocate(lock, os.stat(lock).st_size)
            return
        beside = lock.with_name(f".{lock.name}.{os.getpid()}-{threading.get_ident()}")
        try:
            _allocate(beside, _BYTES)
            with suppress(FileExistsError):
                os.link(beside, lock)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        if error.errno in NO_SPACE:
            raise OSError(error.errno, os.strerror(error.errno), str(lock)) from error
        # LMDB makes the file, or says why it cannot be opened: a file system has no links, say.


def full_hint(path: Path) -> str:
    """Return that the disk of a file is full, "" if not: LMDB says only that a write failed."""
    with suppress(OSError):  # the disk fails; the error of LMDB is what the caller reports
        return " (the disk is full)" if free_space(path.parent) < _FULL else ""
    return ""


def _allocate(path: Path, size: int) -> None:
    """Allocate the bytes of a file, which is made if it does not exist."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if size:
            os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)
