"""Three nodes, three copies of everything, some of which are killed meanwhile.

All tests that need three are in this module: starting them takes half a minute.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest

from dedupindex.digest import Digest
from dedupindex.errors import IndexUnavailable
from dedupindex.index import open_index, refer_to
from dedupindex.index.address import Address
from dedupindex.index.engine import retry
from dedupindex.index.engines.cassandra import metadata
from dedupindex.index.engines.cassandra.cql import Statement, connect
from dedupindex.index.identity import Identity, Settings
from dedupindex.index.shared_filter import FRESH
from dedupindex.lookup.decide import Query, find
from demo.cluster import show
from demo.nodes import Node
from server.app import create_app
from server.config import Config
from server.live_index import LiveIndex
from tests.conftest import MakeIndex
from tests.integration.test_crawls_live import known, report, send
from tests.integration.test_server_live import Running, serving
from tests.peers.cassandra import DEADLINE, Ring, ring
from tests.peers.test_cassandra_commands import JSON, asked, cdx, label
from tests.support.captures import capture, sha1
from tests.support.engine_bench import Bench
from tests.support.local_spark import Here, run_spark_here
from tests.support.purging import begin, held, load, revisit_of

pytestmark = pytest.mark.peer
FIRST, MORE = 1000, 10_000  # captures of the first load, and of the second
OWN = "http://example.com/a"


@pytest.fixture(scope="module")
def three() -> Iterator[Ring]:
    with ring(3, timeout=12) as found:
        yield found


@pytest.fixture
def nodes(three: Ring) -> Ring:
    """All of them run."""
    three.mend()
    return three


def command(name: str, *words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dedupindex", name, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def done(process: subprocess.Popen[str]) -> str:
    """The output of a command that succeeds."""
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, err
    return out


def answered(*words: object) -> tuple[int, str, str]:
    """Exit status and output of a command, perhaps after retries: busy nodes may be too slow."""
    end = time.monotonic() + DEADLINE
    while True:
        process = command(str(words[0]), *words[1:])
        out, err = process.communicate(timeout=DEADLINE)
        if process.returncode != IndexUnavailable.exit_status or time.monotonic() > end:
            return process.returncode, out, err


def patient(*words: object) -> str:
    """The output of a command that succeeds, perhaps after retries."""
    status, out, err = answered(*words)
    assert status == 0, err
    return out


def until(condition: Callable[[], bool], seconds: float = DEADLINE) -> bool:
    """Whether a condition comes true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)  # what is waited for needs the processor, too
    return True


class Asking:
    """A thread that looks up without pause what was there before it began."""

    def __init__(self, index: Path) -> None:
        self.answers, self.outages = 0, 0
        self.wrong: list[str] = []
        self._index, self._end = index, threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        try:
            with closing(open_index(self._index)) as engine:
                while not self._end.is_set():
                    number = self.answers % FIRST
                    try:
                        with engine.view() as view:
                            query = Query(Digest.parse(f"sha1:{label(number)}"))
                            answer = find(view, engine.identity.settings, query)
                    except IndexUnavailable:
                        self.outages += 1
                        continue
                    self.answers += 1
                    if answer is None:
                        self.wrong.append(f"{number} is new")
        except Exception as error:
            self.wrong.append(repr(error))

    def finish(self) -> None:
        self._end.set()
        self._thread.join(DEADLINE)


def test_the_demonstration_on_a_cluster_passes(nodes: Ring, tmp_path: Path) -> None:
    assert show(nullcontext(nodes), tmp_path) == []
    assert not [node.address for node in nodes.nodes if not node.runs()]


