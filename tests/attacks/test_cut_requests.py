"""Requests cut off at any byte, and bodies with wrong framing, change nothing."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

import lmdb
import pytest

from tests.conftest import MakeIndex
from tests.integration.test_crawls_live import report, send
from tests.integration.test_server_live import DEADLINE, SHIPPED, Running, serving, until
from tests.support.captures import capture, sha1

TOKEN = "0123456789abcdef0123456789abcdef"
FORM = "application/x-www-form-urlencoded"
JSON = "application/json"
LINES = "application/x-ndjson"
SAME_ORIGIN = "Sec-Fetch-Site: same-origin\r\n"  # what a browser says of a form of our own pages
LOOKUPS = 2  # of crawl a before an attack
MAX_BODY = 100_000
CUTS = 12  # of each request, beside those that are always tried


class Request(NamedTuple):
    """A request with a body, and the status of the answer to it."""

    method: str
    path: str
    type: str
    body: bytes
    status: int = 200
    fields: str = ""

    def head(self, framing: str, protocol: str = "HTTP/1.1") -> bytes:
        """The head of the request; `framing` is its last line."""
        return (
            f"{self.method} {self.path} {protocol}\r\nHost: localhost\r\n{self.fields}"
            f"Content-Type: {self.type}\r\nConnection: close\r\n{framing}\r\n\r\n"
        ).encode()

    def whole(self) -> bytes:
        return self.head(f"Content-Length: {len(self.body)}") + self.body

    def chunked(self) -> bytes:
        """The same in two chunks."""
        half = len(self.body) // 2
        chunks = b"".join(
            b"%x\r\n%b\r\n" % (len(part), part)
            for part in (self.body[:half], self.body[half:])
            if part
        )
        return self.head("Transfer-Encoding: chunked") + chunks + b"0\r\n\r\n"


def json_request(method: str, path: str, content: object, status: int = 200) -> Request:
    return Request(method, path, JSON, json.dumps(content).encode(), status)


def json_lines_request(path: str, *contents: object) -> Request:
    return Request("POST", path, LINES, b"".join(json.dumps(c).encode() + b"\n" for c in contents))


RECORD = {"id": str(sha1(8)), "uri": "http://example.com/8", "date": "20261120091417"}
BOUNDARY = "multipart/form-data; boundary=b"
DIGEST = str(sha1(5)).removeprefix("sha1:")
CDX_LINE = f"com,example)/ 20261120091417 http://example.com/ image/png 200 {DIGEST} 9"
UPLOAD = (
    '--b\r\nContent-Disposition: form-data; name="crawl"; filename="a.cdx"\r\n\r\n'
    f" CDX N b a m s k S\n{CDX_LINE}\n\r\n--b--\r\n"
)
KNOWN = {"digest": str(sha1(90)), "url": "http://example.com/90"}

# Each whole request takes effect if they are sent in this order.
REQUESTS = {
    "begin": json_request("POST", "/crawls", {"name": "new"}),
    "begin by form": Request("POST", "/crawls", FORM, b"name=form&seen_by=all"),
    "capture": json_request("POST", "/captures?crawl=a", report(1)),
    "captures": json_request("POST", "/captures?crawl=a", {"captures": [report(2), report(3)]}),
    "capture by form": Request(
        "POST", "/captures?crawl=a", FORM,
        b"digest=%b&url=http://example.com/4&date=2026-11-20T09:14:17Z&status=200&mime=image/png"
        % str(sha1(4)).encode(),
    ),
    "capture lines": json_lines_request("/captures?crawl=a", report(5), report(6), report(7)),
    "claim": json_request("POST", "/claims", {"crawl": "a", "digest": str(sha1(10)), "lease": 600}),
    "claims": json_request(
        "POST", "/claims", {"crawl": "a", "claims": [{"digest": str(sha1(n))} for n in (11, 12)]}
    ),
    "claim back": json_request("DELETE", "/claims", {"digest": str(sha1(20)), "token": TOKEN}),
    "counts": json_request("POST", "/crawls/a/counts", {"not_looked_up": 3, "who": "me"}),
    "counts by form": Request("POST", "/crawls/a/counts", FORM, b"not_reported=12345"),
    "lookups": json_request("POST", "/lookup?crawl=a", {"lookups": [KNOWN, KNOWN]}),
    "lookup lines": json_lines_request("/lookup?crawl=a", KNOWN, KNOWN, KNOWN),
    "records": json_request("POST", "/api/records", [RECORD], 201),
    "records too": json_request(
        "POST", "/api/records/", [{**RECORD, "uri": "http://a.example/"}], 201
    ),
    "sign in": Request(
        "POST", "/pages/sign-in", FORM, b"token=x&next=/pages/crawls", 303, SAME_ORIGIN
    ),
    "sign out": Request("POST", "/pages/sign-out", FORM, b"all=of+it", 303, SAME_ORIGIN),
    "what if": Request("POST", "/pages/what-if", BOUNDARY, UPLOAD.encode(), 200, SAME_ORIGIN),
    "commit": json_request("POST", "/crawls/a/commit", {"exit": "finished"}),
    "commit by form": Request("POST", "/crawls/b/commit", FORM, b"exit=all+of+it"),
    "cancel": json_request("POST", "/crawls/c/cancel", {"exit": "not wanted"}),
    "drop": Request("DELETE", "/crawls/d", JSON, b"{        }"),
    "delete": json_request("DELETE", "/captures", {**KNOWN, "force": True}),
}  # fmt: skip

BAD_CHUNKS = (  # sent instead of the chunks
    b"", b"zz\r\n", b"-1\r\n{}\r\n0\r\n\r\n", b"2\r\n{}\r\n", b"2\r\n{}\r\n0\r\n",
    b"2\r\n{}\r\n0\r\nx\r\n",
    b"2\r\n{}\r\nx\r\n\r\n", b"5\r\n{}\r\n0\r\n\r\n", b"1\r\n{}\r\n0\r\n\r\n", b"2\n{}\n0\n\n",
    b"\r\n",
    b"ffffffffffffffff\r\n{}\r\n", b"10000000000000002\r\n{}\r\n0\r\n\r\n",
    b"0x2\r\n{}\r\n0\r\n\r\n",
    b"2;a\r\n{}\r\n0\r\n", b"0\r\n", b"0\r\nTrailer: x\r\n",
)  # fmt: skip
BAD_FRAMING = (
    "Content-Length: -1", "Content-Length: +2", "Content-Length: 2, 3", "Content-Length: 0x2",
    "Content-Length: 99999999999999999999999", "Content-Length: two", "Content-Length: 3",
    "Content-Length: 2\r\nContent-Length: 3", "Content-Length: 2\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: gzip", "Transfer-Encoding: identity", "Transfer-Encoding: chunked, gzip",
    "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: xchunked",
    "Transfer-Encoding:\tchunked",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "Transfer-Encoding: CHUNKED",
    "Transfer_Encoding: chunked", "Transfer-Encoding: \xff",
)  # fmt: skip


def stored(index: Path) -> dict[bytes, dict[bytes, list[bytes]]]:
    """Return the content of the crawls' file, by database."""
    with (
        closing(
            lmdb.open(str(index / "crawls.mdb"), subdir=False, readonly=True, max_dbs=30)
        ) as file,
        file.begin() as reading,
    ):
        databases: dict[bytes, dict[bytes, list[bytes]]] = {}
        for name in list(reading.cursor().iternext(values=False)):
            rows = databases.setdefault(bytes(name), {})
            with suppress(lmdb.Error):
                base = file.open_db(bytes(name), txn=reading, create=False)
                for key, value in reading.cursor(base).iternext():
                    rows.setdefault(bytes(key), []).append(bytes(value))
        return databases


