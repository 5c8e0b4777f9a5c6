"""Many clients at once, while processes are killed, power fails or the disk is full.

``DEDUPINDEX_LOAD_SECONDS=60`` makes each load last a minute, not seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode

import pytest

from dedupindex.index import open_index
from tests.conftest import MakeIndex
from tests.integration.test_crawls_live import children, known, report, send
from tests.integration.test_server_live import (
    DEADLINE,
    PAGE,
    Clients,
    Running,
    question,
    serving,
    until,
)
from tests.support.captures import capture, sha1
from tests.unit.cli.test_cli import dedupindex

SECONDS = float(os.environ.get("DEDUPINDEX_LOAD_SECONDS", "3"))
CLIENTS, CRAWLERS, WRITERS = 1000, 25, 100
FORM = "application/x-www-form-urlencoded"


class Broken(Exception):
    """An answer that was cut off, or that never came."""


class Wire:
    """One connection, kept alive."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(
        self, method: str, path: str, body: bytes = b"", kind: str = "", more: str = ""
    ) -> tuple[int, bytes]:
        """Status and body; raises `Broken`."""
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{more}"
        )
        head += f"Content-Type: {kind}\r\n" if kind else ""
        self._writer.write(head.encode() + b"\r\n" + body)
        try:
            async with asyncio.timeout(DEADLINE):
                lines = (await self._reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
                fields = dict(line.split(b": ", 1) for line in lines[1:] if line)
                size = int(fields.get(b"content-length", b"0"))
                return int(lines[0].split()[1]), await self._reader.readexactly(size)
        except (OSError, EOFError, TimeoutError) as error:
            raise Broken(f"{method} {path[:40]}: {error!r}") from error

    async def form(self, path: str, **fields: object) -> tuple[int, bytes]:
        """POST a form, as Heritrix' scripts do."""
        return await self.ask("POST", path, urlencode(fields).encode(), FORM)

    async def json(self, path: str, content: object) -> tuple[int, bytes]:
        """POST JSON."""
        return await self.ask("POST", path, json.dumps(content).encode(), "application/json")


@asynccontextmanager
async def wired(port: int) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def together(count: int, work: Callable[[int], Awaitable[None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(work(number))  # type: ignore[arg-type]


# --- a crowd of clients --------------------------------------------------------------------------


def test_a_thousand_clients_and_a_crawl_lose_nothing(make_index: MakeIndex) -> None:
    """1,000 connections that ask now and then, and a Heritrix with 25 threads that never rests."""
    rng, done, stored = random.Random(7), Counter[str](), Counter[int]()

    async def client(number: int) -> None:
        turns = 0
        async with wired(server.port) as wire:
            while turns < 2 or time.monotonic() < end:
                turns += 1
                status, body = await wire.ask("GET", question(1))
                assert status == 200 and b'"exact_url"' in body
                done["asked"] += 1
                await asyncio.sleep(rng.uniform(0.2, 1.5))  # a client that asks now and then

    async def thread(number: int) -> None:
        """Looks up what it fetched, stores and reports it if it is new; some comes again."""
        count = 0
        async with wired(server.port) as wire:
            while not count or time.monotonic() < end:
                again = count and rng.random() < 0.3
                key = number + CRAWLERS * (rng.randrange(count) if again else count) + 100
                url = f"http://example.com/{key}"
                asked = f"/lookup?digest={sha1(key)}&url={url}&crawl=a"
                status, body = await wire.ask("GET", asked, more="Accept: text/plain\r\n")
                assert status == (200 if again else 204), (status, body)
                assert not again or f"Refers-To-Target-URI: {url}".encode() in body
                done["of the crawl"] += 1
                if not again:
                    status, body = await wire.form("/captures?crawl=a", **report(key))
                    assert status == 200 and json.loads(body)["added"] == 1, body
                    stored[number] += 1
                    count += 1

    async def all_of_them() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(together(CLIENTS, client))
            group.create_task(together(CRAWLERS, thread))

    with serving(make_index([capture(1, PAGE)]), "--workers", "2") as server:
        send(server.port, "POST", "/crawls", {"name": "a"})
        end = time.monotonic() + SECONDS
        asyncio.run(all_of_them())
        assert done["asked"] > CLIENTS and all(stored[number] for number in range(CRAWLERS))
        shown = send(server.port, "POST", "/crawls/a/commit")
        assert shown["captures"] == stored.total()
        asked = done["of the crawl"]
        assert until(lambda: send(server.port, "GET", "/crawls/a")["lookups"] == asked)
        print(f"{SECONDS:g} s: {dict(done)}, reported {stored.total()}")


# --- the end of a server -------------------------------------------------------------------------


def kill(server: Running) -> None:
    """As if the machine had lost its power, but for what the kernel has not written yet."""
    for process in [*children(server.process.pid), server.process.pid]:
        os.kill(process, signal.SIGKILL)


def test_a_hundred_writers_and_a_kill(make_index: MakeIndex) -> None:
    """Acknowledged captures are stored; lapsed claims can be claimed again."""
    index = make_index([])
    acknowledged: set[int] = set()
    claimed: dict[int, float] = {}
    lease = 3

    async def writer(number: int) -> None:
        key = number
        with suppress(Broken, OSError):
            async with wired(server.port) as wire:
                while True:
                    wanted = {"crawl": "a", "digest": str(sha1(key)), "lease": lease}
                    status, body = await wire.json("/claims", wanted)
                    answer = json.loads(body)
                    assert status == 200 and answer["claimed"], body
                    claimed[key] = answer["until"]
                    if key % 3:  # of the others the payload is still being fetched
                        status, body = await wire.json("/captures?crawl=a", report(key))
                        assert status == 200 and json.loads(body)["added"] == 1
                        acknowledged.add(key)
                    key += WRITERS

    def end() -> None:
        until(lambda: len(acknowledged) >= 20 * WRITERS, max(DEADLINE, SECONDS * 3))
        kill(server)

    with serving(index, "--workers", "2") as server:
        for name in "ab":
            send(server.port, "POST", "/crawls", {"name": name})
        killer = threading.Thread(target=end)
        killer.start()
        asyncio.run(together(WRITERS, writer))
        killer.join()
    assert len(acknowledged) >= 10 * WRITERS
    with serving(index, "--workers", "2") as server:
        lookups = [{"digest": str(sha1(key))} for key in sorted(acknowledged)]
        batch = send(server.port, "POST", "/lookup", {"lookups": lookups, "crawl": "a"})
        assert all(answer["duplicate"] for answer in batch["answers"])
        held = sorted(key for key in claimed if key % 3 == 0)  # nobody has tried to report these
        assert held
        for key in held[-50:]:

            def lapsed(key: int = key) -> bool:
                wanted = {"crawl": "b", "digest": str(sha1(key)), "lease": 60}
                answer = send(server.port, "POST", "/claims", wanted)
                free = bool(answer["claimed"])
                assert free or answer["until"] <= claimed[key] + 1e-3
                assert not free or time.time() >= claimed[key] - 1e-3
                return free

            assert until(lapsed, lease + DEADLINE)


def test_a_worker_that_is_killed_is_replaced(make_index: MakeIndex) -> None:
    with serving(make_index([capture(1, PAGE)]), "--workers", "2") as server:
        send(server.port, "POST", "/crawls", {"name": "a"})
        send(server.port, "POST", "/captures?crawl=a", report(2))
        before = set(children(server.process.pid))
        victim = min(before)
        os.kill(victim, signal.SIGKILL)

        def whole() -> bool:
            now = set(children(server.process.pid))
            return victim not in now and len(now) == len(before)

        assert until(whole)
        for _ in range(40):  # each on a connection of its own, so both workers are asked
            assert until(lambda: answers(server.port))
            assert known(server, 2, "a")
        assert server.process.poll() is None


def test_workers_end_with_a_server_that_is_killed(make_index: MakeIndex) -> None:
    with serving(make_index([capture(1, PAGE)]), "--workers", "2") as server:
        workers = children(server.process.pid)
        server.process.kill()
        assert until(lambda: not any(alive(worker) for worker in workers))


def alive(process: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_new_workers_merge_into_copy_under_load(make_index: MakeIndex) -> None:
    with serving(make_index([capture(1, PAGE)]), "--workers", "2") as server:
        before = set(children(server.process.pid))
        clients = Clients(server.port, 4)
        assert until(lambda: clients.answers > 100)
        server.process.send_signal(signal.SIGHUP)
        assert until(
            lambda: len(now := set(children(server.process.pid))) == 2 and not now & before
        )
        answered = clients.answers
        assert until(lambda: clients.answers > answered + 100), clients.failures
        clients.finish()
        assert clients.failures == []


def answers(port: int) -> bool:
    try:
        with closing(HTTPConnection("127.0.0.1", port, timeout=DEADLINE)) as connection:
            connection.request("GET", question(1))
            return connection.getresponse().status == 200
    except OSError:
        return False


# --- a disk that is full -------------------------------------------------------------------------


def test_a_full_disk_is_reported_and_nothing_acknowledged_is_lost(make_index: MakeIndex) -> None:
    index = make_index([capture(1, PAGE)])
    acknowledged: list[int] = []

    def write(number: int) -> int:
        with closing(HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE)) as connection:
            body = {"captures": [report(number * 100 + each) for each in range(100)]}
            connection.request(
                "POST",
                "/captures?crawl=a",
                json.dumps(body),
                {"Content-Type": "application/json"},
            )
            response = connection.getresponse()
            text = response.read()
            if response.status == 200:
                acknowledged.extend(range(number * 100, number * 100 + 100))
            else:
                assert json.loads(text)["error"]["code"] == "index_unavailable", text
            return response.status

    with serving(index, "--workers", "1") as server:
        send(server.port, "POST", "/crawls", {"name": "a"})
        assert write(0) == 200
        # No file of the worker may grow by more than this, as on a disk that is nearly full.
        (worker,) = children(server.process.pid)
        room = (index / "crawls.mdb").stat().st_size + (256 << 10)
        unlimited = resource.RLIM_INFINITY
        resource.prlimit(worker, resource.RLIMIT_FSIZE, (room, unlimited))
        number = 1
        while write(number) == 200:
            number += 1
        assert write(number + 1) == 503 and number > 1
        assert server.get(question(1))[0] == 200  # who only asks does not notice
        assert all(known(server, one, "a") for one in acknowledged[::50])
        resource.prlimit(worker, resource.RLIMIT_FSIZE, (unlimited, unlimited))
        assert write(number + 2) == 200
        shown = send(server.port, "POST", "/crawls/a/commit")
        assert shown["captures"] == len(acknowledged)
        assert until(lambda: send(server.port, "GET", "/crawls/a")["merged"])
    with closing(open_index(index)) as engine:
        assert engine.check() == []
        with engine.view() as view:
            assert view.counts().captures == 1 + len(acknowledged)


# --- backup --------------------------------------------------------------------------------------


def test_a_copy_made_while_crawls_write_has_all_that_was_acknowledged_before(
    make_index: MakeIndex, tmp_path: Path
) -> None:
    """Crawls begin, write, are committed and merged while three copies are made."""
    index = make_index([capture(10**6, PAGE)])
    token = dedupindex("token", index, "--add", "crawler")[0].strip()
    acknowledged: set[int] = set()
    ended = threading.Event()

    def post(path: str, content: object) -> None:
        with closing(HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE)) as connection:
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
            connection.request("POST", path, json.dumps(content), headers)
            response = connection.getresponse()
            assert response.status == 200, response.read()

    def crawl(number: int) -> None:
        key = number
        while not ended.is_set():
            name = f"crawl-{key}"
            post("/crawls", {"name": name, "seen_by": "all"})
            for _ in range(20):
                post(f"/captures?crawl={name}", report(key))
                acknowledged.add(key)
                key += 4
            post(f"/crawls/{name}/commit", {})

    copies = []
    with serving(index, "--workers", "2") as server:
        threads = [threading.Thread(target=crawl, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        try:
            for number in range(3):
                assert until(lambda least=200 * (number + 1): len(acknowledged) > least)
                before, target = frozenset(acknowledged), tmp_path / f"copy-{number}"
                dedupindex("index", "--copy", target, index)
                copies.append((target, before))
        finally:
            ended.set()
            for thread in threads:
                thread.join(DEADLINE)
    for target, before in copies:
        done = subprocess.run(
            [sys.executable, "-m", "dedupindex", "index", "--check", str(target)],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        with serving(target, "--workers", "1") as server:
            lookups = [{"digest": str(sha1(key))} for key in sorted(before)]
            batch = send(server.port, "POST", "/lookup", {"lookups": lookups})
            missing = [k for k, a in zip(sorted(before), batch["answers"], strict=True)
                       if not a["duplicate"]]  # fmt: skip
            assert missing == []
            with pytest.raises(AssertionError, match="unauthorized"):
                send(server.port, "POST", "/crawls", {"name": "stranger"})
