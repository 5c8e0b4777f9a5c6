"""Captures read on a cluster, by the function that reads them here."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice

from dedupindex.corpus.chunks import Chunk, Chunks
from dedupindex.corpus.extract import ChunkResult, ExtractionPlan, Run, here, rest_of
from dedupindex.runtime.spark import AT_ONCE, Cluster
from dedupindex.runtime.workers import to_its_end


def on(cluster: Cluster) -> Run:
    """Runs on a cluster, many chunks at a time; executors find containers where this machine does.

    Functions of one's own go there, too: they must be of modules that are there, or be whole in
    themselves.
    """

    def run(plan: ExtractionPlan, chunks: Chunks) -> Iterator[ChunkResult]:
        if not plan.reads:
            yield from here(1)(plan, chunks)
            return

        def each(chunk: Chunk) -> Iterator[ChunkResult]:
            return cluster.rows(partial(_work, plan), [chunk])

        left = iter(chunks)
        while some := list(islice(left, AT_ONCE * cluster.cores)):
            for done in cluster.rows(partial(_work, plan), some):
                yield done
                if (rest := rest_of(chunks, done)) is not None:
                    yield from to_its_end(each, rest, partial(rest_of, chunks))

    return run


class _One:
    """A chunk by itself, of a group of which more may be on the driver's disk."""

    def __init__(self, chunk: Chunk) -> None:
        self._chunk = chunk

    def __iter__(self) -> Iterator[Chunk]:
        yield self._chunk

    def after(self, left: Chunk) -> Chunk | None:
        """See `chunks.Chunks`."""
        return left if left.groups else None


def _work(plan: ExtractionPlan, chunk: Chunk) -> Iterator[ChunkResult]:
    """Runs on an executor, in a process of its own: what kills that must not end the run."""
    for done in here(2)(plan, _One(chunk)):
        is_here = done.left is not None and done.left.groups
        yield done._replace(left=None) if is_here else done
