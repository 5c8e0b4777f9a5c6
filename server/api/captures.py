"""``POST /captures``: captures that crawlers have stored, alone or in batches.

A client may repeat a request whose answer was lost: a capture that is stored twice changes
nothing. Nothing is acknowledged before it is on disk.

Some crawlers send a request for every capture. So `Captures.respond` does not use Flask: the layer
in front of Flask and the Flask route call it, as for lookups.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import orjson
from flask import Response, request

from dedupindex.capture import Capture
from dedupindex.crawls.crawl_captures import Added, add
from dedupindex.crawls.parse_report import capture_of
from dedupindex.crawls.store import Writing
from dedupindex.digest import Digest
from dedupindex.errors import BadInput, BadQuery, DedupError
from server import logs
from server.api.request_body import LINES_TYPES, line_chunks, media_type
from server.api.request_fields import TEXT, batch_items, read_parameters, text_field
from server.responses import JSON, OK, Reply, RequestError, error_object, response_of
from server.routes import Route
from server.services import Handlers

CHUNK = 1000  # captures in one transaction: others write in between
PARAMETERS: dict[str, dict[str, Any]] = {
    "crawl": {**TEXT, "description": "The crawl that stored them, here or in the body."}
}


@dataclass
class CaptureResults:
    """The results of the captures of a request, as its answer has them."""

    added: int = 0
    unchanged: int = 0
    revisits: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    bad: int = 0
    results: list[Any] = field(default_factory=list)
    in_batch: list[tuple[int, int]] = field(default_factory=list)  # places in `results`

    def add(self, done: Added, bad: int) -> None:
        """Add the results of one transaction."""
        self.added += done.added
        self.unchanged += done.unchanged
        self.revisits += done.revisits
        self.bad += bad
        for reason, count in done.refused.items():
            self.refused[reason] = self.refused.get(reason, 0) + count

    def counts(self) -> dict[str, int]:
        """Return the number of captures by result."""
        return {**vars(self), "refused": sum(self.refused.values())}


class Captures(Handlers):
    """Stores reported captures; thread-safe."""

    @Route(
        "POST",
        "/captures",
        ("Reported",),
        body=("Captures",),
        errors=(404, 409, 415),
        parameters=PARAMETERS,
        timed=False,
    )
    def add_captures(self) -> Response:
        """Report stored captures."""
        return response_of(self.respond(request.environ))

    def respond(self, environ: dict[str, Any]) -> Reply:
        """Answer POST /captures; never raises."""
        started = perf_counter_ns()
        try:
            content = vars(self._store(environ))
            if not content["in_batch"]:
                del content["in_batch"]
            return OK, JSON, orjson.dumps(content)
        except Exception as error:
            return self._metrics.reply_to(error, environ)
        finally:
            self._metrics.route("add_captures", started)

    def _store(self, environ: dict[str, Any]) -> CaptureResults:
        total = CaptureResults()
        crawl = read_parameters(environ, PARAMETERS).get("crawl", "")
        if media_type(environ) in LINES_TYPES:
            who = self._writers.allowed(environ, crawl)
            with self._writers.received(environ) as body, self._audited(environ, who, crawl, total):
                _check_named(crawl)
                for items, numbers in line_chunks(body, self._config.max_line):
                    read = [_read(item, n) for item, n in zip(items, numbers, strict=True)]
                    self._add(crawl, read, total)
                    if len(total.results) < CHUNK:  # only errors are listed
                        total.results += [item for item in read if not isinstance(item, Capture)]
            return total
        given = self._writers.fields(environ, queried=True)
        crawl = crawl or text_field(given, "crawl")
        who = self._writers.allowed(environ, crawl)
        _check_named(crawl)
        with self._audited(environ, who, crawl, total):
            self._add_batch(crawl, given, total)
        return total

    @contextmanager
    def _audited(
        self, environ: dict[str, Any], who: str, crawl: str, total: CaptureResults
    ) -> Iterator[None]:
        """Log and count what was written, also if the request fails in the middle."""
        broken = {"broken_off": True}
        try:
            yield
            broken = {}
        finally:
            if not broken or total.added or total.unchanged or total.revisits or total.refused:
                logs.audit(environ, who, vars(total) | broken, crawl)
            self._metrics.written(total.counts())

    def _add_batch(self, crawl: str, given: dict[str, Any], total: CaptureResults) -> None:
        """Store one capture, or ``{"captures": [...]}``, and add the result of each to `total`.

        Chunks are stored one by one; when this raises, `total` has those that were stored.
        """
        given.pop("crawl", None)
        items = batch_items(given, self._config.max_batch, "crawl", "; send lines")
        first_places: dict[Digest, int] = {}
        for at in range(0, max(len(items), 1), CHUNK):  # an empty list also checks the crawl
            read = [_read(item) for item in items[at : at + CHUNK]]
            results = iter(self._add(crawl, read, total))
            for place, item in enumerate(read, at):
                result = next(results) if isinstance(item, Capture) else item
                total.results.append(result)
                if isinstance(item, Capture) and result in ("added", "unchanged"):
                    first = first_places.setdefault(item.digest, place)
                    if first != place:
                        total.in_batch.append((place, first))

    def _add(
        self, name: str, read: list[Capture | dict[str, Any]], total: CaptureResults
    ) -> list[str]:
        """Store captures in one transaction; return the result of each."""
        settings = self._live.opened().engine.identity.settings
        captures = [item for item in read if isinstance(item, Capture)]
        refusal_reason = self._live.refusal_reason(captures)

        def change(writing: Writing) -> Added:
            crawl = self._live.crawls.crawl_in(writing, name)
            return add(writing, crawl, captures, settings, refusal_reason)

        done = self._live.crawls.write(change)
        self._live.crawls.counting.count_stored(name, done.held)
        self._live.crawls.counting.count_refused(name, done.refused, done.refused_captures)
        self._live.crawls.counting.count_not_modified(name, done.not_modified)
        total.add(done, len(read) - len(captures))
        return done.results


def _check_named(crawl: str) -> None:
    """Raise `BadQuery` if a report names no crawl."""
    if not crawl:
        raise BadQuery("name the crawl that stored the captures: POST /captures?crawl=NAME")


def _read(item: Any, line: int = 0) -> Capture | dict[str, Any]:
    """Return a capture, or the error object that answers it."""
    try:
        if isinstance(item, RequestError):
            raise item
        if not isinstance(item, dict):
            raise BadInput("a capture is a JSON object")
        return capture_of(item)
    except DedupError as error:
        return error_object("bad_capture", str(error), line)
