"""What an operator sets: TLS, limits of clients, the format of the log."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from email.message import Message
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupindex.client import Answer, Ask, AsyncClient, Client, Hit, NotAsked, Reply
from server import logs
from server.app import create_app
from server.body_timeout import BodyTimeout
from server.config import Config
from server.live_index import LiveIndex
from server.request_checks import RateLimit, network
from server.responses import RequestError
from tests.conftest import MakeIndex, need
from tests.integration.test_crawls_live import report, send
from tests.integration.test_server_live import DEADLINE, PAGE, await_line, question, serving, until
from tests.support.captures import capture, sha1
from tests.support.commands import typed
from tests.support.transports import Mock, of_json

WORD = "word of the key"


def certificate(
    place: Path, name: str, word: str = "", host: str = "127.0.0.1"
) -> tuple[Path, Path]:
    """A certificate for an address that signs itself, and its key."""
    need("openssl", found=shutil.which("openssl") is not None)
    cert, key = place / f"{name}.pem", place / f"{name}.key"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-days", "2", "-subj", f"/CN={name}"]
    words += ["-addext", f"subjectAltName=IP:{host}", "-out", str(cert), "-keyout", str(key)]
    words += ["-passout", f"pass:{word}"] if word else ["-nodes"]
    subprocess.run(words, check=True, capture_output=True)
    return cert, key


def served_name(port: int) -> str:
    """The name in the certificate that a server shows now."""
    text = ssl.get_server_certificate(("127.0.0.1", port), timeout=DEADLINE)
    words = ["openssl", "x509", "-noout", "-subject"]
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=True)
    return done.stdout.strip().rpartition("=")[2].strip()


def test_lookups_over_tls(make_index: MakeIndex, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "one")
    tls = ("--tls-cert", str(cert), "--tls-key", str(key))
    with serving(make_index([capture(1, PAGE)]), *tls, "--workers", "1") as server:
        assert server.ready["url"].startswith("https://")
        trusting = ssl.create_default_context(cafile=cert)
        with closing(
            HTTPSConnection("127.0.0.1", server.port, timeout=DEADLINE, context=trusting)
        ) as connection:
            for _ in range(2):
                connection.request("GET", question(1))
                assert json.loads(connection.getresponse().read())["duplicate"]
            assert connection.sock.version() == "TLSv1.3"  # type: ignore[union-attr]
        for trust in (trusting, cert):
            with Client(server.ready["url"], tls=trust) as ours:
                assert isinstance(ours.lookup(str(sha1(1)), PAGE), Hit)
                assert isinstance(ours.lookup(str(sha1(1)), PAGE), Hit)  # over what was kept
            found = asyncio.run(looked_up(server.ready["url"], trust))
            assert [type(one) for one in found] == [Hit, Hit]
        with Client(server.ready["url"]) as strict:  # a certificate that nobody signed
            assert isinstance(strict.lookup(str(sha1(1)), PAGE), NotAsked)
        with pytest.raises((OSError, HTTPException)):
            server.get("/healthz")


async def looked_up(url: str, tls: Path | ssl.SSLContext) -> list[Answer]:
    async with AsyncClient(url, tls=tls) as client:
        return [await client.lookup(str(sha1(1)), PAGE) for _ in range(2)]


def test_versions_of_tls(make_index: MakeIndex, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "one")
    with serving(make_index([]), "--tls-cert", str(cert), "--tls-key", str(key)) as server:
        context = ssl.create_default_context(cafile=cert)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
        with (
            socket.create_connection(("127.0.0.1", server.port), DEADLINE) as stream,
            context.wrap_socket(stream, server_hostname="127.0.0.1") as wrapped,
        ):
            assert wrapped.version() == "TLSv1.2"
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        with pytest.warns(DeprecationWarning):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        old.set_ciphers("ALL:@SECLEVEL=0")
        with (
            socket.create_connection(("127.0.0.1", server.port), DEADLINE) as stream,
            pytest.raises(OSError),
        ):
            old.wrap_socket(stream)


def test_a_new_certificate_is_taken_up_without_an_end(
    make_index: MakeIndex, tmp_path: Path
) -> None:
    cert, key = certificate(tmp_path, "one")
    tls = ("--tls-cert", str(cert), "--tls-key", str(key), "--workers", "1")
    with serving(make_index([capture(1, PAGE)]), *tls) as server:
        assert served_name(server.port) == "one"
        kept = cert.read_bytes()
        cert.write_text("nonsense")
        server.process.send_signal(signal.SIGHUP)
        assert until(lambda: "still serving with the old" in server.log.read_text())
        cert.write_bytes(kept)
        assert served_name(server.port) == "one"
        fresh = certificate(tmp_path, "two")
        for old, new in zip((cert, key), fresh, strict=True):
            new.replace(old)
        server.process.send_signal(signal.SIGHUP)
        assert until(lambda: served_name(server.port) == "two")
        assert server.process.poll() is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--tls-cert", "one.pem"], "--tls-cert and --tls-key go together"),
        (["--tls-cert", "none.pem", "--tls-key", "one.key"], "none.pem cannot be read"),
        (["--tls-cert", "one.pem", "--tls-key", "other.key"], "do not serve"),
        (["--tls-cert", "one.pem", "--tls-key", "one.pem"], "is no PKCS#8 key"),
        (
            ["--tls-cert", "one.pem", "--tls-key", "secret.key"],
            "is no PKCS#8 key without a password",
        ),
    ],
)
def test_files_of_tls_that_do_not_serve(
    given: list[str], message: str, make_index: MakeIndex, tmp_path: Path
) -> None:
    for name, word in (("one", ""), ("other", ""), ("secret", WORD)):
        certificate(tmp_path, name, word)
    paths = [str(tmp_path / word) if "." in word else word for word in given]
    _, said = typed("serve", make_index([]), "--port", "0", *paths, status=4)
    assert message in said and said.count("\n") == 1


# --- rates --------------------------------------------------------------------------------------


@given(
    st.integers(1, 20),
    st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 3)), max_size=80),
)
def test_no_client_gets_more_than_its_rate_or_less(
    rate: int, steps: list[tuple[str, float]]
) -> None:
    """A bucket of 5 seconds' requests that fills again, for each client on its own."""
    now, burst = 0.0, 5
    limit = RateLimit(rate, burst, clock=lambda: now)
    left = {"a": (0.0, float(burst * rate)), "b": (0.0, float(burst * rate))}
    for client, pause in steps:
        now += pause
        since, had = left[client]
        has = min(had + (now - since) * rate, burst * rate)
        if abs(has - 1) < 1e-6:
            return  # too close to tell in floating point
        wait = limit.wait(client)
        assert (wait == 0) == (has > 1)
        if wait:
            assert wait == pytest.approx((1 - has) / rate, abs=1e-6)
        left[client] = (now, has - (wait == 0))


