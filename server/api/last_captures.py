"""``/last``: what is known last of a URL, for crawlers that fetch only what has changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from flask import Response, request

from dedupindex.crawls.combined_view import visits_of
from dedupindex.errors import BadQuery, DedupError
from dedupindex.lookup.last_capture import (
    LastCapture,
    last_as_json,
    last_as_lines,
    last_capture,
)
from dedupindex.lookup.params import (
    LAST_PARAMETERS,
    params_from_json,
    params_from_query_string,
    parse_last_query,
)
from server.api.request_body import LINES_TYPES, load_json, media_type, read_body
from server.api.request_fields import prefers_text, query_string, schemas_of
from server.live_index import LiveState
from server.metrics import log_outage
from server.responses import JSON, LINES, OK, TEXT, RequestError, code_of, error_object, response_of
from server.routes import Route
from server.services import Handlers


class LastCaptures(Handlers):
    """Answers requests for the last captures of URLs; thread-safe."""

    @Route(
        "GET",
        "/last",
        {200: ("LastCapture", "text/plain"), 204: ()},
        errors=(404, 409),
        parameters=schemas_of(item for item in LAST_PARAMETERS.values() if not item.only_json),
        required="url",
    )
    def last(self) -> Response:
        """The last capture of a URL, and the conditions on which it need not be fetched again."""
        environ = request.environ
        self._access.may_read(environ)
        given = params_from_query_string(query_string(environ), LAST_PARAMETERS)
        with self._live.state() as state:
            found = self._find(state, given)
        if not prefers_text(environ.get("HTTP_ACCEPT", "")):
            return response_of((OK, JSON, orjson.dumps(last_as_json(found))))
        lines = last_as_lines(found)
        return response_of((OK, TEXT, lines) if lines else ("204 No Content", [], b""))

    @Route(
        "POST",
        "/last",
        ("LastCaptures", "application/x-ndjson"),
        name="last_batch",
        body=("LastBatch", "application/x-ndjson"),
        errors=(404, 409, 414, 415),
    )
    def last_batch(self) -> Response:
        """The last captures of many URLs, in order."""
        environ = request.environ
        self._access.may_read(environ)
        defaults = params_from_query_string(query_string(environ), LAST_PARAMETERS)
        lines = media_type(environ) in LINES_TYPES
        if not lines and media_type(environ) != "application/json":
            raise RequestError(
                "unsupported_media_type",
                "POST questions as JSON: curl -H 'Content-Type: application/json' -d "
                """'{"lookups": [{"url": "http://..."}]}', or JSON lines as """
                "application/x-ndjson; a form is not taken: GET /last?url=... asks one",
            )
        with self._bodies.slot():
            body = read_body(environ, self._config.max_body)
        items: list[tuple[int, Any]]  # with the number of a line, 0 in JSON
        if lines:
            numbered = enumerate(body.split(b"\n"), 1)
            items = [(number, line) for number, line in numbered if line.strip()]
        else:
            found, more = _items(load_json(body))
            items = [(0, item) for item in found]
            defaults |= more
        most = self._config.max_batch
        if len(items) > most:
            raise RequestError("too_large", f"a batch has at most {most} URLs")
        with self._live.state() as state:
            answers = [self._answer(state, item, defaults, number) for number, item in items]
        if lines:
            text = b"".join([orjson.dumps(answer) + b"\n" for answer in answers])
            return response_of((OK, LINES, text))
        return response_of((OK, JSON, orjson.dumps({"answers": answers})))

    def _find(self, state: LiveState, given: Mapping[str, bytes]) -> LastCapture | None:
        query = parse_last_query(given)
        query = self._live.crawls.completed(query, {"strategy": b"its own"}, state.crawls)
        if query.namespaces:
            self._access.may_read(request.environ, query.namespaces)
        settings, engine = state.settings, state.opened.engine
        bodies = visits_of(engine, state.view, state.crawls, settings, query)
        view = state.seen_by(query.crawl, query.namespaces)
        found = last_capture(bodies, view, settings, query)
        if found is not None and found.original is not None and found.conditions:
            # A 304 makes a revisit of it, and no lookup is sent that would count this.
            self._live.crawls.counting.count_original(query.crawl, found.original)
        return found

    def _answer(
        self, state: LiveState, item: Any, defaults: dict[str, bytes], line: int
    ) -> dict[str, Any]:
        """Return the answer to one URL of a batch, or an error object."""
        try:
            content = load_json(item) if isinstance(item, bytes) else item
            if not isinstance(content, dict):
                raise BadQuery("a line or lookup is a JSON object")
            own = params_from_json(content, LAST_PARAMETERS)
            return last_as_json(self._find(state, {**defaults, **own}))
        except DedupError as error:
            log_outage(code_of(error), str(error), request.environ)
            return error_object(code_of(error), str(error), line)


def _items(content: Any) -> tuple[list[Any], dict[str, bytes]]:
    if not isinstance(content, dict) or not isinstance(content.get("lookups"), list):
        raise RequestError("bad_request", 'the body must be an object with a list "lookups"')
    items = content.pop("lookups")
    return items, params_from_json(content, LAST_PARAMETERS)
