"""``GET /cdx``: originals by URL, for clients of CDX servers.

These clients ask by URL only, before or after a fetch, and use any capture in the list as the
original of a revisit. So only possible originals are listed. A miss is an empty 200: some clients
take any other status for an outage, and wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from heapq import nlargest, nsmallest
from time import perf_counter_ns, time
from typing import Any

from werkzeug.http import parse_cookie

from dedupindex.capture import Capture, Covers
from dedupindex.crawls.counting import CountedHit, Other, Outcome
from dedupindex.digest import EMPTY, is_cut
from dedupindex.index.engine import Finder
from dedupindex.index.identity import Settings
from dedupindex.lookup import decide
from dedupindex.lookup.decide import Strategy, require_strategy
from dedupindex.lookup.policy import NO_POLICY, Policy
from dedupindex.timestamps import digits_of_date, seconds, sort_key
from dedupindex.urlkey import urlkey
from server.api.cdx_output import value_of, writable, written
from server.api.cdx_query import MOST, CdxQuery, Sieve, cdx_query_of
from server.api.lookups import Environ, query_string
from server.auth import Access
from server.failures import reply_to
from server.live_index import LiveIndex
from server.metrics import HIT, MISS, Metrics, cell_of
from server.responses import OK, Reply

HEX_PATH = "/cdx/hex"  # for clients that cannot send parameters
COOKIE = "cdx_auth_token"
PATHS = ("/cdx", HEX_PATH, "/cdx/search", "/web/timemap/cdx")
_STRATEGIES = {"exact": Strategy.EXACT_URL, "canonical": Strategy.CANONICAL_URL}
_CELLS = {match: cell_of(one.value, "exact_url") - HIT for match, one in _STRATEGIES.items()}


class Cdx:
    """Answers CDX queries; thread-safe."""

    def __init__(self, live: LiveIndex, metrics: Metrics, access: Access) -> None:
        self._live, self._metrics, self._access = live, metrics, access

    def get(self, environ: Environ) -> Reply:
        """Answer GET on one of `PATHS`; never raises."""
        started = perf_counter_ns()
        try:
            if self._access.private:
                self._access.may_read(_with_token(environ))
            hexadecimal = environ["PATH_INFO"] == HEX_PATH
            query = cdx_query_of(query_string(environ), hex=hexadecimal)
            covers, policy, namespaces = self._terms(environ, query)
            opened = self._live.opened()
            settings = opened.engine.identity.settings
            with (
                opened.engine.view() as base,
                self._live.crawls.seen(base, settings.keys(), query.crawl, namespaces) as view,
            ):
                captures = listed(view, settings, query, covers, policy)
                headers, body = written(captures, query)
        except Exception as error:
            self._live.crawls.counting.note_failure(error, environ["QUERY_STRING"])
            return reply_to(error, environ, self._metrics)
        for capture in captures:
            self._live.crawls.counting.note_original(query.crawl, capture)
        if query.crawl:
            self._note(query, captures, perf_counter_ns() - started)
        self._metrics.lookup(_CELLS[query.match] + (HIT if captures else MISS), started)
        return OK, headers, body

    def _terms(self, environ: Environ, query: CdxQuery) -> tuple[Covers, Policy, tuple[str, ...]]:
        """Return the options of the crawl that asks, with the policy of the server."""
        crawls = self._live.crawls
        crawl = crawls.crawl(query.crawl) if query.crawl else None
        if crawl is None:
            return Covers.UNKNOWN, crawls.policy, ()
        namespaces = (crawl.namespace,) if crawl.namespace else ()
        if namespaces:
            self._access.may_read(_with_token(environ), namespaces)
        return crawl.covers, Policy(crawl.policy.rules + crawls.policy.rules), namespaces

    def _note(self, query: CdxQuery, captures: list[Capture], taken: int) -> None:
        """Count a query for its crawl; without a digest nobody knows if it found a duplicate."""
        strategy = _STRATEGIES[query.match].value
        outcome: Outcome = Other.LISTED if captures else None
        if captures and query.digest() is not None:
            match = decide.match_of(query.url, captures[0].url)
            outcome = CountedHit.of(match.value, captures[0])
        self._live.crawls.counting.note((query.crawl, strategy, query.url, outcome, -1, taken))


def _with_token(environ: Environ) -> Environ:
    """Return a request with its token in a header: these clients send it as a cookie."""
    if "HTTP_AUTHORIZATION" in environ:
        return environ
    token = parse_cookie(environ.get("HTTP_COOKIE", "")).get(COOKIE, "")
    return {**environ, "HTTP_AUTHORIZATION": f"Bearer {token}"}


def listed(
    view: Finder,
    settings: Settings,
    query: CdxQuery,
    covers: Covers = Covers.UNKNOWN,
    policy: Policy = NO_POLICY,
) -> list[Capture]:
    """Return the captures of a query, in its order; raises `StrategyUnavailable`.

    Captures whose digest covers other bytes than the digests of the crawl that asks are left out.
    """
    require_strategy(settings, _STRATEGIES[query.match])
    applied, now, sieve = policy.applied(query.url, b""), int(time()), Sieve(query.filters)
    found = (
        capture
        for capture in _candidates(view, query)
        if _passes(capture, query, sieve)
        and (not covers or not capture.covers or covers & capture.covers)
        and applied.refuses(capture, now) is None
    )
    key, backwards = _order(query)
    first, last = (nlargest, nsmallest) if backwards else (nsmallest, nlargest)
    if query.limit < 0:
        return last(-query.limit, found, key=key)[::-1]
    return first(query.limit, found, key=key)


def _candidates(view: Finder, query: CdxQuery) -> Iterator[Capture]:
    digest, url = query.digest(), query.url
    if digest is not None and is_cut(digest.raw):
        return iter(())
    if query.match == "exact":
        return view.at_url(url) if digest is None else iter(view.exact(digest, url))
    if digest is None:
        return view.at_urlkey(urlkey(url))
    return iter(view.canonical(digest, urlkey(url), MOST))


def _order(query: CdxQuery) -> tuple[Callable[[Capture], Any], bool]:
    """Return the sort key of captures, and whether the order is descending."""
    if query.sort == "closest":
        return lambda capture: (abs(seconds(capture.date) - query.closest), *_place(capture)), False
    return _place, query.sort == "reverse"


def _place(capture: Capture) -> tuple[bytes, bytes, Any]:
    return sort_key(capture.date), capture.url, capture.digest


def _passes(capture: Capture, query: CdxQuery, sieve: Sieve) -> bool:
    if not may_be_named(capture) or not writable(capture, query):
        return False
    # Replay tools compare the text of digests, so the spelling must be the same.
    if not query.bridge and capture.spelling.encoding != query.encoding:
        return False
    if query.since or query.until != "9" * 14:
        digits = digits_of_date(capture.date).decode()
        if not query.since <= digits <= query.until:
            return False
    return not query.filters or sieve.passes(capture.digest, partial(_field, capture, query))


def may_be_named(capture: Capture) -> bool:
    """Return whether a capture may be the original of a revisit, whatever the index holds.

    Clients of CDX servers do not filter by status: they would make revisits of every 404.
    """
    return (
        capture.status in _GOOD
        and capture.digest not in EMPTY
        and not is_cut(capture.digest.raw)
        and (capture.size != 0 or capture.size_of_record)
    )


_GOOD = frozenset((0, *range(200, 300)))  # 0: unknown, of an original that a revisit names


def _field(capture: Capture, query: CdxQuery, name: str) -> str:
    """Return a field as filters compare it."""
    if name == "original":
        return capture.url.decode("utf-8", "surrogateescape")
    return value_of(capture, name, query)
