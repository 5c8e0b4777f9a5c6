"""An HTTP server whose answers a test chooses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[[BaseHTTPRequestHandler], object]


@contextmanager
def stub_server(answer: Answer, *, read: bool = True) -> Iterator[str]:
    """Yield the URL of a server that calls `answer` for each GET, POST and DELETE.

    With `read`, the body of the request is read before.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if read:
                body_of(self)
            answer(self)

        do_POST = do_DELETE = do_GET

        def log_message(self, format: str, *args: object) -> None: ...

    with handled_by(Handler) as url:
        yield url


@contextmanager
def handled_by(
    handler: type[BaseHTTPRequestHandler], host: str = "127.0.0.1", port: int = 0
) -> Iterator[str]:
    """Yield the URL of a server whose requests a handler answers, each in a thread."""
    server = ThreadingHTTPServer((host, port), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def body_of(handler: BaseHTTPRequestHandler) -> bytes:
    """Read the body of a request."""
    return handler.rfile.read(int(handler.headers.get("Content-Length", 0)))


def replying(status: int, body: bytes = b"", length: int | None = None) -> Answer:
    """Return an answer with a body, and with a Content-Length that may be wrong."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body) if length is None else length))
        handler.end_headers()
        handler.wfile.write(body)

    return answer
