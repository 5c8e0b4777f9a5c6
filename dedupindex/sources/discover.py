"""From what a user names (files, directories, globs, addresses, ``-``) to what is to be read."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from dedupindex.capture import Problem
from dedupindex.errors import BadSource
from dedupindex.object_store import (
    AT_ONCE,
    FoundObject,
    ObjectFacts,
    RemoteFile,
    facts,
    is_many,
    is_remote,
    local,
    redacted,
)
from dedupindex.object_store import find_objects as found_remote
from dedupindex.sources.browsertrix import is_address
from dedupindex.sources.kinds import HEAD, NO_ZSTD, ZSTD, kind_named, kind_of

STDIN = "-"
UNFINISHED = ("*.part", "*.open")  # still being written
_ARCHIVES = re.compile(r"\.w?arc(\.[a-z0-9]+)*$", re.IGNORECASE)
_SIDECARS = ("*.idx", "*-errors.log*")  # Heritrix repeats lines of crawl.log in its error logs
_FEW = 8  # bytes, enough to tell zstd: there may be many files
_INDEX = ("index.json", b'"canonicaliser"')  # what makes a directory one of our indexes


@dataclass
class Expanded:
    """The containers that were meant, each once."""

    paths: list[str] = field(default_factory=list)  # absolute, "-", or an address
    skipped: int = 0  # files met in directories or by globs that are no source
    problems: list[Problem] = field(default_factory=list)  # such files that may be one
    archives: list[str] = field(default_factory=list)  # files of both sorts, named as archives are
    elsewhere: dict[str, ObjectFacts] = field(default_factory=dict)  # of objects, by address


def expand(sources: Sequence[str], kind: str | None = None) -> Expanded:
    """Find the containers that `sources` name.

    A directory is searched to its bottom, in the order of names: hidden and unfinished files and
    indexes are left out, files of no known kind counted, with `kind` all files of others too. What
    cannot be told (empty, unreadable, zstd) is a problem. A file that is named itself is taken at
    its word. Raises `BadSource` for a source that is not there or is no file.
    """
    wanted = kind_named(kind) if kind else ""
    found = Expanded()
    visited: set[tuple[int, int]] = set()
    for source in map(local, sources):
        if source == STDIN or is_address(source):
            found.paths.append(source)
        elif is_remote(source):
            _elsewhere(source, wanted, found)
        elif os.path.isdir(source):
            _search(os.path.abspath(source), wanted, found, visited)
        elif os.path.lexists(source) or not glob.has_magic(source):
            found.paths.append(regular(os.path.abspath(source)))
        else:
            _by_glob(source, wanted, found, visited)
    found.paths = list(dict.fromkeys(found.paths))
    return found


def passing(path: str) -> bool:
    """Whether a path of `Expanded` is of something that may say something else the next time."""
    return path == STDIN or is_address(path)


def is_unfinished(path: str) -> bool:
    """Whether a file is still being written, by its name."""
    return any(fnmatchcase(os.path.basename(path), pattern) for pattern in UNFINISHED)


def regular(path: str) -> str:
    """`path`, if it is a file; raises `BadSource`."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise BadSource(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise BadSource(f"{path} is no file; to read from a pipe, give - and redirect it to stdin")
    return path


def _by_glob(pattern: str, wanted: str, found: Expanded, visited: set[tuple[int, int]]) -> None:
    matches = sorted(glob.glob(pattern, recursive=True))
    if not matches:
        raise BadSource(f"nothing matches {pattern}")
    for match in matches:
        path = os.path.abspath(match)
        if not os.path.isdir(path):
            _meet(path, wanted, found)
        elif "**" not in pattern:  # which has met all below it already
            _search(path, wanted, found, visited)


def _search(top: str, wanted: str, found: Expanded, visited: set[tuple[int, int]]) -> None:
    """Meet every file below a directory; links are followed, but no directory entered twice."""

    def unreadable(error: OSError) -> None:
        found.problems.append(Problem(str(error.filename), -1, f"unreadable: {error.strerror}"))

    for directory, below, names in os.walk(top, onerror=unreadable, followlinks=True):
        known = os.stat(directory)
        if (known.st_dev, known.st_ino) in visited or _is_index(Path(directory)):
            below.clear()
            continue
        visited.add((known.st_dev, known.st_ino))
        below[:] = sorted(name for name in below if not name.startswith("."))
        for name in sorted(names):
            _meet(os.path.join(directory, name), wanted, found)


def _elsewhere(source: str, wanted: str, found: Expanded) -> None:
    """Take an object that is named, or meet those that a directory or a glob means."""
    if not is_many(source):
        found.elsewhere[source] = facts(source)
        found.paths.append(source)
        return
    plain = len(source.rpartition("/")[0] if "*" in source else source.rstrip("/"))
    many = [met for met in found_remote(source) if not _is_hidden(met.address[plain:])]
    found.elsewhere.update(many)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for met, look in zip(many, pool.map(_look_at, many), strict=True):
            _meet(met.address, wanted, found, look)


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _meet(path: str, wanted: str, found: Expanded, look: _Look | None = None) -> None:
    """Take, skip or report a file that was not named itself."""
    name = os.path.basename(path)
    if name.startswith("."):
        return
    taken = len(found.paths)
    if _is_beside(name):
        found.skipped += 1
    else:
        _judge(path, name, wanted, found, look or _look(path))
    if len(found.paths) == taken and _ARCHIVES.search(name):
        found.archives.append(path)


def _is_beside(name: str) -> bool:
    """Whether a file is left out whatever is in it."""
    return is_unfinished(name) or any(fnmatchcase(name, pattern) for pattern in _SIDECARS)


class _Look(NamedTuple):
    """What is seen at the beginning of a file."""

    head: bytes = b""  # the first few
    kind: str = ""
    wrong: str = ""  # why nothing is


def _look(path: str) -> _Look:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return _Look(wrong="is no regular file")
        with open(path, "rb") as stream:
            head = stream.read(HEAD)
            return _Look(head[:_FEW], kind_of(head, stream))
    except OSError as error:
        return _Look(wrong=f"cannot be read: {error.strerror}")


def _look_at(met: FoundObject) -> _Look:
    """The same of an object."""
    if _is_beside(os.path.basename(met.address)):
        return _Look()
    try:
        with RemoteFile(met.address, met.facts) as stream:
            head = stream.read(HEAD)
            return _Look(head[:_FEW], kind_of(head, stream))
    except BadSource as error:
        return _Look(wrong=str(error).removeprefix(f"{redacted(met.address)} "))


def _judge(path: str, name: str, wanted: str, found: Expanded, look: _Look) -> None:
    head, kind, wrong = look
    if wrong:
        found.problems.append(Problem(path, -1, wrong))
        return
    if wanted == "warc" and not kind and not _ARCHIVES.search(name):
        found.skipped += 1  # it may be empty or zstd: by its name it is a mark, or a log
    elif head.startswith(ZSTD):
        found.problems.append(Problem(path, 0, NO_ZSTD))
    elif not head:
        found.problems.append(Problem(path, 0, "is empty"))
    elif kind and wanted in ("", kind):
        found.paths.append(path)
    else:
        found.skipped += 1


def _is_index(directory: Path) -> bool:
    name, mark = _INDEX
    try:
        return mark in (directory / name).read_bytes()[:HEAD]
    except OSError:
        return False
