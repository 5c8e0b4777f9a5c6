"""A web server that serves ranges of the files of a directory, or fails to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote


@contextmanager
def serving(
    files: Path, *, ranges: bool = True, wrong: bytes = b"", met: set[int] | None = None
) -> Iterator[str]:
    """A web server of files that serves ranges, or only announces them; `met` takes ports."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if met is not None:
                met.add(self.client_address[1])
            try:
                data = (files / unquote(self.path[1:])).read_bytes()
            except OSError:
                self.send_error(404)
                return
            begin, end = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            part = data[begin : end + 1] if ranges else data
            self.send_response(206 if ranges else 200)
            self.send_header("Content-Range", f"bytes {begin}-{end}/{len(data)}")
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            self.wfile.write(wrong + part[len(wrong) :])

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
