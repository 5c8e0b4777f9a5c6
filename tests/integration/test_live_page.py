"""The live page and its events: through Flask, and from a server of several processes."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, closing
from http.client import HTTPConnection, HTTPResponse
from itertools import islice

import pytest
from flask.testing import FlaskClient

from dedupindex.index import tokens
from dedupindex.index.tokens import Role
from server.pages import live_page
from tests.conftest import MakeIndex
from tests.integration.test_server_live import (
    DEADLINE,
    JSON_BODY,
    SHIPPED,
    Running,
    question,
    serving,
    until,
)
from tests.support.captures import capture
from tests.unit.server.test_pages import ALL, HERE, served

EVENTS = "/pages/live/events"


@pytest.fixture
def web(make_index: MakeIndex, monkeypatch: pytest.MonkeyPatch) -> FlaskClient:
    monkeypatch.setattr(live_page, "_TICK", 0.001)
    monkeypatch.setattr(live_page, "EVERY", 0.002)
    monkeypatch.setattr(live_page, "LONGEST", 0.05)
    web = served(make_index([capture(1)], ALL))
    web.post("/crawls", json={"name": "weekly<i>"})
    return web


def events(text: str) -> list[dict[str, str]]:
    """The events of a stream that are no heartbeats, each by its fields."""
    found = []
    for block in text.split("\n\n"):
        fields: dict[str, str] = {}
        for line in filter(None, block.split("\n")):
            name, _, value = line.partition(": ")
            fields[name] = fields.get(name, "") + value
        if fields.get("event", "beat") != "beat":
            found.append(fields)
    return found


def test_a_stream_sends_each_part_once_and_ends(web: FlaskClient) -> None:
    answer = web.get(EVENTS)
    assert answer.content_type == "text/event-stream; charset=utf-8"
    first = events(answer.text)
    assert [event["event"] for event in first] == ["now", "minutes"]
    assert "weekly&lt;i&gt;" in first[0]["data"]
    assert "<i>" not in answer.text
    again = web.get(EVENTS, headers={"Last-Event-ID": first[1]["id"]})
    assert events(again.text) == []
    web.post("/crawls", json={"name": "another"})
    later = web.get(EVENTS, headers={"Last-Event-ID": first[1]["id"]})
    assert [event["event"] for event in events(later.text)] == ["now"]


def test_the_page_has_what_the_first_events_have(web: FlaskClient) -> None:
    page = web.get("/pages/live").text
    lines = "".join(page.split("\n"))
    assert '<noscript><meta http-equiv="refresh"' in lines
    for event in events(web.get(EVENTS).text):
        assert event["data"] in lines
    assert "begun, no lookup yet" in page


def test_the_page_has_the_running_minute_and_crawls_that_have_just_ended(web: FlaskClient) -> None:
    assert "asked or reported anything in the last hour." in web.get("/pages/live").text
    web.get(question(1) + "&crawl=weekly<i>")
    web.application.config["live"].crawls.write_counts()
    page = web.get("/pages/live").text
    assert "anything in the last hour" not in page and "1 lookup, 1 duplicate" in page
    web.post("/crawls/weekly<i>/commit")
    page = web.get("/pages/live").text
    assert "ended: committed" in page and "1 lookup, 1 duplicate" in page


def test_an_unknown_crawl_and_one_stream_too_many_are_refused(
    web: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert web.get(f"{EVENTS}?crawl=other").status_code == 404
    monkeypatch.setattr(live_page, "LONGEST", 60.0)
    open_streams = [web.get(EVENTS) for _ in range(live_page.STREAMS)]
    for stream in open_streams:
        next(stream.response)  # type: ignore[call-overload]
    refused = web.get(EVENTS)
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
    for stream in open_streams:
        stream.close()
    monkeypatch.setattr(live_page, "LONGEST", 0.0)
    assert web.get(EVENTS).status_code == 200


def test_a_stream_ends_when_its_token_is_removed(
    make_index: MakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_page, "_TICK", 0.05)
    monkeypatch.setattr(live_page, "EVERY", 0.05)
    index = make_index([capture(1)], ALL)
    text = tokens.add(index, "someone", Role.READ)
    web = served(index, private=True)
    assert web.get(EVENTS).status_code == 401
    web.post("/pages/sign-in", data={"token": text}, headers=HERE)
    stream = web.get(EVENTS)
    parts = iter(stream.response)  # type: ignore[arg-type]
    assert len([*islice(parts, 3)]) == 3
    tokens.remove(index, "someone")
    assert [*parts] == []


def opened(stack: ExitStack, server: Running) -> HTTPResponse:
    connection = stack.enter_context(
        closing(HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE))
    )
    connection.request("GET", EVENTS)
    return connection.getresponse()


def test_events_have_the_lookups_of_all_processes_and_end_with_the_server(
    make_index: MakeIndex,
) -> None:
    index = make_index([capture(1, b"http://example.com/page")])
    with serving(index, "--workers", "2", command=SHIPPED) as server, ExitStack() as stack:
        with closing(HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE)) as connection:
            connection.request("POST", "/crawls", json.dumps({"name": "weekly"}), JSON_BODY)
            assert connection.getresponse().status == 200
        for _ in range(20):  # each on a connection of its own, so both workers are asked
            assert server.get(question(1) + "&crawl=weekly")[0] == 200
        assert until(lambda: b'"lookups":20,' in server.get("/crawls/weekly")[1])
        streams = [opened(stack, server) for _ in range(live_page.STREAMS)]
        for stream in streams[:2]:
            while b"was started, also those that name no crawl: 20." not in stream.readline():
                pass
        for stream in streams[2:]:
            stream.close()
        assert server.get("/healthz")[0] == 200
        start = time.monotonic()
        server.process.terminate()
        assert server.process.wait(DEADLINE) == 0
        assert time.monotonic() - start < 20  # they would be killed after 30
        assert streams[0].read() is not None  # and the stream ended as it should
