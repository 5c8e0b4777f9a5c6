"""Pair requests with responses, to refuse responses to other methods than GET.

The response to a POST depends on the body of the request, so it is never an original of its URL.
Only the request record has the method. It is before or after the response, nearly always next
to it, and either record may name the other (WARC-Concurrent-To, WARC 1.1 section 5.7).
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
_Request = tuple[frozenset[bytes], frozenset[bytes]]  # its own id, and the ids it names
T = TypeVar("T")


class RequestPairing(Generic[T]):
    """Holds items until no request record can refuse them any more.

    `id_of` returns the record id of an item without brackets, None unless it is a response.
    `refused` returns what replaces the response to another method than GET.
    """

    def __init__(self, id_of: Callable[[T], bytes | None], refused: Callable[[T], T]) -> None:
        self.items: list[T] = []  # the caller calls `pop_settled` when there are `FULL` of them
        self._id_of, self._refused = id_of, refused
        self._related: list[bytes] = []  # WARC-Concurrent-To of each
        self._others: deque[_Request] = deque(maxlen=NEAR)

    def add(self, item: T, concurrent: bytes = b"") -> None:
        """Add the item of the next record, whose WARC-Concurrent-To is `concurrent`."""
        if self._others and any(self._belongs(item, concurrent, other) for other in self._others):
            item = self._refused(item)
        self.items.append(item)
        self._related.append(concurrent)

    def add_unrelated(self, item: T) -> None:
        """Add the item of a record that is not a response."""
        self.items.append(item)
        self._related.append(b"")

    def request(self, record: Record) -> None:
        """Refuse the responses to a request, unless it is a GET."""
        if record.begins_with(b"GET "):
            return
        other = record_ids(record.values[_RECORD_ID]), record_ids(record.values[_CONCURRENT])
        self._others.append(other)
        for index, item in enumerate(self.items):
            if self._belongs(item, self._related[index], other):
                self.items[index] = self._refused(item)

    def pop_settled(self, *, everything: bool = False) -> list[T]:
        """Remove and return the items that no request can refuse any more, in order."""
        count = len(self.items) if everything else len(self.items) - NEAR
        settled = self.items[:count]
        del self.items[:count], self._related[:count]
        return settled

    def _belongs(self, item: T, concurrent: bytes, other: _Request) -> bool:
        """Return whether `item` answers a request: either record may name the other."""
        record_id = self._id_of(item)
        if record_id is None:
            return False
        own, named = other
        return record_id in named or not own.isdisjoint(record_ids(concurrent))
