"""Captures read on a cluster, by the function that reads them here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice

from dedupindex.cluster import AT_ONCE, Cluster
from dedupindex.corpus.running import Chunk, Done, Plan, Run, here


def on(cluster: Cluster) -> Run:
    """Runs on a cluster, many chunks at a time; executors find containers where this machine does.

    Functions of one's own go there, too: they must be of modules that are there, or be whole in
    themselves.
    """

    def run(plan: Plan, chunks: Iterable[Chunk]) -> Iterator[Done]:
        if not plan.reads:
            yield from here(1)(plan, chunks)
            return
        left = iter(chunks)
        while some := list(islice(left, AT_ONCE * cluster.cores)):
            yield from cluster.rows(partial(_work, plan), some)

    return run


def _work(plan: Plan, chunk: Chunk) -> Iterator[Done]:
    """Runs on an executor, in a process of its own: what kills that must not end the run."""
    return here(2)(plan, [chunk])
