"""The pages through Flask's test client: what they show, hostile text, who may see them."""

from __future__ import annotations

import gzip
import io
import os
import re
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
from flask.testing import FlaskClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from werkzeug.datastructures import FileStorage
from werkzeug.test import TestResponse, encode_multipart

from dedupindex.capture import Capture
from dedupindex.crawls import lifecycle
from dedupindex.crawls.store import Writing
from dedupindex.crawls.stores import make_store
from dedupindex.errors import BadInput, IndexUnavailable
from dedupindex.index import tokens
from dedupindex.index.identity import Settings
from dedupindex.index.tokens import Role
from dedupindex.lookup.explain import MAX_CONSIDERED
from dedupindex.post_crawl.purge.remove import purge
from dedupindex.post_crawl.purge.target import Target, TargetKind
from dedupindex.runtime.charts import HEIGHT, WIDEST, bar, columns
from dedupindex.runtime.tables import printable
from server import commands, logs
from server.api import crawls
from server.app import create_app
from server.config import Config
from server.live_index import LiveIndex
from server.pages import chart_pages, escape
from server.pages.blueprint import POLICY
from server.pages.login import COOKIE
from server.responses import RequestError
from tests.conftest import MakeIndex
from tests.support.budgets import examples
from tests.support.captures import capture, sha1
from tests.support.hypertext import Page
from tests.support.paths import ROOT
from tests.support.purging import begin, load, revisit_of
from tests.support.text_sources import DATA
from tests.support.warc_cases import response
from tests.unit.cli.test_cli import dedupindex
from tests.unit.indexer.test_pipeline import HEADER, cdx_line

DOCS = ROOT / "docs" / "http.md"
URL = "http://example.com/a"
INCOMPLETE = (  # without parameters
    *("/pages/crawl", "/pages/capture"),
    *("/pages/captures", "/pages/captures.csv", "/pages/captures.jsonl"),
)
HERE = {"Origin": "http://localhost"}
ALL = Settings(mime=".*", whitelist=True, by_url=True)
HOSTILE = (
    "http://x.example/<script>window.sentinel = 1</script>",
    "http://x.example/\"onmouseover='window.sentinel=1'x=\"",
    "javascript:window.sentinel=1",
    "http://x.example/\u202egnp.exe\u200b\ufe0f\u3164\u2800\U000e0041",
    "http://x.example/\x00\x1b[2J\r\n<img src=x onerror=window.sentinel=1>",
    "http://x.example/</title></textarea>{{ 7*7 }}{% raw %}&lt;&#60;",
    "http://x.example/" + "<b>" * 3000,
    "http://\u05d0\u05d1\u05d2.example/\u0627",
)


def served(index: Path, **how: Any) -> FlaskClient:
    live = LiveIndex(index)
    live.refresh()
    app = create_app(Config(index, **how), live)
    app.config["live"] = live
    return app.test_client()


@pytest.fixture
def web(make_index: MakeIndex) -> FlaskClient:
    return served(make_index([capture(1)], ALL))


def page(response: TestResponse, status: int = 200) -> Page:
    assert (response.status_code, response.mimetype) == (status, "text/html"), response.text
    assert response.headers["Content-Security-Policy"] == POLICY
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Cache-Control"] == "no-store"
    return Page(response.text)


def rules(web: FlaskClient) -> list[tuple[str, str]]:
    """Method and path of each page of its own."""
    return [
        (method, rule.rule)
        for rule in web.application.url_map.iter_rules()
        for method in sorted((rule.methods or set()) & {"GET", "POST"})
        if rule.endpoint.startswith("pages.") and "<" not in rule.rule
    ]


def paths(web: FlaskClient) -> list[str]:
    found = [path for method, path in rules(web) if method == "GET" and "/events" not in path]
    assert len(found) == 18
    return found


def send(web: FlaskClient, content: bytes, by: str = "host", **headers: str) -> TestResponse:
    sent = FileStorage(io.BytesIO(content), r"C:\logs\crawl.cdx")
    boundary, form = encode_multipart({"crawl": sent, "by": by})
    kind = f"multipart/form-data; boundary={boundary}"
    return web.post("/pages/what-if", data=form, content_type=kind, headers=headers or HERE)


def test_pages_of_an_empty_index_name_commands(make_index: MakeIndex) -> None:
    web = served(make_index())
    shown = {path: page(web.get(path), 400 if path in INCOMPLETE else 200) for path in paths(web)}
    assert "bin/index --add" in shown["/"].text and "curl '" in shown["/"].text
    assert "curl -d name=weekly http://localhost/crawls" in shown["/pages/crawls"].text
    assert "Type a payload digest" in shown["/pages/lookup"].text
    assert "bin/report INDEX --against" in shown["/pages/what-if"].text
    assert len({one.title for path, one in shown.items() if path not in INCOMPLETE}) == 13


def test_long_lists_of_crawls_are_filtered(web: FlaskClient) -> None:
    for number in range(20):
        web.post("/crawls", json={"name": f"weekly-{number}"})
    assert 'name="state"' not in web.get("/pages/crawls").text
    for name in ("Daily", "<b>&a"):
        web.post("/crawls", json={"name": name})
    web.post("/crawls/weekly-3/commit", json={"exit": "Finished"})
    assert 'name="state"' in web.get("/pages/crawls").text

    def listed(query: str) -> list[str]:
        shown = page(web.get(f"/pages/crawls?{query}"))
        found = [link for link in shown.links if link.startswith("/pages/crawl?name=")]
        assert "/pages/crawls" in shown.links and ("There is no such crawl" in shown.text) != bool(
            found
        )
        return [unquote(link.partition("=")[2]) for link in found]

    assert listed("name=daily&state=") == ["Daily"] and listed("name=%3Cb") == ["<b>&a"]
    assert listed("state=committed") == ["weekly-3"] == listed("name=weekly-&state=committed")
    assert listed("name=weekly-1") == [f"weekly-{n}" for n in (*range(19, 9, -1), 1)]
    assert listed("name=none") == listed("name=Daily&state=cancelled") == []
    page(web.get("/pages/crawls?state=x"), 400)


def test_filters_of_crawls_last_over_pages(web: FlaskClient) -> None:
    for number in range(110):
        web.post("/crawls", json={"name": f"{'ab'[number % 2]}-{number}"})
    shown = page(web.get("/pages/crawls?name=a-&state=open"))
    assert shown.text.count("a-") == 50 and "b-1" not in shown.text
    (follow,) = [link for link in shown.links if "page=2" in link]
    shown = page(web.get(follow))
    assert [text for text in re.findall(r"a-\d+", shown.text)] == [
        "a-8",
        "a-6",
        "a-4",
        "a-2",
        "a-0",
    ]


def test_every_link_leads_to_an_answer(web: FlaskClient) -> None:
    web.post("/crawls", json={"name": "a?b=c&d#%2F;\"'<>"})
    seen, todo = set[str](), ["/"]
    while todo:
        path = todo.pop()
        if path in seen or path.startswith("#"):
            continue
        seen.add(path)
        with web.get(path) as response:  # of a file, which is open until then
            content = response.text
        assert response.status_code == 200 and content, path
        if response.mimetype == "text/html":
            todo += page(response).links
        if path == "/" or path.startswith("/pages/"):
            assert response.headers["Content-Security-Policy"] == POLICY
    assert len(seen) > 10
    assert any(path.startswith("/pages/crawl?name=a?b%3Dc%26d%23%252F") for path in seen)


def test_the_overview_of_the_index(web: FlaskClient) -> None:
    for number in (1, 2, 2):
        web.get(f"/lookup?digest={sha1(number)}&url={URL}")
    web.get("/lookup?digest=hello")
    shown = page(web.get("/")).text
    assert "3 since the server was started" in shown
    assert "66.7 %" in shown and "1: the digest is not a digest" in shown
    web.delete("/lookup")
    assert "<code>Allow</code>" in web.get("/").text
    assert card(web, "/", "Payload saved") == "0 B"
    web.post("/crawls", json={"name": "a"})
    web.get(f"/lookup?digest={sha1(1)}&url={URL}&crawl=a")
    counted(web)
    assert re.fullmatch(r"[\d.,]+ k?B \(100.0 %\)", card(web, "/", "Payload saved"))
    assert "100.0 % of 1.0 kB, of hits and reported captures" in card(
        web, "/pages/crawl?name=a", "Payload saved"
    )
    assert "surt-0.3.1" in shown


