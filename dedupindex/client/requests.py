"""Requests, replies and failures as values, and how requests are made. No I/O."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from dedupindex.client.answers import Question
from dedupindex.errors import BadInput

LONGEST_QUERY = 8000  # bytes; longer lookups are POSTed (some proxies allow no more)


class Ask(NamedTuple):
    """A request."""

    method: str
    path: str  # with its query string
    content: bytes
    request_timeout: float  # seconds until the whole response must be there
    type: str = "application/json"


class Pause(NamedTuple):
    """A wait between two tries."""

    seconds: float


class Reply(NamedTuple):
    """A complete response."""

    status: int
    body: bytes


class Failure(NamedTuple):
    """No complete response came."""

    why: str
    message: str
    refused: bool = False  # no connection could be made


def given(more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are neither None nor ""."""
    return {name: value for name, value in more.items() if value not in (None, "")}


def questions(given: Iterable[Question | tuple[str, str]]) -> list[Question]:
    """Return the lookups of a batch; raises `BadInput` unless they are pairs of digest and URL."""
    found = list[Question]()
    for pair in [given] if isinstance(given, Mapping | str | bytes) else given:
        if not isinstance(pair, tuple | list) or not 1 <= len(pair) <= 2:
            raise BadInput(
                f"lookups takes a list of pairs (digest, URL), not a {type(pair).__name__}: "
                "lookups([(digest, url)])"
            )
        found.append(Question(*pair))
    return found


def question(digest: str, url: str | bytes, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return a lookup as a JSON object."""
    if isinstance(url, str):
        url = url.encode("utf-8", "surrogateescape")
    asked: dict[str, Any] = {"digest": digest}
    if url:
        try:
            asked["url"] = url.decode()
        except UnicodeDecodeError:
            asked["url_base64"] = b64encode(url).decode()
    return asked | given(more)


def _pairs(parameters: Mapping[str, Any]) -> Iterator[str]:
    """Yield the parts of a query string, without parameters that are not given."""
    for name, value in given(parameters).items():
        if not isinstance(value, bytes):
            text = str(value).lower() if isinstance(value, bool) else str(value)
            value = text.encode("utf-8", "surrogateescape")
        yield f"{name}={quote(value, '')}"


def lookup(digest: str, url: str | bytes, more: Mapping[str, Any], request_timeout: float) -> Ask:
    """Make the request of one lookup: a GET, which is fastest, or a POST if it is very long."""
    query = f"digest={quote(digest, '', errors='surrogateescape')}"
    query += "".join(f"&{pair}" for pair in _pairs({"url": url or None, **more}))
    if len(query) <= LONGEST_QUERY:
        return Ask("GET", f"/lookup?{query}", b"", request_timeout)
    return post("/lookup", {"lookups": [question(digest, url, more)]}, request_timeout)


def last(url: str | bytes, more: Mapping[str, Any], request_timeout: float) -> Ask:
    """Make the request for the last capture of a URL."""
    query = "&".join(_pairs({"url": url, **more}))
    if len(query) <= LONGEST_QUERY:
        return Ask("GET", f"/last?{query}", b"", request_timeout)
    asked = question("", url, more)
    del asked["digest"]
    return post("/last", {"lookups": [asked]}, request_timeout)


def post(path: str, value: Any, request_timeout: float, method: str = "POST") -> Ask:
    """Make a request with a JSON body."""
    return Ask(method, path, json.dumps(value, allow_nan=False).encode(), request_timeout)


def capture(given: Mapping[str, Any]) -> bytes:
    """Encode a capture as JSON; its URL may be bytes. Raises `ValueError` or `TypeError`."""
    if not isinstance(given, Mapping):
        raise TypeError(f"a capture is a mapping of fields to values, not a {type(given).__name__}")
    given = dict(given)
    url = given.get("url")
    if isinstance(url, bytes):
        given |= {"url": None, **question("", url, {}), "digest": given.get("digest")}
    try:
        return json.dumps(given, ensure_ascii=False, allow_nan=False).encode()
    except RecursionError as error:
        raise ValueError("a capture has values in values, too deep for JSON") from error


def captures(crawl: str, given: list[bytes], request_timeout: float) -> Ask:
    """Make the request that reports captures."""
    body = b'{"captures":[' + b",".join(given) + b"]}"
    return Ask("POST", f"/captures?crawl={quote(crawl, '')}", body, request_timeout)


def on_crawl(name: str, action: str, value: Any, request_timeout: float) -> Ask:
    """Make the request of an action on a crawl."""
    return post(f"/crawls/{quote(name, '')}/{action}", value, request_timeout)


def authorized(url: str, token: str, headers: Mapping[str, str] | None) -> dict[str, str]:
    """Return the headers of every request, with the token or the credentials in the URL."""
    given = urlsplit(url)
    authorization = {}
    if token:
        authorization["Authorization"] = f"Bearer {token}"
    elif given.username or given.password:
        pair = f"{unquote(given.username or '')}:{unquote(given.password or '')}"
        authorization["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    return {**authorization, **(headers or {})}
