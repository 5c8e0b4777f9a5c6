"""The job of archives that crawlers write themselves: Heritrix, warcprox and Zeno fetch one site.

wget has habits of its own, and so have they: the order of fields, records of metadata, the digests
of bodies as they came, addresses in place of hosts.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.benchmarks.building import index
from tests.benchmarks.crawling import HOSTS, Crawls, pages, site
from tests.benchmarks.measure import Failed, Spent, run
from tests.benchmarks.peers import Missing
from tests.benchmarks.proxying import Proxied
from tests.benchmarks.suite import Bench, Line
from tests.benchmarks.wget_harvests import Harvest, Read, compared
from tests.peers.heritrix import heritrix_home

_WORKERS = 8  # of Zeno


def crawler_index(bench: Bench) -> Iterator[Line]:
    """Archives of Heritrix, warcprox and Zeno to index beside a bare FastWARC loop, as wget's."""

    def ours(harvest: Harvest) -> Spent:
        spent = index(bench, harvest[0], bench.fresh("crawler-index"))
        tally = json.loads(spent.out)
        return _checked(harvest, spent, tally["added"] + tally["unchanged"])

    def loop(harvest: Harvest) -> Spent:
        command = [sys.executable, "-m", "tests.benchmarks.loop", *sorted(harvest[0].iterdir())]
        spent = run(command, bench.cores.one)
        return _checked(harvest, spent, json.loads(spent.out)["records"])

    contenders: dict[str, Read] = {"ours": ours, "loop": loop}
    missing: list[str] = []
    for name, crawl in _CRAWLERS.items():
        job = f"crawler-index-{name}"
        try:
            harvest = _crawled(bench, name, crawl)
        except (Missing, pytest.skip.Exception) as lack:
            missing.append(f"{job}: {lack}")
            continue
        yield compared(bench, job, harvest, contenders, None)
    if len(missing) == len(_CRAWLERS):
        raise Missing("; ".join(missing))
    for lack in missing:
        bench.say(f"crawler-index: without {lack}")


def _checked(harvest: Harvest, spent: Spent, read: int) -> Spent:
    """What was spent; crawlers also store what is no page, such as robots.txt."""
    if read < harvest[1]:
        raise Failed(f"{harvest[0]}: {harvest[1]:,} responses expected, not {read:,}")
    return spent


Crawl = Callable[[Bench, list[str]], Iterator[Path]]  # from seeds to the files that it wrote


def _crawled(bench: Bench, name: str, crawl: Crawl) -> Harvest:
    """The archive of a crawler, and how many pages of the site each has at least."""

    def make(target: Path) -> None:
        with site(bench) as seeds:
            files = list(crawl(bench, seeds))
        target.mkdir()
        for path in files:
            shutil.copy(path, target)

    path = bench.inputs.crawled(name, bench.size.crawled, make)
    return path, bench.size.crawled // HOSTS * (HOSTS - 1)


def _by_heritrix(bench: Bench, seeds: list[str]) -> Iterator[Path]:
    crawl = Crawls(bench, heritrix_home(), seeds).without()
    return (crawl.log.parents[1] / "warcs").glob("*.warc.gz")


def _by_warcprox(bench: Bench, seeds: list[str]) -> Iterator[Path]:
    proxied = Proxied(bench, [url for seed in seeds for url in pages(bench, seed)])
    proxied.run("none", "--dedup-db-file=/dev/null")
    return proxied.folder.glob("*.warc.gz")


def _by_zeno(bench: Bench, seeds: list[str]) -> Iterator[Path]:
    """Let Zeno fetch from all hosts but the first, 127.0.0.1, which it refuses."""
    program, folder = bench.peers.program("zeno"), bench.fresh("zeno-crawl")
    folder.mkdir()
    urls = folder / "urls"
    urls.write_text("".join(f"{url}\n" for seed in seeds[1:] for url in pages(bench, seed)))
    command = [
        *("env", "-C", folder, program, "get", "list", urls, "--job", "t", "--workers", _WORKERS),
        *("--warc-digest-algorithm", "sha1", "--disable-assets-capture", "--disable-rate-limit"),
        *("--disable-local-dedupe", "--min-space-required", "1"),
        *("--no-stdout-log", "--no-log-file"),
    ]
    run(command, bench.cores.both)
    return (folder / "jobs" / "t" / "warcs").glob("*.warc.gz")


_CRAWLERS: dict[str, Crawl] = {
    "heritrix": _by_heritrix, "warcprox": _by_warcprox, "zeno": _by_zeno
}  # fmt: skip
