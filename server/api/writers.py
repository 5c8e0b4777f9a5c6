"""Requests that write to crawls: their tokens, and their bodies as JSON or as a form."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any, BinaryIO, cast
from urllib.parse import parse_qsl

import orjson

from dedupindex.index.tokens import Role
from server.api.bodies import BodySlots
from server.api.crawl_reports import Reporting
from server.api.request_body import read_body, spooled_body
from server.auth import Access
from server.config import LINES_BODIES, MAX_SPOOLED, Config
from server.responses import RequestError

_FORM = "application/x-www-form-urlencoded"
_MOST_FIELDS = 100  # of a form


class Writers:
    """Checks requests to write, and reads their bodies; thread-safe."""

    def __init__(
        self, reporting: Reporting, access: Access, bodies: BodySlots, config: Config
    ) -> None:
        self._reporting, self._access = reporting, access
        self._bodies, self._limit, self._index = bodies, config.max_body, config.index
        self._spools = BodySlots(MAX_SPOOLED)

    def allowed(self, environ: dict[str, Any], crawl: str = "", namespace: str = "") -> str:
        """Return the name of the token that may write to a crawl; raises `RequestError`.

        `crawl` is "" while it is not known; `namespace` is that of a crawl that is yet to begin.
        """

        def touched() -> list[str]:
            if not crawl:
                return []
            known = self._reporting.namespace_of(crawl)
            return [namespace if known is None else known]

        return self._access.require(environ, Role.WRITE, crawl, touched)

    def given(self, environ: dict[str, Any], *, queried: bool = False) -> dict[str, Any]:
        """Return the fields of a body; raises `RequestError`.

        No body is read without permission to write. A query string is refused unless the caller
        has read it (`queried`): ``?force=true`` must not be ignored.
        """
        self.allowed(environ)
        if environ.get("QUERY_STRING") and not queried:
            raise RequestError(
                "bad_query",
                "this request takes no parameters in its URL; send them in the body, as a form "
                "or a JSON object",
            )
        kind, length = kind_of(environ), environ.get("CONTENT_LENGTH", "")
        if kind == _FORM and not length:  # a form that is cut off is still a form
            raise RequestError("bad_request", "a form needs its Content-Length")
        with self._bodies.slot():
            body = read_body(cast(BinaryIO, environ["wsgi.input"]), length, self._limit)
        if kind == _FORM:
            return _fields(body)
        if not body.strip():
            return {}
        if kind != "application/json":
            raise RequestError("unsupported_media_type", f"POST application/json or {_FORM}")
        try:
            content = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise RequestError("bad_request", f"the body is not JSON: {error}") from error
        if not isinstance(content, dict):
            raise RequestError("bad_request", "the body must be a JSON object")
        return content

    @contextmanager
    def received(self, environ: dict[str, Any]) -> Iterator[BinaryIO]:
        """Read a whole body of JSON lines, and open it; raises `RequestError`.

        A body over the limit of a JSON body is stored in a file beside the index.
        """
        stream, length = cast(BinaryIO, environ["wsgi.input"]), environ.get("CONTENT_LENGTH", "")
        size, most = int(length) if length.isdigit() else 0, self._limit * LINES_BODIES
        if size > most:
            message = f"JSON lines have at most {most} bytes; send them in several requests"
            raise RequestError("too_large", message)
        if size <= self._limit:
            yield BytesIO(read_body(stream, length, self._limit))
            return
        with self._spools.slot(), spooled_body(stream, size, self._index) as lines:
            yield lines


def kind_of(environ: dict[str, Any]) -> str:
    """Return the media type of a body, without parameters."""
    kind: str = environ.get("CONTENT_TYPE", "")
    return kind.partition(";")[0].strip().lower()


def _fields(body: bytes) -> dict[str, Any]:
    """Return the fields of a form that are not empty."""
    try:
        pairs = parse_qsl(body.decode(), errors="strict", max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        raise RequestError("bad_request", f"the form cannot be read: {error}") from error
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise RequestError("bad_request", "a field of the form is given twice")
    return fields
