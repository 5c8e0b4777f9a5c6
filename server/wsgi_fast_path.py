"""The WSGI layer in front of Flask that answers itself what crawlers send for every capture.

Flask's routing and request objects cost several times what a lookup does. This layer hands
``/lookup``, ``/cdx`` and ``POST /captures`` to the same functions that the Flask routes call, and
all else to Flask.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from server import logs
from server.api.captures import Captures
from server.api.cdx_server_api import PATHS, Cdx
from server.api.lookups import Lookups
from server.body_timeout import BodyTimeout
from server.rate_limit import ClientLimits
from server.request_head import RequestHead

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

_SHORT = 1 << 20  # bytes


class HotRoutes:
    """A WSGI application around another."""

    def __init__(
        self,
        inner: WSGIApplication,
        lookups: Lookups,
        cdx: Cdx,
        captures: Captures,
        timeout: BodyTimeout,
        head: RequestHead,
        limits: ClientLimits | None = None,
    ) -> None:
        self._inner = inner
        self.timeout, self._head, self._limits = timeout, head, limits
        self._gets = {"/lookup": lookups.get, **dict.fromkeys(PATHS, cdx.get)}
        self._posts = {"/lookup": lookups.respond, "/captures": captures.respond}
        self._stopping = False

    def stop(self) -> None:
        """Ask clients, with every answer from now on, to close their connections.

        A client that sends its next request just when its connection is closed gets no answer; so
        for a little while before that, every answer says that it is the last.
        """
        self._stopping = True

    def __call__(self, environ: dict[str, Any], start: StartResponse) -> Iterable[bytes]:
        if self._stopping:
            start = _last(start)
        refusal = self._head.refusal(environ)
        if refusal is None and self._limits is not None:
            refusal = self._limits.refusal(environ)
        if refusal is not None:
            start(refusal[0], refusal[1])
            return [cast(bytes, refusal[2])]
        if environ["REQUEST_METHOD"] == "GET" and environ["PATH_INFO"] in self._gets:
            return self._answer(environ, start)  # which takes no body and does not last
        return self.timeout.watched(environ, lambda: self._answer(environ, start))

    def _answer(self, environ: dict[str, Any], start: StartResponse) -> Iterable[bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        by_path = self._gets if method == "GET" else self._posts if method == "POST" else {}
        answer = by_path.get(path)
        if answer is not None:
            status, headers, body = answer(environ)
            start(status, headers)
            return [body] if type(body) is bytes else body  # type: ignore[return-value]
        return _whole(self._inner, environ, start)


def _whole(
    inner: WSGIApplication, environ: dict[str, Any], start: StartResponse
) -> Iterable[bytes]:
    """An answer of known, small length in one piece.

    Piece by piece it would leave in a packet of its own after that of the headers, which the kernel
    holds back until the client has acknowledged those: 40 ms, for a client that waits for more.
    """
    short = False

    def start_noted(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
        nonlocal short
        lengths = [text for name, text in headers if name.lower() == "content-length"]
        short = bool(lengths) and int(lengths[0]) <= _SHORT
        return start(status, headers, *rest)

    answer = inner(environ, start_noted)
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
        begun, said = perf_counter(), ["-"]

        def start_noted(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            said[0] = status
            return start(status, headers, *rest)

        answer = self._inner(environ, start_noted)
        logs.access(environ, said[0], perf_counter() - begun)
        return answer