def test_a_node_is_killed_while_others_look_up_and_write(nodes: Ring, tmp_path: Path) -> None:
    address = nodes.address("ring", timeout=12)
    index, other = tmp_path / "index", tmp_path / "other"
    done(command("index", cdx(tmp_path, 0, FIRST), index, "--engine", address))
    other.mkdir()
    refer_to(other, Address.parse(address))
    asking = [Asking(index), Asking(other)]
    adding = command("index", "--add", cdx(tmp_path, FIRST, FIRST + MORE), index)
    try:
        more = (Digest.parse(f"sha1:{label(n)}") for n in range(FIRST, FIRST + MORE))
        sought = min(more)  # which is written first
        with closing(open_index(other)) as engine, engine.view() as view:

            def written() -> bool:
                view._partitions.clear()  # type: ignore[attr-defined]
                return bool(view.any(sought, 1))

            assert until(written)
        nodes.nodes[2].kill()
        assert adding.poll() is None, "it was killed too late to be of any meaning"
        killed = [one.answers for one in asking]
        done(adding)
        assert until(
            lambda: all(
                one.answers > before + 50 for one, before in zip(asking, killed, strict=True)
            )
        )
    finally:
        adding.kill()
        adding.communicate()
        for one in asking:
            one.finish()
    assert [one.wrong for one in asking] == [[], []]
    assert sum(one.outages for one in asking) < 50
    found = json.loads(patient("index", "--check", "--json", index))
    assert found["ok"] and found["captures"] == FIRST + MORE

    # Two of three do not answer: nobody can tell.
    live = LiveIndex(index)
    live.refresh()
    web = create_app(Config(index), live).test_client()
    lookups = json.dumps({"lookups": [asked(n) for n in (0, FIRST, FIRST + MORE)]})
    assert web.post("/lookup", data=lookups, headers=JSON).status_code == 200
    nodes.nodes[1].kill()
    for number in (0, FIRST + MORE):
        assert web.get("/lookup", query_string=asked(number)).status_code == 503
    assert web.post("/lookup", data=lookups, headers=JSON).status_code == 503
    adding = command("index", "--add", cdx(tmp_path, 0, 10, "more"), index)
    assert adding.wait(DEADLINE) == IndexUnavailable.exit_status
    adding.communicate()

    # One comes back, which was away while most was written.
    nodes.nodes[2].start(alone=False)
    answer = web.post("/lookup", data=lookups, headers=JSON)
    end = time.monotonic() + DEADLINE
    while answer.status_code == 503 and time.monotonic() < end:
        answer = web.post("/lookup", data=lookups, headers=JSON)
    found = [one["duplicate"] for one in answer.get_json()["answers"]]
    assert found == [True, True, False]
    patient("index", "--add", cdx(tmp_path, 0, 10, "more"), index)
    found = json.loads(patient("index", "--check", "--json", index))
    assert found["ok"] and found["captures"] == FIRST + MORE


def test_a_first_load_that_fails_for_lack_of_nodes_is_run_again(
    nodes: Ring, tmp_path: Path
) -> None:
    address = nodes.address("lacking", timeout=12)
    index = tmp_path / "index"
    words = ["index", cdx(tmp_path, 0, FIRST + MORE), index, "--engine", address]
    loading = command(*words)
    try:
        where = Address.parse(address)
        names = Statement(f"SELECT number FROM {where.keyspace}.number")
        written = Statement(f"SELECT dk FROM {where.keyspace}.capture LIMIT 1")
        with closing(connect(where)) as session:

            def begun() -> bool:
                """Whether the first captures are there, and with them all names."""
                with suppress(IndexUnavailable):  # the tables are not there yet
                    return bool(session.execute(written) and session.execute(names))
                return False

            assert until(begun)
        for node in nodes.nodes[1:]:
            node.kill()
        assert loading.poll() is None, "they were killed too late to be of any meaning"
        _, err = loading.communicate(timeout=DEADLINE)
        assert loading.returncode == IndexUnavailable.exit_status, err
    finally:
        loading.kill()
        loading.communicate()
    nodes.nodes[1].start(alone=False)
    lookup = command("lookup", index, "--digest", f"sha1:{label(1)}")
    assert lookup.wait(DEADLINE) == IndexUnavailable.exit_status
    lookup.communicate()
    again = command(*words)  # what was written cannot be removed as long as a node is missing
    _, err = again.communicate(timeout=DEADLINE)
    assert again.returncode == IndexUnavailable.exit_status
    assert "when all nodes are there" in err
    nodes.mend()
    nodes.await_all()
    patient(*words)
    found = json.loads(patient("index", "--check", "--json", index))
    assert found["ok"] and found["captures"] == FIRST + MORE
    with closing(open_index(index)) as engine, engine.view() as view:
        for number in range(0, FIRST + MORE, 100):
            query = Query(Digest.parse(f"sha1:{label(number)}"))
            assert find(view, engine.identity.settings, query) is not None


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


def test_a_purge_while_a_node_is_down_is_seen_once_that_is_back(
    nodes: Ring, tmp_path: Path
) -> None:
    index, file = begin(tmp_path, nodes.address()), "/w/a.warc"
    first = [capture(number, b"http://example.com/a", container=file) for number in range(9)]
    copies = [one._replace(container="/w/b.warc", date=b"2026-12-01T00:00:00Z") for one in first]
    load(index, first)
    load(index, copies[::2], [revisit_of(first[3], b"http://example.com/b", 9)])
    nodes.nodes[2].kill()
    _, _, err = answered("purge", index, "--container", file)
    assert "1 revisit of other captures depends on" in err
    patient("purge", index, "--container", file, "--force")
    nodes.mend()
    nodes.await_all()
    nodes.nodes[1].kill()  # the one that has missed the purge is needed for a quorum now
    assert {one.container for _, one in retry(partial(held, index))} == {"/w/b.warc"}


class Losing(Here):
    """A cluster of Spark that loses a node of the index before planned writes are executed."""

    def __init__(self, lost: Node) -> None:
        super().__init__(2)
        self._lost = lost

    def kept_packed(self, work: Any, tasks: Any) -> Iterator[Any]:
        for kept in super().kept_packed(work, tasks):
            self._lost.kill()
            yield kept


