"""Tasks side by side, each in a process of its own."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from multiprocessing.sharedctypes import Synchronized
from typing import TypeVar

from dedupindex.errors import DedupError

KILLED = (
    "a process of this run was killed, perhaps for want of memory; what is done is done: run the "
    "same again to go on"
)
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_LOOK_EVERY = 0.2  # seconds between two looks at how far the processes are

T = TypeVar("T")
R = TypeVar("R")
Count = Callable[[int, int], None]
"""Told of bytes and records that were read since it was told before."""


def run_tasks(
    run: Callable[[T, Count], R],
    tasks: Sequence[T],
    jobs: int,
    on_progress: Callable[[int, int], None],
) -> Iterator[R]:
    """Run tasks in `jobs` processes; `on_progress` hears of all bytes and records read so far.

    `run` is a function of a module. What it returns comes in the order in which it is done. Raises
    `DedupError` if a process is killed.
    """
    context = get_context("fork")  # starts in milliseconds; nothing here has threads or files open
    counters = (context.Value("q", 0), context.Value("q", 0))
    with ProcessPoolExecutor(
        min(jobs, len(tasks)),
        mp_context=context,
        initializer=_share,
        initargs=(os.getpid(), *counters),
    ) as pool:
        pending: set[Future[R]] = {pool.submit(run, task, _count) for task in tasks}
        try:
            while pending:
                finished, pending = wait(pending, _LOOK_EVERY, return_when=FIRST_COMPLETED)
                on_progress(counters[0].value, counters[1].value)
                for future in finished:
                    yield future.result()
        except BrokenProcessPool as error:
            raise DedupError(KILLED) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


_counters: list[Synchronized[int]] = []  # of a worker process


def _share(parent: int, *counters: Synchronized[int]) -> None:
    die_with(parent)
    _counters[:] = counters


def die_with(parent: int) -> None:
    """End this process when its parent does, even if that is killed.

    It would wait for tasks for ever, and hold the locks that its parent held.
    """
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _count(length: int, records: int) -> None:
    for counter, amount in zip(_counters, (length, records), strict=True):
        with counter.get_lock():
            counter.value += amount
