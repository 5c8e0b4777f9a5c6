"""The WSGI layer in front of Flask that answers lookups itself.

Flask's routing and request objects cost several times what a lookup does. This layer hands
``/lookup`` to the same function that the Flask route calls, and everything else to Flask.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from server import logs
from server.answers import Lookups

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

_HOT = ("GET", "POST")


class HotRoutes:
    """A WSGI application around another."""

    def __init__(self, inner: WSGIApplication, lookups: Lookups) -> None:
        self._inner, self.respond, self.get = inner, lookups.respond, lookups.get
        self.stopping = False

    def stop(self) -> None:
        """Ask clients, with every answer from now on, to close their connections.

        A client that sends its next request just when its connection is closed gets no answer; so
        for a little while before that, every answer says that it is the last.
        """
        self.stopping = True

    def __call__(self, environ: dict[str, Any], start: StartResponse) -> Iterable[bytes]:
        if self.stopping:
            start = _last(start)
        if environ["PATH_INFO"] == "/lookup" and environ["REQUEST_METHOD"] in _HOT:
            status, headers, body = self.respond(environ)
            start(status, headers)
            return [body] if type(body) is bytes else body  # type: ignore[return-value]
        return self._inner(environ, start)


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
