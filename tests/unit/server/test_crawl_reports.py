"""Reports of crawls over HTTP and on the command line: what every way of asking counts, and how."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
from contextlib import closing
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st

from dedupindex.crawls import lifecycle, merge_crawls, statistics
from dedupindex.crawls.counting import NO_ORIGINAL, LookupCounter, LookupOutcome, add_counted
from dedupindex.crawls.statistics_keys import MOST, StatisticsKind, StatisticsRow, key_of
from dedupindex.crawls.store import Writing
from dedupindex.crawls.stores.lmdb_crawl_store import LmdbStore
from dedupindex.index.identity import Settings
from dedupindex.runtime.report_table import ReportColumn, Table, Unit
from server.app import create_app
from server.config import Config
from server.live_index import LiveIndex
from tests.conftest import MakeIndex
from tests.integration.test_crawls_live import children, send
from tests.integration.test_server_live import serving, until
from tests.support.captures import capture, sha1
from tests.unit.cli.test_cli import dedupindex

HOSTILE = "<script>alert(1)</script>"


class Web(FlaskClient):
    """A client of a server that writes its counts on request only."""

    live: LiveIndex

    def report(self, query: str = "", crawl: str = "a") -> Any:
        self.live.crawls.write_counts()
        answer = self.get(f"/crawls/{crawl}/report?{query}")
        assert answer.status_code == 200, answer.text
        return answer.get_json() if answer.mimetype == "application/json" else answer.text


@pytest.fixture
def index(make_index: MakeIndex) -> Path:
    """Originals of sizes 1001 and 1002, and one of which only the record's size is known."""
    return make_index(
        [
            capture(1, b"http://one.example/a"),
            capture(2, b"http://two.example/b", mime=b"text/html"),
            capture(3, b"http://one.example/c", size_of_record=True),
        ],
        Settings(by_url=True),
    )


@pytest.fixture
def web(index: Path) -> Web:
    return served(index)


def served(index: Path) -> Web:
    live = LiveIndex(index)
    live.refresh()
    app = create_app(Config(index), live)
    app.test_client_class = Web
    web = app.test_client()
    assert isinstance(web, Web)
    web.live = live
    for name in "ab":
        assert web.post("/crawls", json={"name": name}).status_code == 200
    return web


def question(number: int, url: str = "http://one.example/a", **more: Any) -> str:
    asked = {"digest": str(sha1(number)), "url": url, "crawl": "a", **more}
    return "&".join(f"{name}={quote(str(value), safe='')}" for name, value in asked.items())


REPORTED = {
    "digest": str(sha1(7)), "url": "http://x.example/7", "date": "2026-11-20T09:14:17Z",
    "status": 200,
}  # fmt: skip


def found(report: dict[str, Any]) -> StatisticsRow:
    return StatisticsRow(**{name: report[name] or 0 for name in StatisticsRow._fields})


def test_every_kind_of_lookup_counts(web: Web) -> None:
    exact = {"exact_url": 1, "exact_url_bytes": 1001}
    expected = StatisticsRow()

    def check(**more: int) -> None:
        nonlocal expected
        expected = expected.plus(StatisticsRow(**more))
        assert found(web.report()) == expected

    plain = f"/lookup?digest={sha1(1)}&url=http%3A%2F%2Fone.example%2Fa&crawl=a"
    assert web.get(plain).get_json()["duplicate"]
    check(lookups=1, **exact)
    assert web.get(plain, headers={"Accept": "text/plain"}).status_code == 200
    check(lookups=1, **exact)
    web.get("/lookup?" + question(1, "http://www.one.example/a", size=1300, explain=1))
    check(lookups=1, stated_bytes=1300, duplicate_stated_bytes=1300, canonical_url=1,
          canonical_url_bytes=1001)  # fmt: skip
    web.get("/lookup?" + question(2))
    check(lookups=1, digest=1, digest_bytes=1002)
    web.get("/lookup?" + question(3, "http://one.example/c"))
    check(lookups=1, exact_url=1, unsized=1)
    web.get("/lookup?" + question(9, size=70))
    check(lookups=1, stated_bytes=70)
    web.get("/lookup?" + question(1, crawl="a").replace("sha1%3A", "sha3%3A"))
    check(lookups=1)
    asked = {"digest": str(sha1(1)), "url": "http://one.example/a"}
    web.post("/lookup?crawl=a", json={"lookups": [asked, {**asked, "digest": str(sha1(9))}]})
    check(lookups=2, **exact)
    named = {**asked, "crawl": "a", "size": 5}
    web.post("/lookup", json={"lookups": [named, asked, {**named, "digest": "md9:AAAA"}]})
    check(lookups=2, stated_bytes=5, duplicate_stated_bytes=5, **exact)
    lines = json.dumps(asked) + "\n{}\nno json\n"
    web.post("/lookup?crawl=a", data=lines, content_type="application/x-ndjson")
    check(lookups=1, errors=2, **exact)
    web.post("/claims", json=named)
    check(lookups=1, stated_bytes=5, duplicate_stated_bytes=5, **exact)
    web.post("/claims", json={**named, "digest": str(sha1(9))})
    check(lookups=1, stated_bytes=5)
    web.get("/lookup?crawl=a&digest=nonsense")
    web.get("/lookup?" + question(1, strategy="BEAUTY"))
    check(errors=2)
    shown = web.get("/crawls/a").get_json()
    assert (shown["lookups"], shown["duplicates"]) == (expected.lookups, expected.duplicates)
    assert shown["duplicate_bytes"] == expected.duplicate_bytes
    assert found(web.report(crawl="b")) == StatisticsRow()


def test_a_match_class_without_a_known_size_has_no_bytes(web: Web, index: Path) -> None:
    """Others have: only together they would have a sum."""
    for number, url in (
        (1, "http://one.example/a"), (3, "http://www.one.example/c"), (2, "http://x.example/"),
    ):  # fmt: skip
        web.get("/lookup?" + question(number, url))
    web.post("/captures?crawl=a", json={**REPORTED, "size": 500})
    report = web.report("by=host")
    for row in (report, report["strategies"]["DIGEST_ANY"]):
        assert (row["canonical_url"], row["canonical_url_bytes"]) == (1, None)
        assert (row["exact_url_bytes"], row["digest_bytes"], row["unsized"]) == (1001, 1002, 1)
        assert row["duplicate_bytes"] == 2003
    assert "Same canonical URL:   1 (33.3 %), bytes: not known\n" in web.report("format=text")
    page = web.report("format=html")
    assert "same canonical URL: not known<" in page and "same URL: 1.0 kB<" in page  # no shares
    shown = web.get("/pages/crawl?name=a").text
    assert re.search(
        r'same canonical URL</th>(<td class="n">[^<]+</td>){2}<td class="n">not known<', shown
    )
    web.get("/lookup?" + question(1, "http://www.one.example/a"))
    assert web.report()["canonical_url_bytes"] == 1001  # as far as known


