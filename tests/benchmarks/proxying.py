"""The job of a whole warcprox crawl: with our lookups, without any, and with its own SQLite."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import NamedTuple
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from demo.site import Page
from demo.steps import free_port
from tests.benchmarks.building import index
from tests.benchmarks.captures import Captures
from tests.benchmarks.harvest import Site
from tests.benchmarks.load import Server, serving
from tests.benchmarks.measure import ROOT, Failed, environment, processor_time, running
from tests.benchmarks.peers import Missing, wait_for
from tests.benchmarks.suite import Bench, Line, Target
from tests.peers import environments
from tests.peers.site import site

CLIENTS = 8  # that fetch through the proxy
MAIN = ROOT / "tests" / "peers" / "warcprox_main.py"
PLUGINS = (
    *("--plugin", "dedupindex_warcprox.Lookup"),
    *("--plugin", "dedupindex_warcprox.Store"),
)


def warcprox(bench: Bench) -> Iterator[Line]:
    """Seconds of a warcprox crawl with our lookups, beside those without dedup and with its own."""
    pages = _pages(bench.size.fetched)
    empty = bench.scratch / "empty.cdx"
    empty.write_text(" CDX N b a m s k r M S V g\n")
    target = bench.fresh("warcprox-index")
    index(bench, empty, target, records=0)
    with site(pages) as base, serving(bench, target) as server:
        urls = [base + path for path in pages]
        crawl = Proxied(bench, urls, server)
        costs = bench.interleaved(
            {
                "none": lambda: crawl.run("none", "--dedup-db-file=/dev/null"),
                "own": lambda: crawl.run("own"),
                "ours": lambda: crawl.run("ours", "--dedup-db-file=/dev/null", *PLUGINS),
            }
        )
    time_of = {name: median([cost.wall for cost in found]) for name, found in costs.items()}
    crawler = {name: median([cost.crawler for cost in found]) for name, found in costs.items()}
    server_time = median([cost.server for cost in costs["ours"]])
    note = (
        f"{len(urls):,} URLs, a quarter of them duplicates; processor time: warcprox "
        f"{crawler['ours']:.1f} s, {crawler['none']:.1f} s without dedup, {crawler['own']:.1f} s "
        f"with its own; our server {server_time:.1f} s"
    )
    for name, beside in (("none", "without dedup"), ("own", "its own SQLite")):
        line = Line("warcprox", "s", time_of["ours"], beside, time_of[name], note=note)
        line.ratio, line.target = time_of[name] / time_of["ours"], Target(0.97)
        yield line


def _pages(count: int) -> dict[str, Page]:
    """A made-up site, by path."""
    made = Site(3)
    pages = {}
    for row in Captures(seed=3, url_length=50).rows(0, count):
        payload = made.payload(row)
        pages[f"/{row.number}"] = Page(payload.body, payload.mime)
    return pages


class _Cost(NamedTuple):
    """Seconds of a crawl, and of the processor time of warcprox and of our server in it."""

    wall: float
    crawler: float
    server: float


class Proxied:
    """Fetches all URLs through a fresh warcprox, again and again."""

    folder: Path  # of the last crawl

    def __init__(self, bench: Bench, urls: list[str], server: Server | None = None) -> None:
        try:
            self._python = environments.environment("warcprox", environments.WARCPROX) / "python"
        except pytest.skip.Exception as skipped:
            raise Missing(str(skipped)) from skipped
        self._bench, self._urls, self._server, self._runs = bench, urls, server, 0

    def run(self, name: str, *options: str) -> _Cost:
        """What a crawl costs from the first request until the last record is written.

        Ending warcprox is left out: each processor of its chain, ours too, then waits up to half a
        second for nothing.
        """
        self._runs += 1
        folder, port = self._bench.fresh(f"warcprox-{name}"), free_port()
        self.folder = folder
        folder.mkdir()
        command = [
            *(self._python, MAIN, "-b", "127.0.0.1", "-p", port, "-d", folder, "-z"),
            *("--base32", "-g", "sha1", "--stats-db-file=/dev/null"),
            *("-c", folder / "ca.pem", "--certs-dir", folder / "certs", *options),
        ]
        if name == "own":
            command.append(f"--dedup-db-file={folder / 'dedup.db'}")
        server = self._server
        env = environment(
            PYTHONPATH=f"{ROOT / 'conf' / 'warcprox'}:{ROOT}",
            DEDUPINDEX_URL=server.address if server else "",
            DEDUPINDEX_CRAWL=f"run-{self._runs}",
        )
        with (
            open(folder / "log", "wb") as log,
            running(command, self._bench.cores.both, stdout=log, stderr=log, env=env) as process,
        ):
            wait_for(port, "warcprox")
            before = processor_time(server.session) if server else 0.0
            begin, started = time.perf_counter(), processor_time(process.pid)
            _fetch_all(self._urls, port)
            _wait_until_written(len(self._urls), port)
            wall, crawler = time.perf_counter() - begin, processor_time(process.pid) - started
            after = processor_time(server.session) if server else 0.0
            spent = _Cost(wall, crawler, after - before)
            process.terminate()  # it says what it counted
            process.wait()
        self._check(folder, name)
        return spent

    def _check(self, folder: Path, name: str) -> None:
        """Whether it wrote what it should."""
        text = (folder / "log").read_text(errors="replace")
        written = sum(path.stat().st_size for path in folder.glob("*.warc.gz"))
        if not written:
            raise Failed(f"warcprox wrote nothing: {text[-1000:]}")
        if name == "ours":
            start = text.rindex("{'lookups'")
            counts = text[start : text.index("}}", start) + 2]
            report = json.loads(counts.replace("'", '"'))
            if not report["lookups"]:
                raise Failed(f"warcprox asked nothing: {counts}")
            # A tiny crawl is over before its first captures are reported.
            if not report["hits"] and self._bench.size.warm:
                raise Failed(f"warcprox had no hits: {counts}")


def _wait_until_written(count: int, port: int) -> None:
    """Wait until all URLs are through warcprox's chain, as its own status says."""
    done = 0
    while done < count:
        with urlopen(f"http://127.0.0.1:{port}/status") as response:
            done = json.load(response)["urls_processed"]
        time.sleep(0.01)  # each question costs warcprox time that is measured


def _fetch_all(urls: list[str], port: int) -> None:
    """Fetch through the proxy, each client over a connection of its own."""
    left: queue.SimpleQueue[str] = queue.SimpleQueue()
    for url in urls:
        left.put(url)
    failed: list[str] = []

    def client() -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            while True:
                url = left.get_nowait()
                connection.request("GET", url, headers={"Host": urlsplit(url).netloc})
                response = connection.getresponse()
                if response.status != 200 or not response.read():
                    failed.append(f"{url} was answered {response.status}")
        except queue.Empty:
            connection.close()
        except OSError as error:
            failed.append(str(error))

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise Failed(failed[0])
