"""The pages as a Flask blueprint, with the check of tokens and the error page of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from flask import Blueprint, Response, render_template, request
from werkzeug.exceptions import HTTPException

from dedupindex import __version__
from dedupindex.errors import DedupError
from server.api.request_body import BodySlots
from server.auth import Access
from server.commands import Commands
from server.config import RETRY_AFTER, Config
from server.live_index import LiveIndex
from server.logs import report
from server.metrics import Metrics
from server.pages.chart_pages import Charts
from server.pages.command_pages import ImpactPage, WhatIf
from server.pages.crawl_pages import CrawlPages
from server.pages.escape import configure_templates
from server.pages.forms import from_own_page
from server.pages.login import COOKIE, Login, with_token
from server.pages.lookup_page import LookupPage
from server.pages.overview import Overview
from server.responses import ERRORS, RequestError, code_of

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; "  # pages with numbers that change fetch themselves
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)


def protect(response: Response) -> Response:
    """Add the security headers to a response."""
    response.headers["Content-Security-Policy"] = POLICY
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["X-Frame-Options"] = "DENY"
    # Not no-referrer: with that, browsers send no Origin with a form.
    response.headers["Referrer-Policy"] = "same-origin"
    response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
    if response.mimetype == "text/html":
        response.headers["Cache-Control"] = "no-store"
    return response


class _Page(NamedTuple):
    method: str
    path: str
    view: Callable[..., Any]  # its name is the endpoint's
    open: bool = False  # also to those who have no token yet


def make_pages(
    config: Config,
    live: LiveIndex,
    metrics: Metrics,
    access: Access,
    bodies: BodySlots,
    commands: Commands,
) -> Blueprint:
    """Return the blueprint of all pages."""
    pages = Blueprint(
        "pages",
        __name__,
        static_folder="static",
        static_url_path="/pages/static",
        template_folder="templates",
    )
    pages.record_once(lambda state: configure_templates(state.app))
    pages.after_request(protect)
    login = Login(access, bodies)
    guard = _Guard(access, metrics, login)
    overview, crawls = Overview(live, metrics, access), CrawlPages(live, access)
    what_if = WhatIf(config, bodies, commands)
    for page in (
        _Page("GET", "/", overview.overview),
        _Page("GET", "/pages/containers", overview.containers),
        _Page("GET", "/pages/crawls", crawls.crawls),
        _Page("GET", "/pages/crawl", crawls.crawl),
        _Page("GET", "/pages/host", crawls.host),
        _Page("GET", "/pages/charts", Charts(live, access).charts),
        _Page("GET", "/pages/lookup", LookupPage(live, access).lookup),
        _Page("GET", "/pages/what-if", what_if.what_if),
        _Page("POST", "/pages/what-if", what_if.try_out),
        _Page("GET", "/pages/impact", ImpactPage(commands, access).impact),
        _Page("GET", "/pages/sign-in", login.sign_in, open=True),
        _Page("POST", "/pages/sign-in", login.take_token, open=True),
        _Page("POST", "/pages/sign-out", login.sign_out, open=True),
        _Page("GET", "/pages/<path:rest>", guard.nothing, open=True),
    ):
        answer = guard.before(page.view, open=page.open)
        pages.add_url_rule(page.path, page.view.__name__, answer, methods=[page.method])

    @pages.context_processor
    def common() -> dict[str, Any]:
        return {"version": __version__, "signed": COOKIE in request.cookies}

    return pages


class _Guard:
    def __init__(self, access: Access, metrics: Metrics, login: Login) -> None:
        self._access, self._metrics, self._login = access, metrics, login

    def before(self, view: Callable[..., Any], *, open: bool) -> Callable[..., Any]:
        """Wrap a view in the check of tokens and the error page."""

        def answer(**values: str) -> Any:
            try:
                if request.method == "POST" and not from_own_page(request.environ):
                    raise RequestError("forbidden", "this was not sent by a page of this server")
                if not open:
                    self._access.may_read(with_token(request.environ))
                return view(**values)
            except Exception as error:
                return self._failed(error)

        return answer

    def nothing(self, rest: str) -> Response:
        """Refuse an unknown path."""
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
            return self._login.form(target, status=401)
        status = ERRORS[code][0]
        page = render_template("error.html", code=code, text=text, status=status)
        again = [("Retry-After", str(RETRY_AFTER))] if status == 503 else []
        return Response(page, status, again)
