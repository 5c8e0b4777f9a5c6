"""Files as bytes at offsets, and where two of them begin to differ."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LEAST, _MOST = 1 << 14, 1 << 20  # bytes compared in one go


class Unreadable(Exception):
    """A file that cannot be opened or read; says why."""


class File:
    """A file that is read at offsets, as long as it was when it was opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Unreadable(f"it cannot be opened: {error.strerror}") from error
        self.size = os.fstat(self._descriptor).st_size

    def close(self) -> None:
        os.close(self._descriptor)

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes, fewer only at the end; raises `Unreadable`."""
        wanted = max(min(size, self.size - offset), 0)
        data = b""
        while len(data) < wanted:
            try:
                more = os.pread(self._descriptor, wanted - len(data), offset + len(data))
            except OSError as error:
                raise Unreadable(f"it cannot be read: {error.strerror}") from error
            if not more:
                raise Unreadable("it became shorter while it was read")
            data = data + more if data else more
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
