"""A stock Heritrix fetches only what has changed since the last capture that the index knows."""

from __future__ import annotations

import json
import re
from base64 import b32encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from hashlib import sha1
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from tests.integration.test_server_live import Running, serving, until
from tests.peers import replay
from tests.peers.heritrix import Crawl, Heritrix, Page, Record, Site, heritrix_home
from tests.peers.proof import remarks
from tests.support.warc_cases import gz, response
from tests.unit.cli.test_cli import dedupindex

pytestmark = pytest.mark.peer
OLD, NEW = "Mon, 02 Jan 2023 03:04:05 GMT", "Tue, 03 Jan 2023 03:04:05 GMT"
RANDOM = Random(6)


class Versions:
    """A page that answers 304 if a condition holds, and what was asked of it."""

    def __init__(self, tag: str = "", date: str = "", mime: str = "image/png") -> None:
        self.tag, self.date, self.mime = tag, date, mime
        self.body = RANDOM.randbytes(3000)
        self.asked: list[tuple[str | None, str | None]] = []
        self.lies: Callable[[Mapping[str, str]], Page | None] = lambda fields: None

    def page(self) -> Page:
        return Page(b"", answer=self._answer)

    def _answer(self, fields: Mapping[str, str]) -> Page:
        tag, date = fields.get("If-None-Match"), fields.get("If-Modified-Since")
        self.asked.append((tag, date))
        if lie := self.lies(fields):
            return lie
        stated = [("ETag", self.tag), ("Last-Modified", self.date)]
        headers = tuple((name, text) for name, text in stated if text)
        if (tag is not None and tag == self.tag) or (tag is None and date == self.date != ""):
            return Page(b"", self.mime, 304, headers)
        return Page(self.body, self.mime, 200, headers)


class Twice(NamedTuple):
    """Two crawls of one site."""

    site: Site
    pages: dict[str, Versions]
    bodies: dict[str, bytes]  # as the first crawl was served them
    first: Crawl
    second: Crawl
    reports: list[dict[str, Any]]
    old: Path  # a WARC with the original of /listed.png


@contextmanager
def served(folder: Path, site: Site, listed: bytes) -> Iterator[Running]:
    """A server of an index that knows one page from a row, which does not state its size."""
    url, digest = f"{site.url}/listed.png", b32encode(sha1(listed).digest()).decode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n"
    record = response(listed, head=head, Target_URI=url.encode(), Date=b"2023-03-04T05:06:07Z")
    (folder / "old.warc.gz").write_bytes(gz(record))
    row = f"- 20230304050607 {url} image/png 200 {digest} - 0 old.warc.gz"
    (folder / "rows.cdx").write_text(f" CDX N b a m s k r V g\n{row}\n")
    dedupindex("index", "--etag", "-w", "-m", ".*", folder / "rows.cdx", folder / "index")
    with serving(folder / "index") as server:
        yield server


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twice]:
    folder = tmp_path_factory.mktemp("conditional")
    pages = {
        "/tag.png": Versions('"t1"', OLD),
        "/weak.png": Versions('W/"w1"'),
        "/date.png": Versions("", OLD),
        "/plain.png": Versions(),
        "/listed.png": Versions('"l1"'),
        "/changes.png": Versions('"c1"', OLD),
        "/restored.png": Versions('"r1"', OLD),
        "/unasked.png": Versions(),
        "/copy.png": Versions('"k1"', OLD),
        "/same.png": Versions('"s1"', OLD),
        "/page.html": Versions('"h1"', OLD, "text/html"),
        "/robots.txt": Versions('"x1"', OLD, "text/plain"),
    }
    pages["/same.png"].body = pages["/copy.png"].body
    pages["/robots.txt"].body = b"User-agent: *\nDisallow: /secret\n"
    pages["/page.html"].body = b"<p>" + b"long " * 300 + b'<a href="/linked.png">'
    with closing(Site()) as site, served(folder, site, pages["/listed.png"].body) as server:
        links = "".join(f'<a href="{path}">x</a> ' for path in pages)
        site.pages = {path: page.page() for path, page in pages.items()}
        site.pages["/"] = Page(links.encode())
        site.pages["/linked.png"] = Page(RANDOM.randbytes(2000), "image/png")
        heritrix = Heritrix(heritrix_home(), folder)
        address, reports = f"http://127.0.0.1:{server.port}", []
        first = heritrix.run(heritrix.make("first", site, address, "--conditional"))
        bodies = {site.url + path: page.body for path, page in pages.items()}
        for page in pages.values():
            page.asked.clear()
        pages["/changes.png"].body, pages["/changes.png"].tag = RANDOM.randbytes(3000), '"c2"'
        # A server that answers 304 whatever is asked, but says of which version.
        other = Page(b"", "image/png", 304, (("ETag", '"r0"'),))
        restored = pages["/restored.png"]
        restored.body, restored.tag = RANDOM.randbytes(3000), '"r0"'
        restored.lies = lambda fields: other if "If-None-Match" in fields else None
        pages["/unasked.png"].lies = lambda fields: Page(b"", "image/png", 304)
        second = heritrix.run(heritrix.make("second", site, address, "--conditional"))
        for crawl in (first, second):

            def report(name: str = crawl.name) -> dict[str, Any]:
                status, body = server.get(f"/crawls/{name}/report")
                assert status == 200, body
                return dict(json.loads(body))

            assert until(lambda report=report: report()["lookups"] > 0)
            assert until(lambda report=report: report()["not_modified"] >= 5 * len(reports))
            reports.append(report())
        yield Twice(site, pages, bodies, first, second, reports, folder / "old.warc.gz")


