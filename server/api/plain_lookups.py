"""Answer the single lookups that crawlers send per capture, without making a `Query` or `Capture`.

They have a SHA-1, a URL, and perhaps crawl, strategy, covers, media type and size. What is not
answered here is left to the full lookup; a property test compares the two.
"""

from __future__ import annotations

from time import perf_counter_ns
from urllib.parse import unquote_to_bytes

from dedupindex.cache import Cache
from dedupindex.capture import Covers
from dedupindex.crawls.combined_view import KnownCrawls
from dedupindex.crawls.counting import NO_ORIGINAL, LookupOutcome
from dedupindex.crawls.crawl import CrawlState
from dedupindex.crawls.store import Held
from dedupindex.errors import Damaged
from dedupindex.index.format.cells import urlkey_hash
from dedupindex.index.format.fast_answer import (
    BROKEN,
    NO_HIT,
    NONE,
    PlainAnswers,
    PlainHit,
    sha1_prefix,
)
from dedupindex.lookup.decide import STRATEGY_ALIASES, Match, Strategy, match_of
from dedupindex.lookup.params import PARAMETERS, params_from_query_string
from dedupindex.urlkey import urlkey
from server.live_index import LiveIndex
from server.metrics import CELLS, HIT, MATCHES, MISS, Metrics
from server.responses import JSON, NO_CONTENT, OK, TEXT, UNCOMMITTED, Headers, Reply
from server.worker_crawls import plain_covers

PlainQuery = tuple[bytes, str, str, int, str, int, str, int]
"""Prefix of keys, digest without label, URL, cell that counts an exact hit of the strategy, crawl,
covers, media type as it stands in the query string, and size or -1."""

_BASES = {
    name: CELLS[strategy.value, "exact_url"]
    for name in (*Strategy.__members__, *STRATEGY_ALIASES)
    if (strategy := Strategy.parse(name)).has_fast_answer()
}
_STRATEGIES = {CELLS[strategy.value, "exact_url"]: strategy.value for strategy in Strategy}
_DIGEST_ANY = CELLS[Strategy.DIGEST_ANY.value, "exact_url"]
_COVERS = {"": 0, **{covers.name.lower(): covers.value for covers in Covers if covers}}
_CELLS = {match: MATCHES.index(match.value) for match in Match}
_NAMES = {match: match.value for match in Match}  # the attribute of an enumeration is slow
_OPTIONS = frozenset({"crawl", "strategy", "covers", "mime", "size"})
_PLAIN = _OPTIONS | {"digest", "url"}
_NO_OPTIONS: dict[str, str] = {}


_Found = tuple[PlainHit, str, Headers]
"""An original or `NO_HIT`, the crawl that reported it if it is not the one that asks, and headers
of the answer."""


