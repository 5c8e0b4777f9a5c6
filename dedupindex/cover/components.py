"""Connected components: documents that no pair joins, not even by way of others, are apart.

A component is called by the largest number of a document in it, as label propagation finds it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from dedupindex.runtime.spark import Cluster, spark_errors


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


# Connected components on Spark, by labels that are propagated.

_Labelled = tuple[int, int]  # a document and its label


def together(cluster: Cluster, pairs: Iterable[tuple[int, int]]) -> Iterator[_Labelled]:
    """Every document of `pairs` with its component, as `components` calls it, in any order.

    The driver holds the pairs while it hands them out.
    """
    from pyspark import StorageLevel  # an extra

    slices, held = 2 * cluster.cores, []

    def kept(rows: Any) -> Any:
        held.append(rows.persist(StorageLevel.DISK_ONLY))
        return rows

    try:
        with spark_errors():
            spread = cluster.context.parallelize(pairs, slices)
            near = kept(spread.flatMap(_both_ways).distinct(slices))
            labels = kept(near.reduceByKey(max, slices).map(_at_least_itself))
            changed = True
            while changed:
                told = near.join(labels, slices).map(_beside)
                wider = kept(labels.union(told).reduceByKey(max, slices))
                after = kept(wider.map(_turned).join(wider, slices).map(_of_label))
                changed = not after.join(labels, slices).filter(_differs).isEmpty()
                labels = after
            yield from labels.toLocalIterator()
    finally:
        for rows in held:
            with suppress(Exception):  # of a context that has died
                rows.unpersist()


def _both_ways(pair: tuple[int, int]) -> Iterator[tuple[int, int]]:
    yield pair
    yield pair[1], pair[0]


def _at_least_itself(labelled: _Labelled) -> _Labelled:
    return labelled[0], max(labelled)


def _beside(joined: tuple[int, tuple[int, int]]) -> _Labelled:
    """The label of one for the other that is beside it."""
    return joined[1]


def _turned(labelled: _Labelled) -> _Labelled:
    return labelled[1], labelled[0]


def _of_label(joined: tuple[int, tuple[int, int]]) -> _Labelled:
    """A document with the label of its label."""
    return joined[1]


def _differs(joined: tuple[int, tuple[int, int]]) -> bool:
    return joined[1][0] != joined[1][1]
