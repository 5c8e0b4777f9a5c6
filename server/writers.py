"""Who writes about crawls, and what they send: a JSON object, or a form as scripts send it."""

from __future__ import annotations

from io import BytesIO
from typing import Any, BinaryIO, cast
from urllib.parse import parse_qsl

import orjson

from dedupindex.tokens import Role
from server.access import Access
from server.bodies import Bodies
from server.incoming import read_body
from server.replies import RequestError
from server.reporting import Reporting

_FORM = "application/x-www-form-urlencoded"
_MOST_FIELDS = 100  # of a form


class Writers:
    """Lets in those who may write, and reads their bodies, in any number of threads."""

    def __init__(self, reporting: Reporting, access: Access, bodies: Bodies, limit: int) -> None:
        """`limit`: bytes of a body."""
        self._reporting, self._access = reporting, access
        self._bodies, self._limit = bodies, limit

    def allowed(self, environ: dict[str, Any], crawl: str = "", namespace: str = "") -> str:
        """Who writes to a crawl, "" for not known yet; raises `RequestError` unless they may.

        A crawl that is there has its `namespace`; one that is begun gets it.
        """

        def touched() -> list[str]:
            if not crawl:
                return []
            known = self._reporting.namespace_of(crawl)
            return [namespace if known is None else known]

        return self._access.require(environ, Role.WRITE, crawl, touched)

    def given(self, environ: dict[str, Any]) -> dict[str, Any]:
        """The fields of a body; raises `RequestError`.

        Nobody's body is received who may not write at all.
        """
        self.allowed(environ)
        kind, length = kind_of(environ), environ.get("CONTENT_LENGTH", "")
        if kind == _FORM and not length:  # half a form is a form, too
            raise RequestError("bad_request", "a form needs its Content-Length")
        with self._bodies.one():
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

    def received(self, environ: dict[str, Any]) -> BinaryIO:
        """The lines of a body, of which nothing is written if it breaks off.

        One that is larger than a JSON body may be is not held; its lines are written as they come.
        """
        stream, length = cast(BinaryIO, environ["wsgi.input"]), environ.get("CONTENT_LENGTH", "")
        if length.isdigit() and int(length) > self._limit:
            return stream
        return BytesIO(read_body(stream, length, self._limit))


def kind_of(environ: dict[str, Any]) -> str:
    """The media type of a body, without parameters."""
    kind: str = environ.get("CONTENT_TYPE", "")
    return kind.partition(";")[0].strip().lower()


def _fields(body: bytes) -> dict[str, Any]:
    """The fields of a form that are not empty."""
    try:
        pairs = parse_qsl(body.decode(), errors="strict", max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        raise RequestError("bad_request", f"the form cannot be read: {error}") from error
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise RequestError("bad_request", "a field of the form is given twice")
    return fields
