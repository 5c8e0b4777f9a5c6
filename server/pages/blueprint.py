"""The pages as a Flask blueprint, with the check of tokens and the error page of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flask import Blueprint, Flask, Response, render_template, request
from flask.blueprints import BlueprintSetupState
from werkzeug.exceptions import HTTPException

from dedupindex import __version__
from server.auth import with_cookie
from server.config import RETRY_AFTER
from server.pages.capture_page import CapturePage
from server.pages.chart_pages import Charts
from server.pages.compare_page import ComparePage
from server.pages.content_pages import ContentPages
from server.pages.crawl_pages import CrawlPages
from server.pages.dry_run_page import DryRunPage
from server.pages.escape import configure_templates
from server.pages.live_page import LivePage
from server.pages.login import COOKIE, Login, from_own_page
from server.pages.lookup_page import LookupPage
from server.pages.overview import Overview
from server.pages.purge_page import PurgePages
from server.pages.what_if_page import WhatIf
from server.responses import ERRORS, RequestError
from server.services import Services

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; "  # pages with numbers that change fetch themselves
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers send no Origin with a form
    "Cross-Origin-Resource-Policy": "same-origin",
}


def protect(response: Response) -> Response:
    """Add the security headers to a response."""
    response.headers |= _HEADERS
    if response.mimetype == "text/html":
        response.headers["Cache-Control"] = "no-store"
    return response


def make_pages(services: Services) -> Blueprint:
    """Return the blueprint of all pages."""
    pages = Blueprint(
        "pages",
        __name__,
        static_folder="static",
        static_url_path="/pages/static",
        template_folder="templates",
    )
    live = LivePage(services)

    def prepare(state: BlueprintSetupState) -> None:
        configure_templates(state.app)
        assert isinstance(state.app, Flask)
        live.app = state.app

    pages.record_once(prepare)
    pages.after_request(protect)
    guard, table = _Guard(services), _views(services, live)
    open_to_all: dict[str, Callable[..., Any]] = {
        "GET /pages/sign-in": guard.sign_in,
        "POST /pages/sign-in": guard.take_token,
        "POST /pages/sign-out": guard.sign_out,
        "GET /pages/<path:rest>": guard.nothing,
    }
    for route, view in (table | open_to_all).items():
        method, path = route.split()
        answer = guard.guarded(view, open=route in open_to_all)
        pages.add_url_rule(path, view.__name__, answer, methods=[method])

    @pages.context_processor
    def common() -> dict[str, Any]:
        return {
            "version": __version__,
            "signed": COOKIE in request.cookies,
            "private": services.access.private,  # then no link to the API can be followed
            "may_dry_run": bool(services.config.dry_run_dirs),
        }

    return pages


def _views(services: Services, live: LivePage) -> dict[str, Callable[..., Any]]:
    """Return the views of the pages that need the right to read, by method and path."""
    overview, crawls = Overview(services), CrawlPages(services)
    content, what_if, purge = ContentPages(services), WhatIf(services), PurgePages(services)
    return {
        "GET /": overview.overview,
        "GET /pages/containers": overview.containers,
        "GET /pages/content": content.content,
        "GET /pages/captures": content.captures,
        "GET /pages/captures.csv": content.captures_csv,
        "GET /pages/captures.jsonl": content.captures_jsonl,
        "GET /pages/capture": CapturePage(services).capture,
        "GET /pages/crawls": crawls.crawls,
        "GET /pages/crawl": crawls.crawl,
        "GET /pages/compare": ComparePage(services).compare,
        "GET /pages/host": crawls.host,
        "GET /pages/live": live.live,
        "GET /pages/live/events": live.live_events,
        "GET /pages/charts": Charts(services).charts,
        "GET /pages/lookup": LookupPage(services).lookup,
        "GET /pages/what-if": what_if.what_if,
        "POST /pages/what-if": what_if.try_out,
        "GET /pages/impact": purge.impact,
        "POST /pages/purge": purge.purge,
        "GET /pages/dry-run": DryRunPage(services).dry_run,
    }


_NOT_OURS = (
    "this was not sent by a page of this server; with curl add its address as -H 'Origin: http://…'"
    ", or use the command of the page, such as bin/report INDEX --against FILE"
)


class _Guard(Login):
    """Checks the token and the origin of every request to a page."""

    def guarded(self, view: Callable[..., Any], *, open: bool) -> Callable[..., Any]:
        """Return a view with the check of tokens and the error page; `open` needs no token."""

        def answer(**values: str) -> Any:
            try:
                if request.method == "POST" and not from_own_page(request.environ):
                    raise RequestError("forbidden", _NOT_OURS)
                if not open:
                    request.environ.update(with_cookie(request.environ, COOKIE))
                    self._access.may_read(request.environ)
                return view(**values)
            except Exception as error:
                return self._failed(error)

        return answer

    def nothing(self, rest: str) -> Response:
        """Refuse an unknown path."""
        raise RequestError("not_found", "There is no such page.")

    def _failed(self, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.code == 400:
            error = RequestError("bad_request", ERRORS["bad_request"][1])
        code, text = self._metrics.record(error, request.environ)
        if code == "unauthorized":
            target = request.full_path.rstrip("?") if request.method == "GET" else ""
            return self.form(target, status=401)
        status = ERRORS[code][0]
        page = render_template("error.html", text=text, status=status)
        again = [("Retry-After", str(RETRY_AFTER))] if status == 503 else []
        return Response(page, status, again)
