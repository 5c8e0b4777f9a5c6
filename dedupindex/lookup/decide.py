"""The decision of a lookup: an original, or none, or an error that says "cannot tell".

Strategies, as in the DeDuplicator's manual: DIGEST_ANY finds any original with the digest and
prefers one of the same exact URL, then of the same canonical URL; EXACT_URL and CANONICAL_URL find
nothing else. The match class that comes with an answer is calculated from the two URLs, so it is
right even if the index holds no URLs.

Work is bounded: of a digest with millions of URLs at most `LIMIT` captures are looked at beyond
the exact URL (`CONDITIONAL_LIMIT` if the query's conditions refuse all of those), in the order of
keys, and the earliest of them that passes is the answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, assert_never

from dedupindex.capture import Capture, Covers, Evidence, Uncommitted
from dedupindex.digest import CUT_DIGEST, EMPTY, Digest, is_cut
from dedupindex.errors import BadQuery, StrategyUnavailable
from dedupindex.index.engine import Finder
from dedupindex.index.identity import Settings
from dedupindex.lookup.policy import NO_POLICY, Policy
from dedupindex.lookup.render_json import original_as_json
from dedupindex.timestamps import seconds, sort_key
from dedupindex.urlkey import urlkey

LIMIT = 100  # captures of one digest that a lookup looks at
CONDITIONAL_LIMIT = 10_000  # the same if none of those meets the conditions of the query


class Strategy(Enum):
    """Which captures may answer a lookup; the value is the name, as the server takes it.

    >>> [strategy.value for strategy in dedupindex.Strategy]
    ['DIGEST_ANY', 'EXACT_URL', 'CANONICAL_URL']
    """

    DIGEST_ANY = "DIGEST_ANY"
    EXACT_URL = "EXACT_URL"
    CANONICAL_URL = "CANONICAL_URL"

    @classmethod
    def parse(cls, name: str) -> Strategy:
        """The strategy of a name of the manual, or of the newer code's."""
        try:
            return cls[NEWER_NAMES.get(name.upper(), name.upper())]
        except KeyError:
            names = ", ".join([*cls.__members__, *NEWER_NAMES])
            raise BadQuery(f"no strategy {name!r}; there are {names}") from None

    def has_fast_answer(self) -> bool:
        """Return whether `index.answer_bytes` gives the answers of this strategy.

        It answers with the capture of the digest and exactly the URL, and finds nothing where
        nothing has the digest. A strategy that prefers another capture returns False.
        """
        match self:
            case Strategy.DIGEST_ANY | Strategy.EXACT_URL | Strategy.CANONICAL_URL:
                return True
            case _:
                assert_never(self)


NEWER_NAMES = {
    "URL_EXACT": "EXACT_URL",
    "URL_CANONICAL": "CANONICAL_URL",
    "DIGEST_URL_PREFERRED": "DIGEST_ANY",
}


class Match(Enum):
    """How an original relates to what was asked, best first."""

    EXACT_URL = "exact_url"
    CANONICAL_URL = "canonical_url"
    DIGEST = "digest"


@dataclass(frozen=True)
class Query:
    """What is asked. Conditions that an original's unknown size or date cannot meet fail."""

    digest: Digest
    url: bytes = b""  # empty: not given
    strategy: Strategy = Strategy.DIGEST_ANY
    max_age: int | None = None  # seconds between the original and `as_of`, or now
    as_of: bytes = b""  # WARC-Date: only originals captured then or before
    min_size: int = 0  # bytes of payload
    not_record: bytes = b""  # record id of the asking record
    not_date: bytes = b""  # WARC-Date of the asking record, which has `url`
    crawl: str = ""  # that asks, and so sees what it has reported itself
    mime: bytes = b""  # media type that was served, for policies; not given: the original's counts
    namespaces: tuple[str, ...] = ()  # whose crawls may answer too
    policy: Policy = NO_POLICY
    covers: Covers = Covers.UNKNOWN  # what the digest was taken of
    bridge: bool = False  # take originals whose own digest is of another algorithm or other bytes
    fits: Callable[[Capture], bool] | None = None  # what else the asker's protocol can name
    size: int = -1  # bytes that the asker counts for its capture; no condition, for statistics

    def conditional(self) -> bool:
        """Whether a capture with the digest may be refused."""
        return bool(
            self.as_of
            or self.max_age is not None
            or self.min_size
            or self.not_record
            or self.not_date
            or self.covers
            or self.fits is not None
            or self.policy.narrowing()
        )


def wary(query: Query) -> str:
    """The word of a policy that may refuse, to one who asks the same, what is stored only now."""
    policy = query.policy
    return policy.applied(query.url, query.mime).wary() if policy.rules else ""


class Answer(NamedTuple):
    """An original and how it matches."""

    match: Match
    original: Capture
    skip: bool = False  # a policy wants nothing written at all: the same URL was stored just now


