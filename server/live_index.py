"""The served index, which other processes may replace at any time.

Several times a second a worker checks whether the files it has open are still current: a build may
have made a new generation, the directory may have been swapped, the keyspace on a cluster may have
been loaded anew. It then opens the new index. Requests in progress finish on the old one, whose
files are closed when the last of these requests ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from dedupindex.errors import DedupError, IndexUnavailable
from dedupindex.index import open_index
from dedupindex.index.engine import Engine, Finder
from dedupindex.index.format.fast_answer import PlainAnswers
from dedupindex.index.identity import Settings, Stamp, stamp_of
from dedupindex.lookup.policy import NO_POLICY, Policy
from server.config import COUNT_EVERY, GATHER_EVERY, RELOAD_EVERY, RELOAD_GRACE
from server.logs import LOGGER
from server.worker_crawls import Crawls


class Opened(NamedTuple):
    """An open index."""

    engine: Engine
    plain: PlainAnswers | None  # the fast path, if the engine has one


class LiveIndex:
    """The open index; thread-safe, also while it is reloaded."""

    def __init__(self, index: Path, policy: Policy = NO_POLICY) -> None:
        """`policy` applies to all lookups, after that of their crawl."""
        self.index, self._ruled = index, bool(policy.rules)
        self.crawls = Crawls(index, policy)
        self.reloads = 0
        self._opened: Opened | None = None
        self._error: DedupError = IndexUnavailable(f"the index at {index} is not open yet")
        self._stamp: Stamp | None = None
        self._failing_since: float | None = None
        self._busy = threading.Lock()

    def opened(self) -> Opened:
        """Return the open index; raises the error that keeps it from being open."""
        opened = self._opened
        if opened is None:
            raise type(self._error)(str(self._error))
        return opened

    @contextmanager
    def view(
        self, crawl: str, namespaces: tuple[str, ...] = ()
    ) -> Iterator[tuple[Finder, Settings]]:
        """Open index and crawls as one crawl sees them, "" for none; raises `UnknownCrawl`.

        `CrawlSnapshot` says why in this order.
        """
        with self.crawls.snapshot(refresh=bool(crawl)) as crawls:
            engine = self.opened().engine
            settings = engine.identity.settings
            with engine.view() as base:
                yield crawls.view_for(base, settings.keys(), crawl, namespaces), settings

    def refresh(self) -> None:
        """Open the current index, unless it is open already."""
        with self._busy:
            try:
                if self._opened is not None and not self._opened.engine.is_current():
                    self._opened = None  # at once: it would answer from its replacement
                stamp = stamp_of(self.index)
                if stamp != self._stamp or self._opened is None:
                    self._open(stamp)
                    self._stamp = stamp
                self._failing_since = None
            except DedupError as error:
                self._error = error
                now = time.monotonic()
                self._failing_since = self._failing_since or now
                # While an index is swapped it is missing for a moment, and the open one is still
                # right. After `RELOAD_GRACE` it may not be.
                if now - self._failing_since >= RELOAD_GRACE:
                    self._opened = None
        self.crawls.refresh()

    def _open(self, stamp: Stamp) -> None:
        engine = open_index(self.index)
        if stamp_of(self.index) != stamp:  # the open files may belong to two indexes
            raise IndexUnavailable(f"the index at {self.index} is being replaced")
        with engine.view() as view:
            view.counts()
            plain = None if self._ruled else view.plain()  # it applies no policy
        if self._opened is not None:
            self.reloads += 1
        self._opened = Opened(engine, plain)

    def watch(self) -> None:
        """Start the threads that refresh the index and store statistics."""
        works: list[tuple[Callable[[], None], float]] = [
            (self.refresh, RELOAD_EVERY),
            (self.crawls.counting.gather, GATHER_EVERY),
            (self.crawls.write_counts, COUNT_EVERY),
        ]
        for work, pause in works:
            name = work.__name__
            threading.Thread(target=_repeat, args=(work, pause), name=name, daemon=True).start()

    def close(self) -> None:
        """Store the last statistics; called when the process ends regularly."""
        try:
            self.crawls.write_counts()
        except DedupError as error:
            LOGGER.error("the last lookups are not counted: %s", error)


def _repeat(work: Callable[[], None], pause: float) -> None:
    """Call `work` every `pause` seconds, also after it has failed."""
    event = threading.Event()
    while not event.wait(pause):
        try:
            work()
        except DedupError:  # such as a full disk or a missing file: try again later
            pass
        except Exception:
            LOGGER.exception("%s failed", work.__name__)
