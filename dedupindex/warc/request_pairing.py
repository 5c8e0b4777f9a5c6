"""Responses to other methods than GET, found by the request records around them.

What a POST was answered may differ for every body that was posted, so such a response is never an
original for a URL. Only its request record knows the method, and stands before or after it,
nearly always next to it; either record may name the other (WARC 1.1 section 5.7,
WARC-Concurrent-To is bidirectional).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from dedupindex.warc.headers import COMMON
from dedupindex.warc.record import Record
from dedupindex.warc.record_facts import record_ids

NEAR = 64  # records between a request and its response, at most
FULL = 4 * NEAR
_RECORD_ID, _CONCURRENT = (
    COMMON.index(name) for name in (b"WARC-Record-ID", b"WARC-Concurrent-To")
)
_Request = tuple[frozenset[bytes], frozenset[bytes]]  # its own id, and those it was made with
T = TypeVar("T")


class RequestPairing(Generic[T]):
    """Holds items back until no request record can change them any more.

    `id_of` returns the record id of an item without brackets, None for an item that is no response.
    `refused` replaces an item that answers another method than GET.
    """

    def __init__(self, id_of: Callable[[T], bytes | None], refused: Callable[[T], T]) -> None:
        self.items: list[T] = []  # the caller calls `leave` when there are `FULL` of them
        self._id_of, self._refused = id_of, refused
        self._related: list[bytes] = []  # WARC-Concurrent-To of each
        self._others: deque[_Request] = deque(maxlen=NEAR)

    def add(self, item: T, concurrent: bytes = b"") -> None:
        """Take the item of the next record; `concurrent` are the ids of records made with it."""
        if self._others and any(self._belongs(item, concurrent, other) for other in self._others):
            item = self._refused(item)
        self.items.append(item)
        self._related.append(concurrent)

    def add_unrelated(self, item: T) -> None:
        """Take the item of a record that is no response."""
        self.items.append(item)
        self._related.append(b"")

    def request(self, record: Record) -> None:
        """Take a request record; unless it is a GET, replace the items that it belongs to."""
        if record.begins_with(b"GET "):
            return
        other = record_ids(record.values[_RECORD_ID]), record_ids(record.values[_CONCURRENT])
        self._others.append(other)
        for index, item in enumerate(self.items):
            if self._belongs(item, self._related[index], other):
                self.items[index] = self._refused(item)

    def leave(self, *, everything: bool = False) -> list[T]:
        """Return and forget the items that no request can change any more, in order."""
        count = len(self.items) if everything else len(self.items) - NEAR
        settled = self.items[:count]
        del self.items[:count], self._related[:count]
        return settled

    def _belongs(self, item: T, concurrent: bytes, other: _Request) -> bool:
        """Whether `item` answers that request: either record may name the other."""
        record_id = self._id_of(item)
        if record_id is None:
            return False
        own, named = other
        return record_id in named or not own.isdisjoint(record_ids(concurrent))