class Decision(NamedTuple):
    """What a lookup came to."""

    answer: Answer | None
    policy: str = ""  # the word of the policy without which there may have been an answer
    reason: str = ""  # why no original can have such a digest: `CUT_DIGEST`


def require(settings: Settings, query: Query) -> None:
    """Raise `StrategyUnavailable` or `BadQuery` if the index cannot answer such a query."""
    require_strategy(settings, query.strategy)
    if query.strategy is not Strategy.DIGEST_ANY and not query.url:
        raise BadQuery(f"{query.strategy.value} needs a url")


def require_strategy(settings: Settings, strategy: Strategy) -> None:
    """Raise `StrategyUnavailable` if the index can answer no query of a strategy."""
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
    """The best original for a query, or None when there is none.

    Raises `StrategyUnavailable`, `BadQuery`, `IndexUnavailable` or `Damaged`.
    """
    return decide(view, settings, query).answer


def decide(view: Finder, settings: Settings, query: Query) -> Decision:
    """The same, and what a policy has to do with it."""
    require(settings, query)
    if query.digest in EMPTY:
        return Decision(None)
    if is_cut(query.digest.raw):
        return Decision(None, reason=CUT_DIGEST)
    applied = query.policy.applied(query.url, query.mime) if query.policy.rules else None
    if applied is not None and applied.never():
        return Decision(None, "never")
    now, refused = None, ""
    for captures in candidates(view, settings, query):
        best, skip = None, False
        for capture in captures:
            if now is None:
                now = moment(query)
            if objection(query, capture, now):
                continue
            if applied is not None:
                if against := applied.refuses(capture, now):
                    refused = refused or against.kind
                    continue
                skip = skip or (_certain(query, capture) and applied.skips(capture, now))
            if best is None or _preferred(settings, capture, best):
                best = capture
        if best is not None:
            match = match_of(query.url, best.url)
            return Decision(Answer(match, best, skip and match is Match.EXACT_URL))
    return Decision(None, refused)


def _certain(query: Query, capture: Capture) -> bool:
    """Whether a capture of the query's URL is there beyond doubt, and stays.

    A revisit of what proves to be none can be mended; where nothing was written, nothing can.
    """
    passing = isinstance(capture, Uncommitted) and capture.crawl != query.crawl
    return capture.url == query.url and capture.evidence < Evidence.NAMED and not passing


def match_of(url: bytes, original: bytes) -> Match:
    """How an original's URL relates to the one that was asked for."""
    if not url:
        return Match.DIGEST
    if url == original:
        return Match.EXACT_URL
    return Match.CANONICAL_URL if urlkey(url) == urlkey(original) else Match.DIGEST


def candidates(view: Finder, settings: Settings, query: Query) -> Iterator[list[Capture]]:
    """Captures in order of preference, read only as far as they are asked for."""
    digest, url, strategy = query.digest, query.url, query.strategy
    if url and settings.url_index:
        yield view.exact(digest, url)
        if settings.canonical and strategy is not Strategy.EXACT_URL:
            yield view.canonical(digest, urlkey(url), LIMIT)
    match strategy:
        case Strategy.EXACT_URL | Strategy.CANONICAL_URL:
            return
        case Strategy.DIGEST_ANY:
            yield view.any(digest, LIMIT)
            if query.conditional():
                yield view.any(digest, CONDITIONAL_LIMIT)
        case _:
            assert_never(strategy)


def _preferred(settings: Settings, capture: Capture, other: Capture) -> bool:
    mine, theirs = sort_key(capture.date), sort_key(other.date)
    if mine != theirs:
        return (mine < theirs) is (settings.keep == "earliest")
    return capture.url < other.url


def moment(query: Query) -> int:
    return seconds(query.as_of) if query.as_of else int(time.time())


_COVERED = {Covers.STORED: "body as stored, chunks and all", Covers.ENTITY: "body without chunks"}


def objection(query: Query, capture: Capture, now: int) -> str:
    """Why a capture may not answer a query, "" if it may."""
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
    if query.fits is not None and not query.fits(capture):
        return "cannot be named to the asker"
    if query.not_record and capture.record_id == query.not_record:
        return "is the asking record"
    if query.not_date and capture.date == query.not_date and capture.url == query.url:
        return "is the asking record"
    return ""


def as_json(decision: Decision) -> dict[str, Any]:
    """The object of ``GET /lookup``, of ``bin/lookup --json`` and of every line of a batch."""
    answer = decision.answer
    if answer is None:
        more = {"reason": decision.reason, "policy": decision.policy}
        return {"duplicate": False, **{name: word for name, word in more.items() if word}}
    return {
        "duplicate": True,
        "match": answer.match.value,
        "original": original_as_json(answer.original),
        **({"skip": True} if answer.skip else {}),
    }
