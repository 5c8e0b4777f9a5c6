"""The crawls beside the served index, as one worker process sees them.

The store of crawls is made when the first crawl begins: a server without crawls changes nothing in
the directory of the index. Another worker may make it, or the directory may be replaced, so
`refresh` checks for that.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs

from dedupindex.capture import Capture, OfCrawl
from dedupindex.crawls import counting
from dedupindex.crawls.combined_view import NO_CRAWLS, CrawlSnapshot, KnownCrawls
from dedupindex.crawls.counting import (
    FAILED,
    NO_ORIGINAL,
    CountedLookup,
    LookupOutcome,
    add_counted,
)
from dedupindex.crawls.crawl import Crawl, with_crawl_defaults
from dedupindex.crawls.statistics_keys import LONGEST
from dedupindex.crawls.store import Reading, Store, Writing
from dedupindex.crawls.stores import has_store, make_store
from dedupindex.errors import DedupError, IndexUnavailable, UnknownCrawl
from dedupindex.index.shared_filter import SharedFilter
from dedupindex.lookup.conditions import MAX_NAME_LENGTH
from dedupindex.lookup.decide import Answer, Query, Strategy
from dedupindex.lookup.policy import NO_POLICY, Policy
from dedupindex.runtime.files import stable_directory, unwritable
from server.config import RELOAD_GRACE
from server.responses import RequestError

_T = TypeVar("_T")
_UNAUTHORIZED = ("unauthorized", "forbidden")  # errors of requests that count for no crawl


class RequestCounting(counting.LookupCounter):
    """Counts the lookups of crawls that come as requests."""

    def __init__(self, read_crawls: Callable[[], None]) -> None:
        """`read_crawls` brings `ended` up to date; lookups that see the crawls do that anyway."""
        super().__init__()
        self._read_crawls = read_crawls

    def count_answer(self, query: Query, answer: Answer | None, taken: int) -> None:
        """Count a lookup that was answered in `taken` nanoseconds."""
        if answer is not None:
            self.count_original(query.crawl, answer.original)
        if query.crawl:
            self.count_lookup((*lookup_row(query, answer), taken))

    def count_original(self, crawl_name: str, original: Capture) -> None:
        """Count an original for the crawl that reported it, unless that is the one that asks."""
        if isinstance(original, OfCrawl) and original.crawl != crawl_name:
            self.count_other(original.crawl)

    def count_unknown(self, given: Mapping[str, bytes], taken: int) -> None:
        """Count a lookup of a digest whose algorithm no index holds."""
        name = given.get("crawl", b"").decode("utf-8", "replace")
        if name:
            self._read_crawls()
            strategy, url = Strategy.DIGEST_ANY.value, given.get("url", b"")
            self.count_lookup((name[:MAX_NAME_LENGTH], strategy, url, NO_ORIGINAL, -1, taken))

    def count_failure(self, error: Exception, query_string: str) -> None:
        """Count a lookup that failed, if it names its crawl."""
        if "crawl=" not in query_string:
            return
        if isinstance(error, RequestError) and error.reason in _UNAUTHORIZED:
            return
        given = parse_qs(query_string, errors="surrogateescape")
        for name in given.get("crawl", [])[:1]:
            self._read_crawls()
            self.count_lookup(failed_lookup(name, given.get("url", [""])[0]))


def lookup_row(query: Query, answer: Answer | None) -> tuple[str, str, bytes, LookupOutcome, int]:
    """Return the statistics row of an answer, without the time that it took."""
    outcome = LookupOutcome(mime=query.mime[:LONGEST]) if query.mime else NO_ORIGINAL
    if answer is not None:
        outcome = LookupOutcome.of_hit(answer.match.value, answer.original)
    return query.crawl, query.strategy.value, query.url, outcome, query.size


def failed_lookup(crawl: str, url: str | bytes = "") -> CountedLookup:
    """Return the statistics row of a lookup that was answered with an error."""
    return crawl[:MAX_NAME_LENGTH], "", url, FAILED, -1, 0


class OpenStore:
    """An open store of crawls, and its crawls as they were last read."""

    def __init__(self, index: Path, counting: RequestCounting, *, create: bool) -> None:
        self.store = make_store(index, create=create)
        self.writer = self.store.writer()
        self.known, self._counting = NO_CRAWLS, counting

    def known_in(self, reading: Reading) -> KnownCrawls:
        """Return the crawls of a state of the store, read again only if they have changed."""
        known = self.known
        if not known.is_current(reading):
            known = self._keep(known.refreshed(reading))
        return known

    def snapshot(self, reading: Reading) -> CrawlSnapshot:
        """Return a state of the store."""
        known = self.known
        snapshot = CrawlSnapshot(reading, known)
        if snapshot.known is not known:
            self._keep(snapshot.known)
        return snapshot

    def _keep(self, known: KnownCrawls) -> KnownCrawls:
        self.known, self._counting.ended = known, known.ended
        return known


class SnapshotContext:
    """A context manager of a `CrawlSnapshot`; a generator would cost a lookup 2 microseconds."""

    __slots__ = ("_opened", "_reading")

    def __init__(self, opened: OpenStore | None) -> None:
        self._opened = opened

    def __enter__(self) -> CrawlSnapshot:
        if self._opened is None:
            return CrawlSnapshot(None)
        self._reading = self._opened.store.reading()
        reading = self._reading.__enter__()
        try:
            return self._opened.snapshot(reading)
        except BaseException:
            self._reading.__exit__(*sys.exc_info())
            raise

    def __exit__(self, *error: Any) -> None:
        if self._opened is not None:
            self._reading.__exit__(*error)


def plain_covers(crawl: Crawl | None) -> int:
    """Return what a crawl's digests cover if the fast path may answer it, else -1.

    The full lookup reports an unknown crawl (None).
    """
    if crawl is None:
        return -1
    return -1 if crawl.strategy or crawl.policy.rules or crawl.namespace else crawl.covers


def _has_store(index: Path) -> tuple[bool, IndexUnavailable | None]:
    """Return whether a directory has a store of crawls, and the error if that cannot be known."""
    try:
        with stable_directory(index) as home:
            return has_store(home), None
    except (DedupError, OSError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        return False, IndexUnavailable(f"the index at {index} cannot be read: {why}")


class Crawls:
    """The crawls beside one index; thread-safe."""

    def __init__(
        self, index: Path, policy: Policy = NO_POLICY, shared: SharedFilter | None = None
    ) -> None:
        """`shared` gets what this process stores on a cluster."""
        self._index, self.policy, self._shared = index, policy, shared
        self._opened: OpenStore | None = None
        self._error: DedupError | None = None  # why the store cannot be opened
        self._away_since: float | None = None  # when the open store was first found missing
        self._busy = threading.Lock()
        self.counting = RequestCounting(self._read)
        self._counted = threading.Lock()  # so that `close` waits for a write in progress
        self.answering = False
        """Whether crawls may change a hit of the index; true when in doubt. Changes by other
        processes count from the next `refresh` on."""

    def refresh(self) -> None:
        """Open the store if it exists, and close one that was replaced.

        While a directory is replaced it is missing for a moment: the open store still answers, and
        acknowledges no write. After `RELOAD_GRACE` it may be outdated.
        """
        seen = self._opened
        # Before the lock, since a cluster may take its time.
        gone = seen is not None and not seen.store.in_place()
        with self._busy:
            opened = self._opened
            self.answering = opened is not None  # another process may have changed a crawl
            if opened is not None and not (opened is seen and gone):
                self._away_since = None
                return
            there, error = _has_store(self._index)
            if error is not None and opened is None:
                return  # nothing has changed
            away = not there and (
                error is not None or (opened is not None and opened.store.is_file)
            )
            if opened is not None and away and self._waits():
                return
            self._away_since, self._opened, self._error = None, None, error
            if opened is not None:
                # Other threads may still read: the last of them closes the file.
                threading.Thread(target=opened.writer.close, daemon=True).start()
            if there:
                self._open(create=False)

    def _waits(self) -> bool:
        """Return whether the store has been missing for less than `RELOAD_GRACE`."""
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
        return now - self._away_since < RELOAD_GRACE

    def _open(self, *, create: bool) -> None:
        try:
            opened = OpenStore(self._index, self.counting, create=create)
            if self._shared is not None:
                opened.store.share(self._shared.store)
            self._opened, self._error = opened, None
            self.answering = True
        except DedupError as error:
            self._error = error

    def _read(self) -> None:
        """Read the crawls again if they have changed and can be read."""
        with suppress(DedupError), self.snapshot(refresh=False):
            pass

    def open_store(self, *, refresh: bool = True) -> OpenStore | None:
        """Return the open store, None if there is none; raises why it cannot be opened.

        With `refresh`, a store that is not open is looked for.
        """
        if self._opened is None and refresh:
            self.refresh()
        opened = self._opened
        if opened is None and self._error is not None:
            raise type(self._error)(str(self._error))
        return opened

    def write(self, change: Callable[[Writing], _T], *, make: bool = False) -> _T:
        """Make a durable change; `make` creates the store if there is none.

        Raises `UnknownCrawl` without a store, `IndexUnavailable` if it cannot be written.
        """
        if self._opened is None:
            self.refresh()
        with self._busy:
            if self._opened is None and make:
                if not os.access(self._index, os.W_OK):
                    raise IndexUnavailable(unwritable(self._index))
                self._open(create=True)
        opened = self.open_store(refresh=False)
        if opened is None:
            raise UnknownCrawl("no crawl was begun here; begin one with POST /crawls")
        try:
            return opened.writer.write(change)
        finally:
            self.answering = True

    def write_counts(self) -> None:
        """Store the statistics since the last call; raises `IndexUnavailable`."""
        with self._counted:
            counted = self.counting.take()
            if not counted:
                return
            try:
                self.write(partial(add_counted, counted=counted))
            except UnknownCrawl:
                return  # there is none at all
            except BaseException:
                self.counting.give_back(counted)
                raise

    def store(self) -> Store | None:
        """Return the open store, None if there is none."""
        opened = self.open_store()
        return None if opened is None else opened.store

    def reading(self) -> AbstractContextManager[Reading | None]:
        """Open a consistent state of the crawls, None if there are none."""
        store = self.store()
        return nullcontext(None) if store is None else store.reading()

    @contextmanager
    def reading_for(self, name: str) -> Iterator[Reading]:
        """Open a consistent state of the crawls; raises `UnknownCrawl` if there are none."""
        with self.reading() as reading:
            if reading is None:
                raise UnknownCrawl(f"there is no crawl {name[:200]!r}")
            yield reading

    def snapshot(self, *, refresh: bool = True) -> SnapshotContext:
        """Open a consistent state of the crawls; crawls are read again only after a change.

        With `refresh`, a store that is not open is looked for.
        """
        return SnapshotContext(self.open_store(refresh=refresh))

    def crawl(self, name: str) -> Crawl | None:
        """Return a crawl by name, None if there is none."""
        with self.snapshot() as snapshot:
            return snapshot.crawl(name)

    def written(self, writing: Writing) -> CrawlSnapshot:
        """Return the crawls as a write transaction sees them.

        They are read again only if it has changed one, and not kept, as it may be rolled back.
        """
        opened = self._opened
        return CrawlSnapshot(writing, NO_CRAWLS if opened is None else opened.known)

    def crawl_in(self, writing: Writing, name: str) -> Crawl:
        """Return a crawl by name as a write transaction sees it; raises `UnknownCrawl`."""
        known = NO_CRAWLS if self._opened is None else self._opened.known
        crawl = known.by_name.get(name) if known.is_current(writing) else None
        return writing.crawl(name) if crawl is None else crawl

    def completed(self, query: Query, given: Mapping[str, bytes], crawls: CrawlSnapshot) -> Query:
        """Fill a query's missing options with those of its crawl, and add the server's policy."""
        crawl = crawls.crawl(query.crawl) if query.crawl else None
        return with_crawl_defaults(query, given, crawl, self.policy)

    def silent(self, prefix: bytes) -> bool:
        """Return whether no crawl has a digest."""
        opened = self._opened or self.open_store(refresh=False)
        if opened is None:
            return True
        with opened.store.reading() as reading:
            self.answering = opened.known_in(reading).answering
            return reading.has_none(prefix)
