"""Sort more lines than fit in memory."""

from __future__ import annotations

import heapq
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from typing import BinaryIO

_IN_MEMORY = 200_000  # lines


def sorted_lines(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Yield any number of lines, sorted as bytes; sorted runs are in temporary files."""
    with ExitStack() as runs:
        parts: list[Iterable[bytes]] = []
        while part := sorted(islice(lines, _IN_MEMORY)):
            if len(part) < _IN_MEMORY:
                parts.append(part)
                break
            parts.append(runs.enter_context(_spill(part)))
        yield from heapq.merge(*parts)


def _spill(lines: list[bytes]) -> BinaryIO:
    file = tempfile.TemporaryFile()  # noqa: SIM115 (the stack closes it)
    file.writelines(lines)
    file.seek(0, os.SEEK_SET)
    return file