def send_bytes(port: int, data: bytes, *, cut: bool = False, reset: bool = False) -> int:
    """Send bytes and return the status of the answer, 0 for none.

    With `cut` the sending side is closed; with `reset` the connection is reset.
    """
    with socket.create_connection(("127.0.0.1", port), DEADLINE) as stream, suppress(OSError):
        stream.sendall(data)
        if reset:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return 0
        if cut:
            stream.shutdown(socket.SHUT_WR)
        with stream.makefile("rb") as response:
            line = response.readline()
            response.read()
            return int(line.split()[1]) if line else 0
    return 0


def is_counted(running: Running, name: str) -> bool:
    """Whether the statistics have what a crawl stored and looked up before an attack."""
    report = send(running.port, "GET", f"/crawls/{name}/report")
    return bool(report["stored"] == 1 and report["lookups"] == (LOOKUPS if name == "a" else 0))


def succeeds(running: Running, request: Request) -> bool:
    """Whether a whole request is answered as expected; False for a 503, to be tried again."""
    status = send_bytes(running.port, request.whole())
    assert status in (request.status, 503), (request, status)
    return status == request.status


@pytest.fixture
def server(make_index: MakeIndex) -> Iterator[tuple[Running, Path]]:
    """A server with crawls that are open, have captures and hold a claim."""
    index = make_index([capture(90, b"http://example.com/90")])
    with serving(index, "--workers", "2", "--max-body", str(MAX_BODY), command=SHIPPED) as running:
        for number, name in enumerate("abcd", 30):
            send(running.port, "POST", "/crawls", {"name": name})
            send(running.port, "POST", f"/captures?crawl={name}", report(number))
        claim = {"crawl": "a", "digest": str(sha1(20)), "lease": 600, "token": TOKEN}
        assert send(running.port, "POST", "/claims", claim)["claimed"]
        send(running.port, "POST", "/lookup?crawl=a", {"lookups": [KNOWN]})
        for name in "abcd":  # statistics are written a little later
            assert until(partial(is_counted, running, name))
        yield running, index


