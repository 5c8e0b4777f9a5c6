"""Searching an index as a person would: by host, words, type, date, size, digest or container.

The language is in `query`. Only the Whoosh engine holds what it takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from heapq import nsmallest
from pathlib import Path
from typing import NamedTuple

from dedupindex.capture import Capture
from dedupindex.errors import StrategyUnavailable
from dedupindex.index import open_index
from dedupindex.index.engines.whoosh.whoosh_engine import WhooshEngine
from dedupindex.index.engines.whoosh.whoosh_search import Parsed
from dedupindex.index.engines.whoosh.whoosh_view import WhooshView, reading

LIMIT = 100


class SearchResult(NamedTuple):
    """How many captures match, and the earliest of them, in the order of dates."""

    total: int
    captures: list[Capture]


def search(index: Path, text: str, limit: int = LIMIT) -> SearchResult:
    """The captures that a query matches; `limit` 0 for all of them.

    Raises `BadQuery`, `StrategyUnavailable` if the index is on another engine, `IndexUnavailable`
    or `Damaged`.
    """
    with closing(open_index(index)) as engine:
        if not isinstance(engine, WhooshEngine):
            raise StrategyUnavailable(
                f"the index at {index} is on engine {engine.identity.engine}, which cannot be "
                "searched; build one with --engine whoosh"
            )
        parsed = Parsed(text)
        with engine.view() as view:
            return search_view(view, parsed, limit)


def search_view(view: WhooshView, parsed: Parsed, limit: int) -> SearchResult:
    """Like `search`, in a view that is open."""
    total = 0

    def matching() -> Iterator[tuple[bytes, bytes]]:
        nonlocal total
        for moment, content in view.matching(parsed.query, parsed.asks_digest):
            total += 1
            yield moment, content

    with reading("the index"):
        found = nsmallest(limit, matching()) if limit else sorted(matching())
        return SearchResult(total, [view.decoded(content) for _, content in found])
