"""Lines of progress for long steps."""

from __future__ import annotations

import time
from collections.abc import Callable

Say = Callable[[str], None]
EVERY = 10.0  # seconds


class ThrottledProgress:
    """Reports a count, at most once in `EVERY` seconds."""

    def __init__(self, say: Say) -> None:
        self._say, self._last = say, time.monotonic()

    def __call__(self, what: str, count: int) -> None:
        now = time.monotonic()
        if now - self._last >= EVERY:
            self._last = now
            self._say(f"{what}: {count:,}")
