"""Jobs on Apache Cassandra: one node, which shares the machine with whoever asks it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from urllib.request import Request, urlopen

from dedupindex.index.address import Address
from dedupindex.index.engines.cassandra.cql import connect
from demo import nodes
from tests.benchmarks.asking import ASKED, BATCH
from tests.benchmarks.building import index
from tests.benchmarks.captures import Captures
from tests.benchmarks.load import Server, batches, serving, written
from tests.benchmarks.measure import Failed, processor_time, run
from tests.benchmarks.peers import Missing
from tests.benchmarks.suite import Bench, Line, Target

_FLOOR = Target(0.7)
_LONGEST = 600  # seconds until a filter is there


def cassandra(bench: Bench) -> Iterator[Line]:
    """Loading, and lookups in batches, of a node of Cassandra: beside the bare driver, LMDB."""
    count = bench.size.outback
    source, here = bench.inputs.cdx(count), bench.fresh("beside")
    with _keyspace(bench) as address:
        there = bench.fresh("cassandra")
        loads = {
            "ours": index(bench, source, there, "--engine", str(address), records=count).wall,
            "lmdb": index(bench, source, here, records=count).wall,
        }
        line = Line("cassandra-load", "captures/s", count / loads["ours"], "LMDB")
        line.reference = count / loads["lmdb"]
        line.ratio = line.ours / line.reference
        line.note = f"{count:,} captures, once"
        yield line
        yield _loops(bench, there, count)
        yield _served(bench, there, here, count)
        yield _mostly_new(bench, there, count)


@contextmanager
def _keyspace(bench: Bench) -> Iterator[Address]:
    """A keyspace that was not there, on a cluster that runs or on a node of its own."""
    with ExitStack() as stack:
        if bench.cluster:
            address = Address.parse(bench.cluster)
        else:
            address = Address.parse(stack.enter_context(_node(bench)).address())
        yield address
        with closing(connect(address)) as session:
            session.define(f"DROP KEYSPACE {address.keyspace}")


@contextmanager
def _node(bench: Bench) -> Iterator[nodes.Ring]:
    """A node on the core where clients of servers are, too."""
    try:
        ring = nodes.ring(1, nodes.jars())
    except nodes.Missing as missing:
        raise Missing(str(missing)) from missing
    bench.say("starting a node of Cassandra")
    free = os.sched_getaffinity(0)
    with ExitStack() as stack:
        os.sched_setaffinity(0, bench.cores.other)  # what is started inherits it
        try:
            found = stack.enter_context(ring)
        except nodes.NodeFailed as failed:
            raise Failed(str(failed)) from failed
        finally:
            os.sched_setaffinity(0, free)
        yield found


def _loops(bench: Bench, place: Path, count: int) -> Line:
    """Lookups of one process, our engine's beside the bare driver's."""
    asked = Captures().sample(count, min(ASKED, count))
    lines = written(bench.scratch / "asked", (f"sha1:{row.digest} {row.url}" for row in asked))

    def loop(who: str) -> dict[str, float]:
        words = [sys.executable, "-m", "tests.benchmarks.cluster_loop", who, place, lines]
        report: dict[str, float] = json.loads(run(words, bench.cores.one).out)
        if report["found"] != len(asked):
            raise Failed(f"{who} found {report['found']} of {len(asked)} in {place}")
        return report

    rounds = bench.interleaved({who: partial(loop, who) for who in ("ours", "bare")})
    wall = {who: median([one["wall"] for one in found]) for who, found in rounds.items()}
    cpu = {who: median([one["cpu"] for one in found]) for who, found in rounds.items()}
    line = Line("cassandra-lookup", "lookups/s", len(asked) / wall["ours"], "bare cassandra-driver")
    line.reference = len(asked) / wall["bare"]
    line.ratio, line.target = line.ours / line.reference, _FLOOR
    line.note = f"one process; by its CPU time {cpu['bare'] / cpu['ours']:.2f}"
    return line


def _served(bench: Bench, there: Path, here: Path, count: int) -> Line:
    """POST /lookup in batches of 1,000: a server on Cassandra beside one on LMDB."""
    asked = Captures().sample(count, min(ASKED, count))
    bodies = [body.encode() for body in batches(asked, BATCH)]
    with ExitStack() as stack:
        contenders: dict[str, Callable[[], float]] = {}
        for place in (here, there):
            server = stack.enter_context(serving(bench, place))
            contenders[place.name] = partial(_posted, server.address, bodies, len(bodies) * BATCH)
        rates = {name: median(found) for name, found in bench.interleaved(contenders).items()}
    line = Line("cassandra-batch", "lookups/s", rates[there.name], "LMDB", rates[here.name])
    line.ratio = line.ours / rates[here.name]
    line.note = f"{count:,} captures; server on one core, node on the other"
    return line


def _mostly_new(bench: Bench, there: Path, count: int) -> Line:
    """The same of a crawl in which four of five payloads are new: with a filter, and without."""
    known = Captures().sample(count, min(ASKED, count) // 5)
    asked = [*known, *Captures().rows(count, count + 4 * len(known))]
    Random(7).shuffle(asked)
    bodies = [body.encode() for body in batches(asked, BATCH)]
    found = sum(row.number < count for row in asked[: len(bodies) * BATCH])
    spent: dict[str, list[float]] = {}

    def posted(name: str, server: Server) -> float:
        before = processor_time(server.session)
        rate = _posted(server.address, bodies, found)
        spent.setdefault(name, []).append(processor_time(server.session) - before)
        return rate

    with ExitStack() as stack:
        contenders: dict[str, Callable[[], float]] = {}
        for name, options in {"filter": ("--filter-memory", str(1 << 30)), "none": ()}.items():
            server = stack.enter_context(serving(bench, there, *options))
            if options:
                _await_filter(server.address)
            contenders[name] = partial(posted, name, server)
        rates = {name: median(rate) for name, rate in bench.interleaved(contenders).items()}
    line = Line("cassandra-filtered", "lookups/s", rates["filter"], "the same without the filter")
    line.reference = rates["none"]
    line.ratio, line.target = line.ours / line.reference, Target(20_000, "ours")
    each = {name: 1e6 * median(taken) / (len(bodies) * BATCH) for name, taken in spent.items()}
    line.note = (
        f"{count:,} captures; 80 % are new; server on one core, node on the other; processor time "
        f"of the server: {each['filter']:.0f} µs each, without {each['none']:.0f} µs"
    )
    return line


def _await_filter(address: str) -> None:
    """Return when a server has its filter."""
    end = time.monotonic() + _LONGEST
    while json.loads(urlopen(f"{address}/stats").read())["filter"]["age"] is None:
        if time.monotonic() > end:
            raise Failed(f"{address} has no filter after {_LONGEST} s")
        time.sleep(0.1)


def _posted(address: str, bodies: list[bytes], expected: int) -> float:
    """Lookups a second of two clients, each of which posts a batch when its last is answered."""

    def post(body: bytes) -> int:
        request = Request(f"{address}/lookup", body, {"Content-Type": "application/json"})
        with urlopen(request, timeout=60) as reply:
            return int(reply.read().count(b'"duplicate":true'))

    post(bodies[0])  # connects to the cluster
    began = time.perf_counter()
    with ThreadPoolExecutor(2) as clients:
        found = sum(clients.map(post, bodies))
    taken = time.perf_counter() - began
    if found != expected:
        raise Failed(f"{address} found {found:,} of {expected:,}")
    return len(bodies) * BATCH / taken
