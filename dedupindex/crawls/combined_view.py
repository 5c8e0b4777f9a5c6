"""Index and crawls as one view: what a lookup sees, by the crawl that asks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import groupby
from operator import itemgetter
from sys import getsizeof
from typing import NamedTuple

from xxhash import xxh3_64_digest

from dedupindex.cache import MEGABYTE, Cache
from dedupindex.capture import Capture, OfCrawl, Uncommitted
from dedupindex.crawls.crawl import Crawl, CrawlState, Visibility
from dedupindex.crawls.crawl_captures import CrawlCapture, at_url, from_key, with_prefix
from dedupindex.crawls.store import Reading
from dedupindex.digest import Digest
from dedupindex.errors import BadQuery, UnknownCrawl
from dedupindex.index.engine import Engine, Finder, View
from dedupindex.index.format.cells import (
    ALSO,
    Keys,
    canonical_prefix,
    digest_of_key,
    digest_prefix,
    urlkey_hash,
)
from dedupindex.index.format.url_index import URL
from dedupindex.index.identity import Settings
from dedupindex.lookup.decide import Query
from dedupindex.lookup.last_capture import prefix_of, require_visits
from dedupindex.timestamps import digits_of_date
from dedupindex.urlkey import urlkey

_CACHE_SIZE = 4 * MEGABYTE  # of what each asker sees
MAX_HIDDEN = 10_000  # captures of one digest that the asker may not see; then the search ends


VisibleCrawls = dict[int, Crawl]
"""The crawls whose captures an asker sees, by number."""


def visible_crawls(
    crawls: list[Crawl], asker: str = "", namespaces: tuple[str, ...] = ()
) -> VisibleCrawls:
    """Return the crawls whose captures an asker sees: committed ones, shared ones, and its own.

    Crawls in a namespace are seen by crawls of that namespace, and by those who name it.
    """
    named = {"", *namespaces, *(crawl.namespace for crawl in crawls if crawl.name == asker)}

    def sees(crawl: Crawl) -> bool:
        if crawl.state is CrawlState.OPEN:
            return crawl.seen is Visibility.ALL or crawl.name == asker
        return crawl.state is CrawlState.COMMITTED and not crawl.swept  # those have none left

    return {crawl.number: crawl for crawl in crawls if crawl.namespace in named and sees(crawl)}


class CombinedView(Finder):
    """The index and the visible crawls, as one `index.engine.Finder`."""

    def __init__(self, base: Finder, reading: Reading, visible: VisibleCrawls, keys: Keys) -> None:
        self._base, self._reading = base, reading.with_view(base)
        self._visible, self._keys = visible, keys

    def exact(self, digest: Digest, url: bytes) -> list[Capture]:
        own = self._matching(self._keys.key_of(digest, url), 0, lambda capture: capture.url == url)
        return self._base.exact(digest, url) + own

    def canonical(self, digest: Digest, key: bytes, limit: int) -> list[Capture]:
        prefix = canonical_prefix(digest, key)
        own = self._matching(prefix, limit, lambda capture: urlkey(capture.url) == key)
        return self._base.canonical(digest, key, limit) + own

    def any(self, digest: Digest, limit: int) -> list[Capture]:
        own = self._matching(digest_prefix(digest), limit, lambda capture: True)
        return self._base.any(digest, limit) + own

    def all_of(self, digest: Digest, most: int) -> list[Capture] | None:
        captures = self._base.all_of(digest, most)
        if captures is None:
            return None
        prefix = digest_prefix(digest)
        if self._reading.has_none(prefix):
            return captures
        for found in with_prefix(self._reading, prefix):
            most -= 1
            if most < 0:
                return None
            capture = self._if_visible(found)
            if capture is not None:
                captures.append(capture)
        return captures

    def denies(self, digest: Digest, capture: Capture) -> str:
        return self._base.denies(digest, capture)

    def at_url(self, url: bytes) -> Iterator[Capture]:
        yield from self._base.at_url(url)
        for _, capture in self._not_in_index(at_url(self._reading, self._keys.tail(url)[:URL])):
            if capture.url == url:
                yield capture

    def at_urlkey(self, key: bytes) -> Iterator[Capture]:
        yield from self._base.at_urlkey(key)
        for _, capture in self._not_in_index(at_url(self._reading, urlkey_hash(key))):
            if urlkey(capture.url) == key:
                yield capture

    def beside_index(self, begin: bytes) -> Iterator[tuple[bytes, Capture]]:
        """Yield the visible captures of crawls that the index itself does not hold.

        They come with their keys, in the order of these, from the key `begin` on.
        """
        held = from_key(self._reading, begin)
        return self._not_in_index(found for found in held if not found.entry[1] & ALSO)

    def _not_in_index(self, sought: Iterable[CrawlCapture]) -> Iterator[tuple[bytes, Capture]]:
        """Leave out what the index holds: merged captures are in both for a while."""
        last, urls, dates = b"", set[bytes](), set[tuple[bytes, bytes]]()
        for found in sought:
            capture = self._if_visible(found)
            if capture is None:
                continue
            if found.key != last:
                last, urls, dates = found.key, set(), set()
            if capture.url not in urls:
                urls.add(capture.url)
                held = self._base.exact(capture.digest, capture.url)
                dates |= {(merged.url, digits_of_date(merged.date)) for merged in held}
            date = capture.url, digits_of_date(capture.date)
            if date not in dates:
                dates.add(date)
                yield found.key, capture

    def _matching(
        self, prefix: bytes, limit: int, wanted: Callable[[Capture], bool]
    ) -> list[Capture]:
        """Return visible captures under a prefix; read at most `limit` of them, unless 0.

        Captures that the asker may not see do not count towards the limit, or they could crowd out
        what it may see. But so many of them under one digest must not delay a lookup.
        """
        captures: list[Capture] = []
        read = hidden = 0
        for found in with_prefix(self._reading, prefix):
            if limit and (read >= limit or hidden >= MAX_HIDDEN):
                break
            capture = self._if_visible(found)
            if capture is None:
                hidden += 1
                continue
            read += 1
            if wanted(capture):
                captures.append(capture)
        return captures

    def _if_visible(self, found: CrawlCapture) -> Capture | None:
        crawl = self._visible.get(found.crawl)
        if crawl is None:
            return None
        capture = found.capture(self._reading, crawl.name)
        if self._base.denies(digest_of_key(found.key), capture):
            return None
        return (OfCrawl if crawl.state is CrawlState.COMMITTED else Uncommitted)(*capture)


def visits_of(
    engine: Engine, view: View, crawls: CrawlSnapshot, settings: Settings, query: Query
) -> Iterator[bytes]:
    """Yield the bodies of visits of index and crawls that `last_capture` needs for a query.

    Raises `StrategyUnavailable`, `BadQuery` and `UnknownCrawl`.
    """
    require_visits(settings, query)
    prefix = prefix_of(settings, query)
    yield from engine.visits(view, prefix)
    yield from crawls.visits(prefix, query.crawl, query.namespaces)


class KnownCrawls:
    """The crawls of one version of a store, and who sees which of them; for any thread."""

    def __init__(self, origin: object, version: int, crawls: list[Crawl]) -> None:
        self._origin, self._version, self.crawls = origin, version, crawls
        self.by_name = {crawl.name: crawl for crawl in crawls}
        self.ended = frozenset(crawl.name for crawl in crawls if crawl.state is not CrawlState.OPEN)
        # Whether crawls have captures that everybody sees; the index may not hold them yet.
        self.answering = bool(visible_crawls(crawls))
        self._visible = Cache[tuple[str, tuple[str, ...]], VisibleCrawls](_CACHE_SIZE)
        self._namespaces = {crawl.namespace for crawl in crawls}

    def refreshed(self, reading: Reading | None) -> KnownCrawls:
        """Return the crawls of a state of the store, read again only if they have changed."""
        if reading is None:
            return NO_CRAWLS
        if self.is_current(reading):
            return self
        return KnownCrawls(reading.origin, reading.version(), list(reading.crawls()))

    def is_current(self, reading: Reading) -> bool:
        """Return whether these are the crawls of a state of the store."""
        return reading.origin is self._origin and reading.version() == self._version

    def visible(self, asker: str, namespaces: tuple[str, ...] = ()) -> VisibleCrawls:
        """Return the crawls that an asker sees; raises `UnknownCrawl`."""
        visible = self._visible.get((asker, namespaces))
        if visible is None:
            if asker and asker not in self.by_name:
                raise UnknownCrawl(f"there is no crawl {asker[:200]!r}; begin it with POST /crawls")
            visible = visible_crawls(self.crawls, asker, namespaces)
            if self._namespaces.issuperset(namespaces):
                self._visible.keep((asker, namespaces), visible, getsizeof(visible) + 200)
        return visible


NO_CRAWLS = KnownCrawls(None, -1, [])
_POSITION = re.compile(r"((?:[0-9a-f]{2})+)\.([0-9]{14})\.([0-9a-f]{16})")


class ListPosition(NamedTuple):
    """The place of a capture in a list of all, which depends on nothing but the capture.

    Positions compare as the captures come in the list. Only one capture of a URL and second is
    listed under a key.
    """

    key: bytes
    second: bytes  # of the date, 14 digits
    url_hash: bytes

    @classmethod
    def of(cls, key: bytes, capture: Capture) -> ListPosition:
        return cls(key, digits_of_date(capture.date), xxh3_64_digest(capture.url))

    @classmethod
    def parse(cls, text: str, lengths: Sequence[int]) -> ListPosition:
        """Return the position that text stands for; raises `BadQuery`.

        `lengths` are those of keys, by the algorithm's code, with which they begin.
        """
        match = _POSITION.fullmatch(text)
        if match is not None:
            key, url_hash = bytes.fromhex(match[1]), bytes.fromhex(match[3])
            if 0 < key[0] < len(lengths) and len(key) == lengths[key[0]]:
                return cls(key, match[2].encode(), url_hash)
        raise BadQuery(f"no list of captures has a position {text[:200]!r}")

    def __str__(self) -> str:
        return f"{self.key.hex()}.{self.second.decode()}.{self.url_hash.hex()}"


def _in_order(captures: Iterator[tuple[bytes, Capture]]) -> Iterator[tuple[bytes, Capture]]:
    """Sort captures that come in the order of keys by their `ListPosition`.

    Those of one key are held in memory: of each URL at most one of the index and one of each crawl.
    A key has several URLs if their hashes are equal, or, without URLs in keys, in crawls.
    """
    for _, same in groupby(captures, itemgetter(0)):
        yield from sorted(same, key=lambda found: ListPosition.of(*found))


class CrawlSnapshot:
    """One state of the crawls, for many lookups; with `reading` None there are none.

    The transaction of `reading` must begin before that of the index: what is merged and swept
    afterwards is still seen here. In the other order it could be missed in both.
    """

    def __init__(self, reading: Reading | None, known: KnownCrawls = NO_CRAWLS) -> None:
        """Take `known` from an earlier snapshot to read crawls again only if they changed."""
        self.reading, self.known = reading, known.refreshed(reading)

    def view_for(
        self, base: Finder, keys: Keys, asker: str, namespaces: tuple[str, ...] = ()
    ) -> Finder:
        """Return index and crawls as an asker sees them; raises `UnknownCrawl`."""
        visible = self.known.visible(asker, namespaces)
        return CombinedView(base, self.reading, visible, keys) if self.reading and visible else base

    def captures(
        self,
        view: View,
        keys: Keys,
        asker: str = "",
        namespaces: tuple[str, ...] = (),
        *,
        begin: bytes = b"",
    ) -> Iterator[tuple[bytes, Capture]]:
        """Return the originals that an asker sees, by the keys of their own digests.

        They come in the order of `ListPosition`, from the key `begin` on. Raises `UnknownCrawl`.
        """
        visible = self.known.visible(asker, namespaces)
        held = view.captures_by_key(begin)
        own = (found for found in held if digest_of_key(found[0]) == found[1].digest)
        if not self.reading or not visible:
            return _in_order(own)
        beside = CombinedView(view, self.reading, visible, keys).beside_index(begin)
        return _in_order(merge(own, beside, key=itemgetter(0)))

    def visits(
        self, prefix: bytes, asker: str = "", namespaces: tuple[str, ...] = ()
    ) -> Iterator[bytes]:
        """Yield the bodies of visits of crawls that an asker sees; raises `UnknownCrawl`."""
        for number in self.known.visible(asker, namespaces):
            if self.reading is not None:
                for _, body in self.reading.visits(number, prefix):
                    yield body

    def has_none(self, prefix: bytes, asker: str) -> bool:
        """Return whether no crawl has a digest; raises `UnknownCrawl`."""
        self.known.visible(asker)
        return self.reading is None or self.reading.has_none(prefix)

    def crawl(self, name: str) -> Crawl | None:
        """Return a crawl by name, None if there is none."""
        return self.known.by_name.get(name)
