"""Find the WARC and ARC files that a user names, each with the directory it was found in."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from dedupindex.capture import Problem
from dedupindex.errors import BadInput, BadSource
from dedupindex.object_store import (
    facts_or_none,
    is_many,
    is_remote,
    local,
    redacted,
)
from dedupindex.sources import Expanded, expand, is_stream
from dedupindex.sources.discover import detect_kind, is_archive_name, is_unfinished

UNFINISHED = "by its name it is still being written"
_ARCHIVES = "name archives: WARC or ARC files, or directories of them"
_INDEX = "index.json"  # in the directory of an index


class SourceFile(NamedTuple):
    """A file to read, as it was when it was found."""

    root: str  # the directory that the user named
    name: str  # path below it
    size: int
    mtime_ns: int
    inode: int
    device: int

    @property
    def path(self) -> str:
        return os.path.join(self.root, self.name)


@dataclass
class Sources:
    """The files that were found, each once."""

    files: list[SourceFile] = field(default_factory=list)  # sorted by path
    skipped: int = 0  # files of directories and globs that are neither WARC nor ARC
    skipped_archives: int = 0  # those among them that are in `others`, too
    skipped_files: list[str] = field(default_factory=list)  # the first of them
    problems: list[Problem] = field(default_factory=list)
    unlisted: set[str] = field(default_factory=set)  # directories of `problems`: what is in them?
    others: list[SourceFile] = field(default_factory=list)  # named like archives, but not usable
    searched: set[str] = field(default_factory=set)  # directories, also those of globs
    overlapping: set[str] = field(default_factory=set)  # named, with files of other names by others


def nothing_found(named: Iterable[str | Path]) -> BadInput:
    """Return the error that there is no archive under any of the names."""
    names = [str(name) for name in named]
    try:
        indexes = [f"{name} is an index" for name in names if is_index(name)]
        if indexes:
            return BadInput(f"{'; '.join(indexes)}; {_ARCHIVES}")
    except PermissionError as error:
        return BadSource(f"{os.path.dirname(error.filename)} cannot be read: {error.strerror}")
    return BadInput(f"no WARC or ARC file was found in {', '.join(names)}")


def is_index(name: str | Path) -> bool:
    """Return whether a path is the directory of an index; raises `PermissionError`."""
    return Path(name, _INDEX).is_file()


def find(named: Sequence[str]) -> Sources:
    """Search directories recursively and expand globs, as `sources.expand` does.

    A named file that cannot be read is a problem, as one in a directory is. Raises `BadSource` if
    all are, for what does not exist, for a file of another kind, and an address with a signature.
    """
    found: dict[str, SourceFile] = {}
    others: dict[str, SourceFile] = {}
    unreadable: dict[str, Problem] = {}  # files that the user named
    sources = Sources()
    for source in map(local, named):
        if is_remote(source):
            _check_address(source)
        elif is_stream(source):
            raise BadSource(
                f"a manifest lists files: give names of WARC or ARC files, not {source}"
            )
        expanded = expand([source], "warc")
        sources.skipped += expanded.skipped
        sources.skipped_files += expanded.skipped_files
        sources.problems += expanded.problems
        sources.unlisted |= expanded.unlisted
        root = _root(source)
        if not is_remote(source) and not os.path.isfile(source):
            sources.searched.add(root)
        for path in expanded.paths:
            if path not in found:
                if path in (source, os.path.abspath(source)) and (error := _check_kind(path)):
                    unreadable[path] = Problem(path, -1, error)
                    others[path] = _source_file(root, path, expanded)
                    continue
                found[path] = _source_file(root, path, expanded)
            elif found[path].root != root:
                sources.overlapping.add(source)
        with_problem = {problem.container for problem in expanded.problems}
        for path in expanded.archives:
            if path not in with_problem and not is_unfinished(path):
                sources.skipped_archives += 1
            if path not in others and (path in expanded.remote or os.path.isfile(path)):
                others[path] = _source_file(root, path, expanded)
                if is_unfinished(path):
                    sources.problems.append(Problem(path, -1, UNFINISHED))
                    sources.skipped -= 1
                    if path in sources.skipped_files:
                        sources.skipped_files.remove(path)
    _add_unreadable(unreadable, sources, alone=not found and others.keys() == unreadable.keys())
    sources.files = [found[path] for path in sorted(found, key=os.fsencode)]
    sources.others = [others[path] for path in sorted(others, key=os.fsencode) if path not in found]
    return sources


def _add_unreadable(unreadable: dict[str, Problem], sources: Sources, *, alone: bool) -> None:
    """Add the problems of named files; raises `BadSource` if there is no other file."""
    known = {problem.container for problem in sources.problems}
    sources.problems += [one for path, one in unreadable.items() if path not in known]
    if unreadable and alone:
        first = next(iter(unreadable.values()))
        raise BadSource(f"{first.container} {first.message}")


def results_of_each(named: Sequence[str], sources: Sources) -> list[tuple[str, str]]:
    """Return what can be compared with results: each that was named once, or its files.

    With a directory or glob goes "", for the directory of the results; with a file its name there.
    A directory with files that were found by other names before, since another one was named that
    is in it, cannot be compared with the results: but its other files can, each by itself.
    """
    files: dict[str, list[SourceFile]] = {}
    by_path: dict[str, SourceFile] = {}
    for file in (*sources.others, *sources.files):
        files.setdefault(file.root, []).append(file)
        by_path[file.path] = file
    found: dict[str, str] = {}
    seen = set[str]()
    for source in map(local, named):
        absolute = source.rstrip("/") if is_remote(source) else os.path.abspath(source)
        if absolute in seen:
            continue
        seen.add(absolute)
        if _is_one(source):
            one = by_path.get(absolute)
            if one is not None and one.root == _root(source):
                found.setdefault(source, one.name)
        elif source not in sources.overlapping:
            found[source] = ""
        else:
            for file in files.get(_root(source), ()):
                found.setdefault(file.path, file.name)
    return list(found.items())


def _is_one(source: str) -> bool:
    return not is_many(source) if is_remote(source) else os.path.isfile(source)


def _check_address(source: str) -> None:
    if redacted(source) != source:
        raise BadSource(
            f"{redacted(source)}: a manifest keeps where its files are, and this address has a "
            "signature in it that will not hold; let fsspec have the credentials "
            "(docs/batch.md)"
        )


def _root(source: str) -> str:
    """Return the directory that was named, or the one in which a glob or file is."""
    if is_remote(source):
        if is_many(source) and not glob.has_magic(source):
            return source.rstrip("/")
    elif os.path.isdir(source):
        return os.path.abspath(source)
    while glob.has_magic(os.path.dirname(source)) and not os.path.lexists(source):
        source = os.path.dirname(source)
    top = os.path.dirname(source)
    return top if is_remote(source) else os.path.abspath(top)


def status_of(path: str) -> tuple[int, int, int] | None:
    """Return size, time of change and inode of a file or object now; None if it is gone.

    The time of an object is its version, its inode 0.
    """
    if is_remote(path):
        facts = facts_or_none(path)
        return None if facts is None else (facts.size, facts.version, 0)
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino


def _source_file(root: str, path: str, expanded: Expanded) -> SourceFile:
    if path in expanded.remote:
        facts = expanded.remote[path]
        return SourceFile(root, path[len(root) + 1 :], facts.size, facts.version, 0, 0)
    try:
        status = os.stat(path)
    except OSError as error:
        raise BadSource(f"{path} cannot be read: {error.strerror}") from error
    return SourceFile(
        root, os.path.relpath(path, root), status.st_size, status.st_mtime_ns, status.st_ino,
        status.st_dev,
    )  # fmt: skip


def _check_kind(path: str) -> str:
    """Return why a file that the user named cannot be read, "" if it can.

    Raises `BadSource` if it is of another kind, and for an object.
    """
    try:
        kind, _ = detect_kind(path)
    except BadSource as error:
        if is_remote(path) or not isinstance(error.__cause__, OSError):
            raise
        return f"cannot be read: {error.__cause__.strerror}"
    if not kind and not is_archive_name(path):  # such a name says that its beginning is damaged
        raise BadSource(f"{path} is of no known kind; a manifest is of WARC and ARC files")
    if kind not in ("", "warc"):
        unpack = "; unpack the WARCs in it, and name their directory" if kind == "wacz" else ""
        raise BadSource(f"{path} is {kind}; a manifest is of WARC and ARC files{unpack}")
    return ""
