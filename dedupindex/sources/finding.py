"""From what a user names (files, directories, globs, ``-``, a Redis) to the containers to read."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from dedupindex.browsertrix import is_address
from dedupindex.capture import Problem
from dedupindex.errors import BadSource
from dedupindex.sources.kinds import HEAD, NO_ZSTD, ZSTD, kind_named, kind_of

STDIN = "-"
UNFINISHED = ("*.part", "*.open")  # still being written
_ARCHIVES = re.compile(r"\.w?arc(\.[a-z0-9]+)*$", re.IGNORECASE)
_SIDECARS = ("*.idx", "*-errors.log*")  # Heritrix repeats lines of crawl.log in its error logs
_INDEX = ("index.json", b'"canonicaliser"')  # what makes a directory one of our indexes


@dataclass
class Expanded:
    """The containers that were meant, each once."""

    paths: list[str] = field(default_factory=list)  # absolute, "-", or the address of a Redis
    skipped: int = 0  # files met in directories or by globs that are no source
    problems: list[Problem] = field(default_factory=list)  # such files that may be one
    archives: list[str] = field(default_factory=list)  # files of both sorts, named as archives are


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
    for source in sources:
        if source == STDIN or is_address(source):
            found.paths.append(source)
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


def _meet(path: str, wanted: str, found: Expanded) -> None:
    """Take, skip or report a file that was not named itself."""
    name = os.path.basename(path)
    if name.startswith("."):
        return
    taken = len(found.paths)
    _judge(path, name, wanted, found)
    if len(found.paths) == taken and _ARCHIVES.search(name):
        found.archives.append(path)


def _judge(path: str, name: str, wanted: str, found: Expanded) -> None:
    if is_unfinished(name) or any(fnmatchcase(name, pattern) for pattern in _SIDECARS):
        found.skipped += 1
        return
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            found.problems.append(Problem(path, -1, "is no regular file"))
            return
        with open(path, "rb") as stream:
            head = stream.read(HEAD)
            kind = kind_of(head, stream)
    except OSError as error:
        found.problems.append(Problem(path, -1, f"cannot be read: {error.strerror}"))
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