def test_who_was_silent_for_the_longest_is_forgotten() -> None:
    limit = RateLimit(1, 1, most=2, clock=lambda: 0.0)
    assert not limit.wait("a") and not limit.wait("b")
    assert limit.wait("a") and limit.wait("b")
    assert not limit.wait("c")  # b and c are known now
    assert limit.wait("b") and not limit.wait("a")


def test_addresses_of_one_network_are_one_client() -> None:
    assert network("192.0.2.7") == network("::ffff:192.0.2.7") == "192.0.2.7"
    assert network("2001:db8:1:2:3::4") == network("2001:db8:1:2::9") == "2001:db8:1:2::/64"
    assert network("2001:db8:1:3::4") != network("2001:db8:1:2::4")
    assert network("fe80::1%eth0") == "fe80::/64" and network("-") == "-"


def asked(port: int) -> tuple[int, Message, bytes]:
    with closing(HTTPConnection("127.0.0.1", port, timeout=DEADLINE)) as connection:
        connection.request("GET", question(1))
        response = connection.getresponse()
        return response.status, response.headers, response.read()


def test_clients_over_the_rate_limit_get_429_and_store(make_index: MakeIndex) -> None:
    index = make_index([capture(1, PAGE)])
    token = typed("token", index, "--add", "a")[0].strip()
    with serving(index, "--rate-limit", "1", "--workers", "1") as server:
        assert [server.get(question(1))[0] for _ in range(5)] == [200] * 5
        assert until(lambda: server.get(question(1))[0] == 429)
        address = f"http://127.0.0.1:{server.port}"
        answers = (asked(server.port) for _ in range(100))
        answer = next(one for one in answers if one[0] == 429)  # of a slow machine one is
        assert json.loads(answer[2])["error"]["code"] == "rate_limited"
        assert int(answer[1]["Retry-After"]) >= 1
        # Another client is another matter, and who watches is not counted.
        assert server.get(question(1), Authorization=f"Bearer {token}")[0] == 200
        assert all(server.get("/healthz")[0] == 200 for _ in range(20))
        assert 'dedupindex_errors_total{code="rate_limited"}' in server.get("/metrics")[1].decode()
        with Client(address) as client:
            assert until(lambda: isinstance(client.lookup(str(sha1(2))), NotAsked))


