"""Routes of lookups: single lookups here, batches in `lookup_batch`.

`Lookups.respond` and `Lookups.get` do not use Flask: the layer in front of Flask and the Flask
route call them with the WSGI environment, so that their answers are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from time import perf_counter_ns
from typing import Any, BinaryIO, cast

import orjson
from flask import Response, request

from dedupindex.cache import Cache
from dedupindex.capture import Capture, Uncommitted, has_digest_encoding
from dedupindex.errors import BadQuery
from dedupindex.lookup import decide
from dedupindex.lookup.decide import Decision, Strategy
from dedupindex.lookup.explain import explanation_json
from dedupindex.lookup.params import (
    PARAMETERS,
    UnknownAlgorithm,
    params_from_query_string,
    parse_query,
)
from dedupindex.lookup.render_json import header_lines
from server.api.lookup_batch import UNKNOWN, Batch
from server.api.plain_lookups import PlainLookups, plain_query
from server.api.request_body import LINES_TYPES, BodySlots, media_type, read_body
from server.api.request_fields import prefers_text, query_string, schemas_of
from server.auth import Access
from server.config import Config
from server.live_index import LiveIndex
from server.logs import report
from server.metrics import CELLS, Metrics
from server.responses import JSON, LINES, OK, TEXT, Reply, RequestError, error_object, response_of
from server.routes import Route

Environ = dict[str, Any]
_OTHER_ENCODING = "digest-encoding"  # there are originals, all with a digest in another encoding


class Lookups:
    """Answers requests for lookups; thread-safe."""

    def __init__(
        self, live: LiveIndex, metrics: Metrics, access: Access, bodies: BodySlots, config: Config
    ) -> None:
        self._live, self._metrics, self._config = live, metrics, config
        self._access, self._private = access, access.private
        self._bodies, self._batch = bodies, Batch(live, metrics, config)
        self._counting = live.crawls.counting
        plain = PlainLookups(live, metrics)
        self._as_text, self._as_json = plain.as_text, plain.as_json
        self._accepts = Cache[str, bool]()

    @Route(
        "GET",
        "/lookup",
        {200: ("Answer", "text/plain"), 204: ()},
        errors=(404, 409),
        parameters=schemas_of(item for item in PARAMETERS.values() if not item.only_json),
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
        return response_of(self.respond(request.environ))

    def respond(self, environ: Environ) -> Reply:
        """Answer GET or POST /lookup; never raises."""
        if environ["REQUEST_METHOD"] != "POST":
            return self.get(environ)
        try:
            self._access.may_read(environ)
            return self._post(environ, query_string(environ))
        except Exception as error:
            return self._metrics.reply_to(error, environ)

    def get(self, environ: Environ) -> Reply:
        """Answer GET /lookup; never raises. This is the hottest function of the server."""
        started = perf_counter_ns()
        try:
            text = query_string(environ)
            if self._private:
                self._access.may_read(environ)
            as_text = "HTTP_ACCEPT" in environ and self._wants_text(environ["HTTP_ACCEPT"])
            fast = self._live.opened().plain is not None or self._live.shared is not None
            query = plain_query(text) if fast else None
            if query is not None:
                answer = self._as_text if as_text else self._as_json
                reply = answer(query, started)
                if reply is not None:
                    return reply
            return self._full_answer(environ, as_text, started)
        except Exception as error:
            self._counting.count_failure(error, environ["QUERY_STRING"])
            return self._metrics.reply_to(error, environ)

    def _full_answer(self, environ: Environ, as_text: bool, started: int) -> Reply:
        strategy = Strategy.DIGEST_ANY.value
        given = params_from_query_string(query_string(environ))
        try:
            query, explain, spelling = parse_query(given)
        except UnknownAlgorithm:
            self._counting.count_unknown(given, perf_counter_ns() - started)
            self._metrics.lookup(CELLS[strategy, "unknown_algorithm"], started)
            return ("204 No Content", [], b"") if as_text else (OK, JSON, UNKNOWN)
        if as_text and explain:
            raise BadQuery("an explanation is JSON: ask for it with Accept: application/json")
        others: list[Capture] = []  # in an encoding that the header lines cannot name
        if as_text and not query.bridge:
            query = query._replace(accepts=_accepts(spelling.encoding, others))
        with self._live.state(refresh=bool(query.crawl), filtered=True) as state:
            query = self._live.crawls.completed(query, given, state.crawls)
            if query.namespaces:
                self._access.may_read(environ, query.namespaces)
            view = state.seen_by(query.crawl, query.namespaces)
            decision = decide.decide(view, state.settings, query)
            content = {} if as_text else decide.as_json(decision)
            if explain:
                content |= explanation_json(view, state.settings, query)
        reply = _text_of(decision, others) if as_text else (OK, JSON, orjson.dumps(content))
        match = decision.answer.match.value if decision.answer else "none"
        if query.crawl or decision.answer is not None:
            self._counting.count_answer(query, decision.answer, perf_counter_ns() - started)
        self._metrics.lookup(CELLS[query.strategy.value, match], started)
        return reply

    def _wants_text(self, accept: str) -> bool:
        wanted = self._accepts.get(accept)
        if wanted is None:
            wanted = self._accepts.keep(accept, prefers_text(accept))
        return wanted

    def _post(self, environ: Environ, text: str) -> Reply:
        kind = media_type(environ)
        lines = kind in LINES_TYPES
        if not lines and kind != "application/json":
            raise RequestError(
                "unsupported_media_type",
                "POST lookups as JSON: curl -H 'Content-Type: application/json' -d "
                """'{"lookups": [{"digest": "sha1:...", "url": "http://..."}]}', or JSON lines """
                "as application/x-ndjson; a form is not taken: GET /lookup?digest=... asks one",
            )
        defaults = params_from_query_string(text)
        allowed = partial(self._access.may_read, environ)
        if lines:
            stream = cast(BinaryIO, environ["wsgi.input"])
            answers = self._batch.lines(stream, defaults, allowed)
            self._bodies.acquire()
            try:  # a body that ends early is neither answered nor counted
                first = next(answers, b"")
            except BaseException:
                self._bodies.release()
                raise
            released = self._released(chain((first,), answers), environ)
            next(released)
            return (OK, LINES, released)
        with self._bodies.slot():
            body = read_body(environ, self._config.max_body)
        return (OK, JSON, self._batch.json(body, defaults, allowed))

    def _released(self, answers: Iterator[bytes], environ: Environ) -> Iterator[bytes]:
        """Yield answers, and release the slot of the body when the stream ends, however it ends.

        The first item is empty: a generator that never started would not run its `finally`.
        """
        try:
            yield b""
            yield from answers
        except OSError:
            return  # the client went away
        except RequestError as error:  # in the middle of the body: it becomes the last line
            self._metrics.error(error.reason)
            yield orjson.dumps(error_object(error.reason, str(error))) + b"\n"
        except Exception as error:
            report(error, environ)
            self._metrics.error("internal")
            raise
        finally:
            self._bodies.release()


def _accepts(encoding: int, others: list[Capture]) -> Callable[[Capture], bool]:
    """Return whether a capture has a digest in an encoding; those that have not go to `others`."""

    def accepts(capture: Capture) -> bool:
        if has_digest_encoding(capture, encoding):
            return True
        others.append(capture)
        return False

    return accepts


def _text_of(decision: Decision, others: list[Capture]) -> Reply:
    """Return the header lines of a revisit, and the rest as headers of the response.

    `others` would answer if the digest of the request had their encoding.
    """
    answer = decision.answer
    if answer is None:
        reason = decision.reason
        if others and not reason and not decision.policy:
            reason = _OTHER_ENCODING
        headers = [("Dedup-Policy", decision.policy), ("Dedup-Reason", reason)]
        return "204 No Content", [header for header in headers if header[1]], b""
    headers = [*TEXT]
    if answer.skip:
        headers.append(("Dedup-Skip", "1"))
    if isinstance(answer.original, Uncommitted):
        headers.append(("Dedup-Uncommitted", "1"))
    return OK, headers, header_lines(answer.original)
