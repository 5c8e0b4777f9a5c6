"""Connected components: documents that no pair joins, not even by way of others, are apart.

A component is called by the largest number of a document in it, as label propagation finds it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator


class Components:
    """Union-find over documents 0 to `count` - 1; 8 bytes for each."""

    def __init__(self, count: int) -> None:
        self._parent = array("q", range(count))

    def join(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Put the two documents of each pair into one component."""
        parent = self._parent
        for one, other in pairs:
            while (above := parent[one]) != one:
                parent[one] = one = parent[above]  # halves the way for who comes next
            while (above := parent[other]) != other:
                parent[other] = other = parent[above]
            if one < other:
                parent[one] = other
            elif other < one:
                parent[other] = one

    def of(self, document: int) -> int:
        """The component of a document."""
        parent = self._parent
        while (above := parent[document]) != document:
            parent[document] = document = parent[above]
        return document

    def together(self) -> Iterator[tuple[int, int]]:
        """Documents that are in a component with another one, each with its component."""
        alone = bytearray(b"\x01") * len(self._parent)
        for document in range(len(self._parent)):
            if (found := self.of(document)) != document:
                alone[document] = alone[found] = 0
        for document, single in enumerate(alone):
            if not single:
                yield document, self.of(document)
