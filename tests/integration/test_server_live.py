"""The server as a process: ready line, workers, stopping, reloading, hostile clients."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from select import select
from typing import IO, Any, NamedTuple
from urllib.parse import quote

import pytest
import schemathesis
from hypothesis import settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from dedupindex.index import open_index, tokens
from dedupindex.index.identity import Settings
from dedupindex.index.tokens import Role
from server.api.cdx_server_api import PATHS
from server.app import create_app
from server.config import Config
from server.live_index import LiveIndex
from tests.conftest import MakeIndex
from tests.support.captures import capture, sha1
from tests.support.commands import typed
from tests.support.paths import ROOT

PAGE = b"http://example.com/page"
JSON_BODY = {"Content-Type": "application/json"}
DEADLINE = 60.0  # seconds after which a test has failed
COMMAND = (sys.executable, "-m", "dedupindex", "serve")
SHIPPED = (ROOT / "bin" / "serve",)


class Running(NamedTuple):
    """A server process and where it answers."""

    process: subprocess.Popen[str]
    port: int
    log: Path
    ready: dict[str, Any]

    def get(self, path: str, body: str | None = None, **headers: str) -> tuple[int, bytes]:
        """The status and content of the answer to GET, or with a `body` to POST."""
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE)) as connection:
            connection.request("GET" if body is None else "POST", path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()

    def raw(self, data: bytes) -> bytes:
        """What comes back to bytes that are sent as they are, until the server closes."""
        stream = socket.create_connection(("127.0.0.1", self.port), DEADLINE)
        with stream, suppress(OSError):  # it may not wait for the end of nonsense
            stream.sendall(data)
            stream.shutdown(socket.SHUT_WR)
            with stream.makefile("rb") as answer:
                return answer.read()
        return b""


def question(number: int) -> str:
    return f"/lookup?digest={sha1(number)}&url={quote(PAGE, safe='')}"


@contextmanager
def serving(
    index: Path, *options: str, command: Sequence[str | Path] = COMMAND
) -> Iterator[Running]:
    """A server of `index` on a free port, ready; it is stopped in the end."""
    log = index.with_name(index.name + ".log")
    port = () if "--port" in options else ("--port", "0")
    words = [*map(str, command), str(index), *port, "--json"]
    with (
        open(log, "w") as stream,
        subprocess.Popen(
            [*words, *options], stdout=subprocess.PIPE, stderr=stream, text=True
        ) as process,
    ):
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        ready = json.loads(line)
        try:
            yield Running(process, int(ready["url"].rpartition(":")[2]), log, ready)
        finally:
            process.terminate()
            process.wait(DEADLINE)


def until(condition: Callable[[], bool], seconds: float = DEADLINE) -> bool:
    """Whether a condition comes true in time; asks over and over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)  # what is waited for needs the processor, too
    return False


def await_line(answer: IO[bytes], text: bytes) -> None:
    """Read lines until one has a text in it; fails when the answer ends before."""
    assert any(text in line for line in answer), f"the answer ended without {text!r}"


class Clients:
    """Threads that ask without pause; what went wrong is in `failures`."""

    def __init__(self, port: int, count: int = 6) -> None:
        self.failures: list[str] = []
        self.answers = 0
        self.last_statuses: set[int] = set()
        self._port, self._end = port, threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        with closing(HTTPConnection("127.0.0.1", self._port, timeout=DEADLINE)) as connection:
            self._ask_on(connection)

    def _ask_on(self, connection: HTTPConnection) -> None:
        while not self._end.is_set():
            try:
                if connection.sock is not None and select([connection.sock], [], [], 0)[0]:
                    connection.close()  # they have closed it before anything was asked
                if connection.sock is None:
                    connection.connect()
            except ConnectionError:  # nobody listens, or not yet: nothing was asked
                self._end.wait(0.01)
                continue
            try:
                connection.request("GET", question(1))
                response = connection.getresponse()
                body = json.loads(response.read())
            except Exception as error:
                self.failures.append(repr(error))
                return
            self.last_statuses.add(response.status)
            self.answers += 1
            if response.status != 503 and not body.get("duplicate"):
                self.failures.append(f"{response.status} {body}")

    def finish(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(DEADLINE)


def test_a_ready_line_and_a_clean_end(make_index: MakeIndex) -> None:
    index = make_index([capture(1, PAGE)])
    with serving(index, "--workers", "2") as server:
        assert server.ready["captures"] == 1
        assert json.loads(server.get(question(1))[1])["match"] == "exact_url"
        assert server.get("/readyz")[0] == 200
        said = f"serving {index} (1 original) at http://127.0.0.1:{server.port} with 2 workers\n"
        assert until(lambda: server.log.read_text() == said)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(DEADLINE) == 0
        assert server.log.read_text() == said + "stopped\n"


def test_a_server_that_cannot_start_prints_one_line(make_index: MakeIndex, tmp_path: Path) -> None:
    index = make_index([capture(1)])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for place, option, status in ((index, port, 3), (tmp_path / "none", "0", 6)):
            words = [sys.executable, "-m", "dedupindex", "serve", str(place), "--port", option]
            ended = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE)
            assert (ended.returncode, ended.stdout) == (status, "")
            assert ended.stderr.count("\n") == 1


def test_a_second_server_does_not_share_the_port(make_index: MakeIndex) -> None:
    index = make_index([capture(1)])
    with serving(index) as server:
        words = [sys.executable, "-m", "dedupindex", "serve", str(index)]
        ended = subprocess.run(
            [*words, "--port", str(server.port)], capture_output=True, text=True, timeout=DEADLINE
        )
        assert ended.returncode == 3
        assert f"port {server.port} is in use, perhaps by a server of this index" in ended.stderr


def test_counts_of_all_workers_add_up_at_once(make_index: MakeIndex) -> None:
    with serving(make_index([capture(1, PAGE)]), "--workers", "3") as server:
        for asked in range(1, 61):
            server.get(question(1))
            if asked % 20 == 0:
                text = server.get("/metrics")[1].decode()
                counted = re.search(
                    r'lookups_total{match="exact_url",strategy="DIGEST_ANY"} (\S+)', text
                )
                assert counted is not None
                assert float(counted[1]) == asked


def test_stopping_under_load_drops_no_request(make_index: MakeIndex) -> None:
    with serving(make_index([capture(1, PAGE)]), "--workers", "2") as server:
        slow = socket.create_connection(("127.0.0.1", server.port), DEADLINE)
        body = json.dumps({"lookups": [{"digest": str(sha1(1))}]}).encode()
        head = b"POST /lookup HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        slow.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body[:10])
        clients = Clients(server.port)
        assert until(lambda: clients.answers > 500)
        server.process.terminate()
        slow.sendall(body[10:])  # under way when the signal came, and finished after it
        with slow, slow.makefile("rb") as answer:
            assert b'"duplicate":true' in answer.read()
        assert server.process.wait(DEADLINE) == 0
        clients.finish()
        assert clients.failures == []


def swap(index: Path, fresh: Path) -> None:
    """Put a new index in the place of another, by two renames."""
    index.rename(index.with_name(index.name + ".old"))
    fresh.rename(index)


def test_reloading_under_load_fails_no_request(make_index: MakeIndex) -> None:
    index = make_index([capture(1, PAGE)])

    def holds(number: int) -> bool:
        return all(json.loads(server.get(question(number))[1])["duplicate"] for _ in range(20))

    with serving(index, "--workers", "2") as server:
        clients = Clients(server.port)
        assert until(lambda: clients.answers > 100)
        swap(index, make_index([capture(1, PAGE), capture(2, PAGE)]))
        assert until(lambda: holds(2)), "a swapped directory was not noticed"
        with closing(open_index(index, write=True)) as engine:
            engine.compact()
        assert until(lambda: json.loads(server.get("/stats")[1])["generation"] == 2)
        before = clients.answers
        assert until(lambda: clients.answers > before + 500)
        clients.finish()
        assert (clients.failures, clients.last_statuses) == ([], {200})


def test_an_index_that_goes_away_and_comes_back(make_index: MakeIndex) -> None:
    index = make_index([capture(1, PAGE)])
    with serving(index, "--workers", "1") as server:
        away = index.rename(index.with_name("away"))
        assert until(lambda: server.get(question(1))[0] == 503)
        assert server.get("/readyz")[0] == 503
        assert server.get("/healthz")[0] == 200
        shutil.copytree(away, index)
        assert until(lambda: server.get(question(1))[0] == 200)
        (index / "index.json").write_text('{"format": 99}')
        assert until(lambda: b"format_from_future" in server.get(question(1))[1])


def test_a_write_while_the_index_is_away_asks_for_no_token(make_index: MakeIndex) -> None:
    """The server last read the tokens when there was one, which was removed since."""
    index = make_index([capture(1, PAGE)])
    tokens.add(index, "heritrix", Role.WRITE)
    with serving(index, "--workers", "1") as server:
        assert server.get("/crawls", '{"name": "a"}')[0] == 401
        tokens.remove(index, "heritrix")
        index.rename(index.with_name("away"))
        assert until(lambda: server.get(question(1))[0] == 503)
        status, answer = server.get("/crawls", '{"name": "a"}')
        assert status == 503 and b"index_unavailable" in answer


def test_a_damaged_entry_is_not_a_miss(make_index: MakeIndex) -> None:
    index = make_index([capture(1, PAGE)])
    (data,) = index.glob("data-*.mdb")
    content = data.read_bytes()
    key = sha1(1).raw
    at = content.index(key)
    broken = bytearray(content)
    broken[at + len(key) + 9 + 21] = 250  # a media type that there is none of
    data.write_bytes(broken)
    live = LiveIndex(index)
    live.refresh()
    web = create_app(Config(index), live).test_client()
    response = web.get(question(1))
    assert response.status_code == 503
    assert response.get_json()["error"]["code"] == "damaged"
    batch = web.post("/lookup", json={"lookups": [{"digest": str(sha1(1)), "url": PAGE.decode()}]})
    assert batch.get_json()["answers"][0]["error"]["code"] == "damaged"


HOSTILE = [
    b"GET /lookup?digest=%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /lookup?url=%0d%0aX:1&digest=%0d%0a HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /lookup?digest=\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /lookup?url=" + b"u" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /\r\nX HTTP/9\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(64),
    b"POST /lookup HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n"
    b"Content-Type: application/json\r\n\r\n{",
    b"POST /lookup HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
    b"Content-Type: application/json\r\n\r\nzz\r\n",
    b"POST /lookup HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
    b"Content-Length: 20\r\n\r\n\xff\xfe\x00\n{}\n",
]


def test_malformed_requests_do_not_affect_others(make_index: MakeIndex) -> None:
    with serving(make_index([capture(1, PAGE)]), "--workers", "1", "--access-log") as server:
        for data in HOSTILE:
            server.raw(data)
            assert server.get(question(1))[0] == 200, data[:60]
        server.process.terminate()
        assert server.process.wait(DEADLINE) == 0
        *lines, last = server.log.read_text().splitlines()
        assert last == "stopped"
        assert all(re.match(r"serving |\d{4}-\d\d-\d\dT\S+Z INFO ", line) for line in lines), lines