def test_what_has_no_host_is_counted_as_not_known(web: Web, index: Path) -> None:
    """A URL without a scheme, swapped parameters, no URL: one group in every form of the report."""
    web.get(f"/lookup?digest={sha1(1)}&crawl=a")
    web.get("/lookup?" + question(1, "example.com/"))
    web.get("/lookup?" + question(1, str(sha1(1))))
    web.get("/lookup?" + question(1, "http://one.example/a"))
    hosts = {row["host"]: row["lookups"] for row in web.report("by=host")["groups"]}
    assert hosts == {None: 3, "one.example": 1}
    rows = csv.reader(io.StringIO(web.report("by=host&format=csv")))
    assert {row[0] for row in rows} == {"host", "not known", "one.example"}
    assert re.search(r"^ +3 .*  not known$", web.report("by=host&format=text"), re.MULTILINE)
    assert '<th scope="row">not known</th>' in web.report("by=host&format=html")
    assert '<bdi class="url">not known</bdi>' in web.get("/pages/crawl?name=a").text


@pytest.mark.parametrize("how", ["commit", "cancel"])
def test_lookups_of_a_crawl_that_has_ended_are_answered_and_not_counted(web: Web, how: str) -> None:
    plain = f"/lookup?digest={sha1(1)}&url=http%3A%2F%2Fone.example%2Fa&crawl=a"
    asked = {"digest": str(sha1(1)), "url": "http://one.example/a"}

    def ask_all() -> list[Any]:
        lines, kind = json.dumps(asked) + "\n{}\n", "application/x-ndjson"
        answers = [
            web.get("/lookup?crawl=a&digest=nonsense"),  # before any that reads the crawls
            web.get("/lookup?" + question(1).replace("sha1%3A", "sha3%3A")),
            web.get(plain),
            web.get(plain, headers={"Accept": "text/plain"}),
            web.get("/lookup?" + question(9, size=70)),
            web.get("/lookup?" + question(2, "http://www.one.example/a", explain=1)),
            web.get("/lookup?" + question(2, "http://one.example/" + 2100 * "a")),
            web.post("/lookup?crawl=a", json={"lookups": [asked, {"digest": "none"}]}),
            web.post("/lookup", json={"lookups": [{**asked, "crawl": "a"}]}),
            web.post("/lookup?crawl=a", data=lines, content_type=kind),
            web.get("/crawls/a/cdx?url=http://one.example/a"),
            web.get("/cdx?url=http://one.example/a&crawl=a"),
            web.get(f"/crawls/a/api/records/{sha1(1)}?uri=http://one.example/a"),
        ]
        return [(answer.status_code, answer.data) for answer in answers]

    answers = ask_all()
    before = web.report()
    assert before["lookups"] == 12 and before["errors"] == 3
    assert web.post(f"/crawls/a/{how}").status_code == 200
    if how == "commit":
        web.live.crawls.counting.ended = frozenset()  # another worker has committed it
    assert ask_all() == answers
    after = web.report()
    assert found(after) == found(before)
    assert after["last_lookup"] == before["last_lookup"]
    web.get("/lookup?" + question(1, crawl="b"))
    assert web.report(crawl="b")["lookups"] == 1


def test_lookups_by_url_count_as_listed(web: Web) -> None:
    web.get("/cdx?url=http://one.example/a&crawl=a")
    web.get("/cdx?url=http://one.example/nothing&crawl=a")
    assert found(web.report()) == StatisticsRow(lookups=2, listed=1)
    spelled = str(sha1(1)).removeprefix("sha1:")
    web.get(f"/cdx?url=http://one.example/a&crawl=a&filter=digest:{spelled}")
    hit = StatisticsRow(lookups=3, listed=1, exact_url=1, exact_url_bytes=1001)
    assert found(web.report()) == hit
    web.get("/cdx?url=http://one.example/a&crawl=a&limit=nonsense")
    assert found(web.report()) == hit.plus(StatisticsRow(errors=1))


def test_stored_captures_count_once(web: Web) -> None:
    sent = {
        "digest": str(sha1(5)),
        "url": "http://new.example/",
        "date": "2026-11-20T09:14:17Z",
        "status": 200,
        "mime": "image/png",
        "size": 300,
    }
    for _ in range(2):
        web.post("/captures?crawl=a", json=sent)
    web.post("/captures?crawl=a", json={**sent, "url": "http://new.example/2", "size": None})
    web.post("/captures?crawl=a", json={**sent, "digest": str(sha1(6)), "status": 404})
    report = web.report("by=host")
    assert (report["stored"], report["stored_bytes"]) == (2, 300)
    assert (report["captures"], report["bytes"]) == (2, 300)
    [group] = report["groups"]
    assert (group["host"], group["stored"], group["stored_bytes"]) == ("new.example", 2, 300)
    [by_mime] = web.report("by=mime")["groups"]
    assert (by_mime["mime"], by_mime["stored"]) == ("image/png", 2)


def test_refused_captures_are_counted_by_reason(make_index: MakeIndex) -> None:
    web = served(make_index([], Settings(mime="text/html", whitelist=True)))
    assert web.report()["refused"] == {}
    assert "refused" not in web.report("format=text")
    sent = {"digest": str(sha1(5)), "url": "http://a.example/", "date": "2026-11-20T09:14:17Z"}
    for refused, mime in enumerate(("image/png", "image/png", "text/html")):
        text = web.report("format=text")
        assert ("; the index took nothing that it reported\n" in text) == (refused > 0)
        warned = f"all that it reported was refused: {refused}" in web.get("/pages/crawls").text
        assert warned == (refused > 0)
        web.post("/captures?crawl=a", json={**sent, "mime": mime, "status": 200})
    assert web.report()["refused"] == {"mime": 2} == web.get("/crawls/a").get_json()["refused"]
    assert "\nReported but refused: 2 (mime 2)\n" in web.report("format=text")
    for text in (web.report("format=html"), web.get("/pages/crawl?name=a").text):
        assert "<dt>Reported but refused</dt><dd>2 (mime 2)</dd>" in text
    assert "was refused: 2" not in web.get("/pages/crawl?name=a").text


