"""Answer the single lookups that crawlers send per capture, without making a `Query` or `Capture`.

They have a SHA-1, a URL, and perhaps crawl, strategy, covers, media type and size. What is not
answered here is left to the full lookup; a property test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from dedupindex.cache import Cache
from dedupindex.capture import Covers
from dedupindex.crawls.combined_view import NO_CRAWLS, KnownCrawls, VisibleCrawls
from dedupindex.crawls.counting import NO_ORIGINAL, LookupOutcome
from dedupindex.crawls.crawl import CrawlState
from dedupindex.crawls.store import Reading
from dedupindex.errors import Damaged
from dedupindex.index.format.cells import urlkey_hash
from dedupindex.index.format.fast_answer import (
    ANY_ENCODING,
    BROKEN,
    NONE,
    PlainAnswers,
    PlainHit,
    hit_of,
    sha1_prefix,
)
from dedupindex.lookup.decide import FEW, STRATEGY_ALIASES, Match, Strategy, match_of
from dedupindex.lookup.params import PARAMETERS, params_from_query_string
from dedupindex.urlkey import urlkey
from server.live_index import LiveIndex, Opened
from server.metrics import CELLS, HIT, MATCHES, MISS, Metrics
from server.responses import JSON, NO_CONTENT, OK, TEXT, UNCOMMITTED, Reply
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
_OPTIONS = frozenset({"crawl", "strategy", "covers", "mime"})
_PLAIN = _OPTIONS | {"digest", "url", "size"}
_ENCODINGS = {32: 0, 40: 2}  # of a `Spelling`, by the letters of a digest without its label

_Render = Callable[[PlainAnswers, PlainHit, PlainQuery, Match, bool, Reading | None], Reply | None]
"""Render a hit: whether it is committed; the store of its crawl, None for the index."""


class _PlainForm(NamedTuple):
    """How one media type answers."""

    miss: Reply
    shows_spelling: bool  # else an original must spell its digest as the query does
    render: _Render


_Found = tuple[LookupOutcome, int, str, Reply]
"""What is counted: outcome, match class, the crawl whose capture answers another; the reply."""

_NOTHING: VisibleCrawls = {}


class PlainLookups:
    """Answers plain lookups of one worker; thread-safe. None leaves one to the full lookup."""

    def __init__(self, live: LiveIndex, metrics: Metrics) -> None:
        self._live, self._metrics, self._crawls = live, metrics, live.crawls
        self._counting = live.crawls.counting
        self._misses = Cache[str, LookupOutcome]()  # by media type as it stands in a query string

    def as_json(self, query: PlainQuery, started: int) -> Reply | None:
        """Answer as JSON: a hit of the exact URL without a crawl sooner than others."""
        prefix, spelled, url, base, name, covers, _, _ = query
        plain = None if name else self._live.opened().plain
        if plain is not None:
            body, crawls = plain.one(prefix, spelled, url, covers), self._crawls
            if body and body is not NONE and (not crawls.answering or crawls.silent(prefix)):
                self._metrics.lookup(base + HIT, started)
                return OK, JSON, body
        return self._reply(query, _JSON, started)

    def as_text(self, query: PlainQuery, started: int) -> Reply | None:
        """Answer as the header lines of a revisit."""
        return self._reply(query, _TEXT, started)

    def _reply(self, query: PlainQuery, form: _PlainForm, started: int) -> Reply | None:
        """Answer a miss, or a hit if few captures have the digest, and count it."""
        if self._live.shared is not None:
            return self._new(query, form.miss, started)
        opened = self._crawls.open_store(refresh=bool(query[4]))
        try:
            if opened is None:
                found = self._found(query, form, NO_CRAWLS, None)
            else:  # the transaction of the crawls begins first: `CrawlSnapshot` says why
                with opened.store.reading() as reading:
                    found = self._found(query, form, opened.known_in(reading), reading)
        except (Damaged, *BROKEN):
            return None  # the full lookup reports the damage
        if found is None:
            return None
        outcome, cell, other, reply = found
        if other:
            self._counting.count_other(other)
        self._count(query, outcome, cell, started)
        return reply

    def _count(self, query: PlainQuery, outcome: LookupOutcome, cell: int, started: int) -> None:
        _, _, url, base, name, _, _, size = query
        if name:
            taken = perf_counter_ns() - started
            self._counting.count_lookup((name, _STRATEGIES[base], url, outcome, size, taken))
        self._metrics.lookup(base + cell, started)

    def _found(
        self, query: PlainQuery, form: _PlainForm, known: KnownCrawls, reading: Reading | None
    ) -> _Found | None:
        prefix, spelled, url, base, name, covers, mime, _ = query
        index, own = self._live.opened(), plain_covers(known.by_name.get(name)) if name else 0
        plain = index.plain
        if plain is None or own < 0:
            return None
        encoding = ANY_ENCODING if form.shows_spelling else _ENCODINGS[len(spelled)]
        covers, address = covers or own, url.encode()
        hits = plain.hits(prefix, encoding, covers, FEW)
        held = reading.first_cells(prefix, FEW + 1) if reading is not None else []
        if hits is None and not held:
            hits = plain.exact_hit(prefix, address, encoding, covers)
        if hits is None or len(hits) + len(held) > FEW:
            return None
        visible = known.visible(name) if held else _NOTHING
        for key, number, cell in held:
            if number in visible:
                hit = hit_of(key, cell, encoding, covers, number)
                if hit is None:
                    return None
                hits.append(hit)
        if not hits:
            missed = self._missed(mime) if name and mime else NO_ORIGINAL
            return missed, MISS, "", form.miss
        match, best = _best(hits, address, index)
        if match is not Match.EXACT_URL and base != _DIGEST_ANY:
            return None
        crawl = visible[best.crawl] if best.crawl else None
        committed = crawl is None or crawl.state is CrawlState.COMMITTED
        store = None if crawl is None else reading  # containers of crawls have their own numbers
        reply = form.render(plain, best, query, match, committed, store)
        if reply is None:
            return None
        other = crawl.name if crawl is not None and crawl.name != name else ""
        return LookupOutcome(_NAMES[match], best.size, best.mime, 200), _CELLS[match], other, reply

    def _new(self, query: PlainQuery, reply: Reply, started: int) -> Reply | None:
        """Answer a lookup of what the shared filter lacks; the others need the cluster."""
        prefix, _, _, base, crawl, _, mime, _ = query
        if base != _DIGEST_ANY or self._crawls.policy.rules or not self._lacks(prefix, crawl):
            return None
        outcome = self._missed(mime) if crawl and mime else NO_ORIGINAL
        self._count(query, outcome, MISS, started)
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


def _best(hits: list[PlainHit], url: bytes, index: Opened) -> tuple[Match, PlainHit]:
    """Return the hit that `lookup.decide` prefers for a URL, and how it matches."""
    if len(hits) == 1:
        return _match_of(url, hits[0]), hits[0]
    matches = [_match_of(url, hit) for hit in hits]
    best = next(match for match in Match if match in matches)
    sign = 1 if index.engine.identity.settings.keep == "earliest" else -1
    among = (hit for hit, match in zip(hits, matches, strict=True) if match is best)
    return best, min(among, key=lambda hit: (sign * hit.date, hit.url))


def _match_of(url: bytes, hit: PlainHit) -> Match:
    if hit.url == url:
        return Match.EXACT_URL
    if urlkey_hash(urlkey(url)) != hit.urlkey_hash():
        return Match.DIGEST
    return match_of(url, hit.url)


def _text_of(
    plain: PlainAnswers,
    hit: PlainHit,
    query: PlainQuery,
    match: Match,
    committed: bool,
    store: Reading | None,
) -> Reply | None:
    lines = plain.lines(hit)
    return None if lines is None else (OK, TEXT if committed else UNCOMMITTED, lines)


def _json_of(
    plain: PlainAnswers,
    hit: PlainHit,
    query: PlainQuery,
    match: Match,
    committed: bool,
    store: Reading | None,
) -> Reply | None:
    name = None if store is None else store.container_name(hit.container())
    body = plain.json(hit, query[0], query[1], _NAMES[match], container=name, committed=committed)
    return None if body is None else (OK, JSON, body)


_TEXT = _PlainForm(NO_CONTENT, shows_spelling=False, render=_text_of)
_JSON = _PlainForm((OK, JSON, NONE), shows_spelling=True, render=_json_of)


def plain_query(text: str) -> PlainQuery | None:
    """Parse the query string of a plain lookup; None for any other."""
    if text.startswith("digest=sha1:") and text.find("&url=") == 44:  # as most clients write it
        spelled, end, more = text[12:44], text.find("&", 49), ""
        url = text[49:]
        if end > 0:
            url, more = text[49:end], text[end:]
    else:
        given = _parameters(text, _PLAIN)
        if given is None or "digest" not in given or "url" not in given:
            return None
        label, _, spelled = given.pop("digest").replace("%3A", ":").partition(":")
        if label != "sha1":
            return None
        url = given.pop("url")
        more = "".join(f"&{name}={value}" for name, value in given.items())
    # All but the size are the same in many lookups.
    before, stated, after = more.partition("&size=")
    size = -1
    if stated:
        number, others, after = after.partition("&")
        if not number.isdigit() or len(number) > 18:
            return None
        size, before = int(number), before + others + after
    options = _options.get(before)
    if options is None:
        options = _options.keep(before, _parsed(before))
    base, crawl, covers, mime = options
    prefix = sha1_prefix(spelled)
    if base < 0 or prefix is None or not url or "+" in url:
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


_Options = tuple[int, str, int, str]
"""Cell of an exact hit, -1 if these options are not plain; crawl, covers, media type."""
_NOT_PLAIN: _Options = (-1, "", 0, "")
_options = Cache[str, _Options]()  # by their part of a query string, which begins with "&"


def _parsed(text: str) -> _Options:
    """Parse the options of a lookup but its size, as they stand in the query string."""
    given = _parameters(text[1:], _OPTIONS) if text else {}
    if given is None:
        return _NOT_PLAIN
    base = _BASES.get(given["strategy"], -1) if "strategy" in given else _DIGEST_ANY
    covers, crawl = _COVERS.get(given.get("covers", ""), -1), given.get("crawl", "")
    if covers < 0 or "%" in crawl or "+" in crawl:
        return _NOT_PLAIN
    return base, crawl, covers, given.get("mime", "")


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
