"""Queries, strategies, and the decision of a lookup.

Strategies are those of the DeDuplicator, a Heritrix module: DIGEST_ANY finds any original with the
digest and prefers the same exact URL, then the same canonical URL. EXACT_URL and CANONICAL_URL find
nothing else. The match class of an answer is computed from the two URLs, so it is right even if
the index holds no URLs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, NamedTuple, assert_never

from dedupindex.capture import Capture, Covers, Evidence, Uncommitted
from dedupindex.digest import CUT_DIGEST, EMPTY, Digest, is_cut
from dedupindex.errors import BadQuery, Damaged, StrategyUnavailable
from dedupindex.index.engine import Finder
from dedupindex.index.identity import Settings
from dedupindex.lookup.policy import NO_POLICY, Policy
from dedupindex.lookup.render_json import original_as_json
from dedupindex.timestamps import seconds, sort_key
from dedupindex.urlkey import host_of, urlkey

LIMIT = 100  # captures of a digest that a lookup reads beyond the exact URL, in key order
FEW = 8  # captures of a digest that a lookup reads at once, as most digests have no more
CONDITIONAL_LIMIT = 10_000  # the same, if none of the first meets the conditions of the query


class Strategy(Enum):
    """Which captures may answer a lookup; the value is the name that the server accepts.

    >>> [strategy.value for strategy in dedupindex.Strategy]
    ['DIGEST_ANY', 'EXACT_URL', 'CANONICAL_URL']
    """

    DIGEST_ANY = "DIGEST_ANY"
    EXACT_URL = "EXACT_URL"
    CANONICAL_URL = "CANONICAL_URL"

    @classmethod
    def parse(cls, name: str) -> Strategy:
        """Return the strategy of a name or alias, in any case; raises `BadQuery`."""
        try:
            return cls[STRATEGY_ALIASES.get(name.upper(), name.upper())]
        except KeyError:
            names = ", ".join([*cls.__members__, *STRATEGY_ALIASES])
            raise BadQuery(f"no strategy {name!r}; there are {names}") from None

    def has_fast_answer(self) -> bool:
        """Return whether `index.format.fast_answer` gives the answers of this strategy.

        It prefers the capture of the exact URL, and finds nothing if nothing has the digest.
        """
        match self:
            case Strategy.DIGEST_ANY | Strategy.EXACT_URL | Strategy.CANONICAL_URL:
                return True
            case _:
                assert_never(self)


STRATEGY_ALIASES = {  # names in newer versions of the DeDuplicator
    "URL_EXACT": "EXACT_URL",
    "URL_CANONICAL": "CANONICAL_URL",
    "DIGEST_URL_PREFERRED": "DIGEST_ANY",
}


class Match(Enum):
    """How the URL of an original relates to that of the query, best first."""

    EXACT_URL = "exact_url"
    CANONICAL_URL = "canonical_url"
    DIGEST = "digest"


class Query(NamedTuple):
    """A lookup. An original of unknown size does not meet `min_size`."""

    digest: Digest
    url: bytes = b""  # empty: not given
    strategy: Strategy = Strategy.DIGEST_ANY
    max_age: int | None = None  # seconds between the original and `as_of`, or now
    as_of: bytes = b""  # WARC-Date: only originals captured then or before
    min_size: int = 0  # bytes of payload
    not_record: bytes = b""  # record id of the record that is looked up
    not_date: bytes = b""  # WARC-Date of the record that is looked up, which has `url`
    crawl: str = ""  # the asking crawl, which sees its own reports before they are committed
    mime: bytes = b""  # media type of the response, for policies; empty: that of the original
    namespaces: tuple[str, ...] = ()  # namespaces whose crawls may answer too
    policy: Policy = NO_POLICY
    covers: Covers = Covers.UNKNOWN  # which bytes the digest covers
    bridge: bool = False  # accept originals with a digest of another algorithm or of other bytes
    accepts: Callable[[Capture], bool] | None = None  # whether the protocol can name a capture
    size: int = -1  # bytes of the asker's capture, for statistics; not a condition

    def has_conditions(self) -> bool:
        """Return whether some captures with the digest may be refused."""
        return bool(
            self.as_of
            or self.max_age is not None
            or self.min_size
            or self.not_record
            or self.not_date
            or self.covers
            or self.accepts is not None
            or self.policy.selects_originals()
        )


def policy_in_force(query: Query) -> str:
    """Return the policy keyword that may refuse a capture stored now as an original of `query`."""
    policy = query.policy
    return policy.rules_for(query.url, query.mime).may_refuse() if policy.rules else ""


class Answer(NamedTuple):
    """An original and how it matches."""

    match: Match
    original: Capture
    skip: bool = False  # the policy says to write nothing: the same URL was stored just now


class Decision(NamedTuple):
    """The result of a lookup."""

    answer: Answer | None
    policy: str = ""  # keyword of the policy that refused a candidate
    reason: str = ""  # why no original can have such a digest: `CUT_DIGEST`


def require(settings: Settings, query: Query) -> None:
    """Raise `StrategyUnavailable` or `BadQuery` if the index cannot answer a query."""
    require_strategy(settings, query.strategy)
    if query.strategy is not Strategy.DIGEST_ANY and not query.url:
        raise BadQuery(f"{query.strategy.value} needs a url")


def require_strategy(settings: Settings, strategy: Strategy) -> None:
    """Raise `StrategyUnavailable` if the index was built without what a strategy needs."""
    match strategy:
        case Strategy.DIGEST_ANY:
            return
        case Strategy.EXACT_URL | Strategy.CANONICAL_URL:
            if not settings.url_index:
                raise StrategyUnavailable(
                    f"{strategy.value} needs URLs, and this index was built with --no-url-index"
                )
        case _:
            assert_never(strategy)
    if strategy is Strategy.CANONICAL_URL and not settings.canonical:
        raise StrategyUnavailable(
            "CANONICAL_URL needs canonical URLs, and this index was built with --no-canonicalized"
        )


def find(view: Finder, settings: Settings, query: Query) -> Answer | None:
    """Return the best original for a query, None if there is none; raises as `decide`."""
    return decide(view, settings, query).answer


def decide(view: Finder, settings: Settings, query: Query) -> Decision:
    """Return the best original for a query, and the policy that refused one, if any.

    Candidates are tried by exact URL, then canonical URL, then digest; among the captures that
    meet the query's conditions the earliest wins. At most `LIMIT` captures of a digest are read,
    or `CONDITIONAL_LIMIT` if none of them meets the conditions.

    Raises:
        StrategyUnavailable: the index was built without the URLs that the strategy needs.
        BadQuery: the strategy needs a URL and the query has none.
        IndexUnavailable: the index cannot be read. Never treat this as "no duplicate".
        Damaged: a stored entry is damaged.
    """
    require(settings, query)
    if query.digest in EMPTY:
        return Decision(None)
    if is_cut(query.digest.raw):
        return Decision(None, reason=CUT_DIGEST)
    rules = query.policy.rules_for(query.url, query.mime) if query.policy.rules else None
    if rules is not None and rules.never():
        return Decision(None, "never")
    now, refused, prefer = None, "", ""
    for match, captures in candidates(view, settings, query):
        best, skip = None, False
        for capture in captures:
            if now is None:
                now = reference_time(query)
            if unmet_condition(query, capture, now):
                continue
            if rules is not None:
                if objection := rules.refuses(capture, now):
                    refused = refused or objection.keyword
                    continue
                skip = skip or (_proves_stored(query, capture) and rules.skips(capture, now))
            if best is None:
                best, prefer = capture, rules.preference(capture) if rules is not None else ""
            elif _preferred(settings, query, prefer, capture, best):
                best = capture
        if best is not None:
            match = match or match_of(query.url, best.url)
            return Decision(Answer(match, best, skip and match is Match.EXACT_URL))
    return Decision(None, refused)


def _proves_stored(query: Query, capture: Capture) -> bool:
    """Return whether a capture proves that the query's URL is stored, so that it may be skipped.

    A record named by a revisit may be missing, and another crawl may be cancelled. A wrong revisit
    can be repaired later, a response that was never written cannot.
    """
    revocable = isinstance(capture, Uncommitted) and capture.crawl != query.crawl
    return capture.url == query.url and capture.evidence < Evidence.NAMED and not revocable


def match_of(url: bytes, original: bytes) -> Match:
    """Return how an original's URL relates to the URL of a query."""
    if not url:
        return Match.DIGEST
    if url == original:
        return Match.EXACT_URL
    return Match.CANONICAL_URL if urlkey(url) == urlkey(original) else Match.DIGEST


