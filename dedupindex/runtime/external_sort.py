"""Sort more lines than fit in memory."""

from __future__ import annotations

import heapq
import os
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import BinaryIO

_IN_MEMORY = 200_000  # lines
_RUNS = 64  # of a level, before they become one of the next: so few files are open at a time


def sorted_lines(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Yield any number of lines, sorted as bytes; sorted runs are in temporary files."""
    levels: list[list[BinaryIO]] = []
    try:
        while len(part := sorted(islice(lines, _IN_MEMORY))) == _IN_MEMORY:
            _add(levels, 0, _spill(part))
        yield from heapq.merge(part, *(run for level in levels for run in level))
    finally:
        for run in (run for level in levels for run in level):
            run.close()


def _add(levels: list[list[BinaryIO]], height: int, run: BinaryIO) -> None:
    """Add a run to a level; a full level becomes one run of the next."""
    if height == len(levels):
        levels.append([])
    level = levels[height]
    level.append(run)
    if len(level) == _RUNS:
        merged = _spill(heapq.merge(*level))
        for each in level:
            each.close()
        level.clear()
        _add(levels, height + 1, merged)


def _spill(lines: Iterable[bytes]) -> BinaryIO:
    file = tempfile.TemporaryFile()  # noqa: SIM115  # `sorted_lines` closes it
    file.writelines(lines)
    file.seek(0, os.SEEK_SET)
    return file
