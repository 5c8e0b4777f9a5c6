"""List the objects that match a glob, without holding all of them in memory.

``*``, ``?`` and ``[…]`` match within a name, ``**`` any number of directories; hidden names match
like others. A directory stands for everything below it. A link to a file is read under its own
path; ``**`` does not follow links to directories.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from fnmatch import translate
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar
from urllib.parse import quote_from_bytes

from dedupindex.capture import Problem
from dedupindex.errors import BadInput, BadSource
from dedupindex.object_store import (
    RemoteEntry,
    facts,
    is_many,
    is_remote,
    list_directory,
    local,
    redacted,
)

Warn = Callable[[Problem], None]
_ANY = "**"
Listed = TypeVar("Listed")


class ListedObject(NamedTuple):
    path: str  # absolute, or an address
    size: int
    stamp: str  # differs after a change; empty if changes cannot be detected


def row_path(path: str) -> str:
    """Return a path as it is written in a row: unchanged, or as a ``file:`` URI if not UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return "file://" + quote_from_bytes(os.fsencode(path))
    return path


def stamp_of(status: os.stat_result) -> str:
    """Return a stamp that changes with a file; it includes ctime, because rsync sets mtime."""
    return f"{status.st_mtime_ns:x}.{status.st_ctime_ns:x}.{status.st_ino:x}"


def absolute_glob(pattern: str) -> str:
    """Make a glob independent of the current directory; raises `BadSource`."""
    pattern = local(pattern)
    if is_remote(pattern):
        if redacted(pattern) != pattern:
            raise BadSource(f"{redacted(pattern)}: rows cannot keep the credentials of an address")
        return pattern
    path = os.path.abspath(os.path.expanduser(pattern))
    return path if not os.path.isdir(path) else os.path.join(glob.escape(path), _ANY, "*")


def find(pattern: str, warn: Warn, leave_out: Path) -> Iterator[ListedObject]:
    """Yield the files that match an `absolute_glob`, in no order, except those in `leave_out`.

    `warn` is called for unreadable files and other objects. Raises `BadSource` if the directory
    before the first wildcard does not exist, `BadInput` if it is `leave_out`; for an address,
    errors are raised during iteration.
    """
    if is_remote(pattern):
        return _find_remote(pattern, warn)
    parts = pattern.split(os.sep)[1:]
    fixed = _fixed_parts(parts, 0)
    top = os.sep + os.sep.join(parts[:fixed])
    if not os.path.isdir(top):
        raise BadSource(f"{top} is not a directory: nothing matches {pattern}")
    if leave_out.exists() and os.path.samefile(top, leave_out):
        raise BadInput(f"{pattern} is in {leave_out}: the shards need a directory of their own")
    return _LocalWalk(warn, leave_out).below(top, parts[fixed:])


def _find_remote(pattern: str, warn: Warn) -> Iterator[ListedObject]:
    scheme, _, rest = pattern.partition("://")
    if not glob.has_magic(rest):
        if not is_many(pattern):
            known = facts(pattern)
            yield ListedObject(pattern, known.size, known.stamp)
            return
        rest = os.path.join(rest, _ANY)
    parts = rest.split("/")
    fixed = _fixed_parts(parts, 1)
    top = f"{scheme}://{'/'.join(parts[:fixed])}/"
    yield from _RemoteWalk(warn).below(top, parts[fixed:] or [_ANY])


def _fixed_parts(parts: list[str], fixed: int) -> int:
    """Return how many parts precede the first wildcard or the last part, at least `fixed`."""
    while fixed < len(parts) - 1 and not glob.has_magic(parts[fixed]):
        fixed += 1
    return fixed


class _Walk(ABC, Generic[Listed]):
    """Walks directories without holding a whole listing."""

    def __init__(self, warn: Warn) -> None:
        self._warn = warn

    def below(self, top: str, parts: list[str]) -> Iterator[ListedObject]:
        """Yield what matches the rest of a pattern in the directory `top`."""
        first, rest = parts[0], parts[1:]
        if first == _ANY:
            while rest and rest[0] == _ANY:
                rest = rest[1:]
            yield from self._any(top, rest or ["*"])
            return
        matches = _matcher(first)
        for name, path, entry in self._entries(top):
            if not matches(name):
                continue
            if rest:
                if self._enters(entry, links=True):
                    yield from self.below(path, rest)
            else:
                yield from self._file(entry)

    def _any(self, top: str, rest: list[str]) -> Iterator[ListedObject]:
        """Yield what matches in `top` and in all directories below it."""
        if rest != ["*"]:
            yield from self.below(top, rest)
        for _, path, entry in self._entries(top):
            if self._enters(entry, links=False):
                yield from self._any(path, rest)
            elif rest == ["*"]:
                yield from self._file(entry)

    @abstractmethod
    def _entries(self, top: str) -> Iterator[tuple[str, str, Listed]]:
        """Yield name, path and entry of everything in a directory."""

    @abstractmethod
    def _enters(self, entry: Listed, *, links: bool) -> bool:
        """Return whether to enter a directory; with `links` also by a link."""

    @abstractmethod
    def _file(self, entry: Listed) -> Iterator[ListedObject]:
        """Yield the object if it is a readable file."""


class _LocalWalk(_Walk[os.DirEntry[str]]):
    def __init__(self, warn: Warn, leave_out: Path) -> None:
        super().__init__(warn)
        self._leave_out = leave_out

    def _entries(self, top: str) -> Iterator[tuple[str, str, os.DirEntry[str]]]:
        try:
            with os.scandir(top) as entries:
                for entry in entries:
                    yield entry.name, entry.path, entry
        except OSError as error:
            self._warn(Problem(top, -1, f"cannot be listed: {error.strerror}"))

    def _enters(self, entry: os.DirEntry[str], *, links: bool) -> bool:
        try:
            return entry.is_dir(follow_symlinks=links) and not (
                entry.name == self._leave_out.name and os.path.samefile(entry, self._leave_out)
            )
        except OSError as error:
            self._warn(Problem(entry.path, -1, f"cannot be listed: {error.strerror}"))
            return False

    def _file(self, entry: os.DirEntry[str]) -> Iterator[ListedObject]:
        try:
            status = entry.stat()
        except OSError as error:
            self._warn(Problem(entry.path, -1, f"cannot be read: {error.strerror}"))
            return
        if stat.S_ISREG(status.st_mode):
            yield ListedObject(entry.path, status.st_size, stamp_of(status))
        elif not stat.S_ISDIR(status.st_mode):
            self._warn(Problem(entry.path, -1, "is not a regular file"))


class _RemoteWalk(_Walk[RemoteEntry]):
    def _entries(self, top: str) -> Iterator[tuple[str, str, RemoteEntry]]:
        for entry in list_directory(top):
            address = entry.address.rstrip("/") if entry.is_directory else entry.address
            yield address.rpartition("/")[2], entry.address, entry

    def _enters(self, entry: RemoteEntry, *, links: bool) -> bool:
        return entry.is_directory

    def _file(self, entry: RemoteEntry) -> Iterator[ListedObject]:
        if entry.facts is not None:
            yield ListedObject(entry.address, entry.facts.size, entry.facts.stamp)
        elif entry.problem:
            self._warn(Problem(entry.address, -1, entry.problem))


def _matcher(part: str) -> Callable[[str], object]:
    if part == "*":
        return lambda name: True  # in a store a name may be empty, after a final slash
    return re.compile(translate(part)).match