def of(twice: Twice, path: str) -> list[Record]:
    return [one for one in twice.second.records() if one.url == twice.site.url + path]


@pytest.mark.parametrize(
    ("path", "conditions"),
    [("/tag.png", ('"t1"', OLD)), ("/weak.png", ('W/"w1"', None)), ("/date.png", (None, OLD))],
)
def test_what_has_not_changed_is_not_fetched(
    twice: Twice, path: str, conditions: tuple[str | None, str | None]
) -> None:
    assert twice.pages[path].asked == [conditions]
    (revisit,) = of(twice, path)
    (original,) = [one for one in twice.first.records() if one.url == revisit.url]
    named = revisit.headers
    assert (revisit.kind, revisit.body) == ("revisit", b"")
    assert named["WARC-Profile"].endswith("/revisit/server-not-modified")
    assert named["WARC-Refers-To"] == original.headers["WARC-Record-ID"]
    assert named["WARC-Refers-To-Target-URI"] == original.url
    assert named["WARC-Refers-To-Date"] == original.headers["WARC-Date"]
    assert named["WARC-Payload-Digest"] == original.headers["WARC-Payload-Digest"]


def test_a_revisit_of_another_url_is_fetched_in_full(twice: Twice) -> None:
    """The record whose validators would be sent is a revisit, and nothing may refer to that one."""
    records = {one.url: one for one in twice.first.records()}
    pair = [records[twice.site.url + path] for path in ("/copy.png", "/same.png")]
    original, copy = sorted(pair, key=lambda record: record.kind)
    assert (original.kind, copy.kind) == ("response", "revisit")
    asked = {one.url: twice.pages[one.url.removeprefix(twice.site.url)].asked for one in pair}
    assert None not in asked[original.url][0] and asked[copy.url] == [(None, None)]
    for record, profile in ((original, "server-not-modified"), (copy, "identical-payload-digest")):
        (revisit,) = of(twice, record.url.removeprefix(twice.site.url))
        assert revisit.headers["WARC-Profile"].endswith(f"/{profile}")
        assert revisit.headers["WARC-Refers-To"] == original.headers["WARC-Record-ID"]


def test_the_crawl_log_says_what_a_304_refers_to(twice: Twice, tmp_path: Path) -> None:
    """Its digest is that of the empty body of the answer, so no index can be made of it."""
    log = twice.second.launch / "logs" / "crawl.log"
    (line,) = [line for line in log.read_text().splitlines() if "/tag.png " in line]
    (revisit,) = of(twice, "/tag.png")
    said = json.loads("{" + line.partition(" {")[2])
    assert said["RevisitRefersToURI"] == revisit.headers["WARC-Refers-To-Target-URI"]
    assert said["RevisitRefersToDate"] == revisit.headers["WARC-Refers-To-Date"]
    assert "sha1:3I42H3S6NNFQ2MSVX7XZKYAYSCX5QBYJ" in line
    words = ("index", "--etag", "-w", "-m", ".*", "-i", "crawllog", log, tmp_path / "index")
    assert json.loads(dedupindex(*words, "--json")[0])["refused"]["unresolved-revisit"] == 5


def test_what_has_changed_or_states_nothing_is_stored(twice: Twice) -> None:
    assert twice.pages["/changes.png"].asked == [('"c1"', OLD)]
    assert twice.pages["/plain.png"].asked == [(None, None)]
    (changed,), (plain,) = of(twice, "/changes.png"), of(twice, "/plain.png")
    assert (changed.kind, changed.body) == ("response", twice.pages["/changes.png"].body)
    assert plain.headers["WARC-Profile"].endswith("/identical-payload-digest")


def test_a_304_that_names_another_version_is_fetched_in_full(twice: Twice) -> None:
    page = twice.pages["/restored.png"]
    assert page.asked == [('"r1"', OLD), (None, None)]
    (record,) = of(twice, "/restored.png")
    assert (record.kind, record.body) == ("response", page.body)


def test_a_304_that_nobody_asked_for_is_no_revisit(twice: Twice) -> None:
    assert twice.pages["/unasked.png"].asked == [(None, None)]
    (record,) = of(twice, "/unasked.png")
    assert (record.kind, record.status) == ("response", "304")