def test_what_a_failed_build_has_staged_is_not_written_to_the_index(
    web: FlaskClient,
) -> None:
    index = web.application.config["live"].index
    (index / "staging").mkdir()
    (index / "staging" / "1.run").write_bytes(b"")
    for path in index.rglob("*"):
        os.utime(path, (1, 1))
    os.utime(index / "staging" / "1.run")
    assert "1970-01-01T00:00:01Z" in card(web, "/", "Last written")


def test_all_pages_have_the_same_payload_saved(web: FlaskClient) -> None:
    """Also where its share is not known: a crawl that found misses, and reported nothing."""
    for name in ("silent", "other", "unasked"):
        web.post("/crawls", json={"name": name})
    for number in (1, 1, 90):
        for name in ("silent", "other"):
            web.get(f"/lookup?digest={sha1(number)}&url={URL}&crawl={name}")
    counted(web)
    for crawl, size in (("silent", "2.0 kB"), ("unasked", "0 B"), ("", "4.0 kB")):
        chosen = f"?crawl={crawl}" if crawl else ""
        of = "" if crawl else ", open crawls"
        assert card(web, f"/pages/live{chosen}", f"Payload saved{of}, last hour") == size
        page_of_all = "/" if not crawl else f"/pages/crawl?name={crawl}"
        assert card(web, page_of_all, "Payload saved") == size, page_of_all
        if size != "0 B":
            for path in ("charts", "live"):
                cells = re.findall(
                    r'<td class="n">([^<]+)</td>', web.get(f"/pages/{path}{chosen}").text
                )
                assert size in cells, path
    cells = re.findall(r'<td class="n">([^<]+)</td>', web.get("/pages/crawls").text)
    assert [cell for cell in cells if "B" in cell] == ["0 B", "2.0 kB", "2.0 kB"]


def test_the_page_of_a_crawl_says_where_its_captures_are(web: FlaskClient) -> None:
    ends = {"commit": "none", "cancel": "removed when it was"}
    for end, text in ends.items():
        web.post("/crawls", json={"name": end})
        assert card(web, f"/pages/crawl?name={end}", "Duplicates") == "0"  # and no share of none
        web.post(f"/crawls/{end}/{end}")
        place = card(web, f"/pages/crawl?name={end}", "Captures that it reported")
        assert place.startswith(text)
        shown = page(web.get(f"/pages/crawl?name={end}")).text
        assert "This crawl ended without lookups or reports" in shown
    report(web, "stored", URL)
    web.post("/crawls/stored/commit")
    place = card(web, "/pages/crawl?name=stored", "Captures that it reported")
    assert place == "in the store of crawls, not yet merged into the index"
    assert web.delete("/crawls/stored", json={"force": True}).status_code == 200
    assert card(web, "/pages/crawl?name=stored", "Captures that it reported") == "deleted"
    gone = page(web.get("/pages/crawl?name=stored")).text
    assert "What was counted of this crawl was deleted with its captures." in gone
    assert "when it asks" not in gone


def test_commands_break_between_their_options(web: FlaskClient) -> None:
    web.post("/crawls", json={"name": "weekly-1"})
    web.post("/crawls/weekly-1/counts", json={"not_looked_up": 2})
    shown = web.get("/pages/crawl?name=weekly-1").text
    options = '<span class="nowrap">--add</span> <span class="nowrap">--crawl</span>'
    assert f"<pre><code>bin/index {options} weekly-1 FILE... INDEX\n" in shown
    assert (
        "bin/report INDEX --crawl weekly-1 --compare EARLIER"
        in page(web.get("/pages/crawl?name=weekly-1")).text
    )


def test_the_live_page_says_that_all_was_refused(web: FlaskClient) -> None:
    one = {"digest": str(sha1(9)), "url": URL, "date": "2026-11-20T09:14:17Z", "status": 404}
    web.post("/crawls", json={"name": "a"})
    web.post("/captures?crawl=a", json={**one, "mime": "a/b", "size": 9})
    counted(web)
    for path in ("/", "/pages/live", "/pages/crawl?name=a"):
        assert "all that it reported was refused: 1 (" in page(web.get(path)).text, path


def test_a_crawl_can_be_compared_with_the_one_before(web: FlaskClient) -> None:
    for name in ("weekly-1", "other-5", "weekly-2"):
        web.post("/crawls", json={"name": name})
        web.post(f"/crawls/{name}/commit", json={"exit": "x"})
    links = page(web.get("/pages/crawl?name=weekly-2")).links
    assert "/pages/compare?first=weekly-1&second=weekly-2" in links
    assert "/pages/compare?second=weekly-1" in page(web.get("/pages/crawl?name=weekly-1")).links
    named = re.findall(r'<option value="([\w-]+-\d)"', web.get("/pages/compare").text)
    assert named == ["weekly-2", "other-5", "weekly-1"]


def test_the_live_page_counts_the_running_minute_and_open_crawls_only(web: FlaskClient) -> None:
    report(web, "done", "http://one.example/1", size=5000)
    web.post("/crawls/done/commit", json={"exit": "x"})
    report(web, "now", *(f"http://one.example/{number}" for number in range(3)))
    assert card(web, "/pages/live", "Lookups, open crawls, 6 min") == "6"
    assert card(web, "/pages/live", "Stored, open crawls, 6 min") == "3"
    share = card(web, "/pages/live", "Duplicates, open crawls, 6 min")
    assert share == "66.7 %"  # "done" had stored one of them
    assert card(web, "/pages/live?crawl=done", "Lookups, 6 min") == "2"


def test_the_live_page_says_what_its_charts_leave_out(web: FlaskClient) -> None:
    web.post("/crawls", json={"name": "a"})
    assert "No crawl that is open" in web.get("/pages/live").text
    assert "This crawl has asked and reported nothing" in web.get("/pages/live?crawl=a").text
    report(web, "a", URL)
    web.post("/crawls/a/cancel", json={"force": True})
    shown = page(web.get("/pages/live")).text
    assert "Only cancelled crawls have asked or reported anything in the last hour" in shown
    assert "No crawl that is open" not in shown


def test_the_live_page_prefers_crawls_that_ask_to_newer_idle_ones(web: FlaskClient) -> None:
    """Killed crawlers leave their crawls open; the one that asks may be the oldest of them."""
    for number in range(30):
        web.post("/crawls", json={"name": f"idle-{number}", "seen_by": "all"})

    def make_old(writing: Writing) -> None:
        for crawl in list(writing.crawls()):
            writing.put_crawl(replace(crawl, begun="2026-01-01T00:00:00Z"))

    web.application.config["live"].crawls.write(make_old)
    report(web, "idle-3", "http://one.example/1")
    shown = web.get("/pages/live").text
    named = re.findall(r'<th scope="row"><a[^>]*><bdi>([^<]+)</bdi>', shown)
    assert named == [*(f"idle-{number}" for number in range(29, 10, -1)), "idle-3"]
    assert card(web, "/pages/live", "Lookups, open crawls, 6 min") == "2"
    assert "Only 20 are shown: the open crawls that looked up or began last." in shown
    assert "Of the open crawls below only. 6 min are the last five" in shown


def test_pages_of_a_missing_index_are_errors(tmp_path: Path) -> None:
    live = LiveIndex(tmp_path / "none")
    live.refresh()
    web = create_app(Config(tmp_path / "none"), live).test_client()
    for path in ("/", "/pages/containers", "/pages/crawls", f"/pages/lookup?digest={sha1(1)}"):
        response = web.get(path)
        assert "make one with bin/index" in page(response, 503).text
        assert int(response.headers["Retry-After"]) > 0


