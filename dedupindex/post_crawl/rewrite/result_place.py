"""Where files are read, and where results are written: a directory, or an object store.

Results in a store have their journals in a local directory, the *state*, in which a run also
writes each file before it becomes an object. Files of a store are read into temporary files:
whole, or by range.
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, NamedTuple

from dedupindex.errors import BadInput, BadSource, Damaged, SettingsConflict
from dedupindex.object_store import (
    ObjectFacts,
    RemoteFile,
    addresses_below,
    copy_object,
    copy_source,
    create_object,
    facts_or_none,
    fetched,
    find_objects,
    in_same_store,
    is_many,
    is_object,
    is_remote,
    redacted,
    remove_object,
)
from dedupindex.post_crawl.manifest.parquet import ManifestContainer
from dedupindex.post_crawl.rewrite.undo_directory import (
    DIRECTORY,
    LOCK,
    UNCORRECTED,
    has_journals,
    kept_names,
)
from dedupindex.runtime.atomic_replace import (
    CopiedRange,
    Untouched,
    content_hash,
    create_file,
    open_for_reading,
    replace_file,
    same_bytes,
)
from dedupindex.runtime.files import write_file
from dedupindex.runtime.tables import amount, singular
from dedupindex.sources.warc_files import SourceFile, status_of
from dedupindex.verify.file_bytes import Elsewhere, File, UnreadableFile

A_COPY = (
    "as a copy of the source, which a run makes that finds no duplicates in it: remove this copy, "
    "and repeat the command"
)
_NOT_OURS = "and the folder of --out has no journal of an earlier run"
_ANOTHER = (
    "if it is not a result of an earlier run with this source (are the arguments swapped?), name "
    "another folder with --out. If it is, another plan made it, it was damaged, or a record was "
    "taken out of it. Keep it in that last case: the source may still have the record. Else "
    "remove all files that are named so, and repeat the command"
)
FILE_LEFT = "file-left-alone"  # why captures of a file that was left alone stay
EARLIER = "kept as they are, with other content"  # what has the names of left files
_READS = 3  # of an object whose bytes are not those that were scanned, before it is left alone
_BLOCK = 1 << 16  # bytes of an object that is read here and there, to be requested at once
_MOST_BLOCKS = 1 << 7  # of one request, where they are read in order
STORE_FILE = "store"  # in the directory of journals: the address of the results
NOT_IN_PLACE = (
    "{} was written with --out, so its sources are as they were, and nothing is restored in place: "
    "bin/undedup ADDRESS --state DIR --out OTHER rebuilds its records"
)


@contextmanager
def opened_source(file: ManifestContainer | SourceFile) -> Iterator[BinaryIO]:
    """Yield a file for reading, a temporary copy of an object; raises `OSError`, `Untouched`.

    Raises `BadSource` if a store does not answer: that does not concern this file only.
    """
    if not is_remote(file.path):
        with open_for_reading(file.path) as source:
            yield source
        return
    found = facts_or_none(file.path)
    if found is None:
        raise Untouched("it was removed from the store since it was scanned")
    with ExitStack() as stack:
        for _ in range(_READS):
            stack.close()
            try:
                reading = fetched(file.path, file.size, file.mtime_ns, found)
                source = stack.enter_context(reading)
            except Damaged as error:
                raise Untouched(str(error)) from error
            if isinstance(file, SourceFile) or content_hash(source) == file.content_hash:
                break
            found = None  # it is asked for again
        yield source


def is_as_scanned(file: ManifestContainer | SourceFile) -> bool:
    """Whether an object has the size and version that it was scanned with."""
    return status_of(file.path) == (file.size, file.mtime_ns, 0)


class MissingFile(NamedTuple):
    """A file that was not copied to the directory of the results."""

    file: str
    bytes: int
    existing_bytes: int  # of a file of its name that an earlier run left there, or 0


def earlier_results_text(absent: Iterable[MissingFile]) -> str:
    """Say which results of earlier runs stay as they are; empty if none do."""
    if not (files := [file for file in absent if file.existing_bytes]):
        return ""
    size = amount(sum(file.existing_bytes for file in files))
    return singular(f"{len(files):,} files, {size}")


def check_in_stores(does: str, paths: Iterable[object]) -> None:
    """Raise `BadInput` unless executors of Spark can read the files; `does` is a verb."""
    for path in map(str, paths):
        if not is_remote(path):
            raise BadInput(f"--spark {does} files of object stores: {path} is on this machine")


class SharedRanges(NamedTuple):
    """What a result has in common with its source."""

    source: ManifestContainer
    ranges: Sequence[CopiedRange]


class ResultPlace(ABC):
    """A directory or prefix with results, and the directory that has their journals."""

    def __init__(self, state: Path) -> None:
        self.state = state

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Return the size of a result, None if there is none."""

    @abstractmethod
    def existing(self, names: Collection[str]) -> set[str]:
        """Return those of some names that have a result; raises `BadSource`."""

    @abstractmethod
    def opened(self, name: str) -> BinaryIO:
        """Open a result for reading; raises `FileNotFoundError`."""

    @abstractmethod
    def has(self, file: BinaryIO, name: str) -> bool:
        """Whether there is a result of this content; raises `FileExistsError` for another one."""

    @abstractmethod
    def create(
        self, part: Path, file: BinaryIO, name: str, shared: SharedRanges | None = None
    ) -> None:
        """Make a finished part a result; raises `FileExistsError` if there is one of this name."""

    def copied(self, source: ManifestContainer) -> bool:
        """Make a copy of a source a result without reading it; False if that is not possible."""
        return False

    @abstractmethod
    def replace(self, part: Path, file: BinaryIO, name: str) -> None:
        """Make a finished part a result in place of what is there."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a result, if it exists."""

    @abstractmethod
    def verified(self, name: str) -> Path | Elsewhere:
        """Return what `verify` reads."""

    @abstractmethod
    def shown(self, name: str) -> str:
        """Return the path or address of a result."""