CandidateGroup = tuple[Match | None, list[Capture]]


def candidates(view: Finder, settings: Settings, query: Query) -> Iterator[CandidateGroup]:
    """Yield groups of captures in order of preference, each read when it is reached.

    Before a group stands the match of those of its captures that are in no earlier group, None if
    it is not known.
    """
    digest, url, strategy = query.digest, query.url, query.strategy
    try:
        captures = view.all_of(digest, FEW)
    except Damaged:
        captures = None  # perhaps a capture of another URL, which need not be read
    if captures is not None:
        yield from _grouped(captures, settings, query)
        return
    if url and settings.url_index:
        yield Match.EXACT_URL, view.exact(digest, url)
        if settings.canonical and strategy is not Strategy.EXACT_URL:
            yield Match.CANONICAL_URL, view.canonical(digest, urlkey(url), LIMIT)
    match strategy:
        case Strategy.EXACT_URL | Strategy.CANONICAL_URL:
            return
        case Strategy.DIGEST_ANY:
            yield None, view.any(digest, LIMIT)
            if query.has_conditions():
                yield None, view.any(digest, CONDITIONAL_LIMIT)
        case _:
            assert_never(strategy)


def _grouped(captures: list[Capture], settings: Settings, query: Query) -> Iterator[CandidateGroup]:
    """Yield all captures of a digest in the groups of `candidates`."""
    url, strategy, rest = query.url, query.strategy, None
    if captures and url and settings.url_index:
        exact = [capture for capture in captures if capture.url == url]
        if exact:
            yield Match.EXACT_URL, exact
        if settings.canonical and strategy is not Strategy.EXACT_URL:
            key, rest = urlkey(url), Match.DIGEST
            same = [capture for capture in captures if urlkey(capture.url) == key]
            if same:
                yield Match.CANONICAL_URL, same
    match strategy:
        case Strategy.EXACT_URL | Strategy.CANONICAL_URL:
            return
        case Strategy.DIGEST_ANY:
            yield rest, captures
        case _:
            assert_never(strategy)


