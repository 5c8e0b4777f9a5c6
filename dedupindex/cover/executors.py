"""How components are found and covered: in this process, in several, or on Spark."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from dedupindex.counts import OnProgress
from dedupindex.cover.components import Components, together
from dedupindex.cover.set_cover import CoverTask, Solution, solve
from dedupindex.runtime.spark import AT_ONCE, Cluster

CHUNK = 20_000  # pairs of components that are solved as one task
_AHEAD = 4  # such tasks for each process

Pairs = Iterator[tuple[int, int]]
Join = Callable[[Pairs, int], Iterable[tuple[int, int]]]
"""Documents of pairs, below a number, each with its component."""
Solve = Callable[[Iterator[list[CoverTask]]], Iterator[list[Solution]]]


@dataclass(frozen=True)
class Means:
    """How covers are found."""

    home: Path
    join: Join
    solve: Solve
    per_host: int = 0  # documents that stay of each host, if there are as many
    on_progress: OnProgress = lambda seen: None


def join_here(pairs: Pairs, count: int) -> Iterable[tuple[int, int]]:
    """Components by union-find in this process."""
    components = Components(count)
    components.join(pairs)
    return components.together()


def solve_all(seconds: float, tasks: list[CoverTask]) -> list[Solution]:
    """Cover several components."""
    return [solve(task, seconds) for task in tasks]


def solve_here(pool: Executor | None, jobs: int, seconds: float) -> Solve:
    """Covers in processes, or in this one; in the order of tasks."""

    def run(tasks: Iterator[list[CoverTask]]) -> Iterator[list[Solution]]:
        if pool is None:
            yield from map(partial(solve_all, seconds), tasks)
        else:
            work = partial(solve_all, seconds)
            yield from ahead(pool, work, tasks, _AHEAD * jobs, _is_large)

    return run


def join_on(cluster: Cluster, pairs: Pairs, count: int) -> Iterable[tuple[int, int]]:
    """Components by label propagation on Spark, with the same names."""
    return together(cluster, pairs)


def solve_on(cluster: Cluster, seconds: float) -> Solve:
    """Covers on Spark, in the order of tasks."""

    def run(tasks: Iterator[list[CoverTask]]) -> Iterator[list[Solution]]:
        for large, alike in groupby(tasks, _is_large):
            while some := list(islice(alike, 1 if large else AT_ONCE * cluster.cores)):
                yield list(cluster.rows(partial(solve_all, seconds), some))

    return run


def _is_large(tasks: list[CoverTask]) -> bool:
    """Whether no other should be in memory at the same time."""
    return sum(len(task.pairs) for task in tasks) > 2 * CHUNK


def ahead(
    pool: Executor,
    work: Callable[[Any], Any],
    tasks: Iterator[Any],
    most: int,
    is_large: Callable[[Any], bool] = lambda task: False,
) -> Any:
    """``work(task)`` for every task in the order of tasks, of which so many are handed out.

    A large one is handed out alone.
    """
    waiting: deque[Future[Any]] = deque()
    for task in tasks:
        large = is_large(task)
        while waiting and large:
            yield waiting.popleft().result()
        waiting.append(pool.submit(work, task))
        while len(waiting) >= (1 if large else most):
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
