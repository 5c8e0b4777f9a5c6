"""Run tasks in parallel processes.

`concurrent.futures` and `multiprocessing` are imported on first use: they take 19 ms, and most
commands start no process.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import pickle
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.errors import BadInput, DedupError

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor
    from multiprocessing.context import BaseContext
    from multiprocessing.process import BaseProcess
    from multiprocessing.sharedctypes import Synchronized

_KILLED = (
    "a process of this run was killed, perhaps because memory ran out; run the same command again "
    "to resume"
)
_NOT_STARTED = (
    "no process can be started beside the threads of this one: a script must do its work below "
    '`if __name__ == "__main__":`'
)
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_AHEAD = 4  # tasks submitted for each process
_LOOK_EVERY = 0.2  # seconds between two reports of progress
_THREAD_ENDS = 50  # milliseconds within which a thread that was joined has ended

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
) -> Iterator[ProcessPoolExecutor]:
    """Open a pool of processes that end with this one; each calls ``begin(*shared)`` first.

    The processes ignore Ctrl-C; this one handles it. If the block fails, pending tasks are
    cancelled, and with `wait_for_tasks` running ones are waited for. Raises `DedupError` if a
    process is killed or cannot be started.
    """
    from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
    from multiprocessing import active_children

    context = _context()
    initial = os.getpid(), begin, *shared
    others = set(active_children())
    try:
        with ProcessPoolExecutor(count, context, initializer=_begin, initargs=initial) as pool:
            try:
                started = _start_processes(pool, count)
                own = set(active_children()) - others
                if context.get_start_method() == "spawn":
                    _check_started(started)
                yield pool
            except BaseException:
                pool.shutdown(wait=wait_for_tasks, cancel_futures=True)
                raise
            _await_end(pool, own)
    except BrokenExecutor as error:
        raise DedupError(_KILLED) from error


def _context() -> BaseContext:
    """Return the start method: fork takes milliseconds, spawn half a second.

    A process with other threads is never forked: a lock that one of them holds would stay locked in
    the child forever. Threads of libraries count, such as those of DuckDB and fsspec.
    """
    from multiprocessing import get_context

    return get_context("spawn" if _has_other_threads() else "fork")


def _has_other_threads() -> bool:
    """Return whether this process has other threads, except some that are about to end."""
    for _ in range(_THREAD_ENDS):
        if count_threads() == 1:
            return False
        time.sleep(0.001)
    return True


def count_threads() -> int:
    """Count the threads of this process, also those that Python does not know; 0: unknown."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 0