class DirectoryPlace(ResultPlace):
    def size(self, name: str) -> int | None:
        path = self.state / name
        return path.stat().st_size if path.is_file() else None

    def existing(self, names: Collection[str]) -> set[str]:
        return {name for name in names if os.path.lexists(self.state / name)}

    def opened(self, name: str) -> BinaryIO:
        return open_for_reading(self.state / name)

    def has(self, file: BinaryIO, name: str) -> bool:
        if not (self.state / name).exists():
            return False
        with self.opened(name) as existing:
            if not same_bytes(file, existing):
                raise FileExistsError(name)
        return True

    def create(
        self, part: Path, file: BinaryIO, name: str, shared: SharedRanges | None = None
    ) -> None:
        create_file(part, file, self.state / name)

    def replace(self, part: Path, file: BinaryIO, name: str) -> None:
        replace_file(part, file, self.state / name)

    def remove(self, name: str) -> None:
        (self.state / name).unlink(missing_ok=True)

    def verified(self, name: str) -> Path | Elsewhere:
        return self.state / name

    def shown(self, name: str) -> str:
        return str(self.state / name)


class StorePlace(ResultPlace):
    def __init__(self, address: str, state: Path) -> None:
        super().__init__(state)
        self._address = address.rstrip("/")

    def size(self, name: str) -> int | None:
        found = self.facts(name)
        return None if found is None else found.size

    def facts(self, name: str) -> ObjectFacts | None:
        """Request the facts of a result, None if there is none."""
        return facts_or_none(self.shown(name))

    def existing(self, names: Collection[str]) -> set[str]:
        found = addresses_below(self._address)
        return {name for name in names if self.shown(name) in found}

    def opened(self, name: str) -> BinaryIO:
        found = self.facts(name)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.shown(name))
        with fetched(self.shown(name), found.size, known=found) as file:
            return open(os.dup(file.fileno()), "rb", buffering=0)

    def has(self, file: BinaryIO, name: str) -> bool:
        if self.size(name) is None:
            return False
        if not is_object(file, self.shown(name)):
            raise FileExistsError(name)
        return True

    def create(
        self, part: Path, file: BinaryIO, name: str, shared: SharedRanges | None = None
    ) -> None:
        address, source = self.shown(name), None
        if shared is not None and self._can_copy(shared.source) and shared.ranges:
            source = copy_source(shared.source.path, shared.source.mtime_ns, shared.ranges)
        create_object(file, address, source)

    def copied(self, source: ManifestContainer) -> bool:
        return self._can_copy(source) and copy_object(
            source.path, source.mtime_ns, source.size, self.shown(source.name), source.content_hash
        )

    def _can_copy(self, source: ManifestContainer) -> bool:
        return is_remote(source.path) and in_same_store(source.path, self._address)

    def replace(self, part: Path, file: BinaryIO, name: str) -> None:
        self.remove(name)
        self.create(part, file, name)

    def remove(self, name: str) -> None:
        remove_object(self.shown(name))

    def verified(self, name: str) -> Path | Elsewhere:
        return StoredPath(self.shown(name))

    def shown(self, name: str) -> str:
        return f"{self._address}/{name}"


def bind_state(state: Path, store: str) -> None:
    """Record below which address the results are whose journals a directory has.

    Raises `SettingsConflict` if it has those of another place. `store` is empty for results in the
    directory itself.
    """
    path = state / DIRECTORY / STORE_FILE
    before = path.read_text() if path.exists() else ""
    kept = {name for name in kept_names(state) if before or name.endswith(".jsonl")}
    if before != store and kept - {LOCK, STORE_FILE, UNCORRECTED}:  # else no run wrote a revisit
        raise SettingsConflict(
            f"{state} has the journals of results in {before or 'the directory itself'}, not in "
            f"{store or 'the directory itself'}: name another directory"
        )
    if before != store:
        (state / DIRECTORY / UNCORRECTED).unlink(missing_ok=True)  # of the other place
        write_file(path, store.encode())


