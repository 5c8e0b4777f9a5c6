"""The Flask views of protocols of other servers, which crawlers already use."""

from __future__ import annotations

from functools import partial
from typing import Any, cast
from urllib.parse import quote

import orjson
from flask import Response, request

from dedupindex.errors import UnknownCrawl
from dedupindex.index.tokens import Role
from server import logs
from server.api.batch_limits import BodySlots
from server.api.cdx_query import PARAMETERS
from server.api.cdx_server_api import Cdx
from server.api.doppelganger import Records
from server.api.lookups import query_string
from server.api.request_body import read_body
from server.api.request_fields import described
from server.auth import Access
from server.config import Config
from server.responses import RequestError, json_of, response_of
from server.routes import Route

_CDX = described(PARAMETERS)
_LIST: dict[str, Any] = {
    "answer": ("text/plain", {"type": "array"}),
    "errors": (404, 409),
    "parameters": _CDX,
    "required": "url",
    "timed": False,
}
_IN_PATH = {name: _CDX[name] for name in _CDX if name != "crawl"}
_LIST_OF_CRAWL = {**_LIST, "parameters": _IN_PATH, "timed": True}
_RAW = "The URL, not escaped: everything after uri= is it."
_RECORD: dict[str, Any] = {
    "answer": {200: ("Record",), 404: ("text/plain",)},
    "parameters": {"uri": {"type": "string", "description": _RAW}},
}
_ADD: dict[str, Any] = {"answer": {201: ()}, "body": ("Records",)}


class DialectViews:
    """Routes of protocols that crawlers speak with other servers."""

    def __init__(
        self, cdx: Cdx, records: Records, access: Access, bodies: BodySlots, config: Config
    ) -> None:
        self._cdx, self._records, self._access, self._config = cdx, records, access, config
        self._bodies = bodies

    @Route("GET", "/cdx", **_LIST)
    @Route("GET", "/cdx/hex", name="cdx_hex", summary="The same with digests in hex", **_LIST)
    @Route("GET", "/cdx/search", name="cdx_search", **_LIST)
    @Route("GET", "/web/timemap/cdx", name="cdx_timemap", **_LIST)
    def cdx(self) -> Response:
        """Originals by URL, as CDX servers list them."""
        return response_of(self._cdx.get(request.environ))

    @Route("GET", "/crawls/{name}/cdx", **_LIST_OF_CRAWL)
    @Route("GET", "/crawls/{name}/web/timemap/cdx", name="crawl_cdx_timemap", **_LIST_OF_CRAWL)
    def crawl_cdx(self, name: str) -> Response:
        """The same as /cdx, for clients that cannot send the parameter `crawl`."""
        text = request.environ["QUERY_STRING"]
        asked = f"{text}&" if text else ""
        named = {"QUERY_STRING": f"{asked}crawl={quote(name, safe='')}"}
        return response_of(self._cdx.get({**request.environ, **named}))

    @Route("GET", "/api/records/{id}", **_RECORD)
    def record(self, id: str) -> Response:
        """The original of a digest, in doppelganger's form."""
        return self.crawl_record("", id)

    @Route("GET", "/crawls/{name}/api/records/{id}", **_RECORD)
    def crawl_record(self, name: str, id: str) -> Response:
        """The same as /api/records/{id}, asked by a crawl."""
        allowed = partial(self._access.may_read, request.environ)
        allowed()
        try:
            found = self._records.find(id, query_string(request.environ), name, allowed)
        except UnknownCrawl as error:
            return Response(f"{error}\n", status=404, content_type="text/plain")
        if found is None:
            return Response("record not found\n", status=404, content_type="text/plain")
        return json_of(found)

    @Route("GET", "/api/records/", {}, open=True)
    def no_record(self) -> Response:
        """Refused: a digest is needed."""
        raise RequestError("bad_digest", "invalid ID: a record is asked for by its digest")

    @Route("POST", "/api/records", **_ADD)
    @Route("POST", "/api/records/", name="add_records_slash", **_ADD)
    def add_records(self) -> Response:
        """Store records as originals."""
        allowed = partial(self._writer, request.environ)
        who = allowed(self._records.crawl())  # before the body is read
        stream = cast(Any, request.environ["wsgi.input"])
        length = request.headers.get("Content-Length", "")
        with self._bodies.slot():
            body = read_body(stream, length, self._config.max_body)
        try:
            items = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise RequestError("bad_request", f"the body is not JSON: {error}") from error
        logs.audit(request.environ, who, self._records.take(items, allowed))
        return Response(status=201)

    def _writer(self, environ: dict[str, Any], crawl: str) -> str:
        """Return whose token may write to a crawl without a namespace; raises `RequestError`."""
        return self._access.require(environ, Role.WRITE, crawl, lambda: [""])
