"""Walk directories in one way: what is found, verified and restored has the same names.

Each function needs to be told what to do with an error: a directory that cannot be listed may hold
anything, so whoever walks must name it.
"""

from __future__ import annotations

import errno
import glob
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

OnError = Callable[[OSError], None]
"""Called with an error whose `filename` is a directory or file below the one that is walked."""


def walk_links(
    top: str | Path, on_error: OnError, visited: set[tuple[int, int]] | None = None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk as `os.walk` does, following links to directories; no directory is yielded twice.

    So cycles end. Links are followed last: of several ways to a directory one without a link
    counts, else the first in the order to which the caller sorts the list of directories below.
    `visited` has the device and inode of directories that are left out; those that are yielded are
    added.
    """
    visited = set() if visited is None else visited
    links = deque([os.fspath(top)])
    while links:
        for directory, below, names in os.walk(links.popleft(), onerror=on_error):
            known = os.stat(directory)
            if (known.st_dev, known.st_ino) in visited:
                below.clear()
                continue
            visited.add((known.st_dev, known.st_ino))
            yield directory, below, names
            paths = (os.path.join(directory, name) for name in below)
            links.extend(path for path in paths if os.path.islink(path))


def walk_visible(
    top: str | Path,
    on_error: OnError,
    visited: set[tuple[int, int]] | None = None,
    *,
    leave_out: Callable[[str], bool] = lambda directory: False,
) -> Iterator[str]:
    """Yield the files below a directory as `walk_links` does.

    Those of a directory come in the order of names, as do the directories in it, but what is behind
    links to directories comes last. Files and directories of hidden names are left out, and
    directories that `leave_out` is true of.
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


def is_file(path: str | Path, on_error: OnError) -> bool:
    """Return whether a name leads to a regular file; not knowing it is an error.

    So is a link that leads nowhere, as to a disk that is not mounted, and what is neither a file
    nor a directory, such as a pipe. A file that is gone meanwhile is none.
    """
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            on_error(OSError(errno.EINVAL, "it is neither a file nor a directory", os.fspath(path)))
        return stat.S_ISREG(mode)
    except OSError as error:
        if os.path.islink(path) and error.errno in (errno.ENOENT, errno.ELOOP):
            error = OSError(error.errno, "it is a link that leads nowhere", os.fspath(path))
        if error.errno != errno.ENOENT or os.path.islink(path):
            on_error(error)
        return False


def names_in(directory: Path, on_error: OnError) -> list[str]:
    """Return the names in a directory, sorted; none if it does not exist."""
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    except OSError as error:
        on_error(error)
        return []


def matches(pattern: str, on_error: OnError) -> list[str]:
    """Return what a glob matches, sorted; a directory in which it cannot search is an error.

    `glob.glob` passes over such a directory.
    """
    head, searched = pattern, set[str]()
    while glob.has_magic(head):
        head, last = os.path.split(head)
        if last == "**":
            searched.update(_directories(os.path.join(head, last)))
        if glob.has_magic(last):
            searched.update(_directories(head))
        elif glob.has_magic(head):
            _look_up(last, _directories(head) - searched, on_error)
    for directory in sorted(searched):
        names_in(Path(directory), on_error)
    return sorted(glob.glob(pattern, recursive=True))


def _directories(pattern: str) -> set[str]:
    """Return the directories that a glob matches: "." of an empty one, as it begins there."""
    if not pattern:
        return {"."}
    found = glob.glob(os.path.join(pattern, ""), recursive=True)
    return {directory.rstrip("/") or "/" for directory in found}


def _look_up(name: str, directories: set[str], on_error: OnError) -> None:
    """Call `on_error` for directories of which it is not known whether they have a name."""
    for directory in sorted(directories):
        try:
            os.stat(os.path.join(directory, name))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            error.filename = directory
            on_error(error)