def test_containers_in_pages(make_index: MakeIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    from dedupindex.index.engine import IndexedContainer

    index = make_index([capture(1)])
    live = LiveIndex(index)
    live.refresh()
    web = create_app(Config(index), live).test_client()
    files = [IndexedContainer(f"/warcs/<{n:03}>", 1000, "", n, "<i>", n == 7) for n in range(120)]
    with live.opened().engine.view() as view:
        monkeypatch.setattr(type(view), "containers", lambda self: iter(files))
    first, last = (page(web.get(f"/pages/containers?page={n}")).text for n in (1, 3))
    assert "Containers read" in page(web.get("/")).text
    assert "its files are listed here when they are read" in first
    assert "<000>" in first and "<049>" in first and "<050>" not in first
    assert "<td>with problems</td>" in web.get("/pages/containers").text  # also on phones
    assert "shares a gzip member" in first and "shares a gzip member" not in last
    assert "<119>" in last and "Next" not in last and "Previous" in last
    for number in ("0", "-1", "x", "²", "9" * 30):
        page(web.get(f"/pages/containers?page={number}"), 400)
    assert "none on this page" in page(web.get("/pages/containers?page=4")).text


def test_the_overview_tells_crawls_of_one_day_apart_and_compares_two(web: FlaskClient) -> None:
    web.post("/crawls", json={"name": "first"})
    assert "Compare two crawls" not in web.get("/").text

    def begin_again(writing: Writing) -> None:
        first = writing.crawl("first")
        writing.put_crawl(replace(first, begun="2026-01-01T09:14:17Z"))

    web.application.config["live"].crawls.write(begin_again)
    web.post("/crawls", json={"name": "second"})
    assert "/pages/compare" in page(web.get("/")).links
    assert '"2026-01-01T09:14:17Z">2026-01-01 09:14</time>' in web.get("/").text


def test_crawls_and_their_progress(web: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(51):
        web.post("/crawls", json={"name": f"c{number:02}"})
    one = {"digest": str(sha1(9)), "url": URL, "date": "2026-11-20T09:14:17Z", "status": 200}
    web.post("/captures?crawl=c50", json={**one, "size": 1234567, "mime": "image/png"})
    shown = page(web.get("/pages/crawls")).text
    assert "begun, no lookup yet" in shown and "1.2 MB" in shown
    assert "c50" in shown and "c01" in shown and "c00" not in shown
    assert "c00" in page(web.get("/pages/crawls?page=2")).text
    with monkeypatch.context() as patched:
        patched.setattr(crawls, "_row", None)  # no crawl is counted up for another page
        last = page(web.get("/pages/crawls?page=1000000")).text
    assert "none of them is on this page" in last
    web.post("/crawls/c50/commit", json={"exit": "<b>Finished</b>"})
    text = page(web.get("/pages/crawl?name=c50")).text
    assert "committed" in text and "<b>Finished</b>" in text
    for seen in ("own", "all"):  # the page has the same as the JSON, also after the commit
        web.post("/crawls", json={"name": seen, "seen_by": seen})
        assert web.post(f"/crawls/{seen}/commit").get_json()["seen_by"] == seen
        who = card(web, f"/pages/crawl?name={seen}", "Before its commit its captures are seen by")
        assert who == {"own": "itself only", "all": "everybody"}[seen]
    page(web.get("/pages/crawl?name=none"), 404)


def test_a_lookup_is_explained(make_index: MakeIndex) -> None:
    web = served(make_index([capture(1), capture(1, b"http://other.example/"), capture(2)], ALL))
    found = page(web.get(f"/pages/lookup?digest={sha1(1)}&url={URL}&strategy=")).text
    assert "A duplicate: same URL" in found and "chosen" in found
    assert "WARC-Refers-To-Target-URI: http://example.com/a\n" in found
    assert "not preferred: one of the same URL goes first" in found
    none = f"/pages/lookup?digest={sha1(1)}&url={URL}x&strategy=EXACT_URL"
    assert "No original" in page(web.get(none)).text
    assert "another URL: EXACT_URL does not take it" in page(web.get(none)).text
    held = page(web.get(f"/pages/lookup?digest=&url={URL}")).text
    assert "Originals of this URL: 2" in held and str(sha1(2)) in held
    assert "No index holds" in page(web.get("/pages/lookup?digest=crc32:abcd")).text
    hint = "The index has no digest of the algorithm md5, only sha1, so it knows no payload by md5"
    md5 = page(web.get(f"/pages/lookup?digest=md5:{'ab' * 16}&url=example.com/a")).text
    assert hint in md5 and "It has no scheme: did you mean" in md5
    assert hint not in page(web.get(f"/pages/lookup?digest={sha1(9)}&url={URL}")).text
    many = [capture(1, b"http://%d.example/" % number) for number in range(3 * MAX_CONSIDERED)]
    old = f"/pages/lookup?digest={sha1(1)}&max_age=1"  # none will do
    long = page(served(make_index(many, ALL)).get(old)).text
    assert "There are more than are shown" in long
    assert 0 < len(set(re.findall(r"//(\d+)\.example/", long))) <= MAX_CONSIDERED
    plain = served(make_index([capture(1)]))
    said = page(plain.get(f"/pages/lookup?url={URL}"), 409)
    assert f"index-2 --url {URL}" in said.text and "build it again" not in said.text
    assert "/pages/captures?host=example.com" in said.links
    unlabelled = page(web.get("/pages/lookup?digest=" + str(sha1(1)).partition(":")[2]), 400).text
    assert f"write {sha1(1)}, or choose under Conditions what it is" in unlabelled


@pytest.mark.parametrize(
    "query", ["digest=sha1:x", "nothing=1", "digest=a&digest=b", "max_age=x", "crawl=none"]
)
def test_a_lookup_that_cannot_be_read(web: FlaskClient, query: str) -> None:
    more = "" if query.startswith("digest") else f"&digest={sha1(1)}"
    status = 404 if "crawl" in query else 400
    shown = web.get(f"/pages/lookup?{query}{more}")
    assert 'role="alert"' in shown.text
    page(shown, status)


def test_the_lookup_page_counts_no_lookups(web: FlaskClient) -> None:
    web.post("/crawls", json={"name": "a"})
    one = {"digest": str(sha1(9)), "url": URL, "date": "2026-11-20T09:14:17Z", "status": 200}
    web.post("/captures?crawl=a", json={**one, "size": 5, "mime": "image/png"})
    asked = f"/pages/lookup?digest={sha1(9)}&url={URL}"
    assert "No original" in page(web.get(asked)).text
    assert "not committed yet" in page(web.get(asked + "&crawl=a")).text
    web.post("/crawls/a/commit")
    assert web.get("/crawls/a").get_json()["lookups"] == 0


def card(web: FlaskClient, path: str, name: str) -> str:
    """The value of a card of a page."""
    shown = re.search(rf"<dt>{name}</dt><dd[^>]*>(.*?)</dd>", web.get(path).text)
    assert shown, name
    return shown[1]


def counted(web: FlaskClient) -> None:
    """What was counted of crawls is written every second; a test waits for no clock."""
    web.application.config["live"].crawls.write_counts()


def report(web: FlaskClient, crawl: str, *urls: str, size: int = 1000) -> None:
    """A crawl asks for each URL, stores it, and asks for it again."""
    web.post("/crawls", json={"name": crawl, "seen_by": "all"})
    for number, url in enumerate(urls):
        digest = str(sha1(500 + number))
        ask = {"digest": digest, "url": url, "crawl": crawl}
        web.post("/lookup", json={"lookups": [ask]})
        one = {"digest": digest, "url": url, "date": "2026-11-20T09:14:17Z", "status": 200}
        web.post(f"/captures?crawl={quote(crawl)}", json={**one, "mime": "a/b", "size": size})
        web.post("/lookup", json={"lookups": [ask]})
    counted(web)


def test_hosts_of_crawls(web: FlaskClient) -> None:
    assert "No host has been counted yet" in page(web.get("/pages/host")).text
    report(web, "a", "http://one.example/1", "http://one.example/2", "http://two.example/")
    assert web.get("/pages/host").text.count('width="25.0%"') == 2  # of the longer bar: one scale
    report(web, "b", "http://two.example/", "http://b\u00fccher.example/")
    assert "two.example" in page(web.get("/pages/host")).text
    for typed in ("https://one.example/x?y", "one.example:8443", " one.example "):
        shown = page(web.get(f"/pages/host?host={quote(typed)}")).text
        assert "Host: one.example" in shown and "Crawls that met it" in shown, typed
    for host in ("one.example", "none.example"):
        assert f'href="/pages/captures?host={host}"' in web.get(f"/pages/host?host={host}").text
    shown = page(web.get("/pages/host?host=ONE.example")).text
    assert "2.0 kB" in shown and "Crawls that met it" in shown
    assert "b" not in re.findall(r"name=(\w)", web.get("/pages/host?host=one.example").text)
    assert {"a", "b"} <= set(re.findall(r"name=(\w)", web.get("/pages/host?host=two.example").text))
    assert "Crawls that met it" in page(web.get("/pages/host?host=b\u00fccher.example")).text
    assert "No crawl has asked" in page(web.get("/pages/host?host=none.example")).text
    for by, order, text in (
        ("host", "stored_bytes", "one.example"),
        ("mime", "lookups", "a/b"),
        ("strategy", "duplicates", "DIGEST_ANY"),
    ):
        path = f"/pages/crawl?name=a&by={by}&order={order}"
        assert text in page(web.get(path)).text
    assert "one.example" not in page(web.get("/pages/crawl?name=a&brief=")).text
    for query in ("by=x", "order=x"):
        page(web.get(f"/pages/crawl?name=a&{query}"), 400)


def test_the_column_that_a_table_is_sorted_by_is_shown_on_phones_too(web: FlaskClient) -> None:
    report(web, "a", "http://one.example/1")
    for order, column in (
        ("lookups", "Looked up"),
        ("duplicates", "Duplicates"),
        ("duplicate_bytes", "Payload saved"),
        ("stored_bytes", "Payload reported"),
    ):
        shown = web.get(f"/pages/crawl?name=a&order={order}").text
        assert f'<th scope="col" class="n">{column}</th>' in shown, order
    assert '<th scope="col" class="n more">Duplicates</th>' in shown


def test_the_page_of_a_host_has_the_share_that_was_saved(web: FlaskClient) -> None:
    report(web, "a", "http://one.example/1")
    report(web, "b", "http://one.example/1")
    saved = card(web, "/pages/host?host=one.example", "Payload saved")
    share = "60.0 % of 5.0 kB, of hits and reported captures"
    assert saved == f'3.0 kB<span class="note">{share}</span>'


def test_times_of_lookups_say_of_what_they_are(web: FlaskClient) -> None:
    report(web, "a", "http://one.example/1")
    live, crawl = web.get("/pages/live?crawl=a").text, web.get("/pages/crawl?name=a").text
    assert "99 of 100 in 0.00 ms" not in live and "99 of 100 in at most 0.00 ms" not in live
    assert live.count(": no lookups<") >= 57  # of 60 minutes
    assert "rounded up, to at most twice the true time" in live
    assert "99 of 100 in at most" in live and "99 of 100 in at most" in crawl
    assert "Lookup time, of all its lookups" in crawl


def test_sums_over_crawls_leave_cancelled_ones_out(web: FlaskClient) -> None:
    report(web, "a", "http://one.example/1", size=3000)
    report(web, "b", "http://one.example/2", size=3000)
    host = "/pages/host?host=one.example"
    assert all("4 lookups" in web.get(path).text for path in ("/pages/charts", "/pages/live"))
    web.post("/crawls/b/cancel", json={"force": True})
    assert card(web, "/", "Payload saved") == "3.0 kB (50.0 %)"
    saved = card(web, host, "Payload saved")
    assert saved.startswith('3.0 kB<span class="note">50.0 % of 6.0 kB, ')
    assert "cancelled: not in the sums" in page(web.get(host)).text
    for path in ("/pages/charts", "/pages/live"):
        assert "4 lookups" not in web.get(path).text
        assert "2 lookups" in page(web.get(f"{path}?crawl=b")).text  # chosen, it is shown


def test_charts_have_the_numbers_of_crawls(web: FlaskClient) -> None:
    assert "Nothing was counted in these 48 hours" in page(web.get("/pages/charts")).text
    report(web, "a", "http://one.example/1", "http://one.example/2")
    report(web, "b", "http://three.example/")
    for span in chart_pages.SPANS:
        shown = web.get(f"/pages/charts?span={span}")
        assert "6 lookups, 4 duplicates" in page(shown).text  # of b the first one is one, too
        one = page(web.get(f"/pages/charts?span={span}&crawl=b"))
        assert "2 lookups, 2 duplicates" in one.text
        assert "4 captures saved, 3 stored" in shown.text and "3,000 stored" in shown.text
        assert "2 captures saved, 1 stored" in one.text
        drawn = shown.text.partition("Captures, saved and stored; the")[2].partition("</svg>")[0]
        names = re.findall(r'<rect class="(\w+)" .* height="([\d.]+)"/>', drawn)
        assert dict(names) == {
            "exact_url": "68.57",
            "digest": "22.86",
            "new": "68.57",
        }
        assert drawn.count('class="gap"') == 2  # between three parts
    page(web.get("/pages/charts?span=x"), 400)
    page(web.get("/pages/charts?crawl=x"), 404)


@given(
    st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)), st.sampled_from([*chart_pages.SPANS])
)
def test_a_span_of_time_is_complete_until_now(now: datetime, name: str) -> None:
    span = chart_pages.SPANS[name]
    units = chart_pages._units(span, now)
    assert len(set(units)) == span.units and units == sorted(units)
    assert units[-1].decode() == now.isoformat()[: span.width]
    step = {"hours": 1, "days": 24, "months": 24}[name]
    first = datetime.fromisoformat((units[0].decode() + "-01" * (name == "months"))[:10])
    met = {
        (now - timedelta(hours=back)).isoformat()[: span.width].encode()
        for back in range(0, int((now - first).total_seconds() // 3600) - 24, step)
    }
    assert met <= set(units)


def test_policies_and_namespaces_are_shown(make_index: MakeIndex) -> None:
    index = make_index([capture(1)], ALL)
    web = served(index)
    rules = [{"host": "x<b>.example", "never": True}, {"originals_from": ["a*", "<i>"]}, {}]
    begun = {"name": "a", "namespace": "news", "policy": rules, "strategy": "EXACT_URL"}
    assert web.post("/crawls", json=begun).status_code == 200
    shown = page(web.get("/pages/crawl?name=a")).text
    for text in ("news", "EXACT_URL", "never True", "x<b>.example", "a*, <i>", "everything else"):
        assert text in shown
    asked = f"/pages/lookup?digest={sha1(1)}&url={URL}&crawl=a"
    assert "A policy has a say" in page(web.get(asked)).text
    reader = tokens.add(index, "reader", Role.READ, namespaces="other")
    live = web.application.config["live"]
    closed = create_app(Config(index, private=True), live).test_client()
    closed.post("/pages/sign-in", data={"token": reader}, headers=HERE)
    page(closed.get(f"/pages/lookup?digest={sha1(1)}&namespace=other"))
    asked = {"digest": str(sha1(1)), "url": "http://h.example/", "crawl": "a"}
    web.post("/lookup", json={"lookups": [asked]})
    counted(web)
    for path, shows in (
        ("crawl?name=a", "h.example"),
        ("host?host=h.example", "Crawls that met it"),
        ("host", "h.example"),
        ("charts", "1 lookup"),
        ("charts?crawl=a", "1 lookup"),
    ):
        assert shows in page(web.get(f"/pages/{path}")).text
        hidden = closed.get(f"/pages/{path}")
        page(hidden, 403 if "=a" in path else 200)
        assert shows not in hidden.text
    for path in ("/", "/pages/crawls"):
        assert "crawl?name=a" in web.get(path).text
        assert "crawl?name=a" not in closed.get(path).text
    page(closed.get("/pages/impact"), 403)
    page(closed.get("/pages/impact?kind=crawl&name=a"), 403)
    for query in (
        f"digest={sha1(1)}&namespace=news",
        f"url={URL}&crawl=a",
        f"url={URL}&namespace=news",
    ):
        page(closed.get(f"/pages/lookup?{query}"), 403)
    for path in ("/pages/crawl?name=b", "/pages/charts?crawl=b"):
        assert "there is none to read" in page(closed.get(path), 404).text
    sent = {"Authorization": f"Bearer {reader}"}
    assert "there is none" in closed.get("/crawls/b/report", headers=sent).text


def test_the_impact_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = begin(tmp_path, settings=ALL)
    one, other = capture(1, b"http://x.example/<b>", container="/w/a.warc.gz"), capture(2)
    again = capture(1, b"http://y.example/", day=2, container="/w/<i>.warc.gz")
    away = [revisit_of(other, b"http://z.example/<img>", day, crawl="<u>") for day in (1, 2)]
    load(index, [one, again, other], [revisit_of(one, one.url, 3), *away])
    load(index, [again._replace(container="/copy/<i>.warc.gz")])
    web = served(index)
    copied = page(web.get(f"/pages/impact?kind=url&name={quote(again.url)}")).text
    assert copied.count("Removed: another record") == 1 and "/copy/<i>.warc.gz" in copied
    shown = page(web.get("/pages/impact?kind=container&name=/w/a.warc.gz")).text
    assert "that would be removed: 1; revisits that depend on them: 1" in shown
    assert (
        "Removed: its payload stays, under another URL" in shown and "http://x.example/<b>" in shown
    )
    assert "their payload nowhere:" not in shown and "Removed: another record" not in shown
    assert "<summary>Each of them" in web.get("/pages/impact?kind=prefix&name=http").text
    meant = page(web.get("/pages/impact?kind=url&name=x.example/b")).text
    assert "x.example/b has no scheme: did you mean http://x.example/b?" in meant
    broken = page(web.get(f"/pages/impact?kind=url&name={quote(other.url)}")).text
    assert "payload nowhere: 2 (2.0 kB)" in broken
    assert "http://z.example/<img>" in broken and "<u>" in broken
    assert (
        "Originals that would be removed: 3;"
        in page(web.get("/pages/impact?kind=prefix&name=http")).text
    )
    assert "nothing of -x" in page(web.get("/pages/impact?kind=crawl&name=-x")).text.replace(
        "\n", " "
    )
    asked = "/pages/impact?kind=crawl&name=weekly"
    for site, runs in (("none", True), ("same-origin", True), ("cross-site", False)):
        text = page(web.get(asked, headers={"Sec-Fetch-Site": site})).text
        assert ("There is nothing of" in text) is runs
    for query in ("kind=x&name=y", "kind=crawl&name=a%00b"):
        page(web.get(f"/pages/impact?{query}"), 400)
    for query, kind in (
        (f"url={quote(other.url)}", "url"),  # as of GET /impact
        ("url=http&prefix=true", "prefix"),
        ("container=a.warc.gz", "container"),
    ):
        answer = web.get(f"/pages/impact?{query}")
        page(answer)
        assert f'value="{kind}" selected' in answer.text, query
        assert "Originals that would be removed: " in answer.text
    for query in ("kind=url&name=http", "host=x.example", "crawl=a", "container=a"):
        assert page(web.get(f"/pages/impact?{query}&prefix=true"), 400), query
    shown = page(web.get("/pages/impact?kind=url&url=http://x.example/"), 400).text
    assert "give kind and name, or one of container, crawl, host, url" in shown
    shown = page(web.get("/pages/impact?name=x&file=a.warc.gz"), 400).text
    assert "there is no parameter 'file'; there are kind, name, container, crawl, host" in shown
    page(web.get("/pages/impact?kind=container&name=%FF%22%3Cscript%3E"))
    monkeypatch.setattr(commands, "LONGEST", 0.01)
    assert "use bin/impact itself" in page(web.get(asked), 400).text


def test_the_lookup_page_lists_by_url_only_if_the_index_can(make_index: MakeIndex) -> None:
    for by_url in (True, False):
        web = served(make_index([capture(1)], Settings(by_url=by_url)))
        shown = page(web.get("/pages/lookup")).text
        assert ("what is held of this URL" in shown) is by_url
        assert ("keeps no list by URL" in shown) is not by_url


def test_the_crawl_of_an_original_is_a_link_if_it_has_a_page(tmp_path: Path) -> None:
    index = begin(tmp_path)
    load(index, [capture(1)._replace(crawl="elsewhere")])
    web = served(index)
    web.post("/crawls", json={"name": "weekly", "seen_by": "all"})
    one = {"digest": str(sha1(7)), "url": URL, "date": "2026-11-20T09:14:17Z", "size": 9}
    web.post("/captures?crawl=weekly", json={**one, "status": 200})
    assert "/pages/crawl?name=weekly" in page(web.get(f"/pages/lookup?digest={sha1(7)}")).links
    other = page(web.get(f"/pages/lookup?digest={sha1(1)}"))
    assert "elsewhere" in other.text and "/pages/crawl?name=elsewhere" not in other.links


def test_the_crawl_page_names_tables_that_are_not_refreshed(web: FlaskClient) -> None:
    web.post("/crawls", json={"name": "a"})
    web.get(f"/lookup?digest={sha1(1)}&crawl=a&url={URL}")
    counted(web)
    shown = page(web.get("/pages/crawl?name=a&by=mime"))
    assert "this table does not renew itself" in shown.text
    assert "/pages/crawl?name=a&by=mime&order=lookups" in shown.links


CDX = (
    b" CDX N b a m s k r M S V g\n"
    + b"example,com)/a 20261120091417 http://example.com/a image/png 200 "
    + str(sha1(1)).removeprefix("sha1:").encode()
    + b" - - 5000 0 w.warc.gz\n"
    + b"x)/ 20261120091417 http://<script>x image/png 200 "
    + str(sha1(5)).removeprefix("sha1:").encode()
    + b" - - 7000 0 w.warc.gz\n"
)


@pytest.mark.parametrize("content", [CDX, gzip.compress(CDX)], ids=["plain", "gzip"])
def test_the_what_if_page(web: FlaskClient, content: bytes) -> None:
    shown = page(send(web, content)).text
    assert "crawl.cdx: 1 of 2 captures saved" in shown
    assert "Sizes of payloads: 0 stated, 1 those of their originals, 1 not known" in shown
    assert "no original" in shown
    assert "<script>x" in shown and r"C:\logs" not in shown
    by_type = page(send(web, content, "mime")).text
    assert "image/png" in by_type and "By media type, the " in by_type


def test_a_warning_of_the_what_if_page_names_the_file(web: FlaskClient) -> None:
    record = (ROOT / "tests" / "data" / "warc" / "example.warc.gz").read_bytes()
    shown = page(send(web, record[:-40])).text
    assert "crawl.cdx at 3207: the last gzip member is cut short" in shown
    assert "warning: -" not in shown


def test_shares_have_one_decimal(web: FlaskClient) -> None:
    shares = re.findall(r"[\d.]+ %", send(web, CDX).text)
    assert "50.0 %" in shares and not [one for one in shares if len(one.split(".")[-1]) != 3]


def test_a_share_of_the_what_if_page_is_rounded_once(web: FlaskClient) -> None:
    """2 of 52 is 3.846: 3.85 in the JSON that the page is made of, which would make 3.9."""
    lines = [cdx_line(number, 1 if number < 2 else 50 + number, 25) for number in range(52)]
    shares = re.findall(r"[\d.]+ %", send(web, "".join([HEADER, *lines]).encode()).text)
    assert shares.count("3.8 %") >= 2 and "3.9 %" not in shares


def test_the_what_if_page_takes_a_crawl_log(web: FlaskClient) -> None:
    shown = page(send(web, (DATA / "heritrix.log").read_bytes())).text
    assert "crawl.cdx: 0 B of" in shown and "Not looked up" in shown
    for text in ("not-http: no HTTP response", "status: a status that is not looked up (--status)"):
        assert text in shown, text
    assert "docs/formats.md#what-is-refused says more about each reason." in shown


def test_invalid_files_of_the_what_if_page(
    web: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = page(send(web, b"hello\n"), 400).text
    assert "crawl.cdx is not a CDX, CDXJ, crawl.log, WARC or ARC file" in refused
    assert "groups by" in page(send(web, CDX, "<b>"), 400).text
    empty = web.post("/pages/what-if", data={"by": "host"}, headers=HERE)
    assert "Choose a file" in page(empty, 400).text
    damaged = page(send(web, gzip.compress(CDX * 1000)[:-20])).text
    assert "warning: " in damaged
    monkeypatch.setattr(commands, "LONGEST", 0.01)
    assert "more than 0.01 seconds" in page(send(web, CDX), 400).text


def test_files_that_are_too_large(make_index: MakeIndex) -> None:
    web = served(make_index(), max_body=1000)
    shown = page(send(web, b"x" * 40_000), 413).text
    assert "40.4 kB were sent, and at most 1.0 kB are taken here" in shown
    assert "bin/report INDEX --against" in shown and "captures" not in shown
    shown = page(web.post("/pages/sign-in", data={"token": "x" * 40_000}, headers=HERE), 413).text
    assert "40.0 kB were sent, and at most 16.4 kB are taken here" in shown


@pytest.mark.parametrize("size", [1_000_000, 5_000_000])
def test_uploads_of_many_sizes(web: FlaskClient, size: int) -> None:
    row = CDX.splitlines(keepends=True)[1]
    plain = CDX + row * (size // len(row))
    packed = gzip.compress(os.urandom(size), 0)  # as large, and of no kind
    assert f"{plain.count(b'5000'):,}" in page(send(web, plain)).text
    assert "crawl.cdx is not a CDX" in page(send(web, packed), 400).text
    log = (DATA / "heritrix.log").read_bytes()
    for content in (gzip.compress(plain), log * (size // len(log)), gzip.compress(log * 1000)):
        assert "crawl.cdx: " in page(send(web, content)).text


def test_the_fields_of_a_form_are_limited(web: FlaskClient) -> None:
    for size in (17_000, 1_000_000):
        assert "at most 16,384 bytes" in page(send(web, CDX, "x" * size), 413).text


def test_commands_are_limited_in_number_and_time(
    make_index: MakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = commands.Commands(make_index([capture(1)]))
    assert run.run("index", ["--stats", "--json"]).last.startswith(b"{")
    said = run.run("lookup", ["--help"], lines=3)
    assert (
        len(said.lines) == 3 and said.lines[0].startswith(b"Usage") and b"0 done" not in said.last
    )
    for options in (["--digest=a\0b"], ["--digest=x"], ["--nothing"]):
        with pytest.raises(BadInput):
            run.run("lookup", options)
    with pytest.raises(IndexUnavailable):
        commands.Commands(Path("/nothing")).run("lookup", ["--digest=sha1:x"])
    monkeypatch.setattr(commands, "AT_ONCE", 0)
    busy = commands.Commands(make_index())
    with pytest.raises(RequestError):
        busy.run("report", [])
    assert busy.run("impact", ["--crawl=none", "--json"]).last.startswith(b"{")  # of an admin
    monkeypatch.setattr(commands, "LONGEST", 0.3)
    reading, writing = os.pipe()  # of which nothing comes
    with open(reading, "rb") as never, open(writing, "wb"), pytest.raises(BadInput, match="0.3 s"):
        run.run("report", ["--against=-"], never)


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Nothing": "1"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://[::1"},
        {"Origin": "http://localhost.evil.example"},
        {"Sec-Fetch-Site": "cross-site", **HERE},
        {"Sec-Fetch-Site": "same-site", **HERE},
    ],
)
def test_forms_of_other_sites_are_refused(web: FlaskClient, headers: dict[str, str]) -> None:
    refused = page(send(web, CDX, **headers), 403).text
    assert "with curl add its address as -H 'Origin: " in refused
    page(web.post("/pages/sign-in", data={"token": "x"}, headers=headers), 403)
    page(web.post("/pages/sign-out", headers=headers), 403)


def test_private_pages_need_a_token(make_index: MakeIndex) -> None:
    index = make_index([capture(1)], ALL)
    secret = tokens.add(index, "reader", Role.READ)
    web = served(index, private=True)
    for path in paths(web):
        status = 200 if path == "/pages/sign-in" else 401
        shown = web.get(path + "?a=%3Cb%3E")
        page(shown, status)
        assert str(sha1(1)) not in shown.text and "example.com/a" not in shown.text
        role = "admin" if path in ("/pages/impact", "/pages/dry-run") else "read"
        assert f"--role {role}<" in shown.text or status == 200, path
    page(send(web, CDX), 401)
    assert "--role admin." in page(web.post("/pages/purge", data={}, headers=HERE), 401).text
    with web.get("/pages/static/pages.css") as style:
        assert style.status_code == 200
    form = {"token": secret + "x", "next": "/pages/crawls"}
    refused = web.post("/pages/sign-in", data=form, headers=HERE)
    assert "not a token of this index" in page(refused, 401).text
    assert "Set-Cookie" not in refused.headers
    form["token"] = f" {secret} "
    done = web.post("/pages/sign-in", data=form, headers=HERE)
    assert (done.status_code, done.headers["Location"]) == (303, "/pages/crawls")
    cookie = done.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Secure" not in cookie
    for path in paths(web):
        assert web.get(path).status_code != 401
    page(send(web, CDX))
    assert web.get(f"/lookup?digest={sha1(1)}").status_code == 401  # the API takes no cookie
    assert web.get("/stats").status_code == 401
    assert "Sign out" in web.get("/").text
    web.post("/pages/sign-out", headers=HERE)
    page(web.get("/"), 401)


@pytest.mark.parametrize("private", [False, True])
def test_a_link_to_the_api_is_shown_if_it_needs_no_token(
    make_index: MakeIndex, private: bool
) -> None:
    index = make_index([capture(1)], ALL)
    secret = tokens.add(index, "writer", Role.ADMIN)
    web = served(index, private=private)
    headers = {"Authorization": f"Bearer {secret}"}
    assert web.post("/crawls", json={"name": "a"}, headers=headers).status_code == 200
    web.set_cookie(COOKIE, secret)
    links = page(web.get("/pages/crawl?name=a")).links
    csv = [link for link in links if link.startswith("/crawls/a/report")]
    assert [web.get(link).status_code for link in csv] == ([] if private else [200])


def test_a_crawl_of_indexed_files_has_a_page(make_index: MakeIndex, tmp_path: Path) -> None:
    index, file = make_index([capture(1)], ALL), tmp_path / "spring.cdx"
    file.write_bytes(CDX)
    dedupindex("index", "--add", "--crawl", "spring", file, index)
    web = served(index)
    for counted in (False, True):
        if counted:
            dedupindex("index", "--stats", index)
        shown = page(web.get("/pages/crawl?name=spring"))
        assert "This crawl made no lookups and reported nothing" in shown.text
        assert "/pages/captures?crawl=spring" in shown.links
    page(web.get("/pages/crawl?name=none"), 404)


def test_the_impact_page_says_of_how_many_the_size_is_unknown(tmp_path: Path) -> None:
    index = begin(tmp_path, settings=ALL)
    captures = [
        capture(n, b"http://x.example/%d" % n, size=size) for n, size in ((1, 2000), (2, -1))
    ]
    load(index, captures, [revisit_of(captures[1], b"http://y.example/", 3)])
    shown = page(served(index).get("/pages/impact?kind=host&name=x.example")).text
    assert " ".join(shown.split()).count("2.0 kB and 1 of unknown size") == 2


def test_the_impact_page_needs_the_role_admin(make_index: MakeIndex) -> None:
    index = make_index([capture(1)])
    secret = tokens.add(index, "root", Role.ADMIN)
    web = served(index)
    assert "Sign out" not in page(web.get("/")).text  # which are for all here
    asked = "/pages/impact?kind=crawl&name=a%26b"
    page(web.get("/pages/impact"), 401)  # no form that would lead to a refusal
    page(web.get(asked), 401)
    (target,) = re.findall('name="next" value="([^"]+)"', web.get(asked).text)
    form = {"token": secret, "next": unescape(target)}
    done = web.post("/pages/sign-in", data=form, headers=HERE)
    assert done.headers["Location"] == asked
    assert "What would go" in page(web.get("/pages/impact")).text
    assert "There is nothing of a&b" in page(web.get(asked)).text.replace("\n", " ")


@pytest.mark.parametrize("token", ["\u202e", "a\r\nSet-Cookie: x=y", "a; Domain=evil", "", "é"])
def test_an_invalid_token_sets_no_cookie(make_index: MakeIndex, token: str) -> None:
    index = make_index()
    tokens.add(index, "reader", Role.READ)
    web = served(index, private=True)
    web.set_cookie(COOKIE, "nonsense")
    page(web.get("/"), 401)
    response = web.post("/pages/sign-in", data={"token": token}, headers=HERE)
    page(response, 401)
    assert "Set-Cookie" not in response.headers


@pytest.mark.parametrize(
    "target",
    [
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "javascript:1",
        "/lookup",
        "\r\n",
    ],
)
def test_signing_in_leads_to_no_other_server(make_index: MakeIndex, target: str) -> None:
    index = make_index()
    secret = tokens.add(index, "reader", Role.READ)
    web = served(index, private=True)
    form = {"token": secret, "next": target}
    done = web.post("/pages/sign-in", data=form, headers={**HERE, "X-Forwarded-Proto": "https"})
    assert (done.status_code, done.headers["Location"]) == (303, "/")
    assert "Secure" in done.headers["Set-Cookie"]


def test_an_unknown_page(web: FlaskClient) -> None:
    page(web.get("/pages/nothing/<b>here"), 404)
    assert web.get("/pagesx").get_json()["error"]["code"] == "not_found"
    assert web.get("/pages/static/../blueprint.py").status_code == 404
    assert web.post("/pages/crawls").status_code == 405


def test_a_defect_is_a_page_and_a_line_of_the_log(
    web: FlaskClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("server.pages.crawl_pages.page_number", lambda text: 1 / 0)
    monkeypatch.setattr("server.logs.LOGGER.propagate", True)
    shown = page(web.get("/pages/crawls"), 500).text
    assert "ZeroDivisionError" in caplog.text and "ZeroDivision" not in shown


def hostile_captures() -> list[Capture]:
    return [
        capture(
            number,
            text.encode() + (b"\xff\xfe" if number == 3 else b""),
            mime=text[:200].encode(),
            container=f"/warcs/{text}",
            record_id=text.encode("latin-1", "replace")[:300],
        )
        for number, text in enumerate(HOSTILE)
    ]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_pages_escape_text_of_the_web(make_index: MakeIndex, number: int) -> None:
    web = served(make_index(hostile_captures(), ALL))
    url = hostile_captures()[number].url
    if number == 4:  # no header line can carry it, which is said instead of a revisit
        assert "no header line" in web.get(f"/pages/lookup?digest={sha1(number)}").text
    for query in (f"digest={sha1(number)}&url={quote(url)}", f"url={quote(url)}"):
        shown = page(web.get(f"/pages/lookup?{query}"))
        assert printable(HOSTILE[number])[:60].rstrip() in shown.text
    page(web.get("/pages/containers"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60))
@given(st.text(max_size=60) | st.sampled_from(HOSTILE), st.sampled_from(["digest", "url", "crawl"]))
def test_pages_escape_parameters(web: FlaskClient, text: str, name: str) -> None:
    sent = quote(text.encode("utf-8", "surrogatepass"))
    for asked in (f"lookup?{name}={sent}", f"crawl?name={sent}", f"sign-in?next={sent}"):
        shown = web.get(f"/pages/{asked}")
        assert shown.status_code < 500
        Page(shown.text)  # which fails where text has become markup


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("application/pdf", "application/<wbr>pdf"),
        ("b" * 15, f'<span class="long">{"b" * 15}</span>'),
        ("www.a&b.example/<", "www<wbr>.a&amp;<wbr>b<wbr>.example/<wbr>&lt;"),
    ],
)
def test_paths_break_within_long_words_only(text: str, shown: str) -> None:
    assert escape.path(text) == shown


def test_names_break_if_they_are_long() -> None:
    assert escape.name("weekly-20261120 <b>") == "weekly-20261120 &lt;b&gt;"
    assert escape.name("weekly_of_the_library") == "weekly_<wbr>of_<wbr>the_<wbr>library"
    assert escape.path("outage-20261130231808") == "outage-<wbr>20261130231808"  # not in the launch


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 10**15)), max_size=6))
def test_a_bar_is_as_long_as_its_values(values: list[tuple[str, int]]) -> None:
    parts, whole = bar(values), sum(value for _, value in values)
    for part, (_, value) in zip(parts, [one for one in values if one[1]], strict=True):
        assert part.width == pytest.approx(100 * value / whole, abs=0.001)
    assert sum(part.width for part in parts) == pytest.approx(100 if whole else 0, abs=0.01)


