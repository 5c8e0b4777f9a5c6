"""The Flask views of crawls: they read requests and write the log."""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from functools import partial
from hashlib import sha256
from typing import Any
from urllib.parse import quote, urlencode

import orjson
from flask import Response, request

from dedupindex.crawls import crawl_report as crawlreport
from dedupindex.crawls.crawl import Crawl
from dedupindex.crawls.crawl_report import FORMATS, CrawlReport, ReportRequest
from dedupindex.crawls.statistics import BY, ORDERS
from dedupindex.crawls.store import Reading
from dedupindex.errors import BadQuery, UnknownCrawl
from dedupindex.runtime.tables import STYLE
from server import logs
from server.api.captures import CAPTURES, Captures
from server.api.claims import Claiming
from server.api.crawl_reports import Reporting, Writers
from server.api.lookups import query_string
from server.api.request_fields import LIMIT, PAGE, TEXT, read, text_field
from server.auth import Access, NamespaceAccess
from server.live_index import LiveIndex
from server.metrics import Metrics
from server.responses import json_of, response_of
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


# The Flask views of the list of crawls and of their reports.

_TYPES = {
    "text": "text/plain; charset=utf-8",
    "csv": "text/csv; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "json": "application/json",
}
_TOP = {"type": "integer", "minimum": 1, "maximum": 1000}
_HASH = b64encode(sha256(STYLE.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; frame-ancestors 'none'"

CRAWLS_PAGE = 100  # a crawl is a row with its policy and figures
CRAWLS: dict[str, dict[str, Any]] = {
    "limit": {**LIMIT, "maximum": 1000, "default": CRAWLS_PAGE},
    "after": {**TEXT, "description": "A crawl's name: those that began before it."},
}
REPORT: dict[str, dict[str, Any]] = {
    "by": {**TEXT, "enum": list(BY), "description": "Group by; not given: no groups."},
    "format": {**TEXT, "enum": list(FORMATS), "default": "json"},
    "top": {**_TOP, "description": "Only as many groups, the largest first."},
    "order": {
        **TEXT,
        "enum": list(ORDERS),
        "default": "lookups",
        "description": "With `top`: what the largest have most of.",
    },
    "limit": LIMIT,
    "after": {**TEXT, "description": "A group's heading: those that come after it."},
}


class ReportViews:
    """Routes of the list of crawls and of their reports."""

    def __init__(self, live: LiveIndex, reporting: Reporting, access: Access) -> None:
        self._live, self._reporting, self._access = live, reporting, access

    @Route("GET", "/crawls", ("Crawls",), errors=(404,), parameters=CRAWLS)
    def list_crawls(self) -> Response:
        """Crawls, the newest first, in pages."""
        self._access.may_read(request.environ)
        given = read(query_string(request.environ), CRAWLS)
        most = given.get("limit", CRAWLS_PAGE)
        visible = NamespaceAccess(self._access, request.environ)
        found = self._reporting.crawls(most + 1, given.get("after", ""), sees=visible.sees)
        content: dict[str, Any] = {"crawls": found[:most], "next": None}
        if len(found) > most:
            content["next"] = _page("/crawls", given, found[most - 1]["name"])
        return _linked(
            Response(orjson.dumps(content), content_type=_TYPES["json"]), content["next"]
        )

    @Route(
        "GET",
        "/crawls/{name}/report",
        ("CrawlReport", "text/plain", "text/csv", "text/html"),
        errors=(404,),
        parameters=REPORT,
    )
    def crawl_report(self, name: str) -> Response:
        """Statistics of a crawl."""
        self._access.may_read(request.environ, self._reporting.private_namespace(name))
        given = read(query_string(request.environ), REPORT)
        asked, most = _asked(given), given.get("limit", PAGE)
        with self._live.crawls.reading() as reading:
            if reading is None:
                raise UnknownCrawl(f"there is no crawl {name[:200]!r}")
            visible = NamespaceAccess(self._access, request.environ)
            crawl = reading.crawl_or_suggest(name, visible.sees)
            found, follows = _some(reading, crawl, asked, most)
        path = f"/crawls/{quote(name, '')}/report"
        follow = None if follows is None else _page(path, given, follows)
        style = given.get("format", "json")
        if style == "json":
            found.summary["next"] = follow
        response = Response("".join(crawlreport.written(found, style)), content_type=_TYPES[style])
        response.headers["X-Content-Type-Options"] = "nosniff"
        if style == "html":
            response.headers["Content-Security-Policy"] = _POLICY
        return _linked(response, follow)


def _asked(given: dict[str, Any]) -> ReportRequest:
    """Return the options of a report; a page asks for one group more than it shows."""
    if "by" not in given and given.keys() - {"format"}:
        raise BadQuery("groups need by")
    if "top" in given and given.keys() & {"limit", "after"}:
        raise BadQuery("give either top, or limit and after")
    if "order" in given and "top" not in given:
        raise BadQuery("order needs top; without it groups come in the order of their headings")
    after = given["after"].encode("utf-8", "surrogateescape") if "after" in given else None
    asked = ReportRequest(
        given.get("by", ""), given.get("top", 0), given.get("order", "lookups"), after
    )
    return asked if asked.top else asked._replace(most=given.get("limit", PAGE) + 1)


def _some(
    reading: Reading, crawl: Crawl, asked: ReportRequest, most: int
) -> tuple[CrawlReport, str | None]:
    """Return a page of a report, and its last heading if there are more pages."""
    found = crawlreport.report(reading, crawl, asked)
    groups = list(found.groups)
    more = not asked.top and len(groups) > most
    last = groups[most - 1][0].decode("utf-8", "surrogateescape") if more else None
    return found._replace(groups=iter(groups[:most] if more else groups)), last


def _page(path: str, given: dict[str, Any], after: str) -> str:
    """Return the URL of the next page."""
    return f"{path}?{urlencode({**given, 'after': after}, errors='surrogateescape')}"


def _linked(response: Response, follow: str | None) -> Response:
    if follow is not None:
        response.headers["Link"] = f'<{follow}>; rel="next"'
    return response