class PlainLookups:
    """Answers plain lookups of one worker; thread-safe. None leaves one to the full lookup."""

    def __init__(self, live: LiveIndex, metrics: Metrics) -> None:
        self._live, self._metrics, self._crawls = live, metrics, live.crawls
        self._counting = live.crawls.counting
        self._misses = Cache[str, LookupOutcome]()  # by media type as it stands in a query string

    def as_json(self, query: PlainQuery, started: int) -> Reply | None:
        """Answer a miss, or a hit of the exact URL."""
        if self._live.shared is not None:
            return self._new(query, (OK, JSON, NONE), started)
        prefix, spelled, url, base, crawl, covers, mime, size = query
        crawls = self._crawls
        if crawl:
            body = self._json_of_crawl(query)
        else:
            plain = self._live.opened().plain
            body = None if plain is None else plain.one(prefix, spelled, url, covers)
            if plain is not None and (body is NONE or crawls.answering):
                if not crawls.silent(prefix):
                    return None
                # Again, now that the crawls were read: `CrawlSnapshot` says why.
                body = plain.one(prefix, spelled, url, covers) if body is NONE else body
        if body is None:
            return None
        if crawl:
            outcome = self._missed(mime) if body is NONE and mime else body
            self._count(crawl, base, url, outcome, size, started)
        self._metrics.lookup(base + (MISS if body is NONE else HIT), started)
        return OK, JSON, body

    def _json_of_crawl(self, query: PlainQuery) -> bytes | None:
        prefix, spelled, url, _, name, covers, _, _ = query
        opened = self._crawls.open_store()
        if opened is None:
            return None
        # The transaction of the crawls begins first: `CrawlSnapshot` says why.
        with opened.store.reading() as reading:
            plain, crawl = self._live.opened().plain, opened.known_in(reading).by_name.get(name)
            own = plain_covers(crawl)
            if plain is None or own < 0 or not reading.has_none(prefix):
                return None
            return plain.one(prefix, spelled, url, covers or own)

    def as_text(self, query: PlainQuery, started: int) -> Reply | None:
        """Answer a miss, or a hit if few captures have the digest."""
        if self._live.shared is not None:
            return self._new(query, NO_CONTENT, started)
        _, _, url, base, crawl, _, mime, size = query
        address = url.encode()
        found = self._text_hit(query, address)
        if found is None:
            return None
        hit, other, headers = found
        if hit is NO_HIT:
            if crawl:
                outcome = self._missed(mime) if mime else NO_ORIGINAL
                self._count(crawl, base, url, outcome, size, started)
            self._metrics.lookup(base + MISS, started)
            return NO_CONTENT
        match = Match.EXACT_URL if hit.url == address else _match_of(address, hit)
        if match is not Match.EXACT_URL and base != _DIGEST_ANY:
            return None
        if other:
            self._counting.count_other(other)
        if crawl:
            outcome = LookupOutcome(_NAMES[match], hit.size, hit.mime, 200)
            self._count(crawl, base, url, outcome, size, started)
        self._metrics.lookup(base + _CELLS[match], started)
        return OK, headers, hit.lines

    def _text_hit(self, query: PlainQuery, url: bytes) -> _Found | None:
        prefix, spelled, _, _, name, covers, _, _ = query
        encoding = 0 if len(spelled) == 32 else 2
        try:
            opened = self._crawls.open_store(refresh=bool(name))
            if opened is None:
                plain = self._live.opened().plain
                if name or plain is None:
                    return None
                hit = plain.hit(prefix, url, encoding, covers)
                return None if hit is None else (hit, "", TEXT)
            # The transaction of the crawls begins first: `CrawlSnapshot` says why.
            with opened.store.reading() as reading:
                plain, known = self._live.opened().plain, opened.known_in(reading)
                own = plain_covers(known.by_name.get(name)) if name else 0
                if plain is None or own < 0:
                    return None
                hit = plain.hit(prefix, url, encoding, covers or own)
                if hit is None:
                    return None
                held = reading.first_cells(prefix, 2)
                if not held:
                    return hit, "", TEXT
                if hit is not NO_HIT or len(held) > 1:
                    return None
                return _hit_of_crawl(known, plain, held[0], name, encoding, covers or own)
        except (Damaged, *BROKEN):
            return None  # the full lookup reports the damage

    def _new(self, query: PlainQuery, reply: Reply, started: int) -> Reply | None:
        """Answer a lookup of what the shared filter lacks; the others need the cluster."""
        prefix, _, url, base, crawl, _, mime, size = query
        if base != _DIGEST_ANY or self._crawls.policy.rules or not self._lacks(prefix, crawl):
            return None
        if crawl:
            outcome = self._missed(mime) if mime else NO_ORIGINAL
            self._count(crawl, base, url, outcome, size, started)
        self._metrics.lookup(base + MISS, started)
        return reply

    def _lacks(self, prefix: bytes, name: str) -> bool:
        shared, opened = self._live.shared, self._crawls.open_store()
        if shared is None or opened is None:
            return False
        with opened.store.reading() as reading:  # raises if the cluster does not answer
            if name and plain_covers(opened.known_in(reading).by_name.get(name)) < 0:
                return False
        with self._live.opened().engine.view() as view:
            return view.use_filter(shared) and shared.lacks(prefix)

    def _missed(self, mime: str) -> LookupOutcome:
        """Return the outcome of a miss with a media type as it stands in the query string."""
        outcome = self._misses.get(mime)
        if outcome is None:
            value = params_from_query_string(f"mime={mime}")["mime"]
            outcome = LookupOutcome(mime=PARAMETERS["mime"].read(value))
            self._misses.keep(mime, outcome)
        return outcome

    def _count(
        self, crawl: str, base: int, url: str, outcome: LookupOutcome | bytes, size: int, start: int
    ) -> None:
        taken = perf_counter_ns() - start
        self._counting.count_lookup((crawl, _STRATEGIES[base], url, outcome, size, taken))


