"""`dedupindex.open`: an open index, which answers as ``bin/serve`` does.

It sees the captures of committed crawls, before and after they are merged.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from weakref import WeakValueDictionary

from dedupindex.capture import Capture
from dedupindex.crawls.combined_view import (
    NO_CRAWLS,
    CrawlSnapshot,
    KnownCrawls,
    ListPosition,
    visits_of,
)
from dedupindex.crawls.crawl import with_crawl_defaults
from dedupindex.crawls.store import Store
from dedupindex.crawls.stores import open_store
from dedupindex.digest import Digest
from dedupindex.errors import BadQuery, IndexUnavailable
from dedupindex.index import home_of, open_index, stats_of
from dedupindex.index.engine import Engine, Finder, View
from dedupindex.index.format.visits import Visit
from dedupindex.index.identity import Settings, Stamp, stamp_of
from dedupindex.lookup import decide
from dedupindex.lookup.decide import Answer, Decision, Match, Query, Strategy
from dedupindex.lookup.last_capture import LastCapture, last_capture
from dedupindex.lookup.params import (
    NO_DIGEST,
    UnknownAlgorithm,
    params_from_json,
    parse_last_query,
    parse_query,
)
from dedupindex.lookup.policy import NO_POLICY
from dedupindex.timestamps import digits_of_date, sort_key

MOST_OF_DIGEST = 50_000  # captures of a digest that are listed
_BEGINNING = ListPosition(b"", b"", b"")
LOOK_EVERY = 0.25  # seconds between two looks at whether the index was replaced


class IndexSnapshot(NamedTuple):
    """One state of the index and its crawls."""

    view: View
    settings: Settings
    snapshot: CrawlSnapshot
    engine: Engine

    def for_query(self, query: Query, given: Mapping[str, bytes]) -> tuple[Query, Finder]:
        """Return a query with the defaults of its crawl, and the view that the crawl has."""
        query = with_crawl_defaults(query, given, self.snapshot.crawl(query.crawl), NO_POLICY)
        keys = self.settings.keys()
        return query, self.snapshot.view_for(self.view, keys, query.crawl, query.namespaces)

    def visits(self, url: bytes) -> Iterator[Visit]:
        """Yield what is kept of the visits of an exact URL; raises as `visits_of`."""
        query = Query(NO_DIGEST, url, Strategy.EXACT_URL)
        for body in visits_of(self.engine, self.view, self.snapshot, self.settings, query):
            visit = Visit.parse(body)
            if visit.url == url:
                yield visit

    def last_capture(self, given: Mapping[str, bytes]) -> LastCapture | None:
        """Return the last capture of a URL; raises as `visits_of` and `decide.decide`."""
        query, view = self.for_query(parse_last_query(given), {"strategy": b"its own"})
        bodies = visits_of(self.engine, self.view, self.snapshot, self.settings, query)
        return last_capture(bodies, view, self.settings, query)


@contextmanager
def index_snapshot(
    engine: Engine, store: Store | None, known: KnownCrawls = NO_CRAWLS
) -> Iterator[IndexSnapshot]:
    """Open one state of crawls and index, in the order that `CrawlSnapshot` requires."""
    with nullcontext(None) if store is None else store.reading() as reading:
        snapshot = CrawlSnapshot(reading, known)
        with engine.view() as view:
            yield IndexSnapshot(view, engine.identity.settings, snapshot, engine)


@contextmanager
def open_snapshot(index: Path) -> Iterator[IndexSnapshot]:
    """Open an index and its crawls for one consistent state of both."""
    with ExitStack() as stack:
        store = open_store(index)  # before the index, as `index_snapshot` does
        if store is not None:
            stack.enter_context(closing(store))
        engine = stack.enter_context(closing(open_index(index)))
        yield stack.enter_context(index_snapshot(engine, store))


@dataclass(frozen=True)
class LookupResult:
    """The result of a lookup. It is true if there is an original.

    original  the capture that a revisit may refer to, or None
    match     "exact_url", "canonical_url" or "digest": how the URL of the original relates to that
              of the lookup; "" without an original
    skip      True if a policy asks the crawler to write nothing, not even a revisit
    policy    the word of the policy that refused an original, or ""
    reason    "unknown_algorithm" or "cut-digest" if no original can have the digest, or ""

    >>> with dedupindex.open("my-index") as index:
    ...     result = index.lookup("sha1:G7HRM7BGOKSKMSXZAHMUQTTV53QOFSMK", "http://example.com/")
    >>> bool(result), result.match, result.original.url
    (True, 'exact_url', b'http://example.com/')
    """

    original: Capture | None
    match: str = ""
    skip: bool = False
    policy: str = ""
    reason: str = ""

    def __bool__(self) -> bool:
        return self.original is not None

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object that ``GET /lookup`` of the server answers.

        >>> with dedupindex.open("my-index") as index:
        ...     index.lookup("sha1:FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN").as_json()
        {'duplicate': False}
        """
        found = self.original
        answer = None if found is None else Answer(Match(self.match), found, self.skip)
        return decide.as_json(Decision(answer, self.policy, self.reason))


