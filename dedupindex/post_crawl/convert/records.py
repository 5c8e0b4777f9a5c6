"""Documents of an ARC file as WARC/1.0 records (ISO 28500; guidelines of the IIPC, 2016).

An HTTP response is a `response`, anything else (dns:, ftp:, pages without an HTTP header) a
`resource` of the media type that the ARC file states; version blocks are `metadata`.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import zlib
from base64 import b32encode
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO
from uuid import NAMESPACE_URL, uuid5

from dedupindex.urls import is_http
from dedupindex.warc.record import PIECE, Record
from dedupindex.warc.record_facts import Block, divided

_MEDIA_TYPE = re.compile(rb"[\w!#$&^.+-]+/[\w!#$&^.+-]+(?:\s*;[\x20-\x7e]*)?", re.ASCII)
_UNKNOWN = b"application/octet-stream"
_HTTP = b"application/http; msgtype=response"
_LEVEL = 6  # of deflate, as most crawlers compress
Fields = list[tuple[bytes, bytes]]


class ConvertedDocument:
    """A document that was read once, with its digests; a long one is spooled."""

    def __init__(self, record: Record, url: bytes, mime: bytes, beside: Path) -> None:
        self.length = record.length
        pieces = record.pieces()
        answer, body, _ = divided(pieces) if is_http(url) else Block(None, pieces)
        header = answer.head if answer else b""
        self.http = answer is not None and answer.status > 0
        self.kind = b"response" if self.http else b"resource"
        typed = mime if _MEDIA_TYPE.fullmatch(mime) else _UNKNOWN
        self.mime = _HTTP if self.http else typed
        block, payload = hashlib.sha1(), hashlib.sha1()
        left = len(header) if self.http else 0  # bytes of the HTTP header still to come
        empty = self.length == left
        self._short = record.data is not None
        self._pieces: list[bytes | memoryview] = []
        self._spool = None if self._short else TemporaryFile(dir=beside)  # noqa: SIM115
        for piece in chain([header] if header else [], body):
            block.update(piece)
            payload.update(memoryview(piece)[left:])
            left = max(left - len(piece), 0)
            if self._spool is None:
                self._pieces.append(piece)
            else:
                self._spool.write(piece)
        self.block_digest = spelled(block.digest())
        # What a digest of a chunked body covers, tools do not agree on: none is right for all.
        stated = not empty and not (self.http and answer and answer.coding)
        self.payload_digest = spelled(payload.digest()) if stated else b""

    def pieces(self) -> Iterator[bytes | memoryview]:
        """The block, once more."""
        if self._spool is None:
            yield from self._pieces
            return
        self._spool.seek(0)
        while data := self._spool.read(PIECE):
            yield data

    def close(self) -> None:
        if self._spool is not None:
            self._spool.close()


def spelled(raw: bytes) -> bytes:
    """A SHA-1 as records state it."""
    return b"sha1:" + b32encode(raw)


def digest_of(data: bytes) -> bytes:
    """The SHA-1 of some bytes."""
    return spelled(hashlib.sha1(data).digest())


def address(text: bytes) -> bytes:
    """The IP address of a URL record; empty for none, and for the 0.0.0.0 that means none."""
    try:
        found = ipaddress.ip_address(text.decode("ascii"))
    except ValueError:
        return b""
    return b"" if found.is_unspecified else text


class Warc:
    """The WARC file that is being written, a record after the other, compressed like the ARC."""

    def __init__(self, file: BinaryIO, seed: str, *, zipped: bool) -> None:
        self._file, self._seed, self._zipped = file, seed, zipped
        self._count = 0

    def write(
        self, kind: bytes, fields: Fields, pieces: Iterable[bytes | memoryview], length: int
    ) -> bytes:
        """Append a record; returns its id, which is the same whenever the file is made again."""
        self._count += 1
        record_id = f"<{uuid5(NAMESPACE_URL, f'{self._seed}#{self._count}').urn}>".encode()
        named = [(b"WARC-Type", kind), (b"WARC-Record-ID", record_id), *fields]
        named.append((b"Content-Length", b"%d" % length))
        head = b"".join(b"%b: %b\r\n" % field for field in named)
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, 31) if self._zipped else None
        written = 0
        for data in chain([b"WARC/1.0\r\n" + head + b"\r\n"], pieces, [b"\r\n\r\n"]):
            self._file.write(packer.compress(data) if packer else data)
            written += len(data)
        if packer:
            self._file.write(packer.flush())
        return record_id
