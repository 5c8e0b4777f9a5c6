"""How many bodies are received at one time: slow senders must not hold all threads of a worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore

from server.config import MAX_STREAMS
from server.responses import RequestError


class Bodies:
    """Lets `most` in at once, of all routes together."""

    def __init__(self, most: int = MAX_STREAMS) -> None:
        self._free, self._most = BoundedSemaphore(most), most

    def enter(self) -> None:
        """Begin to receive a body; raises `RequestError` at once where that cannot be."""
        if not self._free.acquire(blocking=False):
            raise RequestError("overloaded", f"{self._most} bodies are being received; try again")

    def leave(self) -> None:
        """The body is received."""
        self._free.release()

    @contextmanager
    def one(self) -> Iterator[None]:
        """While a body is received."""
        self.enter()
        try:
            yield
        finally:
            self.leave()
