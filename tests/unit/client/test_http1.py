"""What the clients read of HTTP, and the connections that they keep."""

from __future__ import annotations

import asyncio
import gc
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupindex.client import AsyncClient, Client, Miss, NotAsked
from dedupindex.client.http1 import MOST, ResponseParser, TooLong, Unanswered
from dedupindex.errors import BadInput
from tests.support.captures import sha1
from tests.support.paths import ROOT

DIGEST = str(sha1(1))
NEW = b'{"duplicate": false}'
OK = b"HTTP/1.1 200 OK\r\n"
LENGTH = OK + b"Content-Length: %d\r\n\r\n" % len(NEW) + NEW
WHOLE = {
    "length": LENGTH,
    "small letters, and no reason": b"HTTP/1.1 200\r\ncontent-length:20\r\n\r\n" + NEW,
    "twice the same length": OK + b"Content-Length: 20\r\nContent-Length: 20\r\n\r\n" + NEW,
    "interim": b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + LENGTH,
    "chunks": OK + b"Transfer-Encoding: Chunked\r\n\r\n1;a=b\r\n{\r\n13 \r\n" + NEW[1:]
    + b"\r\n0\r\n\r\n",
    "trailers": OK + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n14\r\n" + NEW
    + b"\r\n000\r\nA: b\r\nC: d\r\n\r\n",
}  # fmt: skip
CLOSING = {
    "no length": OK + b"\r\n" + NEW,
    "1.0": b"HTTP/1.0 200 OK\r\nContent-Length: 20\r\n\r\n" + NEW,
    "close": LENGTH.replace(b"OK\r\n", b"OK\r\nConnection: Close\r\n"),
}
WRONG = {
    "another protocol": b"SSH-2.0-OpenSSH\r\n",
    "HTTP/2": b"HTTP/2 200\r\n\r\n",
    "a status of two digits": b"HTTP/1.1 20 OK\r\n\r\n",
    "an upgrade": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    "no colon": OK + b"Content-Length 20\r\n\r\n" + NEW,
    "a space before the colon": OK + b"Content-Length : 20\r\n\r\n" + NEW,
    "a folded line": OK + b"A: b\r\n c\r\nContent-Length: 20\r\n\r\n" + NEW,
    "two lengths": OK + b"Content-Length: 20\r\nContent-Length: 19\r\n\r\n" + NEW,
    "a signed length": OK + b"Content-Length: +20\r\n\r\n" + NEW,
    "another coding": OK + b"Transfer-Encoding: gzip\r\n\r\n" + NEW,
    "two codings": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + NEW,
    "invalid chunk size": OK + b"Transfer-Encoding: chunked\r\n\r\n\r\n",
    "a negative chunk": OK + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
    "a longer chunk": OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n",
    "no end of the head": OK + b"A: " + b"b" * 200_000,
    "no end of a size": OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"0" * 200_000,
}
LONG = {
    "length": OK + b"Content-Length: %d\r\n\r\n" % (MOST + 1),
    "chunk": OK + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFF\r\n",
}


def fed(data: bytes, at: list[int]) -> ResponseParser:
    """What is read of data that comes in pieces, until it is whole."""
    response = ResponseParser()
    for start, end in zip([0, *at], [*at, len(data)], strict=True):
        if start < end and response.feed(data[start:end]):
            assert end == len(data)
            return response
    assert response.feed(b"")
    return response


@given(st.data())
def test_responses_in_any_pieces(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(WHOLE | CLOSING)))
    text = (WHOLE | CLOSING)[kind]
    at = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    response = fed(text, at)
    assert response.reply == (200, NEW)
    assert response.reusable is (kind in WHOLE)


@pytest.mark.parametrize("status", [204, 304])
def test_responses_without_a_body(status: int) -> None:
    response = ResponseParser()
    assert response.feed(b"HTTP/1.1 %d -\r\nContent-Length: 9\r\n\r\n" % status)
    assert response.reply == (status, b"") and response.reusable


@pytest.mark.parametrize("case", WRONG)
def test_invalid_responses(case: str) -> None:
    with pytest.raises(ValueError):
        ResponseParser().feed(WRONG[case])


@pytest.mark.parametrize("case", LONG)
def test_endless_responses(case: str) -> None:
    with pytest.raises(TooLong):
        ResponseParser().feed(LONG[case])
    endless = ResponseParser()
    assert not endless.feed(OK + b"\r\n")
    with pytest.raises(TooLong):
        for _ in range(65):
            endless.feed(bytes(1 << 20))


