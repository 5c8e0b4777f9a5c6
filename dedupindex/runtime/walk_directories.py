"""Walk directories in one way: what is found, verified and restored has the same names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path


def walk_links(
    top: str | Path,
    on_error: Callable[[OSError], None] | None = None,
    visited: set[tuple[int, int]] | None = None,
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk as `os.walk` does, following links to directories; no directory is yielded twice.

    So cycles end. Of several ways to a directory the first counts, in the order to which the caller
    sorts the list of directories below. `visited` has the device and inode of directories that are
    left out; those that are yielded are added.
    """
    visited = set() if visited is None else visited
    for directory, below, names in os.walk(top, onerror=on_error, followlinks=True):
        known = os.stat(directory)
        if (known.st_dev, known.st_ino) in visited:
            below.clear()
            continue
        visited.add((known.st_dev, known.st_ino))
        yield directory, below, names


def walk_visible(
    top: str | Path,
    on_error: Callable[[OSError], None] | None = None,
    visited: set[tuple[int, int]] | None = None,
    *,
    leave_out: Callable[[str], bool] = lambda directory: False,
) -> Iterator[str]:
    """Yield the files below a directory as `walk_links` does, in the order of names.

    Files and directories of hidden names are left out, and directories that `leave_out` is true of.
    """
    visited = set() if visited is None else visited
    for directory, below, names in walk_links(top, on_error, visited):
        if leave_out(directory):
            known = os.stat(directory)
            visited.discard((known.st_dev, known.st_ino))  # it may be named itself
            below.clear()
            continue
        below[:] = sorted(name for name in below if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):
                yield os.path.join(directory, name)
