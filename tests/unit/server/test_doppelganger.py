"""Doppelganger's protocol, as Zeno and gowarc speak it: recorded exchanges to the letter."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest
from flask.testing import FlaskClient

from dedupindex.crawls.stores.lmdb_crawl_state import LmdbReading
from dedupindex.digest import Spelling
from dedupindex.index import tokens
from dedupindex.index.identity import Settings
from dedupindex.index.tokens import Role
from server.app import create_app
from server.auth import Access
from server.config import Config
from server.live_index import LiveIndex
from server.responses import RequestError
from tests.conftest import MakeIndex
from tests.support.captures import capture, sha1
from tests.unit.server.test_cdx_server_api import text_of
from tests.unit.server.test_crawl_api import error, served
from tests.unit.server.test_tokens import bearer

ID = "KQQFIO6D2CZVDLVYULTXXAVNTDBPD7R5"
RECORD = {"id": ID, "uri": "http://original.example/first", "date": 20200102030405}
URL = b"http://127.0.0.2:19301/b%20x?q=1&r=2"


@pytest.fixture
def web(make_index: MakeIndex) -> FlaskClient:
    return served(
        make_index(
            [
                capture(1, b"http://aaa.org/", 1),
                capture(1, b"https://www.127.0.0.2:19301/b%20x?q=1&r=2", 2),
                capture(1, URL, 3),
                capture(2, b"http://aaa.org/2", 1),
            ]
        )
    )


def test_the_uri_is_everything_after_its_name(web: FlaskClient) -> None:
    id = text_of(sha1(1))
    response = web.get(f"/api/records/{id}?uri={URL.decode()}")
    assert response.status_code == 200
    assert response.get_json() == {"id": id, "uri": URL.decode(), "date": 20261103091417}
    for url in ("http://elsewhere.org/", ""):
        found = web.get(f"/api/records/{id}?uri={url}").get_json()
        assert found["uri"] == "http://aaa.org/"
    assert web.get(f"/api/records/{id}").status_code == 200


def test_lookups_of_a_crawl_named_by_the_path(make_index: MakeIndex) -> None:
    """Its lookups are in its report, it sees what it reported, and its rules hold."""
    known = capture(1, URL, 3)
    index = make_index([known], Settings(by_url=True))
    live = LiveIndex(index)
    live.refresh()
    web = create_app(Config(index), live).test_client()
    own = {"digest": str(sha1(7)), "url": "http://own.org/", "date": "2026-11-20T00:00:00Z"}
    for name, more in (("c", {}), ("strict", {"policy": [{"never": True}]})):
        assert web.post("/crawls", json={"name": name, **more}).status_code == 200
        stored = {**own, "status": 200, "size": 5}
        assert web.post(f"/captures?crawl={name}", json={"captures": [stored]}).status_code == 200
    for path, status in (("", 404), ("/crawls/c", 200), ("/crawls/strict", 404)):
        response = web.get(f"{path}/api/records/{text_of(sha1(7))}?uri=http://own.org/")
        assert response.status_code == status, path
    for address in ("/cdx", "/web/timemap/cdx"):
        assert web.get(f"{address}?url=http://own.org/").text == ""
        assert "http://own.org/" in web.get(f"/crawls/c{address}?url=http://own.org/&limit=-1").text
        assert "http://own.org/" in web.get(f"/crawls/c{address}?url=http://own.org/").text
        assert web.get(f"/crawls/strict{address}?url=http://own.org/").text == ""
        assert error(web.get(f"/crawls/none{address}?url=http://own.org/"))[0] == 404
        assert web.get(f"/crawls/c{address}?url=http://own.org/&crawl=d").status_code == 400
    live.crawls.write_counts()  # as the server does every second
    report = web.get("/crawls/c/report").get_json()
    assert (report["lookups"], report["duplicates"]) == (5, 1)
    unknown = web.get(f"/crawls/none/api/records/{text_of(sha1(1))}?uri={URL.decode()}")
    assert unknown.status_code == 404 and "none" in unknown.text


def test_lookups_in_a_namespace_need_its_token(make_index: MakeIndex) -> None:
    index = make_index([])
    news = bearer(tokens.add(index, "news", Role.WRITE, namespaces="news"))
    other = bearer(tokens.add(index, "other", Role.READ, namespaces="other"))
    live = LiveIndex(index)
    live.refresh()
    web = create_app(Config(index, private=True), live).test_client()
    own = {"digest": str(sha1(7)), "url": "http://own.org/", "date": "2026-11-20T00:00:00Z"}
    named = {"name": "c", "namespace": "news"}
    assert web.post("/crawls", json=named, headers=news).status_code == 200
    captures = {"captures": [{**own, "status": 200, "size": 5}]}
    assert web.post("/captures?crawl=c", json=captures, headers=news).status_code == 200
    path = f"/crawls/c/api/records/{text_of(sha1(7))}?uri=http://own.org/"
    assert (web.get(path).status_code, web.get(path, headers=other).status_code) == (401, 403)
    assert web.get(path, headers=news).get_json()["uri"] == "http://own.org/"


def test_originals_with_another_spelling_do_not_answer(make_index: MakeIndex) -> None:
    """The client writes the digest as it asked for it, and replay compares the text."""
    web = served(make_index([capture(1, URL)._replace(spelling=Spelling(1, 2))]))
    assert web.get(f"/api/records/{text_of(sha1(1))}?uri={URL.decode()}").status_code == 404
    assert web.get(f"/api/records/{sha1(1).raw.hex()}?uri={URL.decode()}").status_code == 200


def test_the_next_original_answers_if_the_best_cannot_be_named(make_index: MakeIndex) -> None:
    best = capture(1, URL, 1)._replace(spelling=Spelling(1, 2))
    web = served(make_index([best, capture(1, b"http://aaa.org/", 2)]))
    found = web.get(f"/api/records/{text_of(sha1(1))}?uri={URL.decode()}").get_json()
    assert found["uri"] == "http://aaa.org/"


def test_a_miss_and_a_bad_id(web: FlaskClient) -> None:
    response = web.get(f"/api/records/{ID}?uri=http://a.org/")
    assert (response.status_code, response.text) == (404, "record not found\n")
    assert error(web.get("/api/records/ABC?uri=http://a.org/")) == (400, "bad_digest")
    assert error(web.get("/api/records/")) == (400, "bad_digest")
    empty = "3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ"
    assert web.get(f"/api/records/{empty}").status_code == 404


@pytest.mark.parametrize("path", ["/api/records", "/api/records/"])
def test_posted_records_are_found_at_once(path: str, web: FlaskClient) -> None:
    response = web.post(path, json=[RECORD])
    assert (response.status_code, response.data) == (201, b"")
    assert web.get(f"/api/records/{ID}?uri=http://a.org/").get_json() == RECORD
    assert web.post(path, json=[RECORD]).status_code == 201
    crawl = web.get("/crawls/doppelganger").get_json()
    assert (crawl["state"], crawl["seen_by"], crawl["captures"]) == ("open", "all", 1)
    answer = web.get(f"/lookup?digest=sha1:{ID}").get_json()
    assert answer["original"]["evidence"] == "revisit"


def test_another_shared_crawl_begins_after_the_last_has_ended(web: FlaskClient) -> None:
    web.post("/api/records", json=[RECORD])
    assert web.post("/crawls/doppelganger/commit").status_code == 200
    other = {**RECORD, "id": text_of(sha1(7))}
    assert web.post("/api/records", json=[other]).status_code == 201
    assert web.get("/crawls/doppelganger-2").get_json()["captures"] == 1
    for record in (RECORD, other):
        assert web.get(f"/api/records/{record['id']}").get_json() == record
    web.post("/crawls/doppelganger-2/cancel", json={"force": True})
    assert web.get(f"/api/records/{other['id']}").status_code == 404


def test_another_crawl_begins_between_the_check_and_the_write(
    web: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.post("/api/records", json=[RECORD])
    asked: list[str] = []

    def require(self: Access, environ: Any, role: Role, crawl: str, touched: Any) -> str:
        asked.append(crawl)
        if len(asked) == 1:  # the body comes now
            web.post("/crawls/doppelganger/commit")
        elif crawl and crawl != "doppelganger":
            raise RequestError("forbidden", "not to this one")
        return "-"

    monkeypatch.setattr(Access, "require", require)
    assert error(web.post("/api/records", json=[RECORD])) == (403, "forbidden")
    assert asked[0] == "doppelganger" and asked[-1] == "doppelganger-2"
    assert error(web.get("/crawls/doppelganger-2")) == (404, "unknown_crawl")


def test_the_open_crawl_is_searched_once_per_change(
    web: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        web.post("/api/records", json=[RECORD])
        crawl = web.get("/crawls?limit=1").get_json()["crawls"][0]["name"]
        web.post(f"/crawls/{crawl}/commit")
    web.get(f"/api/records/{ID}")
    sought: list[str] = []
    crawl_of = LmdbReading.crawl
    monkeypatch.setattr(
        LmdbReading, "crawl", lambda self, name: sought.append(name) or crawl_of(self, name)
    )
    assert web.get(f"/api/records/{ID}").get_json() == RECORD and not sought
    web.post("/crawls", json={"name": "other"})
    web.get(f"/api/records/{ID}")
    assert "doppelganger-4" in sought


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (RECORD, 400),
        ([{"id": ID}], 400),
        ([RECORD, {**RECORD, "id": "short"}], 400),
        ([{**RECORD, "date": 20201332000000}], 400),
        ([{**RECORD, "date": 1}], 400),
        ([{**RECORD, "uri": ""}], 400),
        ([{**RECORD, "uri": 5}], 400),
        ([{**RECORD, "uri": "\ud800"}], 400),
        (["x"], 400),
        ([{**RECORD, "more": 1}], 400),
        ([RECORD] * 100_001, 413),
        ([], 201),
    ],
)
def test_invalid_records_change_nothing(body: Any, status: int, web: FlaskClient) -> None:
    assert web.post("/api/records", json=body).status_code == status
    assert web.get(f"/api/records/{ID}").status_code == 404


def test_no_json_and_wrong_methods(web: FlaskClient) -> None:
    assert error(web.post("/api/records", data=b"{[")) == (400, "bad_request")
    assert web.put("/api/records").status_code == 405
    assert web.post(f"/api/records/{ID}", json=[]).status_code == 405


def test_an_outage_is_not_a_miss(tmp_path: Path) -> None:
    web = served(tmp_path / "nowhere")
    assert error(web.get(f"/api/records/{ID}")) == (503, "index_unavailable")
    assert error(web.post("/api/records", json=[RECORD])) == (503, "index_unavailable")


def test_private_records_need_a_token(make_index: MakeIndex) -> None:
    index = make_index([capture(1, URL)], Settings(by_url=True))
    live = LiveIndex(index)
    live.refresh()
    web = create_app(Config(index, private=True), live).test_client()
    reader, writer = tokens.add(index, "r", Role.READ), tokens.add(index, "w", Role.WRITE, "a*")
    keeper = tokens.add(index, "k", Role.WRITE, "doppel*")
    cdx = "/cdx?url=" + quote_plus(URL)
    for path in (cdx, f"/api/records/{text_of(sha1(1))}"):
        assert web.get(path).status_code == 401
        assert web.get(path, headers=bearer(reader)).status_code == 200
    assert web.get(cdx, headers={"Cookie": f"cdx_auth_token={reader}"}).data
    assert web.get(cdx, headers={"Cookie": "cdx_auth_token=x"}).status_code == 401
    for token, status in ((reader, 403), (writer, 403), (keeper, 201)):
        answer = web.post("/api/records", json=[RECORD], headers=bearer(token))
        assert answer.status_code == status
