"""The job of a whole Heritrix crawl: without deduplication, of new pages, and of known ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from hashlib import shake_128
from itertools import count
from pathlib import Path
from statistics import median

import pytest

from demo.steps import free_port
from tests.benchmarks.load import Server, serving
from tests.benchmarks.measure import Failed, environment, processor_time, run, running
from tests.benchmarks.peers import DeDuplicator, Missing, wait_for
from tests.benchmarks.suite import INDEX, Bench, Line, Target
from tests.peers.heritrix import Crawl, heritrix_home

HOSTS = 4  # 127.0.0.1 and so on; Heritrix fetches from each with one thread at a time
SEED = "index.html"
LINKS = 500  # on a page
SAME = 25  # one page of so many has the payload of another


@dataclass(frozen=True)
class Crawled:
    """What one crawl cost."""

    seconds: float  # from the first to the last line of crawl.log
    later: float  # the same without the first quarter of the lines, in which Java compiles
    crawler: float  # seconds of processor time
    server: float
    revisits: int
    responses: int
    log: Path  # crawl.log


def heritrix(bench: Bench) -> Iterator[Line]:
    """Rate of a Heritrix crawl that asks and reports, beside that of one that does not."""
    try:
        home = heritrix_home()
    except pytest.skip.Exception as skipped:
        raise Missing(str(skipped)) from skipped
    with site(bench) as seeds:
        crawls = Crawls(bench, home, seeds)
        jobs = {
            "none": crawls.without,
            "filtered": crawls.filtered,
            "new": crawls.first,
            "known": crawls.second,
        }
        try:
            crawls.peer = bench.peers.deduplicator()
            jobs["deduplicator"] = crawls.with_deduplicator
        except Missing as missing:
            bench.say(f"heritrix: without the DeDuplicator: {missing}")
        found = bench.interleaved(jobs)
    without = _median(found["none"], lambda crawl: crawl.seconds)
    later = _later(found["none"])
    targets = {"new": Target(0.85), "filtered": Target(0.85), "known": Target(0.9)}
    for name, target in targets.items():
        seconds = _median(found[name], lambda crawl: crawl.seconds)
        crawler = _median(found[name], lambda crawl: crawl.crawler)
        plain = _median(found["none"], lambda crawl: crawl.crawler)
        server = _median(found[name], lambda crawl: crawl.server)
        last = found[name][-1]
        note = (
            f"{last.responses + last.revisits:,} pages, {last.revisits:,} revisits; processor time "
            f"of Heritrix {crawler:.1f} s ({plain:.1f} s without), of the server {server:.1f} s; "
            f"ratio of the last three quarters of the crawl {later / _later(found[name]):.2f}"
        )
        line = Line(f"heritrix-{name}", "s", seconds, "without dedup", without, note=note)
        line.ratio, line.target = without / seconds, target
        yield line
    if peer := found.get("deduplicator"):
        known = _median(found["known"], lambda crawl: crawl.seconds)
        seconds, crawler = (
            _median(peer, lambda crawl: crawl.seconds), _median(peer, lambda crawl: crawl.crawler),
        )  # fmt: skip
        note = f"{peer[-1].revisits:,} revisits; {crawler:.1f} s of Heritrix's processor time"
        line = Line("heritrix-known", "s", known, "with the DeDuplicator", seconds, note=note)
        line.ratio = seconds / known
        yield line


def _later(crawls: list[Crawled]) -> float:
    return _median(crawls, lambda crawl: crawl.later)


def _median(crawls: list[Crawled], figure: Callable[[Crawled], float]) -> float:
    return median(map(figure, crawls))


@contextmanager
def site(bench: Bench) -> Iterator[list[str]]:
    """Serve made-up pages from four addresses; gives the seeds."""
    folder = bench.fresh("heritrix-site")
    each = bench.size.crawled // HOSTS
    with ExitStack() as servers:
        seeds = []
        for host in range(1, HOSTS + 1):
            mount, address, port = folder / str(host), f"127.0.0.{host}", free_port()
            _write_pages(mount, host, each)
            command = [
                *(sys.executable, "-m", "granian", "--interface", "wsgi", "--host", address),
                *("--port", port, "--no-ws", "--static-path-mount", mount),
                f"{__name__}:nothing",
            ]
            servers.enter_context(running(command, bench.cores.both))
            wait_for(port, "the site", host=address)
            seeds.append(f"http://{address}:{port}/static/{SEED}")
        yield seeds


def pages(bench: Bench, seed: str) -> list[str]:
    """The URLs of the pages of a host, by its seed."""
    return [seed.removesuffix(SEED) + name for name in _names(bench.size.crawled // HOSTS)]


def _names(pages: int) -> list[str]:
    return [f"{number}.{'png' if number % 7 == 0 else 'html'}" for number in range(pages)]


def nothing(environ: object, start_response: Callable[..., object]) -> list[bytes]:
    """A WSGI application for what is no page, such as robots.txt."""
    start_response("404 Not Found", [("Content-Type", "text/plain")])
    return [b"nothing here\n"]


def _write_pages(folder: Path, host: int, pages: int) -> None:
    """Write an index of lists, lists of links, and pages of 3 kB, some of them twice."""
    folder.mkdir(parents=True)
    names = _names(pages)
    for number, name in enumerate(names):
        seed = number - (number % SAME == 2)
        body = shake_128(f"{host} {seed}".encode()).digest(1500).hex()
        (folder / name).write_text(body if name.endswith("png") else f"<p>{body}</p>")
    lists = []
    for at in range(0, pages, LINKS):
        lists.append(f"list-{at}.html")
        links = (f'<a href="{name}">{name}</a>' for name in names[at : at + LINKS])
        (folder / lists[-1]).write_text("\n".join(links))
    links = (f'<a href="{name}">{name}</a>' for name in lists)
    (folder / SEED).write_text("\n".join(links))


class Crawls:
    """Crawls a site; the first crawl with deduplication is always of an empty index."""

    def __init__(self, bench: Bench, home: Path, seeds: list[str]) -> None:
        self._bench, self._home, self._seeds = bench, home, seeds
        self._numbers = count(1)
        self._index = bench.scratch / "heritrix-index"
        self.peer: DeDuplicator | None = None

    def without(self) -> Crawled:
        crawl = self._crawl("none", None, change=_take_out)
        self._log = crawl.log
        return crawl

    def with_deduplicator(self) -> Crawled:
        """Crawl with the processor of the DeDuplicator, which knows what `without` stored."""
        assert self.peer is not None
        if not self.peer.target.exists():
            lines = self._log.read_text().splitlines()
            records = sum(line.split()[1] == "200" for line in lines)
            self.peer.index(self._log, "CrawlLogIterator", self._bench.cores, records=records)
        change = partial(_put_deduplicator_in, self.peer.target)
        return self._crawl("deduplicator", None, change=change, jars=self.peer.processor())

    def first(self) -> Crawled:
        self._make_empty()
        return self._asking("new")

    def filtered(self) -> Crawled:
        """The first crawl with the digest filter: its lookups are all of new payloads."""
        self._make_empty()
        run([INDEX, "--digest-filter", self._index], self._bench.cores.both)
        return self._asking("filtered", "--digest-filter", "60")

    def _make_empty(self) -> None:
        self._bench.fresh(self._index.name)
        run([INDEX, "--empty", "-w", "-m", ".*", self._index], self._bench.cores.both)

    def second(self) -> Crawled:
        return self._asking("known")

    def _asking(self, name: str, *options: str) -> Crawled:
        with serving(self._bench, self._index) as server:
            return self._crawl(name, server, *options)

    def _crawl(
        self,
        name: str,
        server: Server | None,
        *options: str,
        change: Callable[[Path], None] = lambda profile: None,
        jars: Sequence[Path] = (),
    ) -> Crawled:
        address = server.address if server else "http://127.0.0.1:9"
        folder = self._bench.fresh(f"heritrix-{next(self._numbers)}")
        job = folder / "jobs" / name
        job.parent.mkdir(parents=True)
        seeds = [word for seed in self._seeds for word in ("--seed", seed)]
        make = [
            *(sys.executable, "-m", "dedupindex", "heritrix-profile", self._home, job),
            *("--server", address, "--contact", "http://a.example/", "--no-delay", "--everything"),
        ]
        run([*make, *seeds, *options], self._bench.cores.both)
        change(job / "crawler-beans.cxml")
        classes = ":".join([f"{self._home}/lib/*", *map(str, jars)])
        command = [
            *("java", "-Xmx512m", f"-Dheritrix.home={folder}", "-cp", classes),
            *("org.archive.crawler.Heritrix", "-a", "admin:admin", "-b", "127.0.0.1"),
            *("-p", free_port(), "-j", job.parent, "-r", name),
            *("-l", f"{self._home}/conf/logging.properties"),
        ]
        env = environment(HERITRIX_HOME=str(folder))
        before = processor_time(server.session) if server else 0.0
        spent = run(["env", "-C", folder, *command], self._bench.cores.both, env=env)
        after = processor_time(server.session) if server else 0.0
        crawl = Crawl(name, (job / "latest").resolve(), spent.out)
        revisits, responses = (
            crawl.report_number("duplicate-by-hash URIs"), crawl.report_number("novel URIs"),
        )  # fmt: skip
        if responses + revisits < self._bench.size.crawled or (revisits > 0) == (name == "none"):
            raise Failed(f"Heritrix stored {responses} responses, {revisits} revisits: {spent.out}")
        log = crawl.launch / "logs" / "crawl.log"
        return Crawled(*_lasted(log), spent.cpu, after - before, revisits, responses, log)


def _take_out(profile: Path) -> None:
    """Make of our profile Heritrix's own again."""
    text = profile.read_text()
    for ours in (
        '\n <import resource="dedup-beans.xml"/>',
        '\n    <ref bean="dedupLookup"/>',
        '\n    <ref bean="dedupStore"/>',
    ):
        assert text.count(ours) == 1, ours
        text = text.replace(ours, "")
    profile.write_text(text)


