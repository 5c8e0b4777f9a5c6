"""Hot routes past the WSGI environment that Granian makes for every request.

For each request Granian merges two dictionaries, makes a response object, and takes apart the
status line, a tenth of the time of a lookup. What it starts from and ends with is all that a lookup
needs; so this wraps the function in which it does that. Everything else goes the usual way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from granian.server import mp

from server.responses import OK
from server.wsgi_fast_path import HotRoutes

_NAME = "_wsgi_call_wrap"  # what makes a handler of a WSGI application, in Granian 2.6 to 2.8
_Handler = Callable[[Any, dict[str, Any]], int]


def install(hot: HotRoutes) -> None:
    """Let the worker of this process answer lookups of `hot` so, from when it starts."""
    usual = getattr(mp, _NAME, None)
    if usual is None:  # another Granian: every request goes the usual way
        return

    def wrap(callback: Any, options: dict[str, Any], log_format: Any = None) -> _Handler:
        return _shortcut(usual(callback, options, log_format), hot)

    setattr(mp, _NAME, wrap)


def _shortcut(usual: _Handler, hot: HotRoutes) -> _Handler:
    gets, plain = hot.gets, hot.head.plain

    def handle(proto: Any, scope: dict[str, Any]) -> int:
        get = gets.get(scope["PATH_INFO"])
        if get is None or scope["REQUEST_METHOD"] != "GET" or hot.stopping or not plain(scope):
            return usual(proto, scope)
        line, headers, body = get(scope)
        status = 200 if line is OK else int(line[:3])
        proto.response_bytes(status, headers, body)
        return status

    return handle
