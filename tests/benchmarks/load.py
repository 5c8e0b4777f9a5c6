"""Asking a server as hard as it can bear, or half as hard: wrk, on a core of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from subprocess import PIPE
from types import MappingProxyType
from urllib.parse import quote

from demo.steps import free_port
from tests.benchmarks.captures import Row
from tests.benchmarks.measure import Failed, memory, run, running
from tests.benchmarks.peers import need, wait_for
from tests.benchmarks.suite import SERVE, Bench

CLIENTS = 16
_SCRIPT = Path(__file__).with_name("wrk.lua")
_TIMEOUT = 2  # seconds, as wrk has it
_LONGEST = 60  # seconds of a load after which nothing is expected any more


@dataclass(frozen=True)
class Load:
    """What wrk saw."""

    rate: float  # requests a second
    count: int  # requests
    p50: float  # milliseconds
    p99: float
    longest: float


def ask(
    bench: Bench,
    address: str,
    requests: Path,
    *,
    clients: int = CLIENTS,
    pause: float = 0,
    headers: Mapping[str, str] = MappingProxyType({}),
    timeout: int = _TIMEOUT,
) -> Load:
    """Load a server for some seconds; raises `Failed` if one answer was no success.

    An answer that comes after `timeout` seconds is none.
    """
    seconds = bench.size.seconds
    while True:
        line = _wrk(address, requests, seconds, clients, pause, timeout)
        line += chain.from_iterable(headers.items())
        load = _load(run(line, bench.cores.other).out, address)
        if load.count:
            return load
        if seconds > _LONGEST:
            raise Failed(f"{address} answered nothing in {seconds} s")
        seconds *= 2  # the machine is busy


@contextmanager
def asking(
    bench: Bench, address: str, requests: Path, *, clients: int, pause: float
) -> Iterator[Callable[[], Load]]:
    """The same beside something else, and a second longer; what is yielded waits for its end."""
    line = _wrk(address, requests, bench.size.seconds + 1, clients, pause, _TIMEOUT)
    with running(line, bench.cores.other, stdout=PIPE) as process:

        def load() -> Load:
            found = _load(process.communicate()[0].decode(), address)
            if not found.count:
                raise Failed(f"{address} answered nothing")
            return found

        yield load


def _wrk(
    address: str, requests: Path, seconds: int, clients: int, pause: float, timeout: int
) -> list[object]:
    wrk = need("wrk", "wrk")
    line: list[object] = [wrk, "-t1", f"-c{clients}", f"-d{seconds}s"]
    line += ["--timeout", f"{timeout}s", "-s", _SCRIPT, address]
    return [*line, "--", requests, f"{pause:.3f}"]


def _load(text: str, address: str) -> Load:
    count, lasted, errors, p50, p99, longest = map(int, text.rpartition("RESULT ")[2].split())
    if errors:
        raise Failed(f"{errors} of {count} requests to {address} failed")
    return Load(count / lasted * 1e6, count, p50 / 1000, p99 / 1000, longest / 1000)


@dataclass(frozen=True)
class Server:
    """A running server of ours."""

    address: str
    session: int

    def private(self) -> int:
        """Bytes of memory of its own, all its processes together."""
        return memory(self.session)[1]


@contextmanager
def serving(bench: Bench, index: Path, *options: str) -> Iterator[Server]:
    """``bin/serve`` on one core, one worker; its log is ``server.log`` in the scratch space."""
    command = [SERVE, index, "--port", "0", "--workers", "1", "--json", *options]
    with (
        open(bench.scratch / "server.log", "ab") as log,
        running(command, bench.cores.one, stdout=PIPE, stderr=log) as process,
    ):
        assert process.stdout is not None
        ready = process.stdout.readline()
        if not ready:
            raise Failed("bin/serve did not start")
        yield Server(json.loads(ready)["url"], process.pid)


@contextmanager
def listening(bench: Bench, command: Sequence[object], what: str) -> Iterator[str]:
    """Another server on the same core; the word PORT of its command is replaced by its port."""
    port = free_port()
    words = [port if word == "PORT" else word for word in command]
    with running(words, bench.cores.one):
        wait_for(port, what)
        yield f"http://127.0.0.1:{port}"


def paths(rows: Iterable[Row], collection: str = "") -> Iterator[str]:
    """What to GET for rows: our lookups, or those of a collection in OutbackCDX."""
    for row in rows:
        url = quote(row.url, safe="")
        if collection:
            yield f"/{collection}?limit=5&url={url}"
        else:
            yield f"/lookup?digest=sha1:{row.digest}&url={url}"


def batches(rows: Sequence[Row], each: int) -> Iterator[str]:
    """JSON bodies of so many lookups."""
    for at in range(0, len(rows) - each + 1, each):
        asked = [{"digest": f"sha1:{row.digest}", "url": row.url} for row in rows[at : at + each]]
        yield json.dumps({"lookups": asked}, separators=(",", ":"))


def written(path: Path, lines: Iterable[str]) -> Path:
    """A file of lines."""
    path.write_text("".join(f"{line}\n" for line in lines))
    return path
