"""Jobs of crawlers that do not ask as ours do: Zeno's two protocols, and files and keys to load."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from redis import Redis

from tests.benchmarks.asking import ASKED
from tests.benchmarks.building import index, piped
from tests.benchmarks.captures import Captures, Row
from tests.benchmarks.load import ask, serving, written
from tests.benchmarks.measure import ROOT, Failed, run
from tests.benchmarks.peers import Missing
from tests.benchmarks.suite import Bench, Line, compare
from tests.peers.redis import redis_server

EXPORT = ROOT / "bin" / "export"
PROTOCOLS: dict[str, Callable[[Row], str]] = {  # as gowarc, which asks for Zeno, writes them
    "zeno-doppelganger": lambda row: f"/api/records/{row.digest}?uri={row.url}",
    "zeno-cdx": lambda row: f"/web/timemap/cdx?url={quote(row.url, safe='')}&limit=-1",
}


def zeno(bench: Bench) -> Iterator[Line]:
    """What Zeno asks, by both its protocols, all hits; server on one core."""
    count = bench.size.outback
    target = bench.fresh("zeno")
    piped(bench, count, target, "--by-url")
    rows = Captures().sample(count, ASKED)
    with serving(bench, target) as server:
        for job, path_of in PROTOCOLS.items():
            with urlopen(server.address + path_of(rows[0])) as response:
                if rows[0].digest.encode() not in response.read():
                    raise Failed(f"{rows[0]} is in the index, but was not found")
            requests = written(bench.scratch / job, map(path_of, rows))
            loads = bench.interleaved({"ours": partial(ask, bench, server.address, requests)})
            rate = median([load.rate for load in loads["ours"]])
            yield Line(job, "lookups/s", rate, note=f"{count:,} captures")


def wget_export(bench: Bench) -> Iterator[Line]:
    """The file that wget --warc-dedup reads, from an index, start included."""
    source, target = _indexed(bench), bench.scratch / "wget.cdx"

    def export() -> float:
        return _export(bench, source, "--wget", "--out", target)

    walls = bench.interleaved({"ours": export})["ours"]
    yield compare("wget-export", "rows/s", bench.size.lines, walls, None, "", None)


def browsertrix_export(bench: Bench) -> Iterator[Line]:
    """The keys of Browsertrix, from an index to an empty Redis, start included."""
    source = _indexed(bench)
    try:
        with redis_server(bench.scratch) as address:

            def export() -> float:
                with Redis.from_url(address) as client:
                    client.flushall()
                return _export(bench, source, "--redis", address, "--algorithm", "sha1")

            walls = bench.interleaved({"ours": export})["ours"]
    except pytest.skip.Exception as skipped:
        raise Missing(str(skipped)) from skipped
    yield compare("browsertrix-export", "captures/s", bench.size.lines, walls, None, "", None)


def _indexed(bench: Bench) -> Path:
    """An index of captures with record ids, as wget needs them; built once a run."""
    if "lines" not in bench.kept:
        target = bench.fresh("lines")
        count = bench.size.lines
        index(bench, bench.inputs.cdx_with_ids(count), target, records=count)
        bench.kept["lines"] = target
    return bench.kept["lines"]


def _export(bench: Bench, source: Path, *options: object) -> float:
    spent = run([EXPORT, *options, source, "--json"], bench.cores.one)
    if json.loads(spent.out)["written"] != bench.size.lines:
        raise Failed(f"{bench.size.lines:,} captures are in the index, the export says {spent.out}")
    return spent.wall
