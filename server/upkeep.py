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
from contextlib import suppress

from dedupindex.crawls import upkeep
from dedupindex.crawls.store import Store
from dedupindex.errors import DedupError, IndexBusy
from server import logs
from server.live import LiveIndex

EVERY = 2.0  # seconds between two looks


class Upkeep:
    """Merges and sweeps, over and over, in a thread that ends with its process."""

    def __init__(self, live: LiveIndex) -> None:
        self._live = live
        self._store: Store | None = None
        self._seen_merged: dict[int, float] = {}  # by its crawls' numbers
        self._said = ""

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._run, name="upkeep", daemon=True).start()

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(EVERY):
            try:
                self.once()
                self._said = ""
            except (DedupError, OSError) as error:
                if str(error) != self._said:  # said once, not every two seconds
                    self._said = str(error)
                    logs.LOGGER.warning("committed crawls are not merged: %s", error)

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
            if upkeep.committed(store):
                self._merge(store)
        finally:
            upkeep.sweep(store, time.time(), self._seen_merged)

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