@given(st.sampled_from(sorted(WHOLE)), st.data())
def test_truncated_responses(kind: str, data: st.DataObject) -> None:
    end = data.draw(st.integers(0, len(WHOLE[kind]) - 1))
    response = ResponseParser()
    assert not (end and response.feed(WHOLE[kind][:end]))
    with pytest.raises(ConnectionError) as raised:
        response.feed(b"")
    assert isinstance(raised.value, Unanswered) is (end == 0)


def test_a_connection_over_which_more_came_is_not_used_again() -> None:
    response = ResponseParser()
    assert response.feed(LENGTH + b"HTTP/1.1 200 OK\r\n") and not response.reusable


@pytest.mark.parametrize("url", ["127.0.0.1:8484", "ftp://a.example", "http://", "http://a:b/"])
def test_invalid_server_urls(url: str) -> None:
    with pytest.raises(BadInput, match="is not a URL of a server"):
        Client(url)


def test_invalid_headers() -> None:
    for token, headers in (("a\r\nX: y", {}), ("", {"X": "a\nb"}), ("", {"X: y": ""})):
        with pytest.raises(BadInput, match="cannot be sent"):
            Client(token=token, headers=headers)
    with pytest.raises(BadInput, match="cannot be read as certificates"):
        Client("https://127.0.0.1", tls="nowhere.pem")
    with pytest.raises(BadInput) as raised:
        Client("ftp://me:secret@a.example")
    assert "secret" not in str(raised.value)


# --- connections --------------------------------------------------------------------------------


class Peer:
    """A server with a given behaviour for each connection, in order; counts requests."""

    def __init__(self, listener: socket.socket, works: list[Callable[[Peer], None]]) -> None:
        self._listener, self._works = listener, works
        self.connection = listener
        self.requests = 0

    def run(self) -> None:
        for work in self._works:
            self.connection = self.accept()
            with self.connection, suppress(ConnectionError):
                work(self)

    def accept(self) -> socket.socket:
        self._listener.settimeout(30)
        return self._listener.accept()[0]

    def read(self) -> bool:
        """Read a request without a body."""
        came = b""
        while not came.endswith(b"\r\n\r\n"):
            if not (more := self.connection.recv(1 << 16)):
                return False
            came += more
        self.requests += 1
        return True

    def answer(self, data: bytes = LENGTH) -> None:
        if self.read():
            self.connection.sendall(data)


