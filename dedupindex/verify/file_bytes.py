"""Files as bytes at offsets, and where two of them begin to differ."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_LEAST, _MOST = 1 << 14, 1 << 20  # bytes compared in one go


class UnreadableFile(Exception):
    """A file that cannot be opened or read; says why."""


class File:
    """A file that is read at offsets, as long as it was when it was opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise UnreadableFile(f"it cannot be opened: {error.strerror}") from error
        self.size = os.fstat(self._descriptor).st_size

    def close(self) -> None:
        os.close(self._descriptor)

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes, fewer only at the end; raises `UnreadableFile`."""
        wanted = max(min(size, self.size - offset), 0)
        data = b""
        while len(data) < wanted:
            try:
                more = os.pread(self._descriptor, wanted - len(data), offset + len(data))
            except OSError as error:
                raise UnreadableFile(f"it cannot be read: {error.strerror}") from error
            if not more:
                raise UnreadableFile("it became shorter while it was read")
            data = data + more if data else more
        return data


class Joined(NamedTuple):
    """A file that is no longer there as one, and the ranges that it was made of."""

    path: Path
    ranges: Iterable[tuple[Path, int, int]]


class _JoinedFile(File):
    """As `File`."""

    def __init__(self, joined: Joined) -> None:
        self.path, self.size = joined.path, 0
        self._files: dict[Path, File] = {}
        self._starts: list[int] = []
        self._ranges: list[tuple[File, int, int]] = []
        try:
            for path, offset, count in joined.ranges:
                file = self._files.get(path) or self._files.setdefault(path, File(path))
                self._starts.append(self.size)
                self._ranges.append((file, offset, count))
                self.size += count
        except UnreadableFile:
            self.close()
            raise

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def read(self, offset: int, size: int) -> bytes:
        """See `File`."""
        left = max(min(size, self.size - offset), 0)
        found = []
        number = bisect_right(self._starts, offset) - 1
        while left:
            file, start, count = self._ranges[number]
            skip = offset - self._starts[number]
            wanted = min(left, count - skip)
            piece = file.read(start + skip, wanted)
            if len(piece) < wanted:
                raise UnreadableFile("it became shorter while it was read")
            found.append(piece)
            offset, left, number = offset + len(piece), left - len(piece), number + 1
        return b"".join(found)


@contextmanager
def opened(path: Path | Joined) -> Iterator[File]:
    """The file, closed when the block ends."""
    file = File(path) if isinstance(path, Path) else _JoinedFile(path)
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
    if mine[:high] == theirs[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if mine[low:middle] == theirs[low:middle]:  # of views it would take ten times as long
            low = middle
        else:
            high = middle
    return low
