"""Group commit: what many threads write at once is forced to disk together.

Forcing a transaction to disk takes a millisecond or more, whatever is in it. So one thread of a
process writes for all: while the disk works on one transaction, the writes of the next gather.
Nobody is told that a write is done before it is on disk, in the file that stands there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TypeVar

from dedupindex.crawls.store import Store, Writing
from dedupindex.errors import IndexUnavailable

_T = TypeVar("_T")
_AT_ONCE = 1000  # writes in one transaction

_Job = tuple[Callable[[Writing], object], "Future[object]"]


class Writer:
    """Writes to a store for all threads of a process; close it to end its own thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._open = True
        self._door = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="crawls", daemon=True)
        self._thread.start()

    def write(self, change: Callable[[Writing], _T]) -> _T:
        """Make a change and wait until it is on disk; raises what `change` or the disk raises.

        A change that raises leaves nothing behind. Raises `IndexUnavailable` if the file was
        replaced meanwhile: the change may then be in the old one, and must be made again.
        """
        done: Future[object] = Future()
        with self._door:
            if not self._open:
                raise IndexUnavailable(f"{self._store.path} was replaced; send it again")
            self._jobs.put((change, done))
        return done.result()  # type: ignore[return-value]

    def close(self) -> None:
        """End when what was asked for is done."""
        with self._door:
            self._open = False
            self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        going = True
        while going:
            jobs = [self._jobs.get()]
            while len(jobs) < _AT_ONCE:
                try:
                    jobs.append(self._jobs.get_nowait())
                except Empty:
                    break
            going = None not in jobs  # the last there is: the door is shut
            self._together([job for job in jobs if job is not None])

    def _together(self, jobs: list[_Job]) -> None:
        results: list[tuple[object, BaseException | None]] = []
        try:
            with self._store.writing() as whole:
                for change, _ in jobs:
                    try:
                        with self._store.part(whole) as part:
                            result = change(part)
                    except Exception as error:
                        results.append((None, error))
                    else:
                        results.append((result, None))
            if not self._store.in_place():
                raise IndexUnavailable(f"{self._store.path} was replaced; send it again")
        except BaseException as error:
            results = [(None, error)] * len(jobs)
        for (_, done), (result, failure) in zip(jobs, results, strict=True):
            if failure is None:
                done.set_result(result)
            else:
                done.set_exception(failure)