class _Files:
    """The open files of an index, shared in this process, as LMDB can open a file only once."""

    _shared: ClassVar[WeakValueDictionary[str, _Files]] = WeakValueDictionary()
    _lock: ClassVar[threading.Lock] = threading.Lock()  # acquired before `_busy`

    def __init__(self, path: Path) -> None:
        self.known = NO_CRAWLS
        self._path, self._users = path, 0
        self._busy = threading.Lock()
        self._engine: Engine | None = None
        self._store: Store | None = None
        self._stamp: Stamp | None = None
        self._looked = 0.0

    @classmethod
    def open(cls, path: Path) -> _Files:
        """Return the files of a path, and open them unless they are open."""
        key = os.path.abspath(path)
        with cls._lock:
            files = cls._shared.get(key) or cls(Path(key))
            files._users += 1
            try:
                files.current()
            except BaseException:
                files._users -= 1
                raise
            cls._shared[key] = files
            return files

    @classmethod
    def forget(cls) -> None:
        """Share no files with the parent process, as LMDB does not allow it."""
        cls._shared, cls._lock = WeakValueDictionary(), threading.Lock()

    def current(self) -> tuple[Engine, Store | None]:
        """Return index and crawls; open them again if they were replaced."""
        with self._busy:
            if not self._users:
                raise IndexUnavailable(f"the index at {self._path} was closed")
            if self._engine is not None and time.monotonic() - self._looked < LOOK_EVERY:
                return self._engine, self._store
            stamp = stamp_of(self._path)
            if self._engine is None or stamp != self._stamp or not self._engine.is_current():
                self._engine = open_index(self._path)
                if stamp_of(self._path) != stamp:
                    self._engine = None
                    raise IndexUnavailable(f"the index at {self._path} is being replaced")
            if self._store is None or not self._store.in_place():
                self._store = None
                self._store = open_store(self._path)
            self._stamp, self._looked = stamp, time.monotonic()
            return self._engine, self._store

    def close(self) -> None:
        """Close the files when nobody uses them any more."""
        with self._lock, self._busy:
            self._users -= 1
            if self._users:
                return
            if self._shared.get(str(self._path)) is self:
                del self._shared[str(self._path)]
            for opened in (self._store, self._engine):
                if opened is not None:
                    opened.close()
            self._store = self._engine = None


os.register_at_fork(after_in_child=_Files.forget)


