"""The library: what ``import dedupindex`` offers to those who open and ask an index.

An `Index` answers as ``bin/serve`` does: it sees the captures that crawls have committed, before
and after they are merged, and uses the code that the server and ``bin/lookup`` use.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from dedupindex.capture import Capture
from dedupindex.crawls.combined_view import NO_CRAWLS, CrawlSnapshot, KnownCrawls
from dedupindex.crawls.crawl import with_crawl_defaults
from dedupindex.crawls.store import Store
from dedupindex.crawls.stores import open_store
from dedupindex.digest import Digest
from dedupindex.errors import BadQuery, IndexUnavailable
from dedupindex.index import home_of, open_index, stats_of
from dedupindex.index.engine import Engine, Finder, View, in_place
from dedupindex.index.identity import Settings, Stamp, stamp_of
from dedupindex.lookup import decide
from dedupindex.lookup.decide import Answer, Decision, Match, Query, Strategy
from dedupindex.lookup.params import UnknownAlgorithm, of_json, query_of
from dedupindex.lookup.policy import NO_POLICY
from dedupindex.timestamps import sort_key

LOOK_EVERY = 0.25  # seconds between two looks at whether the index was replaced


class Seen(NamedTuple):
    """One state of index and crawls."""

    view: View
    settings: Settings
    snapshot: CrawlSnapshot

    def by(self, query: Query, given: Mapping[str, bytes]) -> tuple[Query, Finder]:
        """A query with the defaults of its crawl, and what that crawl sees."""
        query = with_crawl_defaults(query, given, self.snapshot.crawl(query.crawl), NO_POLICY)
        keys = self.settings.keys()
        return query, self.snapshot.view_for(self.view, keys, query.crawl, query.namespaces)


@contextmanager
def seen(engine: Engine, store: Store | None, known: KnownCrawls = NO_CRAWLS) -> Iterator[Seen]:
    """One state of crawls and index, read in the order that `CrawlSnapshot` explains."""
    with nullcontext(None) if store is None else store.reading() as reading:
        snapshot = CrawlSnapshot(reading, known)
        with engine.view() as view:
            yield Seen(view, engine.identity.settings, snapshot)


@dataclass(frozen=True)
class LookupResult:
    """What a lookup came to. True if there is an original, so ``if result:`` works.

    original  the capture that a revisit may refer to, or None
    match     how its URL relates to the one asked for: "exact_url", "canonical_url" or "digest";
              "" without an original
    skip      a policy says that nothing is to be written, not even a revisit
    policy    the word of the policy that refused an original, or ""
    reason    why no original can have the digest: "unknown_algorithm", "cut-digest", or ""
    """

    original: Capture | None
    match: str = ""
    skip: bool = False
    policy: str = ""
    reason: str = ""

    def __bool__(self) -> bool:
        return self.original is not None

    def as_json(self) -> dict[str, Any]:
        """Return the object that ``GET /lookup`` answers, see docs/http.md."""
        found = self.original
        answer = None if found is None else Answer(Match(self.match), found, self.skip)
        return decide.as_json(Decision(answer, self.policy, self.reason))


class Index:
    """An open index; `dedupindex.open` makes one. Threads may share it, processes may not.

    A process can have an index open once; close it before `dedupindex.build` adds to it. It is a
    context manager. What others change meanwhile is seen within a quarter of a second, also when
    the whole index is replaced. Each method raises `IndexUnavailable` or `Damaged` when the index
    cannot be read: never take that for "no duplicate".
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._busy = threading.Lock()
        self._engine: Engine | None = None
        self._store: Store | None = None
        self._known = NO_CRAWLS
        self._stamp: Stamp | None = None
        self._looked = 0.0
        self._closed = False
        self._current()

    def lookup(
        self,
        digest: str | Digest,
        url: str | bytes | None = None,
        strategy: str | Strategy | None = None,
        **conditions: str | int | bool | None,
    ) -> LookupResult:
        """Return the original of a payload digest, as ``GET /lookup`` of the server does.

        digest      labelled, in hex, base32 or base64: "sha1:FKXG…"; or a `Digest`
        url         of the capture that asks; text is encoded as UTF-8, bytes are taken as they are
        strategy    DIGEST_ANY (any original with the digest, one of the same URL first), EXACT_URL
                    or CANONICAL_URL; by default that of the crawl, or DIGEST_ANY
        conditions  the other parameters of ``GET /lookup``: crawl, namespace, max_age (seconds, or
                    "30d"), as_of, min_size (bytes), mime, covers, bridge, not_record, not_date, …

        Of several originals the earliest is returned, or the latest if the index keeps those.

        Raises `BadDigest`, `BadQuery` for a condition that cannot be read, `UnknownCrawl`, and
        `StrategyUnavailable` if the index was built without what the strategy needs.

        >>> with dedupindex.open("my-index") as index:
        ...     result = index.lookup("sha1:G7HRM7BGOKSKMSXZAHMUQTTV53QOFSMK", "http://b.example/")
        >>> result.match, result.original.url, result.original.date
        ('digest', b'http://example.com/', b'2017-03-06T04:02:06Z')
        """
        if conditions.pop("explain", None):
            raise BadQuery("explain is for bin/lookup and the server")
        named = strategy.value if isinstance(strategy, Strategy) else strategy
        given = of_json({**conditions, "digest": str(digest), "strategy": named})
        given["url"] = _bytes(url or b"")
        try:
            query, _ = query_of(given)
        except UnknownAlgorithm:
            return LookupResult(None, reason="unknown_algorithm")
        with self._seen() as state:
            query, view = state.by(query, given)
            found, policy, reason = decide.decide(view, state.settings, query)
        if found is None:
            return LookupResult(None, policy=policy, reason=reason)
        return LookupResult(found.original, found.match.value, found.skip)

    def captures(
        self,
        url: str | bytes | None = None,
        prefix: str | bytes | None = None,
        *,
        crawl: str = "",
        namespaces: Iterable[str] = (),
    ) -> Iterator[Capture]:
        """Yield the originals of one URL, of all URLs that begin with `prefix`, or all originals.

        url         exactly this URL, byte for byte; its captures come in the order of their dates
        prefix      URLs that begin so, byte for byte; in no particular order
        crawl       a crawl that goes on: what it has reported is seen, too
        namespaces  whose crawls are seen, too

        All of the index is read, unless it was built with ``by_url`` and `url` is given; of a URL
        with more than 50,000 captures it then finds 50,000. A transaction stays open until the
        iterator ends: do not leave it standing.

        Raises `BadQuery` if `url` and `prefix` are given, `UnknownCrawl`.

        >>> with dedupindex.open("my-index") as index:
        ...     for capture in index.captures(prefix="http://example."):
        ...         print(capture.date.decode(), capture.url.decode(), capture.digest)
        2017-03-06T04:02:06Z http://example.com/ sha1:G7HRM7BGOKSKMSXZAHMUQTTV53QOFSMK
        """
        if url is not None and prefix is not None:
            raise BadQuery("give url or prefix, not both")
        exact, start = _bytes(url or b""), _bytes(prefix or b"")
        asked = crawl, tuple(sorted(namespaces))
        if url is None:
            return self._captures(start, False, asked)
        return iter(sorted(self._captures(exact, True, asked), key=lambda one: sort_key(one.date)))

    def _captures(
        self, wanted: bytes, whole: bool, asked: tuple[str, tuple[str, ...]]
    ) -> Iterator[Capture]:
        with self._seen() as state:
            keys = state.settings.keys()
            if whole and state.settings.by_url:
                yield from state.snapshot.view_for(state.view, keys, *asked).at_url(wanted)
                return
            for capture in state.snapshot.captures(state.view, keys, *asked):
                if capture.url == wanted if whole else capture.url.startswith(wanted):
                    yield capture

    def stats(self) -> dict[str, Any]:
        """Return what ``GET /stats`` of the server answers.

        captures, digests, containers  numbers of what the index itself holds; what crawls have
                                       committed is counted when it is merged
        engine, format, generation, canonicaliser, settings  how it was built

        >>> with dedupindex.open("my-index") as index:
        ...     index.stats()["captures"]
        1
        """
        return stats_of(self._current()[0])

    @contextmanager
    def _seen(self) -> Iterator[Seen]:
        engine, store = self._current()
        with seen(engine, store, self._known) as state:
            self._known = state.snapshot.known
            yield state

    def _current(self) -> tuple[Engine, Store | None]:
        """The index and the crawls that stand there now; those that were replaced are let go."""
        with self._busy:
            if self._closed:
                raise IndexUnavailable(f"the index at {self.path} was closed")
            if self._engine is not None and time.monotonic() - self._looked < LOOK_EVERY:
                return self._engine, self._store
            stamp = stamp_of(self.path)
            if self._engine is None or stamp != self._stamp or not in_place(self._engine):
                self._engine = open_index(self.path)
                if stamp_of(self.path) != stamp:
                    self._engine = None
                    raise IndexUnavailable(f"the index at {self.path} is being replaced")
            if self._store is None or not self._store.in_place():
                self._store = None
                self._store = open_store(self.path)
            self._stamp, self._looked = stamp, time.monotonic()
            return self._engine, self._store

    def close(self) -> None:
        """Let go of the files; the index cannot be asked any more."""
        with self._busy:
            self._closed = True
            for one in (self._store, self._engine):
                if one is not None:
                    one.close()
            self._store = self._engine = None

    def __enter__(self) -> Index:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
