"""Run tasks in parallel processes.

`concurrent.futures` and `multiprocessing` are imported on first use: they take 19 ms, and most
commands start no process.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.errors import DedupError

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor
    from multiprocessing.context import BaseContext
    from multiprocessing.sharedctypes import Synchronized

_KILLED = (
    "a process of this run was killed, perhaps because memory ran out; run the same command again "
    "to resume"
)
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_AHEAD = 4  # tasks submitted for each process
_LOOK_EVERY = 0.2  # seconds between two reports of progress

T = TypeVar("T")
R = TypeVar("R")
Count = Callable[[int, int], None]
"""Called with the bytes and records that were read since the last call."""


@contextmanager
def workers(
    count: int,
    begin: Callable[..., None] | None = None,
    *shared: Any,
    wait_for_tasks: bool = False,
    threads: bool = False,
) -> Iterator[ProcessPoolExecutor]:
    """Open a pool of processes that end with this one; each calls ``begin(*shared)`` first.

    The processes ignore Ctrl-C; this one handles it. If the block fails, pending tasks are
    cancelled, and with `wait_for_tasks` running ones are waited for. `threads` must be set if this
    process has threads. Raises `DedupError` if a process is killed.
    """
    from concurrent.futures import BrokenExecutor, ProcessPoolExecutor

    initial = os.getpid(), begin, *shared
    try:
        with ProcessPoolExecutor(
            count, _context(threads=threads), initializer=_begin, initargs=initial
        ) as pool:
            try:
                _start_processes(pool)
                yield pool
            except BaseException:
                pool.shutdown(wait=wait_for_tasks, cancel_futures=True)
                raise
    except BrokenExecutor as error:
        raise DedupError(_KILLED) from error


def _context(*, threads: bool = False) -> BaseContext:
    """Return the start method: fork takes milliseconds, spawn half a second.

    With threads, such as that of fsspec, a forked process may wait forever for a lock that a thread
    held.
    """
    from multiprocessing import get_context

    return get_context("spawn" if threads else "fork")


def _start_processes(pool: ProcessPoolExecutor) -> None:
    """Start the processes without interruption, as a half-started pool cannot be shut down."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        pool.submit(int)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(parent: int, begin: Callable[..., None] | None, *shared: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whatever the parent does on it
    # If the parent is killed, this process would wait for tasks forever, and hold its locks.
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    if begin is not None:
        begin(*shared)


def side_by_side(
    work: Callable[[Any, T], R], shared: Any, tasks: Sequence[T], jobs: int
) -> Iterator[R]:
    """Yield ``work(shared, task)`` for every task, in `jobs` processes, as results are ready.

    Raises `DedupError` if a process is killed.
    """
    if jobs <= 1 or len(tasks) <= 1:
        for task in tasks:
            yield work(shared, task)
        return
    from concurrent.futures import as_completed

    with workers(min(jobs, len(tasks)), _keep_shared, shared, wait_for_tasks=True) as pool:
        for future in as_completed([pool.submit(_work, work, task) for task in tasks]):
            yield future.result()


def map_in_order(
    work: Callable[[Any, T], R],
    shared: Any,
    tasks: Iterable[T],
    jobs: int,
    killed: Callable[[T], Iterator[R]],
    more: Callable[[R], T | None] = lambda result: None,
) -> Iterator[R]:
    """Yield ``work(shared, task)`` for every task, in `jobs` processes, in the order of tasks.

    Tasks are read as needed, so there may be any number. `more` returns a follow-up task for a
    result, or None; it is run next. If a process is killed, perhaps by hostile input, all submitted
    tasks are repeated in processes of their own; for one that kills that, too, the results are
    those of `killed`.
    """
    if jobs <= 1:
        for task in tasks:
            yield from run_to_end(lambda task: iter([work(shared, task)]), task, more)
        return
    from concurrent.futures import BrokenExecutor

    left = iter(tasks)
    while True:
        taken: deque[T] = deque()
        futures: deque[Future[R]] = deque()
        with workers(jobs, _keep_shared, shared, wait_for_tasks=True) as pool:
            try:
                while True:
                    for task in islice(left, _AHEAD * jobs - len(taken)):
                        taken.append(task)
                        futures.append(pool.submit(_work, work, task))
                    if not taken:
                        return
                    result = futures[0].result()
                    taken.popleft()
                    futures.popleft()
                    if (rest := more(result)) is not None:
                        taken.appendleft(rest)
                        futures.appendleft(pool.submit(_work, work, rest))
                    yield result
            except BrokenExecutor:
                pass
        for task in taken:
            yield from run_to_end(lambda task: run_alone(work, shared, task, killed), task, more)


