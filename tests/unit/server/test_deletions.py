"""Impact, dropping and deleting over HTTP."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from dedupindex.crawls import statistics
from dedupindex.errors import DedupError
from dedupindex.index import tokens
from dedupindex.index.tokens import Role
from dedupindex.runtime.files import exclusive
from server import commands, logs
from server.app import create_app
from server.config import Config
from server.live_index import LiveIndex
from tests.conftest import STORES, On
from tests.support.captures import capture, sha1
from tests.support.purging import begin, load, revisit_of
from tests.support.warc_cases import gz, response
from tests.unit.cli.test_cli import dedupindex
from tests.unit.server.test_crawl_api import begin as begin_crawl
from tests.unit.server.test_crawl_api import error, report, served

A, B = b"http://example.com/a", b"http://example.com/b"


@pytest.fixture(params=["lmdb"])
def index(tmp_path: Path, on: On, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Two captures of a URL, of which a revisit names the first."""
    with on(request.param) as engine:
        yield two_captures(tmp_path, engine())


def two_captures(directory: Path, engine: str) -> Path:
    index = begin(directory, engine)
    first = capture(1, A, 1, container="/w/a.warc.gz")
    load(index, [first, capture(1, A, 2, container="/w/b.warc.gz")], [revisit_of(first, B, 3)])
    return index


def date(web: FlaskClient, number: int = 1) -> str:
    """The day of what answers, "" for nothing."""
    answer = web.get(f"/lookup?digest={sha1(number)}").get_json()
    return str(answer["original"]["date"][8:10]) if answer["duplicate"] else ""


@pytest.mark.parametrize("index", STORES, indirect=True)
def test_impact_before_and_after_a_deletion(index: Path) -> None:
    web = served(index)
    answer = web.get("/impact", query_string={"container": "a.warc.gz", "list": "true"}).get_json()
    assert answer["found"] == 1 and answer["dependents"]["captures"] == 1
    assert [next(iter(one)) for one in answer["listed"]] == ["original", "dependent"]
    assert answer["listed"][0]["next_original"]["date"].startswith("2026-11-02")
    one = {"digest": str(sha1(1)), "url": A.decode(), "date": "2026-11-01T09:14:17Z"}
    refused = web.delete("/captures", json=one)
    assert refused.status_code == 409
    assert refused.get_json()["error"]["code"] == "has_dependents" and date(web) == "01"
    assert refused.get_json()["error"]["message"].endswith(
        "GET /impact with list=true names them, and force=true in the body removes what they "
        "depend on nevertheless"
    )
    none = {"digest": str(sha1(9)), "url": A.decode()}
    done = web.delete("/captures", json={"captures": [one, none], "force": True})
    assert done.status_code == 200, done.text
    content = done.get_json()
    assert content["found"] == 1 and date(web) == "02"
    assert content["not_found"] == [{"digest": str(sha1(9)), "url": A.decode()}]
    again = web.delete("/captures", json=one).get_json()
    assert again["found"] == 0 and len(again["not_found"]) == 1
    last = {**one, "date": "2026-11-02T09:14:17Z"}  # the revisit has its payload by its digest
    answer = web.get("/impact", query_string={"url": A.decode(), "list": "true"}).get_json()
    (listed,) = (one for one in answer["listed"] if "dependent" in one)
    assert listed["payload"] == "nowhere" and listed["dependent"]["url"] == B.decode()
    host = web.get("/impact", query_string={"host": "example.com"}).get_json()
    assert host["originals"] == answer["originals"] and host["revisits"]["captures"] == 1
    refused = web.delete("/captures", json=last)
    assert refused.status_code == 409 and date(web) == "02"
    done = web.delete("/captures", json={**last, "force": True}).get_json()
    assert done["by_digest"]["captures"] == done["dependents"]["captures"] == 1
    assert date(web) == ""


