"""What the server does by itself with crawls that have ended, in one of its workers.

Committed captures are merged by a process of its own: a file of the index may be open only once in
a process, and the worker has it open to answer from it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from dedupindex.crawls import merge_crawls
from dedupindex.crawls.store import Store
from dedupindex.errors import DedupError, IndexBusy
from server import logs
from server.live_index import LiveIndex

EVERY = 2.0  # seconds between two looks
LONGEST = 300.0  # seconds between two tries of a merge that fails, which grow from `EVERY`


class Upkeep:
    """Merges and sweeps, over and over, in a thread that ends with its process."""

    def __init__(self, live: LiveIndex, clock: Callable[[], float] = time.monotonic) -> None:
        self._live, self._clock = live, clock
        self._store: Store | None = None
        self._seen_merged: dict[int, float] = {}  # by its crawls' numbers
        self._failed: set[int] = set()  # numbers of the crawls that could not be merged
        self._pause = EVERY
        self._next = 0.0  # when they are tried again
        self._said = ""

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._run, name="upkeep", daemon=True).start()

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(EVERY):
            try:
                self.once()
                if not self._failed:
                    self._said = ""
            except (DedupError, OSError) as error:
                if str(error) != self._said:  # said once, not whenever it is tried again
                    self._said = str(error)
                    logs.LOGGER.warning("committed crawls are not merged: %s", error)
            except Exception:  # a defect: the thread goes on, else nothing is merged any more
                logs.LOGGER.exception("the upkeep of crawls failed")

    def once(self) -> None:
        """Merge what is committed, take away what is not needed any more."""
        with suppress(DedupError):
            self._live.opened().engine.forget_dead_readers()
        store = self._live.crawls.store()
        if store is None:
            return
        store.forget_dead_readers()
        if store is not self._store:
            self._store, self._seen_merged = store, {}
        try:
            self._merge_committed(store)
        finally:
            merge_crawls.sweep(store, time.time(), self._seen_merged)

    def _merge_committed(self, store: Store) -> None:
        """Merge what is committed. What fails is tried again ever more rarely.

        A merge that fails may have read and written for hours. Once another crawl is committed, or
        one of these is gone, it is tried at once.
        """
        numbers = {crawl.number for crawl in merge_crawls.committed(store)}
        if numbers != self._failed:
            self._failed, self._pause = set(), EVERY
        elif self._clock() < self._next:
            return
        if not numbers:
            return
        try:
            self._merge(store)
        except (DedupError, OSError):
            self._next = self._clock() + self._pause
            self._failed, self._pause = numbers, min(2 * self._pause, LONGEST)
            raise

    def _merge(self, store: Store) -> None:
        command = [sys.executable, "-m", "dedupindex", "index", "--merge", str(self._live.index)]
        path = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, "PYTHONPATH": path}
        with (
            tempfile.TemporaryFile() as said,
            subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said
            ) as merging,
        ):
            while True:  # a merge may take hours, in which crawls go on writing
                with suppress(subprocess.TimeoutExpired):
                    status = merging.wait(EVERY)
                    break
                store.forget_dead_readers()
            said.seek(0)
            text = said.read().decode("utf-8", "replace").strip()
        if status not in (0, IndexBusy.exit_status):  # busy: there is time
            raise DedupError(text[-500:])