def _preferred(
    settings: Settings, query: Query, prefer: str, capture: Capture, other: Capture
) -> bool:
    """Return whether a capture is a better original than another of its group."""
    if prefer:
        near = is_near(query, prefer, capture)
        if near is not is_near(query, prefer, other):
            return near
    mine, theirs = sort_key(capture.date), sort_key(other.date)
    if mine != theirs:
        return (mine < theirs) is wants_earliest(settings, prefer)
    return capture.url < other.url


def is_near(query: Query, prefer: str, capture: Capture) -> bool:
    """Return whether a capture is of the host or crawl that a policy prefers."""
    if prefer == "same_host":
        return host_of(capture.url) == host_of(query.url)
    return prefer == "same_crawl" and capture.crawl == query.crawl


def wants_earliest(settings: Settings, prefer: str) -> bool:
    """Return whether the earliest of several originals answers, and not the latest."""
    return prefer != "latest" if prefer else settings.keep == "earliest"


def reference_time(query: Query) -> int:
    """Return the time from which ages are counted, in seconds since 1970."""
    return seconds(query.as_of) if query.as_of else int(time.time())


_COVERED = {Covers.STORED: "body as stored, chunks and all", Covers.ENTITY: "body without chunks"}


def unmet_condition(query: Query, capture: Capture, now: int) -> str:
    """Return the condition of a query that a capture does not meet, "" if it meets all."""
    if not query.bridge:
        if capture.digest.algorithm != query.digest.algorithm:
            return f"its record states {capture.digest.algorithm}; with bridge it may answer"
        if query.covers and capture.covers and not query.covers & capture.covers:
            return f"its digest covers the {_COVERED[capture.covers]}; with bridge it may answer"
    if query.as_of and sort_key(capture.date) > sort_key(query.as_of):
        return f"captured after as_of {query.as_of.decode()}"
    if query.max_age is not None and now - seconds(capture.date) > query.max_age:
        return f"older than max_age {query.max_age} s"
    if query.min_size and (capture.size_of_record or capture.size < query.min_size):
        known = capture.size >= 0 and not capture.size_of_record
        return f"smaller than min_size {query.min_size}" if known else "payload size not known"
    if (query.not_record and capture.record_id == query.not_record) or (
        query.not_date and capture.date == query.not_date and capture.url == query.url
    ):
        return "is the asking record"
    if query.accepts is not None and not query.accepts(
        capture
    ):  # last, as it notes what it refuses
        return "cannot be named to the asker"
    return ""


def as_json(decision: Decision) -> dict[str, Any]:
    """Return the JSON object of ``GET /lookup``, ``bin/lookup --json`` and each batch line."""
    answer = decision.answer
    if answer is None:
        details = {"reason": decision.reason, "policy": decision.policy}
        return {"duplicate": False, **{name: text for name, text in details.items() if text}}
    return {
        "duplicate": True,
        "match": answer.match.value,
        "original": original_as_json(answer.original),
        **({"skip": True} if answer.skip else {}),
    }
