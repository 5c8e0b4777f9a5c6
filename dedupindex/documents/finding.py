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
from collections.abc import Callable, Iterator
from fnmatch import translate
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote_from_bytes

from dedupindex.capture import Problem
from dedupindex.errors import BadSource

Warn = Callable[[Problem], None]
_ANY = "**"


class Found(NamedTuple):
    """An object that can be hashed."""

    path: str  # absolute, or an address
    size: int
    stamp: str  # changes when the object does; empty if there is no telling


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
    """A glob in full, so that it means the same wherever it is typed."""
    path = os.path.abspath(os.path.expanduser(pattern))
    return path if not os.path.isdir(path) else os.path.join(glob.escape(path), _ANY, "*")


def find(pattern: str, warn: Warn, leave_out: Path) -> Iterator[Found]:
    """The files that a `normal` glob names, in no order; the directory `leave_out` is passed over.

    `warn` hears of what cannot be read and of what is no file. Raises `BadSource` if the directory
    before the first wildcard is not there.
    """
    parts = pattern.split(os.sep)[1:]
    fixed = 0
    while fixed < len(parts) - 1 and not glob.has_magic(parts[fixed]):
        fixed += 1
    top = os.sep + os.sep.join(parts[:fixed])
    if not os.path.isdir(top):
        raise BadSource(f"{top} is not there, or no directory: nothing matches {pattern}")
    return _Walk(warn, leave_out).below(top, parts[fixed:])


class _Walk:
    """Goes through directories without ever holding the names of one."""

    def __init__(self, warn: Warn, leave_out: Path) -> None:
        self._warn, self._leave_out = warn, leave_out

    def below(self, top: str, parts: list[str]) -> Iterator[Found]:
        """What matches the rest of a pattern in the directory `top`."""
        first, rest = parts[0], parts[1:]
        if first == _ANY:
            while rest and rest[0] == _ANY:
                rest = rest[1:]
            yield from self._any(top, rest or ["*"])
            return
        matches = _matcher(first)
        for entry in self._entries(top):
            if not matches(entry.name):
                continue
            if rest:
                if self._enters(entry, links=True):
                    yield from self.below(entry.path, rest)
            else:
                yield from self._file(entry)

    def _any(self, top: str, rest: list[str]) -> Iterator[Found]:
        """What matches in `top` itself, and in every directory below it."""
        if rest != ["*"]:
            yield from self.below(top, rest)
        for entry in self._entries(top):
            if self._enters(entry, links=False):
                yield from self._any(entry.path, rest)
            elif rest == ["*"]:
                yield from self._file(entry)

    def _entries(self, top: str) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(top) as entries:
                yield from entries
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

    def _file(self, entry: os.DirEntry[str]) -> Iterator[Found]:
        try:
            status = entry.stat()
        except OSError as error:
            self._warn(Problem(entry.path, -1, f"cannot be read: {error.strerror}"))
            return
        if stat.S_ISREG(status.st_mode):
            yield Found(entry.path, status.st_size, stamp_of(status))
        elif not stat.S_ISDIR(status.st_mode):
            self._warn(Problem(entry.path, -1, "is no regular file"))


def _matcher(part: str) -> Callable[[str], object]:
    if part == "*":
        return bool
    return re.compile(translate(part)).match
