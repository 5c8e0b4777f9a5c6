"""The Flask application."""

from __future__ import annotations

from time import perf_counter_ns

from flask import Flask, Response, g, request
from werkzeug.exceptions import HTTPException

from dedupindex.index import stats_of
from dedupindex.urlkey import urlkey
from server import metrics as counting
from server.api.captures import Captures
from server.api.cdx_server_api import PATHS, Cdx
from server.api.claims import Claims
from server.api.crawls import CrawlRoutes
from server.api.deletions import Deletions
from server.api.doppelganger import Records
from server.api.filter_routes import FilterRoutes
from server.api.index_reports import IndexReports
from server.api.last_captures import LastCaptures
from server.api.lookups import Lookups
from server.body_timeout import BodyTimeout
from server.config import Config
from server.live_index import LiveIndex
from server.metrics import Metrics
from server.openapi import document
from server.pages.blueprint import make_pages
from server.request_checks import RequestChecks
from server.responses import ERRORS, error_reply, json_of, response_of
from server.routes import ROUTES, Route, routes_of
from server.services import Handlers, Services
from server.wsgi_fast_path import HotRoutes

_CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}


def create_app(
    config: Config, live: LiveIndex, metrics: Metrics | None = None, *, hot: bool = True
) -> Flask:
    """Return the application of an open index; without `hot` Flask handles every request."""
    urlkey(b"http://[::1]:1/")  # imports modules for unusual URLs before the first request
    services = Services(config, live, metrics or Metrics())
    metrics, access = services.metrics, services.access
    lookups = Lookups(live, metrics, access, services.bodies, config)
    cdx, captures, status = Cdx(services), Captures(services), _Status(services)
    crawls, records = CrawlRoutes(services), Records(services)
    app = Flask("server", static_folder=None)
    for group in (
        status,
        lookups,
        cdx,
        captures,
        crawls,
        records,
        Claims(services),
        LastCaptures(services),
        Deletions(services),
        IndexReports(services),
        FilterRoutes(services),
    ):
        for route, view in routes_of(group):
            path = route.path.replace("{", "<").replace("}", ">")
            app.add_url_rule(path, route.name, view, methods=[route.method])
    app.register_blueprint(make_pages(services))
    app.register_error_handler(HTTPException, status.refused)
    app.register_error_handler(Exception, status.failed)
    _time_requests(app, metrics)
    if hot:
        gets = {"/lookup": lookups.get, **dict.fromkeys(PATHS, cdx.get)}
        posts = {"/lookup": lookups.respond, "/captures": captures.respond}
        checks, timeout = RequestChecks(config, access, metrics), BodyTimeout(config.body_timeout)
        app.wsgi_app = HotRoutes(app.wsgi_app, gets, posts, checks, timeout, services.stop)  # type: ignore[assignment,method-assign]
    return app


def _time_requests(app: Flask, metrics: Metrics) -> None:
    timed_elsewhere = {route.name for route in ROUTES if not route.timed}

    @app.before_request
    def start() -> None:
        g.started = perf_counter_ns()

    @app.after_request
    def stop(response: Response) -> Response:
        if request.endpoint not in timed_elsewhere:
            metrics.route(request.endpoint or "", g.started)
        return response


class _Status(Handlers):
    """Routes of the server itself, and the answers to requests that Flask refuses."""

    @Route("GET", "/healthz", ("Status",), open=True)
    def healthz(self) -> Response:
        """Whether the process runs."""
        return json_of({"status": "alive"})

    @Route("GET", "/readyz", ("Status",), open=True, errors=(503,))
    def readyz(self) -> Response:
        """Whether the index and its crawls can answer."""
        with self._live.state() as state:
            state.view.counts()
        return json_of({"status": "ready"})

    @Route("GET", "/stats", ("Stats",))
    def stats(self) -> Response:
        """What the index holds."""
        self._access.may_read(request.environ)
        content = stats_of(self._live.opened().engine)
        if self._live.shared is not None:
            content["filter"] = self._live.shared.status()._asdict()
        return json_of(content)

    @Route("GET", "/metrics", ("text/plain",), open=True)
    def metrics(self) -> Response:
        """Counts for Prometheus."""
        text = counting.exposition(self._metrics, self._live)
        return Response(text, content_type="text/plain; version=0.0.4; charset=utf-8")

    @Route("GET", "/openapi.json", open=True)
    def openapi(self) -> Response:
        """This document."""
        return json_of(document())

    def refused(self, error: HTTPException) -> Response:
        """Answer what Flask refuses: unknown paths, wrong methods."""
        code = _CODES.get(error.code or 500, "internal")
        allow = [(name, value) for name, value in error.get_headers() if name == "Allow"]
        self._metrics.error(code)
        message = ERRORS[code][1]
        if allow and error.code == 405:
            message = f"the path takes {allow[0][1]}, not {request.method}"
        return response_of(error_reply(code, message, allow))

    def failed(self, error: Exception) -> Response:
        """Answer a request that raised an error."""
        return response_of(self._metrics.reply_to(error, request.environ))
