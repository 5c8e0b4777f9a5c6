"""A server in front of ours that records requests of crawlers, and can fail during a crawl."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import NamedTuple

LONGEST = 120.0  # seconds that a silent server keeps a connection


class Asked(NamedTuple):
    """A request and how it was answered; status 0 is not at all."""

    path: str
    status: int
    body: bytes


class Front:
    """Passes GET requests on as long as it is well."""

    def __init__(self, port: int) -> None:
        self.asked: list[Asked] = []
        self.sickness = ""  # "503", or "silent": it accepts and does not answer
        self.well_for = 0  # requests before it falls ill
        self.released = Event()
        self._came, self._lock = 0, Lock()
        self._port = port
        handler = type("Handler", (_Handler,), {"front": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, path: str) -> Asked:
        """What is answered, noted."""
        with self._lock:  # requests come side by side
            self._came += 1
            sick = self.sickness and self._came > self.well_for
        if sick:
            answer = Asked(path, 503 if self.sickness == "503" else 0, b"")
        else:
            with closing(HTTPConnection("127.0.0.1", self._port, timeout=LONGEST)) as connection:
                connection.request("GET", path)
                response = connection.getresponse()
                answer = Asked(path, response.status, response.read())
        self.asked.append(answer)
        return answer

    def stop(self) -> None:
        """Accept nothing any more."""
        self.server.shutdown()
        self.server.server_close()

    def statuses(self) -> list[int]:
        """The statuses of all answers."""
        return [one.status for one in self.asked]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    front: Front

    def do_GET(self) -> None:
        answer = self.front.answer(self.path)
        if not answer.status:
            self.front.released.wait(LONGEST)
            self.close_connection = True
            return
        self._headers_buffer: list[bytes] = []  # head and body in one send, or clients wait 40 ms
        self.send_response(answer.status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(answer.body)))
        self._headers_buffer += [b"\r\n", answer.body]
        self.flush_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Tests say what went wrong."""


@contextmanager
def in_front_of(port: int) -> Iterator[Front]:
    """A server in front of the one at a port."""
    front = Front(port)
    thread = Thread(target=front.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield front
    finally:
        front.released.set()
        front.stop()
        thread.join()
