"""`Client.last`: fetch only what has changed; whatever goes wrong, fetch it in full."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dedupindex.client import Ask, AsyncClient, Client, Last, Reply
from dedupindex.index.identity import Settings
from server.app import create_app
from server.config import Config
from server.live_index import LiveIndex
from tests.conftest import MakeIndex
from tests.support.captures import capture, sha1
from tests.support.transports import AsyncMock, Mock, ToApp, of_json

PAGE, ETAG, DATE = "http://example.com/a", '"1"', "Mon, 02 Jan 2023 03:04:05 GMT"


def app_of(index: Path) -> Any:
    live = LiveIndex(index)
    live.refresh()
    return create_app(Config(index), live)


@pytest.fixture
def client(make_index: MakeIndex) -> Client:
    index = make_index([capture(90)], Settings(etag=True))
    return Client(crawl="a", transport=ToApp(app_of(index)))


def reported(url: str | bytes = PAGE, **more: Any) -> dict[str, Any]:
    date = "2026-11-20T09:14:17Z"
    stated = {"mime": "image/png", "size": 9, "etag": ETAG, "last_modified": DATE}
    return {"digest": str(sha1(1)), "url": url, "date": date, "status": 200, **stated, **more}


@pytest.mark.parametrize("url", [PAGE, b"http://example.com/caf\xc3\xa9", PAGE + "?" + 9000 * "x"])
def test_the_conditions_and_the_original_of_what_was_seen_last(
    client: Client, url: str | bytes
) -> None:
    client.begin("a")
    assert client.last(url) == Last()
    assert client.report([reported(url)]).added == 1
    last = client.last(url)
    assert (last.known, last.why) == (True, "")
    assert last.conditions == {"If-None-Match": ETAG, "If-Modified-Since": DATE}
    assert last.original is not None
    assert last.original.url_bytes == (url.encode() if isinstance(url, str) else url)
    assert client.last(PAGE, crawl="none").why == "unknown_crawl"
    done = client.report([reported(url, date="2026-11-21T09:14:17Z", etag='"2"',
                                   revisit="server-not-modified")])  # fmt: skip
    assert (done.added, done.bad) == (0, 0)
    assert client.last(url).conditions["If-None-Match"] == '"2"'
    assert client.counts.as_json()["lookups"] == 0


def test_an_index_without_validators_means_in_full(make_index: MakeIndex) -> None:
    client = Client(transport=ToApp(app_of(make_index([capture(90)]))))
    assert client.last(PAGE) == Last(why="strategy_unavailable")


ORIGINAL = {"url": PAGE, "date": "2026-11-20T09:14:17Z", "record_id": None, "digest": "sha1:A"}
GOOD = {"known": True, "original": ORIGINAL, "conditions": {"If-None-Match": ETAG}}


@pytest.mark.parametrize(
    "answer",
    [
        [],
        {},
        {"known": 1},
        {**GOOD, "original": None},
        {**GOOD, "original": {**ORIGINAL, "url": "http://a/\r\nX: y"}},
        {**GOOD, "conditions": None},
        {**GOOD, "conditions": {"If-None-Match": '"1"\r\nX: y'}},
        {**GOOD, "conditions": {"If-None-Match": 1}},
    ],
    ids=str,
)
def test_what_cannot_be_read_means_in_full(answer: Any) -> None:
    last = Client(transport=Mock(lambda ask: of_json(answer))).last(PAGE)
    assert (last.conditions, last.original, last.why) == ({}, None, "garbage")


def test_the_asynchronous_client_asks_the_same() -> None:
    async def answered(ask: Ask) -> Reply:
        return of_json(GOOD)

    async def asked() -> Last:
        async with AsyncClient(transport=AsyncMock(answered)) as client:
            return await client.last(PAGE)

    assert asyncio.run(asked()) == Client(transport=Mock(lambda ask: of_json(GOOD))).last(PAGE)


BOTH = {"If-None-Match": ETAG, "If-Modified-Since": DATE}


@pytest.mark.parametrize(
    ("conditions", "status", "headers", "confirmed"),
    [
        (BOTH, 304, {}, True),
        (BOTH, 304, {"etag": ETAG}, True),
        (BOTH, 304, {"ETAG": " W/" + ETAG}, True),
        (BOTH, 304, {"ETag": ETAG, "Last-Modified": "other"}, True),
        (BOTH, 304, {"ETag": '"2"', "Last-Modified": DATE}, False),
        (BOTH, 304, {"Last-Modified": "other"}, False),
        ({"If-Modified-Since": DATE}, 304, {"Last-Modified": DATE, "ETag": '"2"'}, True),
        ({"If-None-Match": ETAG}, 304, {"Last-Modified": "other"}, True),
        (BOTH, 200, {"ETag": ETAG}, False),
        ({}, 304, {"ETag": ETAG}, False),
    ],
)
def test_a_304_is_a_revisit_only_if_it_was_asked_for_and_contradicts_nothing(
    conditions: dict[str, str], status: int, headers: dict[str, str], confirmed: bool
) -> None:
    answer = {**GOOD, "conditions": conditions}
    last = Client(transport=Mock(lambda ask: of_json(answer))).last(PAGE)
    assert last.is_confirmed(status, headers) is confirmed
