"""Explain a lookup: the captures that it considered, and why each was refused or chosen."""

from __future__ import annotations

from itertools import islice
from typing import Any

from dedupindex.capture import Capture
from dedupindex.digest import EMPTY, SIZES, is_cut
from dedupindex.index.address import is_cluster
from dedupindex.index.engine import Finder, View
from dedupindex.index.format.cells import CODES, digest_prefix, entries_of
from dedupindex.index.format.tombstones import is_purged
from dedupindex.index.identity import Settings
from dedupindex.lookup import decide
from dedupindex.lookup.decide import Answer, Query, Strategy
from dedupindex.lookup.render_json import original_as_json
from dedupindex.timestamps import sort_key

MAX_CONSIDERED = 100  # captures of an explanation
_CHOSEN = "chosen"


def explanation_json(view: Finder, settings: Settings, query: Query) -> dict[str, Any]:
    """Return what an explanation adds to an answer: `considered`, and `more` if it was cut.

    These are the captures that `find` considers, each once. If the strategy needs the URL, other
    captures with the digest follow. There are at most `MAX_CONSIDERED`, the chosen one among them.
    """
    decide.require(settings, query)
    if query.digest in EMPTY or is_cut(query.digest.raw):
        return {"considered": []}
    answer = decide.find(view, settings, query)
    considered: dict[tuple[bytes, bytes], dict[str, Any]] = {}
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
        considered[key] = {
            "match": decide.match_of(query.url, capture.url).value,
            "verdict": verdict,
            "original": {**original_as_json(capture), "crawl": capture.crawl or None},
        }

    now, rules = decide.reference_time(query), query.policy.rules_for(query.url, query.mime)
    for _, captures in decide.candidates(view, settings, query):
        for capture in captures:
            verdict = decide.unmet_condition(query, capture, now)
            if not verdict and (objection := rules.refuses(capture, now)):
                verdict = objection.verdict
            if not verdict:
                prefer = rules.preference(capture)
                verdict = _preference(settings, query, prefer, capture, answer)
            add(capture, verdict)
    if query.strategy is not Strategy.DIGEST_ANY:
        verdict = f"another URL: {query.strategy.value} does not take it, DIGEST_ANY would"
        for capture in view.any(query.digest, decide.LIMIT):
            add(capture, verdict)
    return {"considered": list(considered.values()), **({"more": True} if more else {})}


def left_out_hint(view: Finder, settings: Settings, query: Query) -> str:
    """Say why a query without an answer has none although its digest is known; "" if it is not."""
    if query.digest in EMPTY:
        return "this is the digest of an empty payload, which is never an original"
    if not explanation_json(view, settings, query)["considered"]:
        return ""
    return "captures have this digest, and none meets all conditions: --explain says why"


def algorithm_hint(view: View, query: Query, engine: str) -> str:
    """Say that an index on disk has no digest of the query's algorithm; "" if it has one.

    Nothing of such an algorithm can be found, which is no statement about the payload. A cluster
    would read everything to find one digest of an algorithm, so it is not asked.
    """
    if is_cluster(engine):
        return ""
    asked = query.digest.algorithm
    held = [name for name in SIZES if next(view.cells(CODES[name]), None) is not None]
    if not held or asked in held or query.crawl:  # a crawl may have reported others
        return ""
    return (
        f"the index has no digest of the algorithm {asked}, only {' and '.join(held)}, so it knows "
        f"no payload by {asked}; an index made with bin/index --also-digest {asked} does"
    )


def purged_hint(view: View, query: Query) -> str:
    """Say that captures with the query's digest were purged from the index; "" if none were."""
    cells = view.cells(digest_prefix(query.digest))
    entries = (entry for _, cell in cells for entry in entries_of(cell))
    if not any(map(is_purged, islice(entries, MAX_CONSIDERED))):
        return ""
    return "captures with this digest were purged from the index"


def _preference(
    settings: Settings, query: Query, prefer: str, capture: Capture, answer: Answer | None
) -> str:
    """Return why a capture that meets all conditions was chosen or not."""
    if answer is None or capture == answer.original:
        return _CHOSEN
    if decide.match_of(query.url, capture.url) is not answer.match:
        return f"not preferred: {answer.match.value} goes first"
    if decide.is_near(query, prefer, capture) != decide.is_near(query, prefer, answer.original):
        return f"not preferred: a policy prefers the {prefer.replace('_', ' ')}"
    if sort_key(capture.date) != sort_key(answer.original.date):
        earliest = decide.wants_earliest(settings, prefer)
        return f"not preferred: the chosen one is {'earlier' if earliest else 'later'}"
    return "not preferred: as old as the chosen one, whose URL sorts first"
