"""The directory of a rehearsal: nobody else's, and never one that holds what is rehearsed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dedupindex.errors import BadInput
from dedupindex.runtime.files import exclusive

_DIRECTORIES = ("before", "copy", "converted", "out", "dedup", "after", "in-place")


@contextmanager
def taken(top: Path, sources: Iterable[str]) -> Iterator[None]:
    """Begin afresh, as nobody else can until the block ends.

    What an earlier rehearsal left is removed. Raises `BadInput` if `top` is something else, or if
    a source is in it: that would go, too; or if something in it is a link to elsewhere. `IndexBusy`
    if another rehearsal is at work.
    """
    mark = top / "rehearsal"
    if top.exists() and not mark.exists() and any(top.iterdir()):
        raise BadInput(f"{top} holds something else; name another directory")
    top.mkdir(parents=True, exist_ok=True)
    _check_apart(top, sources)
    mark.touch()
    with exclusive(top / "lock", f"the rehearsal in {top}"):
        for name in _DIRECTORIES:
            shutil.rmtree(top / name, ignore_errors=True)
            if os.path.lexists(top / name):  # a link leads to files that are not ours
                raise BadInput(f"{top / name} cannot be removed: name another directory")
        yield


def _check_apart(top: Path, sources: Iterable[str]) -> None:
    """Directories are told by their inodes, since links and mounts give them other names."""
    mine = {_inode(top)}
    for name in _DIRECTORIES:
        for inside, _, _ in os.walk(top / name):
            with suppress(FileNotFoundError):
                mine.add(_inode(Path(inside)))
    seen: set[Path] = set()
    for source in sources:
        for folder in Path(source).resolve().parents:
            if folder in seen:
                break
            seen.add(folder)
            if _inode(folder) in mine:
                raise BadInput(
                    f"{source} is in {top}, which is emptied before a rehearsal: name another "
                    "directory with --work"
                )


def _inode(folder: Path) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino
