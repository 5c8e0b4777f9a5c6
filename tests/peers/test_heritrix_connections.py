"""The connections over which the script for Heritrix sends its requests, beside odd servers."""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from threading import Thread

import pytest

from tests.integration.test_operation import certificate
from tests.peers.heritrix import DEADLINE, heritrix_home, trusted

pytestmark = pytest.mark.peer
SCRIPT = Path(__file__).resolve().parents[2] / "conf" / "heritrix" / "dedupindex.groovy"
TIMEOUT = 4000  # milliseconds until a lookup is given up
DRIVER = """
def loader = new GroovyClassLoader()
loader.parseClass(new File(args[0]))
def timeout = Integer.parseInt(args[2])
def connections = loader.loadClass('KeptConnections').newInstance(new URI(args[1]), 'secret', timeout)
def body = 'née=1'.getBytes('UTF-8')
for (request in args[3..-1]) {
    if (request == 'unasked') {
        while (connections.@free.wire.available() == 0) Thread.sleep(1)
        continue
    }
    try {
        def (method, path) = request.split(' ')
        def answer = method == 'GET' ? connections.get(path, timeout) : connections.post(path, body, 'text/x', timeout)
        println(answer == null ? 'left' : answer.status + ' ' + answer.text.replace('\\n', '|'))
    } catch (IOException e) {
        println(e.class.simpleName)
    }
}
"""  # noqa: E501
UNASKED = "unasked"
HIT = b"WARC-Refers-To-Date: 2020\nWARC-Refers-To-Target-URI: http://a.example/\xc3\xa9\n"
TEXT = HIT.decode().replace("\n", "|")


def whole(head: bytes, body: bytes = HIT) -> bytes:
    return b"%b\r\ncontent-length: %d\r\n\r\n%b" % (head, len(body), body)


OK = whole(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain")
MISS = b"HTTP/1.1 204 No Content\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
LONG = whole(b"HTTP/1.1 200 OK", b"x" * 20_000)
FULL = whole(b"HTTP/1.1 200 OK", b"x" * (16_384 - 42))  # fills the buffer, so that no more is read
assert len(FULL) == 16_384
ANSWERS: dict[str, tuple[list[bytes], str]] = {  # in pieces; the connection is closed after b""
    "hit": ([OK], f"200 {TEXT}"),
    "miss": ([MISS], "204 "),
    "capitals": ([OK.replace(b"content-length", b"CONTENT-LENGTH")], f"200 {TEXT}"),
    "byte-by-byte": ([OK[at : at + 1] for at in range(len(OK))], f"200 {TEXT}"),
    "in-two": ([OK[:-30], OK[-30:]], f"200 {TEXT}"),
    "closing": ([whole(b"HTTP/1.1 200 OK\r\nConnection: close"), b""], f"200 {TEXT}"),
    "refused": ([whole(b"HTTP/1.1 429 Too Many Requests", b"slower")], "429 slower"),
    "chunked": ([CHUNKED], "left"),
    "endless": ([b"HTTP/1.1 200 OK\r\n\r\nabc", b""], "left"),
    "two-answers": ([MISS + OK], "left"),
    "interim": ([b"HTTP/1.1 100 Continue\r\n\r\n"], "left"),
    "old": ([OK.replace(b"1.1", b"1.0", 1), b""], "left"),
    "packed": ([whole(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip")], "left"),
    "wrong-length": ([b"HTTP/1.1 200 OK\r\nContent-Length: 9 9\r\n\r\n"], "left"),
    "too-long": ([LONG], "left"),
    "endless-head": ([b"HTTP/1.1 200 OK\r\nX: " + b"x" * 20_000], "left"),
    "long-status": ([MISS.replace(b"204", b"2040")], "left"),
    "one-too-many": ([FULL + MISS], f"200 {'x' * (16_384 - 42)}"),
    "no-http": ([b"SSH-2.0-OpenSSH_9.2\r\n\r\n"], "left"),
    "silent": ([], "SocketTimeoutException"),
    "cut-head": ([OK[:20], b""], "left"),
    "cut-body": ([OK[:-1], b""], "left"),
}


class Odd:
    """Answers the path ``/NAME`` as `ANSWERS` says, and notes what came on which connection."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.requests: list[tuple[int, bytes]] = []
        self.closed_once = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}/base"
        Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        number = 0
        with suppress(OSError):
            while True:
                connection = self._listener.accept()[0]
                number += 1
                Thread(target=self._answer, args=(connection, number), daemon=True).start()

    def _answer(self, connection: socket.socket, number: int) -> None:
        with suppress(OSError), connection:
            if self._tls:
                connection = self._tls.wrap_socket(connection, server_side=True)
            self._converse(connection, number)

    def _converse(self, connection: socket.socket, number: int) -> None:
        with connection, connection.makefile("rb") as stream:
            while head := b"".join(takewhile(lambda line: line not in (b"", b"\r\n"), stream)):
                length = re.search(rb"\r\nContent-Length: (\d+)", head)
                body = stream.read(int(length[1])) if length else b""
                self.requests.append((number, head + body))  # without the empty line
                name = head.split()[1].decode().removeprefix("/base/")
                if name == "closed-when-kept":
                    if not self.closed_once:
                        self.closed_once = True
                        return
                    name = "hit"
                if name == "dripping":  # each byte comes well before a read is given up
                    for at in range(2 * TIMEOUT // 500):
                        connection.sendall(OK[at : at + 1])
                        time.sleep(0.5)
                    return
                for piece in ANSWERS[name][0]:
                    if not piece:
                        return
                    connection.sendall(piece)

    def close(self) -> None:
        self._listener.close()


Get = Callable[..., tuple[list[str], list[tuple[int, bytes]]]]


@pytest.fixture(params=["http", "https"])
def get(request: pytest.FixtureRequest, tmp_path: Path) -> Get:
    """What the script gets for paths, one after the other, and what the server got."""
    tls, trust = None, list[str]()
    if request.param == "https":
        cert, key = certificate(tmp_path, "odd")
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(cert, key)
        trust = [trusted(cert)]
    return getter(tmp_path, tls, trust)


def getter(tmp_path: Path, tls: ssl.SSLContext | None, options: list[str]) -> Get:
    home, driver = heritrix_home(), tmp_path / "driver.groovy"
    driver.write_text(DRIVER)

    def get(*names: str, method: str = "GET") -> tuple[list[str], list[tuple[int, bytes]]]:
        """Ask for the names; `UNASKED` waits until more has come than was asked for."""
        odd = Odd(tls)
        try:
            words = [
                "java",
                *options,
                "-cp",
                f"{home}/lib/*",
                "groovy.ui.GroovyMain",
                driver,
                SCRIPT,
                odd.url,
            ]
            requests = [name if name == UNASKED else f"{method} /{name}" for name in names]
            done = subprocess.run(
                [*words, str(TIMEOUT), *requests], stdout=subprocess.PIPE, text=True, check=True
            )
        finally:
            odd.close()
        return done.stdout.splitlines(), odd.requests

    return get


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_what_is_not_a_simple_answer_is_left_to_the_general_client(get: Get, method: str) -> None:
    """Each answer is followed by a hit: nothing of one is left over for the next.

    What was not asked for is waited for: no client can tell it from the next answer if it is late.
    """
    names = [name for odd in ANSWERS for name in (odd, "hit")]
    late = names.index("one-too-many") + 1
    answers, requests = get(*names[:late], UNASKED, *names[late:], method=method)
    assert dict(zip(names[::2], answers[::2], strict=True)) == {
        name: expected for name, (_, expected) in ANSWERS.items()
    }
    assert set(answers[1::2]) == {f"200 {TEXT}"}
    assert len(requests) == len(names)  # none is asked for again here


def test_a_cut_answer_on_a_new_connection_is_a_failure(get: Get) -> None:
    assert get("cut-head", "cut-body", "hit")[0] == ["EOFException", "EOFException", f"200 {TEXT}"]


def test_a_lookup_ends_in_time_though_bytes_of_its_answer_come(get: Get) -> None:
    answers, requests = get("dripping", "hit", "dripping", "hit")
    assert answers == ["SocketTimeoutException", f"200 {TEXT}"] * 2
    assert len(requests) == 4  # none is sent again


def test_a_connection_is_kept_until_the_server_closes_it(get: Get) -> None:
    answers, requests = get("hit", "miss", "closed-when-kept", "hit")
    assert answers == [f"200 {TEXT}", "204 ", f"200 {TEXT}", f"200 {TEXT}"]
    assert [number for number, _ in requests] == [1, 1, 1, 2, 2]
    head = requests[0][1]
    assert head.startswith(b"GET /base/hit HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nAuthorization: Bearer secret\r\n" in head
    assert b"\r\nAccept: text/plain\r\n" in head


def test_what_is_posted_arrives_once_more_if_a_kept_connection_ends(get: Get) -> None:
    answers, requests = get("hit", "closed-when-kept", "hit", method="POST")
    assert answers == [f"200 {TEXT}"] * 3
    assert [number for number, _ in requests] == [1, 1, 2, 2]
    for _, request in requests:
        assert request.startswith(b"POST /base/")
        assert request.endswith(
            b"\r\nContent-Type: text/x\r\nContent-Length: 6\r\n" + "née=1".encode()
        )


def test_what_comes_unasked_is_no_answer(get: Get) -> None:
    """The second of two answers to one request is read neither now nor for the next."""
    answers, requests = get("one-too-many", UNASKED, "miss", "hit")
    assert answers[1:] == ["204 ", f"200 {TEXT}"]
    assert [number for number, _ in requests] == [1, 2, 2]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
def test_a_certificate_that_is_not_trusted_or_of_another_host_is_refused(
    tmp_path: Path, host: str
) -> None:
    cert, key = certificate(tmp_path, "odd", host=host)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    trust = [trusted(cert)] if host == "127.0.0.2" else []
    answers, requests = getter(tmp_path, tls, trust)("hit")
    assert answers == ["SSLHandshakeException"] and not requests


BUSY = """
def loader = new GroovyClassLoader()
loader.parseClass(new File(args[0]))
loader.parseClass('''
    class Busy extends KeptConnections {
        DedupClient client
        int reports = 0
        Busy(DedupClient client) {
            super(new URI('http://127.0.0.1:9'), '', 1)
            this.client = client
        }
        Answer post(String path, byte[] body, String kind, int timeout) {
            reports++
            add()
            new Answer(200, '{"bad": 0}', false)
        }
        void add() {
            client.report('sha1:' + client.lookups.incrementAndGet(), new byte[20], new Row())
        }
    }
''')
def client = loader.loadClass('DedupClient').newInstance()
def connections = loader.loadClass('Busy').newInstance(client)
client.@crawl = 'c'
client.@begun = true
client.@connections = connections
client.@reporter = java.util.concurrent.Executors.newScheduledThreadPool(1)
3.times { connections.add() }
client.flush()
println([connections.reports, client.reported, client.@count, client.@waitingDigests])
client.flush()
println([connections.reports, client.reported, client.@count, client.@waitingDigests])
client.@reporter.shutdown()
"""


def test_a_flush_reports_what_waits_and_not_what_comes_meanwhile(tmp_path: Path) -> None:
    """Each report here adds a capture before it is answered: a flush that went on would not end."""
    driver = tmp_path / "driver.groovy"
    driver.write_text(BUSY)
    words = ["java", "-cp", f"{heritrix_home()}/lib/*", "groovy.ui.GroovyMain", driver, SCRIPT]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, timeout=DEADLINE)
    assert done.stdout.splitlines() == ["[1, 3, 1, [sha1:4]]", "[2, 4, 1, [sha1:5]]"]


AWAY = """
def loader = new GroovyClassLoader()
loader.parseClass(new File(args[0]))
loader.parseClass('''
    class Away extends KeptConnections {
        int failing = 6, sent = 0
        Away() { super(new URI('http://127.0.0.1:9'), '', 1) }
        Answer post(String path, byte[] body, String kind, int timeout) {
            sent++
            if (failing-- > 0) return new Answer(502, '<html>bad gateway', false)
            new Answer(200, '{"bad": 0}', false)
        }
    }
''')
def client = loader.loadClass('DedupClient').newInstance()
def connections = loader.loadClass('Away').newInstance()
client.@crawl = 'c'
client.@begun = true
client.@quiet = 30_000L
client.@connections = connections
client.@reporter = java.util.concurrent.Executors.newScheduledThreadPool(1)
3.times { client.report('sha1:' + it, new byte[20], loader.loadClass('Row').newInstance()) }
6.times { client.flush() }
println([connections.sent, client.reported, client.@count])
2.times { client.flushNow() }
println([connections.sent, client.reported, client.@count])
client.@reporter.shutdown()
"""


def test_a_flush_at_a_checkpoint_or_the_end_does_not_wait_for_the_next_probe(
    tmp_path: Path,
) -> None:
    """After five failures nothing is sent for a second; a sixth then is the one of `flushNow`."""
    driver = tmp_path / "driver.groovy"
    driver.write_text(AWAY)
    words = ["java", "-cp", f"{heritrix_home()}/lib/*", "groovy.ui.GroovyMain", driver, SCRIPT]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, timeout=DEADLINE)
    assert done.stdout.splitlines() == ["[5, 0, 3]", "[7, 3, 0]"]