def test_a_node_is_killed_while_executors_load(
    nodes: Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they do is done here. The load ends, or says in time that it is to be repeated."""
    run_spark_here(monkeypatch)
    monkeypatch.setattr(metadata, "sleep", lambda seconds: None)  # no executor outlives its load
    one, many = Bench(tmp_path / "one", "lmdb"), Bench(tmp_path / "many", nodes.address())
    captures = [capture(number) for number in range(3 * FIRST)]
    first, more = captures[: 2 * FIRST], captures[FIRST:]
    assert many.load(first, cluster=Here(2)) == one.load(first)
    one.load(more)

    def loaded() -> bool:
        with suppress(IndexUnavailable):
            many.load(more, cluster=Losing(nodes.nodes[2]))
            return True
        return False

    assert until(loaded)
    nodes.mend()
    nodes.await_all()
    nodes.nodes[1].kill()  # the one that has missed writes is needed for a quorum now
    assert retry(many.held) == one.held()
    assert retry(many.counts) == one.counts()


def test_a_crawl_through_two_servers_outlives_a_node(
    nodes: Ring, make_index: MakeIndex, tmp_path: Path
) -> None:
    address = nodes.address(timeout=12)
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
            nodes.nodes[1].kill()
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
        said = patient("report", other, "--crawl", "a", "--json")
        assert json.loads(said)["captures"] >= len(crawlers.acknowledged)
        send(one.port, "POST", "/crawls", {"name": "b", "seen_by": "all"})
        send(one.port, "POST", "/captures?crawl=b", report(7001))
        assert known(two, 7001)
        send(one.port, "POST", "/crawls/b/cancel", {"force": True})
        assert not known(two, 7001)
        nodes.nodes[2].kill()  # one is left of three: nothing can be known for sure
        for server in servers:
            for method, path, content in (
                ("GET", f"/lookup?digest={sha1(90)}&url={OWN}", None),
                ("GET", f"/lookup?digest={sha1(90)}&url={OWN}&crawl=a", None),
                ("POST", "/captures?crawl=a", report(1)),
                ("POST", "/claims", asked),
                ("POST", "/crawls", {"name": "c"}),
            ):
                assert status(server, method, path, content)[0] == 503


def children(server: Running, words: str) -> list[int]:
    """The processes that a server has started whose command has some words."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == server.process.pid and words in (place / "cmdline").read_text():
                found.append(int(place.name))
    return found


class Model:
    """What was acknowledged, and when; a server with a filter must know it soon after.

    Threads report through one server and ask another, which has a filter.
    """

    def __init__(self, writes: Running, filters: Running, known: int) -> None:
        """`known`: a number that was acknowledged just now."""
        self.wrong: list[Any] = []
        self.found = self.new = self.outages = 0
        self._writes, self._filters = writes, filters
        self._acknowledged = [(time.monotonic(), known)]
        self._end = threading.Event()
        works = [partial(self._report, first) for first in (1_000_000, 2_000_000)]
        works += [partial(self._ask, step) for step in (1, 17)]
        self._threads = [threading.Thread(target=work) for work in works]
        for thread in self._threads:
            thread.start()

    def _report(self, number: int) -> None:
        while not self._end.is_set():
            with suppress(OSError, HTTPException):
                code, _ = status(self._writes, "POST", "/captures?crawl=a", report(number))
                if code == 200:
                    self._acknowledged.append((time.monotonic(), number))
                    number += 1

    def _ask(self, step: int) -> None:
        at, new = 0, 3_000_000 * step
        while not self._end.is_set():
            soon = at + step < len(self._acknowledged)
            when, number = self._acknowledged[at if soon else -1]
            if soon and time.monotonic() - when > FRESH:
                at += step
                self._answer(number, True)
            new += 1
            self._answer(new, False)

    def _answer(self, number: int, known: bool) -> None:
        with suppress(OSError, HTTPException):
            code, answer = status(self._filters, "GET", f"/lookup?digest={sha1(number)}")
            if code == 503:
                self.outages += 1
            elif answer.get("duplicate") is not known:
                self.wrong.append((number, known, code, answer))
            elif known:
                self.found += 1
            else:
                self.new += 1

    def goes_on(self, *, filtered: bool) -> bool:
        """Whether reports and both kinds of answers come, and misses by the filter."""
        before = self.found, self.new, len(self._acknowledged), self.answered()

        def more() -> bool:
            now = self.found, self.new, len(self._acknowledged), self.answered()
            gone = [after - then for after, then in zip(now, before, strict=True)]
            return min(gone[:3]) > 30 and (gone[3] > 30 or not filtered)

        return until(more)

    def answered(self) -> int:
        _, told = status(self._filters, "GET", "/stats")
        return int(told["filter"]["answered"]) if "filter" in told else 0

    def stop(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(DEADLINE)


def test_a_filter_never_lacks_what_was_acknowledged_a_while_ago(
    nodes: Ring, make_index: MakeIndex, tmp_path: Path
) -> None:
    """While nodes, a load and the process that makes the filter are killed."""
    address = nodes.address(timeout=12)
    index = make_index([capture(90)], engine=address)
    others = [tmp_path / "filters", tmp_path / "loads"]
    for other in others:
        other.mkdir()
        refer_to(other, Address.parse(address))
    with (
        serving(index, "--workers", "2") as writes,
        serving(others[0], "--workers", "2", "--filter-memory", "1000000") as filters,
    ):
        send(writes.port, "POST", "/crawls", {"name": "a", "seen_by": "all"})
        send(writes.port, "POST", "/captures?crawl=a", report(999_999))
        model = Model(writes, filters, 999_999)
        try:
            assert model.goes_on(filtered=True)
            nodes.nodes[1].kill()
            assert model.goes_on(filtered=True)
            adding = command("index", "--add", cdx(tmp_path, 0, MORE), others[1])
            with closing(open_index(index)) as engine, engine.view() as view:
                first = min(Digest.parse(f"sha1:{label(number)}") for number in range(MORE))

                def written() -> bool:
                    view._partitions.clear()  # type: ignore[attr-defined]
                    return bool(view.any(first, 1))

                assert until(written)
            assert adding.poll() is None, "it is killed too late to be of any meaning"
            adding.kill()
            adding.communicate()
            nodes.mend()
            assert model.goes_on(filtered=True)
            patient("index", "--add", cdx(tmp_path, 0, MORE), others[1])
            loaded = time.monotonic()
            nodes.nodes[2].kill()
            assert until(lambda: time.monotonic() - loaded > FRESH)
            for number in range(0, MORE, 97):
                code, answer = status(filters, "GET", f"/lookup?digest=sha1:{label(number)}")
                assert code == 503 or answer["duplicate"], number
            with nodes.nodes[1].hanging():  # one is left: nothing is known, and nothing is new
                outages = model.outages
                assert until(lambda: model.outages > outages + 10)
            assert model.goes_on(filtered=True)
            [builder] = children(filters, "server.filter_builder")
            os.kill(builder, signal.SIGKILL)
            assert model.goes_on(filtered=True)
            nodes.mend()
            assert model.goes_on(filtered=True)
        finally:
            model.stop()
        assert model.wrong == []
