"""A tiny site on loopback for crawlers that fetch by URL: plain, chunked and compressed bodies."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from demo.site import Page
from tests.support.stub_server import handled_by

LOGO = Page(b"\x89PNG\r\n\x1a\n" + random.Random(1).randbytes(20_000), "image/png")
PAGES = {  # each body once
    "/": Page(b"<!doctype html><title>front</title>" + b"<p>archive " * 300),
    "/logo.png": LOGO,
    "/catalogue.pdf": Page(b"%PDF-1.4\n" + random.Random(2).randbytes(60_000), "application/pdf"),
    "/feed?a=1&b=%C3%A9": Page(b"<rss>" + b"<item/>" * 900, "application/rss+xml", chunked=True),
    "/data": Page(
        gzip.compress(b'{"harvest": 1}' * 500, mtime=0), "application/json", encoding="gzip"
    ),
}
COPIES = {"/copy/logo.png": LOGO, "/copy/catalogue.pdf": PAGES["/catalogue.pdf"]}  # once more


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    pages: Mapping[str, Page]

    def do_GET(self) -> None:
        page = self.pages.get(self.path)
        if page is None:
            self.send_error(404)
            return
        self.send_response(page.status)
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

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Crawlers have logs of their own."""


@contextmanager
def site(
    pages: Mapping[str, Page] | None = None, port: int = 0, host: str = "127.0.0.1"
) -> Iterator[str]:
    """Serve all pages, `pages` in place of them; gives the URL that paths are appended to."""
    handler = type("Handler", (_Handler,), {"pages": {**PAGES, **COPIES, **(pages or {})}})
    with handled_by(handler, host, port) as url:
        yield url


def bodies(base: str) -> dict[str, bytes]:
    """The body of every page, by URL."""
    return {base + path: page.body for path, page in {**PAGES, **COPIES}.items()}
