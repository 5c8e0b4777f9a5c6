"""The directory ``.rewrite/`` beside rewritten files, and how files are named in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import blake3

DIRECTORY = ".rewrite"


def file_key(name: str) -> str:
    """Return the stem of the names of all files about the file `name`."""
    return blake3.blake3(name.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def names_of(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield each directory above a file, with the name of the file below it."""
    for name in {Path(os.path.abspath(path)), path.resolve()}:
        for directory in name.parents:
            yield directory, str(name.relative_to(directory))