@given(st.lists(st.lists(st.integers(0, 10**15), min_size=2, max_size=2), max_size=40))
def test_columns_of_a_chart_end_at_its_bottom(rows: list[list[int]]) -> None:
    chart = columns([(str(n), [("a", a), ("b", b)]) for n, (a, b) in enumerate(rows)])
    highest = max((a + b for a, b in rows), default=0)
    assert chart.highest == highest and len(chart.titles) == len(rows)
    for (place, title), (number, (a, b)) in zip(chart.titles, enumerate(rows), strict=True):
        assert title == str(number)
        end = place.x + place.width + 0.01  # the tooltip lies over its column
        mine = [
            part for part in chart.parts if place.x - 0.01 <= part.x and part.x + part.width <= end
        ]
        assert all(part.width <= WIDEST for part in mine)
        assert sum(part.height for part in mine) == pytest.approx(
            HEIGHT * (a + b) / (highest or 1), abs=0.02
        )
        assert all(part.x >= 0 and part.x + part.width <= 100.01 for part in mine)
        assert all(part.y >= -0.01 and part.y + part.height <= HEIGHT + 0.02 for part in mine)


def test_every_page_is_documented(web: FlaskClient) -> None:
    text = DOCS.read_text()
    for method, path in rules(web):
        assert re.search(rf"`{method} {path}`", text), path


