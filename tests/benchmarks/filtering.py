"""The job of a broad crawl with the digest filter: what is asked, and what that costs.

python -m tests.benchmarks.filtering URL LOOKUPS [filter]    the crawler: asks, prints counts
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import median

from dedupindex.client import Client, DigestFilter
from tests.benchmarks.building import served_index
from tests.benchmarks.captures import Captures
from tests.benchmarks.load import Server, serving
from tests.benchmarks.measure import Failed, processor_time, run
from tests.benchmarks.suite import INDEX, Bench, Line, Target

ASKED = 20_000  # payloads of the crawl
KNOWN = 10  # one of so many is in the index


@dataclass(frozen=True)
class Crawled:
    """What one crawl cost."""

    asked: int  # lookups that the server answered
    crawler: float  # seconds of processor time, from start to end
    server: float


def digest_filter(bench: Bench) -> Iterator[Line]:
    """Lookups and processor time of a crawl of new payloads, beside the same without the filter."""
    index = served_index(bench)
    begin = time.perf_counter()
    made = json.loads(run([INDEX, "--digest-filter", "--json", index], bench.cores.one).out)
    seconds = time.perf_counter() - begin
    lookups = bench.scratch / "filter-lookups"
    _write(lookups, bench.size.served)
    try:
        with serving(bench, index) as server:
            found = bench.interleaved(
                {
                    "with": lambda: _crawl(bench, server, lookups, "filter"),
                    "without": lambda: _crawl(bench, server, lookups),
                }
            )
    finally:
        shutil.rmtree(index / "filter")  # other jobs load into copies of it
    asked = 100 * median(crawl.asked for crawl in found["with"]) / ASKED
    note = f"{ASKED:,} payloads, one in {KNOWN} known; filter of {made['digests']:,} digests"
    line = Line("filter-asked", "%", asked, "without", 100.0, 100 / asked, Target(8), note)
    yield line
    cost = {
        name: median(1e6 * (crawl.crawler + crawl.server) / ASKED for crawl in crawls)
        for name, crawls in found.items()
    }
    servers = {name: median(crawl.server for crawl in crawls) for name, crawls in found.items()}
    line = Line("filter-cost", "µs/lookup", cost["with"], "without", cost["without"])
    line.ratio = line.reference and line.reference / line.ours
    line.note = f"server {servers['with']:.2f} s, without the filter {servers['without']:.2f} s"
    yield line
    line = Line("filter-make", "digests/s", made["digests"] / seconds)
    line.note = f"{made['bytes'] / made['digests']:.2f} bytes each, to download"
    yield line


def _write(path: Path, served: int) -> None:
    """Write the payloads of a crawl: digests and URLs."""
    known = cycle(Captures().sample(served, ASKED // KNOWN))
    new = iter(Captures(seed=8).sample(10 * ASKED, ASKED))
    with open(path, "w") as stream:
        for number in range(ASKED):
            row = next(new) if number % KNOWN else next(known)
            stream.write(f"sha1:{row.digest} {row.url}\n")


def _crawl(bench: Bench, server: Server, lookups: Path, *how: str) -> Crawled:
    before = processor_time(server.session)
    words = [sys.executable, "-m", __name__, server.address, lookups, *how]
    spent = run(words, bench.cores.other)
    counts = json.loads(spent.out)
    if (counts["lookups"], counts["hits"]) != (ASKED, ASKED // KNOWN):
        raise Failed(f"this is not what the crawl asked: {counts}")
    asked = counts["lookups"] - counts["answered_by_filter"]
    return Crawled(asked, spent.cpu, processor_time(server.session) - before)


def main(url: str, lookups: str, *how: str) -> None:
    """Look payloads up, one after another."""
    kept = DigestFilter() if how else None
    with Client(url, digest_filter=kept) as client, open(lookups) as lines:
        if kept is not None:
            kept.ready.wait()
        for line in lines:
            digest, address = line.split()
            client.lookup(digest, address)
        print(json.dumps(client.counts.as_json()))


if __name__ == "__main__":
    main(*sys.argv[1:])
