"""Estimate hours, machines, requests and dollars for rewriting an archive in an object store."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from dedupindex.capacity.rates import Table
from dedupindex.capacity.sample_archive import make_archive
from dedupindex.errors import BadInput

STEPS = ("manifest", "resolve", "rewrite", "verify")
SIZE = 512 << 20  # bytes of the sample


@dataclass(frozen=True)
class PostCrawlPlan:
    """A number of instances of one kind; hours of each of `STEPS`."""

    instance: str
    gbps: float
    machines: int
    hours: dict[str, float]
    cost: float  # dollars, of the instances

    @property
    def total(self) -> float:
        return sum(self.hours.values())


@dataclass(frozen=True)
class PostCrawlCosts:
    """What does not depend on the instances."""

    bytes: float
    captures: float
    bytes_read: float  # by all steps
    bytes_written: float
    gets: float
    puts: float
    request_cost: float  # dollars
    bytes_saved: float
    saved_per_month: float  # dollars of storage


def post_crawl_costs(size: float, inputs: Table) -> PostCrawlCosts:
    """Return requests, bytes and savings of an archive of `size` bytes.

    The manifest reads everything, rewriting reads it again, and the originals of duplicates once
    more; verification reads the archive and the result.
    """
    rates, prices = inputs["post_crawl"], inputs["documents"]
    captures, files = size / rates["bytes_per_capture"], size / rates["bytes_per_file"]
    saved = size * rates["bytes_saved"]
    written = size - saved
    read = 3 * size + written + saved  # an original is about as large as what it replaces
    gets = read / rates["bytes_per_get"] + captures * rates["duplicates"]
    puts = written / rates["bytes_per_put"] + 2 * files  # to begin and to complete an upload
    cost = gets * prices["price_per_1000_gets"] + puts * rates["price_per_1000_puts"]
    monthly = saved / 1e9 * prices["price_per_gb_month"]
    return PostCrawlCosts(
        size, captures, read, written, gets, puts, cost / 1000, saved, monthly
    )  # fmt: skip


def post_crawl_plans(size: float, inputs: Table) -> list[PostCrawlPlan]:
    """Return a plan for each kind and number of instances; cores or the network limit a step."""
    rates, costs = inputs["post_crawl"], post_crawl_costs(size, inputs)
    written = costs.bytes_written
    moved = {
        "manifest": size, "rewrite": size + costs.bytes_saved + written, "verify": size + written,
    }  # fmt: skip
    plans = []
    for instance in inputs["instance"]:
        cores, network = instance["cores"], instance["gbps"] * 1024**3 / 8
        seconds = {"resolve": costs.captures / (cores * rates["resolve_rows_per_core_s"])}
        for step, count in moved.items():
            work = size if step == "rewrite" else count  # its rate is that of what it reads first
            by_cores = work / (cores * rates[f"{step}_mb_per_core_s"] * 1e6)
            seconds[step] = max(by_cores, count / network)
        cost = sum(seconds.values()) / 3600 * instance["price_per_hour"]
        for machines in rates["machines"]:
            hours = {step: seconds[step] / machines / 3600 for step in STEPS}
            plans.append(PostCrawlPlan(instance["name"], instance["gbps"], machines, hours, cost))
    return plans


def measure_post_crawl(
    directory: Path,
    jobs: int,
    *,
    size: int = SIZE,
    say: Callable[[str], None] = lambda text: None,
) -> Table:
    """Measure rates per core, for ``[post_crawl]`` of the inputs, with the commands themselves.

    They process made-up WARC files in a temporary directory; the files are in the page cache, and
    the time to start a command counts. Grouping is not measured: its rate is that of tens of
    millions of rows.
    """
    with tempfile.TemporaryDirectory(prefix=".plan-", dir=directory) as name:
        top = Path(name)
        say(f"making {size >> 20:,} MiB of WARC files")
        written = make_archive(top / "warcs", size)
        words: dict[str, list[Any]] = {
            "manifest": [top / "warcs", "-o", top / "manifest", "--jobs", jobs],
            "resolve": [top / "manifest", "-o", top / "plan"],
            "rewrite": [top / "plan", "--out", top / "smaller", "--jobs", jobs],
            "verify": ["--against", top / "warcs", top / "smaller"],
        }
        seconds = dict[str, float]()
        for step in STEPS:
            say(f"measuring bin/{step}")
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