def test_a_revisit_of_an_original_of_unknown_size_is_reported(twice: Twice) -> None:
    assert twice.pages["/listed.png"].asked == [('"l1"', None)]
    (revisit,) = of(twice, "/listed.png")
    assert revisit.headers["WARC-Refers-To-Date"] == "2023-03-04T05:06:07Z"
    assert "not reported" not in twice.second.output
    assert [report["not_reported"] for report in twice.reports] == [0, 0]


def test_pages_with_links_and_robots_are_fetched_in_full(twice: Twice) -> None:
    assert set(twice.pages["/page.html"].asked) == {(None, None)}
    assert set(twice.pages["/robots.txt"].asked) == {(None, None)}
    assert of(twice, "/linked.png")


def test_heritrixs_own_report_counts_them(twice: Twice) -> None:
    kinds = Counter(one.headers.get("WARC-Profile", "").rpartition("/")[2] or one.kind
                    for one in twice.second.records())  # fmt: skip
    assert kinds["server-not-modified"] == 5
    assert twice.second.report_number("not-modified URIs") == 5
    counted = [(report["not_modified"], report["not_modified_bytes"]) for report in twice.reports]
    assert counted == [(0, 0), (5, 12_000)]
    assert "not modified 5, bytes not fetched 12000" in twice.second.output
    log = (twice.second.launch / "logs" / "crawl.log").read_text()
    assert log.count("duplicate:server-not-modified") == 5
    assert log.count("dedup:other-validators") == 1
    assert twice.second.alerts() == ""


def test_the_revisits_replay(twice: Twice, tmp_path: Path) -> None:
    warcs = [*twice.first.warcs(), *twice.second.warcs()]
    with replay.replay(warcs, tmp_path) as archive:
        for path in ("/tag.png", "/weak.png", "/date.png"):
            (revisit,) = of(twice, path)
            answer = archive.get(revisit.url, revisit.headers["WARC-Date"])
            assert answer[:2] == (200, twice.bodies[revisit.url]), archive.log.read_text()


def test_an_index_of_the_warcs_knows_the_same(twice: Twice, tmp_path: Path) -> None:
    warcs = [*twice.first.warcs(), *twice.second.warcs()]
    dedupindex("index", "--etag", "-w", "-m", ".*", *warcs, tmp_path / "index")
    for path in ("/tag.png", "/date.png"):
        words = ("lookup", tmp_path / "index", "--last", "--url", twice.site.url + path, "--json")
        found = json.loads(dedupindex(*words)[0])
        (revisit,) = of(twice, path)
        assert (found["date"], found["revisit"]) == (revisit.headers["WARC-Date"], True)
        conditions = tuple(found["conditions"].get(name)
                           for name in ("If-None-Match", "If-Modified-Since"))  # fmt: skip
        assert conditions == twice.pages[path].asked[0]
        assert found["original"]["record_id"] == revisit.headers["WARC-Refers-To"].strip("<>")


def test_bin_verify_finds_nothing_wrong(twice: Twice) -> None:
    said = remarks(twice.old, *twice.first.warcs(), *twice.second.warcs())
    # Heritrix leaves the blocks of revisits empty, and the row names no record.
    assert set(said) == {"no-http-headers", "no-refers-to"}, said
    assert said["no-refers-to"] == 1


def test_responses_that_a_missing_processor_does_not_look_up_are_counted(tmp_path: Path) -> None:
    """Answers 304 become revisits and are reported all the same."""
    dedupindex("index", "--empty", "--etag", "-w", "-m", ".*", tmp_path / "index")
    with closing(Site()) as site, serving(tmp_path / "index") as server:
        site.pages = {
            "/": Page(b'<a href="/tag.png"></a><a href="/plain.png"></a>'),
            "/tag.png": Versions('"t1"').page(),
            "/plain.png": Versions().page(),
        }
        heritrix, address = Heritrix(heritrix_home(), tmp_path), f"http://127.0.0.1:{server.port}"
        heritrix.run(heritrix.make("whole", site, address, "--conditional"))
        job = heritrix.make("part", site, address, "--conditional")
        profile, lookup = job / "crawler-beans.cxml", '<ref bean="dedupLookup"/>'
        assert profile.read_text().count(lookup) == 1
        profile.write_text(profile.read_text().replace(lookup, ""))
        crawl = heritrix.run(job)
    assert "No response but a 304 becomes a revisit" in crawl.alerts()
    assert "not fetched 3000; reported 0; not looked up 2\n" in crawl.output
    because = "nothing that was stored in full was reported, because dedupLookup stands in no chain"
    assert f"{crawl.name}: no response was looked up, and {because} of" in crawl.output
    text = (crawl.launch / "reports" / "dedupindex-report.txt").read_text()
    assert re.search(r"^Reported as stored: +0,", text, re.MULTILINE)
    assert "  not looked up:      2 more, stored in full (the crawler's own count)" in text