def test_what_the_index_refuses_was_stored_and_counts_in_the_share(make_index: MakeIndex) -> None:
    web = served(make_index([capture(1)], Settings()))
    for number in (1, 8, 9):
        web.get("/lookup?" + question(number))
    sent = {"url": "http://one.example/a", "date": "2026-11-20T09:14:17Z", "status": 200}
    for number, mime, size in ((8, "image/png", 99), (9, "text/plain", 8900)):
        one = {**sent, "digest": str(sha1(number)), "mime": mime, "size": size}
        web.post("/captures?crawl=a", json=one)
    shown = web.post("/crawls/a/commit").get_json()
    assert (shown["captures"], shown["bytes"], shown["refused"]) == (1, 99, {"mime": 1})
    report = web.report("by=host")
    assert (report["handled_bytes"], report["new_bytes"], report["unreported"]) == (10000, 8999, 0)
    assert (report["stored"], report["stored_bytes"]) == (1, 99)
    assert report["sizes"] == {"stated": 2, "of_original": 1, "unknown": 0}
    assert sum(group["handled_bytes"] or 0 for group in report["groups"]) == 1100
    assert shown["duplicate_bytes_percent"] == report["duplicate_bytes_percent"] == 10.01
    text = web.report("format=text")
    assert "Payload:              10,000 (10.0 kB), of hits and reported captures\n" in text
    assert "Payload saved:        1,001 (1.0 kB), 10.0 %\n" in text
    for found_in in (web.report("format=html"), web.get("/pages/crawl?name=a").text):
        assert "10.0 % of 10.0 kB, of hits and reported captures<" in found_in
    for path in ("/", "/pages/crawls"):
        assert "(10.0 %" in re.sub(r"</?span[^>]*>", "", web.get(path).text), path
    web = served(make_index([capture(1)], Settings()))  # a size that nobody knows
    for number in (1, 9):
        web.get("/lookup?" + question(number))
    web.post("/captures?crawl=a", json={**sent, "digest": str(sha1(9)), "mime": "text/plain"})
    report = web.report()
    assert report["duplicate_bytes_percent"] is None and report["sizes"]["unknown"] == 1


def test_the_share_of_a_host_leaves_out_crawls_whose_share_is_not_known(web: Web) -> None:
    """What the index refused is not counted by host: a crawl's hits there are half of its share."""
    for crawl, mime in (("a", "text/plain"), ("b", "image/png")):
        for number in (1, 8):
            web.get("/lookup?" + question(number, crawl=crawl))
        sent = {"url": "http://one.example/a", "date": "2026-11-20T09:14:17Z", "status": 200}
        one = {**sent, "digest": str(sha1(8)), "mime": mime, "size": 3003}
        web.post(f"/captures?crawl={crawl}", json=one)
        report = web.report("by=host", crawl)
        assert report["duplicate_bytes_percent"] == 25.0
        [group] = report["groups"]
        assert group["duplicate_bytes_percent"] == (None if crawl == "a" else 25.0)
        shown = web.get("/pages/host?host=one.example").text
        note = "25.0 % of 4.0 kB, of hits and reported captures, without crawls whose share is not"
        assert (note in shown) == (crawl == "b")
        assert "A share is not known if a crawl has lookups of this host without" in shown


def test_refused_captures_of_an_earlier_version_are_of_unknown_size(web: Web) -> None:
    """It counted them by reason only: they are reported, and the share is not known."""
    sent = {"url": "http://one.example/a", "date": "2026-11-20T09:14:17Z", "status": 200}
    for number in (1, 8, 9, 10):
        web.get("/lookup?" + question(number))
    one = {**sent, "digest": str(sha1(8)), "mime": "image/png", "size": 99}
    web.post("/captures?crawl=a", json=one)
    web.post("/captures?crawl=a", json={**one, "digest": str(sha1(9)), "status": 404})
    assert web.report()["duplicate_bytes_percent"] is not None

    def add_refused(writing: Writing) -> None:
        number = writing.crawl("a").number
        writing.add(key_of(number, StatisticsKind.REFUSED, b"mime"), [1])

    web.live.crawls.write(add_refused)
    report = web.report()
    assert report["refused"] == {"mime": 1, "status": 1}
    assert (report["unreported"], report["stored"]) == (0, 1)
    assert report["duplicate_bytes_percent"] is None and report["sizes"]["unknown"] == 1


def test_refused_captures_that_are_reported_again_are_not_stored(web: Web) -> None:
    """A client that sends a report again does not change what groups and warnings count."""
    sent = {"digest": str(sha1(6)), "url": "http://new.example/", "date": "2026-11-20T09:14:17Z"}
    for _ in range(3):
        web.post("/captures?crawl=a", json={**sent, "mime": "a/b", "status": 404, "size": 5})
    report = web.report("by=host")
    assert (report["stored"], report["stored_bytes"], report["groups"]) == (0, 0, [])
    assert report["refused"] == {"status": 3}


def test_bytes_of_hits_and_stored_captures_are_called_so(web: Web) -> None:
    sent = {"digest": str(sha1(5)), "url": "http://new.example/", "date": "2026-11-20T09:14:17Z"}
    web.post(
        "/captures?crawl=a", json={**sent, "size": 1000, "status": 200}
    )  # without a lookup before
    handled = "of hits and reported captures"
    assert f"Payload:              1,000 (1.0 kB), {handled}\n" in web.report("format=text")
    web.get("/lookup?" + question(5, "http://new.example/"))
    for text in (web.report("format=html"), web.get("/pages/crawl?name=a").text):
        assert f"50.0 % of 2.0 kB, {handled}<" in text
        assert not re.search(r"looked up<|Lookups</dt><dd>[^/]+payload", text.split("<table")[0])
    html = web.report("format=html")
    assert f"50.0 % of the payload {handled} was not stored again" in html
    assert f"<dt>Payload {handled}</dt>" in html and f">Payload {handled}<" in html
    assert ">1.0 kB stored</td>" in web.get("/pages/crawl?name=a").text


def test_records_count_for_their_crawl(web: Web) -> None:
    spelled = str(sha1(7)).removeprefix("sha1:")
    record = {"id": spelled, "uri": "http://new.example/", "date": 20261120091417}
    assert web.post("/api/records", json=[record]).status_code == 201
    web.get(f"/api/records/{spelled}?uri=http://new.example/")
    web.get(f"/api/records/{str(sha1(99)).removeprefix('sha1:')}?uri=http://new.example/")
    row = found(web.report(crawl="doppelganger"))
    assert (row.lookups, row.exact_url, row.stored, row.unsized) == (2, 1, 1, 1)


