"""The number of bodies received at one time: slow clients must not hold all threads of a worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore

from server.config import MAX_STREAMS
from server.responses import RequestError


class BodySlots:
    """Slots for bodies, shared by all routes of a worker."""

    def __init__(self, limit: int = MAX_STREAMS) -> None:
        self._free, self._limit = BoundedSemaphore(limit), limit

    def acquire(self) -> None:
        """Take a slot; raises `RequestError` at once if none is free."""
        if not self._free.acquire(blocking=False):
            raise RequestError("overloaded", f"{self._limit} bodies are being received; try again")

    def release(self) -> None:
        """Give a slot back."""
        self._free.release()

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Hold a slot while a body is received."""
        self.acquire()
        try:
            yield
        finally:
            self.release()
