"""Captures that could not be reported yet: kept in memory, up to a number, oldest first."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable
from typing import NamedTuple

MOST_BYTES = 128 << 20  # of captures that wait, whatever their number
_ENOUGH = 4 << 20  # bytes of a request; servers take 16 MiB unless told otherwise


class Parcel(NamedTuple):
    """Captures of one crawl, for one request."""

    crawl: str
    captures: list[bytes]  # as JSON


class Keeping:
    """A queue of captures, for all threads together; when it is full the newest are dropped."""

    def __init__(self, most: int, parcel: int) -> None:
        self._most, self._parcel = most, parcel
        self._queue: deque[tuple[str, bytes]] = deque()
        self._held = 0  # bytes
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, crawl: str, captures: Iterable[bytes]) -> int:
        """Take captures; how many found no room."""
        dropped = 0
        with self._lock:
            for capture in captures:
                if len(self._queue) < self._most and self._held + len(capture) <= MOST_BYTES:
                    self._queue.append((crawl, capture))
                    self._held += len(capture)
                else:
                    dropped += 1
        return dropped

    def take(self) -> Parcel | None:
        """The oldest, as many of one crawl as go together; None when there is nothing."""
        with self._lock:
            if not self._queue:
                return None
            crawl, captures, size = self._queue[0][0], list[bytes](), 0
            while self._queue and self._queue[0][0] == crawl and len(captures) < self._parcel:
                captures.append(self._queue.popleft()[1])
                size += len(captures[-1])
                if size > _ENOUGH:
                    break
            self._held -= size
        return Parcel(crawl, captures)

    def give_back(self, parcel: Parcel) -> int:
        """Put captures back to where they were taken from; how many find no room any more."""
        with self._lock:
            room = max(self._most - len(self._queue), 0)
            for capture in reversed(parcel.captures[:room]):
                self._queue.appendleft((parcel.crawl, capture))
                self._held += len(capture)
        return len(parcel.captures[room:])

    def clear(self) -> Counter[str]:
        """Drop everything; how many there were, by crawl."""
        with self._lock:
            counts = Counter(crawl for crawl, _ in self._queue)
            self._queue.clear()
            self._held = 0
        return counts
