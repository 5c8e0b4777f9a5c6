"""Payloads that come twice in one request: lookups, reports and claims; numbers of bad lines."""

from __future__ import annotations

import json
from typing import Any

import pytest
from flask.testing import FlaskClient

from dedupindex.client import Ask, Client, Hit, Miss, NotAsked, Reply
from dedupindex.client.answers import Claimed
from tests.conftest import MakeIndex
from tests.support.captures import capture, sha1
from tests.support.transports import Mock, ToApp
from tests.unit.server.test_crawl_api import PAGE, begin, error, report, served

OTHER = "http://example.com/other"


@pytest.fixture
def web(make_index: MakeIndex) -> FlaskClient:
    return served(make_index([capture(90)]))


def question(number: int, url: str = PAGE, **more: Any) -> dict[str, Any]:
    return {"digest": str(sha1(number)), "url": url, **more}


def test_lookups(web: FlaskClient) -> None:
    some = [question(n) for n in (1, 90, 2, 1, 90)] + [question(1, OTHER), question(2)]
    answers = web.post("/lookup", json={"lookups": some}).get_json()["answers"]
    assert not any("in_batch" in one for one in answers)
    body = {"lookups": some, "in_batch": True}
    answers = web.post("/lookup", json=body).get_json()["answers"]
    assert [one.get("in_batch") for one in answers] == [None, None, None, 0, None, 0, 2]
    assert web.post("/lookup?in_batch=1", json={"lookups": some}).get_json()["answers"] == answers
    lines = "\n\n".join(map(json.dumps, some))
    answer = web.post("/lookup?in_batch=1", data=lines, content_type="application/x-ndjson")
    found = [json.loads(line).get("in_batch") for line in answer.data.splitlines()]
    assert found == [None, None, None, 1, None, 1, 5]


def test_batch_duplicates_depend_on_the_strategy(web: FlaskClient) -> None:
    www = PAGE.replace("http://", "https://www.")
    some = [question(1), question(1, OTHER), question(1, www), question(1)]
    for strategy, expected in (
        ("DIGEST_ANY", [None, 0, 0, 0]),
        ("EXACT_URL", [None, None, None, 0]),
        ("CANONICAL_URL", [None, None, 0, 0]),
    ):
        body = {"lookups": some, "in_batch": True, "strategy": strategy}
        answers = web.post("/lookup", json=body).get_json()["answers"]
        assert [one.get("in_batch") for one in answers] == expected
    for apart in ({"covers": "entity"}, {"crawl": "a"}):
        begin(web)
        body = {"lookups": [question(1), question(1, **apart)], "in_batch": True}
        assert "in_batch" not in web.post("/lookup", json=body).get_json()["answers"][1]
    empty = "sha1:3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ"
    body = {"lookups": [{"digest": empty, "url": PAGE}] * 2, "in_batch": True}
    assert "in_batch" not in web.post("/lookup", json=body).get_json()["answers"][1]


def test_captures_stored_by_policy_are_no_batch_duplicates(web: FlaskClient) -> None:
    web.post("/crawls", json={"name": "p", "policy": [{"never": True}]})
    body = {"lookups": [question(1)] * 2, "in_batch": True, "crawl": "p"}
    answers = web.post("/lookup", json=body).get_json()["answers"]
    assert answers == [{"duplicate": False, "policy": "never"}] * 2


def test_it_is_asked_of_a_whole_batch(web: FlaskClient) -> None:
    path = f"/lookup?digest={sha1(1)}&in_batch=1"
    assert error(web.get(path)) == (400, "bad_query")
    body = {"lookups": [question(1, in_batch=True)]}
    assert web.post("/lookup", json=body).get_json()["answers"][0]["error"]["code"] == "bad_query"


def test_reports(web: FlaskClient) -> None:
    begin(web)
    captures = [report(1), report(2), report(1, OTHER), report(3, status=404), report(3), {}]
    done = web.post("/captures?crawl=a", json={"captures": [*captures, report(3), report(2)]})
    assert done.get_json()["in_batch"] == [[2, 0], [6, 4], [7, 1]]
    many = {"captures": [report(number) for number in range(10, 1210)] + [report(10)]}
    assert web.post("/captures?crawl=a", json=many).get_json()["in_batch"] == [[1200, 0]]
    assert "in_batch" not in web.post("/captures?crawl=a", json=report(1)).get_json()


