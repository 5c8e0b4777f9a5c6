"""Files as bytes at offsets, and where two of them begin to differ."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LEAST, _MOST = 1 << 14, 1 << 20  # bytes compared in one go


class File:
    """A file that is read at offsets; what it was when it was opened is all that is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._descriptor).st_size

    def close(self) -> None:
        os.close(self._descriptor)

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes, fewer only at the end; `OSError` if the file became shorter."""
        wanted = max(min(size, self.size - offset), 0)
        data = os.pread(self._descriptor, wanted, offset)
        while len(data) < wanted:
            more = os.pread(self._descriptor, wanted - len(data), offset + len(data))
            if not more:
                raise OSError(0, "the file became shorter while it was read", str(self.path))
            data += more
        return data


@contextmanager
def opened(path: Path) -> Iterator[File]:
    """The file, closed when the block ends."""
    file = File(path)
    try:
        yield file
    finally:
        file.close()


def common(old: File, at: int, new: File, there: int) -> int:
    """How many bytes are equal from `at` and `there` on."""
    length, step = 0, _LEAST
    while True:
        mine, theirs = old.read(at + length, step), new.read(there + length, step)
        if mine != theirs or not mine:
            return length + _first_difference(mine, theirs)
        length += len(mine)
        step = min(step * 2, _MOST)


def _first_difference(mine: bytes, theirs: bytes) -> int:
    low, high = 0, min(len(mine), len(theirs))  # equal before low; different somewhere before high
    mine_view, theirs_view = memoryview(mine), memoryview(theirs)
    if mine_view[:high] == theirs_view[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if mine_view[low:middle] == theirs_view[low:middle]:
            low = middle
        else:
            high = middle
    return low