def test_slow_bodies_and_idle_connections_delay_no_others(make_index: MakeIndex) -> None:
    head = b"POST /lookup HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with serving(make_index([capture(1, PAGE)]), "--workers", "1") as server:
        where = ("127.0.0.1", server.port)
        slow = [socket.create_connection(where, DEADLINE) for _ in range(300)]
        for stream in slow[:140]:
            stream.sendall(head + b"Content-Length: 50\r\n\r\n{")
        for _ in range(20):
            assert server.get(question(1))[0] == 200
        for stream in slow:
            stream.close()


def test_json_lines_are_answered_while_they_come(make_index: MakeIndex) -> None:
    line = json.dumps({"digest": str(sha1(1)), "url": PAGE.decode()}).encode() + b"\n"
    lines = line * ((1 << 17) // len(line))
    with (
        serving(make_index([capture(1, PAGE)]), "--workers", "1") as server,
        socket.create_connection(("127.0.0.1", server.port), DEADLINE) as stream,
    ):
        stream.sendall(
            b"POST /lookup HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
            b"Content-Type: application/x-ndjson\r\n\r\n" % (len(lines) * 3)
        )
        with stream.makefile("rb") as answer:
            for _ in range(3):
                stream.sendall(lines)
                for _ in range(100):  # though the body has not ended
                    await_line(answer, b'"duplicate":true')


# What a request may be about when it is about something that there is.
KNOWN = {"crawl": "a crawl", "name": "a crawl", "digest": str(sha1(1)), "url": PAGE.decode()}
KNOWN |= {"date": "2026-11-20T09:14:17Z", "id": str(sha1(1)), "uri": PAGE.decode()}
REFUSED_ALWAYS = {"no_record"}


@pytest.mark.filterwarnings("default")
def test_the_server_keeps_to_its_own_document(make_index: MakeIndex) -> None:
    """Every route with random requests that its document allows, and about existing data.

    Half of the requests name a crawl that is open, a digest and a URL that are known, so that more
    is answered than refusals.
    """
    kept = [capture(1, PAGE)]
    kept += [capture(2, day=2, crawl="one"), capture(3, day=3, crawl="two")]
    index = make_index(kept, Settings(by_url=True, etag=True))
    typed("index", "--digest-filter", index)
    live = LiveIndex(index)
    live.refresh()
    app = create_app(Config(index), live)
    web = app.test_client()
    part = web.get("/digest-filter").get_json()["parts"][0]["id"]
    schema = schemathesis.openapi.from_wsgi("/openapi.json", app)
    succeeded: dict[str, int] = {}
    numbers = iter(range(10**6))
    for found in schema.get_all_operations():
        operation = found.ok()
        operation_id = operation.definition.raw["operationId"]
        succeeded[operation_id] = 0
        process_each = operation_id in ("impact", "delete_captures", "compare")
        examples = 10 if process_each else 50

        @settings(max_examples=examples, database=None)
        @schemathesis_given(operation)
        def check(case: schemathesis.Case) -> None:
            name = case.operation.definition.raw["operationId"]
            number = next(numbers)
            if number % 2:
                known = {
                    **KNOWN,
                    "part": part,
                    "crawl": f"crawl-{number}",
                    "name": f"crawl-{number}",
                    "with": "one",
                }
                if name == "compare":
                    known["name"] = "two"
                if name == "delete_captures":
                    known["url"] = "http://example.com/gone"  # the known one is still needed
                    if isinstance(case.body, dict) and number % 4 == 1:
                        case.body = {"digest": known["digest"], "url": known["url"]}
                if name != "begin_crawl":
                    web.post("/crawls", json={"name": known["crawl"]})
                make_known(case, known)
            # Text that is not a digest is refused, which a schema cannot say.
            response = case.call_and_validate(excluded_checks=[positive_data_acceptance])
            succeeded[name] += response.status_code < 300

        check()
    assert {name for name, times in succeeded.items() if not times} == REFUSED_ALWAYS


def make_known(case: Any, known: dict[str, str]) -> None:
    """Replace names in a request by those of existing data."""
    for place in (case.path_parameters, case.query):
        for name in place or ():
            place[name] = known.get(name, place[name])
    if case.operation.path in ("/lookup", *PATHS):  # with few of its many parameters
        for name in list(case.query or ()):
            if name not in ("digest", "url", "crawl"):
                del case.query[name]
    items = case.body if isinstance(case.body, list) else [case.body]
    for item in items:
        if isinstance(item, dict):
            item |= {name: known[name] for name in item if name in known}
            for lists in ("captures", "lookups"):
                inners = item.get(lists)
                for inner in inners if isinstance(inners, list) else ():  # some are wrong
                    if isinstance(inner, dict):
                        inner |= {name: known[name] for name in inner if name in known}


def schemathesis_given(operation: Any) -> Any:
    """Hypothesis's ``given`` for the cases of an operation."""
    from hypothesis import given

    return given(case=operation.as_strategy())


def test_a_server_that_is_stopped_has_counted_its_last_lookups(make_index: MakeIndex) -> None:
    index = make_index([capture(1)])
    with serving(index, "--workers", "2") as server:
        with closing(HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE)) as connection:
            connection.request("POST", "/crawls", b'{"name": "a"}', JSON_BODY)
            assert connection.getresponse().status == 200
        for _ in range(40):
            assert server.get(question(1) + "&crawl=a")[0] == 200
    with serving(index) as again:
        assert json.loads(again.get("/crawls/a")[1])["lookups"] == 40