_DEDUPLICATOR = """ <bean id="deduplicator" class="{package}.DeDuplicator">
  <property name="index">
   <bean class="{package}.LuceneIndexSearcher">
    <property name="indexLocation" value="{index}"/>
    <property name="searchStrategy" value="DIGEST_ANY"/>
   </bean>
  </property>
 </bean>
 <bean id="extractorHttp" """


def _put_deduplicator_in(index: Path, profile: Path) -> None:
    """Replace our processors of a profile with that of the DeDuplicator."""
    _take_out(profile)
    text = profile.read_text()
    beans = _DEDUPLICATOR.format(package="is.landsbokasafn.deduplicator.heritrix", index=index)
    fetch = '<ref bean="fetchHttp"/>'
    for old, new in (
        (' <bean id="extractorHttp" ', beans),
        (fetch, f'{fetch}<ref bean="deduplicator"/>'),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    profile.write_text(text)


def _lasted(log: Path) -> tuple[float, float]:
    """Seconds between the first and the last line of a crawl.log, and after a quarter of them."""
    times = [datetime.fromisoformat(line.split()[0]) for line in log.read_text().splitlines()]
    first, quarter, last = times[0], times[len(times) // 4], times[-1]
    return (last - first).total_seconds(), (last - quarter).total_seconds()
