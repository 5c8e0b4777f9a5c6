"""The pages as a Flask blueprint: one table, one guard before all of them, errors as pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from flask import Blueprint, Response, render_template, request
from werkzeug.exceptions import HTTPException

from dedupindex import __version__
from dedupindex.errors import DedupError
from server.api.bodies import Bodies
from server.api.crawl_reports import Reporting
from server.auth import Access
from server.commands import Commands
from server.config import RETRY_AFTER, Config
from server.live_index import LiveIndex
from server.logs import report
from server.metrics import Metrics
from server.pages.chart_pages import Charts
from server.pages.command_pages import WhatIf
from server.pages.crawl_pages import CrawlPages
from server.pages.escape import dress
from server.pages.forms import from_here
from server.pages.headers import protect
from server.pages.impact import ImpactPage
from server.pages.login import COOKIE, Signing, with_token
from server.pages.lookup_page import LookupPage
from server.pages.overview import Overview
from server.responses import ERRORS, RequestError, code_of


class Page(NamedTuple):
    """One method of one path."""

    method: str
    path: str
    name: str  # of the function that answers, and of the endpoint
    about: str
    open: bool = False  # also to those who have no token yet


PAGES = (
    Page("GET", "/", "overview", "what the index holds, crawls, lookups"),
    Page("GET", "/pages/containers", "containers", "the files that were indexed"),
    Page("GET", "/pages/crawls", "crawls", "crawls and how far they are"),
    Page("GET", "/pages/crawl", "crawl", "one crawl"),
    Page("GET", "/pages/host", "host", "one host of all crawls"),
    Page("GET", "/pages/charts", "charts", "lookups and bytes over time"),
    Page("GET", "/pages/lookup", "lookup", "a digest or URL looked up, and why"),
    Page("GET", "/pages/what-if", "what_if", "what a crawl would have saved: the form"),
    Page("POST", "/pages/what-if", "try_out", "the same: its answer"),
    Page("GET", "/pages/impact", "impact", "what depends on a container, crawl or URL"),
    Page("GET", "/pages/sign-in", "sign_in", "where a browser gets its cookie", open=True),
    Page("POST", "/pages/sign-in", "take_token", "the same: takes a token", open=True),
    Page("POST", "/pages/sign-out", "sign_out", "gives the cookie back", open=True),
    Page("GET", "/pages/<path:rest>", "nothing", "all else: there is no such page", open=True),
)


def make_pages(
    config: Config,
    live: LiveIndex,
    metrics: Metrics,
    access: Access,
    bodies: Bodies,
    reporting: Reporting,
    running: Commands,
) -> Blueprint:
    """The blueprint; nothing of it may be registered twice."""
    pages = Blueprint(
        "pages",
        __name__,
        static_folder="static",
        static_url_path="/pages/static",
        template_folder="templates",
    )
    pages.record_once(lambda state: dress(state.app))
    pages.after_request(protect)
    guard = _Guard(access, metrics, Signing(access, bodies))
    of: list[Any] = [
        Overview(live, metrics, reporting, access),
        CrawlPages(live, reporting, access),
        Charts(live, access),
        LookupPage(live, access),
        WhatIf(config, bodies, running),
        ImpactPage(running, access),
        guard.signing,
        guard,
    ]
    for page in PAGES:
        view = next(getattr(one, page.name) for one in of if hasattr(one, page.name))
        answer = guard.before(view, open=page.open)
        pages.add_url_rule(page.path, page.name, answer, methods=[page.method])

    @pages.context_processor
    def common() -> dict[str, Any]:
        return {"version": __version__, "signed": COOKIE in request.cookies}

    return pages


class _Guard:
    def __init__(self, access: Access, metrics: Metrics, signing: Signing) -> None:
        self._access, self._metrics, self.signing = access, metrics, signing

    def before(self, view: Callable[..., Any], *, open: bool) -> Callable[..., Any]:
        """A view for those who may see it; where that fails, the page that says so."""

        def answer(**values: str) -> Any:
            try:
                if request.method == "POST" and not from_here(request.environ):
                    raise RequestError("forbidden", "this was not sent by a page of this server")
                if not open:
                    self._access.may_read(with_token(request.environ))
                return view(**values)
            except Exception as error:
                return self._failed(error)

        return answer

    def nothing(self, rest: str) -> Response:
        """Where no page is."""
        raise RequestError("not_found", "There is no such page.")

    def _failed(self, error: Exception) -> Response:
        code, text = "internal", ERRORS["internal"][1]
        if isinstance(error, DedupError):
            code, text = code_of(error), str(error)
        elif isinstance(error, HTTPException) and error.code == 400:
            code, text = "bad_request", ERRORS["bad_request"][1]
        else:
            report(error, request.environ)
        self._metrics.error(code)
        if code == "unauthorized":
            target = request.full_path.rstrip("?") if request.method == "GET" else ""
            return self.signing.asked_for(target, status=401)
        status = ERRORS[code][0]
        page = render_template("error.html", code=code, text=text, status=status)
        again = [("Retry-After", str(RETRY_AFTER))] if status == 503 else []
        return Response(page, status, again)
