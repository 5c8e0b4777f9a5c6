"""Routes of CDX servers: originals by URL.

These clients ask by URL only, before or after a fetch, and use any capture in the list as the
original of a revisit. So only possible originals are listed. A miss is an empty 200: some clients
take any other status for an outage, and wait.

A client may write the fields of a line into its WARC, so a line has each of them exactly or not at
all: a capture is left out if the form of the line cannot carry its URL, such as one with a space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from heapq import nlargest, nsmallest
from pathlib import PurePosixPath
from time import perf_counter_ns, time
from typing import Any
from urllib.parse import quote

import orjson
from flask import Response, request

from dedupindex.capture import Capture, Covers
from dedupindex.crawls.counting import LISTED, NO_ORIGINAL, LookupOutcome
from dedupindex.digest import EMPTY, Spelling, is_cut
from dedupindex.index.engine import Finder
from dedupindex.index.identity import Settings
from dedupindex.lookup import decide
from dedupindex.lookup.decide import Strategy, require_strategy
from dedupindex.lookup.policy import Policy
from dedupindex.timestamps import digits_of_date, seconds, sort_key
from dedupindex.urlkey import urlkey
from server.api.cdx_query import FIELDS, MOST, PARAMETERS, CdxQuery, Sieve, cdx_query_of
from server.api.request_fields import query_string
from server.auth import with_cookie
from server.metrics import CELLS, HIT, MISS
from server.responses import JSON, OK, TEXT, Headers, Reply, response_of
from server.routes import Route
from server.services import Handlers

HEX_PATH = "/cdx/hex"  # for clients that cannot send parameters
COOKIE = "cdx_auth_token"
PATHS = ("/cdx", HEX_PATH, "/cdx/search", "/web/timemap/cdx")
_STRATEGIES = {"exact": Strategy.EXACT_URL, "canonical": Strategy.CANONICAL_URL}
_CELLS = {match: CELLS[item.value, "exact_url"] - HIT for match, item in _STRATEGIES.items()}
_GOOD = frozenset((0, *range(200, 300)))  # 0: unknown, of an original that a revisit names
_SHORT = {"original": "url", "mimetype": "mime", "statuscode": "status"}  # of pywb and OutbackCDX
_NONE = "-"
_LIST: dict[str, Any] = {
    "answer": ("text/plain", {"type": "array"}),
    "errors": (404, 409),
    "parameters": PARAMETERS,
    "required": "url",
    "timed": False,
}
_IN_PATH = {name: schema for name, schema in PARAMETERS.items() if name != "crawl"}
_LIST_OF_CRAWL = {**_LIST, "parameters": _IN_PATH, "timed": True}


class Cdx(Handlers):
    """Answers CDX queries; thread-safe."""

    @Route("GET", "/cdx", **_LIST)
    @Route("GET", "/cdx/hex", name="cdx_hex", summary="The same with digests in hex", **_LIST)
    @Route("GET", "/cdx/search", name="cdx_search", **_LIST)
    @Route("GET", "/web/timemap/cdx", name="cdx_timemap", **_LIST)
    def cdx(self) -> Response:
        """Originals by URL, as CDX servers list them."""
        return response_of(self.get(request.environ))

    @Route("GET", "/crawls/{name}/cdx", **_LIST_OF_CRAWL)
    @Route("GET", "/crawls/{name}/web/timemap/cdx", name="crawl_cdx_timemap", **_LIST_OF_CRAWL)
    def crawl_cdx(self, name: str) -> Response:
        """The same as /cdx, for clients that cannot send the parameter `crawl`."""
        text = request.environ["QUERY_STRING"]
        query = f"{text}&crawl={quote(name, safe='')}".removeprefix("&")
        return response_of(self.get({**request.environ, "QUERY_STRING": query}))

    def get(self, environ: dict[str, Any]) -> Reply:
        """Answer GET on one of `PATHS`; never raises."""
        started = perf_counter_ns()
        try:
            if self._access.private:
                self._access.may_read(_with_token(environ))
            hexadecimal = environ["PATH_INFO"] == HEX_PATH
            query = cdx_query_of(query_string(environ), hex=hexadecimal)
            covers, policy, namespaces = self._terms(environ, query)
            with self._live.state(refresh=bool(query.crawl)) as state:
                view = state.seen_by(query.crawl, namespaces)
                captures = _originals(view, state.settings, query, covers, policy)
                headers, body = render(captures, query)
        except Exception as error:
            self._live.crawls.counting.count_failure(error, environ["QUERY_STRING"])
            return self._metrics.reply_to(error, environ)
        for capture in captures:
            self._live.crawls.counting.count_original(query.crawl, capture)
        if query.crawl:
            self._count(query, captures, perf_counter_ns() - started)
        self._metrics.lookup(_CELLS[query.match] + (HIT if captures else MISS), started)
        return OK, headers, body

    def _terms(
        self, environ: dict[str, Any], query: CdxQuery
    ) -> tuple[Covers, Policy, tuple[str, ...]]:
        """Return the options of the crawl that asks, with the policy of the server."""
        crawls = self._live.crawls
        crawl = crawls.crawl(query.crawl) if query.crawl else None
        if crawl is None:
            return Covers.UNKNOWN, crawls.policy, ()
        namespaces = (crawl.namespace,) if crawl.namespace else ()
        if namespaces:
            self._access.may_read(_with_token(environ), namespaces)
        return crawl.covers, Policy(crawl.policy.rules + crawls.policy.rules), namespaces

    def _count(self, query: CdxQuery, captures: list[Capture], taken: int) -> None:
        """Count a query for its crawl; without a digest it counts as no duplicate."""
        strategy = _STRATEGIES[query.match].value
        outcome = LISTED if captures else NO_ORIGINAL
        if captures and query.digest() is not None:
            match = decide.match_of(query.url, captures[0].url)
            outcome = LookupOutcome.of_hit(match.value, captures[0])
        lookup = query.crawl, strategy, query.url, outcome, -1, taken
        self._live.crawls.counting.count_lookup(lookup)


def _with_token(environ: dict[str, Any]) -> dict[str, Any]:
    """Return a request with its token in a header: these clients send it as a cookie."""
    return environ if "HTTP_AUTHORIZATION" in environ else with_cookie(environ, COOKIE)


def _originals(
    view: Finder, settings: Settings, query: CdxQuery, covers: Covers, policy: Policy
) -> list[Capture]:
    """Return the captures of a query, in its order; raises `StrategyUnavailable`.

    Captures whose digest covers other bytes than the digests of the crawl that asks are left out.
    """
    require_strategy(settings, _STRATEGIES[query.match])
    applied, now, sieve = policy.rules_for(query.url, b""), int(time()), Sieve(query.filters)
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

    def distance(capture: Capture) -> tuple[Any, ...]:
        return abs(seconds(capture.date) - query.closest), *_sort_key(capture)

    return distance if query.sort == "closest" else _sort_key, query.sort == "reverse"


def _sort_key(capture: Capture) -> tuple[bytes, bytes, Any]:
    return sort_key(capture.date), capture.url, capture.digest


def _passes(capture: Capture, query: CdxQuery, sieve: Sieve) -> bool:
    if not may_be_named(capture) or not _is_writable(capture, query):
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


def _field(capture: Capture, query: CdxQuery, name: str) -> str:
    """Return a field as filters compare it."""
    if name == "original":
        return capture.url.decode("utf-8", "surrogateescape")
    return _value(capture, name, query)


def _value(capture: Capture, field: str, query: CdxQuery) -> str:
    """Return one field of a line; the URL must be one that `_is_writable` accepts."""
    match field:
        case "timestamp":
            return digits_of_date(capture.date).decode()
        case "digest":
            return capture.digest.spelled(Spelling(0, query.encoding))
        case "original":
            return capture.url.decode()
        case "urlkey":
            return _escaped(urlkey(capture.url).decode("utf-8", "surrogateescape"))
        case "mimetype":
            return _escaped(capture.mime.decode("utf-8", "surrogateescape"))
        case "statuscode":
            return str(capture.status) if capture.status else _NONE
        case "length":
            return str(capture.size) if capture.size_of_record and capture.size >= 0 else _NONE
        case "offset":
            return str(capture.offset) if capture.offset >= 0 else _NONE
        case "filename":
            return _escaped(PurePosixPath(capture.container).name)
    return _NONE  # redirect and robotflags: an original has none


def _is_writable(capture: Capture, query: CdxQuery) -> bool:
    """Return whether a line can carry the URL of a capture, or does not have to."""
    try:
        url = capture.url.decode()
        writable = query.output != "text" or len(url.split()) == 1
    except UnicodeDecodeError:
        writable = False
    return writable or "original" not in query.fields


def _escaped(text: str) -> str:
    """Return a field, percent-encoded where it would break the line, "-" if it is empty."""
    if text.isascii() and text.isprintable() and " " not in text:
        return text or _NONE
    return quote(text, safe="!\"#$%&'()*+,/:;<=>?@[]^`{|}~", errors="surrogateescape")


def render(captures: Iterable[Capture], query: CdxQuery) -> tuple[Headers, bytes]:
    """Return headers and body of the answer."""
    fields = query.fields
    rows = [[_value(capture, field, query) for field in fields] for capture in captures]
    if query.output == "text":
        return TEXT, "".join([" ".join(row) + "\n" for row in rows]).encode()
    if query.output == "json":
        return JSON, orjson.dumps([list(query.named) or list(FIELDS), *rows] if rows else [])
    names = query.named or tuple(_SHORT.get(field, field) for field in FIELDS)
    items = [dict(zip(names, row, strict=True)) for row in rows]
    if query.output == "jsondict":
        return JSON, orjson.dumps(items)
    lines = []
    for capture, item in zip(captures, items, strict=True):
        head = [_value(capture, field, query) for field in ("urlkey", "timestamp")]
        rest = {name: value for name, value in item.items() if name not in FIELDS[:2]}
        lines.append(" ".join(head).encode() + b" " + orjson.dumps(rest) + b"\n")
    return TEXT, b"".join(lines)