def purge_form(
    index: Path, name: str = URL, kind: str = "url"
) -> tuple[FlaskClient, dict[str, str]]:
    """A signed-in administrator, and the form of the page that shows what depends on captures."""
    text = tokens.add(index, "boss", Role.ADMIN)
    web = served(index)
    web.post("/pages/sign-in", data={"token": text}, headers=HERE)
    shown = web.get(f"/pages/impact?kind={kind}&name={quote(name)}")
    page(shown)
    fields = form_of(shown.text)
    assert f"bin/purge {index} --{kind}={name}" in unescape(shown.text)
    return web, fields


def form_of(shown: str) -> dict[str, str]:
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', shown))
    assert fields.keys() == {"kind", "name", "confirm"}
    return fields


def held(web: FlaskClient) -> int:
    with web.application.config["live"].opened().engine.view() as view:
        return int(view.counts().captures)


def test_what_was_shown_is_removed_when_it_is_confirmed(
    make_index: MakeIndex, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logs.LOGGER.name)
    index = make_index([capture(1), capture(2, b"http://example.com/b")], ALL)
    web, fields = purge_form(index)
    assert page(web.post("/pages/purge", data=fields), 403).title.startswith("Not allowed")
    assert held(web) == 2
    answer = web.post("/pages/purge", data=fields, headers=HERE)
    assert "Removed from the index: originals 1" in page(answer).text
    assert held(web) == 1
    again = web.post("/pages/purge", data=fields, headers=HERE)
    assert "It is not as it was shown" in page(again, 409).text
    audits = [line for line in caplog.messages if " POST /pages/purge " in line]
    assert [line.partition("/pages/purge ")[2] for line in audits] == [
        f"name={URL} purge=url force=False intended=True",
        f"name={URL} found=1 purge=url force=False removed=1 unmerged=0",
    ]


