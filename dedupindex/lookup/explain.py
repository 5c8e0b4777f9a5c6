"""Why a lookup answers as it does: the captures that it looks at, and what speaks against them."""

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
    moment,
    objection,
    require,
)
from dedupindex.lookup.render_json import original_as_json
from dedupindex.timestamps import sort_key

MOST = 100  # captures of an explanation
_CHOSEN = "chosen"


class Considered(NamedTuple):
    """One capture that a lookup looked at, and what was decided."""

    match: Match
    capture: Capture
    verdict: str


def explained(view: Finder, settings: Settings, query: Query) -> dict[str, Any]:
    """What is added to an answer in JSON: `considered`, and `more` if that is not all."""
    some, more = explain(view, settings, query)
    considered = [
        {
            "match": match.value,
            "verdict": verdict,
            "original": {**original_as_json(capture), "crawl": capture.crawl or None},
        }
        for match, capture, verdict in some
    ]
    return {"considered": considered, **({"more": True} if more else {})}


def explain(view: Finder, settings: Settings, query: Query) -> tuple[list[Considered], bool]:
    """What `find` would look at, why each was refused or chosen; and whether there is more.

    With a strategy that needs the URL also captures of the digest that it leaves out. Of more than
    `MOST` the first ones, and the one that was chosen.
    """
    require(settings, query)
    if query.digest in EMPTY or is_cut(query.digest.raw):
        return [], False
    answer = find(view, settings, query)
    considered = _Some()
    now, applied = moment(query), query.policy.applied(query.url, query.mime)
    for captures in candidates(view, settings, query):
        for capture in captures:
            verdict = objection(query, capture, now)
            if not verdict and (against := applied.refuses(capture, now)):
                verdict = against.verdict
            if not verdict:
                verdict = _against(settings, query, capture, answer)
            considered.add(query, capture, verdict)
    if query.strategy is not Strategy.DIGEST_ANY:
        verdict = f"another URL: {query.strategy.value} does not take it, DIGEST_ANY would"
        for capture in view.any(query.digest, LIMIT):
            considered.add(query, capture, verdict)
    return list(considered.kept.values()), considered.more


class _Some:
    """Captures that were considered, each once, as many as are shown."""

    def __init__(self) -> None:
        self.kept: dict[tuple[bytes, bytes], Considered] = {}
        self.more = False

    def add(self, query: Query, capture: Capture, verdict: str) -> None:
        key = capture.url, capture.date
        if key in self.kept:
            return
        if len(self.kept) >= MOST:
            self.more = True
            if verdict != _CHOSEN:
                return
            self.kept.popitem()
        self.kept[key] = Considered(match_of(query.url, capture.url), capture, verdict)


def _against(settings: Settings, query: Query, capture: Capture, answer: Answer | None) -> str:
    """Why a capture that might answer does or does not."""
    if answer is None or capture == answer.original:
        return _CHOSEN
    if match_of(query.url, capture.url) is not answer.match:
        return f"not preferred: {answer.match.value} goes first"
    if sort_key(capture.date) != sort_key(answer.original.date):
        earliest = settings.keep == "earliest"
        return f"not preferred: the chosen one is {'earlier' if earliest else 'later'}"
    return "not preferred: as old as the chosen one, whose URL sorts first"
