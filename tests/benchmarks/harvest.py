"""A made-up harvest: WARC files as a crawler leaves them, one gzip member a record.

Sizes and compressibility are those of three real wget harvests of nine sites: payloads of 32 kB in
the mean, HTML that compresses to a fifth, a tenth of the bytes images that do not compress, 8 kB a
response in the file; every response with its request; a sixteenth of the responses chunked, their
digest (as wget's) of the stored body; a quarter of the payloads seen before.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from base64 import b32encode
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import NamedTuple
from uuid import UUID

from tests.benchmarks.captures import Captures, Row

_START = datetime(2022, 11, 15, 12)
_TEXT_BYTES = 4 << 20  # of prose that pages are cut from
_PAGE_MEAN, _IMAGE_MEAN, _SMALL_MEAN = 41_000, 8_500, 6_000  # bytes of payload
_ITEM = b"""<article class="teaser teaser--wide js-observe" id="item-%d" data-module="teaser">
  <a class="teaser__link" href="/stories/item-%d.html"><img class="teaser__image lazyload"
     src="/assets/images/placeholder.gif" data-src="/media/thumbnails/wide/item-%d.jpg" alt=""
     width="320" height="180" loading="lazy"></a>
  <p class="teaser__text">%b</p>
</article>
"""
_IMAGES = ("image/jpeg", "image/png", "application/pdf")


class Payload(NamedTuple):
    """A body as the server sends it."""

    mime: str
    body: bytes
    chunked: bool
    coding: str = ""  # its Content-Encoding


def write(directory: Path, *, responses: int, files: int, seed: int = 11) -> list[Path]:
    """Write a harvest of so many responses, spread over files of about one size."""
    paths = [directory / f"harvest-{number:02d}.warc.gz" for number in range(files)]
    site = Site(seed)
    rows = list(Captures(seed=seed, url_length=50).rows(0, responses))
    for number, path in enumerate(paths):
        with open(path, "wb") as stream:
            stream.write(member(_warcinfo(path.name, seed)))
            for row in rows[number * responses // files : (number + 1) * responses // files]:
                for record in exchange(row, site.payload(row)):
                    stream.write(member(record))
    return paths


class Site:
    """Payloads like the web's, by the row that they are for."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(f"site {seed}")
        self._prose = _prose(self._rng)
        self._menu = self._cut(2_500)
        self._before: list[Payload] = []

    def payload(self, row: Row) -> Payload:
        """The next one; rows come in order."""
        rng = self._rng
        if self._before and rng.random() < 0.25:
            return rng.choice(self._before)
        if row.mime in _IMAGES or rng.random() < 0.08:
            mime = row.mime if row.mime in _IMAGES else "image/jpeg"
            payload = Payload(mime, rng.randbytes(_size(rng, _IMAGE_MEAN)), False)
        else:
            chunked = rng.random() < 1 / 16
            page = self._page(row.url, _size(rng, _PAGE_MEAN))
            payload = Payload("text/html", _in_chunks(page) if chunked else page, chunked)
        self._before.append(payload)
        return payload

    def small(self, row: Row) -> Payload:
        """A page of a few kilobytes, or in one row of three a gzip-coded one in chunks."""
        page = self._page(row.url, _size(self._rng, _SMALL_MEAN))
        if row.number % 3:
            return Payload("text/html", page, False)
        return Payload("text/html", _in_chunks(gzip.compress(page, 6), 2048), True, "gzip")

    def _page(self, url: str, size: int) -> bytes:
        parts = [f"<!DOCTYPE html>\n<html><head><title>{url}</title></head>\n<body>".encode()]
        parts.append(b"<ul class='menu'>" + self._menu + b"</ul>\n")
        length = len(self._menu)
        while length < size:
            text = self._cut(self._rng.randint(30, 280))
            parts.append(_ITEM % (length, length, length, text))
            length += len(parts[-1])
        return b"".join(parts) + b"</body></html>\n"

    def _cut(self, length: int) -> bytes:
        at = self._rng.randrange(len(self._prose) - length)
        return self._prose[at : at + length]


