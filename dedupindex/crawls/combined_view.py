"""Index and crawls seen as one: what a lookup of a crawl, or of nobody in particular, may see."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from sys import getsizeof

from dedupindex.cache import MEGABYTE, Cache
from dedupindex.capture import Capture, OfCrawl, Uncommitted
from dedupindex.crawls.crawl import Crawl, CrawlState, Visibility
from dedupindex.crawls.crawl_captures import CrawlCapture, at_url, under
from dedupindex.crawls.store import Reading
from dedupindex.digest import Digest
from dedupindex.errors import UnknownCrawl
from dedupindex.index.engine import Finder, View
from dedupindex.index.format.cells import (
    ALSO,
    Keys,
    canonical_prefix,
    digest_of_key,
    digest_prefix,
    urlkey_hash,
)
from dedupindex.index.format.url_index import URL
from dedupindex.urlkey import urlkey

_ASKERS_KEPT = 4 * MEGABYTE  # of memory, for what each asker sees
PASSED = 10_000  # captures that the asker does not see, under one digest; beyond, no more is sought


class Visible:
    """Which crawls' captures an asker sees: all committed ones, shared ones, and its own.

    Of crawls in a namespace only if it is that of the asker, or named by it.
    """

    def __init__(
        self, crawls: list[Crawl], asker: str = "", namespaces: tuple[str, ...] = ()
    ) -> None:
        named = {"", *namespaces, *(one.namespace for one in crawls if one.name == asker)}
        self._crawls = {
            crawl.number: crawl
            for crawl in crawls
            if crawl.namespace in named
            and (
                (crawl.state is CrawlState.COMMITTED and not crawl.swept)  # those have nothing here
                or (
                    crawl.state is CrawlState.OPEN
                    and (crawl.seen is Visibility.ALL or crawl.name == asker)
                )
            )
        }

    def size(self) -> int:
        """Bytes of memory that it takes, beside the crawls."""
        return getsizeof(self._crawls) + 200

    def get(self, number: int) -> Crawl | None:
        """The crawl of a number, None if the asker does not see it."""
        return self._crawls.get(number)

    def __bool__(self) -> bool:
        return bool(self._crawls)


class Both:
    """The index and the crawls that are visible; see `protocol.Finder`."""

    def __init__(self, base: Finder, reading: Reading, visible: Visible, keys: Keys) -> None:
        self._base, self._reading = base, reading.along(base)
        self._visible, self._keys = visible, keys

    def exact(self, digest: Digest, url: bytes) -> list[Capture]:
        own = self._found(self._keys.of(digest, url), 0, lambda capture: capture.url == url)
        return self._base.exact(digest, url) + own

    def canonical(self, digest: Digest, key: bytes, limit: int) -> list[Capture]:
        prefix = canonical_prefix(digest, key)
        own = self._found(prefix, limit, lambda capture: urlkey(capture.url) == key)
        return self._base.canonical(digest, key, limit) + own

    def any(self, digest: Digest, limit: int) -> list[Capture]:
        own = self._found(digest_prefix(digest), limit, lambda capture: True)
        return self._base.any(digest, limit) + own

    def denies(self, digest: Digest, capture: Capture) -> bool:
        return self._base.denies(digest, capture)

    def at_url(self, url: bytes) -> Iterator[Capture]:
        yield from self._base.at_url(url)
        for capture in self._listed(at_url(self._reading, self._keys.tail(url)[:URL])):
            if capture.url == url:
                yield capture

    def at_urlkey(self, key: bytes) -> Iterator[Capture]:
        yield from self._base.at_urlkey(key)
        for capture in self._listed(at_url(self._reading, urlkey_hash(key))):
            if urlkey(capture.url) == key:
                yield capture

    def beside(self) -> Iterator[Capture]:
        """All captures of crawls that the asker sees, and the index does not hold itself."""
        held = under(self._reading, b"")
        return self._listed(found for found in held if not found.entry[1] & ALSO)

    def _listed(self, sought: Iterable[CrawlCapture]) -> Iterator[Capture]:
        """What the index does not list itself: merged captures are in both for a while."""
        last, dates = b"", set[tuple[bytes, bytes]]()
        for found in sought:
            capture = self._seen(found)
            if capture is None:
                continue
            if found.key != last:
                last = found.key
                held = self._base.exact(capture.digest, capture.url)
                dates = {(one.url, one.date) for one in held}
            if (capture.url, capture.date) not in dates:
                dates.add((capture.url, capture.date))
                yield capture

    def _found(self, prefix: bytes, limit: int, wanted: Callable[[Capture], bool]) -> list[Capture]:
        """Captures that the asker sees under a prefix; looks at no more than `limit` if not 0.

        What others hide there does not count, or it could crowd out what the asker sees; but a
        digest of which they have very many must not hold a lookup up.
        """
        captures: list[Capture] = []
        looked = passed = 0
        for found in under(self._reading, prefix):
            if limit and (looked >= limit or passed >= PASSED):
                break
            capture = self._seen(found)
            if capture is None:
                passed += 1
                continue
            looked += 1
            if wanted(capture):
                captures.append(capture)
        return captures

    def _seen(self, found: CrawlCapture) -> Capture | None:
        crawl = self._visible.get(found.crawl)
        if crawl is None:
            return None
        capture = found.capture(self._reading, crawl.name)
        if self._base.denies(digest_of_key(found.key), capture):
            return None
        return (OfCrawl if crawl.state is CrawlState.COMMITTED else Uncommitted)(*capture)


class KnownCrawls:
    """The crawls of one version of one store, and who sees what of them.

    It keeps no transaction and no file open, and may be used by any number of threads.
    """

    def __init__(self, origin: object, version: int, crawls: list[Crawl]) -> None:
        self._origin, self._version, self.crawls = origin, version, crawls
        self.by_name = {crawl.name: crawl for crawl in crawls}
        # Whether everybody sees captures of crawls: the index may not hold them yet.
        self.answering = bool(Visible(crawls))
        self._visible = Cache[tuple[str, tuple[str, ...]], Visible](_ASKERS_KEPT)
        self._namespaces = {crawl.namespace for crawl in crawls}

    def at(self, reading: Reading | None) -> KnownCrawls:
        """What is known in a state of the crawls, read anew only if it has changed."""
        if reading is None:
            return NOTHING
        if self.of(reading):
            return self
        return KnownCrawls(reading.origin, reading.version(), list(reading.crawls()))

    def of(self, reading: Reading) -> bool:
        """Whether a transaction sees the crawls so."""
        return reading.origin is self._origin and reading.version() == self._version

    def visible(self, asker: str, namespaces: tuple[str, ...] = ()) -> Visible:
        """What an asker sees; raises `UnknownCrawl`."""
        visible = self._visible.get((asker, namespaces))
        if visible is None:
            if asker and asker not in self.by_name:
                raise UnknownCrawl(f"there is no crawl {asker[:200]!r}; begin it with POST /crawls")
            visible = Visible(self.crawls, asker, namespaces)
            if self._namespaces.issuperset(namespaces):
                self._visible.keep((asker, namespaces), visible, visible.size())
        return visible


NOTHING = KnownCrawls(None, -1, [])


class CrawlSnapshot:
    """One state of the crawls, for many lookups; without a `reading` there are none.

    Its transaction must begin before that of the index: what is merged and taken away after that
    is still seen here, while in the other order it could be missed in both.
    """

    def __init__(self, reading: Reading | None, known: KnownCrawls = NOTHING) -> None:
        """`known`: that of an earlier one, so that crawls are read again only if they changed."""
        self._reading, self.known = reading, known.at(reading)

    def seen(
        self, base: Finder, keys: Keys, asker: str, namespaces: tuple[str, ...] = ()
    ) -> Finder:
        """Index and crawls as an asker sees them; raises `UnknownCrawl`."""
        visible = self.known.visible(asker, namespaces)
        return Both(base, self._reading, visible, keys) if self._reading and visible else base

    def captures(
        self, view: View, keys: Keys, asker: str = "", namespaces: tuple[str, ...] = ()
    ) -> Iterator[Capture]:
        """All originals that an asker sees, under their own digests; raises `UnknownCrawl`."""
        both = self.seen(view, keys, asker, namespaces)
        for digest, capture in view.captures():
            if digest == capture.digest:
                yield capture
        if isinstance(both, Both):
            yield from both.beside()

    def silent(self, prefix: bytes, asker: str) -> bool:
        """Whether crawls have nothing to say of a digest; raises `UnknownCrawl`."""
        self.known.visible(asker)
        return self._reading is None or self._reading.silent(prefix)

    def crawl(self, name: str) -> Crawl | None:
        """The crawl of a name, None if there is none."""
        return self.known.by_name.get(name)
