"""Directories that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dedupindex.runtime.files import sync_directory


@contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """A directory to fill, which takes the place of `path` when the block ends well.

    What a killed run has left is removed by the next.
    """
    parent, name = path.absolute().parent, path.absolute().name
    beside, old = parent / f".{name}.new", parent / f".{name}.old"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        yield beside
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.replace(path, old)
        os.replace(beside, path)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    sync_directory(parent)
    shutil.rmtree(old, ignore_errors=True)