def store_of_state(state: Path) -> str:
    """Return the address of the results whose journals a directory has; empty if they are in it."""
    path = state / DIRECTORY / STORE_FILE
    return path.read_text() if path.exists() else ""


def place_of(store: str, state: Path) -> ResultPlace:
    """Return where results are: in a store, or if that is empty in the directory itself."""
    return StorePlace(store, state) if store else DirectoryPlace(state)


# --- for verification ---


@dataclass(frozen=True)
class StoredPath(Elsewhere):
    """An object, or a prefix, that `verify` reads by range; `known` saves a request for its facts.

    If the object has others by then, it cannot be read.
    """

    address: str
    known: ObjectFacts | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return redacted(self.address)

    @property
    def name(self) -> str:
        return self.address.rstrip("/").rpartition("/")[2]

    def open(self, *, scattered: bool) -> File:
        return _ScatteredFile(self) if scattered else _StoredFile(self)

    def size(self) -> int:
        found = facts_or_none(self.address)
        return found.size if found is not None else 0

    def is_dir(self) -> bool:
        return is_many(self.address)

    def below(self) -> Iterator[tuple[str, Elsewhere]]:
        """Yield the objects below a prefix by their names there; raises `BadSource`."""
        top = self.address.rstrip("/")
        for found in find_objects(f"{top}/"):
            yield found.address.removeprefix(f"{top}/"), StoredPath(found.address)


class _StoredFile(File):
    def __init__(self, path: StoredPath) -> None:
        self.path = path
        try:
            self._remote = RemoteFile(path.address, path.known)
        except BadSource as error:
            raise UnreadableFile(str(error)) from error
        self.size = self._remote.size

    def close(self) -> None:
        self._remote.close()

    def read(self, offset: int, size: int) -> bytes:
        wanted = max(min(size, self.size - offset), 0)
        try:
            data = self._remote.pread(wanted, offset)
        except BadSource as error:
            raise UnreadableFile(str(error)) from error
        if len(data) < wanted:
            raise UnreadableFile("it became shorter while it was read")
        return data


class _ScatteredFile(_StoredFile):
    """An object that is read here and there; each block of it is requested once.

    The blocks are kept in a temporary file. Where the next block is read after one, as in a large
    record, a request has twice as many as the one before.
    """

    def __init__(self, path: StoredPath) -> None:
        super().__init__(path)
        self._copy: BinaryIO = TemporaryFile(prefix="dedupindex-")  # noqa: SIM115
        self._there = bytearray(-(-self.size // _BLOCK))  # 1 for each block that is in the copy
        self._next, self._count = -1, 1  # the block after the last request, and that one's blocks

    def close(self) -> None:
        super().close()
        self._copy.close()

    def read(self, offset: int, size: int) -> bytes:
        wanted = max(min(size, self.size - offset), 0)
        stop = -(-(offset + wanted) // _BLOCK) if wanted else 0
        while (missing := self._there.find(0, offset // _BLOCK, stop)) >= 0:
            self._request(missing, stop)
        return os.pread(self._copy.fileno(), wanted, offset)

    def _request(self, start: int, stop: int) -> None:
        """Copy the blocks from `start` on, up to `stop` or one that is there."""
        self._count = min(2 * self._count, _MOST_BLOCKS) if start == self._next else 1
        stop = min(max(stop, start + self._count), len(self._there))
        present = self._there.find(1, start, stop)
        stop = present if present >= 0 else stop
        begin, end = start * _BLOCK, min(stop * _BLOCK, self._remote.size)
        try:
            data = self._remote.range(end - begin, begin)
        except BadSource as error:
            raise UnreadableFile(str(error)) from error
        if len(data) < end - begin:
            raise UnreadableFile("it became shorter while it was read")
        self._copy.seek(begin)
        self._copy.write(data)
        self._copy.flush()
        self._there[start:stop] = b"\1" * (stop - start)
        self._next = stop


def to_verify(path: str) -> Path | Elsewhere:
    """Return what `verify` reads: a file of a disk or a store."""
    return StoredPath(path) if is_remote(path) else Path(path)


def other_content(place: ResultPlace, name: str, source: BinaryIO) -> Untouched:
    """Return what is raised for a file that exists with other content than its result."""
    shown = place.shown(name)
    with place.opened(name) as existing:
        if same_bytes(source, existing):
            return Untouched(f"{shown} exists already, {A_COPY}")
    ours = is_remote(shown) or has_journals(place.state)  # an executor does not have the journals
    why = f": {_ANOTHER}" if ours else f", {_NOT_OURS}"
    return Untouched(f"{shown} exists already, with other content{why}")
