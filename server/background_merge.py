"""The merge of committed crawls into the index, started by one of the workers.

A process of its own merges: LMDB allows a file to be open only once in a process, and the worker
has it open for lookups.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress

from dedupindex.crawls import merge_crawls
from dedupindex.crawls.store import Store
from dedupindex.errors import DedupError, IndexBusy
from server import logs
from server.live_index import LiveIndex

EVERY = 2.0  # seconds between two checks
LONGEST = 300.0  # seconds between two attempts of a merge that fails, which grow from `EVERY`


class BackgroundMerge:
    """Merges committed crawls and removes what is no longer needed, in a daemon thread."""

    def __init__(self, live: LiveIndex, clock: Callable[[], float] = time.monotonic) -> None:
        self._live, self._clock = live, clock
        self._store: Callable[[], Store | None] = lambda: None  # not to keep a replaced file open
        self._seen_merged: dict[int, float] = {}  # by its crawls' numbers
        self._failed: set[int] = set()  # numbers of the crawls that could not be merged
        self._pause = EVERY
        self._next = 0.0  # when they are tried again
        self._logged = ""

    def start(self) -> None:
        threading.Thread(target=self._run, name="background-merge", daemon=True).start()

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(EVERY):
            try:
                self.once()
                if not self._failed:
                    self._logged = ""
            except (DedupError, OSError) as error:
                if str(error) != self._logged:  # logged once, not at every attempt
                    self._logged = str(error)
                    logs.LOGGER.warning("committed crawls are not merged: %s", error)
            except Exception:  # a defect: the thread goes on, or nothing would be merged
                logs.LOGGER.exception("the background merge failed")

    def once(self) -> None:
        """Merge committed crawls, and remove what is no longer needed."""
        with suppress(DedupError):
            self._live.opened().engine.forget_dead_readers()
        store = self._live.crawls.store()
        if store is None:
            return
        store.forget_dead_readers()
        if store is not self._store():
            self._store, self._seen_merged = weakref.ref(store), {}
        try:
            self._merge_committed(store)
        finally:
            merge_crawls.sweep(store, time.time(), self._seen_merged)

    def _merge_committed(self, store: Store) -> None:
        """Merge committed crawls; try again after a failure, at growing intervals.

        A merge that fails may have worked for hours. It is tried again at once when another crawl
        is committed, or one of these is gone.
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
        # It may share the cores with lookups, and nobody waits for it.
        merge = [sys.executable, "-m", "dedupindex", "index", "--merge", str(self._live.index)]
        command = ["nice", "-n", "10", *merge]
        path = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, "PYTHONPATH": path}
        with (
            tempfile.TemporaryFile() as output,
            subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            ) as merging,
        ):
            while True:  # perhaps for hours, while crawls write
                with suppress(subprocess.TimeoutExpired):
                    status = merging.wait(EVERY)
                    break
                store.forget_dead_readers()
            output.seek(0)
            text = output.read().decode("utf-8", "replace").strip()
        if status == 0:  # its counts include reports that files of a crawl do not have
            logs.LOGGER.info("merged committed crawls into %s", text[-500:])
        elif status != IndexBusy.exit_status:  # else another process writes: try later
            raise DedupError(text[-500:])
