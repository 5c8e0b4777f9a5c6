"""Rows for the statistics of crawls, made from the requests of the server."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qs

from dedupindex.capture import Capture, OfCrawl
from dedupindex.crawls import counting
from dedupindex.crawls.counting import CountedHit, Missed, Noted, Other, Outcome
from dedupindex.crawls.statistics_keys import LONGEST
from dedupindex.lookup.conditions import LONGEST_NAME
from dedupindex.lookup.decide import Answer, Query, Strategy
from server.responses import RequestError

_STRANGERS = ("unauthorized", "forbidden")  # whose requests are nobody's lookups


class RequestCounting(counting.LookupCounter):
    """Counts the lookups of crawls that come as requests."""

    def note_answer(self, query: Query, answer: Answer | None, taken: int) -> None:
        """Count a lookup that was answered in `taken` nanoseconds."""
        if answer is not None:
            self.note_original(query.crawl, answer.original)
        if query.crawl:
            self.note((*lookup_row(query, answer), taken))

    def note_original(self, asker: str, original: Capture) -> None:
        """Count an original for the crawl that reported it, unless it is `asker`, "" for none."""
        if isinstance(original, OfCrawl) and original.crawl != asker:
            self.note_others(original.crawl)

    def note_unknown(self, given: Mapping[str, bytes], taken: int) -> None:
        """Count a lookup of a digest whose algorithm no index holds."""
        name = given.get("crawl", b"").decode("utf-8", "replace")
        if name:
            strategy = Strategy.DIGEST_ANY.value
            self.note((name[:LONGEST_NAME], strategy, given.get("url", b""), None, -1, taken))

    def note_failure(self, error: Exception, query_string: str) -> None:
        """Count a lookup that failed, if it names its crawl."""
        if "crawl=" not in query_string:
            return
        if isinstance(error, RequestError) and error.reason in _STRANGERS:
            return
        given = parse_qs(query_string, errors="surrogateescape")
        for name in given.get("crawl", [])[:1]:
            self.note(failed_lookup(name, given.get("url", [""])[0]))


def lookup_row(query: Query, answer: Answer | None) -> tuple[str, str, bytes, Outcome, int]:
    """Return the statistics row of an answer, without the time that it took."""
    outcome: Outcome = Missed(query.mime[:LONGEST]) if query.mime else None
    if answer is not None:
        outcome = CountedHit.of(answer.match.value, answer.original)
    return query.crawl, query.strategy.value, query.url, outcome, query.size


def failed_lookup(crawl: str, url: str | bytes = "") -> Noted:
    """Return the statistics row of a lookup that was answered with an error."""
    return crawl[:LONGEST_NAME], "", url, Other.FAILED, -1, 0
