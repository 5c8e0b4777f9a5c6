"""Records that a revisit refers to, in whatever file, and which therefore never become revisits.

A plan knows the revisits of its own set only. So each run that writes revisits first records what
they refer to, beside the file that holds the original: ``.rewrite/KEY.pins``, 32 bytes an entry.
The first half of an entry is a hash of the URL and date of the original, the second half a hash of
the path of the revisit's file. Undoing a run removes its entries. Entries of a run that failed do
no harm: they only keep a record as it is.
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

from dedupindex.runtime.atomic_replace import Untouched, is_still, open_for_reading
from dedupindex.runtime.files import sync_directory

_HASH = 16  # bytes
_ENTRY = 2 * _HASH
_CHUNK = _ENTRY << 15
_BATCH = 50_000  # entries that are held before they are written
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


class OriginalFile(NamedTuple):
    """A file with records that revisits refer to."""

    root: str  # empty for the directory of the revisit's file
    name: str
    outside: tuple[int, int] | None = None  # device and inode of a file that is not of the set


class ProtectionWriter:
    """Writes what the revisits of one file refer to."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory, self._name = directory, name
        self._referrer = _referrer(directory, name)
        self._written: set[OriginalFile] = set()
        self._pending: dict[OriginalFile, set[bytes]] = {}
        self._count = 0

    def add(self, original: OriginalFile, record: bytes) -> None:
        """Protect a record, given by its `record_key`."""
        self._pending.setdefault(original, set()).add(record)
        self._count += 1
        if self._count >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """Force all entries to disk.

        Raises `Untouched` if an original outside of the set is being rewritten or was replaced.
        """
        self._written.update(self._pending)
        for original, records in self._pending.items():
            data = b"".join(record + self._referrer for record in sorted(records))
            root = Path(original.root) if original.root else self._directory
            path = _real_path(root, original.name)
            if original.outside is None and path == protection_path(root, original.name):
                _append(path, data)
                continue
            try:
                with _unchanged(root / original.name, original.outside):
                    _append(path, data)
            except OSError as error:
                if error.errno not in _READ_ONLY:  # nobody rewrites what cannot be written
                    raise
        self._pending.clear()
        self._count = 0

    def commit(self) -> None:
        """Keep what was written: from now on a journal refers to it."""
        self._written.clear()

    def close(self) -> None:
        """Remove what was written and not committed, if the disk allows."""
        with suppress(OSError):
            unprotect(self._directory, self._name, self._written)


def record_key(url: bytes, date: bytes) -> bytes:
    """Return the hash by which a record is protected, wherever it is in its file."""
    return blake3.blake3(url + b"\0" + date).digest(_HASH)


def protection_path(directory: Path, name: str) -> Path:
    """Return where the entries of the file `name` below `directory` are."""
    hashed = blake3.blake3(name.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return directory / ".rewrite" / f"{hashed}.pins"


def _real_path(directory: Path, name: str) -> Path:
    """Return where the entries of a file are, by whatever path the file is named.

    That is below `directory` if no symbolic link leads from there to the file, else beside it.
    """
    real = Path(os.path.realpath(directory / name))
    if real == Path(os.path.realpath(directory), name):
        return protection_path(directory, name)
    return protection_path(real.parent, real.name)


def protected(path: Path) -> set[bytes]:
    """Return the keys of all protected records of a file, recorded below whatever directory."""
    found: set[bytes] = set()
    for name in {path.absolute(), path.resolve()}:
        for directory in name.parents:
            entries = protection_path(directory, str(name.relative_to(directory)))
            if entries.exists():
                with open_for_reading(entries) as file:
                    found.update(entry[:_HASH] for entry in _entries(file))
    return found


def unprotect(directory: Path, name: str, originals: Iterable[OriginalFile]) -> None:
    """Remove the entries of a file that has no revisits any more."""
    referrer = _referrer(directory, name)
    for original in originals:
        path = _real_path(Path(original.root) if original.root else directory, original.name)
        try:
            if path.exists():
                _remove(path, referrer)
        except OSError as error:
            if error.errno not in _READ_ONLY:
                raise


def _remove(path: Path, referrer: bytes) -> None:
    part = path.with_name(path.name + ".part")
    with _locked(path) as file:
        if all(entry.endswith(referrer) for entry in _entries(file)):
            path.unlink()
        else:
            with open(part, "wb") as rest:
                rest.writelines(entry for entry in _entries(file) if not entry.endswith(referrer))
                rest.flush()
                os.fsync(rest.fileno())
            os.replace(part, path)
    sync_directory(path.parent)


def _referrer(directory: Path, name: str) -> bytes:
    return blake3.blake3(os.fsencode(os.path.realpath(directory / name))).digest(_HASH)


def _entries(file: BinaryIO) -> Iterator[bytes]:
    offset = 0
    while data := os.pread(file.fileno(), _CHUNK, offset):
        offset += len(data)
        for start in range(0, len(data) - _ENTRY + 1, _ENTRY):  # a cut last entry is ignored
            yield data[start : start + _ENTRY]


def _append(path: Path, data: bytes) -> None:
    if not path.parent.exists():
        path.parent.mkdir(exist_ok=True)
        sync_directory(path.parent.parent)
    with _locked(path) as file:
        offset = os.fstat(file.fileno()).st_size
        offset -= offset % _ENTRY
        rest = memoryview(data)
        while rest:
            done = os.pwrite(file.fileno(), rest, offset)
            offset, rest = offset + done, rest[done:]
        os.fsync(file.fileno())
    sync_directory(path.parent)


@contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    """Open a file of entries for writing, and lock it; nobody else replaces it meanwhile."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            if is_still(path, file):
                yield file
                return


@contextmanager
def _unchanged(path: Path, identity: tuple[int, int] | None) -> Iterator[None]:
    """Check that a file outside of the set is the one that was read, and that no run replaces it.

    Without an identity, that of a file of the set, nothing is checked.
    """
    if identity is None:
        yield
        return
    with open_for_reading(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = f"{path}, which has originals, is being rewritten: try again"
            raise Untouched(message) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        now = os.stat(path)
        if (now.st_dev, now.st_ino) != identity:
            raise Untouched(f"{path}, which has originals, was replaced meanwhile: try again")
        yield
