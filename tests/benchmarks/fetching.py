"""Harvests by a real crawler: wget fetches made-up sites from a server on loopback.

wget asks the server as its proxy, so URLs have any host, with or without a port. Its files have
what made-up ones lack: URLs in angle brackets, logs as records, and digests of bodies with their
chunks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.captures import Captures, Row
from tests.benchmarks.harvest import Payload, Site
from tests.benchmarks.measure import Failed
from tests.benchmarks.peers import need
from tests.support.stub_server import handled_by

_SEED = 23


class Shape(NamedTuple):
    """What a harvest is like."""

    small: bool  # pages of a few kilobytes, a third of them gzip-coded in chunks; or a static site
    port: str = ""  # after every host, with its colon
    copies: int = 1  # of every file


def fetch(directory: Path, shape: Shape, responses: int) -> None:
    """Let wget write a harvest of so many responses, in files of at most 64 MB, to a directory."""
    wget = need("wget", "wget")
    directory.mkdir()
    rows = [
        over_http(row, shape.port) for row in Captures(seed=_SEED, url_length=50).rows(0, responses)
    ]
    urls = directory / "urls"
    urls.write_text("".join(f"{row.url}\n" for row in rows))
    site = Site(_SEED)
    pages = map(site.small if shape.small else site.payload, rows)
    with _serving(zip(rows, pages, strict=True)) as proxy:
        command = [wget, "--quiet", "--tries=1", f"--input-file={urls}"]
        command += ["--output-document=/dev/null", "--warc-file=fetched", "--warc-max-size=64M"]
        command += ["--warc-tempdir=."]
        env = {**os.environ, "http_proxy": proxy, "no_proxy": ""}
        done = subprocess.run(command, cwd=directory, env=env)
    if done.returncode:
        raise Failed(f"wget ended with {done.returncode}")
    urls.unlink()
    for path in sorted(directory.glob("*.warc.gz")):
        for number in range(1, shape.copies):
            shutil.copy(path, path.with_name(f"copy{number}-{path.name}"))


def over_http(row: Row, port: str) -> Row:
    """Return a row whose URL has no TLS, and a port with its colon if one is given."""
    _, _, host, path = row.url.split("/", 3)
    return row._replace(url=f"http://{host}{port}/{path}")


@contextmanager
def _serving(pages: Iterator[tuple[Row, Payload]]) -> Iterator[str]:
    """Serve pages to a client that asks for them in this order; gives the address."""
    handler = type("Handler", (_Handler,), {"pages": pages})
    with handled_by(handler) as url:
        yield url


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    pages: Iterator[tuple[Row, Payload]]

    def do_GET(self) -> None:
        row, page = next(self.pages)
        if self.path != row.url:
            self.send_error(404, f"{row.url} was expected")
            return
        self.send_response(200)
        self.send_header("Content-Type", page.mime)
        self.send_header("Last-Modified", "Mon, 14 Nov 2022 08:00:00 GMT")
        self.send_header("ETag", f'"{row.digest[:12]}"')
        if page.coding:
            self.send_header("Content-Encoding", page.coding)
        if page.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(len(page.body)))
        self.end_headers()
        self.wfile.write(page.body)

    def log_message(self, format: str, *args: object) -> None:
        """wget has a log of its own."""
