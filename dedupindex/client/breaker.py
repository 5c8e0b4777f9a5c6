"""A circuit breaker: after many failures in a row the server is left alone for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Breaker:
    """Counts failures in a row, for all threads together.

    When the quiet time is over one request is let through as a trial, and the others stay quiet
    for as long again, unless it succeeds.
    """

    def __init__(
        self, failures: int = 5, quiet: float = 30.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._quiet, self._clock = failures, quiet, clock
        self._failures = 0
        self._until = 0.0
        self._lock = threading.Lock()

    def lets_through(self) -> bool:
        """Whether to send a request now."""
        with self._lock:
            if self._failures < self._most:
                return True
            now = self._clock()
            if now < self._until:
                return False
            self._until = now + self._quiet
            return True

    def succeeded(self) -> None:
        """The server has answered."""
        with self._lock:
            self._failures = 0

    def failed(self) -> None:
        """The server has not answered, or not so that it could be read."""
        with self._lock:
            self._failures += 1
            if self._failures == self._most:
                self._until = self._clock() + self._quiet
