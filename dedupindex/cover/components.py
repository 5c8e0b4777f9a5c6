"""Connected components: documents that pairs join, directly or through others.

A component is named by the largest number of its documents, whichever method finds it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from operator import itemgetter
from typing import Any

from dedupindex.runtime.spark import Cluster, spark_errors

Labels = Iterable[tuple[int, int]]
"""Documents, each with its component."""


def connected_components(pairs: Iterable[tuple[int, int]], count: int) -> Labels:
    """Yield documents of 0 to `count` - 1 in components of at least two; 8 bytes for each."""
    parent = array("q", range(count))

    def component_of(document: int) -> int:
        while (above := parent[document]) != document:
            parent[document] = document = parent[above]  # path halving
        return document

    for a, b in pairs:
        a, b = component_of(a), component_of(b)
        parent[min(a, b)] = max(a, b)
    joined = bytearray(count)
    for document in range(count):
        if (component := component_of(document)) != document:
            joined[document] = joined[component] = 1
    return ((document, component_of(document)) for document in range(count) if joined[document])


def spark_components(cluster: Cluster, pairs: Iterable[tuple[int, int]], _: int = 0) -> Labels:
    """Yield every document of `pairs` with its component, in any order, by label propagation.

    The driver holds the pairs while it distributes them.
    """
    from pyspark import StorageLevel  # an extra

    slices, persisted = 2 * cluster.cores, []
    value, swapped = itemgetter(1), itemgetter(1, 0)

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
                received = neighbours.join(labels, slices).map(value)
                maxima = persist(labels.union(received).reduceByKey(max, slices))
                # each document takes the label of its label, which halves the number of rounds
                following = persist(maxima.map(swapped).join(maxima, slices).map(value))
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


def _differs(joined: tuple[int, tuple[int, int]]) -> bool:
    return joined[1][0] != joined[1][1]
