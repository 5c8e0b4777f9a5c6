"""A circuit breaker: while the server is away only short probes are sent, by one caller at a time.

The scripts for Heritrix (``conf/heritrix``) follow the same policy with the same numbers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

SHORTEST = 1.0  # seconds between two probes
SHARE = 10  # of an outage: the pause before the next probe is this part of what is over
_LOST = 60.0  # seconds after which a probe that never ended no longer holds back the next


class Breaker:
    """Decides for all threads together whether a request is sent.

    After `failures` failures in a row nothing is sent but probes: requests that one caller makes
    as always, while all others go on without an answer. The first success ends that. The pause
    before the next probe is a tenth of the outage so far, at least a second and at most `quiet`
    seconds. It stays at a second while connections are refused, because such a probe costs
    nothing: a server that was restarted is found within a second however long it was away.
    """

    def __init__(
        self, failures: int = 5, quiet: float = 30.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._quiet, self._clock = failures, quiet, clock
        self._failures = 0
        self._since = 0.0  # when the first of the failures was
        self._until = 0.0  # when the next probe may be sent
        self._lock = threading.Lock()

    def lets_through(self) -> bool:
        """Whether to send a request now; then `succeeded`, `failed` or `abandoned` must follow."""
        with self._lock:
            if self._failures < self._most:
                return True
            now = self._clock()
            if now < self._until:
                return False
            self._until = now + _LOST  # nobody else, until this probe has ended
            return True

    def succeeded(self) -> None:
        """Note that the server has answered."""
        with self._lock:
            self._failures = 0

    def failed(self, *, refused: bool = False) -> None:
        """Note that no readable answer came; `refused`: not even a connection could be made."""
        with self._lock:
            now = self._clock()
            if not self._failures:
                self._since = now
            self._failures += 1
            pause = SHORTEST if refused else max(SHORTEST, (now - self._since) / SHARE)
            self._until = now + min(pause, self._quiet)

    def abandoned(self) -> None:
        """Note that a request was given up by its caller, which says nothing of the server."""
        with self._lock:
            if self._failures >= self._most:
                self._until = self._clock()
