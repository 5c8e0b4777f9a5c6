"""What crawls report over HTTP: that they begin and end, what they stored, what they claim.

Every request may be sent again when its answer was lost: beginning, ending and reporting twice
changes nothing. Nothing is acknowledged before it is on disk.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from secrets import token_bytes
from time import perf_counter_ns
from typing import Any

from dedupindex import lookup
from dedupindex.asking import of_json, query_of
from dedupindex.capture import Capture, Covers
from dedupindex.crawlreport import date, warning
from dedupindex.crawls import claims, life, statistics
from dedupindex.crawls.captures import Added, add
from dedupindex.crawls.crawl import Crawl, Seen
from dedupindex.crawls.reported import capture_of
from dedupindex.crawls.store import Reading, Writing
from dedupindex.crawls.told import tell, told_of
from dedupindex.crawls.view import Snapshot
from dedupindex.errors import BadInput, BadQuery, DedupError, UnknownCrawl
from dedupindex.lookup import Answer
from server.fields import TOLD, numbers, one_of, only, stated, text_of, texts
from server.judges import Judges
from server.live import LiveIndex
from server.replies import RequestError, error_object

STRETCH = 1000  # captures in one transaction: others write in between
_TOKEN = re.compile(r"(?:[0-9A-Fa-f]{32})?")
_BEGIN = ("name", "seen_by", "digest_covers", "strategy", "policy", "namespace")


@dataclass
class Reported:
    """What became of the captures of a request."""

    added: int = 0
    unchanged: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    bad: int = 0
    results: list[Any] = field(default_factory=list)

    def take(self, done: Added, bad: int, results: list[Any]) -> None:
        """Add what became of some of them."""
        self.added += done.added
        self.unchanged += done.unchanged
        self.bad += bad
        for reason, count in done.refused.items():
            self.refused[reason] = self.refused.get(reason, 0) + count
        self.results += results

    def counts(self) -> dict[str, int]:
        """How many by what became of them."""
        refused = sum(self.refused.values())
        done = {"added": self.added, "unchanged": self.unchanged}
        return {**done, "refused": refused, "bad": self.bad}


class Reporting:
    """Answers what crawls report, in any number of threads; raises `DedupError`."""

    def __init__(self, live: LiveIndex, judges: Judges, most: int) -> None:
        self._live, self._judges, self._most = live, judges, most

    def begin(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What `_BEGIN` names, all but the name as one likes, to the crawl as it stands."""
        only(given, *_BEGIN)
        self._live.opened()  # crawls of no index would be lost with their directory
        name = text_of(given, "name")
        seen = one_of(given, "seen_by", {one.value: one for one in Seen}, Seen.OWN)
        covers = one_of(
            given, "digest_covers", {one.name.lower(): one for one in Covers}, Covers.UNKNOWN
        )
        change = partial(life.begin, name=name, seen=seen, covers=covers, **stated(given))
        return self._shown(self._live.crawls.write(change, make=True))

    def namespace_of(self, crawl: str) -> str | None:
        """The namespace of a crawl, None if there is no such crawl."""
        known = self._live.crawls.crawl(crawl)
        return None if known is None else known.namespace

    def end(self, name: str, given: Mapping[str, Any], *, keep: bool) -> dict[str, Any]:
        """Commit or cancel; ``{"exit"?, …}`` and what `told` takes, to the crawl as it stands."""
        only(given, "exit", *TOLD)
        step, exit, who = life.commit if keep else life.cancel, *texts(given, "exit", "who")
        said = numbers(given)
        self._live.crawls.write_counts()  # a crawl that was short is shown as it was

        def change(writing: Writing) -> Crawl:
            crawl = step(writing, name, exit)
            tell(writing, crawl, said, who)
            return crawl

        return self._shown(self._live.crawls.write(change))

    def told(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """``{"not_looked_up"?, "not_reported"?, "who"?}``, also of a crawl that has ended."""
        only(given, *TOLD)
        said, who = numbers(given), text_of(given, "who")

        def change(writing: Writing) -> Crawl:
            crawl = writing.crawl(name)
            tell(writing, crawl, said, who)
            return crawl

        return self._shown(self._live.crawls.write(change))

    def crawls(self, most: int = 0, after: str = "") -> list[dict[str, Any]]:
        """Crawls, the newest first: `most` of them, 0 for all, that began before one named."""
        with self._live.crawls.reading() as reading:
            if reading is None:
                return []
            before = reading.crawl(after) if after else None
            return [
                _shown(reading, crawl) for crawl in islice(reading.newest(before), most or None)
            ]

    def crawl(self, name: str) -> dict[str, Any]:
        """One crawl; raises `UnknownCrawl`."""
        with self._live.crawls.reading() as reading:
            if reading is None:
                raise UnknownCrawl(f"there is no crawl {name[:200]!r}")
            return _shown(reading, reading.crawl(name))

    def _shown(self, crawl: Crawl) -> dict[str, Any]:
        return self.crawl(crawl.name)

    def captures(self, crawl: str, given: Mapping[str, Any], total: Reported) -> None:
        """One capture, or ``{"captures": [...]}``; `total` gets what became of each.

        It is written in stretches, and `total` knows of those that were when this raises.
        """
        given = dict(given)
        given.pop("crawl", None)
        items = given.pop("captures", None)
        if items is None:
            items = [given]
        elif given or not isinstance(items, list):
            raise BadQuery('a batch is an object with a list "captures", and perhaps "crawl"')
        if len(items) > self._most:
            raise RequestError("too_large", f"at most {self._most} captures at once; send lines")
        for at in range(0, max(len(items), 1), STRETCH):  # none at all is an empty stretch
            self._report(crawl, items[at : at + STRETCH], total)

    def lines(self, crawl: str, stretches: Iterator[list[Any]], total: Reported) -> None:
        """Captures as they come, each stretch on disk before the next; results only if bad."""
        for items in stretches:
            self._report(crawl, items, total, only_bad=True)

    def _report(
        self, name: str, items: list[Any], total: Reported, *, only_bad: bool = False
    ) -> None:
        settings = self._live.opened().engine.identity.settings
        found: list[Any] = [_read(item) for item in items]
        captures = [one for one in found if isinstance(one, Capture)]

        def change(writing: Writing) -> Added:
            return add(writing, writing.crawl(name), captures, settings, self._judges.of(settings))

        done = self._live.crawls.write(change)
        self._live.crawls.counting.note_stored(name, done.held)
        bad = [one for one in found if not isinstance(one, Capture)]
        if only_bad:
            results = bad if len(total.results) < STRETCH else []
        else:
            became = iter(done.results)
            results = [next(became) if isinstance(one, Capture) else one for one in found]
        total.take(done, len(bad), results)

    def claim(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """``{"crawl", "digest", …, "lease"?, "token"?}``: an original, or who may store it.

        One transaction: of all who ask at once for a digest that nobody has, one is told to store.
        """
        given = dict(given)
        lease = given.pop("lease", claims.LEASE)
        if type(lease) is not int or not 1 <= lease <= claims.LONGEST:
            raise BadQuery(f"lease must be a number of seconds up to {claims.LONGEST}")
        token = text_of(given, "token")
        given.pop("token", None)
        if not _TOKEN.fullmatch(token):
            raise BadQuery("token must be 32 hex digits")
        asked = of_json(given)
        query, _ = query_of(asked)
        if not query.crawl:
            raise BadQuery("a claim needs the crawl that makes it")
        query = self._live.crawls.completed(query, asked)
        opened = self._live.opened()
        settings = opened.engine.identity.settings

        def change(writing: Writing) -> tuple[Answer | None, dict[str, Any]]:
            crawl = writing.crawl(query.crawl)
            claims.require_open(crawl)
            with opened.engine.view() as base:
                seen = Snapshot(writing).seen(base, settings.keys(), query.crawl, query.namespaces)
                decision = lookup.decide(seen, settings, query)
            if decision.answer is not None:
                return decision.answer, lookup.as_json(decision)
            own = bytes.fromhex(token)
            if decision.policy:  # each stores it: nobody is to wait for another
                until = time.time() + min(lease, claims.LONGEST)
                free = {"claimed": True, "until": until, "token": (own or token_bytes(16)).hex()}
                return None, {**lookup.as_json(decision), **free}
            claim, mine = claims.claim(writing, crawl, query.digest, _now(), lease, own)
            shown = {"duplicate": False, "claimed": mine, "until": claim.until / 1000}
            return None, {**shown, "token": claim.token} if mine else shown

        started = perf_counter_ns()
        answer, content = self._live.crawls.write(change)
        self._live.crawls.counting.note_answer(query, answer, perf_counter_ns() - started)
        return content

    def release(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """``{"digest", "token"}``: the claimant will not store the payload after all."""
        given = dict(given)
        token = text_of(given, "token")
        given.pop("token", None)
        query, _ = query_of(of_json(given))
        change = partial(claims.release, digest=query.digest, token=token)
        return {"released": self._live.crawls.write(change)}


def _read(item: Any) -> Capture | dict[str, Any]:
    """A capture, or what is wrong with it."""
    try:
        if isinstance(item, RequestError):
            raise item
        if not isinstance(item, dict):
            raise BadInput("a capture is a JSON object")
        return capture_of(item)
    except DedupError as error:
        return error_object("bad_capture", str(error))


def _shown(reading: Reading, crawl: Crawl) -> dict[str, Any]:
    captures, size = reading.counts(crawl)
    total, times = statistics.total(reading, crawl), statistics.times(reading, crawl)
    return {
        **crawl.as_json(),
        "captures": captures,
        "bytes": size,
        "lookups": total.lookups,
        "duplicates": total.duplicates,
        "duplicate_bytes": total.duplicate_bytes,
        "errors": total.errors,
        **told_of(reading, crawl)._asdict(),
        "first_lookup": date(times.first),
        "last_lookup": date(times.last),
        "warning": warning(crawl, total),
    }


def _now() -> int:
    return int(time.time() * 1000)
