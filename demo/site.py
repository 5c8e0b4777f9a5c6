"""A small web site with several hosts, in two editions: what a crawler meets twice.

One server on loopback answers for all hosts, by ``Host`` and path. Between the editions
pages stay the same, move, change, appear and become empty; two hosts share files; one response is
chunked, one has a Content-Encoding.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

HOSTS = ("news.test", "museum.test", "mirror.test")


@dataclass(frozen=True)
class Page:
    """One response body and how it is sent."""

    body: bytes
    mime: str = "text/html; charset=utf-8"
    chunked: bool = False
    encoding: str = ""
    status: int = 200


def text(seed: str, words: int) -> bytes:
    """Return a page of random words, the same for the same seed."""
    rnd = random.Random(seed)
    vocabulary = ("harvest", "archive", "payload", "digest", "capture", "record", "original")
    body = " ".join(rnd.choice(vocabulary) for _ in range(words))
    return f"<!doctype html><title>{seed}</title><p>{body}".encode()


def _bytes(seed: str, length: int) -> bytes:
    return random.Random(seed).randbytes(length)


def edition(number: int) -> dict[str, Page]:
    """All pages of the first (1) or second (2) edition, by URL."""
    logo = Page(b"\x89PNG\r\n\x1a\n" + _bytes("logo", 20_000), "image/png")
    catalogue = Page(b"%PDF-1.4\n" + _bytes("catalogue", 60_000), "application/pdf")
    packed = gzip.compress(text("packed", 3000), mtime=0)
    pages = {
        # the same in both editions
        "http://news.test/": Page(text("front", 400)),
        "http://news.test/logo.png": logo,
        "http://museum.test/": Page(text("museum", 500)),
        "http://museum.test/catalogue.pdf": catalogue,
        "http://news.test/feed": Page(text("feed", 900), "application/xml", chunked=True),
        "http://museum.test/data": Page(packed, "application/json", encoding="gzip"),
        # two hosts share files
        "http://mirror.test/logo.png": logo,
        "http://mirror.test/catalogue.pdf": catalogue,
    }
    story = Page(text("story", 800))
    if number == 1:
        pages |= {
            "http://news.test/story": story,
            "http://museum.test/tour.mp4": Page(_bytes("tour", 150_000), "video/mp4"),
            "http://news.test/today": Page(text("monday", 700)),
            "http://museum.test/note": Page(text("note", 100)),
        }
    else:
        pages |= {
            "http://news.test/Story": story,  # the same page, written in another case
            "http://mirror.test/archive/tour.mp4": Page(_bytes("tour", 150_000), "video/mp4"),
            "http://news.test/today": Page(text("tuesday", 700)),  # changed
            "http://museum.test/note": Page(b""),  # empty now
            "http://news.test/new": Page(text("new", 600)),  # new
        }
    return pages


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    pages: dict[str, Page]

    def do_GET(self) -> None:
        page = self.pages.get(f"http://{self.headers['Host']}{self.path.partition('?')[0]}")
        if page is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Type", page.mime)
        if page.encoding:
            self.send_header("Content-Encoding", page.encoding)
        if page.chunked:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for at in range(0, len(page.body), 1000):
                piece = page.body[at : at + 1000]
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.send_header("Content-Length", str(len(page.body)))
            self.end_headers()
            self.wfile.write(page.body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the demo prints its steps."""


def served(number: int, port: int = 0) -> AbstractContextManager[int]:
    """Serve an edition on loopback; yields the port."""
    return hosted(edition(number), port)


@contextmanager
def hosted(pages: dict[str, Page], port: int = 0) -> Iterator[int]:
    """Serve pages by URL on loopback, at `port` or a free one; yields the port."""
    handler = type("Handler", (_Handler,), {"pages": pages})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
