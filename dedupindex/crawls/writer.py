"""Group commit: what many threads write at once is forced to disk together.

Forcing a transaction to disk takes a millisecond or more, whatever is in it. So one thread of a
process writes for all: while the disk works on one transaction, the writes of the next gather.
Nobody is told that a write is done before it is on disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

from dedupindex.crawls.store import Store, Writing

_T = TypeVar("_T")
_AT_ONCE = 1000  # writes in one transaction

_Job = tuple[Callable[[Writing], object], "Future[object]"]


class Writer:
    """Writes to a store for all threads of a process; close it to end its own thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="crawls", daemon=True)
        self._thread.start()

    def write(self, change: Callable[[Writing], _T]) -> _T:
        """Make a change and wait until it is on disk; raises what `change` or the disk raises.

        A change that raises leaves nothing behind. It may be made twice, if the transaction that
        it first was in could not be finished.
        """
        done: Future[object] = Future()
        self._jobs.put((change, done))
        return done.result()  # type: ignore[return-value]

    def close(self) -> None:
        """End when what was asked for is done."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            jobs = [job]
            while len(jobs) < _AT_ONCE and not self._jobs.empty():
                more = self._jobs.get()
                if more is None:
                    self._jobs.put(None)
                    break
                jobs.append(more)
            self._together(jobs)

    def _together(self, jobs: list[_Job]) -> None:
        results: list[tuple[Future[object], object, BaseException | None]] = []
        try:
            with self._store.writing() as whole:
                for change, done in jobs:
                    try:
                        with self._store.part(whole) as part:
                            results.append((done, change(part), None))
                    except Exception as error:
                        results.append((done, None, error))
        except BaseException as error:
            for _, done in jobs:
                done.set_exception(error)
            return
        for done, result, failure in results:
            if failure is None:
                done.set_result(result)
            else:
                done.set_exception(failure)
