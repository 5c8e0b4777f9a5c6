"""The served index, which other processes may replace at any time.

Several times a second a worker checks whether the files it has open are still current: a build may
have made a new generation, the directory may have been swapped, the keyspace on a cluster may have
been loaded anew. It then opens the new index. Requests in progress finish on the old one, whose
files are closed when the last of these requests ends.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from dedupindex.capture import Capture, Evidence
from dedupindex.errors import Damaged, DedupError, IndexUnavailable
from dedupindex.index import open_index
from dedupindex.index.address import is_cluster
from dedupindex.index.engine import Engine, Finder
from dedupindex.index.format.fast_answer import PlainAnswers
from dedupindex.index.format.tombstones import PURGED
from dedupindex.index.identity import Stamp, stamp_of
from dedupindex.index.shared_filter import SharedFilter
from dedupindex.indexer.admission import AdmissionFilter, admission_filter
from dedupindex.lookup.policy import NO_POLICY, Policy
from dedupindex.lookup.savings import IndexFacts, index_facts
from server.config import COUNT_EVERY, GATHER_EVERY, RELOAD_EVERY, RELOAD_GRACE
from server.logs import LOGGER
from server.worker_crawls import Crawls


class Opened(NamedTuple):
    """An open index."""

    engine: Engine
    plain: PlainAnswers | None  # the fast path, if the engine has one


class LiveIndex:
    """The open index; thread-safe, also while it is reloaded."""

    def __init__(
        self, index: Path, policy: Policy = NO_POLICY, shared: SharedFilter | None = None
    ) -> None:
        """`policy` applies to all lookups, after that of their crawl.

        `shared`: the filter of an index on a cluster, which another process makes.
        """
        self.index, self._ruled, self.shared = index, policy.concerns_lookups(), shared
        self.crawls = Crawls(index, policy, shared)
        self.reloads = 0
        self._opened: Opened | None = None
        self._error: DedupError = IndexUnavailable(f"the index at {index} is not open yet")
        self._stamp: Stamp | None = None
        self._failing_since: float | None = None
        self._logs = self._lost = False
        # Whether the open index is known to have purges. No engine is kept for that: LMDB opens a
        # file once, so an index that was moved away and back could not be opened again.
        self._has_purges = False
        self._busy = threading.Lock()

    def opened(self) -> Opened:
        """Return the open index; raises the error that keeps it from being open."""
        opened = self._opened
        if opened is None:
            raise type(self._error)(str(self._error))
        return opened

    def index_facts(self) -> IndexFacts:
        """Return what reports say of the index as it is now; raises as `opened` does."""
        self.refresh()  # the report of a crawl is often asked for just after its merge
        engine = self.opened().engine
        with engine.view() as view:
            return index_facts(engine.identity.settings, view.counts().captures)

    def refusal_reason(self, captures: Sequence[Capture]) -> AdmissionFilter:
        """Return a function from one of these reported captures to the reason of its refusal.

        It also refuses what was purged: the merge would refuse it without telling the crawl. Only
        an index with purges is searched for it, and none on a cluster, where that is a round trip.
        """
        engine = self.opened().engine
        admission = admission_filter(engine.identity.settings)
        if not self._has_purges:  # which are never forgotten, and there may be many to read
            if is_cluster(engine.identity.engine) or not engine.purges():
                return admission
            self._has_purges = True
        purged = set[tuple[object, ...]]()
        with engine.view() as view:
            for one in captures:
                with suppress(Damaged):  # which keeps nobody from reporting
                    if one.evidence != Evidence.REVISIT and view.denies(one.digest, one) == PURGED:
                        purged.add(_identity(one))
        if not purged:
            return admission
        return lambda one: admission(one) or (PURGED if _identity(one) in purged else "")

    def state(self, *, refresh: bool = True, filtered: bool = False) -> LiveState:
        """Open one state of index and crawls; `refresh` as in `Crawls.snapshot`.

        With `filtered`, what the shared filter lacks is not looked for on the cluster.
        """
        return LiveState(self, refresh=refresh, filtered=filtered)

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
                self._log_state()
            except DedupError as error:
                self._error = error.with_traceback(None)  # it would keep an engine open
                now = time.monotonic()
                self._failing_since = self._failing_since or now
                # While an index is swapped it is missing for a moment, and the open one is still
                # right. After `RELOAD_GRACE` it may not be.
                if now - self._failing_since >= RELOAD_GRACE:
                    self._opened = None
                    self._log_state()
        self.crawls.refresh()

    def _log_state(self) -> None:
        """Log that the index is lost, or open again, once and by one worker."""
        lost = self._opened is None
        if not self._logs or lost == self._lost:
            return
        self._lost = lost
        if lost:
            LOGGER.error("lookups are answered 503: %s", self._error)
        else:
            LOGGER.warning("the index is open again")

    def _open(self, stamp: Stamp) -> None:
        engine = open_index(self.index)
        if stamp_of(self.index) != stamp:  # the open files may belong to two indexes
            raise IndexUnavailable(f"the index at {self.index} is being replaced")
        with engine.view() as view:
            view.counts()
            plain = None if self._ruled else view.plain()  # it applies no policy
        if self._opened is not None:
            self.reloads += 1
        self._opened, self._has_purges = Opened(engine, plain), False

    def watch(self, store_counts: Callable[[], None], *, logs: bool = False) -> None:
        """Start the threads that refresh the index and store statistics, with `store_counts`.

        With `logs` it is logged when the index is lost, and when it is open again.
        """
        self._logs = logs
        works: dict[str, tuple[Callable[[], None], float]] = {
            "refresh": (self.refresh, RELOAD_EVERY),
            "gather": (self.crawls.counting.gather, GATHER_EVERY),
            "store_counts": (store_counts, COUNT_EVERY),
        }
        for name, work in works.items():
            threading.Thread(target=_repeat, args=(name, *work), name=name, daemon=True).start()

    def close(self) -> None:
        """Store the last statistics; called when the process ends regularly."""
        try:
            self.crawls.write_counts()
        except DedupError as error:
            LOGGER.error("the last lookups are not counted: %s", error)


class LiveState:
    """One state of the crawls and of the index, as a context manager.

    The transaction of the crawls begins first: `CrawlSnapshot` says why.
    """

    __slots__ = (
        *("_live", "_snapshot", "_view_context"),
        *("crawls", "opened", "settings", "shared", "view"),
    )

    def __init__(self, live: LiveIndex, *, refresh: bool = True, filtered: bool = False) -> None:
        self._live, self._snapshot = live, live.crawls.snapshot(refresh=refresh)
        self.shared = live.shared if filtered else None

    def __enter__(self) -> LiveState:
        self.crawls = self._snapshot.__enter__()
        try:
            self.opened = self._live.opened()
            engine = self.opened.engine
            self.settings = engine.identity.settings
            self._view_context = engine.view()
            self.view = self._view_context.__enter__()
            if self.shared is not None and not self.view.use_filter(self.shared):
                self.shared = None
        except BaseException:
            self._snapshot.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self._view_context.__exit__(*error)
        finally:
            self._snapshot.__exit__(*error)

    def seen_by(self, crawl: str, namespaces: tuple[str, ...] = ()) -> Finder:
        """Return index and crawls as one crawl sees them, "" for none; raises `UnknownCrawl`."""
        return self.crawls.view_for(self.view, self.settings.keys(), crawl, namespaces)


def _identity(capture: Capture) -> tuple[object, ...]:
    """Return what tells a reported capture apart, whatever its digest covers."""
    return capture.digest, capture.url, capture.date, capture.container


def _repeat(name: str, work: Callable[[], None], pause: float) -> None:
    """Call `work` every `pause` seconds, also after it has failed."""
    event = threading.Event()
    while not event.wait(pause):
        try:
            work()
        except DedupError:  # such as a full disk or a missing file: try again later
            pass
        except Exception:
            LOGGER.exception("%s failed", name)