class Index:
    """An open index, made by `dedupindex.open`.

    It is a context manager. Threads may share it. Processes may not: open it after a fork, not
    before. An index may be opened several times in a process. Close it everywhere in the process
    before `dedupindex.build` adds to it. Changes by other processes are seen within a quarter of a
    second, also when the whole index is replaced.

    Each method raises `IndexUnavailable` or `Damaged` if the index cannot be read. Never treat this
    as "no duplicate".

    >>> with dedupindex.open("my-index") as index:
    ...     bool(index.lookup("sha1:FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN", "http://new.example/"))
    False
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._closed = False
        self._files = _Files.open(path)

    def lookup(
        self,
        digest: str | Digest,
        url: str | bytes | None = None,
        strategy: str | Strategy | None = None,
        **conditions: str | int | bool | None,
    ) -> LookupResult:
        """Look an original up by payload digest, as ``GET /lookup`` of the server does.

        digest      a `Digest`, or text with a label, in hex, base32 or base64: "sha1:FKXG…"
        url         of the capture that may be a duplicate; text is encoded as UTF-8
        strategy    DIGEST_ANY (any original with the digest, preferably of the same URL), EXACT_URL
                    or CANONICAL_URL; by default that of the crawl, or DIGEST_ANY
        conditions  the other parameters of ``GET /lookup``: crawl, namespace, max_age (seconds, or
                    "30d"), as_of, min_size (bytes), mime, covers, bridge, not_record, not_date, …

        Of several originals the earliest is returned, or the latest if the index keeps those.

        Raises `BadDigest`; `BadQuery` for an invalid condition; `UnknownCrawl`; and
        `StrategyUnavailable` if the index was built without the URLs that the strategy needs.

        >>> with dedupindex.open("my-index") as index:
        ...     result = index.lookup("sha1:G7HRM7BGOKSKMSXZAHMUQTTV53QOFSMK", "http://b.example/")
        >>> result.match, result.original.url, result.original.date
        ('digest', b'http://example.com/', b'2017-03-06T04:02:06Z')
        """
        if conditions.pop("explain", None):
            raise BadQuery("explain is for bin/lookup and the server")
        named = strategy.value if isinstance(strategy, Strategy) else strategy
        given = params_from_json({**conditions, "digest": str(digest), "strategy": named})
        given["url"] = _bytes(url or b"")
        try:
            query = parse_query(given).query
        except UnknownAlgorithm:
            return LookupResult(None, reason="unknown_algorithm")
        with self._state() as state:
            query, view = state.for_query(query, given)
            found, policy, reason = decide.decide(view, state.settings, query)
        if found is None:
            return LookupResult(None, policy=policy, reason=reason)
        return LookupResult(found.original, found.match.value, found.skip)

    def captures(
        self,
        url: str | bytes | None = None,
        prefix: str | bytes | None = None,
        *,
        digest: Digest | str | None = None,
        crawl: str = "",
        namespaces: Iterable[str] = (),
    ) -> Iterator[Capture]:
        """Yield the originals of one URL, all URLs with a prefix or one digest, or all originals.

        url         exactly this URL, byte for byte; its captures come in the order of dates
        prefix      of URLs, byte for byte; in no particular order
        digest      of the payload, as for `lookup`; its captures come in the order of dates, too
        crawl       include what this open crawl has reported
        namespaces  include the crawls of these namespaces

        The whole index is read, unless `digest` is given, or it was built with ``by_url`` and `url`
        is: then at most 50,000 captures are found. A transaction is open until the iterator ends.

        Raises `BadQuery` if two of `url`, `prefix` and `digest` are given; `BadDigest`;
        `UnknownCrawl`.

        >>> with dedupindex.open("my-index") as index:
        ...     for capture in index.captures(prefix="http://example."):
        ...         print(capture.date.decode(), capture.url.decode(), capture.digest)
        2017-03-06T04:02:06Z http://example.com/ sha1:G7HRM7BGOKSKMSXZAHMUQTTV53QOFSMK
        """
        if sum(given is not None for given in (url, prefix, digest)) > 1:
            raise BadQuery("give one of url, prefix and digest")
        asker = crawl, tuple(sorted(namespaces))
        if digest is not None:
            digest = Digest.parse(digest) if isinstance(digest, str) else digest
            with self._state() as state:
                view = state.snapshot.view_for(state.view, state.settings.keys(), *asker)
                same = view.any(digest, MOST_OF_DIGEST)
            # What a crawl has reported is in the index as well for a while, after it was merged.
            once = {(one.url, digits_of_date(one.date)): one for one in reversed(same)}
            return iter(sorted(once.values(), key=lambda capture: sort_key(capture.date)))
        if url is not None:
            found = self._captures(_bytes(url), asker)
            return iter(sorted(found, key=lambda capture: sort_key(capture.date)))
        start = _bytes(prefix or b"")
        return (capture for capture in self._captures(None, asker) if capture.url.startswith(start))

    def _captures(self, url: bytes | None, asker: tuple[str, tuple[str, ...]]) -> Iterator[Capture]:
        with self._state() as state:
            keys = state.settings.keys()
            if url is not None and state.settings.by_url:
                yield from state.snapshot.view_for(state.view, keys, *asker).at_url(url)
                return
            for _, capture in state.snapshot.captures(state.view, keys, *asker):
                if url is None or capture.url == url:
                    yield capture

    def captures_after(
        self, position: str = "", *, crawl: str = "", namespaces: Iterable[str] = ()
    ) -> Iterator[tuple[str, Capture]]:
        """Yield all originals after a position in their list, each with its own position.

        position    of the last capture that is known, "" for the beginning of the list

        The list is in the order of keys, which begin with the digest, then of seconds, then of
        hashes of URLs. A position names all three, so it stays valid when captures are added,
        merged or purged, also its own: those that follow it are yielded, and those that were added
        before it are not. An index in files is read from there on, a cluster as a whole. `crawl`
        and `namespaces` are those of `captures`. A transaction is open until the iterator ends.

        The first `next` raises `BadQuery` for text that is no position, and `UnknownCrawl`.

        >>> with dedupindex.open("my-index") as index:
        ...     for position, capture in index.captures_after():
        ...         print(capture.url.decode(), list(index.captures_after(position)))
        http://example.com/ []
        """
        with self._state() as state:
            keys = state.settings.keys()
            start = ListPosition.parse(position, keys.lengths()) if position else _BEGINNING
            asker = crawl, tuple(sorted(namespaces))
            captures = state.snapshot.captures(state.view, keys, *asker, begin=start.key)
            for key, capture in captures:
                place = ListPosition.of(key, capture)
                if place > start:
                    yield str(place), capture

    def stats(self) -> dict[str, Any]:
        """Return the numbers and settings of the index, as ``GET /stats`` of the server does.

        captures, digests, containers  counts of the index itself; those of committed crawls are
                                       added when the crawls are merged
        engine, format, generation, canonicaliser, settings  how it was built

        >>> with dedupindex.open("my-index") as index:
        ...     index.stats()["captures"]
        1
        """
        return stats_of(self._current()[0])

    @contextmanager
    def _state(self) -> Iterator[IndexSnapshot]:
        engine, store = self._current()
        with index_snapshot(engine, store, self._files.known) as state:
            self._files.known = state.snapshot.known
            yield state

    def _current(self) -> tuple[Engine, Store | None]:
        if self._closed:
            raise IndexUnavailable(f"the index at {self.path} was closed")
        return self._files.current()

    def close(self) -> None:
        """Close the index; every method raises `IndexUnavailable` afterwards.

        >>> index = dedupindex.open("my-index")
        >>> index.close()
        """
        if not self._closed:
            self._closed = True
            self._files.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _bytes(url: str | bytes) -> bytes:
    return url.encode("utf-8", "surrogateescape") if isinstance(url, str) else url


def open(index: str | Path) -> Index:
    """Open an index to read: a directory, or ``cassandra://host,host/keyspace``.

    Raises `IndexUnavailable` if there is none, `FormatFromFuture` or `FormatFromPast` if another
    version wrote it, `SettingsConflict` if this version makes other canonical URLs, and `BadInput`
    for an address that cannot be read.

    >>> with dedupindex.open("my-index") as index:
    ...     bool(index.lookup("sha1:FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN", "http://new.example/"))
    False
    """
    return Index(home_of(index))
