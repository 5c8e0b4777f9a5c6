"""What revisits refer to, in whatever file they are: a KEY.pins of each file with originals.

A plan knows the revisits of its own set only. So each run first protects what its revisits refer
to, by entries of 32 bytes in the KEY.pins of the file with the original: a hash of the original's
URL and date, then a hash that names the revisit's file: by its name below the directory if both
files are in it, so that it may be moved, else by its path. A protected record never becomes a
revisit. The journal, still under its temporary name, is on disk before such an entry is: so the
entries of a run that was killed are found and removed, as those of a run that is undone.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

import blake3

from dedupindex.object_store import is_remote
from dedupindex.post_crawl.rewrite.undo_directory import DIRECTORY, file_key, names_of
from dedupindex.runtime.atomic_replace import Untouched, is_still, open_for_reading
from dedupindex.runtime.files import sync_directory

_HASH = 16  # bytes
ENTRY_BYTES = 2 * _HASH
_CHUNK = ENTRY_BYTES << 15
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


class OriginalFile(NamedTuple):
    root: str  # empty for the directory of the revisit's file
    name: str
    outside: tuple[int, int] | None = None  # device and inode of a file that is not of the set


def protect(directory: Path, name: str, records: Mapping[OriginalFile, Set[bytes]]) -> None:
    """Record on disk what the revisits of one file refer to: `record_key`s by original's file.

    Raises `Untouched` if an original outside of the set is being rewritten or was replaced.
    """
    at, is_here = referrer_at(directory / name), _is_below(directory, name)
    for original, keys in records.items():
        root = Path(original.root) if original.root else directory
        path = _real_path(root, original.name)
        is_named = path == protection_path(root, original.name)
        inside = original.outside is None and is_named
        both_here = is_here and is_named and not original.root
        referrer = referrer_below(name) if both_here else at
        data = b"".join(key + referrer for key in sorted(keys))
        try:
            with _unchanged(root / original.name, original.outside):
                _append(path, data)
        except OSError as error:
            if inside or error.errno not in _READ_ONLY:  # nobody rewrites read-only files
                raise


def protect_for_others(directory: Path, name: str, keys: Set[bytes], host: str) -> None:
    """Record on disk what revisits of other hosts than `host` refer to in a file: `record_key`s.

    The entries stay: no run on this host can know that these revisits are gone.
    """
    referrer = blake3.blake3(f"other than {host}".encode()).digest(_HASH)
    path = _real_path(directory, name)
    known = {entry[:_HASH] for entry in _entries_of(path) if entry.endswith(referrer)}
    if missing := sorted(keys - known):
        _append(path, b"".join(key + referrer for key in missing))


def record_key(url: bytes, date: bytes) -> bytes:
    """Return the hash by which a record is protected, wherever it is in its file."""
    return blake3.blake3(url + b"\0" + date).digest(_HASH)


def protection_path(directory: Path, name: str) -> Path:
    """Return where the entries of the file `name` below `directory` are."""
    return directory / DIRECTORY / f"{file_key(name)}.pins"


def protecting_directory(path: str) -> str:
    """Return where a run protects an original in this file, which is not of its set, with a "/".

    Empty if it does not, as for a file in a store or on a read-only disk.
    """
    if is_remote(path):
        return ""
    place = _real_path(Path(os.path.dirname(path)), os.path.basename(path)).parent
    writable = os.access(place if place.exists() else place.parent, os.W_OK)
    return f"{place}/" if writable else ""


def _real_path(directory: Path, name: str) -> Path:
    """Return where the entries of a file are: beside it if a symbolic link leads to it."""
    if _is_below(directory, name):
        return protection_path(directory, name)
    real = Path(os.path.realpath(directory / name))
    return protection_path(real.parent, real.name)


def _is_below(directory: Path, name: str) -> bool:
    """Return whether no link in its name leads to a file."""
    return os.path.realpath(directory / name) == str(Path(os.path.realpath(directory), name))


def protected(path: Path) -> set[bytes]:
    """Return the keys of all protected records of a file, recorded below whatever directory."""
    found: set[bytes] = set()
    for directory, name in names_of(path):
        found.update(entry[:_HASH] for entry in _entries_of(protection_path(directory, name)))
    return found


def entries_in(directory: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield the `record_key` and the referrer of each entry in a directory that can be read."""
    for path in _files_in(directory):
        with suppress(OSError):
            for entry in _entries_of(path):
                yield entry[:_HASH], entry[_HASH:]


def _files_in(directory: Path) -> list[Path]:
    return sorted((directory / DIRECTORY).glob("*.pins"))


def _entries_of(path: Path) -> Iterator[bytes]:
    if path.exists():
        with open_for_reading(path) as file:
            yield from _entries(file)


def unprotect(directory: Path, name: str, originals: Iterable[OriginalFile]) -> None:
    """Remove the entries of a file that has no revisits any more."""
    at, below = referrer_at(directory / name), referrer_below(name)
    for original in originals:
        if is_remote(original.root):
            continue
        path = _real_path(Path(original.root or directory), original.name)
        is_ours = not original.root and path == protection_path(directory, original.name)
        try:
            if path.exists():
                _remove(path, {at, below} if is_ours else {at})
        except OSError as error:
            if error.errno not in _READ_ONLY:
                raise


def adopt_protection(directory: Path, name: str, made: Path) -> None:
    """Take over what another machine has recorded in `made` for the revisits of one file."""
    referrer = referrer_below(name)
    for path in _files_in(made):
        keys = sorted({entry[:_HASH] for entry in _entries_of(path)})
        _append(directory / DIRECTORY / path.name, b"".join(key + referrer for key in keys))


def _remove(path: Path, referrers: Set[bytes]) -> None:
    part = path.with_name(path.name + ".part")
    with _locked(path) as file:
        if all(entry[_HASH:] in referrers for entry in _entries(file)):
            path.unlink()
            part.unlink(missing_ok=True)
        else:
            with open(part, "wb") as rest:
                rest.writelines(one for one in _entries(file) if one[_HASH:] not in referrers)
                rest.flush()
                os.fsync(rest.fileno())
            os.replace(part, path)
    sync_directory(path.parent)


def referrer_at(path: Path) -> bytes:
    """Return the hash that names a revisit's file by its path."""
    return blake3.blake3(os.fsencode(os.path.realpath(path))).digest(_HASH)


def referrer_below(name: str) -> bytes:
    """Return the hash that names it by its name below the directory that has the entry."""
    return blake3.blake3(b"./" + os.fsencode(name)).digest(_HASH)


def _entries(file: BinaryIO) -> Iterator[bytes]:
    offset = 0
    while data := os.pread(file.fileno(), _CHUNK, offset):
        offset += len(data)
        whole = len(data) - len(data) % ENTRY_BYTES  # a cut last entry is ignored
        for start in range(0, whole, ENTRY_BYTES):
            yield data[start : start + ENTRY_BYTES]


def _append(path: Path, data: bytes) -> None:
    if not path.parent.exists():
        path.parent.mkdir(exist_ok=True)
        sync_directory(path.parent.parent)
    with _locked(path) as file:
        offset = os.fstat(file.fileno()).st_size
        offset -= offset % ENTRY_BYTES
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
    """Check that a file with an identity, one outside of the set, is not being replaced."""
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
