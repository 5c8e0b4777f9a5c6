"""The directory ``.rewrite/`` beside rewritten files, and how files are named in it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Set
from functools import lru_cache
from pathlib import Path

import blake3

from dedupindex.runtime.files import write_file

DIRECTORY = ".rewrite"
LOCK = "lock"  # held by a running process
UNCORRECTED = "uncorrected"  # names of files, as JSON; no data that undoes anything
UNDOING = "undoing"  # empty; there while an undo in place has not ended
_AWAITED = "awaited"  # names of files, as JSON; an undo needs them


def file_key(name: str) -> str:
    """Return the stem of the names of all files about the file `name`."""
    return blake3.blake3(name.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def has_undo_data(directory: Path) -> bool:
    """Return whether runs have kept anything in a directory, and not only held its lock."""
    return bool(kept_names(directory) - {LOCK, UNCORRECTED, UNDOING})


def has_journals(directory: Path) -> bool:
    """Return whether a run has made revisits in a directory, or of originals in it.

    What a running process has not finished yet does not count.
    """
    endings = (".jsonl", ".committed", ".pins")
    return any(name.endswith(endings) for name in kept_names(directory))


def kept_names(directory: Path) -> set[str]:
    """Return the names of what runs have kept, without lists that a killed one was replacing."""
    names = (path.name for path in (directory / DIRECTORY).glob("*"))
    return {name for name in names if not (name.startswith(".") and name.endswith(".part"))}


def names_of(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield each directory above a file, with the name of the file below it."""
    for name in {Path(os.path.abspath(path)), path.resolve()}:
        for directory in name.parents:
            yield directory, str(name.relative_to(directory))


def awaited(directory: Path) -> Set[str]:
    """Return the names of files whose journals an interrupted run on Spark may have lost."""
    return _recorded(directory / DIRECTORY / _AWAITED)


def uncorrected(directory: Path) -> Set[str]:
    """Return the names of files that a run which has not ended may have written.

    They may refer to records in files that it has left alone.
    """
    return _recorded(directory / DIRECTORY / UNCORRECTED)


def _recorded(path: Path) -> Set[str]:
    try:
        status = path.stat()
    except FileNotFoundError:
        return frozenset()
    return _names_in(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=1)  # an undo asks for every file
def _names_in(path: Path, changed: int, size: int) -> Set[str]:
    return frozenset(json.loads(path.read_bytes()))


def await_journals(directory: Path, names: Set[str]) -> None:
    """Record on disk which files other machines may write before their journals are here."""
    _record(directory / DIRECTORY / _AWAITED, names)


def mark_uncorrected(directory: Path, names: Set[str]) -> None:
    """Record on disk what `uncorrected` returns."""
    _record(directory / DIRECTORY / UNCORRECTED, names)


def mark_undoing(directory: Path) -> None:
    """Record on disk that an undo in place has begun."""
    write_file(directory / DIRECTORY / UNDOING, b"")


def unmark_undoing(directory: Path) -> None:
    """Record that no undo in place is interrupted: it has ended, or a new run has begun."""
    (directory / DIRECTORY / UNDOING).unlink(missing_ok=True)


def is_half_undone(directory: Path) -> bool:
    """Return whether an undo in place was interrupted, and there is something left to undo."""
    home = directory / DIRECTORY
    return (home / UNDOING).exists() and any(home.glob("*.jsonl"))


def _record(path: Path, names: Set[str]) -> None:
    if names:
        write_file(path, json.dumps(sorted(names)).encode())
    else:
        path.unlink(missing_ok=True)
