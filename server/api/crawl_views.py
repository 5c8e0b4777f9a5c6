"""The Flask views of crawls: they read requests and write the log."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from flask import Response, request

from server import logs
from server.api.captures import CAPTURES, Captures
from server.api.claims import Claiming
from server.api.crawl_reports import Reporting
from server.api.request_fields import text_field
from server.api.writers import Writers
from server.auth import Access
from server.metrics import Metrics
from server.responses_part import json_of, response_of
from server.routes import Route


class CrawlViews:
    """Routes of crawls and of what they report."""

    def __init__(
        self,
        reporting: Reporting,
        captures: Captures,
        claiming: Claiming,
        access: Access,
        writers: Writers,
        metrics: Metrics,
    ) -> None:
        self._reporting, self._captures, self._claiming = reporting, captures, claiming
        self._access, self._writers, self._metrics = access, writers, metrics

    @Route("POST", "/crawls", ("Crawl",), body=("Begin",), errors=(409, 415))
    def begin_crawl(self) -> Response:
        """Begin a crawl."""
        given = self._given()
        who = self._allowed(text_field(given, "name"), text_field(given, "namespace"))
        return self._written(who, self._reporting.begin(given))

    @Route("GET", "/crawls/{name}", ("Crawl",), errors=(404,))
    def show_crawl(self, name: str) -> Response:
        """One crawl."""
        self._access.may_read(request.environ, self._reporting.private_namespace(name))
        return json_of(self._reporting.crawl(name))

    @Route("POST", "/crawls/{name}/commit", ("Crawl",), body=("End",), errors=(404, 409, 415))
    def commit_crawl(self, name: str) -> Response:
        """Commit a crawl: everybody sees its captures."""
        who = self._allowed(name)
        return self._written(who, self._reporting.end(name, self._given(), keep=True))

    @Route("POST", "/crawls/{name}/cancel", ("Crawl",), body=("Cancel",), errors=(404, 409, 415))
    def cancel_crawl(self, name: str) -> Response:
        """Cancel a crawl and drop its captures."""
        who = self._allowed(name)
        return self._written(who, self._reporting.end(name, self._given(), keep=False))

    @Route("POST", "/crawls/{name}/counts", ("Crawl",), body=("Told",), errors=(404, 415))
    def count_crawl(self, name: str) -> Response:
        """Report what a crawler skipped."""
        who = self._allowed(name)
        return self._written(who, self._reporting.add_counts(name, self._given()))

    @Route(
        "POST",
        "/captures",
        ("Reported",),
        body=("Captures",),
        errors=(404, 409, 415),
        parameters=CAPTURES,
        timed=False,
    )
    def add_captures(self) -> Response:
        """Report stored captures."""
        return response_of(self._captures.respond(request.environ))

    @Route("POST", "/claims", ("Claimed",), body=("Claim",), errors=(404, 409, 415))
    def claim(self) -> Response:
        """Look up, and claim the right to store."""
        given = self._given()
        crawl = text_field(given, "crawl")
        who, allowed = self._allowed(crawl), partial(self._access.may_read, request.environ)
        many = "claims" in given
        answer = (self._claiming.claims if many else self._claiming.claim)(given, allowed)
        results = Counter(map(_result, answer["answers"] if many else [answer]))
        self._metrics.written(results, "claims")
        return self._written(who, dict(results) if many else answer, crawl, answer)

    @Route("DELETE", "/claims", ("Released",), body=("Release",), errors=(404, 409, 415))
    def release(self) -> Response:
        """Release a claim."""
        given = self._given()
        return self._written(self._allowed(), self._claiming.release(given))

    def _allowed(self, crawl: str = "", namespace: str = "") -> str:
        return self._writers.allowed(request.environ, crawl, namespace)

    def _given(self) -> dict[str, Any]:
        return self._writers.given(request.environ)

    def _written(
        self,
        who: str,
        content: dict[str, Any],
        crawl: str = "",
        answer: dict[str, Any] | None = None,
    ) -> Response:
        """Log the content of a write, and answer with it or with `answer`."""
        logs.audit(request.environ, who, content, crawl)
        return json_of(content if answer is None else answer)


def _result(answer: dict[str, Any]) -> str:
    if "error" in answer:
        return "bad"
    return "duplicate" if answer["duplicate"] else "claimed" if answer["claimed"] else "taken"
