"""What a client asked and what came of it, to be shown at the end of a crawl."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from dedupindex.client.answers import (
    SPELLED_OTHERWISE,
    Claimed,
    Hit,
    Miss,
    NotAsked,
    Reported,
    Taken,
)


class Counts:
    """Numbers of a client's life, safe to read at any time.

    Every lookup and claim ends as a hit, a miss, taken or not looked up; they add up. Of the misses
    some are hits that replay would not find: `spelled_otherwise`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._why: Counter[str] = Counter()
        self._missed: dict[str, Counter[str]] = {}  # by crawl

    def answered(self, answer: Hit | Miss | NotAsked | Claimed | Taken, crawl: object = "") -> None:
        """Count what came of a lookup or claim that a crawl made."""
        with self._lock:
            self._counts["lookups"] += 1
            if isinstance(answer, NotAsked):
                self._why[answer.why] += 1
                self._of(crawl)["not_looked_up"] += 1
            else:
                self._counts[_NAMES[type(answer)]] += 1
                self._counts["spelled_otherwise"] += answer == SPELLED_OTHERWISE

    def reported(self, done: Reported) -> None:
        """Count what became of captures that reached an end: all but those kept."""
        with self._lock:
            for name in ("added", "unchanged", "refused", "bad"):
                self._counts[name] += getattr(done, name)
            self._counts["not_reported"] += done.dropped

    def dropped(self, crawl: str, count: int) -> None:
        """Count captures of a crawl that are not reported, beside `reported`."""
        with self._lock:
            self._of(crawl)["not_reported"] += count

    def missed(self, crawl: str) -> dict[str, int]:
        """What a crawl did not look up and not report, for the server's report of it."""
        with self._lock:
            missed = self._missed.get(crawl, Counter())
            return {name: missed[name] for name in ("not_looked_up", "not_reported")}

    def crawls(self) -> list[str]:
        """The crawls that missed something."""
        with self._lock:
            return [crawl for crawl, missed in self._missed.items() if crawl and missed.total()]

    def _of(self, crawl: object) -> Counter[str]:
        name = crawl if isinstance(crawl, str) else ""
        if name not in self._missed and len(self._missed) >= _CRAWLS:
            name = ""
        return self._missed.setdefault(name, Counter())

    @property
    def not_looked_up(self) -> int:
        """Lookups that nobody answered."""
        with self._lock:
            return self._why.total()

    def as_json(self) -> dict[str, Any]:
        """All counts, by name."""
        with self._lock:
            counts = {name: self._counts[name] for name in _ALL}
            why = dict(sorted(self._why.items()))
        return {**counts, "not_looked_up": sum(why.values()), "not_looked_up_why": why}


_CRAWLS = 1000  # that are counted apart
_NAMES: dict[type, str] = {Hit: "hits", Miss: "misses", Claimed: "misses", Taken: "taken"}
_ALL = (
    *("lookups", "hits", "misses", "taken", "spelled_otherwise"),
    *("added", "unchanged", "refused", "bad", "not_reported"),
)