def test_self_reports_of_crawlers(web: Web) -> None:
    assert web.get("/crawls/a").get_json()["not_looked_up"] is None
    unsaid = "not known (the crawler did not say)"
    assert f"  left out:           {unsaid}\n" in web.report("format=text")
    answer = web.post("/crawls/a/counts", json={"not_looked_up": 4, "who": "one"}).get_json()
    assert (answer["not_looked_up"], answer["not_reported"]) == (4, None)
    for _ in range(2):  # its answer was lost
        web.post("/crawls/a/counts", data={"not_looked_up": "5", "who": "two"})
        shown = web.post(
            "/crawls/a/commit", json={"exit": "Finished", "not_looked_up": 1, "not_reported": 2}
        ).get_json()
    assert (shown["not_looked_up"], shown["not_reported"]) == (10, 2)
    report = web.report()
    assert (report["not_looked_up"], report["not_reported"], report["exit"]) == (10, 2, "Finished")
    text = web.report("format=text")
    assert "  not looked up:      10 more, stored in full (the crawler's own count)\n" in text
    assert "  not reported:       2 more, stored (the crawler's own count)\n" in text
    cancelled = web.post("/crawls/b/cancel", data={"not_looked_up": "3"}).get_json()
    assert (cancelled["state"], cancelled["not_looked_up"]) == ("cancelled", 3)
    for wrong in ({"not_looked_up": -1}, {"not_looked_up": True}, {"not_reported": "x"},
                  {"not_looked_up": 10**18}, {"who": "x" * 300, "not_reported": 1},
                  {"lookups": 3}):  # fmt: skip
        assert web.post("/crawls/a/counts", json=wrong).status_code == 400
    assert web.post("/crawls/c/counts", json={"not_looked_up": 1}).status_code == 404


def test_no_counts_make_a_report_unreadable(web: Web) -> None:
    """Whatever is stated, each number is one that JSON of 64 bits can have."""
    counting, most = web.live.crawls.counting, 10**18 - 1
    for number in range(20):
        counts = {"not_looked_up": most, "answered_by_filter": most, "who": f"{number}"}
        assert web.post("/crawls/a/counts", json=counts).status_code == 200
    huge = capture(1)._replace(size=most)
    for match in ("exact_url", "digest"):
        hit = LookupOutcome.of_hit(match, huge)
        counting.count_lookups([("a", "DIGEST_ANY", b"http://a/", hit, most, 1000)] * 20)
    report = web.report("by=day")
    assert report["answered_by_filter"] == report["lookups"] == report["duplicate_bytes"] == MOST
    assert web.get("/crawls").status_code == web.get("/crawls/a").status_code == 200


def many_hosts(web: Web) -> list[bytes]:
    hosts = [b"", b"caf\xe9.example", *(b"h%02d.example" % number for number in range(23))]
    counting = web.live.crawls.counting
    for number, host in enumerate(hosts):
        url = b"http://" + host + b"/" if host else b""
        hit = LookupOutcome.of_hit("exact_url", capture(1)._replace(size=number))
        counting.count_lookups([("a", "DIGEST_ANY", url, hit, -1, 1000)] * (number + 1))
    return hosts


def test_pages_of_a_report_hold_every_group_once(web: Web) -> None:
    hosts = many_hosts(web)
    whole = web.report("by=host")
    assert whole["next"] is None and len(whole["groups"]) == len(hosts)
    assert [one["host"] for one in whole["groups"]][:2] == [None, "caf\\xe9.example"]
    for size in (1, 7, 24, 25, 26):
        groups, follow = [], f"/crawls/a/report?by=host&limit={size}"
        while follow:
            answer = web.get(follow)
            page = answer.get_json()
            groups += page["groups"]
            follow = page["next"]
            assert answer.headers.get("Link") == (f'<{follow}>; rel="next"' if follow else None)
        assert groups == whole["groups"]
    hours = web.report("by=day")["groups"]
    assert sum(one["lookups"] for one in hours) == whole["lookups"]
    assert web.report(f"by=day&after={hours[-1]['day']}")["groups"] == []


def test_the_top_of_a_report(web: Web) -> None:
    hosts = many_hosts(web)
    top = web.report("by=host&top=3")["groups"]
    assert [one["lookups"] for one in top] == [len(hosts), len(hosts) - 1, len(hosts) - 2]
    assert top[0]["host"] == "h22.example"
    assert web.report("by=host&top=1&order=stored")["groups"][0]["stored"] == 0


def test_the_page_of_a_report_has_its_groups_in_the_order_of_the_picture(web: Web) -> None:
    for number, host in enumerate(("a.example", "c.example", "b.example")):
        for _ in range(number + 1):
            web.get("/lookup?" + question(1, f"http://{host}/"))
    heading = re.compile(r'<tr><th scope="row">(.)\.example<')
    html = web.report("by=host&format=html")
    assert heading.findall(html) == ["b", "c", "a"]
    assert "<caption>By host, most lookups first</caption>" in html
    assert heading.findall(web.report("by=host&format=html&limit=2")) == ["a", "b"]  # of three


def test_invalid_report_requests(web: Web) -> None:
    for query in (
        *("by=moon", "top=3", "by=host&top=0", "by=host&top=3&after=x", "by=host&limit=99999"),
        *("by=host&order=stored", "format=pdf", "x=1", "by=host&by=mime", "after=x"),
        "by=host&limit=-1",
    ):
        answer = web.get(f"/crawls/a/report?{query}")
        assert (answer.status_code, answer.get_json()["error"]["code"]) == (400, "bad_query"), query
    assert web.get("/crawls/nobody/report").status_code == 404


def test_pages_of_crawls(web: Web) -> None:
    for number in range(5):
        web.post("/crawls", json={"name": f"c{number}"})
    names = [one["name"] for one in web.get("/crawls").get_json()["crawls"]]
    assert names == ["c4", "c3", "c2", "c1", "c0", "b", "a"]
    seen, follow = [], "/crawls?limit=3"
    while follow:
        page = web.get(follow).get_json()
        seen.append([one["name"] for one in page["crawls"]])
        follow = page["next"]
    assert seen == [["c4", "c3", "c2"], ["c1", "c0", "b"], ["a"]]
    assert web.get("/crawls?after=nobody").status_code == 404
    assert web.get("/crawls?limit=0").status_code == 400


