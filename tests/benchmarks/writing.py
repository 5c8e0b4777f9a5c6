"""Jobs of crawls that write: captures in batches and one by one, and lookups meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from statistics import median
from urllib.request import Request, urlopen

from tests.benchmarks.asking import ASKED
from tests.benchmarks.building import served_index
from tests.benchmarks.captures import Captures, Row
from tests.benchmarks.load import Load, ask, asking, paths, serving, written
from tests.benchmarks.measure import Failed
from tests.benchmarks.suite import Bench, Line, Target

BATCH = 1_000  # captures of one request
WRITERS = 64  # clients that report one by one
EXPECTED = {BATCH: 60_000, 1: 10_000}  # captures a second that requests are made for: none twice
THREADS = 25  # of a crawler, as in Heritrix's profile
LASTS = 5  # milliseconds that a report takes, about
STEADY = 500  # captures a second that a crawl reports one by one while others look up


def _reported(row: Row) -> dict[str, object]:
    """A capture as a crawler reports it."""
    date = f"{row.date[:4]}-{row.date[4:6]}-{row.date[6:8]}T{row.date[8:10]}:{row.date[10:12]}"
    return {
        "digest": f"sha1:{row.digest}",
        "url": row.url,
        "date": f"{date}:{row.date[12:]}Z",
        "status": 200,
        "mime": row.mime,
        "size": row.size,
        "record_id": f"urn:uuid:00000000-0000-4000-8000-{row.number:012x}",
        "container": f"crawl-{row.number // 20_000:05d}.warc.gz",
        "offset": row.offset,
    }


def reports(crawl: str, rows: Iterator[Row], each: int) -> Iterator[str]:
    """POSTs of so many captures each."""
    captures: list[dict[str, object]] = []
    for row in rows:
        captures.append(_reported(row))
        if len(captures) == each:
            body = captures[0] if each == 1 else {"captures": captures}
            yield f"/captures?crawl={crawl} " + json.dumps(body, separators=(",", ":"))
            captures = []


def post(address: str, path: str, content: dict[str, object]) -> dict[str, object]:
    body = json.dumps(content).encode()
    request = Request(address + path, body, {"Content-Type": "application/json"})
    with urlopen(request) as response:
        return dict(json.load(response))


def _captures_of(address: str, crawl: str) -> int:
    with urlopen(f"{address}/crawls/{crawl}") as response:
        return int(json.load(response)["captures"])


def _writing(bench: Bench, each: int, clients: int) -> float:
    """Captures a second, every one on disk before it is acknowledged; server on one core."""
    rates = []
    count = EXPECTED[each] * (bench.size.seconds + 1)
    with serving(bench, served_index(bench)) as server:
        for number in range(bench.runs + bench.size.warm):
            crawl = f"bench-{each}-{number}"
            post(server.address, "/crawls", {"name": crawl})
            first = bench.size.served + number * count
            rows = Captures().rows(first, first + count)
            requests = written(bench.scratch / "reports", reports(crawl, rows, each))
            load = ask(bench, server.address, requests, clients=clients)
            held = _captures_of(server.address, crawl)
            if not load.count * each <= held < count:
                raise Failed(f"{load.count * each:,} captures acknowledged, {held:,} are held")
            rates.append(load.rate * each)
            post(server.address, f"/crawls/{crawl}/cancel", {})
    return median(rates[bench.size.warm :])


def captures_batch(bench: Bench) -> Iterator[Line]:
    """POST /captures, 1,000 a request from 2 clients, server on one core, durable."""
    rate = _writing(bench, BATCH, 2)
    yield Line("captures-batch", "captures/s", rate, target=Target(20_000, of="ours"))


def captures_single(bench: Bench) -> Iterator[Line]:
    """POST /captures, one a request from 64 clients, server on one core, durable."""
    rate = _writing(bench, 1, WRITERS)
    yield Line("captures-single", "captures/s", rate, target=Target(3_000, of="ours"))


def lookup_writing(bench: Bench) -> Iterator[Line]:
    """GET /lookup while a crawl reports captures, beside the same while it does not."""
    index = served_index(bench)
    rows = Captures().sample(bench.size.served, ASKED)
    requests = written(bench.scratch / "requests", paths(rows))
    with serving(bench, index) as server:
        post(server.address, "/crawls", {"name": "steady"})
        sent: list[float] = []

        def meanwhile() -> Load:
            count = 2 * STEADY * (bench.size.seconds + 1)
            first = bench.size.served + len(sent) * count  # no capture is reported twice
            more = Captures().rows(first, first + count)
            sent_later = written(bench.scratch / "reports", reports("steady", more, 1))
            pause = 1000 * THREADS / STEADY - LASTS
            with asking(
                bench, server.address, sent_later, clients=THREADS, pause=pause
            ) as reported:
                load = ask(bench, server.address, requests)
                sent.append(reported().rate)
            return load

        contenders: dict[str, Callable[[], Load]] = {
            "with": meanwhile,
            "without": lambda: ask(bench, server.address, requests),
        }
        loads = bench.interleaved(contenders)
        post(server.address, "/crawls/steady/cancel", {})
    rate = {name: median([load.rate for load in found]) for name, found in loads.items()}
    note = f"{median(sent):,.0f} captures/s reported one by one, {STEADY} wanted"
    line = Line("lookup-writing", "lookups/s", rate["with"], "without writes", rate["without"])
    line.ratio = line.ours / rate["without"]
    line.target, line.note = Target(0.8), note
    yield line
