"""Why a lookup answers as it does: every capture that it looks at, and what speaks against it."""

from __future__ import annotations

from typing import Any, NamedTuple

from dedupindex.capture import Capture
from dedupindex.digest import EMPTY
from dedupindex.index.identity import Settings
from dedupindex.index.protocol import Finder
from dedupindex.lookup import (
    LIMIT,
    Answer,
    Match,
    Query,
    Strategy,
    candidates,
    find,
    match_of,
    moment,
    objection,
    require,
)
from dedupindex.original import original_as_json
from dedupindex.timestamps import sort_key


class Considered(NamedTuple):
    """One capture that a lookup looked at, and what was decided."""

    match: Match
    capture: Capture
    verdict: str


def considered(view: Finder, settings: Settings, query: Query) -> list[dict[str, Any]]:
    """The explanation of an answer in JSON: every capture looked at, and the verdict."""
    return [
        {
            "match": match.value,
            "verdict": verdict,
            "original": {**original_as_json(capture), "crawl": capture.crawl or None},
        }
        for match, capture, verdict in explain(view, settings, query)
    ]


def explain(view: Finder, settings: Settings, query: Query) -> list[Considered]:
    """Every capture that `find` would look at, and why each was refused or chosen.

    With a strategy that needs the URL also captures of the digest that it leaves out.
    """
    require(settings, query)
    if query.digest in EMPTY:
        return []
    answer = find(view, settings, query)
    considered: dict[tuple[bytes, bytes], Considered] = {}
    now, applied = moment(query), query.policy.applied(query.url, query.mime)
    for captures in candidates(view, settings, query):
        for capture in captures:
            verdict = objection(query, capture, now)
            if not verdict and (against := applied.refuses(capture, now)):
                verdict = against.verdict
            if not verdict:
                verdict = _against(settings, query, capture, answer)
            match = match_of(query.url, capture.url)
            considered.setdefault((capture.url, capture.date), Considered(match, capture, verdict))
    if query.strategy is not Strategy.DIGEST_ANY:
        verdict = f"another URL: {query.strategy.value} does not take it, DIGEST_ANY would"
        for capture in view.any(query.digest, LIMIT):
            match = match_of(query.url, capture.url)
            considered.setdefault((capture.url, capture.date), Considered(match, capture, verdict))
    return list(considered.values())


def _against(settings: Settings, query: Query, capture: Capture, answer: Answer | None) -> str:
    """Why a capture that might answer does or does not."""
    if answer is None or capture == answer.original:
        return "chosen"
    if match_of(query.url, capture.url) is not answer.match:
        return f"not preferred: {answer.match.value} goes first"
    if sort_key(capture.date) != sort_key(answer.original.date):
        earliest = settings.keep == "earliest"
        return f"not preferred: the chosen one is {'earlier' if earliest else 'later'}"
    return "not preferred: as old as the chosen one, whose URL sorts first"
