"""Harvests of one site at several times: its URLs come again, most of its pages have changed.

A page is compressed and hashed once. What differs between harvests is little: the header of each
record before it, and a comment after it. So 20 GB are made as quickly as 1 GB.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import IO
from uuid import UUID

from tests.benchmarks import harvest
from tests.benchmarks.captures import Captures, Row

BETWEEN = timedelta(days=30)
_START = datetime(2022, 11, 15, 12)
_GZIP = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # RFC 1952: deflate, no name, no time
_LAST_CHUNK = b"0\r\n\r\n"


def write(directory: Path, *, responses: int, files: int, times: int, seed: int = 11) -> None:
    """Write so many harvests of as many responses each, a directory of files for each harvest.

    A quarter of the responses repeat a payload: half of these one of the same harvest, half one of
    this or an earlier harvest. So the share of duplicates is the same in any number of harvests.
    """
    folders = [directory / f"harvest-{number:02d}" for number in range(times)]
    for folder in (directory, *folders):
        folder.mkdir()
    site, rng = harvest.Site(seed), Random(f"repeated {seed}")
    rows = list(Captures(seed=seed, url_length=50).rows(0, responses))
    seen: set[int] = set()  # payloads by identity: the site keeps them, and gives them again
    for number in range(files):
        with ExitStack() as stack:
            streams = [
                stack.enter_context(open(folder / f"{folder.name}-{number:02d}.warc.gz", "wb"))
                for folder in folders
            ]
            for row in rows[number * responses // files : (number + 1) * responses // files]:
                payload = site.payload(row)
                again = id(payload) in seen and rng.random() < 0.5
                seen.add(id(payload))
                page = _Page.of(row, payload)
                for time, stream in enumerate(streams):
                    version = rng.randint(0, time) if again else time
                    _write_exchange(stream, row, page, time, version)


@dataclass(frozen=True)
class _Page:
    """A response as far as all harvests have it."""

    block: bytes
    deflated: bytes  # the block
    chunked: bool
    block_hash: hashlib._Hash
    payload_hash: hashlib._Hash

    @classmethod
    def of(cls, row: Row, payload: harvest.Payload) -> _Page:
        body = payload.body.removesuffix(_LAST_CHUNK) if payload.chunked else payload.body
        length = len(body) + len(_comment(0, chunked=payload.chunked))
        framing = "Transfer-Encoding: chunked" if payload.chunked else f"Content-Length: {length}"
        head = (
            "HTTP/1.1 200 OK\r\nDate: Tue, 15 Nov 2022 12:45:26 GMT\r\nServer: bench\r\n"
            f"Content-Type: {payload.mime}\r\n{framing}\r\n"
            f'ETag: "{row.digest[:12]}"\r\nConnection: keep-alive\r\n\r\n'
        ).encode()
        block = head + body
        deflated = _deflated(block, zlib.Z_FULL_FLUSH, level=6)
        return cls(block, deflated, payload.chunked, hashlib.sha1(block), hashlib.sha1(body))


def _comment(version: int, *, chunked: bool) -> bytes:
    """The end of a body, always of one length."""
    text = b"<!-- %06d -->\n" % version
    return b"%x\r\n%b\r\n%b" % (len(text), text, _LAST_CHUNK) if chunked else text


def _write_exchange(stream: IO[bytes], row: Row, page: _Page, time: int, version: int) -> None:
    moment = (_START + time * BETWEEN + timedelta(seconds=row.number // 3)).isoformat() + "Z"
    ids = [f"<urn:uuid:{UUID(bytes=_hash(f'{row.url} {kind} {time}')[:16])}>" for kind in "qs"]
    common = (f"WARC-Target-URI: {row.url}", f"WARC-Date: {moment}")
    stream.write(harvest.member(_request(row, ids[0], common)))
    comment = _comment(version, chunked=page.chunked)
    length = len(page.block) + len(comment)
    header = "\r\n".join(_response_header(page, comment, length, ids, common)) + "\r\n\r\n"
    stream.writelines(_member(header.encode(), page, comment + b"\r\n\r\n"))


def _request(row: Row, record_id: str, common: tuple[str, ...]) -> bytes:
    _, _, host, path = row.url.split("/", 3)
    block = f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: bench/1.0\r\n\r\n".encode()
    content = "application/http;msgtype=request"
    return harvest.record("request", record_id, common, content, block)


def _response_header(
    page: _Page, comment: bytes, length: int, ids: list[str], common: tuple[str, ...]
) -> Iterator[str]:
    payload, block = page.payload_hash.copy(), page.block_hash.copy()
    payload.update(comment)
    block.update(comment)
    yield from ("WARC/1.0", "WARC-Type: response", f"WARC-Record-ID: {ids[1]}", *common)
    yield f"WARC-Concurrent-To: {ids[0]}"
    yield f"WARC-Payload-Digest: {harvest.sha1_text(payload.digest())}"
    yield f"WARC-Block-Digest: {harvest.sha1_text(block.digest())}"
    yield "Content-Type: application/http;msgtype=response"
    yield f"Content-Length: {length}"


def _member(header: bytes, page: _Page, end: bytes) -> Iterator[bytes]:
    """A gzip member of three deflated parts, of which the middle one is there already."""
    yield _GZIP
    yield _deflated(header, zlib.Z_FULL_FLUSH)
    yield page.deflated
    yield _deflated(end, zlib.Z_FINISH)
    size = len(header) + len(page.block) + len(end)
    checksum = zlib.crc32(end, zlib.crc32(page.block, zlib.crc32(header)))
    yield struct.pack("<II", checksum, size & 0xFFFFFFFF)


def _deflated(data: bytes, flush: int, level: int = 1) -> bytes:
    """Raw deflate that ends at a byte and refers to nothing before it."""
    packer = zlib.compressobj(level, wbits=-15)
    return packer.compress(data) + packer.flush(flush)


def _hash(text: str) -> bytes:
    return hashlib.sha1(text.encode(), usedforsecurity=False).digest()
