"""Replies over HTTP: the shape of errors, and the table of their codes."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import orjson
from flask import Response

from dedupindex import errors
from dedupindex.errors import Damaged, DedupError, as_named
from server.config import RETRY_AFTER

Headers = list[tuple[str, str]]

JSON: Headers = [("Content-Type", "application/json")]
LINES: Headers = [("Content-Type", "application/x-ndjson")]
TEXT: Headers = [("Content-Type", "text/plain; charset=utf-8")]


Reply = tuple[str, Headers, bytes | Iterator[bytes]]
"""Status line, headers, and the body, whole or as a stream."""

OK = "200 OK"
NO_CONTENT: Reply = ("204 No Content", [], b"")
UNCOMMITTED: Headers = [*TEXT, ("Dedup-Uncommitted", "1")]
"""The headers of an original as text, if its crawl may still be cancelled."""


class RequestError(DedupError):
    """A request that is refused before it is carried out."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.reason = code


ERRORS: dict[str, tuple[int, str]] = {
    "bad_query": (400, "a parameter is unknown, given twice, missing or cannot be read"),
    "bad_digest": (400, "the digest is not a digest"),
    "bad_request": (400, "the body or the head of the request violates HTTP or its media type"),
    "unauthorized": (401, "a token is needed, and none or an unknown one was sent"),
    "forbidden": (403, "the token may not do this, or not to this crawl"),
    "unknown_crawl": (404, "no crawl of this name was begun here"),
    "no_filter": (
        404,
        "the index has no current digest filter; `bin/index --digest-filter` makes one",
    ),
    "not_found": (404, "there is no such path"),
    "method_not_allowed": (405, "the path does not take this method; `Allow` says which"),
    "crawl_ended": (409, "the crawl was committed or cancelled before"),
    "has_dependents": (
        409,
        "revisits depend, or may depend, on captures to be purged, or others were answered with "
        "what a crawl reported; `force` overrides this",
    ),
    "crawl_exists": (409, "a crawl of this name was begun with other settings"),
    "bad_capture": (400, "a reported capture lacks a field or has one that cannot be read"),
    "strategy_unavailable": (409, "the index does not hold what the strategy needs"),
    "length_required": (411, "the body came in chunks; send it with its Content-Length"),
    "too_large": (
        413,
        "the body, a line of it, or the number of lookups or captures is over the limit",
    ),
    "uri_too_long": (414, "the query string is too long; POST the lookup"),
    "unsupported_media_type": (
        415,
        "the body is neither JSON nor JSON lines, or is JSON and sent as a form",
    ),
    "body_timeout": (408, "the body came too slowly; the connection is closed"),
    "wrong_host": (421, "`Host` is not a name of this server; `--host-name` adds one"),
    "rate_limited": (
        429,
        "this client sends too many requests; `Retry-After` says how long to wait",
    ),
    "spot_check_failed": (
        500,
        "captures were deleted, but the lookup of a sample afterwards still finds some, or misses "
        "others; the message names the command that repairs it",
    ),
    "internal": (500, "a defect of the server; its log says more"),
    "index_unavailable": (
        503,
        "the index is not there or cannot be read, or its crawls or temporary files (`TMPDIR`) "
        "cannot be written (a full disk); the log says which",
    ),
    "format_from_future": (503, "the index was written by a newer version"),
    "format_from_past": (503, "the index was written by an older version, and must be built again"),
    "damaged": (503, "what is stored for this lookup is damaged"),
    "overloaded": (503, "too many such requests at the moment, or too much work in one batch"),
}
"""Code -> HTTP status and meaning; docs/http.md has the same table."""


def code_of(error: DedupError) -> str:
    """Return the code under which the API reports an error."""
    if isinstance(error, RequestError):
        return error.reason
    if error.code in ERRORS:
        return error.code
    if isinstance(error, errors.BadInput):
        return "bad_query"
    if isinstance(error, errors.IndexUnavailable):
        return "index_unavailable"
    return "damaged" if isinstance(error, Damaged) else "internal"


def error_object(code: str, message: str, line: int = 0) -> dict[str, dict[str, Any]]:
    """Return the JSON object of an error; `line` is its number in JSON lines."""
    # Messages quote the request: bytes that are not UTF-8 are escaped, and long text is cut.
    shown = as_named(message)[:500].encode("utf-8", "backslashreplace").decode()
    return {"error": {"code": code, "message": shown, **({"line": line} if line else {})}}


def error_reply(code: str, message: str, headers: Headers | None = None) -> Reply:
    """Return the reply of an error code."""
    status = ERRORS[code][0]
    headers = [*JSON, *(headers or [])]
    if status == HTTPStatus.UNAUTHORIZED:
        headers.append(("WWW-Authenticate", "Bearer"))
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers.append(("Retry-After", str(RETRY_AFTER)))
    line = f"{status} {HTTPStatus(status).phrase}"
    return line, headers, orjson.dumps(error_object(code, message))


def response_of(reply: Reply) -> Response:
    """Return a reply as a response."""
    status, headers, body = reply
    return Response(body, status=status, headers=headers)


def json_of(content: dict[str, Any]) -> Response:
    """Return a JSON object as a response."""
    return Response(orjson.dumps(content), content_type="application/json")
