"""Routes of crawls: begin, show, list, commit, cancel, counts and reports.

A client may repeat every request whose answer was lost: beginning or ending a crawl twice changes
nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any
from urllib.parse import quote, urlencode

from flask import Response, request

from dedupindex.capture import Covers
from dedupindex.crawls import crawl_report as reports
from dedupindex.crawls import lifecycle, statistics
from dedupindex.crawls.crawl import Crawl, Visibility
from dedupindex.crawls.crawl_report import FORMATS, ReportRequest, date, warning
from dedupindex.crawls.parse_report import add_self_report, self_report_of
from dedupindex.crawls.statistics import BY, ORDERS
from dedupindex.crawls.store import Reading, Writing
from dedupindex.errors import BadInput, BadQuery, UnknownCrawl, as_named
from dedupindex.index import summary
from dedupindex.lookup.savings import known
from dedupindex.runtime.page_style import POLICY
from dedupindex.runtime.report_table import rounded_shares
from dedupindex.runtime.tables import printable
from server import logs
from server.api import request_fields as fields
from server.auth import NamespaceAccess
from server.live_index import LiveIndex
from server.responses import json_of
from server.routes import Route
from server.services import Handlers

CRAWLS_PAGE = 100  # a crawl is a row with its policy and figures
FILES = 10_000  # of the index, that are looked through for those of a crawl
_LISTED_AT_ONCE = 200  # crawls whose figures are in memory
_TYPES = {
    "text": "text/plain; charset=utf-8",
    "csv": "text/csv; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "json": "application/json",
}
_POLICY = f"{POLICY}; frame-ancestors 'none'"

LIST: dict[str, dict[str, Any]] = {
    "limit": {**fields.LIMIT, "maximum": 1000, "default": CRAWLS_PAGE},
    "after": {**fields.TEXT, "description": "A crawl's name: those that began before it."},
}
REPORT: dict[str, dict[str, Any]] = {
    "by": {**fields.TEXT, "enum": list(BY), "description": "Group by; not given: no groups."},
    "format": {**fields.TEXT, "enum": list(FORMATS), "default": "json"},
    "top": {
        "type": "integer",
        "minimum": 1,
        "maximum": 1000,
        "description": "Only as many groups, the largest first.",
    },
    "order": {
        **fields.TEXT,
        "enum": list(ORDERS),
        "default": "lookups",
        "description": "With `top`: the number by which groups are ordered.",
    },
    "limit": fields.LIMIT,
    "after": {**fields.TEXT, "description": "A group's heading: those that come after it."},
}


class CrawlRoutes(Handlers):
    @Route("POST", "/crawls", ("Crawl",), body=("Begin",), errors=(409, 415))
    def begin_crawl(self) -> Response:
        """Begin a crawl."""
        given = self._writers.fields(request.environ)
        name = fields.text_field(given, "name")
        who = self._writers.allowed(request.environ, name, fields.text_field(given, "namespace"))
        fields.check_fields(given, fields.BEGIN)
        self._live.opened()  # without an index, crawls would be lost with their directory
        seen = Visibility(given.get("seen_by") or Visibility.OWN)
        covers = Covers[(given.get("digest_covers") or Covers.UNKNOWN.name).upper()]
        options = fields.crawl_options(given)
        change = partial(lifecycle.begin, name=name, seen=seen, covers=covers, **options)
        return self._written(who, self._live.crawls.write(change, make=True))

    @Route("GET", "/crawls/{name}", ("Crawl",), errors=(404,))
    def show_crawl(self, name: str) -> Response:
        """One crawl."""
        self._access.may_read(request.environ, self._namespaces(name))
        try:
            return json_of(rounded_shares(crawl_row(self._live, name)))
        except UnknownCrawl:
            if not is_indexed(self._live, name):
                raise
        raise UnknownCrawl(as_named(
            f"crawl {name[:200]!r} is known from its WARCs only: it made no lookups and reported "
            f"nothing; bin/list INDEX --of-crawl {shlex.quote(printable(name))} lists its originals"
        ))  # fmt: skip

    @Route("POST", "/crawls/{name}/commit", ("Crawl",), body=("End",), errors=(404, 409, 415))
    def commit_crawl(self, name: str) -> Response:
        """Commit a crawl: everybody sees its captures."""
        return self._end(name, keep=True)

    @Route("POST", "/crawls/{name}/cancel", ("Crawl",), body=("Cancel",), errors=(404, 409, 415))
    def cancel_crawl(self, name: str) -> Response:
        """Cancel a crawl and drop its captures."""
        return self._end(name, keep=False)

    def _end(self, name: str, *, keep: bool) -> Response:
        """Commit or cancel a crawl, and store the counts of its crawler."""
        who = self._writers.allowed(request.environ, name)
        given = self._writers.fields(request.environ)
        fields.check_fields(given, fields.COMMIT if keep else fields.CANCEL)
        cancel = partial(lifecycle.cancel, force=not keep and fields.bool_field(given, "force"))
        step, exit = lifecycle.commit if keep else cancel, fields.text_field(given, "exit")
        counts, counter = fields.self_report(given)
        self._metrics.store_all_counts(self._live.crawls.write_counts)  # the answer has them all
        visible = NamespaceAccess(self._access, request.environ)

        def change(writing: Writing) -> Crawl:
            writing.crawl_to_change(name, visible.sees)
            crawl = step(writing, name, exit)
            with suppress(BadInput):  # the crawl ends nevertheless
                add_self_report(writing, crawl, counts, counter)
            return crawl

        return self._written(who, self._live.crawls.write(change))

    @Route("POST", "/crawls/{name}/counts", ("Crawl",), body=("SelfReport",), errors=(404, 415))
    def count_crawl(self, name: str) -> Response:
        """Report what a crawler skipped."""
        who = self._writers.allowed(request.environ, name)
        given = self._writers.fields(request.environ)
        fields.check_fields(given, fields.SELF_REPORT)
        counts, counter = fields.self_report(given)
        visible = NamespaceAccess(self._access, request.environ)

        def change(writing: Writing) -> Crawl:
            crawl = writing.crawl_to_change(name, visible.sees)
            add_self_report(writing, crawl, counts, counter)
            return crawl

        return self._written(who, self._live.crawls.write(change))

    @Route("GET", "/crawls", ("Crawls",), errors=(404,), parameters=LIST)
    def list_crawls(self) -> Response:
        """Crawls, the newest first, in pages."""
        self._access.may_read(request.environ)
        given = fields.read_parameters(request.environ, LIST)
        most = given.get("limit", CRAWLS_PAGE)
        visible = NamespaceAccess(self._access, request.environ)
        crawls = crawl_rows(self._live, most + 1, given.get("after", ""), sees=visible.sees)
        more = len(crawls) > most
        follow = _next_page("/crawls", given, crawls[most - 1]["name"]) if more else None
        content = rounded_shares({"crawls": crawls[:most], "next": follow})
        return _linked(json_of(content), follow)

    @Route(
        "GET",
        "/crawls/{name}/report",
        ("CrawlReport", "text/plain", "text/csv", "text/html"),
        errors=(404,),
        parameters=REPORT,
    )
    def crawl_report(self, name: str) -> Response:
        """Statistics of a crawl."""
        self._access.may_read(request.environ, self._namespaces(name))
        given = fields.read_parameters(request.environ, REPORT)
        asked, most = _report_request(given), given.get("limit", fields.PAGE)
        with self._live.crawls.reading_for(name) as reading:
            visible = NamespaceAccess(self._access, request.environ)
            crawl = reading.crawl_or_suggest(name, visible.sees)
            report = reports.report(reading, crawl, asked, self._live.index_facts())
            groups = list(report.groups)
        if reports.commands_to_learn(report.summary):
            with self._live.opened().engine.view() as view:
                is_read = reports.has_files(view, name, FILES)
            report = report._replace(is_read=is_read)
        follow: str | None = None
        if not asked.top and len(groups) > most:
            last = groups[most - 1][0].decode("utf-8", "surrogateescape")
            follow = _next_page(f"/crawls/{quote(name, '')}/report", given, last)
            groups = groups[:most]
        is_whole = follow is None and "after" not in given
        report = report._replace(groups=iter(groups), is_whole=is_whole)
        form = given.get("format", "json")
        if form == "json":
            report.summary["next"] = follow
        response = Response("".join(reports.written(report, form)), content_type=_TYPES[form])
        response.headers["X-Content-Type-Options"] = "nosniff"
        if form == "html":
            response.headers["Content-Security-Policy"] = _POLICY
        return _linked(response, follow)

    def _namespaces(self, name: str) -> Iterator[str]:
        """Yield the namespace of a crawl, if it has one; it is read when iterated."""
        crawl = self._live.crawls.crawl(name)
        if crawl is not None and crawl.namespace:
            yield crawl.namespace

    def _written(self, who: str, crawl: Crawl) -> Response:
        """Log a write, and answer with the crawl."""
        content = rounded_shares(crawl_row(self._live, crawl.name))
        logs.audit(request.environ, who, content)
        return json_of(content)


def crawl_rows(
    live: LiveIndex, most: int, after: str = "", *, skip: int = 0, sees: Callable[[Crawl], bool]
) -> list[dict[str, Any]]:
    """Return at most `most` crawls with exact shares, the newest first.

    `after` names a crawl; those that began before it are returned. Crawls that `sees` refuses
    are left out, and of the others the first `skip`.
    """
    with live.crawls.reading() as reading:
        if reading is None:
            return []
        before = reading.crawl(after) if after else None
        chosen = islice(filter(sees, reading.newest(before)), skip, skip + most)
        found: list[dict[str, Any]] = []
        while chunk := list(islice(chosen, _LISTED_AT_ONCE)):
            ready = reading.with_statistics(chunk)
            found += [_row(ready, crawl) for crawl in chunk]
        return found


def crawl_row(live: LiveIndex, name: str) -> dict[str, Any]:
    """Return one crawl with exact shares, for JSON to be rounded; raises `UnknownCrawl`."""
    with live.crawls.reading_for(name) as reading:
        return _row(reading, reading.crawl(name))


def is_indexed(live: LiveIndex, name: str) -> bool:
    """Return whether files of a crawl were indexed, as far as can be said at once."""
    known = summary.read_summary(live.index)
    rows = known["by"]["crawl"]["rows"] if known else []
    if any(row["crawl"] == name for row in rows):
        return True
    with live.opened().engine.view() as view:
        return reports.has_files(view, name, FILES)


def _row(reading: Reading, crawl: Crawl) -> dict[str, Any]:
    captures, size = statistics.captures(reading, crawl)
    self_report = self_report_of(reading, crawl)
    total = statistics.total(reading, crawl, self_report)
    reasons, times = statistics.refused(reading, crawl), statistics.times(reading, crawl)
    refused = statistics.refused_payload(reading, crawl, reasons)
    return {
        **crawl.as_json(),
        "captures": captures,
        "bytes": reports.known_bytes(captures, size),
        "refused": reasons,
        "lookups": total.lookups,
        "duplicates": total.duplicates,
        "duplicate_bytes": known(total.duplicate_bytes, total.duplicates, total.unsized),
        "duplicate_bytes_percent": total.as_json(refused)["duplicate_bytes_percent"],
        "errors": total.errors,
        "answered_others": statistics.others(reading, crawl),
        **self_report._asdict(),
        **reports.left_unknown(total, refused, self_report),
        "first_lookup": date(times.first),
        "last_lookup": date(times.last),
        "warning": warning(crawl, total, captures),
    }


def _report_request(given: dict[str, Any]) -> ReportRequest:
    """Return the options of a report; one group more than a page shows is asked for."""
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
    return asked if asked.top else asked._replace(most=given.get("limit", fields.PAGE) + 1)


def _next_page(path: str, given: dict[str, Any], after: str) -> str:
    return f"{path}?{urlencode({**given, 'after': after}, errors='surrogateescape')}"


def _linked(response: Response, follow: str | None) -> Response:
    if follow is not None:
        response.headers["Link"] = f'<{follow}>; rel="next"'
    return response