def test_all_formats_have_the_same_numbers(web: Web, index: Path) -> None:
    many_hosts(web)
    groups = web.report("by=host")["groups"]
    rows = list(csv.DictReader(io.StringIO(web.report("by=host&format=csv"))))
    assert [row["host"] for row in rows][:2] == ["not known", "caf\\xe9.example"]
    for name in StatisticsRow._fields:
        known = [row[name] and int(row[name]) for row in rows]
        assert known == ["" if group[name] is None else group[name] for group in groups]
    [whole] = csv.DictReader(io.StringIO(web.report("format=csv")))
    assert (whole["crawl"], int(whole["lookups"])) == ("a", 325)
    page = web.report("by=host&format=html")
    assert page.count('<tr><th scope="row">h') == 23 and "<script" not in page
    assert (
        web.report("by=host&top=2&order=duplicate_bytes&format=html").count('<tr><th scope="row"')
        == 2
    )
    assert "h22.example" in web.report("by=host&format=text")
    for style in ("json", "csv", "html", "text"):
        out, _ = dedupindex("report", index, "--crawl", "a", "--by", "host", "--limit", "0",
                            "--format", style)  # fmt: skip
        over = web.report(f"by=host&format={style}")
        if style == "json":
            over.pop("next")
            assert json.loads(out) == over
        else:
            assert out == over


def test_a_share_is_the_same_in_every_report_and_on_every_page(web: Web) -> None:
    """3.846 is 3.85 in JSON and 3.8 in text; 3.9 would be rounded twice."""
    hit = LookupOutcome.of_hit("exact_url", capture(1)._replace(size=10))
    asked = [("a", "DIGEST_ANY", b"http://a.example/", one, -1, 1000) for one in (hit, NO_ORIGINAL)]
    web.live.crawls.counting.count_lookups([asked[0]] * 2 + [asked[1]] * 50)
    stored = [capture(n, b"http://a.example/%d" % n)._replace(size=10) for n in range(10, 60)]
    web.live.crawls.counting.count_stored("a", stored)
    report = web.report("by=host")
    assert report["duplicates_percent"] == report["duplicate_bytes_percent"] == 3.85
    assert report["strategies"]["DIGEST_ANY"]["duplicates_percent"] == 3.85
    assert report["groups"][0]["duplicates_percent"] == 3.85
    for path in ("/crawls/a", "/crawls?limit=2"):
        assert '"duplicate_bytes_percent":3.85' in web.get(path).text
    shown = [web.report("by=host&format=text"), web.report("by=host&format=html")]
    pages = ("/", "/pages/crawl?name=a", "/pages/crawls", "/pages/host?host=a.example")
    for text in (*shown, *(web.get(path).text for path in pages)):
        assert "3.8 %" in text and "3.9 %" not in text


def test_reports_escape_text_of_the_web(web: Web) -> None:
    answers = [
        LookupOutcome.of_hit("exact_url", capture(1)._replace(mime=mime))
        for mime in (HOSTILE.encode(), b"=cmd|' /C calc'!A0", b"+1", b"@x", b"\x1b[2J\n")
    ]
    for hit in answers:
        url = f'http://{HOSTILE}.example/"'
        web.live.crawls.counting.count_lookup(("a", "DIGEST_ANY", url, hit, -1, 1))
    page = web.get("/crawls/a/report?by=mime&format=html")
    web.live.crawls.write_counts()
    page = web.get("/crawls/a/report?by=mime&format=html")
    assert "<script" not in page.text and "&lt;script&gt;" in page.text
    assert re.search(r"style-src 'sha256-[^']+'", page.headers["Content-Security-Policy"])
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    cells = [row[0] for row in csv.reader(io.StringIO(web.report("by=mime&format=csv")))]
    assert not any(cell[:1] in "=+-@" or "\x1b" in cell or "\n" in cell for cell in cells)
    assert "\x1b" not in web.report("by=mime&format=text")


@given(st.text(max_size=30), st.text(max_size=30))
def test_tables_escape_any_text(title: str, text: str) -> None:
    table = Table(title, (ReportColumn("name", "name", Unit.TEXT),), "name")
    page = "".join(table.html_lines([{"name": text}]))
    bare = re.sub(r"<(/?(div|table|caption|tr|th|td|thead|tbody)\b[^<>]*)>", "", page)
    assert "<" not in bare and '"' not in bare
    [_, cells] = csv.reader(io.StringIO("".join(table.csv_lines([{"name": text}]))))
    assert not text or cells[0][:1] not in tuple("=+-@\t\r")


def test_the_report_of_an_open_crawl_says_that_lookups_are_counted_later(web: Web) -> None:
    behind = "all numbers but 'Reported as stored' may be a second behind."
    assert f"                      The crawl is open: {behind}\n" in web.report("format=text")
    assert behind in unescape(web.report("format=html"))
    web.post("/crawls/a/commit")
    assert behind not in web.report("format=text") + unescape(web.report("format=html"))


def test_the_report_of_a_crawl_on_the_command_line(web: Web, index: Path) -> None:
    for number in (1, 2, 9):
        web.get("/lookup?" + question(number, size=100))
    web.post("/crawls/a/commit", json={"exit": "Finished", "not_looked_up": 7})
    text, _ = dedupindex("report", index, "--crawl", "a")
    for line in (
        "Crawl:                a, committed",
        "Looked up:            3",
        "Duplicates:           2 (66.7 % of what was looked up)",
        "Same URL:             1 (33.3 %), bytes: 1,001",
        "Another URL:          1 (33.3 %), bytes: 1,002",
        "No original:          1 (33.3 %), bytes reported: not known",
        "Payload:              not known",
        "Payload saved:        2,003 (2.0 kB)",
        "  as the crawler counts: 200 (200 B) of 300 (300 B), 66.7 %",
        "Sizes of payloads:    0 stated, 2 those of their originals, 1 not known (they add no "
        "bytes)",
        "  not looked up:      7 more, stored in full (the crawler's own count)",
        "  not reported:       not known (the crawler did not say)",
        "Answered with errors: 0",
        "  DIGEST_ANY:         3 lookups, 2 duplicates (66.7 %)",
        "  URL indexed:        yes",
        "  Canonical URL available: yes",
        "  Search strategy:    as each lookup states",
        "  Originals in index: 3",
    ):
        assert line in text.splitlines(), text
    unasked = "7 more were not looked up, so stored in full"
    page, _ = dedupindex("report", index, "--crawl", "a", "--format", "html")
    assert f"2 duplicates in 3 lookups; {unasked}." in page and ">66.7 % of lookups<" in page
    assert "<dt>Not looked up, as the crawler counts</dt><dd>7</dd>" in page
    assert (
        "<dt>Stored but not reported, as the crawler counts</dt>"
        "<dd>not known (the crawler did not say)</dd>"
    ) in page
    assert "<dt>Duration of the last lookup</dt>" in page and "<dt>Last lookup</dt>" not in page
    assert "<figcaption>Lookups by what was found<" in page and "Captures by" not in page
    facts = page.partition("<h2>In all</h2>")[2]
    for label in ("Captures reported as stored", "Payload reported as stored"):
        assert facts.count(f"<dt>{label}</dt>") == 1
    assert "<dt>Stored</dt>" not in facts and "Their payload" not in facts
    for shown in ("/", "/pages/crawls", "/pages/crawl?name=a"):
        assert unasked in web.get(shown).text, shown
    assert re.search(r"^Average lookup time:  [0-9.]+ ms$", text, re.MULTILINE)
    for name in ("BloomFilter", "Last lookup time"):  # of the DeDuplicator: of no use here
        assert name not in text
    hosts, _ = dedupindex("report", index, "--crawl", "a", "--by", "host", "--top", "1")
    assert "\nBy host, most lookups first:\n" in hosts
    one = {"digest": str(sha1(5)), "url": "http://a.example/", "date": "2026-11-20T09:14:17Z"}
    web.post("/captures?crawl=b", json={**one, "status": 200, "size": 5})
    other, _ = dedupindex("report", index, "--crawl", "b")
    assert "  Originals in index: 3 (captures of this crawl not included)\n" in other
    assert "Warning" not in other  # its lookups may not be counted yet
    web.post("/crawls", json={"name": "never"})
    never, _ = dedupindex("report", index, "--crawl", "never")
    assert "Warning:              begun, no lookup yet" in never
    out, _ = dedupindex("report", index, "--crawl", "a", "--by", "status", "--top", "1", "--json")
    assert [one["status"] for one in json.loads(out)["groups"]] == ["200"]


