"""From a glob to the objects that it names, one after the other: there may be millions.

``*``, ``?`` and ``[…]`` are of one name, ``**`` is any number of directories; hidden names match
as others do. A directory stands for all that is below it. A link to a file is read under its own
path; ``**`` enters no directory that is a link.
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
    """An object that can be hashed."""

    path: str  # absolute, or an address
    size: int
    stamp: str  # another when the object has changed; empty if there is no telling


def spelled(path: str) -> str:
    """How a path stands in a row: as it is, or as a ``file:`` URI where it is not UTF-8."""
    if path.isascii():
        return path
    try:
        path.encode()
    except UnicodeEncodeError:
        return "file://" + quote_from_bytes(os.fsencode(path))
    return path


def stamp_of(status: os.stat_result) -> str:
    """What changes whenever a file does. Times of change, too: rsync sets back those of writing."""
    return f"{status.st_mtime_ns:x}.{status.st_ctime_ns:x}.{status.st_ino:x}"


def normal(pattern: str) -> str:
    """A glob in full, so that it means the same wherever it is typed; raises `BadSource`."""
    pattern = local(pattern)
    if is_remote(pattern):
        if redacted(pattern) != pattern:
            raise BadSource(
                f"{redacted(pattern)}: rows cannot keep what gives access to an address"
            )
        return pattern
    path = os.path.abspath(os.path.expanduser(pattern))
    return path if not os.path.isdir(path) else os.path.join(glob.escape(path), _ANY, "*")


def find(pattern: str, warn: Warn, leave_out: Path) -> Iterator[ListedObject]:
    """The files that a `normal` glob names, in no order; the directory `leave_out` is passed over.

    `warn` hears of what cannot be read and of what is no file. Raises `BadSource` if the directory
    before the first wildcard is not there, `BadInput` if it is `leave_out`; of an address nothing
    is asked before the first is wanted.
    """
    if is_remote(pattern):
        return _elsewhere(pattern, warn)
    parts = pattern.split(os.sep)[1:]
    fixed = 0
    while fixed < len(parts) - 1 and not glob.has_magic(parts[fixed]):
        fixed += 1
    top = os.sep + os.sep.join(parts[:fixed])
    if not os.path.isdir(top):
        raise BadSource(f"{top} is not there, or no directory: nothing matches {pattern}")
    if leave_out.exists() and os.path.samefile(top, leave_out):
        raise BadInput(f"{pattern} is in {leave_out}: the shards need a directory of their own")
    return _LocalWalk(warn, leave_out).below(top, parts[fixed:])


def _elsewhere(pattern: str, warn: Warn) -> Iterator[ListedObject]:
    """The same of an address."""
    scheme, _, rest = pattern.partition("://")
    if not glob.has_magic(rest):
        if not is_many(pattern):
            known = facts(pattern)
            yield ListedObject(pattern, known.size, known.stamp)
            return
        rest = os.path.join(rest, _ANY)
    parts = rest.split("/")
    fixed = 1
    while fixed < len(parts) - 1 and not glob.has_magic(parts[fixed]):
        fixed += 1
    top = f"{scheme}://{'/'.join(parts[:fixed])}/"
    yield from _RemoteWalk(warn).below(top, parts[fixed:] or [_ANY])


class _Walk(ABC, Generic[Listed]):
    """Goes through directories without ever holding the names of one."""

    def __init__(self, warn: Warn) -> None:
        self._warn = warn

    def below(self, top: str, parts: list[str]) -> Iterator[ListedObject]:
        """What matches the rest of a pattern in the directory `top`."""
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
        """What matches in `top` itself, and in every directory below it."""
        if rest != ["*"]:
            yield from self.below(top, rest)
        for _, path, entry in self._entries(top):
            if self._enters(entry, links=False):
                yield from self._any(path, rest)
            elif rest == ["*"]:
                yield from self._file(entry)

    @abstractmethod
    def _entries(self, top: str) -> Iterator[tuple[str, str, Listed]]:
        """Name, path and entry of all in a directory."""

    @abstractmethod
    def _enters(self, entry: Listed, *, links: bool) -> bool:
        """Whether it is a directory to look into, also if it is a link to one."""

    @abstractmethod
    def _file(self, entry: Listed) -> Iterator[ListedObject]:
        """It, if it can be read."""


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
            self._warn(Problem(entry.path, -1, "is no regular file"))


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
        return lambda name: True  # an object's name may end with a slash, so that this one is empty
    return re.compile(translate(part)).match
