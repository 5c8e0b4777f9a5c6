"""A cache with a limit in bytes, used by everything that lives long."""

from __future__ import annotations

import threading
from sys import getsizeof
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

LONGEST = 4096  # bytes of key and value; longer entries are not cached
SLOT = 112  # bytes of the dict for an entry, at most

MEGABYTE = 1 << 20


class Cache(dict[K, V]):
    """A dict of at most `most` bytes of keys and values, for any number of threads.

    Read it with `get`, which is as fast as for any dict. Add with `keep` only. When it is full, it
    is emptied.
    """

    def __init__(self, most: int = MEGABYTE) -> None:
        super().__init__()
        self.most = most
        self.held = 0
        self._busy = threading.Lock()

    def keep(self, key: K, value: V, size: int = 0) -> V:
        """Add a value, unless it is too long; return it. `size` is for what `size_of` lacks."""
        taken = size_of(key) + (size or size_of(value))
        if taken <= LONGEST or size:
            taken += SLOT
            with self._busy:
                if self.held + taken > self.most:
                    self.clear()
                if taken <= self.most:
                    self[key] = value
                    self.held += taken
        return value

    def __reduce__(self) -> tuple[type[Cache[K, V]], tuple[int]]:
        """Pickle it as an empty cache."""
        return type(self), (self.most,)

    def clear(self) -> None:
        super().clear()
        self.held = 0


def size_of(value: object) -> int:
    """Return the bytes of memory of text, a number, or a tuple of these."""
    if isinstance(value, tuple):
        return getsizeof(value) + sum(map(size_of, value))
    return getsizeof(value)
