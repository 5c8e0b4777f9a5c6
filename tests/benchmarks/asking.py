"""Jobs of asking a server: one by one, in batches, under half its load; and what it weighs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from urllib.request import urlopen

from tests.benchmarks.building import piped, served_index
from tests.benchmarks.captures import Captures, Row
from tests.benchmarks.load import (
    CLIENTS,
    Load,
    ask,
    batches,
    listening,
    paths,
    serving,
    written,
)
from tests.benchmarks.measure import Failed
from tests.benchmarks.peers import Missing, outbackcdx
from tests.benchmarks.suite import Bench, Line, Target

ASKED = 20_000  # different captures
BATCH = 1_000
HALF_LOAD_TRIES = 3


def _asked(count: int) -> list[Row]:
    return Captures().sample(count, ASKED)


def lookup(bench: Bench) -> Iterator[Line]:
    """GET /lookup, keep-alive, server on one core; beside a bare answer, and OutbackCDX."""
    index = served_index(bench)
    rows = _asked(bench.size.served)
    requests = written(bench.scratch / "requests", paths(rows))
    with ExitStack() as stack:
        server = stack.enter_context(serving(bench, index))
        bare = stack.enter_context(bare_server(bench, _one_answer(server.address, rows[0])))
        contenders: dict[str, Callable[[], Load]] = {
            "ours": lambda: ask(bench, server.address, requests),
            "bare": lambda: ask(bench, bare, requests),
        }
        note = ""
        try:
            contenders["outback"] = stack.enter_context(_Outback(bench)).ask
        except Missing as missing:
            note = str(missing)
        loads = bench.interleaved(contenders)
    rate = {name: median([load.rate for load in found]) for name, found in loads.items()}
    p99 = median([load.p99 for load in loads["ours"]])
    told = f"p99 {p99:.2f} ms at full load; {bench.size.served:,} captures"
    yield _beside("lookup", rate, "bare", "bare WSGI answer", Target(0.6, goal=0.75), told)
    yield _beside("lookup", rate, "outback", "OutbackCDX", Target(5), note)


@contextmanager
def bare_server(bench: Bench, body: bytes) -> Iterator[str]:
    """A server on our server's core that answers everything with `body`; gives its address."""
    answer = bench.scratch / "answer"
    answer.write_bytes(body)
    command = [sys.executable, "-m", "tests.benchmarks.bare", "PORT", answer]
    with listening(bench, command, "the bare application") as address:
        yield address


def cdx_lookup(bench: Bench) -> Iterator[Line]:
    """The captures of a URL, as CDX clients ask for them, of OutbackCDX and of as many of ours."""
    count = bench.size.outback
    index = bench.fresh("by-url")
    piped(bench, count, index, "--by-url")
    rows = _asked(count)
    requests = written(bench.scratch / "cdx-requests", paths(rows, "cdx"))
    with ExitStack() as stack:
        server = stack.enter_context(serving(bench, index))
        with urlopen(server.address + next(paths(rows[:1], "cdx"))) as response:
            if rows[0].digest.encode() not in response.read():
                raise Failed(f"{rows[0]} is in the index, but is not listed")
        contenders = {"ours": lambda: ask(bench, server.address, requests)}
        note = f"{count:,} captures in each"
        try:
            contenders["outback"] = stack.enter_context(_Outback(bench)).ask
        except Missing as missing:
            note = str(missing)
        loads = bench.interleaved(contenders)
    rate = {name: median([load.rate for load in found]) for name, found in loads.items()}
    yield _beside("cdx-lookup", rate, "outback", "OutbackCDX", Target(2), note)


def _beside(
    job: str, rate: dict[str, float], name: str, beside: str, target: Target, note: str
) -> Line:
    line = Line(job, "lookups/s", rate["ours"], beside, rate.get(name), target=target, note=note)
    if line.reference:
        line.ratio = line.ours / line.reference
    return line


