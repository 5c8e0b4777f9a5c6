"""The page of crawls as they run, by minutes, and the stream of events that keeps it current.

A stream holds a thread of a worker, so there are few, each ends after `LONGEST`, and browsers
connect again. An event is a part of the page as HTML, sent when it has changed; its id names what
the browser then has, so that nothing is sent twice after a reconnection.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from heapq import nlargest
from threading import BoundedSemaphore
from typing import Any, NamedTuple
from zlib import crc32

from flask import Flask, Response, render_template, request
from werkzeug.wsgi import ClosingIterator

from dedupindex.crawls import statistics
from dedupindex.crawls.crawl import Crawl, CrawlState
from dedupindex.crawls.crawl_report import date
from dedupindex.crawls.minutes import HOUR, MinuteCounts, attention, last_hour, sum_of
from dedupindex.crawls.store import Reading
from dedupindex.errors import DedupError
from dedupindex.runtime.charts import Columns, columns
from dedupindex.runtime.tables import singular
from server.auth import NamespaceAccess
from server.config import RECORDS_CRAWL
from server.metrics import READ, lookups_by_class
from server.pages.chart_pages import CLASSES, byte_counts, lookup_counts, texts_of
from server.responses import RequestError
from server.services import Handlers, Services

STREAMS = 8  # of one worker
LONGEST = 300.0  # seconds of one stream
EVERY = 2.0  # seconds between two looks
_TICK = 0.5  # seconds between two looks whether the server stops
_HEARTBEAT = 10.0  # seconds without another event; it also finds out that a browser has gone
_RETRY = 3000  # milliseconds until a browser connects again
_CRAWLS = 20  # open crawls, the last active ones, and some that have ended
_RECENT = 5  # whole minutes, and what the running one has so far
_DAY = 86_400  # seconds
_PARTS = ("now", "minutes")


class _CrawlRow(NamedTuple):
    """A crawl of the table."""

    name: str
    state: str
    last: str | None  # lookup, as a WARC-Date
    today: bool  # whether it was on this day
    recent: MinuteCounts
    hour: MinuteCounts
    problems: list[str]


class LivePage(Handlers):
    app: Flask
    """The application of the page, which a stream needs to fill in templates."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._services, self._free = services, BoundedSemaphore(STREAMS)

    def live(self) -> str:
        """Show the page; without script it loads itself again."""
        return render_template("live.html", every=int(EVERY), **self._content())

    def live_events(self) -> Response:
        """Send the parts of the page that have changed, as server-sent events."""
        self._content()  # an unknown crawl is an error before the stream begins
        if not self._free.acquire(blocking=False):
            raise RequestError(
                "overloaded", f"{STREAMS} browsers are watching already; the page loads itself"
            )
        known = request.headers.get("Last-Event-ID", "")[:100]
        held = [self._free]

        def release() -> None:  # is called once or twice, also if the browser is gone at once
            if held:
                held.pop().release()

        return Response(
            ClosingIterator(self._events(request.environ, known), release),
            content_type="text/event-stream; charset=utf-8",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    def _events(self, environ: dict[str, Any], known: str) -> Iterator[bytes]:
        yield b"retry: %d\n\n" % _RETRY
        seen = dict(zip(_PARTS, known.split("-"), strict=False))
        end, sent = time.monotonic() + LONGEST, time.monotonic()
        while time.monotonic() < end and not self._services.stopping:
            try:
                parts = self._parts(environ)
            except DedupError:
                return  # the browser connects again, and sees the error then
            for part, html in parts.items():
                stamp = f"{crc32(html.encode()):08x}"
                if stamp != seen.get(part):
                    seen[part], sent = stamp, time.monotonic()
                    yield _event(part, "-".join(seen.get(name, "") for name in _PARTS), html)
            if time.monotonic() - sent >= _HEARTBEAT:
                sent = time.monotonic()
                yield b"event: beat\ndata: .\n\n"
            for _ in range(int(EVERY / _TICK)):
                if not self._services.stopping:
                    time.sleep(_TICK)

    def _parts(self, environ: dict[str, Any]) -> dict[str, str]:
        """Return the parts of the page; the server may ask for each in another thread."""
        with self.app.request_context(environ):
            self._access.may_read(environ)  # its token may have been removed
            content = self._content()
            return {part: render_template(f"live_{part}.html", **content) for part in _PARTS}

    def _content(self) -> dict[str, Any]:
        """Return what the templates show of the current crawls, or of one."""
        name, now = request.args.get("crawl", ""), time.time()
        visible = NamespaceAccess(self._access, request.environ)
        self._live.opened()
        with self._live.crawls.reading() as reading:
            crawls: list[Crawl] = []
            if reading is not None and name:
                crawls = [reading.crawl_or_suggest(name, visible.sees)]
                visible.require(crawls[0])
            elif reading is not None:
                known = filter(visible.sees, reading.newest())
                crawls = _current(reading, known, now)
            return self._of_crawls(reading, crawls, name, now)

    def _of_crawls(
        self, reading: Reading | None, crawls: list[Crawl], name: str, now: float
    ) -> dict[str, Any]:
        shown, rows = crawls[:_CRAWLS], []
        total = [MinuteCounts(0)] * 60
        open_ones = [MinuteCounts(0)] * 60  # without crawls that have ended, unless one was chosen
        if reading is not None:
            reading = reading.with_statistics(shown)
            total = open_ones = last_hour(reading, [], now)
            for crawl in shown:
                minutes = last_hour(reading, [crawl], now)
                if name or crawl.kept:
                    total = [one.plus(other) for one, other in zip(total, minutes, strict=True)]
                if name or crawl.state is CrawlState.OPEN:
                    pairs = zip(open_ones, minutes, strict=True)
                    open_ones = [one.plus(other) for one, other in pairs]
                rows.append(_row(reading, crawl, minutes, now))
        return {
            "crawl": name,
            "rows": rows,
            "more": len(crawls) > _CRAWLS,
            "most": _CRAWLS,
            "recent": sum_of(open_ones[-_RECENT - 1 :]),
            "hour": sum_of(open_ones),
            "left_out": any(any(row.hour.row) for row in rows),  # cancelled, if `any` is false
            "all_lookups": sum(lookups_by_class(self._metrics.totals()).values()),
            "classes": CLASSES,
            **_charts(total),
        }


def _current(reading: Reading, newest: Iterable[Crawl], now: float) -> list[Crawl]:
    """Return the open crawls, then those that ended in the last hour, the newest first.

    Of more than `_CRAWLS` open ones, of which `READ` are considered, these are the ones that
    looked up or began last, and one more.
    """
    opened, ended = list[Crawl](), list[Crawl]()
    since = date(int(now) - HOUR * 60) or ""
    for crawl in newest:
        if crawl.state is CrawlState.OPEN:
            opened.append(crawl)
        elif crawl.ended > since:
            ended.append(crawl)
    if len(opened) <= _CRAWLS:
        return [*opened, *ended][: _CRAWLS + 1]
    considered = opened[:READ]
    ready = reading.with_statistics(considered)

    def active(crawl: Crawl) -> str:
        return max(date(statistics.times(ready, crawl).last) or "", crawl.begun)

    shown = {crawl.number for crawl in nlargest(_CRAWLS, considered, key=active)}
    rest = [crawl for crawl in opened if crawl.number not in shown]
    return [crawl for crawl in considered if crawl.number in shown] + rest[:1]


def _row(reading: Reading, crawl: Crawl, minutes: list[MinuteCounts], now: float) -> _CrawlRow:
    last = statistics.times(reading, crawl).last
    today = last // _DAY == int(now) // _DAY
    own = crawl.name.startswith(RECORDS_CRAWL)  # of /api/records, without lookups
    problems = [] if own else attention(reading, crawl, minutes, now)
    recent, hour = sum_of(minutes[-_RECENT - 1 :]), sum_of(minutes)
    return _CrawlRow(crawl.name, crawl.state.value, date(last), today, recent, hour, problems)


def _charts(minutes: list[MinuteCounts]) -> dict[str, Any]:
    """Return the charts of the last hour, with the running minute, and their table's rows."""
    units = [time.strftime("%H:%M", time.gmtime(counts.minute * 60)) for counts in minutes]

    def chart(values: Any, title: str) -> Columns:
        rows = zip(units, minutes, strict=True)
        return columns([
            (f"{unit}: {singular(title.format_map(texts_of(counts.row)))}", values(counts.row))
            for unit, counts in rows
        ])  # fmt: skip

    times = [
        (f"{unit}: {_time_text(counts)}", [("new", counts.p99 * 1000)])
        for unit, counts in zip(units, minutes, strict=True)
    ]
    return {
        "units": units,
        "lookups": chart(lookup_counts, "{lookups} lookups, {duplicates} duplicates"),
        "bytes": chart(byte_counts, "{duplicate_bytes} bytes saved, {stored_bytes} stored"),
        "latency": columns(times),
        "minutes": list(reversed([*zip(units, minutes, strict=True)])),
        "any": any(any(counts.row) for counts in minutes),
    }


def _time_text(counts: MinuteCounts) -> str:
    """Return what is said of the lookup times of a minute."""
    if not any(counts.doublings):
        return "no lookups"
    return f"99 of 100 in at most {counts.p99 * 1000:.2f} ms"


def _event(part: str, number: str, html: str) -> bytes:
    """Return an event; every line of its data has a field of its own."""
    lines = "".join(f"data: {line}\n" for line in html.splitlines())
    return f"event: {part}\nid: {number}\n{lines}\n".encode()
