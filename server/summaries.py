"""The summary of what the index holds, for pages and the API, renewed in the background.

Making one reads the whole index, so a process of low priority makes it, when somebody asks for it
and the index has changed since the last one. It takes at most a twentieth of the time: the next one
begins no sooner than twenty times as long after the last one as that took. Requests get the last
one, with its date.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from dedupindex.errors import DedupError, IndexBusy
from dedupindex.index import summary
from dedupindex.index.address import is_cluster
from dedupindex.runtime.files import NOT_WRITABLE, exclusive, unwritable
from server import logs
from server.live_index import LiveIndex

REST = 20  # times as long as a summary took, until the next one may begin
SHORTEST_REST = 30.0  # seconds
_LOCK = "summary.lock"


class KnownSummary(NamedTuple):
    content: dict[str, Any] | None  # None: there is none yet
    is_current: bool  # no capture was added or removed since
    is_running: bool  # the next one is being made
    by_hand: bool  # none is made here: the index is on a cluster
    captures: int  # originals in the index now
    problem: str  # why the last attempt failed, "" if it did not


class Summaries:
    """Reads the summary of the served index, and renews it; thread-safe."""

    def __init__(self, live: LiveIndex) -> None:
        self._live, self._index = live, Path(os.path.abspath(live.index))
        self._lock = threading.Lock()
        self._running: threading.Thread | None = None
        self._next = 0.0  # seconds since 1970; after a failure
        self._problem = ""

    def known(self) -> KnownSummary:
        """Return the last summary; begin the next one if the index has changed."""
        content = summary.read_summary(self._index)
        engine = self._live.opened().engine
        with engine.view() as view:
            state, captures = view.state(), view.counts().captures
        is_current = content is not None and content["state"] == state
        by_hand = is_cluster(engine.identity.engine)
        if not is_current and not by_hand and time.time() >= self._earliest(content):
            self._begin()
        running = self._running is not None and self._running.is_alive()
        problem = "" if is_current else self._problem
        return KnownSummary(
            content, is_current, running and not is_current, by_hand, captures, problem
        )

    def _earliest(self, content: dict[str, Any] | None) -> float:
        if content is None:
            return self._next
        try:
            made = (self._index / summary.FILE).stat().st_mtime
        except OSError:  # purged since it was read, or the index is being replaced
            return self._next
        seconds = float(content["seconds"])
        return max(self._next, made + max(REST * seconds, SHORTEST_REST))

    def _begin(self) -> None:
        with self._lock:
            if self._running is None or not self._running.is_alive():
                self._running = threading.Thread(target=self._make, name="summary", daemon=True)
                self._running.start()

    def _make(self) -> None:
        try:
            with exclusive(self._index / _LOCK, "the summary of the index"):  # of another worker
                self._run()
            self._problem = ""
        except IndexBusy:
            self._next = time.time() + 1
        except (DedupError, OSError) as error:
            self._next = time.time() + SHORTEST_REST
            denied = isinstance(error, OSError) and error.errno in NOT_WRITABLE
            self._problem = unwritable(self._index) if denied else str(error)
            logs.LOGGER.warning("what the index holds was not counted: %s", self._problem)

    def _run(self) -> None:
        words = [sys.executable, "-m", "dedupindex", "index", "--stats", str(self._index)]
        path = os.pathsep.join(filter(None, sys.path))
        with tempfile.TemporaryFile() as output:
            ended = subprocess.run(
                ["nice", "-n", "10", *words],
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=output,
                check=False,
            )
            output.seek(0)
            text = output.read().decode("utf-8", "replace").strip()
        if ended.returncode:
            raise DedupError(text[-500:])
