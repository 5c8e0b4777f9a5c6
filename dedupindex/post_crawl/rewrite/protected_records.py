"""Which records revisits refer to, wherever these are: such a record never becomes a revisit.

A plan knows the revisits of its own set only. So every run notes what its revisits refer to beside
the container that holds it, before any of them gets its name: KEY.pins in ``.rewrite/``, 32 bytes
for each, half of them a hash of the record's URL and date, half of the path of the container that
the revisit is in. Undoing takes them out again. What a failed run has noted only makes a record
stay.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

import blake3

from dedupindex.runtime.atomic_replace import Left, open_for_reading
from dedupindex.runtime.files import sync_directory

_HALF = 16  # bytes of a hash
_PIECE = 2 * _HALF << 15
_HELD = 50_000  # pins before they are written
_LOCKLESS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)  # file systems
_UNABLE = (errno.EROFS, errno.EACCES, errno.EPERM)


class Holder(NamedTuple):
    """A container that is referred to."""

    root: str  # empty for the directory of the revisit's container
    name: str
    outside: tuple[int, int] | None = None  # device and inode, if it is none of the set


class Pins:
    """What the revisits of one container refer to."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory, self._name = directory, name
        self._own = _writer(directory, name)
        self._written: set[Holder] = set()
        self._held: dict[Holder, set[bytes]] = {}
        self._count = 0

    def add(self, holder: Holder, record: bytes) -> None:
        """Pin a record, named by its `key`."""
        self._held.setdefault(holder, set()).add(record)
        self._count += 1
        if self._count >= _HELD:
            self.finish()

    def finish(self) -> None:
        """Force all to disk; raises `Left` if an original outside of the set is going away."""
        self._written.update(self._held)
        for holder, records in self._held.items():
            data = b"".join(record + self._own for record in sorted(records))
            root = Path(holder.root) if holder.root else self._directory
            pins = _of(root, holder.name)
            if holder.outside is None and pins == pins_path(root, holder.name):
                _append(pins, data)
                continue
            try:
                with _staying(root / holder.name, holder.outside):
                    _append(pins, data)
            except OSError as error:
                if error.errno not in _UNABLE:  # what we may not write, we do not rewrite either
                    raise
        self._held.clear()
        self._count = 0

    def stay(self) -> None:
        """What was written counts: from now on there is a journal that tells of it."""
        self._written.clear()

    def close(self) -> None:
        """Take out what was written for nothing, if the disk allows."""
        with suppress(OSError):
            unpin(self._directory, self._name, self._written)


def key(url: bytes, date: bytes) -> bytes:
    """What a record is pinned by: it may move in its container."""
    return blake3.blake3(url + b"\0" + date).digest(_HALF)


def pins_path(directory: Path, name: str) -> Path:
    """Where a container's pins are if it is named as `name` below `directory`."""
    hashed = blake3.blake3(name.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return directory / ".rewrite" / f"{hashed}.pins"


def _of(directory: Path, name: str) -> Path:
    """Where a container's pins are, also for who knows it by other names.

    That is below `directory` if there is no link on the way from there, else beside the file.
    """
    real = Path(os.path.realpath(directory / name))
    if real == Path(os.path.realpath(directory), name):
        return pins_path(directory, name)
    return pins_path(real.parent, real.name)


def pinned(path: Path) -> set[bytes]:
    """The keys of all records of a container that are pinned, below whatever directory."""
    found: set[bytes] = set()
    for place in {path.absolute(), path.resolve()}:
        for above in place.parents:
            pins = pins_path(above, str(place.relative_to(above)))
            if pins.exists():
                with open_for_reading(pins) as file:
                    found.update(pin[:_HALF] for pin in _pins(file))
    return found


def unpin(directory: Path, name: str, holders: Iterable[Holder]) -> None:
    """Take out what the revisits of a container have pinned: it has none any more."""
    own = _writer(directory, name)
    for holder in holders:
        path = _of(Path(holder.root) if holder.root else directory, holder.name)
        try:
            if path.exists():
                _without(path, own)
        except OSError as error:
            if error.errno not in _UNABLE:
                raise


def _without(path: Path, own: bytes) -> None:
    part = path.with_name(path.name + ".part")
    with _exclusive(path) as file:
        if all(pin.endswith(own) for pin in _pins(file)):
            path.unlink()
        else:
            with open(part, "wb") as kept:
                kept.writelines(pin for pin in _pins(file) if not pin.endswith(own))
                kept.flush()
                os.fsync(kept.fileno())
            os.replace(part, path)
    sync_directory(path.parent)


def _writer(directory: Path, name: str) -> bytes:
    return blake3.blake3(os.fsencode(os.path.realpath(directory / name))).digest(_HALF)


def _pins(file: BinaryIO) -> Iterator[bytes]:
    at, size = 0, 2 * _HALF
    while data := os.pread(file.fileno(), _PIECE, at):
        at += len(data)
        for start in range(0, len(data) - size + 1, size):  # what a killed run began is no pin
            yield data[start : start + size]


def _append(path: Path, data: bytes) -> None:
    if not path.parent.exists():
        path.parent.mkdir(exist_ok=True)
        sync_directory(path.parent.parent)
    with _exclusive(path) as file:
        at = os.fstat(file.fileno()).st_size
        at -= at % (2 * _HALF)
        left = memoryview(data)
        while left:
            done = os.pwrite(file.fileno(), left, at)
            at, left = at + done, left[done:]
        os.fsync(file.fileno())
    sync_directory(path.parent)


@contextmanager
def _exclusive(path: Path) -> Iterator[BinaryIO]:
    """A file of pins, opened for writing while nobody else writes to it or replaces it."""
    while True:
        still = False
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                still = os.path.samestat(os.stat(path), os.fstat(descriptor))
            if still:
                yield file
                return


@contextmanager
def _staying(path: Path, identity: tuple[int, int] | None) -> Iterator[None]:
    """See that a file outside of the set is what was read, and that no run replaces it now."""
    if identity is None:  # one of the set
        yield
        return
    with open_for_reading(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Left(f"{path}, which has originals, is being rewritten: try again") from error
        except OSError as error:
            if error.errno not in _LOCKLESS:
                raise
        now = os.stat(path)
        if (now.st_dev, now.st_ino) != identity:
            raise Left(f"{path}, which has originals, was replaced meanwhile: try again")
        yield
