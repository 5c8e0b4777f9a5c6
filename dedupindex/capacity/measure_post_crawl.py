"""Measure how fast this machine rewrites archives, with WARC files that are made up."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from datetime import date
from hashlib import sha1, shake_128
from itertools import count
from pathlib import Path
from typing import Any

from dedupindex.capacity.post_crawl_plan import STEPS
from dedupindex.capacity.rates import Table
from dedupindex.counts import OnProgress, ProgressUpdate, silent
from dedupindex.digest import Digest
from dedupindex.errors import BadInput, as_called

SIZE = 512 << 20  # bytes of the sample
SIZES = (2_000, 6_000, 15_000, 40_000, 120_000)  # bytes of bodies, in turn
FILE = 64 << 20  # bytes of a file, at least
_AGAIN = 4  # one capture in so many repeats the body of an earlier one
_RECORD = """\
WARC/1.1\r
WARC-Type: response\r
WARC-Record-ID: <urn:uuid:{number:08x}-0000-4000-8000-000000000000>\r
WARC-Date: 2026-11-{day:02}T{hour:02}:{minute:02}:{second:02}Z\r
WARC-Target-URI: http://{host}.example.com/pages/{number}.html\r
WARC-Payload-Digest: {digest}\r
Content-Type: application/http; msgtype=response\r
Content-Length: {length}\r
\r
"""
_HTTP = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n"


def measure_post_crawl(
    directory: Path,
    jobs: int,
    *,
    size: int = SIZE,
    say: Callable[[str], None] = lambda text: None,
    on_progress: OnProgress = silent,
) -> Table:
    """Measure rates per core, for ``[post_crawl]`` of the inputs, with the commands themselves.

    They process made-up WARC files in a temporary directory; the files are in the page cache, and
    the time to start a command counts. Grouping is not measured: its rate is that of tens of
    millions of rows.
    """
    with tempfile.TemporaryDirectory(prefix=".plan-", dir=directory) as name:
        top = Path(name)
        say(f"making {size >> 20:,} MiB of WARC files")
        written = make_archive(top / "warcs", size, on_progress)
        words: dict[str, list[Any]] = {
            "manifest": [top / "warcs", "-o", top / "manifest", "--jobs", jobs],
            "resolve": [top / "manifest", "-o", top / "plan"],
            "rewrite": [top / "plan", "--out", top / "smaller", "--jobs", jobs],
            "verify": ["--against", top / "warcs", top / "smaller"],
        }
        seconds = dict[str, float]()
        for step in STEPS:
            say(doing := f"{'running' if step == 'resolve' else 'measuring'} bin/{step}")
            on_progress(ProgressUpdate(as_called(doing)))
            seconds[step] = _timed(step, words[step])
        after = sum(file.stat().st_size for file in (top / "smaller").rglob("*.warc.gz"))
    processed = {"manifest": written, "rewrite": written, "verify": written + after}
    rates = {
        f"{step}_mb_per_core_s": round(count / seconds[step] / jobs / 1e6, 1)
        for step, count in processed.items()
    }
    return {"measured": f"{date.today().isoformat()}, {jobs} cores of this machine", **rates}


def _timed(command: str, words: list[Any]) -> float:
    """Return the seconds that a command took; raises `BadInput`."""
    begin = time.monotonic()
    call = [sys.executable, "-m", "dedupindex", command, *map(str, words), "--json"]
    done = subprocess.run(call, capture_output=True, text=True)
    if done.returncode:
        raise BadInput(f"--measure: bin/{command} failed: {done.stderr.strip()[-500:]}")
    return time.monotonic() - begin


def make_archive(top: Path, size: int, on_progress: OnProgress = silent) -> int:
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
        on_progress(ProgressUpdate("making WARC files", written, size))
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
        minute=minute, second=second, digest=Digest("sha1", sha1(body.encode()).digest()),
    )  # fmt: skip
    deflate = zlib.compressobj(6, zlib.DEFLATED, 31)
    return deflate.compress(f"{head}{block}\r\n\r\n".encode()) + deflate.flush()