def test_a_purge_is_confirmed_while_crawls_look_up(make_index: MakeIndex) -> None:
    index = make_index([capture(1), capture(2, b"http://example.com/b")], ALL)
    with closing(make_store(index)) as store:
        store.write(partial(lifecycle.begin, name="running"))
    web, _ = purge_form(index)

    def look_up() -> None:
        asked = f"/lookup?crawl=running&digest={sha1(2)}&url=http://example.com/b"
        assert web.get(asked).get_json()["duplicate"]
        web.application.config["live"].crawls.write_counts()

    look_up()
    shown = web.get(f"/pages/impact?kind=url&name={quote(URL)}").text
    assert "running" in shown
    look_up()
    fields = form_of(shown)
    assert "Remove them although revisits may depend on them<" in shown
    assert (
        "have not all been read"
        in page(web.post("/pages/purge", data=fields, headers=HERE), 409).text
    )
    answer = web.post("/pages/purge", data={**fields, "force": "yes"}, headers=HERE)
    assert "Removed from the index: originals 1" in page(answer).text


def test_a_host_is_removed_with_all_below_it(make_index: MakeIndex) -> None:
    others = [capture(2, b"https://www.example.com:8443/"), capture(3, b"http://example.org/")]
    index = make_index([capture(1), *others], ALL)
    web, fields = purge_form(index, "example.com", "host")
    answer = web.post("/pages/purge", data=fields, headers=HERE)
    assert "Removed from the index: originals 2" in page(answer).text
    assert held(web) == 1
    meant = page(web.get(f"/pages/impact?kind=host&name={quote('http://example.org/')}"))
    assert "Give a name without scheme, port and path: example.org" in meant.text