def _hit_of_crawl(
    known: KnownCrawls, plain: PlainAnswers, held: Held, name: str, encoding: int, covers: int
) -> _Found | None:
    """Return the only capture of a digest, which a crawl has reported, if the asker sees it."""
    key, number, cell = held
    crawl = known.visible(name).get(number)
    hit = plain.hit_of(key, cell, encoding, covers)
    if crawl is None or hit is None:
        return None
    headers = TEXT if crawl.state is CrawlState.COMMITTED else UNCOMMITTED
    return hit, crawl.name if crawl.name != name else "", headers


def _match_of(url: bytes, hit: PlainHit) -> Match:
    if urlkey_hash(urlkey(url)) != hit.urlkey_hash:
        return Match.DIGEST
    return match_of(url, hit.url)


def plain_query(text: str) -> PlainQuery | None:
    """Parse the query string of a plain lookup; None for any other."""
    if text.startswith("digest=sha1:") and text.find("&url=") == 44:  # as most clients write it
        spelled = text[12:44]
        url, more, rest = text[49:].partition("&")
        given = _parameters(rest, _OPTIONS) if more else _NO_OPTIONS
    else:
        given = _parameters(text, _PLAIN)
        if given is None or "digest" not in given or "url" not in given:
            return None
        label, _, spelled = given["digest"].replace("%3A", ":").partition(":")
        if label != "sha1":
            return None
        url = given["url"]
    if given is None:
        return None
    base, crawl, covers, mime, size = _DIGEST_ANY, "", 0, "", -1
    if given:
        get = given.get
        if "strategy" in given:
            base = _BASES.get(given["strategy"], -1)
        crawl, mime, number = get("crawl", ""), get("mime", ""), get("size")
        covers = _COVERS.get(get("covers", ""), -1)
        if base < 0 or covers < 0 or "%" in crawl or "+" in crawl:
            return None
        if number is not None:
            if not number.isdigit() or len(number) > 18:
                return None
            size = int(number)
    prefix = sha1_prefix(spelled)
    if prefix is None or not url or "+" in url:
        return None
    if "%" in url:
        # Nearly always these escapes are all there is, and replacing them makes no new one.
        plain = url.replace("%3A", ":").replace("%2F", "/")
        if "%" in plain:
            plain = plain.replace("%3F", "?").replace("%3D", "=").replace("%26", "&")
        if "%" in plain:
            try:
                plain = unquote_to_bytes(url).decode()
            except UnicodeDecodeError:
                return None
        url = plain
    if url[0] == "<" or url[-1] == ">":
        return None
    return prefix, spelled, url, base, crawl, covers, mime, size


def _parameters(text: str, known: frozenset[str]) -> dict[str, str] | None:
    """Return the parameters of a query string as they stand, if all are known and have a value."""
    found: dict[str, str] = {}
    parts = text.split("&")
    for part in parts:
        name, _, value = part.partition("=")
        found[name] = value
    if len(found) < len(parts) or not known.issuperset(found) or "" in found.values():
        return None
    return found