def test_a_report_that_came_too_often_is_kept_for_later() -> None:
    statuses = iter([429, 429, 200])

    def answer(ask: Ask) -> Reply:
        status = next(statuses)
        if status == 429:
            return of_json({"error": {"code": "rate_limited", "message": "-"}}, 429)
        return of_json({"added": 1, "unchanged": 0, "refused": {}, "bad": 0})

    with Client(crawl="a", transport=Mock(answer)) as client:
        assert client.report([report(1)]).kept == 1
        assert client.flush().added == 1


# --- slow bodies --------------------------------------------------------------------------------

HEAD = b"POST /captures?crawl=a HTTP/1.1\r\nHost: localhost\r\n"
SLOW = (
    HEAD + b"Content-Type: application/json\r\nContent-Length: 50\r\n\r\n{",
    HEAD + b"Content-Type: application/x-ndjson\r\nContent-Length: 50\r\n\r\n{",
    HEAD + b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 50\r\n\r\nurl=",
    b"POST /lookup HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 50\r\n\r\n{",
)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_senders_that_stall_are_cut_off(tls: bool, make_index: MakeIndex, tmp_path: Path) -> None:
    options = ["--workers", "1", "--body-timeout", "5"]  # in which all of them can be begun
    wrap = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    wrap.check_hostname, wrap.verify_mode = False, ssl.CERT_NONE
    if tls:
        cert, key = certificate(tmp_path, "one")
        options += ["--tls-cert", str(cert), "--tls-key", str(key)]
    with serving(make_index([capture(1, PAGE)]), *options) as server:
        streams = []
        for number in range(12 if tls else 104):  # more than bodies are received at one time
            stream = socket.create_connection(("127.0.0.1", server.port), DEADLINE)
            if tls:
                stream = wrap.wrap_socket(stream)
            stream.sendall(SLOW[number % len(SLOW)])
            streams.append(stream)
        answers = []
        for stream in streams:
            with stream, stream.makefile("rb") as answer:
                answers.append(answer.readline().split()[1])
        if tls:
            assert set(answers) == {b"408"}
        else:
            assert set(answers) == {b"408", b"503"} and answers.count(b"408") >= 80, answers
            send(server.port, "POST", "/crawls", {"name": "a"})
            assert send(server.port, "POST", "/captures?crawl=a", report(1))["added"] == 1


