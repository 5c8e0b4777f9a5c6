"""Where records of a container went when others in it became revisits."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dedupindex.post_crawl.rewrite.journal import JournalEntry


class Offsets:
    """Where what stood at an old offset, and did not become a revisit, stands now."""

    def __init__(self, revisits: Iterable[JournalEntry]) -> None:
        self._begins, self._shifts = array("q"), array("q", [0])
        for entry in revisits:
            self._begins.append(entry.offset)
            self._shifts.append(entry.new_offset + entry.new_stored - entry.offset - entry.stored)

    def now(self, offset: int) -> int:
        """The new offset."""
        return offset + self._shifts[bisect_left(self._begins, offset)]

    def became(self, offset: int) -> bool:
        """Whether what stood there became a revisit."""
        at = bisect_left(self._begins, offset)
        return at < len(self._begins) and self._begins[at] == offset