def test_bad_lines_have_numbers(web: FlaskClient) -> None:
    begin(web)
    lines = [json.dumps(report(1)), "{", "", " ", '{"digest": 1}', json.dumps(report(2)), "[]"]
    for blank in ("", "\n" * 70_000):  # more than is read at once
        body = blank + "\n".join(lines)
        done = web.post("/captures?crawl=a", data=body, content_type="application/x-ndjson")
        found = [one["error"]["line"] for one in done.get_json()["results"]]
        assert found == [number + len(blank) for number in (2, 5, 7)]
        answer = web.post("/lookup", data=body, content_type="application/x-ndjson")
        answers = [json.loads(line) for line in answer.data.splitlines()]
        numbers = [one["error"]["line"] for one in answers if "error" in one]
        assert numbers == [number + len(blank) for number in (1, 2, 5, 6, 7)]
    alone = web.post("/captures?crawl=a", json={"captures": [{}]}).get_json()["results"]
    assert "line" not in alone[0]["error"]


def test_claims_in_a_list(web: FlaskClient) -> None:
    begin(web)
    begin(web, "b")
    mine = "ab" * 16
    asked = [question(1), question(90), question(1), {"digest": "?"}, question(2, token=mine)]
    body = {"crawl": "a", "lease": 30, "claims": [*asked, question(2, token=mine), 1]}
    answers = web.post("/claims", json=body).get_json()["answers"]
    told = [one.get("claimed", one.get("duplicate", "bad")) for one in answers]
    assert told == [True, True, False, "bad", True, True, "bad"]
    assert answers[1]["match"] and answers[4]["token"] == mine
    assert [one.get("in_batch") for one in answers] == [None, None, 0, None, None, 4, None]
    others = web.post("/claims", json={"crawl": "b", "claims": [question(1), question(3)]})
    assert [one["claimed"] for one in others.get_json()["answers"]] == [False, True]
    assert web.post("/claims", json={"crawl": "a", "claims": []}).get_json() == {"answers": []}
    for wrong, code in (
        ({"claims": {}}, "bad_query"),
        ({"claims": [question(1)] * 1001}, "too_large"),
        ({"claims": [question(1)], "token": mine}, "bad_query"),
        ({"claims": [question(1)], "crawl": "c"}, "unknown_crawl"),
    ):
        assert error(web.post("/claims", json={"crawl": "a", **wrong}))[1] == code
    own = {"crawl": "a", "claims": [question(5, crawl="b")]}
    assert web.post("/claims", json=own).get_json()["answers"][0]["error"]["code"] == "bad_query"
    unknown = {"crawl": "a", "digest": "blake2b:abcd"}
    assert error(web.post("/claims", json=unknown)) == (400, "bad_digest")


def test_the_client_repeats_claims_without_an_answer(web: FlaskClient) -> None:
    begin(web)
    lose = [True]

    app = ToApp(web.application)

    def handle(ask: Ask) -> Reply:
        reply = app.exchange(ask)
        if lose.pop() if lose else False:
            raise TimeoutError("lost")
        return reply

    with Client(crawl="a", transport=Mock(handle)) as client:
        assert isinstance(client.claim(str(sha1(1)), PAGE), NotAsked)
        again = client.claim(str(sha1(1)), PAGE)
        assert isinstance(again, Claimed) and client.release(str(sha1(1)), again.token)
        client.begin("p", policy=[{"blackout": "10y", "url": ".*/a"}, {"never": True}])
        hit = client.lookup(str(sha1(90)), "http://example.com/a", crawl="p")
        assert isinstance(hit, Hit) and hit.skip
        miss = client.lookup(str(sha1(90)), OTHER, crawl="p")
        assert isinstance(miss, Miss) and miss.why == "never"
