"""Limits of one request with many lookups, beside those of each lookup."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore

from dedupindex.capture import Capture
from dedupindex.digest import Digest
from dedupindex.errors import BadQuery
from dedupindex.index.engine import Finder
from dedupindex.lookup.decide import CONDITIONAL_LIMIT, LIMIT
from server.config import MAX_STREAMS
from server.responses import RequestError

EXPLAINED = 100  # lookups of a request
LOOKS = 100 * CONDITIONAL_LIMIT  # at captures that conditions may refuse, in a batch
LOOKS_OF_CLAIMS = LOOKS // 10  # in a transaction, while nobody else writes


class Budget:
    """What remains of the limits of one request."""

    def __init__(self, looks: int | None = None) -> None:
        """`looks`: captures that may be read; None for JSON lines, answered as they are made."""
        self._total, self._looks, self._explained = looks, looks, EXPLAINED

    def explain(self) -> None:
        """Count an explanation; raises `BadQuery`."""
        if not self._explained:
            raise BadQuery(
                f"at most {EXPLAINED} lookups of a request are explained; this one is not answered"
            )
        self._explained -= 1

    def limited(self, view: Finder) -> Finder:
        """Return a view whose long searches count against the limit."""
        return view if self._looks is None else _LimitedView(view, self)

    def check(self) -> None:
        """Raise `RequestError` if the limit of long searches is reached."""
        if self._looks is not None and self._looks <= 0:
            raise RequestError(
                "overloaded",
                f"the conditions of this batch made it look at {self._total} captures: nobody "
                "knows the answer to this one; ask for it by itself",
            )

    def spend(self, looks: int) -> None:
        """Count captures that were read."""
        if self._looks is not None:
            self._looks -= looks


class _LimitedView:
    """A `protocol.Finder` whose long searches count against a `Budget`."""

    def __init__(self, view: Finder, budget: Budget) -> None:
        self._view, self._budget = view, budget

    def exact(self, digest: Digest, url: bytes) -> list[Capture]:
        return self._view.exact(digest, url)

    def canonical(self, digest: Digest, urlkey: bytes, limit: int) -> list[Capture]:
        return self._view.canonical(digest, urlkey, limit)

    def any(self, digest: Digest, limit: int) -> list[Capture]:
        if limit <= LIMIT:
            return self._view.any(digest, limit)
        self._budget.check()
        found = self._view.any(digest, limit)
        self._budget.spend(len(found))
        return found

    def denies(self, digest: Digest, capture: Capture) -> bool:
        return self._view.denies(digest, capture)

    def at_url(self, url: bytes) -> Iterator[Capture]:
        return self._view.at_url(url)

    def at_urlkey(self, key: bytes) -> Iterator[Capture]:
        return self._view.at_urlkey(key)


# The number of bodies received at one time: slow clients must not hold all threads of a worker.


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
