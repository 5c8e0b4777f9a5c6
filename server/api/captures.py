"""``POST /captures``: captures that crawlers have stored, alone or in batches.

Some crawlers send a request for every capture. So this module does not use Flask: the layer in
front of Flask and the Flask route call the same function, as for lookups.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any

import orjson

from server import logs
from server.api.batch_limits import BodySlots
from server.api.crawl_reports import Reported, Reporting, Writers, kind_of
from server.api.lookups import query_string
from server.api.request_body import line_chunks
from server.api.request_fields import TEXT, read, text_field
from server.failures import reply_to
from server.metrics import Metrics
from server.responses import JSON, OK, Reply

_LINES = ("application/x-ndjson", "application/ndjson", "application/jsonl")
CAPTURES: dict[str, dict[str, Any]] = {
    "crawl": {**TEXT, "description": "The crawl that stored them, here or in the body."},
}


class Captures:
    """Stores reported captures; thread-safe."""

    def __init__(
        self, reporting: Reporting, writers: Writers, bodies: BodySlots, metrics: Metrics, line: int
    ) -> None:
        """`line`: bytes of the longest JSON line that is accepted."""
        self._reporting, self._writers = reporting, writers
        self._bodies, self._metrics, self._line = bodies, metrics, line

    def respond(self, environ: dict[str, Any]) -> Reply:
        """Answer POST /captures; never raises."""
        started = perf_counter_ns()
        try:
            return OK, JSON, orjson.dumps(self._store(environ).as_json())
        except Exception as error:
            return reply_to(error, environ, self._metrics)
        finally:
            self._metrics.route("add_captures", started)

    def _store(self, environ: dict[str, Any]) -> Reported:
        total = Reported()
        crawl = read(query_string(environ), CAPTURES).get("crawl", "")
        if kind_of(environ) in _LINES:
            who = self._writers.allowed(environ, crawl)
            with (
                self._bodies.slot(),
                self._writers.received(environ) as body,
                self._audited(environ, who, crawl, total),
            ):
                self._reporting.lines(crawl, line_chunks(body, self._line), total)
            return total
        given = self._writers.given(environ, queried=True)
        crawl = crawl or text_field(given, "crawl")
        who = self._writers.allowed(environ, crawl)
        with self._audited(environ, who, crawl, total):
            self._reporting.captures(crawl, given, total)
        return total

    @contextmanager
    def _audited(
        self, environ: dict[str, Any], who: str, crawl: str, total: Reported
    ) -> Iterator[None]:
        """Log what was written, also when the request failed in the middle."""
        try:
            yield
        except BaseException:
            self._metrics.written(total.counts())
            if total.added or total.unchanged or total.refused:
                logs.audit(environ, who, {**vars(total), "broken_off": True}, crawl)
            raise
        self._metrics.written(total.counts())
        logs.audit(environ, who, vars(total), crawl)