def test_no_share_of_sizes_that_the_server_was_not_told(web: Web) -> None:
    """A lookup that a filter answers states no size, so the bytes of all lookups are not known."""
    web.get("/lookup?" + question(1, size=100))
    web.post("/crawls/a/commit", json={"answered_by_filter": 1})
    report = web.report()
    assert report["duplicate_stated_bytes"] == 100
    assert report["stated_bytes"] is report["duplicate_stated_bytes_percent"] is None
    assert "  as the crawler counts: 100 (100 B)\n" in web.report("format=text")


def test_what_a_rule_of_the_crawler_left_out_is_said(web: Web) -> None:
    """All of the only lookup is not all of the crawl."""
    web.get("/lookup?" + question(1, size=100))
    web.post("/crawls/a/commit", json={"exit": "x", "left_out_by_rule": 17})
    web.post("/crawls/b/commit", json={"exit": "x"})
    assert (web.report()["left_out_by_rule"], web.report("", "b")["left_out_by_rule"]) == (17, None)
    text, page = web.report("format=text"), web.report("format=html")
    assert re.search(r"^Duplicates: +\d+ \([0-9.]+ % of what was looked up\)$", text, re.MULTILINE)
    assert "  left out:           17 more, stored in full: a rule of the crawler on media" in text
    assert "  Responses not in these shares: 17 left out by a rule of the crawler. Their by" in text
    assert "--compare" not in text  # the rule is that of the index: its WARCs say no more
    assert "; 17 more were left out by a rule of the crawler." in page
    assert "<dt>Left out by a rule of the crawler, on media types or sizes</dt><dd>17</dd>" in (
        web.get("/pages/crawl?name=a").text
    )
    assert "eft out by a rule" not in web.report("format=text", "b")


def test_a_failed_lookup_is_shown_once_by_each_who_counted_it(web: Web) -> None:
    """The server answered two with an error, and their crawler says that it lacks two."""
    for _ in range(2):
        web.get("/lookup?crawl=a&digest=nonsense")
    web.get("/lookup?" + question(1))
    web.post("/crawls/a/commit", json={"exit": "x", "not_looked_up": 2, "not_reported": 0})
    text = web.report("format=text")
    assert [line for line in text.splitlines() if re.search(r"\b2\b", line)] == [
        "  not looked up:      2 more, stored in full (the crawler's own count)",
        "  Responses not in these shares: 2 stored in full without a lookup. Their bytes are not "
        "known here.",
        "Answered with errors: 2 (by the server; the crawler may count them as not looked up)",
    ]
    assert "  not reported:       0\n" in text
    label = "Lookups that the server answered with an error"
    for page in (web.report("format=html"), web.get("/pages/crawl?name=a").text):
        assert f"<dt>{label}</dt><dd>2</dd>" in page
        assert "<dt>Not looked up, as the crawler counts</dt><dd>2</dd>" in page
        assert "ookups that failed" not in page and page.count("2 more were not looked up") == 1
    left_out = "Responses not in these shares: 2 stored in full without a lookup."
    for shown in (text, web.report("format=html"), web.get("/pages/crawl?name=a").text):
        assert shown.count(left_out) == 1
    assert left_out not in web.report("format=text", "b") + web.report("format=html", "b")


def test_a_share_of_payload_says_what_it_leaves_out(web: Web) -> None:
    """One duplicate of six lookups; four were not reported, three responses not looked up."""
    sent = {"digest": str(sha1(5)), "url": "http://new.example/", "date": "2026-11-20T09:14:17Z"}
    for crawl in ("a", "b"):
        web.get("/lookup?" + question(5, "http://new.example/", crawl=crawl))
        web.post(f"/captures?crawl={crawl}", json={**sent, "size": 1000, "status": 200})
        web.get("/lookup?" + question(5, "http://new.example/", crawl=crawl))
    for number in range(20, 24):
        web.get("/lookup?" + question(number))
    share = "hits and reported captures"
    for counts in ({"not_looked_up": 3}, {"left_out_by_rule": 5}, {"not_reported": 4}):
        web.post("/crawls/a/counts", json=counts)
        text, page = web.report("format=text"), web.report("format=html")
        shown, overview = web.get("/pages/crawl?name=a").text, web.get("/").text
        assert f"Payload saved:        1,000 (1.0 kB), 50.0 % of {share}\n" in text
        assert ", of hits and reported captures only\n" in text
        assert f">50.0 % of the payload of {share} was not stored again: " in page
        for html in (page, shown):
            assert "50.0 % of 2.0 kB, of hits and reported captures only<" in html
        assert f"(50.0 % of {share})" in overview
    found = "3 stored in full without a lookup, 5 left out by a rule of the crawler, 4 not reported"
    learn = "bin/report INDEX --crawl a --compare EARLIER"
    plain = re.sub('<span class="nowrap">(.*?)</span>', r"\1", shown)  # no option breaks
    for all_of_it in (text, page, plain):
        assert f"Responses not in these shares: {found} (shares of lookups include these). " in (
            all_of_it
        )
        assert learn in all_of_it and "bin/index --add --crawl a FILE... INDEX" in all_of_it
    whole = web.report("format=text", "b")
    assert "Payload saved:        1,000 (1.0 kB), 50.0 %\n" in whole
    assert learn not in whole and "captures only" not in whole
    assert "Reported as stored:   1, bytes: 1,000 (1.0 kB)\n" in whole


