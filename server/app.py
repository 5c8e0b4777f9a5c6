"""The Flask application."""

from __future__ import annotations

from time import perf_counter_ns

from flask import Flask, Response, g, request
from werkzeug.exceptions import HTTPException

from dedupindex.index import stats_of
from dedupindex.lookup.params import PARAMETERS
from dedupindex.urlkey import urlkey
from server import metrics as counting
from server.api.batch_limits import BodySlots
from server.api.captures import Captures
from server.api.cdx_server_api import Cdx
from server.api.claims import Claiming
from server.api.crawl_reports import Reporting, Writers
from server.api.crawl_views import CrawlViews, ReportViews
from server.api.dialect_views import DialectViews
from server.api.doppelganger import Records
from server.api.lookups import Lookups
from server.api.purge_views import PurgeViews
from server.api.request_fields import described
from server.auth import Access
from server.body_timeout import Patience
from server.commands import Commands
from server.config import Config
from server.failures import reply_to
from server.live_index import LiveIndex
from server.metrics import Metrics
from server.openapi import document
from server.pages.blueprint import make_pages
from server.rate_limit import ClientLimits
from server.request_head import RequestHead
from server.responses import ERRORS, Headers, error_reply, json_of, response_of
from server.routes import ROUTES, Route, routes_of
from server.wsgi_fast_path import HotRoutes

_CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}


def create_app(
    config: Config, live: LiveIndex, metrics: Metrics | None = None, *, hot: bool = True
) -> Flask:
    """Return the application of an open index; without `hot` Flask handles every request."""
    urlkey(b"http://[::1]:1/")  # imports modules for unusual URLs before the first request
    metrics = metrics or Metrics()
    access = Access(config.index, private=config.private, guarded=config.guarded)
    bodies = BodySlots()
    lookups = Lookups(live, metrics, access, bodies, config)
    app = Flask("server", static_folder=None)
    views = _Views(lookups, live, metrics, access)
    cdx = Cdx(live, metrics, access)
    reporting = Reporting(live, config.max_batch)
    writers = Writers(reporting, access, bodies, config)
    captures = Captures(reporting, writers, bodies, metrics, config.max_line)
    crawls = CrawlViews(reporting, captures, Claiming(live), access, writers, metrics)
    reports = ReportViews(live, reporting, access)
    records = Records(live, config.max_batch)
    dialects = DialectViews(cdx, records, access, bodies, config)
    commands = Commands(config.index)
    purging = PurgeViews(live, reporting, access, commands, writers.given, config.max_batch)
    for made in (views, crawls, reports, purging, dialects):
        for one, view in routes_of(made):
            path = one.path.replace("{", "<").replace("}", ">")
            app.add_url_rule(path, one.name, view, methods=[one.method])
    app.register_blueprint(make_pages(config, live, metrics, access, bodies, reporting, commands))
    app.register_error_handler(HTTPException, views.refused)
    app.register_error_handler(Exception, views.failed)
    _time_requests(app, metrics)
    if hot:
        patience = Patience(config.body_timeout)
        limits = ClientLimits(config.rate_limit, access, metrics) if config.rate_limit else None
        inner, head = app.wsgi_app, RequestHead((config.host.lower(), *config.host_names), metrics)
        app.wsgi_app = HotRoutes(inner, lookups, cdx, captures, patience, head, limits)  # type: ignore[assignment,method-assign]
    return app


def _time_requests(app: Flask, metrics: Metrics) -> None:
    counted = {one.name for one in ROUTES if not one.timed}

    @app.before_request
    def begin() -> None:
        g.started = perf_counter_ns()

    @app.after_request
    def end(response: Response) -> Response:
        if request.endpoint not in counted:
            metrics.route(request.endpoint or "", g.started)
        return response


class _Views:
    def __init__(self, lookups: Lookups, live: LiveIndex, metrics: Metrics, access: Access) -> None:
        self._lookups, self._live, self._metrics = lookups, live, metrics
        self._access = access

    @Route(
        "GET",
        "/lookup",
        {200: ("Answer", "text/plain"), 204: ()},
        errors=(404, 409),
        parameters=described(one for one in PARAMETERS.values() if not one.only_json),
        required="digest",
        timed=False,
    )
    @Route(
        "POST",
        "/lookup",
        ("Answers", "application/x-ndjson"),
        "Look many digests up, in order",
        name="lookup_batch",
        body=("Batch", "application/x-ndjson"),
        errors=(404, 409, 414, 415),
        timed=False,
    )
    def lookup(self) -> Response:
        """Look one digest up."""
        return response_of(self._lookups.respond(request.environ))

    @Route("GET", "/healthz", ("Status",), open=True)
    def healthz(self) -> Response:
        """Whether the process runs."""
        return json_of({"status": "alive"})

    @Route("GET", "/readyz", ("Status",), open=True, errors=(503,))
    def readyz(self) -> Response:
        """Whether the index can answer."""
        with self._live.opened().engine.view() as view:
            view.counts()
        return json_of({"status": "ready"})

    @Route("GET", "/stats", ("Stats",))
    def stats(self) -> Response:
        """What the index holds."""
        self._access.may_read(request.environ)
        return json_of(stats_of(self._live.opened().engine))

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
        allow: Headers = []
        for name, value in error.get_headers():
            if name == "Allow":
                allow.append((name, value))
        self._metrics.error(code)
        return response_of(error_reply(code, ERRORS[code][1], allow))

    def failed(self, error: Exception) -> Response:
        return response_of(reply_to(error, request.environ, self._metrics))
