"""A component that is too large for memory: its pairs in files, covered greedily from there.

In memory there are a few numbers for each document, and what one document covers.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO

from dedupindex.cover.set_cover import Solution, greedy


class Sets(Mapping[int, set[int]]):
    """Of each document a set of documents with itself, in a file."""

    def __init__(
        self, stream: BinaryIO, documents: Iterable[int], rows: Iterable[tuple[int, int]]
    ) -> None:
        """`rows` come in order."""
        self._stream = stream
        self._places: dict[int, tuple[int, int]] = {document: (0, 0) for document in documents}
        at = 0
        for document, some in groupby(rows, itemgetter(0)):
            found = array("q", (one for _, one in some))
            found.tofile(stream)
            self._places[document] = at, len(found) * found.itemsize
            at += len(found) * found.itemsize
        stream.flush()

    def __getitem__(self, document: int) -> set[int]:
        at, size = self._places[document]
        return {document, *array("q", os.pread(self._stream.fileno(), size, at))}

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class Spilled:
    """As `solving.Instance`, which nothing is taken out of."""

    def __init__(self, coverers: Sets, covered: Sets) -> None:
        self.coverers: Mapping[int, set[int]] = coverers
        self.covered: Mapping[int, set[int]] = covered


def solve(
    component: int,
    costs: Mapping[int, float],
    by_covered: Iterable[Any],
    by_covering: Iterable[Any],
    home: Path,
) -> Solution:
    """Cover a component, of which the pairs come each way, in order."""
    with ExitStack() as stack:
        coverers, covered = (
            Sets(stack.enter_context(_nameless(home / name)), costs, rows)
            for name, rows in (("coverers", by_covered), ("covered", by_covering))
        )
        kept, bound = greedy(Spilled(coverers, covered), costs)
    return Solution(component, kept, sum(costs[one] for one in kept), bound, "greedy")


def _nameless(path: Path) -> BinaryIO:
    """A file that is gone once it is closed."""
    stream = open(path, "w+b")  # noqa: SIM115 (the caller closes it)
    path.unlink()
    return stream