def _prose(rng: Random) -> bytes:
    """Words by Zipf's law, so that they compress as prose does."""
    letters = "etaoinshrdlucmfwypvbgk"
    words = [
        "".join(rng.choices(letters, range(22, 0, -1), k=rng.randint(2, 9))) for _ in range(8000)
    ]
    weights = [1 / (rank + 3) for rank in range(len(words))]
    return " ".join(rng.choices(words, weights, k=_TEXT_BYTES // 6)).encode()


def _size(rng: Random, mean: int) -> int:
    """Log-normal, as sizes on the web are."""
    return max(64, min(int(rng.lognormvariate(0, 0.9) * mean * 0.667), 4 << 20))


def _in_chunks(body: bytes, size: int = 8192) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join([b"%x\r\n%b\r\n" % (len(part), part) for part in parts]) + b"0\r\n\r\n"


def exchange(row: Row, payload: Payload) -> Iterator[bytes]:
    """A request and its response."""
    moment = (_START + timedelta(seconds=row.number // 3)).strftime("%Y-%m-%dT%H:%M:%SZ")
    ids = [f"<urn:uuid:{UUID(bytes=_hash(f'{row.url} {kind}')[:16])}>" for kind in "qs"]
    host = row.url.split("/")[2]
    path = row.url.split(host, 1)[1]
    common = (f"WARC-Target-URI: {row.url}", f"WARC-Date: {moment}", "WARC-IP-Address: 192.0.2.7")
    asked = (
        f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: bench/1.0\r\nAccept: */*\r\n"
        "Accept-Encoding: identity\r\nConnection: Keep-Alive\r\n\r\n"
    ).encode()
    yield record("request", ids[0], common, "application/http;msgtype=request", asked)
    length = (
        "Transfer-Encoding: chunked" if payload.chunked else f"Content-Length: {len(payload.body)}"
    )
    head = (
        f"HTTP/1.1 200 OK\r\nDate: Tue, 15 Nov 2022 12:45:26 GMT\r\nServer: bench\r\n"
        f"Content-Type: {payload.mime}\r\n{length}\r\n"
        "Last-Modified: Mon, 14 Nov 2022 08:00:00 GMT\r\n"
        f'ETag: "{row.digest[:12]}"\r\nConnection: keep-alive\r\n\r\n'
    ).encode()
    own = (f"WARC-Concurrent-To: {ids[0]}", f"WARC-Payload-Digest: {_sha1(payload.body)}")
    kind = "application/http;msgtype=response"
    yield record("response", ids[1], (*common, *own), kind, head + payload.body)


def _warcinfo(name: str, seed: int) -> bytes:
    fields = b"software: bench\r\nformat: WARC File Format 1.0\r\n"
    record_id = f"<urn:uuid:{UUID(bytes=_hash(f'{name} {seed}')[:16])}>"
    about = (f"WARC-Filename: {name}", f"WARC-Date: {_START.isoformat()}Z")
    return record("warcinfo", record_id, about, "application/warc-fields", fields)


def record(kind: str, record_id: str, about: tuple[str, ...], content: str, block: bytes) -> bytes:
    lines = (
        "WARC/1.0",
        f"WARC-Type: {kind}",
        f"WARC-Record-ID: {record_id}",
        *about,
        f"WARC-Block-Digest: {_sha1(block)}",
        f"Content-Type: {content}",
        f"Content-Length: {len(block)}",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + block + b"\r\n\r\n"


def member(data: bytes) -> bytes:
    packer = zlib.compressobj(6, wbits=31)
    return packer.compress(data) + packer.flush()


def _hash(text: str) -> bytes:
    return hashlib.sha1(text.encode(), usedforsecurity=False).digest()


def _sha1(data: bytes) -> str:
    return sha1_text(hashlib.sha1(data, usedforsecurity=False).digest())


def sha1_text(digest: bytes) -> str:
    return "sha1:" + b32encode(digest).decode()
