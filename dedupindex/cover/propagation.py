"""Connected components on Spark, by labels that are propagated.

Each document takes the largest label of those beside it, at first their numbers, and then the label
of its label, so that chains take the logarithm of their length in rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from dedupindex.runtime.spark import Cluster, explained

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
        with explained():
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