def test_interrupted_deletions_are_audited(
    index: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logs.LOGGER, "propagate", True)
    caplog.set_level(logging.INFO, "dedupindex.server")
    web = served(index)
    begin_crawl(web)
    one = {"digest": str(sha1(1)), "url": A.decode()}

    def broken() -> int:
        lines = [record.getMessage() for record in caplog.records]
        return sum(line.startswith("audit") and "broken_off=True" in line for line in lines)

    assert web.delete("/captures", json=one).status_code == 409
    assert web.delete("/captures", json={**one, "digest": "sha1:x"}).status_code == 400
    assert broken() == 0
    with exclusive(index / "lock", "the index"):
        assert web.delete("/captures", json=one).status_code == 503
    assert broken() == 1
    with monkeypatch.context() as patched:
        patched.setattr(commands, "LONGEST", 0.01)
        assert "takes more than" in web.delete("/captures", json=one).text
    assert broken() == 2
    monkeypatch.setattr(statistics, "drop", lambda writing, crawl: 1 // 0)
    assert web.delete("/crawls/a").status_code == 500
    assert broken() == 3


def test_a_capture_is_deleted_under_all_its_digests(index: Path) -> None:
    web = served(index)
    begin_crawl(web, "a")
    web.post("/captures?crawl=a", json=report(5, also=[str(sha1(6))]))
    web.post("/crawls/a/commit")
    dedupindex("index", "--merge", index)
    dedupindex("index", "--compact", index)
    one = {"digest": str(sha1(5)), "url": report()["url"]}
    assert date(web, 5) == date(web, 6) == "20"
    assert web.delete("/captures", json=one).get_json()["found"] == 1
    assert not date(web, 5) and not date(web, 6)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/impact", None),
        ("/impact?container=a&url=b", None),
        ("/impact?what=a", None),
        ("/impact?crawl=a&prefix=true", None),
        ("/impact?url=a%00", None),
        ("/captures", {"digest": "x", "url": "y"}),
        ("/captures", {"digest": str(sha1(1))}),
        ("/captures", {"digest": str(sha1(1)), "url": "a", "date": "yesterday"}),
        ("/captures", {"captures": {}}),
        ("/captures", {"captures": []}),
        ("/captures", {"captures": ["a"]}),
        ("/captures", {"captures": [], "force": "perhaps"}),
    ],
)
def test_invalid_deletions_are_refused(index: Path, path: str, body: Any) -> None:
    web = served(index)
    answer = web.get(path) if body is None else web.delete(path, json=body)
    assert answer.status_code == 400, answer.text


