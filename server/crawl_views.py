"""The Flask views of crawls: requests read at the edge, answers made elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import orjson
from flask import Response, request

from dedupindex.tokens import Role
from server import logs
from server.access import Access
from server.bodies import Bodies
from server.claiming import Claiming
from server.config import Config
from server.fields import text_of
from server.incoming import read_body, stretches
from server.metrics import Metrics
from server.replies import RequestError
from server.reporting import Reported, Reporting

_FORM = "application/x-www-form-urlencoded"
_LINES = ("application/x-ndjson", "application/ndjson", "application/jsonl")


class CrawlViews:
    """One method for each route of crawls; see `routes`."""

    def __init__(
        self,
        reporting: Reporting,
        claiming: Claiming,
        access: Access,
        bodies: Bodies,
        config: Config,
        metrics: Metrics,
    ) -> None:
        self._reporting, self._access, self._config = reporting, access, config
        self._claiming, self._bodies, self._metrics = claiming, bodies, metrics

    def begin_crawl(self) -> Response:
        given = self.given()
        who = self._writer(text_of(given, "name"), text_of(given, "namespace"))
        return self._written(who, self._reporting.begin(given))

    def show_crawl(self, name: str) -> Response:
        self._access.may_read(request.environ, self._reporting.apart(name))
        return _json(self._reporting.crawl(name))

    def commit_crawl(self, name: str) -> Response:
        who = self._writer(name)
        return self._written(who, self._reporting.end(name, self.given(), keep=True))

    def cancel_crawl(self, name: str) -> Response:
        who = self._writer(name)
        return self._written(who, self._reporting.end(name, self.given(), keep=False))

    def count_crawl(self, name: str) -> Response:
        who = self._writer(name)
        return self._written(who, self._reporting.told(name, self.given()))

    def add_captures(self) -> Response:
        crawl, total = request.args.get("crawl", ""), Reported()
        if request.mimetype in _LINES:
            who = self._writer(crawl)
            stream = cast(Any, request.environ["wsgi.input"])
            lines = stretches(stream, self._config.max_line)
            with self._bodies.one(), self._audited(who, crawl, total):
                self._reporting.lines(crawl, lines, total)
            return _json(total.as_json())
        given = self.given()
        crawl = crawl or text_of(given, "crawl")
        with self._audited(self._writer(crawl), crawl, total):
            self._reporting.captures(crawl, given, total)
        return _json(total.as_json())

    def claim(self) -> Response:
        given = self.given()
        crawl = text_of(given, "crawl")
        who, allowed = self._writer(crawl), partial(self._access.may_read, request.environ)
        many = "claims" in given
        answer = (self._claiming.claims if many else self._claiming.claim)(given, allowed)
        results = Counter(map(_result, answer["answers"] if many else [answer]))
        self._metrics.written(results, "claims")
        return self._written(who, dict(results) if many else answer, crawl, answer)

    def release(self) -> Response:
        given = self.given()
        return self._written(self._writer(), self._claiming.release(given))

    def _writer(self, crawl: str = "", namespace: str = "") -> str:
        """Who writes to a crawl, "" for not known yet; raises `RequestError` unless they may.

        A crawl that is there has its `namespace`; one that is begun gets it.
        """

        def touched() -> list[str]:
            if not crawl:
                return []
            known = self._reporting.namespace_of(crawl)
            return [namespace if known is None else known]

        return self._access.require(request.environ, Role.WRITE, crawl, touched)

    def _written(
        self,
        who: str,
        content: dict[str, Any],
        crawl: str = "",
        answer: dict[str, Any] | None = None,
    ) -> Response:
        """The answer to a write, if it is not its content, which leaves a line in the log."""
        logs.audit(request.environ, who, content, crawl)
        return _json(content if answer is None else answer)

    @contextmanager
    def _audited(self, who: str, crawl: str, total: Reported) -> Iterator[None]:
        """A line in the log for what was written, also where it broke off in the middle."""
        try:
            yield
        except BaseException:
            self._metrics.written(total.counts())
            if total.added or total.unchanged or total.refused:
                logs.audit(request.environ, who, {**vars(total), "broken_off": True}, crawl)
            raise
        self._metrics.written(total.counts())
        logs.audit(request.environ, who, vars(total), crawl)

    def given(self) -> dict[str, Any]:
        """The fields of a body: a JSON object, or a form as scripts send it.

        Nobody's body is received who may not write at all.
        """
        self._writer()
        stream, length = cast(Any, request.environ["wsgi.input"]), request.headers
        if request.mimetype == _FORM:
            if not length.get("Content-Length"):  # half a form is a form, too
                raise RequestError("bad_request", "a form needs its Content-Length")
            request.max_content_length = self._config.max_body
            with self._bodies.one():
                form = request.form
            return {name: value for name, value in form.items() if value != ""}
        with self._bodies.one():
            body = read_body(stream, length.get("Content-Length", ""), self._config.max_body)
        if not body.strip():
            return {}
        if request.mimetype != "application/json":
            raise RequestError("unsupported_media_type", f"POST application/json or {_FORM}")
        try:
            content = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise RequestError("bad_request", f"the body is not JSON: {error}") from error
        if not isinstance(content, dict):
            raise RequestError("bad_request", "the body must be a JSON object")
        return content


def _result(answer: dict[str, Any]) -> str:
    if "error" in answer:
        return "bad"
    return "duplicate" if answer["duplicate"] else "claimed" if answer["claimed"] else "taken"


def _json(content: dict[str, Any]) -> Response:
    return Response(orjson.dumps(content), content_type="application/json")
