"""Connected components: documents that pairs join, directly or through others.

A component is named by the largest number of its documents, whichever method finds it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from dedupindex.runtime.spark import Cluster, spark_errors

Labels = Iterable[tuple[int, int]]
"""Documents, each with its component."""


class Components:
    """Union-find over documents 0 to `count` - 1; takes 8 bytes for each."""

    def __init__(self, count: int) -> None:
        self._parent = array("q", range(count))

    def join(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Put the two documents of each pair into one component."""
        parent = self._parent
        for a, b in pairs:
            while (above := parent[a]) != a:
                parent[a] = a = parent[above]  # path halving
            while (above := parent[b]) != b:
                parent[b] = b = parent[above]
            if a < b:
                parent[a] = b
            elif b < a:
                parent[b] = a

    def of(self, document: int) -> int:
        """Return the component of a document."""
        parent = self._parent
        while (above := parent[document]) != document:
            parent[document] = document = parent[above]
        return document

    def labels(self) -> Labels:
        """Yield the documents of components that have at least two."""
        joined = bytearray(len(self._parent))
        for document in range(len(self._parent)):
            if (component := self.of(document)) != document:
                joined[document] = joined[component] = 1
        return (
            (document, self.of(document)) for document, is_joined in enumerate(joined) if is_joined
        )


def connected_components(pairs: Iterable[tuple[int, int]], count: int) -> Labels:
    """Find the components of documents 0 to `count` - 1 in this process."""
    components = Components(count)
    components.join(pairs)
    return components.labels()


def spark_components(cluster: Cluster, pairs: Iterable[tuple[int, int]], _: int = 0) -> Labels:
    """Yield every document of `pairs` with its component, in any order, by label propagation.

    The driver holds the pairs while it distributes them.
    """
    from pyspark import StorageLevel  # an extra

    slices, persisted = 2 * cluster.cores, []

    def persist(rows: Any) -> Any:
        persisted.append(rows.persist(StorageLevel.DISK_ONLY))
        return rows

    try:
        with spark_errors():
            directed = cluster.context.parallelize(pairs, slices)
            neighbours = persist(directed.flatMap(_both_directions).distinct(slices))
            labels = persist(neighbours.reduceByKey(max, slices).map(_at_least_itself))
            changed = True
            while changed:
                received = neighbours.join(labels, slices).map(_value)
                maxima = persist(labels.union(received).reduceByKey(max, slices))
                # each document takes the label of its label, which halves the number of rounds
                following = persist(maxima.map(_swap).join(maxima, slices).map(_value))
                changed = not following.join(labels, slices).filter(_differs).isEmpty()
                labels = following
            yield from labels.toLocalIterator()
    finally:
        for rows in persisted:
            with suppress(Exception):  # the context may have died
                rows.unpersist()


def _both_directions(pair: tuple[int, int]) -> Iterator[tuple[int, int]]:
    yield pair
    yield pair[1], pair[0]


def _at_least_itself(labelled: tuple[int, int]) -> tuple[int, int]:
    return labelled[0], max(labelled)


def _value(joined: tuple[int, tuple[int, int]]) -> tuple[int, int]:
    return joined[1]


def _swap(labelled: tuple[int, int]) -> tuple[int, int]:
    return labelled[1], labelled[0]


def _differs(joined: tuple[int, tuple[int, int]]) -> bool:
    return joined[1][0] != joined[1][1]