def _one_answer(address: str, row: Row) -> bytes:
    """The answer to one question, which must be the right one."""
    with urlopen(address + next(paths([row]))) as response:
        body: bytes = response.read()
    if b'"duplicate":true' not in body or row.url.encode() not in body:
        raise Failed(f"{row} is in the index, the answer is {body!r}")
    return body


class _Outback:
    """OutbackCDX with captures in it, compacted; asked for their URLs."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._stack = ExitStack()
        self._jar = bench.peers.outbackcdx()

    def __enter__(self) -> _Outback:
        bench, data = self._bench, self._bench.scratch / "outbackcdx"
        peer = self._stack.enter_context(outbackcdx(self._jar, data, bench.cores.one))
        bench.say(f"filling OutbackCDX with {bench.size.outback:,} captures")
        peer.post(bench.inputs.cdx(bench.size.outback))
        peer.compact()
        rows = _asked(bench.size.outback)
        self._requests = written(bench.scratch / "outback", paths(rows, peer.collection))
        self._address = f"http://127.0.0.1:{peer.port}"
        with urlopen(self._address + next(paths(rows[:1], peer.collection))) as response:
            if rows[0].digest.encode() not in response.read():
                raise Failed("OutbackCDX does not know a capture that it was given")
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def ask(self) -> Load:
        return ask(self._bench, self._address, self._requests)


def batch(bench: Bench) -> Iterator[Line]:
    """POST /lookup in batches of 1,000, server on one core."""
    rows = _asked(bench.size.served)
    requests = written(bench.scratch / "batches", batches(rows, BATCH))
    with serving(bench, served_index(bench)) as server:
        loads = bench.interleaved({"ours": lambda: ask(bench, server.address, requests, clients=2)})
    rate = median([load.rate for load in loads["ours"]]) * BATCH
    yield Line("batch", "lookups/s", rate, target=Target(250_000, of="ours"))


def latency(bench: Bench) -> Iterator[Line]:
    """Latency at 16 clients under half of full load, server on one core."""
    rows = _asked(bench.size.served)
    requests = written(bench.scratch / "requests", paths(rows))
    with serving(bench, served_index(bench)) as server:
        loads = bench.interleaved({"full": lambda: ask(bench, server.address, requests)})["full"]
        full = median([load.rate for load in loads])
        pause = _pause(bench, server.address, requests, full / 2)
        loads = [ask(bench, server.address, requests, pause=pause) for _ in range(bench.runs)]
    p50, p99 = median([load.p50 for load in loads]), median([load.p99 for load in loads])
    rate = median([load.rate for load in loads])
    note = f"p50 {p50:.2f} ms at {rate:,.0f} lookups/s, {CLIENTS} clients; full load {full:,.0f}"
    yield Line("latency", "ms p99", p99, target=Target(1, of="ours", most=True), note=note)


def _pause(bench: Bench, address: str, requests: Path, wanted: float) -> float:
    """How often clients must rest for the server to get so many requests a second."""
    pause = 0.5
    for _ in range(HALF_LOAD_TRIES if bench.size.warm else 1):
        got = ask(bench, address, requests, pause=pause)
        pause *= CLIENTS / wanted / (CLIENTS / got.rate)
        pause = min(max(pause, 0.01), 1.0)
    return pause


def weight(bench: Bench) -> Iterator[Line]:
    """How long bin/serve takes to start on a large index, and what memory it takes then."""
    index = served_index(bench)
    rows = _asked(bench.size.served)
    requests = written(bench.scratch / "requests", paths(rows))
    seconds = []
    for number in range(bench.runs + 1):
        begin = time.perf_counter()
        with serving(bench, index) as server:
            _one_answer(server.address, rows[0])
            seconds.append(time.perf_counter() - begin)
            if number == bench.runs:
                ask(bench, server.address, requests)
                private = server.private()
    held = f"{bench.size.served:,} captures"
    yield Line("start", "s", median(seconds[1:]), note=f"to the first answer, {held}")
    limit = Target(150, of="ours", most=True)
    note = f"after lookups; its own, {held}"
    yield Line("server-memory", "MB", private / 1e6, target=limit, note=note)