def test_a_damaged_ledger_is_reported(tmp_path: Path) -> None:
    index = begin(tmp_path)
    stored = [capture(number, A, 1, container="/w/a.warc.gz") for number in range(5000)]
    load(index, stored, [revisit_of(one, B, 3) for one in stored])
    (ledger,) = (index / "ledger").iterdir()
    content = bytearray(ledger.read_bytes())
    content[len(content) * 9 // 10] ^= 1  # when much of it has been read, and told of
    ledger.write_bytes(content)
    web, last = served(index), str(max(one.digest for one in stored))
    for answer in (
        web.get("/impact?container=a.warc.gz&list=true"),
        web.get("/impact?container=a.warc.gz"),
        web.delete("/captures", json={"digest": last, "url": A.decode(), "force": True}),
    ):
        assert answer.status_code == 503, answer.text
        assert answer.get_json()["error"]["code"] == "damaged"
        assert f"{ledger.name} is damaged" in answer.text
    shown = web.get("/pages/impact?kind=container&name=a.warc.gz")
    assert shown.status_code == 503 and f"{ledger.name} is damaged" in shown.text


def test_the_impact_of_a_url_that_is_not_escaped_is_not_reported(index: Path) -> None:
    raw = {"QUERY_STRING": "url=http://example.com/\u00e9"}  # as WSGI gives a byte of 0xE9
    answer = served(index).get("/impact", environ_overrides=raw)
    assert error(answer) == (400, "bad_query") and "not ASCII" in answer.text
    long = served(index).get("/impact?url=" + "a" * 60_000)
    assert error(long) == (414, "uri_too_long")


def test_a_crawl_is_dropped_unless_the_index_has_it(index: Path) -> None:
    live = LiveIndex(index)
    live.refresh()
    web = create_app(Config(index), live).test_client()
    for name in ("open", "committed"):
        begin_crawl(web, name, seen_by="all")
        web.post(f"/captures?crawl={name}", json=report(5))
    web.post("/crawls/committed/commit")
    with exclusive(index / "lock", "the index"):  # a merge is going on
        assert web.delete("/crawls/committed").status_code == 503
    committed = live.crawls.crawl("committed")
    assert committed is not None
    cut_off = replace(committed, merging=True)
    live.crawls.write(lambda writing: writing.put_crawl(cut_off))
    refused = web.delete("/crawls/committed")
    assert error(refused) == (503, "index_unavailable") and "is being merged" in refused.text
    live.crawls.write(lambda writing: writing.put_crawl(committed))
    assert date(web, 5)
    for name in ("open", "committed", "open"):
        assert (
            web.delete(f"/crawls/{name}", json={"force": True}).get_json()["state"] == "cancelled"
        )
    assert not date(web, 5)
    assert web.delete("/crawls/none").status_code == 404


def test_an_index_that_is_gone_is_reported_in_words(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("live_index", "worker_crawls"):
        monkeypatch.setattr(f"server.{module}.RELOAD_GRACE", 0.0)
    live = LiveIndex(index)
    live.refresh()
    web = create_app(Config(index), live).test_client()
    begin_crawl(web, "a")
    index.rename(index.with_name("aside"))
    refused = web.delete("/crawls/a")
    for _ in range(2):
        live.refresh()
    for answer in (refused, web.get("/readyz")):
        assert error(answer) == (503, "index_unavailable")
        assert "No such file or directory" in answer.text and "Errno" not in answer.text


def test_a_crawl_is_not_dropped_while_the_index_is_replaced(index: Path) -> None:
    web = served(index)
    begin_crawl(web, "a")
    aside = index.rename(index.with_name("aside"))
    refused = web.delete("/crawls/a")
    assert error(refused) == (503, "index_unavailable")
    aside.rename(index)
    assert web.delete("/crawls/a").get_json()["state"] == "cancelled"


def test_deletions_need_the_role_admin(index: Path) -> None:
    secrets = {role: tokens.add(index, role.name, role) for role in Role}
    web = served(index)
    begun = {"Authorization": f"Bearer {secrets[Role.ADMIN]}"}
    web.post("/crawls", json={"name": "a"}, headers=begun)
    for role, secret in secrets.items():
        headers = {"Authorization": f"Bearer {secret}"}
        answers = [
            web.get("/impact?crawl=a", headers=headers),
            web.delete("/captures", json={"digest": str(sha1(9)), "url": "x"}, headers=headers),
            web.delete("/crawls/a", headers=headers),
        ]
        may = role is Role.ADMIN
        assert [one.status_code for one in answers] == ([200] * 3 if may else [403] * 3)


def test_impact_names_crawls_whose_revisits_are_unknown(index: Path) -> None:
    load(index, [capture(7, A, 1, container="/w/later/x.warc.gz")])
    web, warc = served(index), index.parent / "one.warc.gz"
    warc.write_bytes(gz(response(b"payload")))

    def unread_everywhere() -> list[dict[str, Any]]:
        answer = web.get("/impact?container=a.warc.gz").get_json()
        shown = web.get("/pages/impact?kind=container&name=a.warc.gz").text
        _, talk = dedupindex("impact", index, "--container", "a.warc.gz")
        unread: list[dict[str, Any]] = answer["unread"]
        for row in unread:
            assert f"{row['crawl']} ({row['duplicates']})" in talk
            assert row["crawl"] in shown and "have not all been read" in shown
            assert "bin/index --add --crawl NAME FILE... INDEX<" in shown
            assert "<code>bin/purge INDEX --crawl NAME</code> removes a crawl" in shown
        assert ("warning" in talk) == bool(unread) == ("have not all been read" in shown)
        return unread

    assert unread_everywhere() == []
    for name in ("one", "two", "none", "gone"):
        begin_crawl(web, name)
    for name, times in (("one", 2), ("two", 3), ("gone", 1)):
        for _ in range(times):
            assert web.get(f"/lookup?crawl={name}&digest={sha1(1)}").get_json()["duplicate"]
    two = report(5, container="x.warc.gz")
    web.post("/captures?crawl=two", json=two)
    web.post("/crawls/gone/cancel")
    web.post("/crawls/one/commit")
    one, other = {"crawl": "one", "duplicates": 2}, {"crawl": "two", "duplicates": 3}
    assert unread_everywhere() == [other, one]
    assert web.get("/impact?crawl=two").get_json()["unread"] == [one]
    assert web.get("/impact?container=nothing").get_json()["unread"] == []
    web.post("/crawls/two/commit")
    for merged in (False, True):
        if merged:
            dedupindex("index", "--merge", index)
        assert unread_everywhere() == [one]  # the file of the other is known, and was read
    dedupindex("index", "--add", "--crawl", "one", warc, index)
    assert unread_everywhere() == []
    gone = dedupindex("purge", index, "--container", "a.warc.gz", "--force", "--json")
    assert '"unread":[]' in gone[0]


@pytest.mark.parametrize("index", ["lmdb", "whoosh"], indirect=True)
def test_what_was_purged_is_refused_when_it_is_reported_again(index: Path) -> None:
    """The merge would refuse it, and the crawl would count a capture that the index never has."""
    web, url = served(index), "http://x.example/"
    begin_crawl(web, "one")
    begin_crawl(web, "two")
    of_file = report(1, A.decode(), date="2026-11-01T09:14:17Z", container="a.warc.gz")
    assert web.post("/captures?crawl=one", json=report(7, url)).json["results"] == ["added"]
    dedupindex("purge", index, "--url", url)
    dedupindex("purge", index, "--container", "/w/a.warc.gz", "--force")
    again = [report(7, url), report(7, url, date="2026-11-20T09:14:18Z"), report(7, url + "b")]
    revisit = report(7, url, revisit="identical-payload-digest")
    done = web.post("/captures?crawl=one", json={"captures": [*again, revisit]}).json
    assert done["results"] == ["purged", "added", "added", "revisit"]
    assert done["refused"] == {"purged": 1}
    assert web.post("/captures?crawl=two", json=of_file).json["results"] == ["purged"]
    crawl = web.get("/crawls/two").json
    assert (crawl["captures"], crawl["bytes"]) == (0, 0)
    shown = web.post("/crawls/one/commit").json
    assert (shown["captures"], shown["refused"]) == (3, {"purged": 1})  # one was there before
    dedupindex("index", "--merge", index)
    assert "Reported but refused: 1 (purged 1)" in dedupindex("report", index, "--crawl", "one")[0]


def test_a_refused_purge_names_the_files_that_nobody_has_read(index: Path) -> None:
    last = capture(8, b"http://example.com/c", container="/w/c.warc.gz")
    load(index, [last])
    web = served(index)
    begin_crawl(web, "one")
    assert web.get(f"/lookup?crawl=one&digest={sha1(8)}").get_json()["duplicate"]
    web.post("/captures?crawl=one", json=report(7, "http://x.example/", container="wk.warc.gz"))
    web.post("/crawls/one/commit")
    (index.parent / "other.warc.gz").write_bytes(gz(response(b"payload")))
    dedupindex("index", "--add", "--crawl", "one", index.parent / "other.warc.gz", index)
    said = dedupindex("purge", index, "--url", last.url.decode(), status=5)[1]
    read = "bin/index --add --crawl one FILE... INDEX; of these nobody has read wk.warc.gz ("
    assert read in said


@pytest.mark.parametrize("index", STORES, indirect=True)
def test_what_unread_crawls_may_refer_to_is_not_removed(index: Path) -> None:
    """A crawl was answered with a capture; whether it wrote a revisit is in its WARCs only."""
    last = capture(8, b"http://example.com/c", container="/w/c.warc.gz")
    load(index, [last])
    web, warc = served(index), index.parent / "one.warc.gz"
    begin_crawl(web, "one")
    assert web.get(f"/lookup?crawl=one&digest={sha1(8)}").get_json()["duplicate"]
    web.post("/crawls/one/commit")
    url = last.url.decode()
    refused = web.delete("/captures", json={"digest": str(sha1(8)), "url": url})
    assert error(refused) == (409, "has_dependents") and date(web, 8)
    said = dedupindex("purge", index, "--url", url, status=5)[1]
    for text in (said, refused.text):
        assert "nothing was purged: 1 lookup of crawls whose WARCs have not all been read" in text
        assert "bin/index --add --crawl one FILE... INDEX" in text
    assert "with --force" in said and "with force=true in the body" in refused.text
    assert date(web, 8)
    page = web.get(f"/pages/impact?url={url}").text
    assert f"bin/purge {index} --url={url}</code>" in page  # not against its own warning
    assert "With <code>--force</code> it removes that nevertheless" in page
    begin_crawl(web, "trial")
    dedupindex("purge", index, "--crawl", "trial")  # nothing can refer to a crawl without captures
    done = web.delete("/captures", json={"digest": str(sha1(1)), "url": A.decode(), "force": True})
    assert done.status_code == 200
    warc.write_bytes(gz(response(b"payload")))
    dedupindex("index", "--add", "--crawl", "one", warc, index)
    dedupindex("purge", index, "--url", url)
    assert not date(web, 8)


def test_an_index_with_purges_that_is_moved_away_and_back_is_opened_again(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB opens a file once: nothing may keep the index open that was there before."""
    monkeypatch.setattr("server.live_index.RELOAD_GRACE", 0)
    one = capture(9, b"http://x.example/9", container="/w/x.warc.gz")
    load(index, [one])
    dedupindex("purge", index, "--url", one.url.decode())
    live = LiveIndex(index)
    live.refresh()
    assert live.refusal_reason([one])(one) == "purged"  # as for a report
    for _ in range(2):
        away = index.rename(index.with_name("away"))
        live.refresh()
        with pytest.raises(DedupError):
            live.opened()
        away.rename(index)
        live.refresh()
        assert live.opened() and live.refusal_reason([one])(one) == "purged"