def test_what_was_reported_without_a_lookup_is_known(web: Web) -> None:
    """As by the Python client in an outage: three were not looked up, of which two are reported."""
    web.get("/lookup?" + question(1))
    for number in (5, 6):
        one = {"digest": str(sha1(number)), "url": "http://new.example/", "status": 200}
        web.post("/captures?crawl=a", json={**one, "date": "2026-11-20T09:14:17Z", "size": 1001})
    web.post("/crawls/a/counts", json={"not_looked_up": 2})
    assert web.report()["not_looked_up_nor_reported"] == 0
    assert web.report(crawl="b")["not_looked_up_nor_reported"] is None
    text, page = web.report("format=text"), web.report("format=html")
    for line in (
        "Duplicates:           1 (100.0 % of what was looked up)",
        "Payload:              3,003 (3.0 kB), of hits and reported captures",
        "Payload saved:        1,001 (1.0 kB), 33.3 %",
        "  not looked up:      2 more, stored in full (the crawler's own count), of these "
        "reported: 2",
        "No original:          0 (0.0 %), bytes reported, with or without a lookup: 2,002",
    ):
        assert line in text.splitlines(), text
    assert "33.3 % of 3.0 kB, of hits and reported captures<" in page
    assert "2.0 kB reported, with or without a lookup" in page
    shown = web.get("/pages/crawl?name=a").text
    assert ">2.0 kB stored, with or without a lookup</td>" in shown
    for all_of_it in (text, page, shown):
        assert "2 more" in all_of_it and "--compare" not in all_of_it
        assert "not in these shares" not in all_of_it
    assert "(33.3 %)" in re.sub(r"</?span[^>]*>", "", web.get("/").text)
    web.post("/crawls/a/counts", json={"not_looked_up": 3})
    web.post("/crawls/a/counts", json={"not_reported": 0})
    told = web.get("/crawls/a").get_json()
    assert (told["not_looked_up"], told["not_looked_up_nor_reported"]) == (3, 1)
    text = web.report("format=text")
    assert "33.3 % of hits and reported captures\n" in text
    assert "Responses not in these shares: 1 stored in full without a lookup. Their" in text
    web.post("/crawls/a/counts", json={"not_reported": 1})  # that one: counted once
    text = web.report("format=text")
    assert "shares: 1 not reported (shares of lookups include those that were looked up). " in text


def test_a_crawl_whose_files_were_indexed_need_not_be_told_to(web: Web, index: Path) -> None:
    web.get("/lookup?" + question(1))
    web.post("/crawls/a/counts", json={"not_looked_up": 2})
    shown = [web.report("format=text"), web.get("/pages/crawl?name=a").text]
    shown += [dedupindex("report", index, "--crawl", "a")[0]]
    assert all("--add" in text for text in shown)
    crawl = index.parent / "a.cdx"
    crawl.write_text(" CDX N b a m s k r M S V g\ncom,x)/ 20261120091417 http://x.com/ image/png "
                     f"200 {sha1(8)} - - 10 0 a.warc.gz\n")  # fmt: skip
    dedupindex("index", "--add", "--crawl", "a", crawl, index)
    web.live.refresh()
    shown = [web.report("format=text"), web.report("format=html")]
    shown += [web.get("/pages/crawl?name=a").text, dedupindex("report", index, "--crawl", "a")[0]]
    for text in shown:
        assert "--add" not in text
        assert "--compare" in text and "not looked up" in text


def test_a_share_says_at_once_that_not_all_was_reported(web: Web) -> None:
    """While a crawl is open, its crawler has not said what it did not report."""
    hit = LookupOutcome.of_hit("exact_url", capture(1)._replace(size=1000))
    for crawl in ("a", "b"):
        url = b"http://a.example/"
        asked = [(crawl, "DIGEST_ANY", url, one, -1, 1000) for one in (hit, NO_ORIGINAL)]
        web.live.crawls.counting.count_lookups([asked[0]] * 130 + [asked[1]] * 240)
    stored = [capture(n, b"http://a.example/%d" % n)._replace(size=1000) for n in range(10, 250)]
    web.live.crawls.counting.count_stored("a", stored[:66])
    web.live.crawls.write_counts()
    [other, own] = web.get("/crawls").get_json()["crawls"]
    assert (own["unreported"], own["not_reported"]) == (174, None)
    assert own["duplicate_bytes_percent"] == 66.33
    assert (other["unreported"], other["duplicate_bytes_percent"]) == (0, None)  # it only asks
    assert web.report()["unreported"] == 174 and web.report(crawl="b")["unreported"] == 0
    text, page = web.report("format=text"), web.report("format=html")
    assert "130,000 (130.0 kB), 66.3 % of hits and reported captures\n" in text
    assert ">66.3 % of the payload of hits and reported captures was not stored again: " in page
    left_out = "these shares: 174 not found in the index and not reported as stored so far (shares"
    for shown in (text, page, web.get("/pages/crawl?name=a").text):
        assert left_out in shown
    for path in ("/", "/pages/crawls"):
        shown = re.sub(r"</?span[^>]*>", "", web.get(path).text)
        assert "(66.3 % of hits and reported captures)" in shown
    for shown in (web.report("format=text", "b"), web.report("format=html", "b")):
        assert "captures only" not in shown and "not in these shares" not in shown
    web.live.crawls.counting.count_stored("a", stored[66:-3])  # three are on their way
    web.live.crawls.write_counts()
    whole = web.get("/crawls/a").get_json()
    assert (whole["unreported"], whole["duplicate_bytes_percent"]) == (0, 35.42)
    assert "35.4 %\n" in web.report("format=text")
    web.post("/crawls/a/counts", json={"not_reported": 3})
    assert "35.4 % of hits and reported captures\n" in web.report("format=text")