def cuts(data: bytes, chance: Random, effort: int) -> list[int]:
    """Return the offsets at which a request is cut; with a high effort all."""
    if effort >= 100:
        return list(range(1, len(data)))
    end = data.index(b"\r\n\r\n") + 4
    always = {end - 1, end, end + 1, len(data) - 2, len(data) - 1}
    return sorted(always | set(chance.sample(range(1, len(data)), CUTS * effort)))


def test_requests_that_break_off_change_nothing(
    server: tuple[Running, Path], chance: Random, effort: int
) -> None:
    running, index = server
    before = stored(index)
    port = running.port
    for name, request in REQUESTS.items():
        for data in (request.whole(), request.chunked()):
            for at in cuts(data, chance, effort):
                status = send_bytes(port, data[:at], cut=True)
                assert status == 0 or status >= 400, (name, data[:at])
                if chance.random() < 0.2:
                    send_bytes(port, data[:at], reset=True)
        assert send_bytes(port, request.chunked()) == 411, name
        assert stored(index) == before, name
    running.process.terminate()
    assert running.process.wait(DEADLINE) == 0  # what was still going on has ended
    assert stored(index) == before
    assert "Traceback" not in running.log.read_text()


def test_a_body_ends_as_http_says_or_is_refused(server: tuple[Running, Path]) -> None:
    running, index = server
    before = stored(index)
    bodies = [request._replace(body=b"{}") for request in REQUESTS.values()]
    for request in bodies:
        head = request.head("Transfer-Encoding: chunked")
        for chunks in BAD_CHUNKS:
            status = send_bytes(running.port, head + chunks, cut=True)
            assert status == 0 or status >= 400, head + chunks
        for framing in BAD_FRAMING:
            for protocol in ("HTTP/1.1", "HTTP/1.0"):
                status = send_bytes(running.port, request.head(framing, protocol) + b"{}", cut=True)
                assert status == 0 or status >= 400, (framing, protocol, request)
    assert stored(index) == before
    for path in ("/lookup?crawl=a&digest=" + str(sha1(90)), "/crawls", "/", "/healthz", "/cdx"):
        request = Request("GET", path, JSON, b"{}")
        for data in (request.whole(), request.chunked()):
            assert send_bytes(running.port, data) in (400, 411), data
        assert send_bytes(running.port, request.whole()[:-1], cut=True) in (0, 400)
    assert send(running.port, "GET", "/crawls/a")["lookups"] == LOOKUPS


def test_whole_requests_do_what_they_say(server: tuple[Running, Path]) -> None:
    """Without this, the tests of cut requests would prove nothing."""
    running, index = server
    for name, request in REQUESTS.items():
        before = stored(index)
        # Where a crawl is being merged, deleting and dropping are refused (503) for a moment.
        assert until(partial(succeeds, running, request)), name
        if request.path.startswith(("/pages", "/lookup")):
            continue
        if name == "delete":
            assert not send(running.port, "GET", f"/lookup?digest={KNOWN['digest']}")["duplicate"]
        else:
            assert stored(index) != before, name


def test_long_reports_that_break_off_store_all_or_nothing(
    server: tuple[Running, Path], chance: Random, effort: int
) -> None:
    """JSON lines beyond the limit of a JSON body are all written, or none of them."""
    running, index = server
    before, files = stored(index), {file.name for file in index.iterdir()}
    for count in (400, 1500):
        whole = json_lines_request(
            "/captures?crawl=a", *map(report, range(100, 100 + count))
        ).whole()
        assert (len(whole) > MAX_BODY + 1000) == (count == 1500)
        for at in cuts(whole, chance, min(effort, 99)):
            status = send_bytes(running.port, whole[:at], cut=True)
            assert status == 0 or status >= 400, (count, at)
            if chance.random() < 0.2:
                send_bytes(running.port, whole[:at], reset=True)
        assert stored(index) == before
    longest = Request("POST", "/captures?crawl=a", LINES, b"").head(f"Content-Length: {1 << 40}")
    assert send_bytes(running.port, longest, cut=True) == 413
    assert send_bytes(running.port, whole) == 200
    assert send(running.port, "GET", "/crawls/a")["captures"] == 1501
    assert {file.name for file in index.iterdir()} == files  # the body was in one without a name


def test_long_lookups_that_break_off_are_answered_until_then(server: tuple[Running, Path]) -> None:
    """Answered lookups are counted; the last line says that the rest is missing."""
    running, index = server
    before = stored(index)
    lookups = [{"digest": str(sha1(n)), "url": "http://b" * 20} for n in range(100, 1600)]
    whole = json_lines_request("/lookup?crawl=a", *lookups).whole()
    text = running.raw(whole[:-1])
    assert b"bytes early" in text.rpartition(b'{"error"')[2]
    assert stored(index)[b"captures"] == before[b"captures"]
    assert send_bytes(running.port, whole) == 200
