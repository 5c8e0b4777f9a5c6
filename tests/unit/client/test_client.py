"""The client of Python crawlers: against the real server, and against ones that fail."""

from __future__ import annotations

import ast
import asyncio
import json
import logging
import threading
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from dataclasses import asdict
from email.message import Message
from http.server import BaseHTTPRequestHandler
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dedupindex.client import (
    SPELLED_OTHERWISE,
    Ask,
    AsyncClient,
    Claimed,
    Client,
    Hit,
    Miss,
    NotAsked,
    Reply,
    Reported,
    Taken,
    Transport,
)
from dedupindex.client.core import Breaker, ReportQueue
from dedupindex.client.http1 import NotConnected
from dedupindex.digest import Spelling
from dedupindex.errors import BadInput, CrawlEnded, DedupError, IndexUnavailable, UnknownCrawl
from dedupindex.index import tokens
from dedupindex.index.identity import Settings
from dedupindex.index.tokens import Role
from server.app import create_app
from server.config import Config
from server.live_index import LiveIndex
from tests.conftest import MakeIndex
from tests.integration.test_server_live import DEADLINE, serving
from tests.support.captures import capture, sha1
from tests.support.paths import ROOT
from tests.support.ports import refusing_port
from tests.support.stub_server import body_of, replying, stub_server
from tests.support.transports import AsyncMock, Mock, ToApp, of_json

PAGE = "http://example.com/a"
OLD, NEW = str(sha1(90)), str(sha1(1))


def app_of(index: Path) -> Any:
    live = LiveIndex(index)
    live.refresh()
    return create_app(Config(index), live)


@pytest.fixture
def index(make_index: MakeIndex) -> Path:
    return make_index([capture(90), capture(91, b"http://example.com/caf\xe9")])


@pytest.fixture
def client(index: Path) -> Iterator[Client]:
    transport = ToApp(app_of(index))
    with Client(crawl="", transport=transport) as client:
        yield client


def stored(number: int = 1, url: str | bytes = PAGE, **more: Any) -> dict[str, Any]:
    date = "2026-11-20T09:14:17Z"
    return {"digest": str(sha1(number)), "url": url, "date": date, "status": 200, "size": 9, **more}


def test_a_hit_has_all_that_a_revisit_needs(client: Client) -> None:
    answer = client.lookup(OLD, PAGE)
    assert isinstance(answer, Hit)
    assert answer.match == "exact_url"
    original = answer.original
    assert (original.url, original.url_bytes) == (PAGE, PAGE.encode())
    assert original.date == "2026-11-01T09:14:17Z"
    assert original.record_id == "urn:uuid:00000000-0000-4000-8000-000000009001"
    assert original.digest == OLD and original.committed
    assert original.fields["container"] == "/warcs/1.warc.gz"


def test_a_miss_is_no_failure(client: Client) -> None:
    assert client.lookup(NEW, PAGE) == Miss()
    assert client.lookup("crc32:12345678", PAGE) == Miss("unknown_algorithm")
    assert client.lookup(OLD, "http://b.example/", strategy="EXACT_URL") == Miss()
    assert client.counts.as_json()["misses"] == 3


def test_a_hit_that_replay_would_not_find_is_a_miss(make_index: MakeIndex) -> None:
    """pywb finds an original by the text of the revisit's digest."""
    in_hex = capture(90)._replace(spelling=Spelling(1, 2))
    text = in_hex.digest.spelled(in_hex.spelling)
    transport = ToApp(app_of(make_index([in_hex])))
    with Client(crawl="c", transport=transport) as client:
        client.begin("c")
        assert client.lookup(OLD, PAGE) == SPELLED_OTHERWISE == Miss("spelled_otherwise")
        assert client.claim(OLD, PAGE) == SPELLED_OTHERWISE
        answers = client.lookups([(text, PAGE), (OLD, PAGE), (text.replace("sha1", "SHA-1"), PAGE)])
        assert [type(answer) for answer in answers] == [Hit, Miss, Hit]
        assert isinstance(client.lookup(OLD, PAGE, bridge=True), Hit)
        counts = client.counts.as_json()
        assert (counts["hits"], counts["misses"], counts["spelled_otherwise"]) == (3, 3, 3)
        assert counts["not_looked_up"] == 0
    with Client(any_spelling=True, transport=transport) as client:
        hit = client.lookup(OLD, PAGE)
        assert isinstance(hit, Hit) and hit.original.digest == text
        assert isinstance(client.lookups([(OLD, PAGE)])[0], Hit)
        assert client.counts.as_json()["spelled_otherwise"] == 0