@contextmanager
def peer(*works: Callable[[Peer], None]) -> Iterator[tuple[str, Peer]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Peer(listener, list(works))
        thread = threading.Thread(target=server.run)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", server
        thread.join()


def looked_up(kind: str, url: str, count: int, pause: Callable[[], object] = list) -> list[object]:
    """Answers to lookups one after another, with a pause between."""

    async def ask() -> list[object]:
        async with AsyncClient(url, timeout=20) as client:
            answers = list[object]()
            for _ in range(count):
                answers.append(await client.lookup(DIGEST))
                await asyncio.to_thread(pause)
            return answers

    if kind == "async":
        return asyncio.run(ask())
    with Client(url, timeout=20) as client:
        return [(client.lookup(DIGEST), pause())[0] for _ in range(count)]


both = pytest.mark.parametrize("kind", ["sync", "async"])


@both
def test_a_connection_is_kept(kind: str) -> None:
    def three(server: Peer) -> None:
        for _ in range(3):
            server.answer()
        assert not server.read()

    with peer(three) as (url, server):
        assert looked_up(kind, url, 3) == [Miss()] * 3
    assert server.requests == 3


@both
def test_a_kept_connection_that_was_closed_is_replaced(kind: str) -> None:
    """No lookup is lost if the server closes it while idle or at the next lookup."""
    closed = threading.Event()

    def rest(server: Peer) -> None:
        server.answer()
        server.connection.shutdown(socket.SHUT_RDWR)
        closed.set()

    def drop(server: Peer) -> None:
        server.answer()
        server.read()

    with peer(rest, drop, Peer.answer) as (url, server):
        assert looked_up(kind, url, 3, lambda: closed.wait(20)) == [Miss()] * 3
    assert server.requests == 4  # the third was sent twice


@both
def test_a_report_is_not_sent_again_by_itself(kind: str) -> None:
    """And a lookup is not when a byte of an answer came, or its connection is new."""

    def half(server: Peer) -> None:
        server.answer()
        server.answer(LENGTH[:-1])

    with peer(half, Peer.read, Peer.answer) as (url, server):  # type: ignore[arg-type]
        first, second, third, fourth = looked_up(kind, url, 4)
    assert (first, fourth) == (Miss(), Miss())
    assert isinstance(second, NotAsked) and isinstance(third, NotAsked)
    assert second.why == third.why == "unreachable" and server.requests == 4


@both
def test_unrequested_data_is_no_answer(kind: str) -> None:
    """A connection over which more comes than an answer is not read for the next one."""
    sent = threading.Event()

    def more(server: Peer) -> None:
        server.answer()
        server.connection.sendall(b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n")
        sent.set()
        server.read()

    with peer(more, Peer.answer) as (url, server):
        assert looked_up(kind, url, 2, lambda: sent.wait(20)) == [Miss()] * 2


def test_what_the_event_loop_has_not_read_is_no_answer_either() -> None:
    answered, sent = threading.Event(), threading.Event()

    def more(server: Peer) -> None:
        server.answer()
        answered.wait(20)
        server.connection.sendall(b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n")
        sent.set()
        server.read()

    async def ask(url: str) -> list[object]:
        async with AsyncClient(url, timeout=20) as client:
            first = await client.lookup(DIGEST)
            answered.set()
            sent.wait(20)  # the loop stands still, as while a crawler parses a page
            return [first, await client.lookup(DIGEST)]

    with peer(more, Peer.answer) as (url, _):
        assert asyncio.run(ask(url)) == [Miss()] * 2


FORKS = """
import asyncio, os, sys
from dedupindex.client import AsyncClient, Client, Miss
kind, url, digest = sys.argv[1:]
client = (AsyncClient if kind == "async" else Client)(url, timeout=5)
loop = asyncio.new_event_loop()
def ask():
    answer = client.lookup(digest)
    return answer if kind == "sync" else loop.run_until_complete(answer)
assert ask() == Miss()
child = os.fork()
if not child:
    loop = asyncio.new_event_loop()
    os._exit(ask() != Miss())
assert os.waitpid(child, 0)[1] == 0
assert ask() == Miss()
"""


@both
def test_a_forked_process_makes_connections_of_its_own(kind: str) -> None:
    """Over a shared one each would read answers to the other."""

    def work(server: Peer) -> None:
        server.answer()
        parent = server.connection
        server.connection = server.accept()
        with server.connection:
            server.answer()
        server.connection = parent
        server.answer()

    with peer(work) as (url, _):
        words = [sys.executable, "-W", "ignore::ResourceWarning", "-c", FORKS, kind, url, DIGEST]
        assert subprocess.run(words, cwd=ROOT).returncode == 0


@both
def test_a_late_answer_is_not_taken_for_the_next(kind: str) -> None:
    """The connection of an abandoned lookup is not used again."""
    late = threading.Event()

    def slow(server: Peer) -> None:
        server.read()
        late.wait(20)
        server.connection.sendall(LENGTH)

    other = LENGTH.replace(NEW, NEW.replace(b'e"', b'e" ')).replace(b": 20", b": 21")

    async def ask(url: str) -> list[object]:
        async with AsyncClient(url, timeout=0.2) as client:
            return [await client.lookup(DIGEST), late.set(), await client.lookup(DIGEST)]

    with peer(slow, lambda server: server.answer(other)) as (url, server):
        if kind == "async":
            first, _, second = asyncio.run(ask(url))
        else:
            with Client(url, timeout=0.2) as client:
                first, _, second = client.lookup(DIGEST), late.set(), client.lookup(DIGEST)
    assert isinstance(first, NotAsked) and first.why == "timeout" and second == Miss()
    assert server.requests == 2


def test_connections_that_are_not_needed_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dedupindex.client.http1.EXPIRY", 0.0)
    monkeypatch.setattr("dedupindex.client.http1.EXPIRY", 0.0)
    for kind in ("sync", "async"):
        with peer(Peer.answer, Peer.answer) as (url, _):
            assert looked_up(kind, url, 2) == [Miss()] * 2


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # of loops that have ended
def test_an_async_client_may_be_used_in_one_loop_after_another() -> None:
    def once(server: Peer) -> None:
        server.answer()
        assert not server.read()  # ends when the client closes the connection

    with peer(once, once) as (url, server):
        client = AsyncClient(url)
        assert [asyncio.run(client.lookup(DIGEST)) for _ in range(2)] == [Miss()] * 2
        asyncio.run(client.aclose())
        gc.collect()  # the warning is of this test
    assert server.requests == 2


def test_the_client_imports_the_standard_library_only() -> None:
    """And quickly: neither asyncio nor TLS before they are used."""
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from dedupindex.client import Client
Client("http://127.0.0.1:9").close()
assert not {"asyncio", "ssl", "http", "email"} & set(sys.modules), sorted(sys.modules)
from dedupindex.client import AsyncClient
"""
    root = ROOT
    words = [sys.executable, "-I", "-S", "-c", code, str(root)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