def run_to_end(
    do: Callable[[T], Iterator[R]], task: T, more: Callable[[R], T | None]
) -> Iterator[R]:
    """Run a task and its follow-up tasks; yield the results."""
    left = deque([task])
    while left:
        for result in do(left.popleft()):
            if (rest := more(result)) is not None:
                left.append(rest)
            yield result


def run_alone(
    work: Callable[[Any, T], R], shared: Any, task: T, killed: Callable[[T], Iterator[R]]
) -> Iterator[R]:
    """Yield ``work(shared, task)`` from a new process, or what `killed` yields if it is killed."""
    from concurrent.futures import BrokenExecutor

    with workers(1, _keep_shared, shared, wait_for_tasks=True) as pool:
        try:
            result = pool.submit(_work, work, task).result()
        except BrokenExecutor:
            result = None
    if result is None:
        yield from killed(task)
    else:
        yield result


def limit_cpu_time(seconds: float) -> None:
    """Kill this worker process after so many seconds of CPU time from now; 0: never.

    It ends endless loops of libraries on hostile input.
    """
    if _shared:
        signal.setitimer(signal.ITIMER_PROF, seconds)


_shared: list[Any] = []  # of a worker process


def _keep_shared(shared: Any) -> None:
    gc.freeze()  # the collector need not scan the objects of the parent
    _shared[:] = [shared]


def _work(work: Callable[[Any, T], R], task: T) -> R:
    return work(_shared[0], task)


def read_all(
    read: Callable[[T, Count], R],
    tasks: Sequence[T],
    jobs: int,
    total: int,
    on_progress: OnProgress,
    *,
    threads: bool = False,
) -> Iterator[R]:
    """Yield the results of tasks that read `total` bytes in `jobs` processes, as they are ready.

    `read` is a function of a module; `threads` is as in `workers`. Raises `DedupError` if a process
    is killed.
    """
    if jobs <= 1 or len(tasks) <= 1:
        seen = [0, 0]

        def progress(length: int, records: int) -> None:
            seen[0] += length
            seen[1] += records
            on_progress(ProgressUpdate("reading", seen[0], total, seen[1]))

        for task in tasks:
            yield read(task, progress)
        return
    from concurrent.futures import FIRST_COMPLETED, wait

    context = _context(threads=threads)
    counters = (context.Value("q", 0), context.Value("q", 0))
    with workers(min(jobs, len(tasks)), _count_in, *counters, threads=threads) as pool:
        pending: set[Future[R]] = {pool.submit(read, task, _count) for task in tasks}
        while pending:
            finished, pending = wait(pending, _LOOK_EVERY, return_when=FIRST_COMPLETED)
            on_progress(ProgressUpdate("reading", counters[0].value, total, counters[1].value))
            for future in finished:
                yield future.result()


_counters: list[Synchronized[int]] = []  # of a worker process


def _count_in(*counters: Synchronized[int]) -> None:
    _counters[:] = counters


def _count(length: int, records: int) -> None:
    for counter, amount in zip(_counters, (length, records), strict=True):
        with counter.get_lock():
            counter.value += amount
