"""Now and then a line of how far a long step is."""

from __future__ import annotations

import time
from collections.abc import Callable

Say = Callable[[str], None]
EVERY = 10.0  # seconds


class Telling:
    """Passes on what it is told, but not all of it."""

    def __init__(self, say: Say) -> None:
        self._say, self._last = say, time.monotonic()

    def __call__(self, what: str, count: int) -> None:
        now = time.monotonic()
        if now - self._last >= EVERY:
            self._last = now
            self._say(f"{what}: {count:,}")
