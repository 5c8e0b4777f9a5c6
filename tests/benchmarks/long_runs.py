"""Jobs of what an index and archives go through in years: every step at sizes that one compares."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from statistics import mean
from urllib.parse import urlsplit

from dedupindex.runtime.files import exclusive
from tests.benchmarks.asking import ASKED
from tests.benchmarks.building import piped
from tests.benchmarks.captures import Captures
from tests.benchmarks.load import Load, Server, ask, paths, serving, written
from tests.benchmarks.measure import (
    ROOT,
    Failed,
    Spent,
    Watch,
    memory,
    processor_time,
    run,
    size_on_disk,
    watched,
)
from tests.benchmarks.peers import need
from tests.benchmarks.suite import INDEX, Bench, Line, Target
from tests.benchmarks.writing import BATCH, post, reports

PURGE, DEDUP = ROOT / "bin" / "purge", ROOT / "bin" / "dedup"
CRAWL = "long"  # reports captures, is merged, and is purged
PART = 10  # one capture in so many is of that crawl, beside those that are built
_STALL = 60  # seconds that a lookup may take; the line says the longest
TIMES = (1, 5, 20)  # harvests that `rewrite_long` reads
HARVESTS = 3  # times the harvest of other jobs is what it repeats
GROWTH = Target(1.3, most=True)  # of the largest beside the smallest, as in `scale`
MEMORY = Target(1_300, of="ours", most=True)  # DuckDB's share, the default of --memory, and 300 MB


def long_run(bench: Bench) -> Iterator[Line]:
    """An index from build to check: lookups, a crawl, merge, purge of it, compaction, copy.

    The crawl reports a tenth as many captures as the build has, while others look up.
    """
    need("wrk", "wrk")  # before the build
    index, count = bench.fresh("long-run"), bench.captures
    bench.say(f"building an index of {count:,} captures")
    spent = piped(bench, count, index)
    yield _step("build", count, spent, 0, size_on_disk(index))
    yield from _served(bench, index, count)
    crawled = count // PART
    yield _maintained(bench, "merge", index, crawled, [INDEX, "--merge", index])
    yield _maintained(bench, "purge", index, crawled, [PURGE, index, "--crawl", CRAWL])
    yield _maintained(bench, "compact", index, count, [INDEX, "--compact", index])
    copy = bench.fresh("long-run-copy")
    yield _maintained(bench, "copy", copy, count, [INDEX, "--copy", copy, index])
    shutil.rmtree(copy)
    yield _maintained(bench, "check", index, count, [INDEX, "--check", index])
    shutil.rmtree(index)


def _maintained(bench: Bench, step: str, path: Path, captures: int, command: list[object]) -> Line:
    """A command that takes an index to another state; `path` is what it writes."""
    before = size_on_disk(path)
    spent = run([*command, "--json"], bench.cores.both)
    return _step(step, captures, spent, before, size_on_disk(path))


def _step(step: str, captures: int, spent: Spent, before: int, after: int) -> Line:
    """A line of microseconds a capture, with all else in its note."""
    note = (
        f"{captures:,} captures in {spent.wall:,.1f} s, {spent.cpu:,.1f} s of processor time; "
        f"{_memory(spent)}; disk {before / 1e6:,.1f} to {after / 1e6:,.1f} MB"
    )
    return Line(f"long-run-{step}", "us/capture", spent.wall / captures * 1e6, note=note)


def _memory(spent: Spent | Watch) -> str:
    return f"{spent.rss / 1e6:,.0f} MB, {spent.private / 1e6:,.0f} MB of it private"


def _served(bench: Bench, index: Path, count: int) -> Iterator[Line]:
    """Lookups without and with a crawl that reports, and its reports; leaves it committed."""
    requests = written(bench.scratch / "requests", paths(Captures().sample(count, ASKED)))
    crawled, before = count // PART, size_on_disk(index)
    with ExitStack() as stack:
        server = stack.enter_context(serving(bench, index))
        watch = stack.enter_context(watched(server.session))
        ask(bench, server.address, requests)  # only warms up
        alone = ask(bench, server.address, requests)
        post(server.address, "/crawls", {"name": CRAWL})
        spent = processor_time(server.session)
        with ThreadPoolExecutor(1) as pool:
            reporting = pool.submit(_report, server, count, crawled)
            beside: list[Load] = []
            while not reporting.done():
                beside.append(ask(bench, server.address, requests, timeout=_STALL))
            # The last load has seen the end of the reports.
            rate = mean(load.rate for load in beside[:-1] or beside)
            seconds = reporting.result()
        spent = processor_time(server.session) - spent
        # A server merges what is committed, at low priority; here it cannot, for the next step.
        with exclusive(index / "lock", f"the index at {index}"):
            post(server.address, f"/crawls/{CRAWL}/commit", {})
            stack.close()
            while memory(server.session) != (0, 0):
                time.sleep(0.1)  # until also a merge that found the lock has ended
    line = Line("long-run-lookups", "lookups/s", rate, "without reports", alone.rate)
    line.ratio = rate / alone.rate
    longest = max(load.longest for load in beside)
    line.note = f"longest {longest:,.0f} ms, {alone.longest:,.0f} without; server {_memory(watch)}"
    yield line
    reported = Spent(seconds, spent, watch.rss, watch.private)
    line = _step("reports", crawled, reported, before, size_on_disk(index))
    line.note += "; all of the server, which answers lookups too"
    yield line


def _report(server: Server, first: int, count: int) -> float:
    """Report captures in batches on one connection; returns the seconds that it took."""
    begin = time.perf_counter()
    rows = Captures().rows(first, first + count)
    host = urlsplit(server.address).netloc
    with closing(HTTPConnection(host, timeout=600)) as connection:
        for request in reports(CRAWL, rows, min(BATCH, count)):
            path, _, body = request.partition(" ")
            headers = {"Content-Type": "application/json"}
            connection.request("POST", path, body.encode(), headers)
            response = connection.getresponse()
            if response.status >= 300:
                raise Failed(f"{path}: {response.status} {response.read(500)!r}")
            response.read()
    return time.perf_counter() - begin


def rewrite_long(bench: Bench) -> Iterator[Line]:
    """bin/dedup of one, five and twenty harvests of the same site; growth of time and memory.

    A quarter of each harvest are duplicates, half of these of other harvests.
    """
    responses = bench.responses or HARVESTS * bench.size.responses
    source = bench.inputs.repeated(responses, bench.size.files, max(TIMES))
    harvests = sorted(source.iterdir())
    first: tuple[float, int] | None = None
    for times in TIMES:
        size = sum(map(size_on_disk, harvests[:times])) / 1e9
        bench.say(f"deduplicating {size:.3g} GB")
        spent = _deduplicated(bench, harvests[:times])
        each = spent.wall / size
        first = first or (each, spent.rss)
        found = json.loads(spent.out)
        note = (
            f"{size:.3g} GB in {spent.wall:,.1f} s, {spent.cpu / size:.1f} s of processor time a "
            f"GB; {found['revisits']:,} revisits; {found['bytes_after'] / 1e9:.3g} GB left"
        )
        name = f"rewrite-long-{times}"
        beside = f"at {TIMES[0]}"
        target = GROWTH if times == TIMES[-1] else None
        yield Line(name, "s/GB", each, beside, first[0], each / first[0], target, note)
        growth, limit = spent.rss / first[1], MEMORY if target else None
        note = f"{spent.private / 1e6:,.0f} MB of it private"
        yield Line(name, "MB memory", spent.rss / 1e6, beside, first[1] / 1e6, growth, limit, note)


def _deduplicated(bench: Bench, sources: list[Path]) -> Spent:
    out = bench.fresh("rewrite-long")
    work = Path(f"{out}.dedup")
    spent = run([DEDUP, *sources, "--out", out, "--json"], bench.cores.both)
    if json.loads(spent.out)["verified"]["findings"]:
        raise Failed(f"{sources[0]}: bin/dedup says {spent.out[-2000:]}")
    for path in (out, work):
        shutil.rmtree(path, ignore_errors=True)
    return spent
