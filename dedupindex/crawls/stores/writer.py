"""Group commit: what many threads write at once is forced to disk together.

Forcing a transaction to disk takes a millisecond or more, whatever is in it. So one of the threads
that write does it for all: while the disk works on one transaction, the writes of the next gather,
and the first of them leads then. Who writes alone does all in its own thread: waking another costs
as much as the change itself. Nobody is told that a write is done before it is on disk, in the file
that stands there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from dedupindex.crawls.store import Writing
from dedupindex.errors import IndexUnavailable

if TYPE_CHECKING:
    from dedupindex.crawls.stores.lmdb_crawl_store import LmdbStore

_T = TypeVar("_T")
_AT_ONCE = 1000  # writes in one transaction


class _Job:
    """A change; once `turn` can be taken, what became of it, or `leads`.

    A bare lock: a future costs several times as much, once for every capture.
    """

    __slots__ = ("change", "failure", "leads", "result", "turn")

    def __init__(self, change: Callable[[Writing], object]) -> None:
        self.change = change
        self.result: object = None
        self.failure: BaseException | None = None
        self.leads = False  # whether its thread writes next, for all who wait
        self.turn = threading.Lock()
        self.turn.acquire()


class GroupWriter:
    """Writes to a file of crawls for all threads of a process."""

    def __init__(self, store: LmdbStore) -> None:
        self._store = store
        self._jobs: list[_Job] = []  # that wait
        self._led = False  # whether a thread writes, or was told to
        self._open = True
        self._door = threading.Condition(threading.Lock())

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
            self._jobs.append(job)
            job.leads, self._led = not self._led, True
        if not job.leads:
            job.turn.acquire()
        if job.leads:
            self._lead()
        if job.failure is not None:
            raise job.failure
        return job.result  # type: ignore[return-value]

    def close(self) -> None:
        """Return when what was asked for is done; nothing more is taken."""
        with self._door:
            self._open = False
            self._door.wait_for(lambda: not self._led)

    def _lead(self) -> None:
        """Write all that waits, the leader's own first, and give the lead to who came since."""
        with self._door:
            jobs, self._jobs = self._jobs[:_AT_ONCE], self._jobs[_AT_ONCE:]
        try:
            self._together(jobs)
        finally:
            with self._door:
                following = self._jobs[0] if self._jobs else None
                self._led = following is not None
                self._door.notify_all()
            if following is not None:
                following.leads = True
                following.turn.release()

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
            job.turn.release()

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