def test_a_stalled_body_costs_others_nothing(make_index: MakeIndex) -> None:
    """An upload that takes long but moves, beside one that does not, from the same address."""
    line = json.dumps(report(1)).encode() + b"\n"
    piece = line * (70_000 // len(line))
    head = HEAD + b"Content-Type: application/x-ndjson\r\nContent-Length: %d\r\n\r\n"
    pause = threading.Event()
    with (
        serving(make_index([]), "--workers", "1", "--body-timeout", "4") as server,
        socket.create_connection(("127.0.0.1", server.port), DEADLINE) as stalled,
        socket.create_connection(("127.0.0.1", server.port), DEADLINE) as moving,
        stalled.makefile("rb") as error,
        moving.makefile("rb") as answer,
    ):
        send(server.port, "POST", "/crawls", {"name": "a"})
        moving.sendall(head % (len(piece) * 12))
        stalled.sendall(SLOW[-1])
        for _ in range(12):
            moving.sendall(piece)
            pause.wait(0.5)
        assert answer.readline().split()[1] == b"200"
        assert error.readline().split()[1] == b"408"


def test_who_waits_for_an_answer_is_not_cut_off_for_another() -> None:
    """Nothing comes and goes on either connection; only one of them is at fault."""
    patience, go, outcome = BodyTimeout(0.4), threading.Event(), []
    patience.start()

    def read(environ: dict[str, Any]) -> list[bytes]:
        try:
            return [environ["wsgi.input"].read(9)]
        except RequestError as error:
            return [error.reason.encode()]

    def ask(accepted: socket.socket, method: str, answer: Any) -> None:
        environ = {"REQUEST_METHOD": method, "REMOTE_ADDR": "127.0.0.2", "CONTENT_LENGTH": "9"}
        with accepted.makefile("rb") as stream:
            environ["wsgi.input"] = stream  # type: ignore[assignment]
            pieces = patience.watched(environ, lambda: answer(environ))
            outcome.append(b"".join(pieces))
            if not isinstance(pieces, list):
                pieces.close()  # type: ignore[attr-defined]

    def wait(environ: dict[str, Any]) -> Iterator[bytes]:
        go.wait(DEADLINE)
        yield b"done"

    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        ends, threads = [], []
        for method, answer in (("POST", read), ("GET", wait)):
            address = ("127.0.0.1", listener.getsockname()[1])
            stack.enter_context(
                socket.create_connection(address, DEADLINE, source_address=("127.0.0.2", 0))
            )
            ends.append(stack.enter_context(listener.accept()[0]))
            threads.append(threading.Thread(target=ask, args=(ends[-1], method, answer)))
            threads[-1].start()
        threads[0].join(2)
        with pytest.raises(BlockingIOError):  # it is open: nothing has come
            ends[1].recv(1, socket.MSG_DONTWAIT)
        assert threads[0].is_alive() and not outcome  # nor can it be told which of them is slow
        go.set()
        for thread in reversed(threads):
            thread.join(DEADLINE)
        assert outcome == [b"done", b"body_timeout"]


def test_a_slow_body_is_accepted_while_bytes_arrive(make_index: MakeIndex) -> None:
    piece = (json.dumps({"digest": str(sha1(1))}).encode() + b"\n") * 2000
    with (
        serving(make_index([capture(1)]), "--workers", "1", "--body-timeout", "3") as server,
        socket.create_connection(("127.0.0.1", server.port), DEADLINE) as stream,
        stream.makefile("rb") as answer,
    ):
        stream.sendall(
            b"POST /lookup HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
            b"Content-Type: application/x-ndjson\r\n\r\n" % (len(piece) * 14)
        )
        for number in range(14):
            stream.sendall(piece)
            # Nearly as many as are sent, or in the end both would wait for the other to read.
            for _ in range(1900 if number else 500):
                await_line(answer, b"duplicate")
            time.sleep(0.25)  # all of them together are more than the limit, each is less
        assert any(line == b"0\r\n" for line in answer)


def test_lines_that_break_off_end_with_an_error(make_index: MakeIndex) -> None:
    line = json.dumps({"digest": str(sha1(1))}).encode() + b"\n"
    head = b"POST /lookup HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
    options = ("--workers", "1", "--body-timeout", "1")
    with (
        serving(make_index([capture(1)]), *options) as server,
        socket.create_connection(("127.0.0.1", server.port), DEADLINE) as stream,
        stream.makefile("rb") as answer,
    ):
        stream.sendall(head + b"Content-Length: 300000\r\n\r\n" + line * 1500)
        text = answer.read()
        assert 0 < text.count(b'"duplicate":true') <= 1500
        assert text.count(b'"error"') == 1 and b'"body_timeout"' in text
        assert "Traceback" not in server.log.read_text()


def status(port: int, request: bytes) -> int:
    """The status of the answer to a request that is sent as it is."""
    with (
        socket.create_connection(("127.0.0.1", port), DEADLINE) as stream,
        stream.makefile("rb") as answer,
    ):
        stream.sendall(request)
        return int(answer.readline().split()[1])


def test_half_a_body_is_no_body(make_index: MakeIndex) -> None:
    """A form can be read wherever it breaks off: half a URL must not become an original."""
    form = b"digest=" + str(sha1(7)).encode() + b"&date=2026-11-20T09:14:17Z"
    form += b"&status=200&mime=image/png&size=9&url=http://a.example/"
    plain = HEAD + b"Content-Type: application/x-www-form-urlencoded\r\n"
    with serving(make_index([]), "--workers", "1") as server:
        send(server.port, "POST", "/crawls", {"name": "a"})
        server.raw(plain + b"Content-Length: %d\r\n\r\n" % (len(form) + 9) + form)
        chunked = plain + b"Transfer-Encoding: chunked\r\n\r\n"
        server.raw(chunked + b"%x\r\n%b\r\n" % (len(form), form))
        whole = chunked + b"%x\r\n%b\r\n0\r\n\r\n" % (len(form), form)
        assert status(server.port, whole) == 411
        assert send(server.port, "GET", "/crawls/a")["captures"] == 0
        assert status(server.port, plain + b"Content-Length: %d\r\n\r\n" % len(form) + form) == 200
        assert send(server.port, "GET", "/crawls/a")["captures"] == 1


# --- logs ---------------------------------------------------------------------------------------

HOSTILE = 'x"}\n{"event": "audit"}\x1b[31m\u2028\x85'


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What is logged as JSON, by a logger of this test's own."""
    monkeypatch.setattr(logs, "LOGGER", logging.Logger("dedupindex.server"))
    logs.configure("json")
    stream = io.StringIO()
    cast(Any, logs.LOGGER.handlers[0]).setStream(stream)
    return stream


def test_hostile_text_cannot_leave_its_log_field(lines: io.StringIO) -> None:
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": HOSTILE, "REMOTE_ADDR": "192.0.2.1"}
    logs.access(environ, "200 OK", 0.0012)
    logs.audit(environ, "me", {"name": HOSTILE, "added": 2}, "a")
    logs.LOGGER.warning("%s", HOSTILE)
    logs.report(ValueError(HOSTILE), environ)
    text = lines.getvalue()
    assert text.isascii() and text.count("\n") == 4
    access, audit, other, defect = map(json.loads, text.splitlines())
    assert (access["event"], access["path"], access["status"]) == ("access", HOSTILE, "200")
    assert (audit["event"], audit["token"], audit["added"]) == ("audit", "me", 2)
    assert (other["event"], other["level"], other["message"]) == ("log", "WARNING", HOSTILE)
    assert defect["event"] == "defect" and "ValueError" in defect["trace"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", row["time"])
               for row in (access, audit, other, defect))  # fmt: skip


def test_every_line_of_a_server_is_json(make_index: MakeIndex) -> None:
    options = ("--workers", "1", "--access-log", "--log-format", "json")
    with serving(make_index([capture(1, PAGE)]), *options) as server:
        send(server.port, "POST", "/crawls", {"name": "a"})
        server.get(question(1))
        server.process.terminate()
        assert server.process.wait(DEADLINE) == 0
        found = [json.loads(line) for line in server.log.read_text().splitlines()]
    events = [row["event"] for row in found]
    assert events == ["log", "audit", "access", "access", "log"]
    assert found[1]["crawl" if "crawl" in found[1] else "name"] == "a"


WRITES = {
    "begin_crawl": ("/crawls", {"name": "b"}),
    "commit_crawl": ("/crawls/a/commit", {}),
    "cancel_crawl": ("/crawls/a/cancel", {}),
    "drop_crawl": ("/crawls/a", None),
    "delete_captures": ("/captures", {"digest": str(sha1(1)), "url": "http://a.example/"}),
    "count_crawl": ("/crawls/a/counts", {}),
    "add_captures": ("/captures?crawl=a", report(1)),
    "claim": ("/claims", {"crawl": "a", "digest": str(sha1(1))}),
    "release": ("/claims", {"digest": str(sha1(1)), "token": "0" * 32}),
    "add_records": (
        "/api/records",
        [{"id": str(sha1(1)), "uri": "http://a.example/", "date": 20261120091417}],
    ),
}
READS = {"lookup_batch", "last_batch"}


def test_every_write_leaves_a_line(make_index: MakeIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every route that is no GET is named here, so that a new one is thought of."""
    from server.routes import ROUTES

    for route in ROUTES:
        if route.method == "GET" or route.name in READS or route.name.endswith("_slash"):
            continue
        path, body = WRITES[route.name]
        index = make_index([])
        live = LiveIndex(index)
        live.refresh()
        web = create_app(Config(index), live).test_client()
        assert web.post("/crawls", json={"name": "a"}).status_code == 200
        stream = io.StringIO()
        monkeypatch.setattr(logs, "LOGGER", logging.Logger("dedupindex.server", logging.INFO))
        logs.LOGGER.addHandler(logging.StreamHandler(stream))
        assert web.open(path, method=route.method, json=body).status_code in (200, 201)
        assert stream.getvalue().count("audit ") == 1, route.name
