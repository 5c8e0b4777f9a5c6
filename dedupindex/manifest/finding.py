"""From what a user names to the WARC and ARC files of a manifest, each with its root."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dedupindex.capture import Problem
from dedupindex.errors import BadSource
from dedupindex.sources import expand, passing
from dedupindex.sources.finding import is_unfinished
from dedupindex.sources.kinds import HEAD, NO_ZSTD, ZSTD, kind_of

UNFINISHED = "by its name it is still being written"
NOTHING = "there is no WARC or ARC file in what was named"


class Found(NamedTuple):
    """A file to read, as it stands in its directory."""

    root: str  # what the user named, as far as it is a directory
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
    """All that was meant, each file once."""

    files: list[Found] = field(default_factory=list)  # in the order of their paths
    skipped: int = 0  # files met in directories or by globs that are neither WARC nor ARC
    problems: list[Problem] = field(default_factory=list)
    others: list[Found] = field(
        default_factory=list
    )  # named as archives, but unknown or unfinished


def find(named: Sequence[str]) -> Sources:
    """Search directories to their bottom, expand globs; see `sources.expand`.

    Raises `BadSource` for what is not there, and for a file, named itself, of another kind.
    """
    found: dict[str, Found] = {}
    others: dict[str, Found] = {}
    sources = Sources()
    for source in named:
        if passing(source):
            raise BadSource(
                f"a manifest is of files: give names of WARC or ARC files, not {source}"
            )
        expanded = expand([source], "warc")
        sources.skipped += expanded.skipped
        sources.problems += expanded.problems
        root = _root(source)
        for path in expanded.paths:
            if path not in found:
                found[path] = _found(root, path, itself=path == os.path.abspath(source))
        for path in expanded.archives:
            if path not in others and os.path.isfile(path):
                others[path] = _found(root, path, itself=False)
                if is_unfinished(path):
                    sources.problems.append(Problem(path, -1, UNFINISHED))
                    sources.skipped -= 1
    sources.files = [found[path] for path in sorted(found, key=os.fsencode)]
    sources.others = [others[path] for path in sorted(others, key=os.fsencode) if path not in found]
    return sources


def _root(source: str) -> str:
    if os.path.isdir(source):
        return os.path.abspath(source)
    while glob.has_magic(os.path.dirname(source)) and not os.path.lexists(source):
        source = os.path.dirname(source)
    return os.path.dirname(os.path.abspath(source))


def _found(root: str, path: str, *, itself: bool) -> Found:
    try:
        status = os.stat(path)
        if itself:
            _check_kind(path)
    except OSError as error:
        raise BadSource(f"{path} cannot be read: {error.strerror}") from error
    return Found(
        root, os.path.relpath(path, root), status.st_size, status.st_mtime_ns, status.st_ino,
        status.st_dev,
    )  # fmt: skip


def _check_kind(path: str) -> None:
    with open(path, "rb") as stream:
        head = stream.read(HEAD)
        kind = kind_of(head, stream)
    if head.startswith(ZSTD):
        raise BadSource(f"{path} {NO_ZSTD}")
    if kind not in ("", "warc"):
        raise BadSource(f"{path} is {kind}; a manifest is of WARC and ARC files")