def _start_processes(pool: ProcessPoolExecutor, count: int) -> Future[int]:
    """Start the processes without interruption, as a half-started pool cannot be shut down.

    Each is started by a task that does nothing; returns the first. If one is killed right away, the
    pool ends the others with SIGTERM, and waits for them: none may miss it between its fork and
    `_begin`, where Python would call the handler of this process, or none.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        return [pool.submit(int) for _ in range(count)][0]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _await_end(pool: ProcessPoolExecutor, own: Set[BaseProcess]) -> None:
    """Wait until the processes of a pool have ended; if one was killed, end the others.

    One that is killed while it waits for a task keeps the lock of their queue. If the pool is shut
    down in that moment, it does not notice, and the others wait for the lock for ever.
    """
    from multiprocessing.connection import wait

    pool.shutdown(wait=False)
    while alive := [process for process in own if process.is_alive()]:
        if any(process.exitcode for process in own):
            for process in alive:
                process.terminate()
        wait([process.sentinel for process in alive])


def _check_started(started: Future[int]) -> None:
    """Wait for the first task; raises `DedupError` if its process ends before.

    A spawned process imports the script that runs, which may try to start processes again.
    """
    from concurrent.futures import BrokenExecutor

    try:
        started.result()
    except BrokenExecutor:
        raise DedupError(_NOT_STARTED) from None


def _begin(parent: int, begin: Callable[..., None] | None, *shared: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops this process
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whatever the parent does on it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # see `_start_processes`
    # If the parent is killed, this process would wait for tasks forever, and hold its locks.
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    # A process that was not forked would clean up at its end, and DuckDB then reports leaks.
    atexit.register(os._exit, 0)
    if begin is not None:
        begin(*shared)


def side_by_side(
    work: Callable[[Any, T], R],
    shared: Any,
    tasks: Sequence[T],
    jobs: int,
    more: Callable[[R], Iterable[T]] = lambda result: (),
) -> Iterator[R]:
    """Yield ``work(shared, task)`` for every task, in `jobs` processes, as results are ready.

    `more` returns the tasks that follow from a result. Raises `DedupError` if a process is killed.
    """
    if jobs <= 1 or len(tasks) <= 1:
        left = deque(tasks)
        while left:
            result = work(shared, left.popleft())
            left.extend(more(result))
            yield result
        return
    from queue import SimpleQueue

    ready: SimpleQueue[Future[R]] = SimpleQueue()
    with _sharing(shared, min(jobs, len(tasks))) as pool:

        def submit(tasks: Iterable[T]) -> int:
            futures = [pool.submit(_work, work, task) for task in tasks]
            for future in futures:
                future.add_done_callback(ready.put)
            return len(futures)

        pending = submit(tasks)
        while pending:
            result = ready.get().result()
            pending += submit(more(result)) - 1
            yield result


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
        with _sharing(shared, jobs) as pool:
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

    with _sharing(shared, 1) as pool:
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


class _Shared:
    """A value for worker processes: a forked one inherits it, a spawned one is sent a copy.

    Unlike pickle, cloudpickle copies any function, also a lambda or one of a notebook.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        import cloudpickle

        try:
            return _received, (cloudpickle.dumps(self.value),)
        except Exception as error:  # anything, of a user's objects
            raise BadInput(
                f"{error}: it cannot be sent to other processes, which this one, as it has "
                "threads, must start anew; use one process (jobs=1)"
            ) from error


def _received(data: bytes) -> _Shared:
    return _Shared(pickle.loads(data))


def _sharing(shared: Any, count: int) -> AbstractContextManager[ProcessPoolExecutor]:
    return workers(count, _keep_shared, _Shared(shared), wait_for_tasks=True)


def _keep_shared(shared: _Shared) -> None:
    gc.freeze()  # the collector need not scan the objects of the parent
    _shared[:] = [shared.value]


def _work(work: Callable[[Any, T], R], task: T) -> R:
    return work(_shared[0], task)


def read_all(
    read: Callable[[T, Count], R],
    tasks: Sequence[T],
    jobs: int,
    total: int,
    on_progress: OnProgress,
    *,
    apart: bool = False,
) -> Iterator[R]:
    """Yield the results of tasks that read `total` bytes in `jobs` processes, as they are ready.

    A single task runs in this process, unless `apart`. `read` is a function of a module. Raises
    `DedupError` if a process is killed.
    """
    frozen = gc.get_freeze_count()  # by our caller: thawing would thaw those objects, too
    if not frozen:
        gc.freeze()  # or each collection would visit all objects that exist now
    try:
        if not apart and (jobs <= 1 or len(tasks) <= 1):
            yield from _read_here(read, tasks, total, on_progress)
        else:
            yield from _read_in_pool(read, tasks, min(jobs, len(tasks)), total, on_progress)
    finally:
        if not frozen:
            gc.unfreeze()


def _read_here(
    read: Callable[[T, Count], R], tasks: Sequence[T], total: int, on_progress: OnProgress
) -> Iterator[R]:
    seen = [0, 0]

    def progress(length: int, records: int) -> None:
        seen[0] += length
        seen[1] += records
        on_progress(ProgressUpdate("reading", seen[0], total, seen[1]))

    for task in tasks:
        yield read(task, progress)


def _read_in_pool(
    read: Callable[[T, Count], R],
    tasks: Sequence[T],
    count: int,
    total: int,
    on_progress: OnProgress,
) -> Iterator[R]:
    from concurrent.futures import FIRST_COMPLETED, wait

    context = _context()
    counters = (context.Value("q", 0), context.Value("q", 0))
    with workers(count, _count_in, *counters) as pool:
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
