"""Duplicates within one batch: new payloads that several of its lookups ask for."""

from __future__ import annotations

from typing import Any, assert_never

from dedupindex.digest import EMPTY, is_cut
from dedupindex.lookup.decide import Query, Strategy
from dedupindex.urlkey import urlkey

_MAX_PAYLOADS = 100_000  # of one batch; those of a longer stream are not compared


class BatchDuplicates:
    """The new payloads of one batch."""

    def __init__(self) -> None:
        self._places: dict[tuple[Any, ...], int] = {}

    def first_place(self, query: Query, place: int) -> int | None:
        """Return the place of the first lookup of a new payload, None if that is this one.

        Two payloads are the same if the capture of the first would be the original of the second.
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
        if first is None and len(self._places) < _MAX_PAYLOADS:
            self._places[key] = place
        return first
