"""Tasks side by side, each in a process of its own.

`concurrent.futures` and `multiprocessing` are imported where they are used: they take 19 ms, and
most commands start no process.
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

if TYPE_CHECKING:  # slow to import, and of no use to who works alone
    from concurrent.futures import Future, ProcessPoolExecutor
    from multiprocessing.context import BaseContext
    from multiprocessing.sharedctypes import Synchronized

_KILLED = (
    "a process of this run was killed, perhaps for want of memory; what is done is done: run the "
    "same again to go on"
)
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_AHEAD = 4  # tasks for each process that are handed out at once
_LOOK_EVERY = 0.2  # seconds between two looks at how far the processes are

T = TypeVar("T")
R = TypeVar("R")
Count = Callable[[int, int], None]
"""Told of bytes and records that were read since it was told before."""


@contextmanager
def workers(
    count: int,
    begin: Callable[..., None] | None = None,
    *shared: Any,
    patient: bool = False,
    threads: bool = False,
) -> Iterator[ProcessPoolExecutor]:
    """As `_pool`; raises `DedupError` if a process is killed."""
    from concurrent.futures import BrokenExecutor

    try:
        with _pool(count, begin, *shared, patient=patient, threads=threads) as pool:
            yield pool
    except BrokenExecutor as error:
        raise DedupError(_KILLED) from error


@contextmanager
def _pool(
    count: int,
    begin: Callable[..., None] | None,
    *shared: Any,
    patient: bool = True,
    threads: bool = False,
) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes that do not outlive this one; each calls ``begin(*shared)`` first.

    Ctrl-C interrupts them all, and they leave that to this one. When the block fails, nothing more
    is begun; where tasks hold what must not be let go of before their end, it is waited for
    (`patient`). Who has `threads` says so.
    """
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(
        count, _context(threads=threads), initializer=_begin, initargs=(os.getpid(), begin, *shared)
    ) as pool:
        try:
            with _undisturbed():
                pool.submit(int)  # they begin now
            yield pool
        except BaseException:
            pool.shutdown(wait=patient, cancel_futures=True)
            raise


def _context(*, threads: bool = False) -> BaseContext:
    """How processes start: in milliseconds by fork, where nothing here has threads or files open.

    Beside threads, as fsspec has one, a process by fork may wait for ever for what one of them held
    then; those that begin anew take half a second more.
    """
    from multiprocessing import get_context

    return get_context("spawn" if threads else "fork")


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C waits for the end of the block: a pool that is begun by half cannot be ended."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(parent: int, begin: Callable[..., None] | None, *shared: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # so, and whatever it does itself when told that
    _die_with(parent)
    if begin is not None:
        begin(*shared)


def _die_with(parent: int) -> None:
    """End this process when its parent does, even if that is killed.

    It would wait for tasks for ever, and hold the locks that its parent held.
    """
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def side_by_side(
    work: Callable[[Any, T], R], shared: Any, tasks: Sequence[T], jobs: int
) -> Iterator[R]:
    """``work(shared, task)`` for every task, in `jobs` processes; results as they are ready.

    Raises `DedupError` if one of them is killed.
    """
    if jobs <= 1 or len(tasks) <= 1:
        for task in tasks:
            yield work(shared, task)
        return
    from concurrent.futures import as_completed

    with workers(min(jobs, len(tasks)), _take, shared, patient=True) as pool:
        for future in as_completed([pool.submit(_work, work, task) for task in tasks]):
            yield future.result()


def in_turn(
    work: Callable[[Any, T], R],
    shared: Any,
    tasks: Iterable[T],
    jobs: int,
    killed: Callable[[T], Iterator[R]],
    more: Callable[[R], T | None] = lambda result: None,
) -> Iterator[R]:
    """``work(shared, task)`` for every task, in `jobs` processes; results in the order of tasks.

    Tasks are taken as they are needed, so that there may be any number. Where a result leaves
    something to be done, `more` is the task that comes next. Hostile input may kill the
    process that reads it: what was in hand then is done again, each task in a process of its own,
    and `killed` yields the results in place of one that kills that, too.
    """
    if jobs <= 1:
        for task in tasks:
            yield from to_its_end(lambda task: iter([work(shared, task)]), task, more)
        return
    from concurrent.futures import BrokenExecutor

    left = iter(tasks)
    while True:
        taken: deque[T] = deque()
        futures: deque[Future[R]] = deque()
        with _pool(jobs, _take, shared) as pool:
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
            yield from to_its_end(lambda task: alone(work, shared, task, killed), task, more)


def to_its_end(
    do: Callable[[T], Iterator[R]], task: T, more: Callable[[R], T | None]
) -> Iterator[R]:
    """What is done of a task, and of all that it leaves to be done."""
    left = deque([task])
    while left:
        for result in do(left.popleft()):
            rest = more(result)
            if rest is not None:
                left.append(rest)
            yield result


def alone(
    work: Callable[[Any, T], R], shared: Any, task: T, killed: Callable[[T], Iterator[R]]
) -> Iterator[R]:
    """``work(shared, task)`` in a process of its own, or what `killed` yields if that is killed."""
    from concurrent.futures import BrokenExecutor

    with _pool(1, _take, shared) as pool:
        try:
            result = pool.submit(_work, work, task).result()
        except BrokenExecutor:
            result = None
    if result is None:
        yield from killed(task)
    else:
        yield result


def hurry(seconds: float) -> None:
    """Let a worker process be killed once it has worked for so long from now on; 0: never.

    What a library does with hostile input nothing else can end. Waiting for others is no work.
    """
    if _shared:
        signal.setitimer(signal.ITIMER_PROF, seconds)


_shared: list[Any] = []  # of a worker process


def _take(shared: Any) -> None:
    gc.freeze()  # what was there before stays: collecting would look at all of it again and again
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
    """Run tasks that read `total` bytes in `jobs` processes; results as they are ready.

    `read` is a function of a module; `threads`: see `workers`. Raises `DedupError` if a process is
    killed.
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
