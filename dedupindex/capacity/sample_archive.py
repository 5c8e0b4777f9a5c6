"""Make WARC files with duplicates, to measure how fast this machine rewrites archives."""

from __future__ import annotations

import zlib
from hashlib import shake_128
from itertools import count
from pathlib import Path

SIZES = (2_000, 6_000, 15_000, 40_000, 120_000)  # bytes of bodies, in turn
FILE = 64 << 20  # bytes of a file, at least
_AGAIN = 4  # one capture in so many repeats the body of an earlier one
_RECORD = """\
WARC/1.1\r
WARC-Type: response\r
WARC-Record-ID: <urn:uuid:{number:08x}-0000-4000-8000-000000000000>\r
WARC-Date: 2026-11-{day:02}T{hour:02}:{minute:02}:{second:02}Z\r
WARC-Target-URI: http://{host}.example.com/pages/{number}.html\r
Content-Type: application/http; msgtype=response\r
Content-Length: {length}\r
\r
"""
_HTTP = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n"


def make_archive(top: Path, size: int) -> int:
    """Write at least `size` bytes of ``.warc.gz`` below `top`; returns their number.

    A quarter of the captures are duplicates. The same size gives the same files.
    """
    numbers, written = count(), 0
    top.mkdir(parents=True)
    while written < size:
        with open(top / f"{written:012}.warc.gz", "wb") as file:
            while file.tell() < min(FILE, size - written):
                file.write(_member(next(numbers)))
            written += file.tell()
    return written


def _member(number: int) -> bytes:
    """Return a response as a gzip member."""
    content = number - 3 * len(SIZES) if number % _AGAIN == 3 else number
    body = shake_128(str(max(content, 0)).encode()).hexdigest(SIZES[number % len(SIZES)] // 2)
    block = _HTTP.format(len(body)) + body
    minutes, second = divmod(number, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    head = _RECORD.format(
        number=number, host=number % 97, length=len(block), day=1 + days % 28, hour=hour,
        minute=minute, second=second,
    )  # fmt: skip
    deflate = zlib.compressobj(6, zlib.DEFLATED, 31)
    return deflate.compress(f"{head}{block}\r\n\r\n".encode()) + deflate.flush()
