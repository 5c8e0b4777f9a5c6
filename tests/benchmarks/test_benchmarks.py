"""The benchmarks run: the jobs at a tiny size, without peers. Their figures mean nothing here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dedupindex.capture import Capture
from dedupindex.sources import SourceOptions, open_source
from demo.executors import BRIEF
from tests.benchmarks.__main__ import JOBS
from tests.benchmarks.captures import (
    CDX_HEADER,
    CDX_WITH_IDS,
    Captures,
    cdx,
    cdx_with_ids,
    crawl_log,
)
from tests.benchmarks.measure import ROOT
from tests.benchmarks.suite import Line, Target
from tests.support.budgets import thorough

Form = Callable[[Captures, int, int], Iterator[bytes]]

NEED_WRK = {"lookup", "cdx-lookup", "batch", "latency", "weight"}
NEED_WRK |= {"lookup-writing", "captures-batch", "captures-single"}
NEED_WRK |= {"crawl-lookup", "crawl-report", "zeno", "long-run"}
NEED_WGET = {"wget-index", "wget-manifest", "wget-zstd", "wget-peers", "crawler-index"}
NEED_B3SUM = {"hash-documents"}
# In CI its lack is a failure of the job.
NEED_INSTALLED = {"warcprox", "spark", "heritrix", "browsertrix-export"}
NEEDY = NEED_WRK | NEED_WGET | NEED_INSTALLED | NEED_B3SUM
LONGEST = {"crawl-lookup", "heritrix"}  # half of the time of all: with --thorough
CASSANDRA = "cassandra"  # see tests/peers/test_cassandra_commands.py
LINES = {
    "crawl-lookup": [
        f"crawl-lookup-{kind}" for kind in (1, "merging", 10, 20, "short", "merged", "ports")
    ],
    "client": ["client", "client-async"],
    "profile": [f"profile-{kind}" for kind in ("crawl-lookup", "ports", "json", "batch", "report")],
    "zeno": ["zeno-doppelganger", "zeno-cdx"],
    "wget-index": [f"wget-index-{kind}" for kind in ("chunked", "once", "static", "large")],
    "wget-manifest": [f"wget-manifest-{kind}" for kind in ("chunked", "once", "static", "large")],
    "wget-zstd": [f"wget-zstd-{kind}" for kind in ("index", "loop", "convert")],
    "crawler-index": ["crawler-index-heritrix", "crawler-index-warcprox"],  # Zeno is in no registry
    "digests": [f"digest-{name}" for name in ("md5", "sha256", "sha512", "blake3")],
    "weight": ["start", "server-memory"],
    "heritrix": ["heritrix-new", "heritrix-filtered", "heritrix-known"],
    "long-run": [
        f"long-run-{step}"
        for step in (
            *("build", "lookups", "reports", "merge", "purge", "compact", "copy", "check"),
        )
    ],
    "rewrite-long": [f"rewrite-long-{times}" for times in (1, 5, 20)],
    "filter": ["filter-asked", "filter-cost", "filter-make"],
}
SIDE_BY_SIDE = 3  # jobs at one time: most of their time is the fixed length of a load


def bench(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.benchmarks", *words]
    env = {**os.environ, "JAVA_TOOL_OPTIONS": BRIEF}
    env.pop("DEDUPINDEX_PEERS", None)
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=env)


@pytest.mark.benchmark
def test_every_job_gives_its_lines(tmp_path: Path) -> None:
    jobs = [job for job in JOBS if job != CASSANDRA and (thorough() or job not in LONGEST)]
    parts = [jobs[first::SIDE_BY_SIDE] for first in range(SIDE_BY_SIDE)]

    def run(part: list[str]) -> subprocess.CompletedProcess[str]:
        folder = tmp_path / part[0]
        return bench(*part, "--size", "tiny", "--runs", "1", "--json", "--dir", folder)

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        runs = list(pool.map(run, parts))
    for done in runs:
        assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for done in runs for line in done.stdout.splitlines()]
    messages = "".join(done.stderr for done in runs)
    for job in jobs:
        if f"{job} was not run: " in messages:
            assert job in ("warc-two", "manifest-two") or job in NEEDY
        else:
            assert [line["ours"] for line in lines if line["job"] in LINES.get(job, [job])], job
    assert all(line["ours"] > 0 for line in lines)


def test_a_job_that_is_not_there_is_wrong_usage() -> None:
    assert bench("speed").returncode == 2


def test_the_list_names_every_job() -> None:
    assert [line.split()[0] for line in bench("--list").stdout.splitlines()] == list(JOBS)


def line(ours: float, ratio: float | None, target: Target) -> Line:
    return Line("job", "/s", ours, ratio=ratio, target=target)


def test_verdicts() -> None:
    assert line(5, 1.2, Target(1.2)).verdict == "met"
    assert line(5, 1.1, Target(1.2)).verdict == "MISSED"
    assert line(5, None, Target(1.2)).verdict == "no reference"
    assert line(130, None, Target(130, of="ours", most=True)).verdict == "met"
    assert line(131, None, Target(130, of="ours", most=True)).verdict == "MISSED"


def test_made_up_captures_are_the_same_wherever_they_begin() -> None:
    captures = Captures()
    whole = b"".join(cdx(captures, 0, 20_500)).splitlines()
    assert len(whole) == 20_500
    assert b"".join(cdx(captures, 9_990, 10_010)).splitlines() == whole[9_990:10_010]
    assert len({row.url for row in captures.rows(0, 20_500)}) == 20_500
    row = captures.sample(20_500, 7)[3]
    assert f" {row.url} {row.mime} 200 {row.digest} ".encode() in whole[row.number]


@pytest.mark.parametrize("length", [53, 70])
def test_made_up_urls_have_the_mean_length(length: int) -> None:
    rows = list(Captures(url_length=length).rows(1_000_000, 1_020_000))
    assert abs(sum(len(row.url) for row in rows) / len(rows) - length) < 2


@pytest.mark.parametrize("form", [cdx, cdx_with_ids, crawl_log])
def test_made_up_captures_are_what_our_sources_read(form: Form, tmp_path: Path) -> None:
    captures, path = Captures(), tmp_path / "made-up"
    headers: dict[Form, str] = {cdx: CDX_HEADER, cdx_with_ids: CDX_WITH_IDS}
    path.write_bytes(headers.get(form, "").encode() + b"".join(form(captures, 0, 50)))
    with open_source(str(path), None, SourceOptions()) as source:
        items = list(source.items())
    assert all(isinstance(item, Capture) for item in items)
    assert [item.url.decode() for item in items] == [  # type: ignore[union-attr]
        row.url for row in captures.rows(0, 50)
    ]