def test_an_unknown_crawl_name_is_answered_with_suggestions(web: Web) -> None:
    web.post("/crawls", json={"name": "weekly-1"})
    for path in ("/crawls/weekly/report", "/pages/crawl?name=weekly", "/pages/charts?crawl=weekly"):
        answer = web.get(path)
        assert answer.status_code == 404
        assert "there are weekly-1, b, a" in answer.text
        assert "POST /crawls" not in answer.text


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (["--crawl", "nobody"], 4, "there is no crawl 'nobody'; there are b, a"),
        (["--crawl", "a", "--against", "x"], 2, "give only one of them"),
        ([], 2, "either --crawl NAME or --against"),
        (["--crawl", "a", "--by", "year"], 2, "not by year, but by host"),
        (["--against", "x", "--by", "hour"], 2, "not by hour, but by host"),
    ],
)
def test_refusals(web: Web, index: Path, words: list[str], status: int, sentence: str) -> None:
    assert sentence in dedupindex("report", index, *words, status=status)[1]


def test_the_report_of_an_index_without_crawls(make_index: MakeIndex) -> None:
    _, talk = dedupindex("report", make_index([]), "--crawl", "a", status=4)
    assert "no crawl has looked up or reported" in talk


def test_a_server_that_is_killed_loses_the_last_second_at_most(make_index: MakeIndex) -> None:
    """Lookups until then are in the report that another server gives, by host too."""
    index = make_index([capture(1, b"http://one.example/a")])
    with serving(index, "--workers", "2") as server:
        send(server.port, "POST", "/crawls", {"name": "a"})
        for number in range(60):
            send(server.port, "GET", "/lookup?" + question(1, f"http://h{number % 5}.example/"))
        assert until(lambda: send(server.port, "GET", "/crawls/a")["lookups"] == 60)
        send(server.port, "GET", "/lookup?" + question(1))  # may be lost
        for process in children(server.process.pid):
            os.kill(process, signal.SIGKILL)
        server.process.kill()
    with closing(LmdbStore(index)) as store, store.reading() as reading:
        crawl = reading.crawl("a")
        total = statistics.total(reading, crawl)
        assert 60 <= total.lookups <= 61
        hosts = dict(statistics.rows(reading, crawl, "host"))
        assert [hosts[b"h%d.example" % number].digest for number in range(5)] == [12] * 5
        for by in ("host", "mime", "status", "strategy", "hour", "day"):
            found = [row for _, row in statistics.rows(reading, crawl, by)]
            assert sum(row.lookups for row in found) == total.lookups
        assert statistics.times(reading, crawl).answered == total.lookups


def test_statistics_stay_when_crawls_are_merged_and_swept(web: Web) -> None:
    web.get("/lookup?" + question(1))
    web.post("/crawls/a/commit")
    before = web.report()
    dedupindex("index", "--merge", web.live.index)
    store = web.live.crawls.store()
    assert store is not None
    merge_crawls.sweep(store, 0.0, {})
    merge_crawls.sweep(store, 1e9, {number: 0.0 for number in range(9)})
    after = web.report()
    assert (
        found(after) == found(before) == StatisticsRow(lookups=1, exact_url=1, exact_url_bytes=1001)
    )


def test_dropped_and_purged_crawls_have_no_statistics(web: Web, index: Path) -> None:
    for name in "ab":
        web.get("/lookup?" + question(1, crawl=name))
        assert web.report(crawl=name)["lookups"] == 1
    assert web.delete("/crawls/a").status_code == 200
    dedupindex("purge", index, "--crawl", "b", "--force")
    for name in "ab":
        assert found(web.report(crawl=name)) == StatisticsRow()
        assert web.report("by=host", crawl=name)["groups"] == []
        web.get("/lookup?" + question(1, crawl=name))  # its crawler still runs
        said = {"not_looked_up": 3, "who": "1"}
        assert web.post(f"/crawls/{name}/counts", json=said).status_code == 200
        assert found(web.report(crawl=name)) == StatisticsRow()
        assert web.report("by=host", crawl=name)["groups"] == []
        out, _ = dedupindex("report", index, "--crawl", name)
        why = "What was counted of this crawl was deleted with its captures (bin/purge --crawl, or "
        assert why in out and "Looked up" not in out
        assert why in web.report("format=html", name)
        crawl = web.get(f"/crawls/{name}").get_json()
        assert crawl["first_lookup"] is crawl["not_looked_up"] is crawl["warning"] is None


@pytest.mark.parametrize("how", ["dropped", "purged"])
def test_crawls_dropped_or_purged_after_their_end_have_no_statistics(
    web: Web, index: Path, how: str
) -> None:
    stored = {"digest": str(sha1(9)), "url": "http://x.example/", "date": "2026-11-20T09:14:17Z"}
    assert web.post("/captures?crawl=a", json={**stored, "size": 900}).status_code == 200
    if how == "dropped":
        assert web.post("/crawls/a/cancel").status_code == 200
        assert web.delete("/crawls/a").status_code == 200
    else:
        assert web.post("/crawls/a/commit").status_code == 200
        dedupindex("index", "--merge", index)
        dedupindex("purge", index, "--crawl", "a", "--force")
    begun = web.post("/crawls", json={"name": "a"}).get_json()["error"]["message"]
    removed = "purged" if how == "purged" else "deleted"
    assert begun == f"crawl a was {removed}; begin another under another name"
    if how == "purged":
        for again in (web.delete("/crawls/a"), web.post("/crawls/a/cancel")):
            assert again.status_code == 409
            assert again.get_json()["error"]["message"] == "crawl a was purged already"
    web.get("/lookup?" + question(1, crawl="a"))
    report = web.report()
    assert found(report) == StatisticsRow()
    assert (report["captures"], report["bytes"], report["deleted"]) == (0, 0, True)
    assert web.report("format=text").startswith("Crawl:                a, c")
    assert ", deleted\n" in web.report("format=text")
    crawl = web.get("/crawls").get_json()["crawls"][1]
    assert crawl["first_lookup"] is None
    assert (crawl["name"], crawl["captures"], crawl["bytes"]) == ("a", 0, 0)
    assert re.search(r'class="state \w+">\w+, deleted<', web.get("/pages/crawls").text)


def test_counts_of_unknown_crawls_are_left_out(tmp_path: Path) -> None:
    with closing(LmdbStore(tmp_path)) as store:
        counting = LookupCounter()
        counting.count_lookup(("nobody", "DIGEST_ANY", "http://a.example/", NO_ORIGINAL, -1, 1))
        counted = counting.take()
        with store.writing() as writing:
            lifecycle.begin(writing, "a")
            add_counted(writing, counted)
            assert writing.txn.stat(writing.trees.statistics)["entries"] == 0
