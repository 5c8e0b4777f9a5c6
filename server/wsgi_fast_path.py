"""The WSGI layer in front of Flask, which answers the requests that crawlers send per capture.

Flask's routing and request objects cost several times as much as a lookup. This layer calls the
functions behind ``/lookup``, ``/cdx`` and ``POST /captures`` itself, as their Flask routes do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from server import logs
from server.body_timeout import BodyTimeout
from server.request_checks import RequestChecks
from server.responses import Reply

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

_SHORT = 1 << 20  # bytes


Answer = Callable[[dict[str, Any]], Reply]


class HotRoutes:
    """A WSGI application that answers some routes itself, and hands the others to `inner`."""

    def __init__(
        self,
        inner: WSGIApplication,
        gets: Mapping[str, Answer],
        posts: Mapping[str, Answer],
        checks: RequestChecks,
        timeout: BodyTimeout,
        on_stop: Callable[[], None],
    ) -> None:
        """`gets` and `posts` are the functions that answer GET and POST by path."""
        self._inner, self._answers = inner, {"GET": gets, "POST": posts}
        self._gets, self._checks, self.timeout = gets, checks, timeout
        self._stopping, self._on_stop = False, on_stop

    def stop(self) -> None:
        """Ask clients, with every answer from now on, to close their connections.

        A client that sends its next request just when its connection is closed gets no answer.
        """
        self._stopping = True
        self._on_stop()

    def __call__(self, environ: dict[str, Any], start: StartResponse) -> Iterable[bytes]:
        if self._stopping:
            start = _last(start)
        refusal = self._checks.refusal(environ)
        if refusal is not None:
            start(refusal[0], refusal[1])
            return [cast(bytes, refusal[2])]
        get = self._gets.get(environ["PATH_INFO"]) if environ["REQUEST_METHOD"] == "GET" else None
        if get is None:
            return self.timeout.watched(environ, lambda: self._answer(environ, start))
        status, headers, body = get(environ)  # without a body, and soon
        start(status, headers)
        return [body] if type(body) is bytes else body  # type: ignore[return-value]

    def _answer(self, environ: dict[str, Any], start: StartResponse) -> Iterable[bytes]:
        answer = self._answers.get(environ["REQUEST_METHOD"], {}).get(environ["PATH_INFO"])
        if answer is None:
            return _in_one_piece(self._inner, environ, start)
        status, headers, body = answer(environ)
        start(status, headers)
        return [body] if type(body) is bytes else body  # type: ignore[return-value]


def _in_one_piece(
    inner: WSGIApplication, environ: dict[str, Any], start: StartResponse
) -> Iterable[bytes]:
    """Return an answer in one piece if it is short, that is of a known length up to `_SHORT`.

    In pieces, its body would leave in a packet after that of the headers, and the kernel would hold
    it back until the client has acknowledged the first: 40 ms, if the client waits for more.
    """
    short = False

    def start_measured(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
        nonlocal short
        lengths = [text for name, text in headers if name.lower() == "content-length"]
        short = bool(lengths) and int(lengths[0]) <= _SHORT
        return start(status, headers, *rest)

    answer = inner(environ, start_measured)
    if not short:
        return answer
    try:
        return [b"".join(answer)]
    finally:
        close = getattr(answer, "close", None)
        if close is not None:
            close()


def _last(start: StartResponse) -> Any:
    def start_last(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
        return start(status, [*headers, ("Connection", "close")], *rest)

    return start_last


class AccessLog:
    """Writes a line for every request."""

    def __init__(self, inner: WSGIApplication) -> None:
        self._inner = inner

    def __call__(self, environ: dict[str, Any], start: StartResponse) -> Iterable[bytes]:
        started, status = perf_counter(), "-"

        def start_logged(line: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            nonlocal status
            status = line
            return start(line, headers, *rest)

        answer = self._inner(environ, start_logged)
        logs.access(environ, status, perf_counter() - started)
        return answer
