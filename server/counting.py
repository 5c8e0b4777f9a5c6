"""What requests of crawls come to, as the statistics count it."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qs

from dedupindex.capture import Capture, OfCrawl
from dedupindex.crawls import counting
from dedupindex.crawls.counting import Hit, Missed, Noted, Other, Outcome
from dedupindex.crawls.statistics_keys import LONGEST
from dedupindex.lookup.conditions import LONGEST_NAME
from dedupindex.lookup.decide import Answer, Query, Strategy
from server.responses import RequestError

_STRANGERS = ("unauthorized", "forbidden")  # whose requests are nobody's lookups


class Counting(counting.Counting):
    """Counts lookups of crawls as the server meets them."""

    def note_answer(self, query: Query, answer: Answer | None, taken: int) -> None:
        """A lookup that was answered in `taken` nanoseconds."""
        if answer is not None:
            self.note_original(query.crawl, answer.original)
        if query.crawl:
            self.note((*noted(query, answer), taken))

    def note_original(self, asker: str, original: Capture) -> None:
        """An original that another crawl reported than that which it answered, "" for none."""
        if isinstance(original, OfCrawl) and original.crawl != asker:
            self.note_others(original.crawl)

    def note_unknown(self, given: Mapping[str, bytes], taken: int) -> None:
        """A lookup of a digest whose algorithm no index holds."""
        name = given.get("crawl", b"").decode("utf-8", "replace")
        if name:
            strategy = Strategy.DIGEST_ANY.value
            self.note((name[:LONGEST_NAME], strategy, given.get("url", b""), None, -1, taken))

    def note_failure(self, error: Exception, query_string: str) -> None:
        """A lookup that ended with an error, if it says which crawl made it."""
        if "crawl=" not in query_string:
            return
        if isinstance(error, RequestError) and error.reason in _STRANGERS:
            return
        given = parse_qs(query_string, errors="surrogateescape")
        for name in given.get("crawl", [])[:1]:
            self.note(failed(name, given.get("url", [""])[0]))


def noted(query: Query, answer: Answer | None) -> tuple[str, str, bytes, Outcome, int]:
    """What is counted of an answer, but for the time that it took."""
    outcome: Outcome = Missed(query.mime[:LONGEST]) if query.mime else None
    if answer is not None:
        outcome = Hit.of(answer.match.value, answer.original)
    return query.crawl, query.strategy.value, query.url, outcome, query.size


def failed(crawl: str, url: str | bytes = "") -> Noted:
    """A lookup that was answered by an error."""
    return crawl[:LONGEST_NAME], "", url, Other.FAILED, -1, 0
