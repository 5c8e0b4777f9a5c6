"""What one batch may cost: explanations and captures that conditions refuse."""

from __future__ import annotations

import json

import pytest

from server.api import claims, lookup_batch
from server.api.lookup_batch import EXPLAINED
from tests.conftest import MakeIndex
from tests.support.captures import capture, sha1
from tests.unit.server.test_crawl_api import PAGE, begin, served

MANY = 150  # captures of one payload


def test_the_explanations_of_a_batch_are_limited(make_index: MakeIndex) -> None:
    web = served(make_index([capture(1, b"http://example.com/%d" % n) for n in range(MANY)]))
    asked = [{"digest": str(sha1(1)), "url": PAGE, "as_of": "2026-11-20"}] * (EXPLAINED + 2)
    answers = web.post("/lookup", json={"lookups": asked, "explain": True}).get_json()["answers"]
    answer = web.post(
        "/lookup?explain=1",
        data="\n".join(map(json.dumps, asked)),
        content_type="application/x-ndjson",
    )
    lines = [json.loads(line) for line in answer.data.splitlines()]
    for some in (answers, lines):
        assert all(len(one["considered"]) == 100 and one["more"] for one in some[:EXPLAINED])
        assert [one["error"]["code"] for one in some[EXPLAINED:]] == ["bad_query"] * 2
    alone = web.get("/lookup", query_string={**asked[0], "explain": "1"}).get_json()
    assert alone == answers[0]


def test_the_captures_that_conditions_refuse_are_limited(
    make_index: MakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is not known, which is not "new"; what needs no long search is answered."""
    monkeypatch.setattr(lookup_batch, "BATCH_READS", 2 * MANY)
    web = served(make_index([capture(1, b"http://example.com/%d" % n) for n in range(MANY)]))
    hard = {"digest": str(sha1(1)), "url": PAGE, "min_size": 10**6}
    easy = {"digest": str(sha1(1)), "url": "http://example.com/7", "min_size": 10}
    asked = [hard, easy, hard, hard, easy, {"digest": str(sha1(2)), "url": PAGE}]
    answers = web.post("/lookup", json={"lookups": asked}).get_json()["answers"]
    assert [one.get("duplicate") for one in answers] == [False, True, False, None, True, False]
    assert answers[3]["error"]["code"] == "overloaded"
    assert web.post("/lookup", json={"lookups": [hard]}).get_json() == {"answers": answers[:1]}
    assert web.get("/lookup", query_string=hard).get_json() == answers[0]


def test_the_captures_read_by_claims_are_limited(
    make_index: MakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not looked up is not claimed either; and by itself it is."""
    monkeypatch.setattr(claims, "CLAIM_READS", 2 * MANY)
    web = served(make_index([capture(1, b"http://example.com/%d" % n) for n in range(MANY)]))
    begin(web)
    hard = {"digest": str(sha1(1)), "url": PAGE, "min_size": 10**6}
    new = {"digest": str(sha1(2)), "url": PAGE}
    asked = [hard, new, hard, hard, new]
    answers = web.post("/claims", json={"crawl": "a", "claims": asked}).get_json()["answers"]
    assert [one.get("claimed") for one in answers] == [True, True, False, None, False]
    assert [one.get("in_batch") for one in answers] == [None, None, 0, None, 1]
    assert answers[3]["error"]["code"] == "overloaded" and "duplicate" not in answers[3]
    other = [{**hard, "token": answers[0]["token"]}]
    answers = web.post("/claims", json={"crawl": "a", "claims": other}).get_json()["answers"]
    assert answers[0]["claimed"] is True