def test_the_settings_of_the_index(make_index: MakeIndex, switch: Switch) -> None:
    chosen = Settings(status="2xx", min_size=5)
    transport = ToApp(app_of(make_index([], chosen)))
    with Client(transport=transport) as client:
        assert client.settings() == asdict(chosen)
    switch.on = False
    with switched(switch) as away, pytest.raises(IndexUnavailable, match="settings of the index"):
        away.settings()


def test_urls_arrive_byte_for_byte(client: Client) -> None:
    odd = client.lookup(str(sha1(91)), b"http://example.com/caf\xe9")
    assert isinstance(odd, Hit) and odd.match == "exact_url"
    assert odd.original.url_bytes == b"http://example.com/caf\xe9"
    assert odd == client.lookup(str(sha1(91)), "http://example.com/caf\udce9")
    assert odd == client.lookups([(str(sha1(91)), "http://example.com/caf\udce9")])[0]
    long = f"http://example.com/?a=1&b=+%20 ;{'x' * 60_000}"
    client.begin("c")
    client.report([stored(2, long)], crawl="c")
    answer = client.lookup(str(sha1(2)), long, crawl="c")
    assert isinstance(answer, Hit) and (answer.match, answer.original.url) == ("exact_url", long)
    assert isinstance(client.lookup(NEW, "http://\ud800/"), NotAsked)  # no bytes at all


def test_a_batch_is_answered_one_by_one(client: Client) -> None:
    asked = [(OLD, PAGE), (NEW, PAGE), ("nonsense", PAGE)] * 700
    answers = client.lookups(asked)
    assert len(answers) == 2100
    assert [type(answer) for answer in answers[:3]] == [Hit, Miss, NotAsked]
    counts = client.counts.as_json()
    assert (counts["hits"], counts["misses"], counts["not_looked_up"]) == (700, 700, 700)
    assert counts["not_looked_up_why"] == {"bad_digest": 700}
    assert client.lookups([]) == []


def test_a_refused_question_is_not_looked_up(client: Client) -> None:
    answer = client.lookup(OLD, PAGE, crawl="nobody")
    assert isinstance(answer, NotAsked) and answer.why == "unknown_crawl"
    assert isinstance(client.lookup("sha1:short", PAGE), NotAsked)
    assert isinstance(client.lookup(OLD, PAGE, color="red"), NotAsked)
    assert isinstance(client.lookup(OLD, PAGE), Hit)  # and nothing was held against the server
    assert client.counts.not_looked_up == 3


def test_a_crawl_from_begin_to_commit(client: Client) -> None:
    assert client.begin("c", digest_covers="entity")["state"] == "open"
    odd = stored(7, b"http://\xe9.example/")  # arrives, and the index refuses it
    captures = [stored(), stored(2, b"http://b.example/"), odd]
    assert client.report(captures, crawl="c") == Reported(added=2, refused=1)
    assert client.report([stored()], crawl="c") == Reported(unchanged=1)
    assert client.report([stored(3, status=404), {"digest": 1}], crawl="c") == Reported(
        refused=1, bad=1
    )
    assert client.report([stored(4, mime=b"?")], crawl="c") == Reported(bad=1)  # no JSON
    own = client.lookup(NEW, PAGE, crawl="c")
    assert isinstance(own, Hit) and not own.original.committed
    assert client.lookup(NEW, PAGE) == Miss()
    assert client.commit("c", "Finished")["exit"] == "Finished"
    assert isinstance(client.lookup(NEW, PAGE), Hit)
    with pytest.raises(CrawlEnded):
        client.begin("c")
    with pytest.raises(UnknownCrawl):
        client.cancel("nobody")
    assert client.report([stored(5)], crawl="c") == Reported(dropped=1)
    counts = client.counts.as_json()
    assert [counts[n] for n in ("added", "unchanged", "refused", "bad", "not_reported")] == [
        2, 1, 2, 2, 1,
    ]  # fmt: skip


