"""The index that is being served, which others may replace at any moment.

A worker looks a few times a second whether the files it opened are still the ones that stand
there: a build may have named a new generation, or the whole directory may have been swapped; and
whether the keyspace on a cluster was dropped and loaded anew. It then opens the new ones and lets
go of the old. Requests that are under way finish on what they began with: the old files are closed
when the last of them lets go.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from dedupindex.errors import DedupError, IndexUnavailable
from dedupindex.index import open_index
from dedupindex.index.engine import Engine, in_place
from dedupindex.index.format.fast_answer import PlainAnswers
from dedupindex.index.identity import Identity, read_identity
from dedupindex.lookup.policy import NO_POLICY, Policy
from server.config import COUNT_EVERY, GATHER_EVERY, RELOAD_EVERY, RELOAD_GRACE
from server.logs import LOGGER
from server.worker_crawls import Crawls

_Stamp = tuple[Identity, list[tuple[str, int]]]


class Opened(NamedTuple):
    """An open index, and what is worth keeping as long as it is open."""

    engine: Engine
    plain: PlainAnswers | None  # if its engine can do that


class LiveIndex:
    """The open index, for as long as there is one. Threads may ask while another reloads."""

    def __init__(self, index: Path, policy: Policy = NO_POLICY) -> None:
        """`policy` holds for all lookups, after that of their crawl."""
        self.index, self._ruled = index, bool(policy.rules)
        self.crawls = Crawls(index, policy)
        self.reloads = 0
        self._opened: Opened | None = None
        self._error: DedupError = IndexUnavailable(f"the index at {index} is not open yet")
        self._stamp: _Stamp | None = None
        self._failing_since: float | None = None
        self._busy = threading.Lock()

    def opened(self) -> Opened:
        """The open index; raises what keeps it from being open."""
        opened = self._opened
        if opened is None:
            raise type(self._error)(str(self._error))
        return opened

    def refresh(self) -> None:
        """Open what stands there now, if it is not what is open."""
        with self._busy:
            try:
                if self._opened is not None and not in_place(self._opened.engine):
                    self._opened = None  # at once: it answers from what took its place
                stamp = _stamp(self.index)
                if stamp != self._stamp or self._opened is None:
                    self._open(stamp)
                    self._stamp = stamp
                self._failing_since = None
            except DedupError as error:
                self._error = error
                now = time.monotonic()
                self._failing_since = self._failing_since or now
                # While an index is being swapped there is none for a moment: what is open still
                # answers rightly. Longer than that, nobody knows whether it does.
                if now - self._failing_since >= RELOAD_GRACE:
                    self._opened = None
        self.crawls.refresh()

    def _open(self, stamp: _Stamp) -> None:
        engine = open_index(self.index)
        if _stamp(self.index) != stamp:  # its files may be of two indexes
            raise IndexUnavailable(f"the index at {self.index} is being replaced")
        with engine.view() as view:
            view.counts()
            plain = None if self._ruled else view.plain()  # it applies no policy
        if self._opened is not None:
            self.reloads += 1
        self._opened = Opened(engine, plain)

    def watch(self) -> None:
        """Refresh for as long as the process lives, in a thread of its own."""
        works: list[tuple[Callable[[], None], float]] = [
            (self.refresh, RELOAD_EVERY),
            (self.crawls.counting.gather, GATHER_EVERY),
            (self.crawls.write_counts, COUNT_EVERY),
        ]
        for work, pause in works:
            name = work.__name__
            threading.Thread(
                target=_over_and_over, args=(work, pause), name=name, daemon=True
            ).start()

    def close(self) -> None:
        """Write down what was counted last; when the process ends in good order."""
        try:
            self.crawls.write_counts()
        except DedupError as error:
            LOGGER.error("the last lookups are not counted: %s", error)


def _over_and_over(work: Callable[[], None], pause: float) -> None:
    """Do some work with pauses between; that it fails once does not end it."""
    event = threading.Event()
    while not event.wait(pause):
        try:
            work()
        except DedupError:  # a disk that is full, a file that is away: another time
            pass
        except Exception:
            LOGGER.exception("%s failed", work.__name__)


def _stamp(index: Path) -> _Stamp:
    """What changes when the index or its data is replaced, but not when it is added to."""
    identity = read_identity(index)
    data = f"data-{identity.generation}"
    try:
        files = sorted(
            (entry.name, entry.inode())
            for entry in os.scandir(index)
            if entry.name.startswith(data) and not entry.name.endswith("-lock")
        )
    except OSError as error:
        raise IndexUnavailable(f"the index at {index} cannot be read: {error}") from error
    return identity, files
