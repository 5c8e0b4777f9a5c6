"""Of new payloads that come several times in one batch, which lookup was the first."""

from __future__ import annotations

from typing import Any, assert_never

from dedupindex.digest import EMPTY, is_cut
from dedupindex.lookup.decide import Query, Strategy
from dedupindex.urlkey import urlkey

_KEPT = 100_000  # payloads of one batch; of a longer stream the rest are not compared


class Firsts:
    """The new payloads of one batch."""

    def __init__(self) -> None:
        self._places: dict[tuple[Any, ...], int] = {}

    def before(self, query: Query, place: int) -> int | None:
        """Where the payload of a query that found nothing came first, None if it is here.

        If what the first of two stores would answer the second, they are the same.
        """
        if query.digest in EMPTY or is_cut(query.digest.raw):
            return None
        match query.strategy:
            case Strategy.DIGEST_ANY:
                url = b""
            case Strategy.EXACT_URL:
                url = query.url
            case Strategy.CANONICAL_URL:
                url = urlkey(query.url)
            case _:
                assert_never(query.strategy)
        key = (query.digest, query.covers, query.crawl, query.namespaces, url)
        first = self._places.get(key)
        if first is None and len(self._places) < _KEPT:
            self._places[key] = place
        return first
