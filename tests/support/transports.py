"""Transports of clients for tests: a WSGI application in this process, or a function."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from io import BytesIO
from typing import Any
from urllib.parse import unquote

from werkzeug.test import run_wsgi_app

from dedupindex.client import Ask, Reply


class ToApp:
    """Asks a WSGI application."""

    def __init__(self, app: Any, token: str = "") -> None:
        self._app, self._token = app, token

    def exchange(self, ask: Ask) -> Reply:
        path, _, query = ask.path.partition("?")
        environ: dict[str, Any] = {
            "REQUEST_METHOD": ask.method, "SCRIPT_NAME": "", "PATH_INFO": unquote(path, "latin-1"),
            "QUERY_STRING": query, "SERVER_NAME": "127.0.0.1", "SERVER_PORT": "8484",
            "HTTP_HOST": "127.0.0.1:8484", "SERVER_PROTOCOL": "HTTP/1.1",
            "REMOTE_ADDR": "127.0.0.1", "wsgi.version": (1, 0), "wsgi.url_scheme": "http",
            "wsgi.input": BytesIO(ask.content), "wsgi.errors": None, "wsgi.multithread": True,
            "wsgi.multiprocess": False, "wsgi.run_once": False,
        }  # fmt: skip
        if ask.content:
            environ |= {"CONTENT_TYPE": ask.type, "CONTENT_LENGTH": str(len(ask.content))}
        if self._token:
            environ["HTTP_AUTHORIZATION"] = f"Bearer {self._token}"
        pieces, status, _ = run_wsgi_app(self._app.wsgi_app, environ)
        return Reply(int(status[:3]), b"".join(pieces))

    def close(self) -> None: ...


class Mock:
    """Answers with what a function returns or raises."""

    def __init__(self, handle: Callable[[Ask], Reply]) -> None:
        self.exchange = handle

    def close(self) -> None: ...


class AsyncMock:
    """The same for a client that awaits."""

    def __init__(self, handle: Callable[[Ask], Awaitable[Reply]]) -> None:
        self._handle = handle

    async def exchange(self, ask: Ask) -> Reply:
        return await self._handle(ask)

    async def close(self) -> None: ...


def of_json(value: Any, status: int = 200) -> Reply:
    """An answer with a JSON body."""
    return Reply(status, json.dumps(value).encode())
