"""Tokens: made, kept as hashes, checked; what a server lets pass with and without them."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from dedupindex.errors import BadInput, Damaged, IndexExists, IndexUnavailable
from dedupindex.index import tokens
from dedupindex.index.tokens import Role
from server.app import create_app
from server.auth import Access
from server.config import Config
from server.live_index import LiveIndex
from server.responses import RequestError
from server.routes import ROUTES, Route
from tests.conftest import MakeIndex
from tests.support.captures import capture, sha1
from tests.support.commands import typed


@pytest.fixture
def index(make_index: MakeIndex) -> Path:
    return make_index([capture(1)])


def served(index: Path, **how: bool) -> FlaskClient:
    live = LiveIndex(index)
    live.refresh()
    return create_app(Config(index, **how), live).test_client()  # type: ignore[arg-type]


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def begin(web: FlaskClient, name: str, **headers: str) -> tuple[int, str]:
    response = web.post("/crawls", json={"name": name}, headers=headers)
    content = response.get_json()
    return response.status_code, content.get("error", {}).get("code", "")


def test_a_token_is_kept_as_a_hash_and_shown_once(index: Path) -> None:
    secret = tokens.add(index, "a", Role.WRITE)
    assert secret not in (index / tokens.FILE).read_text()
    (kept,) = tokens.read_tokens(index)
    assert tokens.holder([kept], secret) == kept
    for other in ("", secret[:-1], secret + "x", "\udcff"):
        assert tokens.holder([kept], other) is None
    with pytest.raises(IndexExists):
        tokens.add(index, "a", Role.READ)
    with pytest.raises(BadInput):
        tokens.add(index, "a b", Role.READ)
    tokens.remove(index, "a")
    with pytest.raises(BadInput):
        tokens.remove(index, "a")
    assert tokens.read_tokens(index) == []


@pytest.mark.parametrize("damage", ["{", "[1]", "{}", '[{"name": "a"}]'])
def test_damaged_tokens_refuse_writing(index: Path, damage: str) -> None:
    (index / tokens.FILE).write_text(damage)
    if damage != "{}":
        with pytest.raises(Damaged):
            tokens.read_tokens(index)
        assert begin(served(index), "a") == (503, "damaged")


def test_writing_needs_a_token_once_one_exists(index: Path) -> None:
    secret = tokens.add(index, "a", Role.WRITE, "a*")
    admin = tokens.add(index, "root", Role.ADMIN)
    reader = tokens.add(index, "reader", Role.READ)
    web = served(index)
    for headers in ({}, {"Authorization": f"Basic {secret}"}):
        assert begin(web, "a", **headers) == (401, "unauthorized")
    assert begin(web, "a", **bearer(secret + "x")) == (401, "unauthorized")
    assert begin(web, "a", **bearer(secret)) == begin(web, "b", **bearer(admin)) == (200, "")
    for name, token in (("c", secret), ("a", reader)):
        assert begin(web, name, **bearer(token)) == (403, "forbidden")
    said = web.post("/crawls", json={"name": "c"}, headers=bearer(secret)).get_json()["error"]
    assert "token a has the role write for crawls 'a*', which does not allow" in said["message"]
    refused = web.post("/crawls/b/commit")
    assert refused.status_code == 401 and refused.headers["WWW-Authenticate"] == "Bearer"
    for path, body in (
        ("/captures?crawl=b", {}),
        ("/captures", {"crawl": "b", "captures": []}),
        ("/crawls/b/commit", {}),
        ("/crawls/b/cancel", {}),
        ("/claims", {"crawl": "b", "digest": str(sha1(1))}),
    ):
        assert web.post(path, json=body).status_code == 401
        assert web.post(path, json=body, headers=bearer(secret)).status_code == 403
        assert web.post(path, json=body, headers=bearer(admin)).status_code in (200, 400, 409)
    assert web.get(f"/lookup?digest={sha1(1)}").status_code == 200


def test_tokens_for_namespaces(index: Path) -> None:
    news = bearer(tokens.add(index, "news", Role.WRITE, namespaces="news*"))
    read = bearer(tokens.add(index, "read", Role.READ, namespaces="news"))
    admin = bearer(tokens.add(index, "root", Role.ADMIN))
    web = served(index, private=True)

    def begin(name: str, headers: dict[str, str], **more: str) -> int:
        return web.post("/crawls", json={"name": name, **more}, headers=headers).status_code

    assert begin("a", news, namespace="news") == begin("b", news, namespace="news-2") == 200
    assert begin("c", news) == begin("c", news, namespace="base") == 403
    assert begin("c", admin, namespace="base") == begin("d", admin) == 200
    assert begin("c", news, namespace="news") == begin("c", news) == 403  # it is another's
    for crawl, status in (("a", 200), ("c", 403), ("d", 403)):
        body = {"captures": []}
        assert web.post(f"/captures?crawl={crawl}", json=body, headers=news).status_code == status
        assert web.post(f"/crawls/{crawl}/commit", headers=news).status_code == status
    question = {"digest": str(sha1(1)), "url": "http://example.com/a"}
    for more, status in (
        ("", 200),
        ("&crawl=d", 200),
        ("&crawl=a", 200),
        ("&namespace=news", 200),
        ("&namespace=news,base", 403),
        ("&crawl=c", 403),
    ):
        path = f"/lookup?digest={question['digest']}&url={question['url']}{more}"
        assert web.get(path, headers=read).status_code == status, more
        given = dict(part.split("=") for part in more.split("&") if part)
        for body in ({"lookups": [question], **given}, {"lookups": [{**question, **given}]}):
            answer = web.post("/lookup", json=body, headers=read).get_json()["answers"][0]
            assert ("error" in answer) == (status == 403), more
    for crawl, headers, status in (("a", read, 200), ("c", read, 403), ("d", read, 200)):
        assert web.get(f"/crawls/{crawl}/report", headers=headers).status_code == status
        assert web.get(f"/crawls/{crawl}", headers=headers).status_code == status
    assert web.get("/crawls/a/report").status_code == web.get("/crawls/a").status_code == 401


def test_crawls_of_other_namespaces_are_not_listed(index: Path) -> None:
    read = bearer(tokens.add(index, "read", Role.READ, namespaces="news"))
    admin = bearer(tokens.add(index, "root", Role.ADMIN))
    web = served(index, private=True)
    for name, namespace in (("a", "news"), ("b", "base"), ("c", ""), ("d", "base"), ("e", "news")):
        begun = {"name": name, "namespace": namespace} if namespace else {"name": name}
        assert web.post("/crawls", json=begun, headers=admin).status_code == 200

    def listed(headers: dict[str, str]) -> list[str]:
        names: list[str] = []
        path = "/crawls?limit=2"
        while path:
            page = web.get(path, headers=headers).get_json()
            names += [crawl["name"] for crawl in page["crawls"]]
            path = page["next"]
        return names

    assert listed(admin) == ["e", "d", "c", "b", "a"]
    assert listed(read) == ["e", "c", "a"]


def test_posting_records_needs_a_token_for_their_crawl(index: Path) -> None:
    apart = bearer(tokens.add(index, "apart", Role.WRITE, namespaces="news"))
    first = bearer(tokens.add(index, "first", Role.WRITE, "doppelganger"))
    every = bearer(tokens.add(index, "every", Role.WRITE, "doppelganger*"))
    web = served(index)
    record = {"id": str(sha1(5)), "uri": "http://a.example/", "date": 20261120091417}

    def post(headers: dict[str, str]) -> int:
        return web.post("/api/records", json=[record], headers=headers).status_code

    assert (post(apart), post(first), post(every)) == (403, 201, 201)
    assert web.post("/crawls/doppelganger/commit", headers=first).status_code == 200
    assert (post(apart), post(first), post(every)) == (403, 403, 201)
    assert web.get("/crawls/doppelganger-2").get_json()["captures"] == 1


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}],
)
def test_web_pages_cannot_write_without_tokens(index: Path, headers: dict[str, str]) -> None:
    web = served(index)
    assert begin(web, "of-a-page", **headers) == (403, "forbidden")
    assert web.get("/crawls/of-a-page").status_code == 404
    assert begin(web, "of-a-page") == (200, "")


def test_private_lookups_need_a_token(index: Path) -> None:
    reader = tokens.add(index, "reader", Role.READ)
    web = served(index, private=True)
    question = f"/lookup?digest={sha1(1)}&url=http://example.com/a"
    batch = {"lookups": [{"digest": str(sha1(1)), "url": "http://example.com/a"}]}
    for path in (question, "/stats", "/crawls"):
        assert web.get(path).status_code == 401
        assert web.get(path, headers=bearer(reader)).status_code == 200
    assert web.post("/lookup", json=batch).status_code == 401
    assert web.post("/lookup", json=batch, headers=bearer(reader)).status_code == 200
    assert web.get("/healthz").status_code == 200


def test_new_tokens_apply_while_the_server_runs(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("server.auth.time.monotonic", lambda: now[0])
    access = Access(index)
    assert access.require({}, Role.WRITE) == "-"
    secret = tokens.add(index, "a", Role.WRITE)
    now[0] = 2.0
    with pytest.raises(Exception, match="Bearer"):
        access.require({}, Role.WRITE)
    assert access.require({"HTTP_AUTHORIZATION": f"bearer {secret}"}, Role.WRITE) == "a"


def test_every_write_is_audited(index: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret = tokens.add(index, "heritrix", Role.WRITE, "a")
    web = served(index)
    logger = logging.getLogger("dedupindex.server")
    propagates, logger.propagate = logger.propagate, True
    try:
        with caplog.at_level(logging.INFO, "dedupindex.server"):
            begin(web, "a", **bearer(secret))
            begin(web, "a")
            web.post("/captures?crawl=a", json={}, headers=bearer("dedup_wrong"))
            web.delete("/crawls/a", headers=bearer(secret))
            begin(web, "other", **bearer(secret))
            web.get("/lookup?digest=x")
    finally:
        logger.propagate = propagates
    lines = [record.getMessage() for record in caplog.records if "audit" in record.getMessage()]
    assert [line.partition("token=")[2] for line in lines] == [
        "heritrix POST /crawls name=a state=open",
        "- POST /crawls denied=unauthorized",
        "- POST /captures?crawl=a denied=unauthorized",
        "heritrix DELETE /crawls/a denied=forbidden",
        "heritrix POST /crawls crawl=other denied=forbidden",
    ]
    assert not any(secret in line for line in lines)


def test_an_unknown_token_is_reported_as_unknown(index: Path) -> None:
    tokens.add(index, "heritrix", Role.WRITE)
    web = served(index, private=True)
    for headers, said in (
        ({}, "send a token"),
        ({"Authorization": "Basic eDp5"}, "send a token"),
        ({"Authorization": "Bearer "}, "send a token"),
        (bearer("dedup_wrong"), "this token is not known here"),
    ):
        for answer in (web.post("/crawls", headers=headers), web.get("/stats", headers=headers)):
            assert answer.status_code == 401 and said in answer.text


@pytest.mark.parametrize("option", ["--crawls", "--namespaces"])
def test_an_admin_token_cannot_be_limited(index: Path, option: str) -> None:
    _, said = typed("token", index, "--add", "a", "--role", "admin", option, "x-*", status=2)
    assert "do not limit an admin" in said
    assert tokens.read_tokens(index) == []
    typed("token", index, "--add", "a", "--role", "admin", option, "*")


def test_the_token_command(index: Path) -> None:
    out, talk = typed("token", index, "--add", "a", "--role", "read")
    assert out.startswith("dedup_") and "not shown again" in talk
    made, _ = typed("token", index, "--add", "b", "--crawls", "nla-*", "--json")
    assert json.loads(made)["token"].startswith("dedup_")
    listed, talk = typed("token", index)
    assert "nla-*" in listed and "dedup_" not in listed
    assert re.search("^a +read +- +[*]$", listed, re.MULTILINE)
    assert "the role read writes to no crawl" in talk
    _, talk = typed("token", index, "--add", "c", "--role", "read", "--crawls", "c-*", status=2)
    assert "--role read writes to none; --namespaces says what it may read" in talk
    assert listed.split("\n")[0].split() == ["name", "role", "crawls", "namespaces"]
    typed("token", index, "--remove", "a")
    rows: list[dict[str, Any]] = json.loads(typed("token", index, "--json")[0])["tokens"]
    assert rows == [{"name": "b", "role": "write", "crawls": "nla-*", "namespaces": "*"}]
    typed("token", index, "--remove", "a", status=4)
    typed("token", index, "--add", "x", "--remove", "b", status=2)


def test_a_server_beyond_loopback_needs_tokens_or_an_option(index: Path) -> None:
    _, talk = typed("serve", index, "--host", "0.0.0.0", "--port", "0", status=4)
    assert "bin/token" in talk and "--open" in talk
    _, talk = typed("serve", index, "--private", "--port", "0", status=4)
    assert "--private needs a token" in talk


def test_a_replaced_or_restored_index_keeps_refusing_writes(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("server.auth.time.monotonic", lambda: now[0])
    tokens.add(index, "a", Role.WRITE)
    access = Access(index)

    def closed() -> bool:
        now[0] += 2.0
        try:
            access.require({}, Role.WRITE)
        except RequestError as error:
            return error.reason == "unauthorized"
        return False

    assert closed()
    index.rename(tmp_path / "away")
    with pytest.raises(IndexUnavailable):
        closed()
    (tmp_path / "away").rename(index)
    typed("index", "--copy", tmp_path / "copy", index)
    assert tokens.read_tokens(tmp_path / "copy") == tokens.read_tokens(index)
    tokens.remove(index, "a")
    assert not closed()
    access = Access(index, guarded=True)
    assert closed()


@pytest.mark.parametrize(
    "route", [route for route in ROUTES if not route.open], ids=lambda route: route.name
)
def test_every_route_of_a_private_server_needs_a_token(index: Path, route: Route) -> None:
    tokens.add(index, "reader", Role.READ)
    web = served(index, private=True)
    path = re.sub(r"\{\w+\}", "x", route.path)
    response = web.open(path, method=route.method, json={} if route.method == "POST" else None)
    assert response.status_code == 401, response.data
