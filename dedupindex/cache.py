"""A cache whose size in bytes is bounded: the one that everything uses that lives long."""

from __future__ import annotations

import threading
from sys import getsizeof
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

LONGEST = 4096  # bytes of a key and its value together; longer ones are not kept
SLOT = 112  # bytes that an entry takes of the dict itself, at most

MEGABYTE = 1 << 20


class Cache(dict[K, V]):
    """A dict that holds at most so many bytes of keys and values, in any number of threads.

    Read it like any dict, with `get`: that costs what it costs of a dict. Add with `keep` only.
    When it is full, it forgets everything and begins anew.
    """

    def __init__(self, most: int = MEGABYTE) -> None:
        """`most`: bytes."""
        super().__init__()
        self.most = most
        self.held = 0
        self._busy = threading.Lock()

    def keep(self, key: K, value: V, size: int = 0) -> V:
        """Remember a value, unless it and its key are long; returns the value.

        `size` is the number of bytes that the value takes, where `size_of` cannot tell.
        """
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
        """In another process it begins empty."""
        return type(self), (self.most,)

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        self.held = 0


def size_of(value: object) -> int:
    """Bytes of memory of a text, a number, or a tuple of such."""
    if isinstance(value, tuple):
        return getsizeof(value) + sum(map(size_of, value))
    return getsizeof(value)
