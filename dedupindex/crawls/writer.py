"""Group commit: what many threads write at once is forced to disk together.

Forcing a transaction to disk takes a millisecond or more, whatever is in it. So one thread of a
process writes for all: while the disk works on one transaction, the writes of the next gather.
Nobody is told that a write is done before it is on disk, in the file that stands there.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeVar

from dedupindex.crawls.store import Store, Writing
from dedupindex.errors import IndexUnavailable

_T = TypeVar("_T")
_AT_ONCE = 1000  # writes in one transaction


class _Job:
    """A change, and what became of it once `done` can be taken.

    A bare lock: a future costs several times as much, once for every capture.
    """

    __slots__ = ("change", "done", "failure", "result")

    def __init__(self, change: Callable[[Writing], object]) -> None:
        self.change = change
        self.result: object = None
        self.failure: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()


class Writer:
    """Writes to a store for all threads of a process.

    Its own thread ends, and lets go of the store, when it is closed or nobody has it any more.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._open = True
        self._door = threading.Lock()
        work = _Work(store, self._jobs)
        self._thread = threading.Thread(target=work.run, name="crawls", daemon=True)
        self._thread.start()
        weakref.finalize(self, self._jobs.put, None).atexit = False

    def write(self, change: Callable[[Writing], _T]) -> _T:
        """Make a change and wait until it is on disk; raises what `change` or the disk raises.

        A change that raises leaves nothing behind. It may be called again, when that of another
        thread raised. Raises `IndexUnavailable` if the file was replaced meanwhile: the change may
        then be in the old one, and must be made again.
        """
        job = _Job(change)
        with self._door:
            if not self._open:
                raise IndexUnavailable(f"{self._store.path} was replaced; send it again")
            self._jobs.put(job)
        job.done.acquire()
        if job.failure is not None:
            raise job.failure
        return job.result  # type: ignore[return-value]

    def close(self) -> None:
        """End when what was asked for is done."""
        with self._door:
            self._open = False
            self._jobs.put(None)
        self._thread.join()


class _Work:
    """What the thread does; it must not hold the writer itself."""

    def __init__(self, store: Store, jobs: SimpleQueue[_Job | None]) -> None:
        self._store, self._jobs = store, jobs

    def run(self) -> None:
        """Make changes until there comes a None instead of one."""
        while self._turn():
            pass  # here it holds none of them, nor what they hold

    def _turn(self) -> bool:
        """Wait for changes and make them together; False if they were the last."""
        jobs = [self._jobs.get()]
        while len(jobs) < _AT_ONCE:
            try:
                jobs.append(self._jobs.get_nowait())
            except Empty:
                break
        self._together([job for job in jobs if job is not None])
        return None not in jobs  # the door is shut, or nobody can knock

    def _together(self, jobs: list[_Job]) -> None:
        try:
            if not self._all(jobs):
                self._each(jobs)
            if not self._store.in_place():
                raise IndexUnavailable(f"{self._store.path} was replaced; send it again")
        except BaseException as error:
            for job in jobs:
                job.failure = error
        for job in jobs:
            job.done.release()

    def _all(self, jobs: list[_Job]) -> bool:
        """Make all changes; False, and none is made, if one of them raises."""
        with suppress(_Refused), self._store.writing() as whole:
            for job in jobs:
                try:
                    job.result = job.change(whole)
                except Exception as error:
                    raise _Refused from error
            return True
        return False

    def _each(self, jobs: list[_Job]) -> None:
        """Make every change that does not raise: each can be undone alone, which costs more."""
        with self._store.writing() as whole:
            for job in jobs:
                try:
                    with self._store.part(whole) as part:
                        job.result = job.change(part)
                except Exception as error:
                    job.failure = error


class _Refused(Exception):
    """One of several changes raised."""