def test_the_client_says_why_captures_are_not_taken(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    client.begin("c")
    no_date = {"digest": NEW, "url": PAGE}
    unfit = [stored(status=404), stored(2, status=404), no_date, stored(4, mime=b"?")]
    for _ in range(2):
        done = client.report([*unfit, [1]], crawl="c")  # type: ignore[list-item]
        assert (done.refused, done.bad) == (2, 3)
    whys = list(done.why)
    assert done.why["status"] == 2 and done.why["a capture needs date"] == 1
    assert any("not a list" in why for why in whys) and len(whys) == 4

    def logged() -> list[str]:  # threads of other tests, such as those of a driver, may log, too
        return [one.getMessage() for one in caplog.records if one.name == "dedupindex.client"]

    assert [text.partition(": ")[2] for text in logged()] == whys  # each once
    for number in range(100):  # texts of its captures do not fill the crawler's log
        client.report([stored(url=f"{number}", date=f"{number}")], crawl="c")
    assert len(logged()) == 20


def test_a_server_that_refuses_reports_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    unknown = b'{"error": {"code": "unauthorized", "message": "this token is not known here"}}'
    with Client(transport=Mock(lambda ask: Reply(401, unknown)), crawl="c") as client:
        for number in range(32):
            assert client.report([stored(number)]).dropped == 1
    logged = [one.getMessage() for one in caplog.records if one.name == "dedupindex.client"]
    assert logged == [
        "captures that are not reported (this is said once): this token is not known here",
        "captures that could not be reported: 32; index their WARCs",
    ]


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("size", [float("nan"), float("inf"), nested(100_000)])
def test_a_value_that_is_no_json_costs_no_other_capture(client: Client, size: Any) -> None:
    client.begin("c")
    good = [stored(number) for number in range(1, 5)]
    done = client.report([*good[:2], stored(9, size=size), *good[2:]], crawl="c")
    assert done == Reported(added=4, bad=1)


@pytest.mark.parametrize(
    "more", [{"etag": "x" * (17 << 20)}, {"size": 10**400}, {"size": nested(900)}]
)
def test_a_capture_that_the_server_cannot_read_costs_no_other(
    client: Client, more: dict[str, Any]
) -> None:
    client.begin("c")
    good = [stored(number, f"http://example.com/{number}") for number in range(1, 41)]
    done = client.report([*good[:20], stored(99, **more), *good[20:]], crawl="c")
    assert (done.added, done.dropped + done.bad, done.kept) == (40, 1, 0)
    counts = client.counts.as_json()
    assert (counts["added"], counts["not_reported"] + counts["bad"]) == (40, 1)


def test_a_request_is_not_split_for_ever() -> None:
    asked = list[int]()

    def refuse(ask: Ask) -> Reply:
        asked.append(len(json.loads(ask.content)["captures"]))
        error = {"error": {"code": "bad_request", "message": "no"}}
        return Reply(400, json.dumps(error).encode())

    client = Client(transport=Mock(refuse), crawl="c")
    assert client.report([stored(number) for number in range(1000)]) == Reported(dropped=1000)
    assert asked[:3] == [1000, 500, 250] and len(asked) < 500


def test_what_is_not_sent_of_a_split_request_is_kept_in_order(switch: Switch) -> None:
    client, big = switched(switch, crawl="c"), stored(1, size=10**400)
    client.begin("c")
    seen = switch.asked

    def handle(ask: Ask) -> Reply:
        switch.on = switch.asked < seen + 2  # the whole, and its earlier half
        return Switch.handle(switch, ask)

    client._transport = Mock(handle)
    done = client.report([*(stored(n, f"http://a.test/{n}") for n in range(2, 5)), big])
    assert (done.added, done.kept) == (2, 2)
    switch.on = True
    client._transport = Mock(switch.handle)
    assert client.report([]) == Reported(added=1, dropped=1)


@pytest.mark.parametrize("given", [stored(), "sha1:short"])
def test_a_capture_that_is_not_in_a_list(client: Client, given: Any) -> None:
    with pytest.raises(
        BadInput, match=r"list of captures, not a (dict|str): report\(\[capture\]\)"
    ):
        client.report(given, crawl="c")
    assert client.counts.as_json()["bad"] == 0


def test_the_example_of_the_manual_reports_its_capture(
    make_index: MakeIndex, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "crawlers.md").read_text()
    example = page.split("## Any crawler in Python")[1].split("```python\n")[1].split("```")[0]
    with serving(make_index([])) as server:
        exec(example.replace("8484", str(server.port)), {})  # noqa: S102 (our own manual)
    counts = ast.literal_eval(capsys.readouterr().out)
    assert {name: count for name, count in counts.items() if count} == {
        "lookups": 1, "misses": 1, "added": 1,
    }  # fmt: skip


def test_settings_that_cannot_be_sent_are_not_remembered(client: Client) -> None:
    with pytest.raises(DedupError, match="invalid"):
        client.begin("c", policy=object())
    assert client.report([stored()], crawl="c") == Reported(dropped=1)


def test_names_of_crawls_that_cannot_be_sent(client: Client) -> None:
    assert client.report([stored()], crawl="\ud800") == Reported(dropped=1)
    assert isinstance(client.lookup(OLD, PAGE, crawl="\ud800"), NotAsked)
    for call in (client.commit, client.cancel, client.report_counts):
        with pytest.raises(DedupError, match="invalid"):
            call("\ud800")
    client.close()


def test_of_two_claims_one_stores(client: Client) -> None:
    client.begin("c")
    assert isinstance(client.claim(OLD, PAGE, crawl="c"), Hit)
    mine = client.claim(NEW, PAGE, crawl="c", lease=30)
    assert isinstance(mine, Claimed)
    theirs = client.claim(NEW, PAGE, crawl="c")
    assert theirs == Taken(mine.until)
    assert not client.release(NEW, "0" * 32)
    assert client.release(NEW, mine.token)
    assert isinstance(client.claim(NEW, PAGE, crawl="c"), Claimed)
    assert isinstance(client.claim(NEW, PAGE), NotAsked)  # of no crawl
    assert client.counts.as_json()["taken"] == 1


def test_a_token_lets_a_client_write(index: Path) -> None:
    secret = tokens.add(index, "crawler", Role.WRITE, "c")
    app = app_of(index)
    with Client(transport=ToApp(app)) as nobody:
        with pytest.raises(DedupError, match="unauthorized"):
            nobody.begin("c")
        assert nobody.report([stored()], crawl="c") == Reported(dropped=1)
    with Client(transport=ToApp(app, secret)) as client:
        client.begin("c")
        assert client.report([stored()], crawl="c") == Reported(added=1)
        with pytest.raises(DedupError, match="forbidden"):
            client.begin("d")


class Switch:
    """A transport that can be turned off, and counts what it is asked."""

    def __init__(self, transport: Transport) -> None:
        self.on, self.asked = True, 0
        self._transport = transport

    def handle(self, ask: Ask) -> Reply:
        self.asked += 1
        if self.on:
            return self._transport.exchange(ask)
        raise NotConnected("nobody listens")


@pytest.fixture
def switch(index: Path) -> Switch:
    return Switch(ToApp(app_of(index)))


def switched(switch: Switch, **how: Any) -> Client:
    return Client(transport=Mock(switch.handle), **how)


def test_the_circuit_breaker_opens_and_closes(switch: Switch) -> None:
    now = [0.0]
    client = switched(switch, breaker=Breaker(3, 30.0, lambda: now[0]))
    switch.on = False
    why = [client.lookup(OLD, PAGE) for _ in range(5)]
    assert [getattr(answer, "why", "") for answer in why] == ["unreachable"] * 3 + ["outage"] * 2
    assert switch.asked == 3
    now[0] = 1
    assert [getattr(client.lookup(OLD, PAGE), "why", "") for _ in range(2)] == [
        "unreachable",
        "outage",
    ]
    now[0], switch.on = 2, True
    assert all(isinstance(client.lookup(OLD, PAGE), Hit) for _ in range(3))
    assert client.counts.as_json() == {
        "lookups": 10, "hits": 3, "misses": 0, "taken": 0, "spelled_otherwise": 0,
        "answered_by_filter": 0,
        "added": 0, "unchanged": 0, "refused": 0, "bad": 0, "not_reported": 0,
        "not_looked_up": 7, "not_looked_up_why": {"outage": 3, "unreachable": 4},
    }  # fmt: skip


def back_after(outage: float, *, takes: float = 0.0, status: int = 0) -> tuple[float, list[float]]:
    """How long after an outage a lookup is answered, and when the server was probed during it.

    A crawler asks every 0.05 s of a clock that only this test moves. A lookup that fails `takes`
    as long and ends with a status; with none the connection is refused.
    """
    now, probes = [100.0], list[float]()
    begun = now[0]

    def handle(ask: Ask) -> Reply:
        if now[0] >= begun + outage:
            return of_json({"duplicate": False})
        probes.append(now[0] - begun)
        now[0] += takes
        if not status:
            raise TimeoutError("slow") if takes else NotConnected("nobody listens")
        return Reply(status, b"")

    transport = Mock(handle)
    with Client(transport=transport, breaker=Breaker(clock=lambda: now[0])) as client:
        while isinstance(client.lookup(NEW, PAGE), NotAsked):
            now[0] += 0.05
    return now[0] - begun - outage, probes


@pytest.mark.parametrize("outage", [0.5, 3, 10, 60, 1200])
def test_a_server_that_was_restarted_is_found_within_two_seconds(outage: float) -> None:
    """Probes go on every second however long the outage, because they cost nothing."""
    away, probes = back_after(outage)
    assert away <= 1.1
    assert len(probes) <= 5 + outage


@pytest.mark.parametrize("failing", [{"status": 503}, {"takes": 2.0}])
def test_a_server_that_is_there_and_fails_is_probed_more_and_more_rarely(
    failing: dict[str, Any],
) -> None:
    """Each probe may hold up a thread of the crawler, or load a server that has too much to do."""
    slow = failing.get("takes", 0)
    for outage in (3.0, 10, 15, 60, 900):
        away, probes = back_after(outage, **failing)
        assert away <= min(max(1, outage / 10), 30) + slow + 0.1
        if outage <= 15:
            assert away <= 2 + slow
    pauses = [round(later - one - slow, 3) for one, later in pairwise(probes[4:])]
    assert 1 <= pauses[0] <= 2 and pauses[-1] == pytest.approx(30, abs=0.1)
    assert pauses == sorted(pauses)


def test_one_caller_probes_at_a_time() -> None:
    now = [0.0]
    breaker = Breaker(2, clock=lambda: now[0])
    for _ in range(2):
        assert breaker.lets_through()
        breaker.failed(refused=True)
    now[0] = 1
    assert [breaker.lets_through() for _ in range(3)] == [True, False, False]
    now[0] = 9  # it hangs
    assert not breaker.lets_through()
    breaker.abandoned()  # its task was cancelled: the next caller probes
    assert [breaker.lets_through() for _ in range(2)] == [True, False]
    now[0] = 100  # a probe that never ended does not end all probing
    assert [breaker.lets_through() for _ in range(2)] == [True, False]
    breaker.succeeded()
    assert [breaker.lets_through() for _ in range(2)] == [True, True]


def test_a_task_that_is_cancelled_leaves_the_probe_to_the_next() -> None:
    now = [0.0]
    breaker = Breaker(1, clock=lambda: now[0])
    breaker.failed()
    now[0] = 1

    async def hang(ask: Ask) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError

    async def run() -> None:
        async with AsyncClient(transport=AsyncMock(hang), breaker=breaker) as client:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await client.lookup(NEW, PAGE)

    asyncio.run(run())
    assert breaker.lets_through()


def test_lookups_leave_no_lines_in_the_log_of_the_crawler(
    client: Client, index: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        client.lookup(OLD, PAGE)

        async def run() -> None:
            with serving(index) as server:
                async with AsyncClient(f"http://127.0.0.1:{server.port}") as other:
                    assert isinstance(await other.lookup(OLD, PAGE), Hit)

        asyncio.run(run())
    # Threads of other tests, such as those of a cluster's driver, may log meanwhile.
    assert [one for one in caplog.records if one.thread == threading.get_ident()] == []


def test_every_request_has_a_content_length(index: Path) -> None:
    """None is chunked: a server cannot tell for sure whether such a body has ended."""
    seen, app = list[tuple[str, Message]](), ToApp(app_of(index))

    def answer(handler: BaseHTTPRequestHandler) -> None:
        seen.append((handler.command, handler.headers))
        reply = app.exchange(Ask(handler.command, handler.path, body_of(handler), 9))
        replying(*reply)(handler)

    with stub_server(answer, read=False) as url, Client(url, crawl="c") as client:
        client.begin("c")
        client.lookup(OLD, PAGE)
        client.lookup(OLD, "http://a.example/" + "x" * 9000)
        client.lookups([(OLD, PAGE)])
        claim = client.claim(NEW, PAGE)
        assert isinstance(claim, Claimed) and client.release(NEW, claim.token)
        assert client.report([stored(2)]) == Reported(added=1)
        client.report_counts("c")
        client.commit("c")
    assert {method for method, _ in seen} == {"GET", "POST", "DELETE"}
    for method, headers in seen:
        assert "Transfer-Encoding" not in headers
        assert method == "GET" or int(headers["Content-Length"]) > 0


def test_a_name_and_password_in_the_address_are_sent() -> None:
    """As a proxy before the server may want them."""
    seen = list[Message]()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        seen.append(handler.headers)
        replying(200, b'{"duplicate": false}')(handler)

    with stub_server(answer) as url:
        for named, how in (
            (url.replace("//", "//me:p%40ss@"), {}),
            (url + "/behind/a/proxy/", {"token": "t", "headers": {"host": "a.example"}}),
        ):
            with Client(named, **how) as client:  # type: ignore[arg-type]
                assert client.lookup(NEW, PAGE) == Miss()
    assert [one["Authorization"] for one in seen] == ["Basic bWU6cEBzcw==", "Bearer t"]
    assert [one["Host"] for one in seen] == [url.removeprefix("http://"), "a.example"]


def test_reports_of_an_outage_are_sent_later(switch: Switch) -> None:
    client = switched(switch, failures=1000, crawl="c")
    switch.on = False
    with pytest.raises(IndexUnavailable):
        client.begin("c")
    before = switch.asked
    assert client.report([stored(1), stored(2)]) == Reported(kept=2)
    assert switch.asked == before + 2  # tried twice, no more
    assert client.report([stored(3)]) == Reported(kept=3)
    with pytest.raises(IndexUnavailable):
        client.commit("c")
    switch.on = True
    assert client.report([stored(4)]) == Reported(added=4)  # and the crawl was begun for it
    assert client.kept == 0
    assert client.commit("c")["captures"] == 4


@pytest.mark.parametrize("fails", [False, True])
def test_a_commit_waits_for_captures_that_another_thread_sends(switch: Switch, fails: bool) -> None:
    taken, go_on = threading.Event(), threading.Event()

    def handle(ask: Ask) -> Reply:
        if ask.path.startswith("/captures") and not taken.is_set():
            taken.set()
            assert go_on.wait(DEADLINE)
            if fails:
                raise NotConnected("nobody listens")
        if ask.path.endswith("/commit"):
            assert go_on.is_set()
        return switch.handle(ask)

    client = Client(transport=Mock(handle), crawl="c")
    client.begin("c")
    sender = threading.Thread(target=client.report, args=([stored(1), stored(2)],))
    sender.start()
    assert taken.wait(DEADLINE)
    threading.Timer(0.5, go_on.set).start()
    assert client.commit("c")["captures"] == 2
    sender.join()
    assert client.counts.as_json()["not_reported"] == 0


def test_a_commit_does_not_wait_for_ever(switch: Switch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dedupindex.client.core.PAUSE", 0.01)
    client = switched(switch, crawl="c", request_timeout=0.02)
    client.begin("c")
    client._queue.add("c", [b"{}"])
    batch = client._queue.take()
    assert batch is not None
    with pytest.raises(IndexUnavailable, match="wait to be reported first"):
        client.commit("c")
    client._queue.done(batch)
    assert client.commit("c")["state"] == "committed"


def test_missed_lookups_and_reports_are_sent_by_crawl(switch: Switch) -> None:
    """With the commit, before it, and in the end; of two clients the server adds it up."""
    now = [0.0]
    first = switched(switch, breaker=Breaker(1, 5.0, lambda: now[0]), crawl="c", keep=2)
    second = switched(switch, crawl="c")
    for name in "cd":
        first.begin(name)
    switch.on = False
    first.lookup(OLD, PAGE)
    first.lookups([(OLD, PAGE)] * 3, crawl="d")
    first.claim(OLD, PAGE)
    first.report([stored(n) for n in range(5)])
    second.lookup(OLD, PAGE)
    with pytest.raises(IndexUnavailable):
        first.report_counts("c")
    switch.on, now[0] = True, 9
    told = first.report_counts("c")
    assert (told["not_looked_up"], told["not_reported"]) == (2, 3)
    switch.on = False
    first.lookup(OLD, PAGE)
    switch.on, now[0] = True, 18
    for _ in range(2):
        shown = first.commit("c")
        assert (shown["not_looked_up"], shown["not_reported"], shown["captures"]) == (3, 3, 2)
    second.close()
    first.close()
    with switched(switch) as third:
        assert third.report_counts("c")["not_looked_up"] == 4
        assert third.cancel("d")["not_looked_up"] == 3


def test_a_client_without_failures_sends_zeros_once(switch: Switch) -> None:
    """Otherwise a crawl that curl commits looks like that of a client that says nothing."""
    client = switched(switch, crawl="c")
    client.begin("c")
    client.lookup(OLD, PAGE)
    before = switch.asked
    client.close()
    assert switch.asked == before + 1
    with switched(switch) as other:
        told = other.commit("c")
    assert (told["not_looked_up"], told["not_reported"]) == (0, 0)
    with switched(switch, crawl="d") as reporting:
        reporting.begin("d")
        reporting.report([stored(1)])
        reporting.commit("d")
        before = switch.asked
    assert switch.asked == before


@pytest.mark.parametrize("questions", [[{"digest": OLD, "url": PAGE}], {"digest": OLD}, OLD, [OLD]])
def test_lookups_of_a_wrong_form_are_refused(switch: Switch, questions: Any) -> None:
    client = switched(switch)
    with pytest.raises(BadInput, match=r"lookups takes a list of pairs \(digest, URL\), not a "):
        client.lookups(questions)

    async def ask() -> None:
        async with AsyncClient(transport=AsyncMock(switch.handle)) as other:  # type: ignore[arg-type]
            await other.lookups(questions)

    with pytest.raises(BadInput, match="lookups takes a list of pairs"):
        asyncio.run(ask())
    assert not switch.asked and not client.counts.as_json()["lookups"]


def test_dropped_captures_are_counted(switch: Switch) -> None:
    client = switched(switch, failures=1, crawl="c", keep=3)
    switch.on = False
    assert client.report([stored(n) for n in range(5)]) == Reported(kept=3, dropped=2)
    client.close()
    assert client.counts.as_json()["not_reported"] == 5


def test_what_waits_is_sent_at_the_end_though_the_pause_of_an_outage_is_not_over(
    switch: Switch,
) -> None:
    client = switched(switch, breaker=Breaker(1, 30.0, lambda: 0.0), crawl="c")
    client.begin("c")
    switch.on = False
    assert client.report([stored(1), stored(2)]) == Reported(kept=2)
    asked, switch.on = switch.asked, True
    assert client.flush() == Reported(kept=2) and switch.asked == asked  # in the pause
    client.close()
    assert (client.counts.as_json()["added"], client.counts.as_json()["not_reported"]) == (2, 0)
    switch.on = False
    away = switched(switch, breaker=Breaker(1, 30.0, lambda: 0.0), crawl="c")
    away.report([stored(3)])
    asked = switch.asked
    away.close()
    assert switch.asked == asked + 1  # once, however many requests wait
    assert away.counts.as_json()["not_reported"] == 1


def test_an_outage_of_the_transport_never_raises(switch: Switch) -> None:
    client = switched(switch)
    client.close()  # as in a crawler that ends while threads still ask
    assert isinstance(client.lookup(OLD, PAGE), NotAsked)


def test_many_threads_share_a_client(client: Client) -> None:
    def ask() -> None:
        for _ in range(50):
            client.lookup(OLD, PAGE)
            client.lookup(NEW, PAGE)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = client.counts.as_json()
    assert (counts["lookups"], counts["hits"], counts["misses"]) == (800, 400, 400)


# --- servers that fail ------------------------------------------------------------------------


def an_original(**more: Any) -> bytes:
    original = {"url": PAGE, "date": "2026-11-01T09:14:17Z", "digest": OLD, "record_id": None}
    answer = {"duplicate": True, "match": "digest", "original": {**original, **more}}
    return json.dumps(answer).encode()


ANSWERS = {
    "503": (replying(503, b'{"error": {"code": "index_unavailable", "message": ""}}'), "status"),
    "500 of a proxy": (replying(500, b"<html>"), "status"),
    "404 of another server": (replying(404, b"<html>not here"), "garbage"),
    "redirect": (replying(302, b""), "garbage"),
    "204": (replying(204, b""), "garbage"),
    "not JSON": (replying(200, b"<html>welcome to this hotel"), "garbage"),
    "not UTF-8": (replying(200, b'{"duplicate": false, "\xff": 1}'), "garbage"),
    "another answer": (replying(200, b'{"duplicate": "no"}'), "garbage"),
    "nothing": (replying(200, b""), "garbage"),
    "a list": (replying(200, b"[]"), "garbage"),
    "half an answer": (replying(200, b'{"duplicate": false}', 100), "unreachable"),
    "no original": (replying(200, b'{"duplicate": true, "match": "digest"}'), "garbage"),
    "a date that is none": (replying(200, an_original(date="yesterday")), "garbage"),
    "a header line in a URL": (replying(200, an_original(url="http://a\r\nX: y")), "garbage"),
    "one hidden in base64": (replying(200, an_original(url_base64="YQ0KWDogeQ==")), "garbage"),
    "nested deeply": (replying(200, b"[" * 100_000), "garbage"),
    "no HTTP": (lambda handler: handler.wfile.write(b"SSH-2.0\r\n"), "unreachable"),
    "closed at once": (lambda handler: None, "unreachable"),
}


@pytest.mark.parametrize("case", ANSWERS)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_failing_server_is_not_asked_and_loses_nothing(case: str, kind: str) -> None:
    answer, why = ANSWERS[case]
    with stub_server(answer) as url:
        found, counts = all_of(kind, url, request_timeout=DEADLINE, timeout=DEADLINE)
    assert [type(one) for one in found[:4]] == [NotAsked] * 4
    assert {one.why for one in found[:4]} == {why}
    assert found[4] == Reported(kept=1)
    assert (counts["lookups"], counts["not_looked_up"]) == (4, 4)
    assert counts["misses"] == counts["hits"] == 0


def all_of(kind: str, url: str, **how: Any) -> tuple[list[Any], dict[str, Any]]:
    """What each operation makes of a server, and the counts."""
    how = {"crawl": "c", "failures": 100, **how}

    async def ask() -> tuple[list[Any], dict[str, Any]]:
        client = AsyncClient(url, **how)
        calls: list[Awaitable[Any]] = [
            client.lookup(OLD, PAGE), client.lookups([(OLD, PAGE)]), client.claim(OLD, PAGE),
            client.lookup(OLD, PAGE + "x" * 9000), client.report([stored()]),
        ]  # fmt: skip
        found = [await call for call in calls]
        counts = client.counts.as_json()
        await client.aclose()
        return [one[0] if isinstance(one, list) else one for one in found], counts

    if kind == "async":
        return asyncio.run(ask())
    with Client(url, **how) as client:
        found: list[Any] = [
            client.lookup(OLD, PAGE), *client.lookups([(OLD, PAGE)]), client.claim(OLD, PAGE),
            client.lookup(OLD, PAGE + "x" * 9000), client.report([stored()]),
        ]  # fmt: skip
        return found, client.counts.as_json()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_server_that_is_down(kind: str) -> None:
    with refusing_port() as port:
        found, counts = all_of(kind, f"http://127.0.0.1:{port}")
    assert {one.why for one in found[:4]} == {"unreachable"}
    assert found[4] == Reported(kept=1)
    assert counts["not_looked_up"] == 4


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_server_that_hangs(kind: str) -> None:
    end = threading.Event()
    try:
        with stub_server(lambda handler: end.wait(20)) as url:
            found, _ = all_of(kind, url, timeout=0.05, request_timeout=0.05)
            end.set()
    finally:
        end.set()
    assert {one.why for one in found[:4]} == {"timeout"}


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_server_that_drips(kind: str) -> None:
    """Each byte comes in time, the answer does not."""
    end = threading.Event()

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        while not end.wait(0.01):
            handler.wfile.write(b" ")

    with stub_server(drip) as url:
        try:
            found, _ = all_of(kind, url, timeout=0.1, request_timeout=0.1)
        finally:
            end.set()
    assert {one.why for one in found[:4]} == {"timeout"}


def test_half_the_answers_of_a_batch() -> None:
    with (
        stub_server(replying(200, b'{"answers": [{"duplicate": false}]}')) as url,
        Client(url) as client,
    ):
        answers = client.lookups([(OLD, PAGE), (NEW, PAGE)])
    assert [getattr(answer, "why", "") for answer in answers] == ["garbage"] * 2


def test_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crawler's own proxy setting must not carry its lookups."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with stub_server(replying(200, b'{"duplicate": false}')) as url, Client(url) as client:
        assert client.lookup(OLD, PAGE) == Miss()


def test_async_over_the_wire(index: Path) -> None:
    async def crawl(url: str) -> AsyncClient:
        async with AsyncClient(
            url, crawl="c", timeout=DEADLINE, request_timeout=DEADLINE
        ) as client:
            await client.begin("c")
            assert isinstance(await client.lookup(OLD, PAGE), Hit)
            claim = await client.claim(NEW, PAGE)
            assert isinstance(claim, Claimed)
            assert await client.release(NEW, claim.token)
            assert await client.report([stored(n) for n in range(1, 5)]) == Reported(added=4)
            assert (await client.flush(), client.kept) == (Reported(), 0)
            await asyncio.gather(*(client.lookup(str(sha1(n)), PAGE) for n in range(20)))
            answers = await client.lookups([(NEW, PAGE), (str(sha1(99)), PAGE)])
            assert [type(answer) for answer in answers] == [Hit, Miss]
            assert (await client.commit("c"))["captures"] == 4
            await client.begin("d")
            assert (await client.cancel("d", "Aborted"))["exit"] == "Aborted"
        return client

    with serving(index) as server:
        client = asyncio.run(crawl(f"http://127.0.0.1:{server.port}"))
    counts = client.counts.as_json()
    assert (counts["lookups"], counts["hits"], counts["not_looked_up"]) == (24, 6, 0)


def test_what_was_reported_before_an_interrupt_is_counted() -> None:
    answers = [of_json({"added": 1000, "unchanged": 0, "refused": {}, "bad": 0})]

    def handle(ask: Ask) -> Reply:
        if not answers:
            raise KeyboardInterrupt
        return answers.pop()

    client = Client(transport=Mock(handle), crawl="weekly")
    with pytest.raises(KeyboardInterrupt):
        client.report([{"digest": OLD}] * 1500)
    assert (client.counts.as_json()["added"], client.kept) == (1000, 500)


def test_a_cancelled_report_is_kept(index: Path) -> None:
    end = threading.Event()

    async def crawl(url: str) -> int:
        client = AsyncClient(url, crawl="c")
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.report([stored()])
        return client.kept

    with stub_server(lambda handler: end.wait(20)) as url:
        try:
            assert asyncio.run(crawl(url)) == 1
        finally:
            end.set()


def test_waiting_captures_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dedupindex.client.core.MOST_BYTES", 1000)
    keeping = ReportQueue(100, 3)
    assert keeping.add("a", [b"x" * 200] * 7) == 2
    parcel = keeping.take()
    assert parcel is not None and len(parcel.captures) == 3
    assert keeping.add("a", [b"x" * 200] * 7) == 4
    assert keeping.give_back(parcel) == 0  # what had room is not lost
    assert keeping.add("a", [b"x"]) == 1
    assert keeping.clear() == {"a": 8}
    assert keeping.add("a", [b"x" * 900, b"x" * 100]) == 0