def test_the_result_of_a_purge_counts_all_that_was_shown(tmp_path: Path) -> None:
    index, url = begin(tmp_path, settings=ALL), URL.encode()
    one = capture(1, url)
    load(index, [one, capture(1, url, 2)], [revisit_of(one, url, 3)])
    web, fields = purge_form(index)
    removed = page(web.post("/pages/purge", data=fields, headers=HERE)).text
    assert "originals 1, other records 1, revisit records 1, captures of crawls" in removed


def test_the_impact_page_shows_who_loses_the_last_copy(tmp_path: Path) -> None:
    index, other = begin(tmp_path, settings=ALL), b"http://example.org/other"
    original, last = capture(1, container="/w/a.warc.gz"), capture(1, other, 2)
    load(index, [original, last], [revisit_of(original, b"http://z.example/", 3)])
    purge(index, Target(TargetKind.CONTAINER, ("a.warc.gz",)), force=True)
    web, fields = purge_form(index, other.decode())
    shown = page(web.get(f"/pages/impact?kind=url&name={quote(other)}", headers=HERE)).text
    assert "they lose the last copy of their payload: 1." in shown
    assert "A revisit whose payload has no other copy" in shown and "http://z.example/" in shown
    assert "Remove them although revisits depend on them: 1" in shown
    assert f"bin/purge {index} --url={other.decode()} --force" in shown
    assert "--force" in page(web.post("/pages/purge", data=fields, headers=HERE), 409).text
    assert held(web) == 1
    page(web.post("/pages/purge", data={**fields, "force": "yes"}, headers=HERE))
    assert held(web) == 0


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("name", "http://example.com/b", 409),
        ("kind", "prefix", 409),
        ("kind", "captures", 400),
        ("confirm", "", 400),
        ("confirm", "1-" + "0" * 64, 400),
        ("confirm", "99999999999-" + "0" * 64, 409),
        ("confirm", "99999999999-é", 409),
    ],
)
def test_only_what_was_shown_is_removed(
    make_index: MakeIndex, field: str, value: str, status: int
) -> None:
    index = make_index([capture(1), capture(2, b"http://example.com/b")], ALL)
    web, fields = purge_form(index)
    page(web.post("/pages/purge", data={**fields, field: value}, headers=HERE), status)
    assert held(web) == 2