def test_a_commit_is_answered_with_the_lookups_of_all_workers(make_index: MakeIndex) -> None:
    with serving(make_index([capture(1)]), "--workers", "3") as server:
        for name in ("a", "b", "c"):
            for number in range(-1, 16):
                with closing(HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE)) as web:
                    if number < 0:
                        web.request("POST", "/crawls", json.dumps({"name": name}), JSON_BODY)
                    else:
                        web.request("GET", f"{question(1)}&crawl={name}")
                    assert web.getresponse().status == 200
            with closing(HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE)) as web:
                web.request("POST", f"/crawls/{name}/commit", b"{}", JSON_BODY)
                ended = json.loads(web.getresponse().read())
            assert (ended["lookups"], ended["duplicates"]) == (16, 16)


def test_workers_are_forked_by_a_process_of_one_thread(make_index: MakeIndex) -> None:
    """A lock that another thread holds would stay locked in a forked process for ever."""
    with serving(make_index([capture(1)]), "--workers", "2") as server:
        process = Path(f"/proc/{server.process.pid}")
        if not process.exists():
            pytest.skip("threads are counted in /proc")
        children = process / f"task/{server.process.pid}/children"

        def workers() -> set[int]:
            return set(map(int, children.read_text().split()))

        def threads() -> int:
            return len(list((process / "task").iterdir()))

        before = workers()
        assert len(before) == 2 and threads() == 1
        os.kill(min(before), signal.SIGKILL)
        assert until(lambda: len(workers() - before) == 1 and len(workers()) == 2)
        assert threads() == 1
        assert until(lambda: all(server.get(question(1))[0] == 200 for _ in range(20)))
    assert "ended unexpectedly" in server.log.read_text()


def test_lookups_of_crawls_are_added_up_over_workers(make_index: MakeIndex) -> None:
    with serving(make_index([capture(1)]), "--workers", "2") as server:
        with closing(HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE)) as connection:
            connection.request("POST", "/crawls", b'{"name": "a"}', JSON_BODY)
            assert connection.getresponse().status == 200
        for _ in range(40):  # each on a connection of its own, so both workers are asked
            assert server.get(question(1) + "&crawl=a")[0] == 200

        def lookups() -> int:
            return int(json.loads(server.get("/crawls/a")[1])["lookups"])

        assert until(lambda: lookups() == 40), lookups()
        server.process.kill()
    with serving(server.log.with_suffix("")) as again:
        assert json.loads(again.get("/crawls/a")[1])["lookups"] == 40
