"""Crawls over HTTP: begun, reported to, asked by, committed and cancelled; claims; bad requests."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from mmap import mmap
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from flask.testing import FlaskClient

from dedupindex.capture import Covers
from dedupindex.crawls import crawl_report, lifecycle
from dedupindex.crawls.store import Writing
from dedupindex.crawls.stores.lmdb_crawl_state import LmdbReading
from dedupindex.errors import BadInput
from server.app import create_app
from server.config import Config
from server.live_index import LiveIndex
from server.metrics import Metrics, block_size
from server.worker_crawls import Crawls
from tests.conftest import MakeIndex
from tests.support.captures import capture, sha1

PAGE = "http://example.com/page"


@pytest.fixture
def web(make_index: MakeIndex, engine: str) -> FlaskClient:
    """A server over an index that holds capture 90."""
    return served(make_index([capture(90)], engine=engine))


def served(index: Path) -> FlaskClient:
    live = LiveIndex(index)
    live.refresh()
    return create_app(Config(index), live).test_client()


def report(number: int = 1, url: str = PAGE, **more: Any) -> dict[str, Any]:
    return {
        "digest": str(sha1(number)),
        "url": url,
        "date": "2026-11-20T09:14:17Z",
        "status": 200,
        "mime": "image/png",
        "size": 1000,
        "record_id": "<urn:uuid:00000000-0000-4000-8000-000000000001>",
        "container": "a.warc.gz",
        "offset": 5,
        **more,
    }


def begin(web: FlaskClient, name: str = "a", **how: str) -> dict[str, Any]:
    response = web.post("/crawls", json={"name": name, **how})
    assert response.status_code == 200, response.text
    return dict(response.get_json())


def ask(web: FlaskClient, number: int = 1, crawl: str = "", url: str = PAGE) -> dict[str, Any]:
    """The answer, the same in a batch and by a lookup."""
    more = f"&crawl={crawl}" if crawl else ""
    single = web.get(f"/lookup?digest={sha1(number)}&url={url}{more}")
    assert single.status_code == 200, single.text
    question = {"digest": str(sha1(number)), "url": url}
    for body in (
        {"lookups": [question], **({"crawl": crawl} if crawl else {})},
        {"lookups": [{**question, **({"crawl": crawl} if crawl else {})}]},
    ):
        batch = web.post("/lookup", json=body)
        assert batch.get_json()["answers"] == [single.get_json()]
    return dict(single.get_json())


def error(response: Any) -> tuple[int, str]:
    return response.status_code, response.get_json()["error"]["code"]


def test_a_crawl_from_begin_to_commit(web: FlaskClient) -> None:
    crawl = begin(web, digest_covers="stored")
    assert (crawl["state"], crawl["captures"]) == ("open", 0)
    assert begin(web, digest_covers="stored") == crawl
    done = web.post("/captures?crawl=a", json=report())
    assert done.get_json() == {
        "added": 1, "unchanged": 0, "revisits": 0, "refused": {}, "bad": 0, "results": ["added"],
    }  # fmt: skip
    assert ask(web) == {"duplicate": False}
    own = ask(web, crawl="a")
    assert own["match"] == "exact_url" and own["original"]["committed"] is False
    assert ask(web, crawl="a", url="http://other.example/")["match"] == "digest"
    shown = web.post("/crawls/a/commit", json={"exit": "Finished"}).get_json()
    assert (shown["state"], shown["exit"], shown["captures"]) == ("committed", "Finished", 1)
    everybody = ask(web)
    assert everybody["original"] == {
        "url": PAGE,
        "date": "2026-11-20T09:14:17Z",
        "record_id": "urn:uuid:00000000-0000-4000-8000-000000000001",
        "digest": str(sha1(1)),
        "size": 1000,
        "record_size": None,
        "mime": "image/png",
        "status": 200,
        "container": "a.warc.gz",
        "offset": 5,
        "evidence": "row",
    }
    assert web.get("/crawls/a").get_json()["state"] == "committed"
    assert [one["name"] for one in web.get("/crawls").get_json()["crawls"]] == ["a"]


def test_captures_of_a_cancelled_crawl_are_gone(web: FlaskClient) -> None:
    begin(web, seen_by="all")
    web.post("/captures", json={"crawl": "a", "captures": [report(1), report(2)]})
    assert ask(web)["original"]["committed"] is False
    assert web.post("/crawls/a/cancel", json={"force": True}).get_json()["state"] == "cancelled"
    assert ask(web) == ask(web, 2) == {"duplicate": False}
    assert error(web.post("/captures?crawl=a", json=report())) == (409, "crawl_ended")
    assert error(web.post("/crawls/a/commit")) == (409, "crawl_ended")
    assert error(web.post("/crawls", json={"name": "a"})) == (409, "crawl_ended")


def test_crawls_get_originals_of_the_index(web: FlaskClient) -> None:
    begin(web)
    assert ask(web, 90, url="http://example.com/a")["match"] == "exact_url"
    assert ask(web, 90, crawl="a", url="http://example.com/a")["match"] == "exact_url"
    web.post("/captures?crawl=a", json=report(90, "http://b.example/"))
    assert ask(web, 90, crawl="a", url="http://b.example/")["match"] == "exact_url"
    assert ask(web, 90, url="http://b.example/")["match"] == "digest"


def test_what_curl_sends_by_mistake_is_named(web: FlaskClient) -> None:
    form = "application/x-www-form-urlencoded"  # of curl -d
    for path, body in (("/crawls", '{"name":"j1"}'), ("/captures?crawl=a", '[{"digest":1}]')):
        answer = web.post(path, data=body, content_type=form)
        assert error(answer) == (415, "unsupported_media_type")
        assert "send Content-Type: application/json" in answer.text
    begin(web)
    lines = json.dumps(report())
    for kind in ("application/json", "application/x-ndjson"):
        answer = web.post("/captures", data=lines, content_type=kind)
        assert error(answer) == (400, "bad_query")
        assert "name the crawl that stored the captures: POST /captures?crawl=NAME" in answer.text


@pytest.mark.parametrize("begun", [False, True])
def test_a_crawl_that_was_never_begun(web: FlaskClient, begun: bool) -> None:
    if begun:
        begin(web, "b")
    for number in (1, 90):
        question = f"digest={sha1(number)}&url=http://example.com/a&crawl=a"
        assert error(web.get(f"/lookup?{question}")) == (404, "unknown_crawl")
    for path in ("/captures?crawl=a", "/crawls/a/commit", "/crawls/a/cancel"):
        body = report() if "captures" in path else {}
        assert error(web.post(path, json=body)) == (404, "unknown_crawl")
    assert error(web.get("/crawls/a")) == (404, "unknown_crawl")
    answers = web.post(
        "/lookup", json={"lookups": [{"digest": str(sha1(1)), "url": PAGE, "crawl": "a"}]}
    )
    assert answers.get_json()["answers"][0]["error"]["code"] == "unknown_crawl"


def test_json_lines_and_forms(web: FlaskClient) -> None:
    begin(web)
    lines = [json.dumps(report(number)) for number in range(2500)] + ["{", '{"digest": 1}', ""]
    done = web.post(
        "/captures?crawl=a", data="\n".join(lines), content_type="application/x-ndjson"
    ).get_json()
    assert (done["added"], done["bad"], len(done["results"])) == (2500, 2, 2)
    form = {name: str(value) for name, value in report(3000).items()}
    assert web.post("/captures?crawl=a", data=form).get_json()["added"] == 1
    assert ask(web, 3000, crawl="a")["original"]["offset"] == 5
    assert web.post("/crawls/a/commit", data={"exit": "Finished"}).get_json()["exit"] == "Finished"


FORM = "application/x-www-form-urlencoded"


REPORTS: list[tuple[str, bytes, str, int]] = [
    ("application/json", json.dumps(report()).encode(), "a", 200),
    ("Application/JSON; charset=utf-8", json.dumps({"captures": [report()]}).encode(), "a", 200),
    ("application/x-ndjson", json.dumps(report(2)).encode() + b"\n{", "a", 200),
    (FORM, urlencode(report(3)).encode(), "a", 200),
    (FORM, urlencode(report()).encode() + b"&digest=x", "a", 400),
    (FORM, b"url=%ff", "a", 400),
    (FORM, b"\xff", "a", 400),
    (FORM, b"&".join(b"f%d=1" % number for number in range(101)), "a", 400),
    ("application/json", b"[]", "a", 400),
    ("application/json", b"{", "a", 400),
    ("text/plain", b"x", "a", 415),
    ("application/json", b"{}", "", 400),
    ("application/json", b"{}", "%ff", 404),
    ("application/json", b"{}", "a&crawl=a", 400),
    ("application/json", b"{}", "a&other=1", 400),
]


def test_the_fast_path_answers_reports_as_flask_does(make_index: MakeIndex) -> None:
    said = []
    for hot in (True, False):
        live = LiveIndex(index := make_index([capture(90)]))
        live.refresh()
        web = create_app(Config(index), live, hot=hot).test_client()
        begin(web)
        said.append(
            [
                (answer.status_code, answer.content_type, answer.get_json())
                for kind, body, crawl, _ in REPORTS
                for answer in [web.post(f"/captures?crawl={crawl}", data=body, content_type=kind)]
            ]
        )
    assert said[0] == said[1]
    assert [status for status, _, _ in said[0]] == [status for *_, status in REPORTS]


@pytest.mark.parametrize(
    "wrong",
    [
        {"digest": "x"},
        {"digest": None},
        {"url": ""},
        {"url": 5},
        {"url_base64": "aGk="},
        {"date": "yesterday"},
        {"status": -1},
        {"status": True},
        {"status": 1000},
        {"size": 10**18},
        {"size": 1.5},
        {"offset": "9" * 13},
        {"mime": ["x"]},
        {"record_id": "x" * 5000},
        {"also": "x"},
        {"also": [5]},
        {"covers": "all"},
        {"colour": "red"},
    ],
)
def test_a_bad_capture_is_reported_and_the_others_are_stored(
    web: FlaskClient, wrong: dict[str, Any]
) -> None:
    begin(web)
    done = web.post("/captures?crawl=a", json={"captures": [report(**wrong), report(2)]})
    assert done.status_code == 200
    bad, good = done.get_json()["results"]
    assert good == "added" and bad["error"]["code"] == "bad_capture"


def test_the_captures_of_a_report_may_lie_in_several_files(web: FlaskClient) -> None:
    begin(web)
    names = ["a.warc.gz", "b.warc.gz", "", "a.warc.gz"]
    captures = [report(number, container=name) for number, name in enumerate(names, 1)]
    assert web.post("/captures?crawl=a", json={"captures": captures}).get_json()["added"] == 4
    held = [ask(web, number, "a")["original"]["container"] for number in range(1, 5)]
    assert held == ["a.warc.gz", "b.warc.gz", None, "a.warc.gz"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/crawls", {}, 400),
        ("/crawls", {"name": "a/b"}, 400),
        ("/crawls", {"name": 5}, 400),
        ("/crawls", {"name": "b", "seen_by": "me"}, 400),
        ("/crawls", {"name": "b", "colour": "red"}, 400),
        ("/crawls", [1], 400),
        ("/captures", {"captures": 5, "crawl": "a"}, 400),
        ("/captures", {"captures": [], "x": 1, "crawl": "a"}, 400),
        ("/claims", {"digest": str(sha1(1))}, 400),
        ("/claims", {"digest": str(sha1(1)), "crawl": "a", "lease": 0}, 400),
        ("/claims", {"digest": str(sha1(1)), "crawl": "nobody"}, 404),
    ],
)
def test_bad_requests(web: FlaskClient, path: str, body: Any, status: int) -> None:
    begin(web)
    response = web.post(path, json=body)
    assert response.status_code == status, response.text
    assert set(response.get_json()) == {"error"}


def test_look_up_or_claim(web: FlaskClient) -> None:
    begin(web, "a")
    begin(web, "b")

    def claim(crawl: str, number: int = 1) -> dict[str, Any]:
        question = {"crawl": crawl, "digest": str(sha1(number)), "url": PAGE}
        return dict(web.post("/claims", json=question).get_json())

    first = claim("a")
    assert first["claimed"] and not first["duplicate"]
    second = claim("b")
    assert second == {"duplicate": False, "claimed": False, "until": first["until"]}
    freed = web.delete("/claims", json={"digest": str(sha1(1)), "token": "0" * 32})
    assert freed.get_json() == {"released": False}
    freed = web.delete("/claims", json={"digest": str(sha1(1)), "token": first["token"]})
    assert freed.get_json() == {"released": True}
    assert claim("b")["claimed"]
    web.post("/captures?crawl=b", json=report())
    assert claim("b")["match"] == "exact_url"
    assert claim("a")["claimed"]  # it does not see what the other has, and may store its own
    assert claim("a", 90)["match"] == "digest"


def test_a_refused_capture_ends_its_claim(web: FlaskClient) -> None:
    for name in "ab":
        begin(web, name)
    asked = {"digest": str(sha1(1)), "url": PAGE}
    assert web.post("/claims", json={**asked, "crawl": "a"}).get_json()["claimed"]
    assert not web.post("/claims", json={**asked, "crawl": "b"}).get_json()["claimed"]
    assert web.post("/captures?crawl=a", json=report(status=404)).get_json()["refused"]
    assert web.post("/claims", json={**asked, "crawl": "b"}).get_json()["claimed"]


def test_a_claim_does_not_read_every_crawl(
    web: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(web)
    web.post("/claims", json={"crawl": "a", "digest": str(sha1(1)), "url": PAGE})
    with monkeypatch.context() as patched:
        patched.setattr(LmdbReading, "crawls", None)
        body = {"crawl": "a", "digest": str(sha1(2)), "url": PAGE}
        assert web.post("/claims", json=body).get_json()["claimed"]
    begin(web, "b")
    assert web.post("/claims", json={**body, "crawl": "b"}).status_code == 200


def test_a_crawl_begun_in_an_undone_transaction_is_not_kept(make_index: MakeIndex) -> None:
    crawls = Crawls(make_index([]))
    crawls.write(lambda writing: lifecycle.begin(writing, "a"), make=True)
    assert crawls.crawl("a")

    def begun(name: str) -> Callable[[Writing], Any]:
        def change(writing: Writing) -> None:
            lifecycle.begin(writing, name)
            snapshot = crawls.written(writing)
            assert [one for one in "abc" if snapshot.crawl(one)] == ["a", name]
            if name == "b":
                raise BadInput("not this one")

        return change

    with pytest.raises(BadInput):
        crawls.write(begun("b"))
    crawls.write(begun("c"))
    assert crawls.crawl("c") and not crawls.crawl("b")


def test_a_crawl_finds_only_digests_with_its_coverage(make_index: MakeIndex) -> None:
    page = b"http://example.com/a"
    web = served(make_index([capture(1, page, covers=Covers.STORED), capture(2, page)]))
    begin(web, "stored", digest_covers="stored")
    begin(web, "entity", digest_covers="entity")
    url = page.decode()
    assert ask(web, 1, url=url)["duplicate"] and ask(web, 1, "stored", url)["duplicate"]
    assert not ask(web, 1, "entity", url)["duplicate"]
    assert ask(web, 2, "entity", url)["duplicate"]
    for number, covers in ((3, {}), (4, {"covers": "both"})):
        web.post("/captures?crawl=stored", json=report(number, url, **covers))
    web.post("/crawls/stored/commit")
    assert not ask(web, 3, "entity", url)["duplicate"]
    assert ask(web, 4, "entity", url)["duplicate"]
    bridged = web.get(f"/lookup?digest={sha1(1)}&url={url}&crawl=entity&bridge=1").get_json()
    assert bridged["original"]["digest"] == str(sha1(1))


def test_the_lookups_of_a_crawl_are_shown(
    web: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert begin(web)["warning"] == "begun, no lookup yet"
    begin(web, "b")
    web.post("/captures?crawl=a", json=report(1))
    reported = web.get("/crawls/a").get_json()  # captures are known at once, lookups later
    assert (reported["captures"], reported["lookups"], reported["warning"]) == (1, 0, None)
    for number in (1, 2, 90):
        ask(web, number, crawl="a")  # three times each: alone, and in two batches
        ask(web, number)
    web.get(f"/lookup?digest={sha1(1)}&crawl=a", headers={"Accept": "text/plain"})
    web.post(
        f"/lookup?crawl=a&digest={sha1(2)}", data="{}\n" * 5, content_type="application/x-ndjson"
    )
    web.post("/claims", json={"crawl": "a", "digest": str(sha1(5))})
    shown = web.post("/crawls/a/commit").get_json()
    assert shown["lookups"] == 3 * 3 + 1 + 5 + 1 and shown["warning"] is None
    assert shown["begun"] <= shown["first_lookup"] <= shown["last_lookup"] <= shown["ended"]
    other = web.post("/crawls/b/cancel").get_json()
    assert (other["lookups"], other["last_lookup"]) == (0, None)
    assert other["warning"] is None  # other workers may not have written their counts yet
    with monkeypatch.context() as patched:
        patched.setattr(crawl_report, "_COUNTED_AFTER", -2)
        assert web.get("/crawls/b").get_json()["warning"] == "ended without a lookup"
        assert web.get("/crawls/a").get_json()["warning"] is None
    begin(web, "c")
    web.get("/lookup?crawl=c&digest=none")
    web.post("/lookup", json={"crawl": "c", "lookups": [{"digest": "none"}]})
    only_errors = web.post("/crawls/c/commit").get_json()["warning"]
    assert only_errors == "all 2 lookups got an error, see the log of the crawler"
    shown_page = web.get("/pages/crawl?name=c").text
    assert "Overview</a> counts the errors of this server by reason" in shown_page
    assert "may not have been told to ask" not in shown_page
    begin(web, "d")
    assert "may not have been told to ask" in web.get("/pages/crawl?name=d").text


def test_unreadable_crawls_are_never_a_miss(make_index: MakeIndex) -> None:
    index = make_index([capture(90)])
    (index / "crawls.mdb").write_bytes(b"no tree" * 1000)
    web = served(index)
    assert error(web.get(f"/lookup?digest={sha1(1)}&url={PAGE}")) == (503, "damaged")
    for path in ("/crawls", f"/lookup?digest={sha1(90)}&url={PAGE}&crawl=a"):
        assert error(web.get(path)) == (503, "damaged")
    assert error(web.post("/crawls", json={"name": "a"})) == (503, "damaged")
    batch = web.post("/lookup", json={"lookups": [{"digest": str(sha1(1)), "url": PAGE}]})
    assert error(batch) == (503, "damaged")


def test_a_hit_is_the_best_of_index_and_crawls(make_index: MakeIndex) -> None:
    """Asked for without a crawl, and also before the merge."""
    live = LiveIndex(make_index([capture(90, PAGE.encode())]))
    live.refresh()
    web = create_app(Config(live.index), live).test_client()
    assert ask(web, 90)["original"]["date"] == "2026-11-01T09:14:17Z" and not live.crawls.answering
    for name, end in (("a", "cancel"), ("b", "commit")):
        begin(web, name)
        better = report(90, date="2026-10-01T09:14:17Z")
        assert web.post(f"/captures?crawl={name}", json=better).get_json()["added"] == 1
        assert ask(web, 90)["original"]["date"] == "2026-11-01T09:14:17Z"
        assert not live.crawls.answering  # so the next is answered without a look at the crawls
        web.post(f"/crawls/{name}/{end}")
        month = "10" if end == "commit" else "11"
        assert ask(web, 90)["original"]["date"] == f"2026-{month}-01T09:14:17Z"
    begin(web, "c", seen_by="all")
    web.post("/captures?crawl=c", json=report(90, date="2026-09-01T09:14:17Z"))
    assert ask(web, 90)["original"]["committed"] is False


def test_writes_of_another_worker_are_found_after_a_refresh(
    make_index: MakeIndex,
) -> None:
    live = LiveIndex(make_index([capture(90, PAGE.encode())]))
    live.refresh()
    web = create_app(Config(live.index), live).test_client()
    begin(web)
    web.post("/captures?crawl=a", json=report(90, date="2026-10-01T09:14:17Z"))
    assert ask(web, 90)["original"]["date"] == "2026-11-01T09:14:17Z" and not live.crawls.answering
    store = live.crawls.store()
    assert store is not None
    with store.writing() as writing:
        lifecycle.commit(writing, "a")
    live.refresh()
    assert ask(web, 90)["original"]["date"] == "2026-10-01T09:14:17Z"


def test_header_lines_mark_uncommitted_originals(web: FlaskClient) -> None:
    begin(web, seen_by="all")
    web.post("/captures?crawl=a", json=report())
    path, plain = f"/lookup?digest={sha1(1)}&url={PAGE}", {"Accept": "text/plain"}
    assert web.get(path, headers=plain).headers["Dedup-Uncommitted"] == "1"
    web.post("/crawls/a/commit")
    answer = web.get(path, headers=plain)
    assert answer.status_code == 200 and "Dedup-Uncommitted" not in answer.headers


def asked_by_others(web: FlaskClient, way: str) -> None:
    """One lookup of somebody else, which what crawl `a` has reported of payload 1 answers."""
    query = f"/lookup?digest={sha1(1)}&url={PAGE}"
    asked = {"digest": str(sha1(1)), "url": PAGE}
    if way == "text":
        answer = web.get(query, headers={"Accept": "text/plain"})
        assert "Dedup-Uncommitted" in answer.headers
    elif way == "batch":
        answer = web.post("/lookup", json={"lookups": [asked]})
    elif way == "lines":
        answer = web.post("/lookup", data=json.dumps(asked), content_type="application/x-ndjson")
    elif way == "claim":
        answer = web.post("/claims", json={"crawl": "b", **asked})
    elif way == "record":
        answer = web.get(f"/api/records/{sha1(1).spelled(capture(1).spelling)[5:]}?uri={PAGE}")
    else:
        answer = web.get(query + ("&crawl=b" if way == "crawl" else ""))
    assert answer.status_code == 200 and answer.data, answer.text


@pytest.mark.parametrize("way", ["crawl", "nobody", "text", "batch", "lines", "claim", "record"])
def test_a_crawl_that_has_answered_others_is_not_cancelled_silently(
    web: FlaskClient, way: str
) -> None:
    begin(web, "a", seen_by="all")
    begin(web, "b")
    web.post("/captures?crawl=a", json=report())
    ask(web, 1, "a")  # what it has itself is its own affair
    assert web.get("/crawls/a").json["answered_others"] == 0
    asked_by_others(web, way)
    asked_by_others(web, way)
    refused = web.post("/crawls/a/cancel", json={"exit": "broken"})
    assert (refused.status_code, refused.json["error"]["code"]) == (409, "has_dependents")
    assert "answered 2 lookups of others" in refused.json["error"]["message"]
    crawl = web.get("/crawls/a").json
    assert (crawl["state"], crawl["answered_others"]) == ("open", 2)
    assert b"others that it answered" in web.get("/pages/crawl?name=a").data
    assert web.post("/crawls/a/cancel", json={"force": "perhaps"}).status_code == 400
    assert web.post("/crawls/a/commit", json={"force": True}).status_code == 400
    for way in (web.post("/crawls/a/cancel?force=true"), web.delete("/crawls/a?force=true")):
        assert error(way) == (400, "bad_query")  # a parameter is not passed over
        assert "in the body" in way.json["error"]["message"]
    assert error(web.post("/crawls/a/commit?exit=x")) == (400, "bad_query")
    assert web.get("/crawls/a").json["state"] == "open"
    gone = web.post("/crawls/a/cancel", json={"force": True})
    assert (gone.status_code, gone.json["state"]) == (200, "cancelled")
    assert web.post("/crawls/a/cancel", data={}).status_code == 200  # again, it changes nothing


def test_a_crawl_that_has_answered_others_is_not_dropped_silently(web: FlaskClient) -> None:
    for name in ("a", "c"):
        begin(web, name)
        web.post(f"/captures?crawl={name}", json=report(1 if name == "a" else 2))
        web.post(f"/crawls/{name}/commit")
    asked_by_others(web, "batch")
    assert web.delete("/crawls/c").status_code == 200  # nobody was answered with what it has
    refused = web.delete("/crawls/a")
    assert (refused.status_code, refused.json["error"]["code"]) == (409, "has_dependents")
    assert ask(web)["duplicate"] is True
    assert web.delete("/crawls/a", json={"force": True}).status_code == 200
    assert ask(web)["duplicate"] is False


def test_a_crawl_that_another_worker_answered_with_is_not_dropped(
    make_index: MakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, block = LiveIndex(make_index([])), mmap(-1, block_size(2))
    live.refresh()
    mine, other = (Metrics(block, 2, number) for number in range(2))
    web = create_app(Config(live.index), live, mine).test_client()
    begin(web)
    web.post("/captures?crawl=a", json=report())
    web.post("/crawls/a/commit")

    def other_stores(pause: float) -> None:
        """What the other worker does while this one waits: its thread stores what it counted."""
        asked_by_others(web, "batch")
        other.store_counts(live.crawls.write_counts)

    monkeypatch.setattr("server.metrics.sleep", other_stores)
    assert error(web.delete("/crawls/a")) == (409, "has_dependents")
    assert web.delete("/crawls/a", json={"force": True}).status_code == 200


def test_a_committed_crawl_that_has_answered_others_is_not_cancelled(web: FlaskClient) -> None:
    begin(web, "a")
    web.post("/captures?crawl=a", json=report())
    web.post("/crawls/a/commit")
    asked_by_others(web, "batch")
    for body in ({}, {"force": True}):
        refused = web.post("/crawls/a/cancel", json=body)
        assert (refused.status_code, refused.json["error"]["code"]) == (409, "crawl_ended")
        assert (
            "bin/purge INDEX --crawl a takes its captures out" in refused.json["error"]["message"]
        )


NOT_OF_THE_WEB = (
    "javascript:alert(1)", "JavaScript:alert(1)", " javascript:alert(1)", "java\tscript:alert(1)",
    "<javascript:alert(1)>", "javascript://example.com/%0Aalert(1)", "data:text/html,<script>",
    "vbscript:x", "blob:http://a.example/1", "view-source:http://a.example/", "file:///etc/passwd",
    "dns:a.example", "ftp://a.example/", "urn:uuid:1", "//a.example/", "http:/a.example", "a",
    "\x01http://a.example/",
)  # fmt: skip


def test_only_http_urls_become_originals(web: FlaskClient) -> None:
    """Who gets an original shows its URL, perhaps as a link."""
    begin(web)
    for number, url in enumerate(NOT_OF_THE_WEB, 1):
        encoded = {"url": "", "url_base64": b64encode(url.encode()).decode()}
        for given in (report(number, url), {**report(number, url), **encoded}):
            answer = web.post("/captures?crawl=a", json=given).get_json()
            assert answer["refused"] == {"not-http": 1} and not answer["added"], url
        record = {"id": str(sha1(number)), "uri": url, "date": "20261120091417"}
        assert web.post("/api/records", json=[record]).status_code == 201
        assert not ask(web, number, "a", "http://a.example/")["duplicate"]
        assert web.get(f"/api/records/{sha1(number)}?uri={url.strip()}").status_code == 404
    good = report(50, "HTTPS://a.example/")
    assert web.post("/captures?crawl=a", json=good).get_json()["added"] == 1


@pytest.mark.parametrize("name", [".", ".."])
def test_dot_segments_are_no_crawl_names(web: FlaskClient, name: str) -> None:
    for content in ({"name": name}, {"name": "b", "namespace": name}):
        response = web.post("/crawls", json=content)
        assert response.status_code == 400 and "step" in response.text
    assert begin(web, "...")["name"] == "..." and begin(web, ".a")["name"] == ".a"
