"""Jobs of what crawlers send: lookups as text with all that they know, and reports of 50."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from random import Random
from statistics import median
from types import MappingProxyType
from urllib.parse import quote
from urllib.request import urlopen

from dedupindex.client import Answer, Client, Hit
from dedupindex.client.aio import AsyncClient
from dedupindex.crawls.crawl import CrawlState
from dedupindex.crawls.stores import make_store
from tests.benchmarks.asking import ASKED, bare_server
from tests.benchmarks.building import served_index
from tests.benchmarks.captures import Captures, Row
from tests.benchmarks.fetching import over_http
from tests.benchmarks.load import CLIENTS, Server, ask, serving, written
from tests.benchmarks.measure import Failed, processor_time
from tests.benchmarks.suite import Bench, Line, Target
from tests.benchmarks.writing import post, reports

CRAWLS = (1, 10, 200)  # on the server, all but one of them committed
FEW = (1, 10, 20)  # at the size that only shows that the job runs
MERGING = 10  # of these; also asked while they are merged
REPORTING, REPORTED = 5, 400  # the crawls that report, and the captures of each
MERGED_WITHIN = 300  # seconds
IN_FLIGHT = 50  # lookups of the asynchronous client
REPORT = 50  # captures of one report
TEXT = {"Accept": "text/plain"}
SHORT = {**TEXT, "Connection": "close"}
PORT = ":8080"
ANSWER = 150  # bytes of a usual answer as text
Headers = Mapping[str, str]


def crawl_lookup(bench: Bench) -> Iterator[Line]:
    """GET /lookup as text with crawl, covers, mime and size, server on one core.

    A quarter each are hits of the URL, hits by digest, misses, and hits of what the crawl or
    another crawl has reported. Nine crawls are asked for while they are merged into the index, and
    afterwards. In the last two rows every URL has a port: just after these captures were merged,
    while the crawls still hold them, and when they do not. Each beside a bare answer of the same
    length to the same requests.
    """
    index = own_index(bench)
    with ExitStack() as stack:
        server = stack.enter_context(serving(bench, index))
        bare = stack.enter_context(bare_server(bench, b"d" * ANSWER))
        begun = 0

        def row(name: str, target: Target | None, note: str, headers: Headers = TEXT) -> Line:
            found = _measured(bench, server, requests, headers=headers, bare=bare)
            note = f"{note}; {found.each * 1e6:.0f} us of processor time each"
            beside = "bare WSGI answer"
            line = Line(
                f"crawl-lookup-{name}", "lookups/s", found.rate, beside, found.bare, note=note
            )
            line.ratio, line.target = found.rate / found.bare, target
            return line

        for count in CRAWLS if bench.size.warm else FEW:
            begin_crawls(server, range(begun, count), bench.size.served)
            begun = count
            requests = written(
                bench.scratch / "crawl-lookups", crawl_lookups(bench.size.served, count)
            )
            if count == MERGING:
                yield row("merging", None, f"{count} crawls are merged")
            _wait_until_swept(index)
            yield row(str(count), _RATE, f"{count} crawls")
        yield row("short", _SHORT_RATE, "each over a connection of its own", SHORT)
        _add_ports(server, bench.size.served)
        lookups = crawl_lookups(bench.size.served, count, PORT)
        requests = written(bench.scratch / "crawl-lookups", lookups)
        for name, state in (("merged", "just merged"), ("ports", "only in the index")):
            yield row(name, _RATE, f"every URL has a port; {state}")
            _wait_until_swept(index)


_RATE, _SHORT_RATE = Target(25_000, of="ours"), Target(11_000 / 60, of="ours")


@dataclass(frozen=True)
class _Measured:
    rate: float  # requests a second
    each: float  # seconds of the server's processor time for a request
    bare: float  # requests a second of the bare server, 0 without one


def _measured(
    bench: Bench,
    server: Server,
    requests: Path,
    *,
    clients: int = CLIENTS,
    headers: Headers = MappingProxyType({}),
    bare: str = "",
) -> _Measured:
    def load() -> tuple[float, float]:
        before = processor_time(server.session)
        seen = ask(bench, server.address, requests, clients=clients, headers=headers)
        return seen.rate, (processor_time(server.session) - before) / seen.count

    def load_bare() -> tuple[float, float]:
        return ask(bench, bare, requests, clients=clients, headers=headers).rate, 0.0

    jobs = {"ours": load, "bare": load_bare} if bare else {"ours": load}
    found = bench.interleaved(jobs)
    rates, times = zip(*found["ours"], strict=True)
    beside = median([rate for rate, _ in found["bare"]]) if bare else 0.0
    return _Measured(median(rates), median(times), beside)


def own_index(bench: Bench) -> Path:
    """A copy of the served index, which these crawls may be merged into."""
    index = bench.fresh("crawl-lookup-index")
    shutil.copytree(served_index(bench), index)
    return index


def begin_crawls(server: Server, numbers: range, first: int) -> None:
    """Begin crawls; the first ones report captures nobody has. All but the first are committed."""
    for number in numbers:
        name = f"crawl-{number}"
        post(server.address, "/crawls", {"name": name, "digest_covers": "stored"})
        captures = _reported(number, first) if number < REPORTING else []
        for request in reports(name, iter(captures), REPORT):
            path, _, body = request.partition(" ")
            post(server.address, path, json.loads(body))
        if number:
            post(server.address, f"/crawls/{name}/commit", {})


def _reported(number: int, first: int) -> list[Row]:
    at = first + number * REPORTED
    return list(Captures().rows(at, at + REPORTED))


def _add_ports(server: Server, served: int) -> None:
    """Report the captures that are asked for once more, with ports, and wait for their merge."""
    post(server.address, "/crawls", {"name": "ports", "digest_covers": "stored"})
    rows = (over_http(row, PORT) for row in Captures().sample(served, ASKED))
    for request in reports("ports", rows, REPORT):
        path, _, body = request.partition(" ")
        post(server.address, path, json.loads(body))
    post(server.address, "/crawls/ports/commit", {})
    _wait("merged", lambda: _is_merged(server))


def _is_merged(server: Server) -> bool:
    with urlopen(f"{server.address}/crawls/ports") as response:
        return bool(json.load(response)["merged"])


def _wait_until_swept(index: Path) -> None:
    """Wait until all committed crawls are merged, and hold their captures no more."""
    with closing(make_store(index, create=False)) as store:

        def is_swept() -> bool:
            with store.reading() as reading:
                crawls = list(reading.crawls())
            return all(crawl.swept for crawl in crawls if crawl.state is CrawlState.COMMITTED)

        _wait("removed from the crawls", is_swept)


def _wait(what: str, is_done: Callable[[], bool]) -> None:
    end = time.monotonic() + MERGED_WITHIN
    while time.monotonic() < end:
        if is_done():
            return
        time.sleep(0.1)  # each question costs the server time that the merge needs
    raise Failed(f"captures were not {what} within {MERGED_WITHIN} s")


def crawl_lookups(served: int, crawls: int, port: str = "") -> Iterator[str]:
    rows = Captures().sample(served, ASKED)
    new = Captures(seed=8).sample(served, ASKED)
    if port:
        rows, new = ([over_http(row, port) for row in some] for some in (rows, new))
    own = list(chain(*(_reported(number, served) for number in range(min(crawls, REPORTING)))))
    random = Random(7)
    for row, unknown in zip(rows, new, strict=True):
        kind = random.randrange(4)
        known = own[random.randrange(len(own))] if kind == 3 else row
        digest = unknown.digest if kind == 2 else known.digest
        url = row.url if kind == 0 else unknown.url
        yield (
            f"/lookup?digest=sha1:{digest}&url={quote(url, safe='')}&covers=both"
            f"&mime={quote(known.mime, safe='')}&size={known.size}&crawl=crawl-0"
        )


def client(bench: Bench) -> Iterator[Line]:
    """Lookups by the Python client: one after another, and asynchronously with 50 in flight."""
    rows = Captures().sample(bench.size.served, ASKED)
    questions = [(f"sha1:{row.digest}", row.url) for row in rows[: bench.size.client]]
    with serving(bench, own_index(bench)) as server:
        post(server.address, "/crawls", {"name": "client"})
        found = bench.interleaved(
            {
                "client": lambda: _one_by_one(server.address, questions),
                "client-async": lambda: asyncio.run(_in_flight(server.address, questions)),
            }
        )
    for name, least in (("client", 5_000), ("client-async", 8_000)):
        rate = median([rate for rate, _ in found[name]])
        each = median([each for _, each in found[name]])
        note = f"{each * 1e6:.0f} us of the client's processor time each"
        yield Line(name, "lookups/s", rate, target=Target(least, of="ours"), note=note)


def _one_by_one(address: str, questions: list[tuple[str, str]]) -> tuple[float, float]:
    """Lookups a second, and seconds of processor time for each."""
    with Client(address, crawl="client") as asker:
        begin, spent = time.perf_counter(), time.process_time()
        answers = [asker.lookup(*question) for question in questions]
        return _rates(answers, begin, spent)


async def _in_flight(address: str, questions: list[tuple[str, str]]) -> tuple[float, float]:
    answers: list[Answer] = []
    left = iter(questions)
    async with AsyncClient(address, crawl="client") as asker:

        async def ask_on() -> None:
            for question in left:
                answers.append(await asker.lookup(*question))

        begin, spent = time.perf_counter(), time.process_time()
        await asyncio.gather(*(ask_on() for _ in range(IN_FLIGHT)))
        return _rates(answers, begin, spent)


def _rates(answers: list[Answer], begin: float, spent: float) -> tuple[float, float]:
    if not all(isinstance(answer, Hit) for answer in answers):
        raise Failed("a capture that is in the index was not found")
    seconds, processor = time.perf_counter() - begin, time.process_time() - spent
    return len(answers) / seconds, processor / len(answers)


def crawl_report(bench: Bench) -> Iterator[Line]:
    """POST /captures, 50 a request from one client, each on disk before it is acknowledged.

    Beside a bare server that reads the same requests and stores nothing.
    """
    with serving(bench, own_index(bench)) as server, bare_server(bench, b"d" * ANSWER) as bare:
        post(server.address, "/crawls", {"name": "report"})
        most = 40_000 * (bench.size.seconds + 1) * (bench.runs + 1)
        rows = Captures().rows(bench.size.served, bench.size.served + most)
        requests = written(bench.scratch / "crawl-reports", reports("report", rows, REPORT))
        found = _measured(bench, server, requests, clients=1, bare=bare)
    rate, bare_rate = found.rate * REPORT, found.bare * REPORT
    note = f"processor time; {rate:,.0f} captures/s from one client, {bare_rate:,.0f} read only"
    target = Target(0.05, of="ours", most=True)
    yield Line("crawl-report", "ms each", found.each / REPORT * 1e3, target=target, note=note)
