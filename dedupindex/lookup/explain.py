"""Explain a lookup: the captures that it considered, and why each was refused or chosen."""

from __future__ import annotations

from typing import Any, NamedTuple

from dedupindex.capture import Capture
from dedupindex.digest import EMPTY, is_cut
from dedupindex.index.engine import Finder
from dedupindex.index.identity import Settings
from dedupindex.lookup.decide import (
    LIMIT,
    Answer,
    Match,
    Query,
    Strategy,
    candidates,
    find,
    match_of,
    reference_time,
    require,
    unmet_condition,
)
from dedupindex.lookup.render_json import original_as_json
from dedupindex.timestamps import sort_key

MAX_CONSIDERED = 100  # captures of an explanation
_CHOSEN = "chosen"


class Considered(NamedTuple):
    """A capture that a lookup considered, and the verdict on it."""

    match: Match
    capture: Capture
    verdict: str


def explanation_json(view: Finder, settings: Settings, query: Query) -> dict[str, Any]:
    """Return what an explanation adds to an answer: `considered`, and `more` if it was cut."""
    captures, more = explain(view, settings, query)
    considered = [
        {
            "match": match.value,
            "verdict": verdict,
            "original": {**original_as_json(capture), "crawl": capture.crawl or None},
        }
        for match, capture, verdict in captures
    ]
    return {"considered": considered, **({"more": True} if more else {})}


def explain(view: Finder, settings: Settings, query: Query) -> tuple[list[Considered], bool]:
    """Return the captures that `find` considers, each once, and whether there are more.

    If the strategy needs the URL, other captures with the digest follow. There are at most
    `MAX_CONSIDERED`, among them the chosen one.
    """
    require(settings, query)
    if query.digest in EMPTY or is_cut(query.digest.raw):
        return [], False
    answer = find(view, settings, query)
    considered: dict[tuple[bytes, bytes], Considered] = {}
    more = False

    def add(capture: Capture, verdict: str) -> None:
        nonlocal more
        key = capture.url, capture.date
        if key in considered:
            return
        if len(considered) >= MAX_CONSIDERED:
            more = True
            if verdict != _CHOSEN:
                return
            considered.popitem()
        considered[key] = Considered(match_of(query.url, capture.url), capture, verdict)

    now, rules = reference_time(query), query.policy.rules_for(query.url, query.mime)
    for captures in candidates(view, settings, query):
        for capture in captures:
            verdict = unmet_condition(query, capture, now)
            if not verdict and (objection := rules.refuses(capture, now)):
                verdict = objection.verdict
            add(capture, verdict or _preference(settings, query, capture, answer))
    if query.strategy is not Strategy.DIGEST_ANY:
        verdict = f"another URL: {query.strategy.value} does not take it, DIGEST_ANY would"
        for capture in view.any(query.digest, LIMIT):
            add(capture, verdict)
    return list(considered.values()), more


def _preference(settings: Settings, query: Query, capture: Capture, answer: Answer | None) -> str:
    """Return why a capture that meets all conditions was chosen or not."""
    if answer is None or capture == answer.original:
        return _CHOSEN
    if match_of(query.url, capture.url) is not answer.match:
        return f"not preferred: {answer.match.value} goes first"
    if sort_key(capture.date) != sort_key(answer.original.date):
        earliest = settings.keep == "earliest"
        return f"not preferred: the chosen one is {'earlier' if earliest else 'later'}"
    return "not preferred: as old as the chosen one, whose URL sorts first"
