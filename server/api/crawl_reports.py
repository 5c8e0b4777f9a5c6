"""What crawls report over HTTP: that they begin and end, what they stored, what they claim.

Every request may be sent again when its answer was lost: beginning, ending and reporting twice
changes nothing. Nothing is acknowledged before it is on disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from dedupindex.build.judges import Judges
from dedupindex.capture import Capture, Covers
from dedupindex.crawls import lifecycle, statistics
from dedupindex.crawls.crawl import Crawl, Seen
from dedupindex.crawls.crawl_captures import Added, add
from dedupindex.crawls.crawl_report import date, warning
from dedupindex.crawls.parse_report import capture_of
from dedupindex.crawls.store import Reading, Writing
from dedupindex.crawls.told import tell, told_of
from dedupindex.digest import Digest
from dedupindex.errors import BadInput, BadQuery, DedupError, UnknownCrawl
from server.api.request_body import Stretch
from server.api.request_fields import TOLD, flag, numbers, one_of, only, stated, teller, text_of
from server.live_index import LiveIndex
from server.responses import RequestError, error_object

STRETCH = 1000  # captures in one transaction: others write in between
_LISTED_AT_ONCE = 200  # crawls whose figures are in memory
_BEGIN = ("name", "seen_by", "digest_covers", "strategy", "policy", "namespace")


@dataclass
class Reported:
    """What became of the captures of a request."""

    added: int = 0
    unchanged: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    bad: int = 0
    results: list[Any] = field(default_factory=list)
    in_batch: list[tuple[int, int]] = field(default_factory=list)  # places in `results`

    def as_json(self) -> dict[str, Any]:
        """As it is answered."""
        content = vars(self)
        return content if self.in_batch else {n: content[n] for n in content if n != "in_batch"}

    def take(self, done: Added, bad: int) -> None:
        """Add what became of some of them."""
        self.added += done.added
        self.unchanged += done.unchanged
        self.bad += bad
        for reason, count in done.refused.items():
            self.refused[reason] = self.refused.get(reason, 0) + count

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
        change = partial(lifecycle.begin, name=name, seen=seen, covers=covers, **stated(given))
        return self._shown(self._live.crawls.write(change, make=True))

    def namespace_of(self, crawl: str) -> str | None:
        """The namespace of a crawl, None if there is no such crawl."""
        known = self._live.crawls.crawl(crawl)
        return None if known is None else known.namespace

    def apart(self, crawl: str) -> Iterator[str]:
        """The namespace in which a crawl stays apart, if it does; read when it is asked for."""
        if namespace := self.namespace_of(crawl):
            yield namespace

    def end(self, name: str, given: Mapping[str, Any], *, keep: bool) -> dict[str, Any]:
        """Commit or cancel; ``{"exit"?, …}`` and what `told` takes, to the crawl as it stands.

        With ``force`` it is cancelled also if others may need what it has reported.
        """
        only(given, "exit", *TOLD, *([] if keep else ["force"]))
        cancel = partial(lifecycle.cancel, force=not keep and flag(given, "force"))
        step, exit = lifecycle.commit if keep else cancel, text_of(given, "exit")
        said, who = numbers(given), teller(given)
        self._live.crawls.write_counts()  # a crawl that was short is shown as it was

        def change(writing: Writing) -> Crawl:
            crawl = step(writing, name, exit)
            with suppress(BadInput):  # a crawl ends all the same
                tell(writing, crawl, said, who)
            return crawl

        return self._shown(self._live.crawls.write(change))

    def told(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """``{"not_looked_up"?, "not_reported"?, "who"?}``, also of a crawl that has ended."""
        only(given, *TOLD)
        said, who = numbers(given), teller(given)

        def change(writing: Writing) -> Crawl:
            crawl = writing.crawl(name)
            tell(writing, crawl, said, who)
            return crawl

        return self._shown(self._live.crawls.write(change))

    def crawls(
        self, most: int = 0, after: str = "", *, skip: int = 0, sees: Callable[[Crawl], bool]
    ) -> list[dict[str, Any]]:
        """Crawls, the newest first: `most` of them, 0 for all, that began before one named.

        Only those of which it `sees` anything, and not the first ones to `skip` of them.
        """
        with self._live.crawls.reading() as reading:
            if reading is None:
                return []
            before = reading.crawl(after) if after else None
            seen = filter(sees, reading.newest(before))
            chosen, shown = islice(seen, skip, skip + most if most else None), []
            while some := list(islice(chosen, _LISTED_AT_ONCE)):
                ready = reading.ready(some)
                shown += [_shown(ready, crawl) for crawl in some]
            return shown

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
        firsts: dict[Digest, int] = {}
        for at in range(0, max(len(items), 1), STRETCH):  # none at all is an empty stretch
            some = items[at : at + STRETCH]
            found = [_read(item) for item in some]
            became = iter(self._report(crawl, found, total))
            for place, one in enumerate(found, at):
                result = next(became) if isinstance(one, Capture) else one
                total.results.append(result)
                if isinstance(one, Capture) and result in ("added", "unchanged"):
                    first = firsts.setdefault(one.digest, place)
                    if first != place:
                        total.in_batch.append((place, first))

    def lines(self, crawl: str, stretches: Iterator[Stretch], total: Reported) -> None:
        """Captures as they come, each stretch on disk before the next; results only if bad."""
        for items, places in stretches:
            found = [_read(item, line) for item, line in zip(items, places, strict=True)]
            self._report(crawl, found, total)
            if len(total.results) < STRETCH:
                total.results += [one for one in found if not isinstance(one, Capture)]

    def _report(
        self, name: str, found: list[Capture | dict[str, Any]], total: Reported
    ) -> list[str]:
        """Write captures; what became of each."""
        settings = self._live.opened().engine.identity.settings
        captures = [one for one in found if isinstance(one, Capture)]

        def change(writing: Writing) -> Added:
            crawl = self._live.crawls.crawl_in(writing, name)
            return add(writing, crawl, captures, settings, self._judges.of(settings))

        done = self._live.crawls.write(change)
        self._live.crawls.counting.note_stored(name, done.held)
        total.take(done, len(found) - len(captures))
        return done.results


def _read(item: Any, line: int = 0) -> Capture | dict[str, Any]:
    """A capture, or what is wrong with it."""
    try:
        if isinstance(item, RequestError):
            raise item
        if not isinstance(item, dict):
            raise BadInput("a capture is a JSON object")
        return capture_of(item)
    except DedupError as error:
        return error_object("bad_capture", str(error), line)


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
        "answered_others": statistics.others(reading, crawl),
        **told_of(reading, crawl)._asdict(),
        "first_lookup": date(times.first),
        "last_lookup": date(times.last),
        "warning": warning(crawl, total),
    }


def _now() -> int:
    return int(time.time() * 1000)
