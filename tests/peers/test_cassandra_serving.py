"""Two servers on one cluster of three nodes, a crawl through both, and nodes that are killed."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest

from dedupindex.index.identity import Identity, Settings
from tests.captures import capture, sha1
from tests.conftest import MakeIndex
from tests.peers.cassandra import Ring, ring
from tests.test_crawls_live import known, report, send
from tests.test_server_live import DEADLINE, Running, serving, until

pytestmark = pytest.mark.peer
OWN = "http://example.com/a"


@pytest.fixture(scope="module")
def three() -> Iterator[Ring]:
    with ring(3) as found:
        yield found


def status(server: Running, method: str, path: str, content: object = None) -> tuple[int, Any]:
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE)) as connection:
        body = None if content is None else json.dumps(content)
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())


class Crawlers:
    """Threads that report to servers without pause, and ask for what the index has."""

    def __init__(self, servers: list[Running]) -> None:
        self.acknowledged: set[int] = set()
        self.wrong: list[Any] = []
        self._end = threading.Event()
        self._threads = [
            threading.Thread(target=work, args=(server, number))
            for number, server in enumerate(servers)
            for work in (self._report, self._ask)
        ]
        for thread in self._threads:
            thread.start()

    def _report(self, server: Running, number: int) -> None:
        while not self._end.is_set():
            with suppress(OSError, HTTPException):
                code, answer = status(server, "POST", "/captures?crawl=a", report(number))
                if code == 200 and answer["added"] + answer["unchanged"] == 1:
                    self.acknowledged.add(number)
                    number += 2
                elif code != 503:
                    self.wrong.append((code, answer))

    def _ask(self, server: Running, _: int) -> None:
        path = f"/lookup?digest={sha1(90)}&url={OWN}&crawl=a"
        while not self._end.is_set():
            with suppress(OSError, HTTPException):
                code, answer = status(server, "GET", path)
                if code != 503 and not answer.get("duplicate"):
                    self.wrong.append((code, answer))

    def more(self, count: int) -> bool:
        """Whether so many more are acknowledged in time."""
        wanted = len(self.acknowledged) + count
        return until(lambda: len(self.acknowledged) >= wanted, 60)

    def stop(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(DEADLINE)


def test_a_crawl_through_two_servers_outlives_a_node(
    three: Ring, make_index: MakeIndex, tmp_path: Path
) -> None:
    address = three.address(timeout=2)
    index = make_index([capture(90)], engine=address)
    other = tmp_path / "other"
    other.mkdir()
    Identity(address, Settings()).write(other)
    with serving(index, "--workers", "2") as one, serving(other, "--workers", "1") as two:
        servers = [one, two]
        send(one.port, "POST", "/crawls", {"name": "a"})
        assert send(two.port, "GET", "/crawls/a")["state"] == "open"
        crawlers = Crawlers(servers)
        try:
            assert crawlers.more(50)
            three.nodes[1].kill()
            assert crawlers.more(100)
        finally:
            crawlers.stop()
        assert crawlers.wrong == []
        for server, reported in ((two, range(0, 20, 2)), (one, range(1, 20, 2))):
            for number in reported:  # by the other server
                assert known(server, number, "a") and not known(server, number)
        asked = {"digest": str(sha1(5000)), "url": OWN, "crawl": "a"}
        claimed = [send(server.port, "POST", "/claims", asked)["claimed"] for server in servers]
        assert claimed == [True, False]
        assert send(two.port, "POST", "/crawls/a/commit")["captures"] >= 150
        for number in crawlers.acknowledged:
            assert known(servers[number % 2], number)
        lookups = [send(server.port, "GET", "/crawls/a")["lookups"] for server in servers]
        assert min(lookups) > 0
        said = subprocess.run(
            [sys.executable, "-m", "dedupindex", "report", str(other), "--crawl", "a", "--json"],
            capture_output=True, check=True,
        ).stdout  # fmt: skip
        assert json.loads(said)["captures"] >= len(crawlers.acknowledged)
        send(one.port, "POST", "/crawls", {"name": "b", "seen_by": "all"})
        send(one.port, "POST", "/captures?crawl=b", report(7001))
        assert known(two, 7001)
        send(one.port, "POST", "/crawls/b/cancel")
        assert not known(two, 7001)
        three.nodes[2].kill()  # one is left of three: nothing can be known for sure
        for server in servers:
            for method, path, content in (
                ("GET", f"/lookup?digest={sha1(90)}&url={OWN}", None),
                ("GET", f"/lookup?digest={sha1(90)}&url={OWN}&crawl=a", None),
                ("POST", "/captures?crawl=a", report(1)),
                ("POST", "/claims", asked),
                ("POST", "/crawls", {"name": "c"}),
            ):
                assert status(server, method, path, content)[0] == 503