def test_without_tokens_nobody_removes_anything_here(make_index: MakeIndex) -> None:
    web = served(make_index([capture(1)], ALL))
    shown = web.get(f"/pages/impact?kind=url&name={quote(URL)}")
    assert "confirm" not in shown.text.partition("<form")[2].partition("</form>")[0]
    assert 'action="/pages/purge"' not in shown.text
    fields = {"kind": "url", "name": URL, "confirm": "99999999999-" + "0" * 64}
    page(web.post("/pages/purge", data=fields, headers=HERE), 403)
    assert held(web) == 1


def test_a_dry_run_reads_below_its_directories_only(make_index: MakeIndex, tmp_path: Path) -> None:
    top, outside = tmp_path / "archives", tmp_path / "other"
    (top / "one").mkdir(parents=True)
    (top / "linked").mkdir()
    outside.mkdir()
    payload = os.urandom(5000)
    warcs = [response(payload, number=number, Target_URI=URL.encode()) for number in range(3)]
    (top / "one" / "a.warc").write_bytes(b"".join(warcs))
    (top / "linked" / "etc").symlink_to(outside)
    (top / "out").symlink_to(outside)
    web = served(make_index(), dry_run_dirs=(top,))

    def asked(path: str, status: int = 200, **more: str) -> str:
        given = {"root": "0", "path": path, **more}
        return page(web.get("/pages/dry-run", query_string=given), status).text

    found = asked("one")
    assert re.search(r"Would become revisits\s*2\s", found)
    assert "would be saved in files" in found and not re.search(r"\bB saved", found)
    assert re.search(r"Without a duplicate\s*0\s+Originals\s*1\s", found)
    assert f"bin/dedup {top}/one --dry-run --out=NEW-DIRECTORY" in found
    assert "66.7 %" in found and "Revisits, %" in found  # of the captures of its host
    assert "Duplicates that would not be rewritten" not in found
    (top / "small").mkdir()
    record = b"".join(response(b"1", number=number, Target_URI=URL.encode()) for number in range(3))
    (top / "small" / "a.warc").write_bytes(record)
    found = asked("small")
    command = ("dedup", top / "small", "--dry-run", "--out", tmp_path / "new")
    reason = "no-gain: the revisit would not be smaller, or not by --min-gain"
    for text in (reason, "66.7 %", "docs/stages.md#manifest, #resolve and #rewrite say more"):
        assert text in found and text in dedupindex(*command)[0], text
    assert "link that leads out" in asked("", 400)
    assert "etc is a link that leads out" in asked("linked", 400)
    for path in ("..", "../other", str(outside), "out", "nowhere", "one/a.warc", "one/\0", "~"):
        refused = asked(path, 400)
        assert "there is no such directory below" in refused or "\0" in path
    for root in ("1", "-1", "x", "²"):
        asked("one", 400, root=root)
    other = web.get("/pages/dry-run?root=0&path=one", headers={"Sec-Fetch-Site": "cross-site"})
    assert "Would become revisits" not in page(other).text
    assert "may read no directory" in page(served(make_index()).get("/pages/dry-run")).text
    archives = {top / "one" / "a.warc", top / "small" / "a.warc"}
    assert {path for path in top.rglob("*") if path.is_file()} == archives
