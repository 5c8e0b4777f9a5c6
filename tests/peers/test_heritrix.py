"""A stock Heritrix asks and reports through the scripts of conf/heritrix; warcio reads its WARCs.

Heritrix ends with status 0 also when its scripts failed, so it is revisits that are counted.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import time
from base64 import b32encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from hashlib import sha1
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from threading import Barrier, Event, Semaphore, Thread
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest

from dedupindex.digest import Digest
from dedupindex.index import open_index
from dedupindex.lookup.decide import Query, find
from tests.integration.test_crawls_live import send
from tests.integration.test_operation import certificate
from tests.integration.test_server_live import Running, serving, until
from tests.peers import replay
from tests.peers.environments import JWARC, jar
from tests.peers.heritrix import (
    DEADLINE,
    Crawl,
    Heritrix,
    Page,
    Record,
    Site,
    heritrix_home,
    page_of,
    tell,
    trusted,
)
from tests.peers.proof import proved, remarks
from tests.support.ports import refusing_port
from tests.support.stub_server import replying, stub_server
from tests.unit.cli.test_cli import dedupindex

pytestmark = pytest.mark.peer
NEWS = "/news.html"  # what changes between the crawls


class Harvests(NamedTuple):
    """Crawls of one site, the second of what the first had stored; the third with HTTP/1.1."""

    site: Site
    first: Crawl
    second: Crawl
    third: Crawl
    crawls: dict[str, Any]  # as the server shows them, by name
    reports: dict[str, Any]  # by host
    index: Path
    token: str


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with closing(Site()) as site:
        yield site


@pytest.fixture(scope="module")
def heritrix(tmp_path_factory: pytest.TempPathFactory) -> Heritrix:
    return Heritrix(heritrix_home(), tmp_path_factory.mktemp("heritrix"))


def empty_index(folder: Path) -> Path:
    dedupindex("index", "--empty", "--by-url", "-w", "-m", ".*", folder / "index")
    return folder / "index"


@pytest.fixture(scope="module")
def harvests(
    heritrix: Heritrix, site: Site, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Harvests]:
    """FetchHTTP first, then FetchHTTP2: their digests agree as long as nothing is chunked.

    Then FetchHTTP with HTTP/1.1, which stores chunks as they come and takes its digests of that.
    The index has a token, so nobody reports without it.
    """
    folder = tmp_path_factory.mktemp("harvests")
    index = empty_index(folder)
    token = dedupindex("token", index, "--add", "heritrix")[0].strip()
    with serving(index) as server:
        url = f"http://127.0.0.1:{server.port}"
        first = heritrix.run(heritrix.make("first", site, url, "--token", token))
        monday = site.pages[NEWS]
        site.pages[NEWS] = Page(b"<p>friday's news " * 60)
        second = heritrix.run(heritrix.make("second", site, url, "--http2", "--token", token))
        site.pages[NEWS] = monday
        third = heritrix.run(with_chunks(heritrix.make("third", site, url, "--token", token)))
        shown, reports = {}, {}
        for crawl in (first, second):
            asked = len(site.payloads()) + 1  # and a response 203
            assert until(lambda name=crawl.name, n=asked: crawl_of(server, name)["lookups"] == n)
            shown[crawl.name] = crawl_of(server, crawl.name)
            reports[crawl.name] = crawl_of(server, f"{crawl.name}/report?by=host")
    yield Harvests(site, first, second, third, shown, reports, index, token)


def with_chunks(job: Path) -> Path:
    """The job, its FetchHTTP asking with HTTP/1.1."""
    profile = job / "crawler-beans.cxml"
    shown = '<property name="useHTTP11" value="%s" />'
    text, off = profile.read_text(), f"<!-- {shown % 'false'} -->"
    assert text.count(off) == 1
    profile.write_text(text.replace(off, shown % "true"))
    return job


def crawl_of(server: Running, name: str) -> dict[str, Any]:
    status, body = server.get(f"/crawls/{name}")
    assert status == 200, body
    return dict(json.loads(body))


def of_kind(records: list[Record], kind: str) -> list[Record]:
    return [record for record in records if record.kind == kind]


def stored(site: Site, records: list[Record]) -> list[Record]:
    """Responses that could have been duplicates."""
    return [one for one in of_kind(records, "response") if one.url in site.payloads()]


def check_revisits(records: list[Record], everything: list[Record]) -> None:
    """Every revisit names a response that exists and has the same payload digest."""
    originals = {one.headers["WARC-Record-ID"]: one for one in of_kind(everything, "response")}
    for revisit in of_kind(records, "revisit"):
        original = originals[revisit.headers["WARC-Refers-To"]]
        assert revisit.headers["WARC-Refers-To-Target-URI"] == original.url
        assert revisit.headers["WARC-Refers-To-Date"] == original.headers["WARC-Date"]
        digest = revisit.headers["WARC-Payload-Digest"]
        assert digest == original.headers["WARC-Payload-Digest"]
        assert revisit.headers["WARC-Profile"].endswith("/identical-payload-digest")


def test_duplicates_within_a_crawl_are_stored_once(harvests: Harvests) -> None:
    records, payloads = harvests.first.records(), harvests.site.payloads()
    again = len(payloads) - len(set(payloads.values()))
    assert len(of_kind(records, "revisit")) == again == 5
    assert len(stored(harvests.site, records)) == len(set(payloads.values()))
    assert {one.url for one in records} >= payloads.keys()
    check_revisits(records, records)


def test_the_second_crawl_is_full_of_revisits(harvests: Harvests) -> None:
    records = harvests.second.records()
    revisits = of_kind(records, "revisit")
    assert {one.url for one in revisits} == harvests.site.payloads().keys() - {
        harvests.site.url + NEWS
    }
    assert [one.url for one in stored(harvests.site, records)] == [harvests.site.url + NEWS]
    check_revisits(records, harvests.first.records())
    chunked = harvests.site.url + "/feed.xml"
    plain = b32encode(sha1(harvests.site.pages["/feed.xml"].body).digest()).decode()
    [feed] = [one for one in revisits if one.url == chunked]
    assert feed.headers["WARC-Payload-Digest"] == f"sha1:{plain}"


def test_pages_that_may_not_be_revisits_are_responses(harvests: Harvests) -> None:
    for crawl in (harvests.first, harvests.second):
        others = {
            one.url.removeprefix(harvests.site.url): one.status
            for one in of_kind(crawl.records(), "response")
        }
        expected = {"/empty.bin": "200", "/gone.html": "404", "/moved.html": "302"}
        assert others.items() >= {**expected, "/part.bin": "203", "/robots.txt": "404"}.items()


def test_each_record_is_reported_to_the_server_once(harvests: Harvests) -> None:
    for crawl, covers in ((harvests.first, "stored"), (harvests.second, "entity")):
        kept = stored(harvests.site, crawl.records())
        shown = harvests.crawls[crawl.name]
        assert (shown["state"], shown["exit"]) == ("committed", "Finished")
        assert shown["digest_covers"] == covers
        assert shown["warning"] is None and shown["first_lookup"] <= shown["last_lookup"]
        assert shown["captures"] == len(kept)
        assert shown["bytes"] == sum(len(harvests.site.pages["/" + p].body) for p in paths(kept))


def paths(records: list[Record]) -> list[str]:
    return [record.url.split("/", 3)[3] for record in records]


def test_chunked_payloads_are_duplicates_of_chunked_ones_only(harvests: Harvests) -> None:
    """Their digests cover the chunks, so the first of two copies matches no unchunked payload."""
    records = harvests.third.records()
    chunked = {
        harvests.site.url + path for path, page in harvests.site.pages.items() if page.chunked
    }
    first = {one.url for one in stored(harvests.site, records)}
    assert len(first & chunked) == len(chunked) - 1 and first - chunked == set()
    everything = [*harvests.first.records(), *records]
    check_revisits(records, everything)


def test_every_revisit_replays_byte_for_byte(harvests: Harvests, tmp_path: Path) -> None:
    crawls = (harvests.first, harvests.second, harvests.third)
    warcs = [path for crawl in crawls for path in crawl.warcs()]
    found = replay.records(warcs)
    payloads = harvests.site.payloads()
    assert any("%C3" in one.url for one in found if one.type == "revisit")
    with replay.replay(warcs, tmp_path) as archive:
        checked = replay.check_revisits(found, archive, payloads)
    assert checked == sum(len(of_kind(crawl.records(), "revisit")) for crawl in crawls)
    assert checked == 5 + (len(payloads) - 1) + (len(payloads) - 2)


def test_bin_verify_finds_nothing_wrong(harvests: Harvests) -> None:
    crawls = (harvests.first, harvests.second, harvests.third)
    said = remarks(*(path for crawl in crawls for path in crawl.warcs()))
    assert set(said) <= {"no-refers-to", "not-exact"}, said


def test_all_its_crawls_go_through_the_stages(harvests: Harvests, tmp_path: Path) -> None:
    """What their own revisits refer to stays; in the third is what the others have in chunks."""
    for crawl in (harvests.first, harvests.second, harvests.third):
        shutil.copytree(crawl.launch / "warcs", tmp_path / "old" / crawl.name)
    proved(tmp_path / "old", tmp_path)


def test_jwarc_validates_the_files(harvests: Harvests) -> None:
    warcs = [path for crawl in (harvests.first, harvests.second) for path in crawl.warcs()]
    words = ["java", "-jar", jar(JWARC), "validate", *warcs]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_numbers_agree_with_heritrixs_own(harvests: Harvests) -> None:
    for crawl in (harvests.first, harvests.second):
        records = crawl.records()
        assert crawl.report_number("duplicate-by-hash URIs") == len(of_kind(records, "revisit"))
        assert crawl.report_number("novel URIs") == len(of_kind(records, "response"))
        assert "SEVERE" not in crawl.alerts()
        report = harvests.reports[crawl.name]
        assert report["duplicates"] == crawl.report_number("duplicate-by-hash URIs") > 0
        duplicate_bytes = crawl.report_number("duplicate-by-hash crawled bytes")
        assert report["duplicate_stated_bytes"] == duplicate_bytes > report["duplicate_bytes"] > 0
        assert (report["not_looked_up"], report["not_reported"], report["errors"]) == (0, 0, 0)
        kept = stored(harvests.site, records)
        assert (report["stored"], report["new"]) == (len(kept), len(kept) + 1)  # of it a 203
        [host] = report["groups"]
        assert host["host"] == "127.0.0.1"
        assert all(host[name] == report[name] for name in ("lookups", "duplicates", "stored"))


def test_the_report_is_beside_heritrixs_own(harvests: Harvests) -> None:
    for crawl in (harvests.first, harvests.second):
        text = (crawl.launch / "reports" / "dedupindex-report.txt").read_text()
        report = harvests.reports[crawl.name]
        assert text.startswith(f"Crawl:                {crawl.name}, committed\n")
        assert f"Looked up:            {report['lookups']:,}\n" in text
        assert f"Duplicates:           {report['duplicates']:,} (" in text
        assert f"Reported as stored:   {report['captures']:,}, bytes: " in text
        assert text.rstrip().endswith(report["groups"][0]["host"])


def test_the_report_is_written_when_the_log_says_done(heritrix: Heritrix, tmp_path: Path) -> None:
    with closing(one_page()) as site, serving(empty_index(tmp_path)) as server:
        job = heritrix.make("report", site, f"http://127.0.0.1:{server.port}")
        with heritrix.running(job) as (process, _):
            assert process.stdout is not None
            assert any("dedup: done: POST /crawls/report-" in line for line in process.stdout)
            assert (job / "latest" / "reports" / "dedupindex-report.txt").exists()
            process.communicate(timeout=DEADLINE)


def test_the_crawl_log_names_the_same_originals(harvests: Harvests, tmp_path: Path) -> None:
    log = harvests.second.launch / "logs" / "crawl.log"
    dedupindex("index", "-w", "-m", ".*", "-i", "crawllog", log, tmp_path / "i")
    revisits = of_kind(harvests.second.records(), "revisit")
    with closing(open_index(tmp_path / "i")) as engine, engine.view() as view:
        for revisit in revisits:
            digest = Digest.parse(revisit.headers["WARC-Payload-Digest"])
            target = revisit.headers["WARC-Refers-To-Target-URI"].encode()
            answer = find(view, engine.identity.settings, Query(digest, target))
            assert answer is not None
            assert answer.original.url == target
            assert answer.original.date == revisit.headers["WARC-Refers-To-Date"].encode()


def all_stored(site: Site, crawl: Crawl) -> list[Record]:
    """The records of a crawl in which each payload is there, as response or as revisit."""
    records = crawl.records()
    assert {one.url for one in records} >= site.payloads().keys()
    return records


def test_without_a_server_all_is_stored(heritrix: Heritrix, site: Site, tmp_path: Path) -> None:
    """Then duplicates within it become revisits after the end of the crawl."""
    with refusing_port() as port:
        crawl = heritrix.run(heritrix.make("alone", site, f"http://127.0.0.1:{port}"))
    records = all_stored(site, crawl)
    assert of_kind(records, "revisit") == []
    assert crawl.report_number("duplicate-by-hash URIs") == 0
    alerts = crawl.alerts()
    assert alerts.count("Connection refused") == 2  # not one for each URI, and the last line
    asked = len(site.payloads()) + 1  # and a response 203
    ours = [line for line in crawl.output.splitlines() if " dedup: " in line]
    never = (
        f"was never begun at http://127.0.0.1:{port}, because the server did not answer as it "
        "should: "
    )
    last = ours[-1].partition(never)[2]
    assert "Connection refused" in last and f"; not looked up {asked}; index the WARCs" in last
    assert f"(bin/index --add --crawl {crawl.name} '{crawl.launch / 'warcs'}' INDEX)" in ours[-1]
    after = (
        "; the crawl goes on, and stores in full what it cannot look up. After 5 failures in a row"
    )
    assert (
        f"not looked up{after} it stops looking up, and tests whether the server answers again"
        in alerts
    )
    tests = "every second while connections are refused, otherwise with pauses of 1 to 30 s: http"
    assert f"again: {tests}" in alerts
    assert all(" dedupindex.DedupClient.log() dedup: " in line for line in ours)
    shutil.copytree(crawl.launch / "warcs", tmp_path / "old")
    assert proved(tmp_path / "old", tmp_path) == 3  # two logos, a report


def test_a_server_that_dies_in_the_middle(
    heritrix: Heritrix, site: Site, harvests: Harvests, tmp_path: Path
) -> None:
    """Up to then there are revisits, all true; from then on all is stored."""
    index = shutil.copytree(harvests.index, tmp_path / "index")
    with serving(index) as server:
        fetched: list[str] = []

        def kill(path: str) -> None:
            if path == "/report.pdf":
                server.process.kill()
                server.process.wait()
                assert until(lambda: not answers(server.port))
            fetched.append(path)

        site.before = kill
        try:
            url = f"http://127.0.0.1:{server.port}"
            crawl = heritrix.run(heritrix.make("half", site, url, "--token", harvests.token))
        finally:
            site.before = lambda path: None
    records = all_stored(site, crawl)
    before = {site.url + path for path in fetched[: fetched.index("/report.pdf")]}
    revisits = {one.url for one in of_kind(records, "revisit")}
    assert revisits == before & site.payloads().keys() and len(revisits) >= 3
    check_revisits(records, harvests.first.records())
    asked = len(site.payloads()) + 1 - len(revisits)
    assert "is still open" in crawl.alerts() and f"not_looked_up={asked}&" in crawl.alerts()
    assert f"index the WARCs afterwards (bin/index --add --crawl {crawl.name} " in crawl.alerts()
    command = re.search(r"do it by hand: (curl .*?/commit') \(TOKEN is", crawl.alerts())
    assert command is not None and harvests.token not in crawl.alerts()
    assert (
        "&exit=" in command[1] and f"then bin/report INDEX --crawl {crawl.name} " in crawl.alerts()
    )
    with serving(index) as server:
        typed = command[1].replace(url, f"http://127.0.0.1:{server.port}")
        environment = {**os.environ, "TOKEN": harvests.token}
        subprocess.run(["sh", "-c", typed], env=environment, check=True, timeout=30)
        told = crawl_of(server, crawl.name)
    assert (told["state"], told["not_looked_up"]) == ("committed", asked)


def test_a_crawl_without_its_token_says_what_to_set(
    heritrix: Heritrix, site: Site, harvests: Harvests, tmp_path: Path
) -> None:
    index = shutil.copytree(harvests.index, tmp_path / "index")
    other = dedupindex("token", index, "--add", "other", "--crawls", "weekly-*")[0].strip()
    with serving(index) as server:
        url = f"http://127.0.0.1:{server.port}"
        # bin/heritrix-profile would refuse it.
        crawl = heritrix.run(with_settings(heritrix.make("wrong", site, url), {"token": other}))
    assert "does not let the token write to the crawl wrong-" in crawl.alerts()
    advice = (
        '; set "token" in dedup-beans.xml to one of bin/token that may, or if the token is the '
        "right one, set metadata.jobName in crawler-beans.cxml, which is wrong and begins the names"
    )
    assert advice in crawl.alerts()
    assert "token other has the role write for crawls 'weekly-*'" in crawl.alerts()
    assert "failures in a row" not in crawl.alerts()
    all_stored(site, crawl)


LOOKUP, STORE, FETCHER = (
    f'<ref bean="{name}"/>' for name in ("dedupLookup", "dedupStore", "fetchHttp")
)


def one_page() -> Site:
    """A site that has a page of text, for crawls that are over at once."""
    site = Site()
    site.pages = {"/": Page(b"<p>text")}
    return site


@pytest.mark.parametrize(
    ("token", "says", "not_said"),
    [
        ("", 'wants a token for the crawl {name}; set "token"', "metadata.jobName"),
        ("wrong", "not know the token of the crawl {name}; set", "metadata.jobName"),
        ("{reader}", "let the token write; set", "metadata.jobName"),
    ],
)
def test_each_refusal_of_a_token_has_its_advice(
    heritrix: Heritrix, tmp_path: Path, token: str, says: str, not_said: str
) -> None:
    index = empty_index(tmp_path)
    reader = dedupindex("token", index, "--add", "r", "--role", "read")[0].strip()
    with closing(one_page()) as site, serving(index) as server:
        url = f"http://127.0.0.1:{server.port}"
        job = heritrix.make(f"refused-{len(says)}", site, url)
        crawl = heritrix.run(with_settings(job, {"token": token.format(reader=reader)}))
    assert says.format(name=crawl.name) in crawl.alerts()
    assert not_said not in crawl.alerts()
    ours = [line for line in crawl.output.splitlines() if " dedup: " in line]
    last = ours[-1].partition(f"crawl {crawl.name} was never begun at {url}, because the server ")
    assert says.format(name=crawl.name) in last[2] and "; not looked up 1; index the" in last[2]


def ten_pages() -> Site:
    """A site of ten pages."""
    site = Site()
    paths = [f"/{number}.png" for number in range(10)]
    site.pages = {path: Page(path.encode() * 99, "image/png") for path in paths}
    links = "".join(f'<a href="{path}"></a>' for path in site.pages)
    site.pages["/"] = Page(links.encode())
    return site


def slowly(site: Site, at: dict[str, Callable[[], object]]) -> None:
    """Make pages wait for a report, and something happen before some of them."""

    def before(path: str) -> None:
        time.sleep(0.15)
        at.get(path, lambda: None)()

    site.before = before


def refuses(server: Running, token: str = "") -> bool:
    """Whether a crawl cannot be begun with a token."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE)) as connection:
        connection.request("POST", "/crawls", urlencode({"name": "tried"}), headers)
        return connection.getresponse().status == 401


def test_reports_that_are_refused_in_the_middle_are_one_line(
    heritrix: Heritrix, tmp_path: Path
) -> None:
    """The index gets its first token while a crawl has none, and loses it: lookups go on."""
    index = empty_index(tmp_path)
    with closing(ten_pages()) as site, serving(index) as server:

        def refuse() -> None:
            dedupindex("token", index, "--add", "other")
            assert until(lambda: refuses(server))

        def accept() -> None:
            dedupindex("token", index, "--remove", "other")
            assert until(lambda: not refuses(server))
            time.sleep(1.3)  # the pause between two reports that are tried

        slowly(site, {"/1.png": refuse, "/8.png": accept})
        crawl = heritrix.run(heritrix.make("refused", site, f"http://127.0.0.1:{server.port}"))
        shown = crawl_of(server, crawl.name)
    url = f"http://127.0.0.1:{server.port}"
    (alert,) = (line for line in crawl.alerts().splitlines() if "dedup: " in line)
    wants = f"dedup: not reported, because the server wants a token for the crawl {crawl.name}; set"
    assert wants in alert and "(read at the next launch). Until the server accepts reports" in alert
    assert "no lookup finds what this crawl stores from now on: http" in alert
    back = f"{url} accepts reports again, also of what waited; not reported in this crawl: 0"
    assert crawl.output.count(back) == 1 and "answers again" not in crawl.output
    assert (shown["state"], shown["captures"]) == ("committed", len(stored(site, crawl.records())))
    assert f"done: POST /crawls/{crawl.name}/commit\n" in crawl.output


@pytest.mark.parametrize("has_token", [True, False])
def test_a_crawl_whose_token_is_refused_at_its_end_says_how_to_commit_it(
    heritrix: Heritrix, tmp_path: Path, has_token: bool
) -> None:
    index = empty_index(tmp_path)
    token = dedupindex("token", index, "--add", "own")[0].strip() if has_token else ""
    fresh = list[str]()
    with closing(ten_pages()) as site, serving(index) as server:

        def refuse() -> None:
            fresh.append(dedupindex("token", index, "--add", "fresh")[0].strip())
            if has_token:
                dedupindex("token", index, "--remove", "own")
            assert until(lambda: refuses(server, token))

        slowly(site, {"/3.png": refuse})
        job = heritrix.make(f"ended-{has_token}", site, f"http://127.0.0.1:{server.port}")
        crawl = heritrix.run(with_settings(job, {"token": token}))
        assert crawl_of(server, crawl.name)["state"] == "open"
        text = crawl.alerts() + crawl.output
        assert crawl.alerts().count("dedup: not reported") == 1 and "all is stored" not in text
        assert "DedupClient$" not in text and "answers again" not in text
        refused = f"{crawl.name} is still open: POST /crawls/{crawl.name}/commit was answered 401 "
        assert refused in crawl.alerts()
        hint = (
            r"do it by hand: (curl .*?/commit') \(TOKEN is one that may write to this crawl; bin/"
        )
        command = re.search(hint, crawl.alerts())
        assert command is not None
        environment = {**os.environ, "TOKEN": fresh[0]}
        subprocess.run(["sh", "-c", command[1]], env=environment, check=True, timeout=30)
        told = crawl_of(server, crawl.name)
    assert told["state"] == "committed" and told["not_reported"] >= 3
    assert told["captures"] + told["not_reported"] == len(stored(site, crawl.records()))


def test_a_crawl_waits_at_its_end_for_a_server_that_is_restarted(
    heritrix: Heritrix, tmp_path: Path
) -> None:
    """All reports wait until then; the server goes with the last page, and comes back later."""
    index, fetched = empty_index(tmp_path), set[str]()
    with ExitStack() as stack:
        site = stack.enter_context(closing(ten_pages()))
        server = stack.enter_context(serving(index))

        def away(path: str) -> None:
            fetched.add(path)
            if fetched >= site.pages.keys():
                server.process.terminate()
                server.process.wait()

        site.before = away
        job = heritrix.make("restarted", site, f"http://127.0.0.1:{server.port}")
        without_timer(job)

        def during(port: int) -> None:
            alerts = job / "latest" / "logs" / "alerts.log"
            assert until(lambda: alerts.exists() and "is still open" in alerts.read_text())
            time.sleep(2)
            stack.enter_context(serving(index, "--port", str(server.port)))

        crawl = heritrix.run(job, during)
        shown = crawl_of(server, crawl.name)
    assert (shown["state"], shown["not_looked_up"], shown["not_reported"]) == ("committed", 1, 0)
    assert shown["captures"] == len(stored(site, crawl.records())) - 1 == 10
    assert f"done: POST /crawls/{crawl.name}/commit" in crawl.output
    assert crawl.alerts().count("is still open") == 1
    by_hand = f"not_reported=10&left_out_by_rule=0&exit=Finished' 'http://127.0.0.1:{server.port}/"
    assert by_hand in crawl.alerts()  # as if it did not come back


def test_reports_that_a_full_disk_refuses_are_one_line(heritrix: Heritrix) -> None:
    """The server answers lookups all the time."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        lookup = handler.path.startswith("/lookup")
        full = handler.path.startswith("/captures")
        text = b'{"error": {"code": "index_unavailable"}}' if full else b"" if lookup else b"{}"
        replying(503 if full else 204 if lookup else 200, text)(handler)

    with closing(ten_pages()) as site, stub_server(answer) as url:
        slowly(site, {})
        crawl = heritrix.run(heritrix.make("full", site, url))
    (alert,) = (line for line in crawl.alerts().splitlines() if "dedup: " in line)
    assert "dedup: not reported. Until the server accepts reports again, no lookup finds" in alert
    assert "answers again" not in crawl.output and "; not reported 11\n" in crawl.output


def test_a_crawl_with_nothing_to_look_up_is_no_alert(heritrix: Heritrix, tmp_path: Path) -> None:
    """Its site has only text, which the default rule leaves out."""
    with closing(one_page()) as site, serving(empty_index(tmp_path)) as server:
        job = heritrix.make("text", site, f"http://127.0.0.1:{server.port}")
        beans = job / "dedup-beans.xml"
        beans.write_text(beans.read_text().replace('value="(?!)"', 'value="^text/.*"'))
        crawl = heritrix.run(job)
    assert crawl.alerts() == ""
    assert "was never begun at http" in crawl.output
    left_out = "dedupLookup in dedup-beans.xml leaves out the only response (text"
    assert left_out in crawl.output


def test_what_the_rule_leaves_out_is_counted(heritrix: Heritrix, tmp_path: Path) -> None:
    """All that is looked up is a duplicate, but that is not all of the crawl."""
    with closing(Site()) as site, serving(empty_index(tmp_path)) as server:
        links = b'<a href="/1.png"></a><a href="/2.html"></a>'
        picture = Page(b"\x89PNG" * 99, "image/png")
        site.pages = {"/": Page(links), "/1.png": picture, "/2.html": Page(b"<p>text")}
        for name, found in (("part", 0), ("part-again", 1)):
            job = heritrix.make(name, site, f"http://127.0.0.1:{server.port}")
            beans = job / "dedup-beans.xml"
            beans.write_text(beans.read_text().replace('value="(?!)"', 'value="^text/.*"'))
            crawl = heritrix.run(job)
            line = f"looked up 1, of these duplicates {found}, left out by shouldProcessRule of "
            assert f"{line}dedupLookup and stored in full 2; reported {1 - found}" in crawl.output
            assert crawl_of(server, crawl.name)["left_out_by_rule"] == 2
    text = (crawl.launch / "reports" / "dedupindex-report.txt").read_text()
    assert "Duplicates:           1 (100.0 % of what was looked up)\n" in text
    assert "  left out:           2 more, stored in full: a rule of the crawler" in text


@pytest.mark.parametrize("fetcher", [(), ("--http2",)])
def test_a_truncated_response_is_neither_looked_up_nor_reported(
    heritrix: Heritrix, tmp_path: Path, fetcher: tuple[str, ...]
) -> None:
    """Heritrix fetches at most 50,000 bytes of a file: no later crawl may refer to its record."""
    pages = {"/": Page(b'<a href="/big.bin"></a>'), "/big.bin": Page(b"0123456789" * 20_000, "x/b")}
    with closing(Site()) as site, serving(empty_index(tmp_path)) as server:
        site.pages = pages
        for name, found in (("cut", 0), ("cut-again", 1)):
            job = heritrix.make(
                name + "".join(fetcher), site, f"http://127.0.0.1:{server.port}", *fetcher
            )
            beans = job / "crawler-beans.cxml"
            text, default = (
                beans.read_text(),
                '<!-- <property name="maxLengthBytes" value="0" /> -->',
            )
            assert text.count(default) == 1
            limited = '<property name="maxLengthBytes" value="50000" />'
            beans.write_text(text.replace(default, limited))
            crawl = heritrix.run(job)
            (big,) = (one for one in crawl.records() if one.url.endswith("/big.bin"))
            assert (big.kind, big.headers["WARC-Truncated"]) == ("response", "length")
            assert len(big.body) < 200_000
            line = f"looked up 1, of these duplicates {found}, truncated and neither looked up nor "
            assert f"{line}reported 1; reported {1 - found}\n" in crawl.output
            shown = crawl_of(server, f"{crawl.name}/report")
            assert (shown["lookups"], shown["captures"]) == (1, 1 - found)
            assert (shown["not_looked_up"], shown["not_reported"]) == (0, 0)
            asked = f"/lookup?digest={big.headers['WARC-Payload-Digest']}&crawl={crawl.name}"
            assert server.get(asked)[0] == 200 and not json.loads(server.get(asked)[1])["duplicate"]
    summary = dedupindex("index", "--add", "--json", *crawl.warcs(), tmp_path / "index")[0]
    assert '"truncated":1' in summary  # the same is said of its record when its WARC is read


def test_what_the_index_refuses_is_counted_by_reason(heritrix: Heritrix, tmp_path: Path) -> None:
    """The job looks text up, and the index has none."""
    dedupindex("index", "--empty", tmp_path / "index")
    with closing(one_page()) as site, serving(tmp_path / "index") as server:
        crawl = heritrix.run(
            heritrix.make("refused-by-rules", site, f"http://127.0.0.1:{server.port}")
        )
    assert "; reported 1, of these refused by the rules of the index: mime 1\n" in crawl.output


@pytest.mark.parametrize(
    ("name", "edits", "at_launch", "at_end"),
    [
        (
            "no-lookup",
            [(LOOKUP, "")],
            "dedupLookup stands in no chain of crawler-beans.cxml: write <ref bean=",
            "because dedupLookup stands in no chain of crawler-beans.cxml{cure}; not looked up 1;",
        ),
        (
            "early-lookup",
            [(LOOKUP, ""), (FETCHER, LOOKUP + FETCHER)],
            "dedupLookup stands before fetchHttp in crawler-beans.cxml: write <ref bean=",
            "because dedupLookup stands before fetchHttp in crawler-beans.cxml{cure}; not looked",
        ),
        (
            "late-lookup",
            [(LOOKUP, ""), (STORE, STORE + LOOKUP)],
            "dedupLookup stands after warcWriter in crawler-beans.cxml: write <ref bean=",
            ": nothing that was stored in full was reported, because dedupLookup stands after",
        ),
        (
            "no-store",
            [(STORE, "")],
            "dedupStore stands in no chain of crawler-beans.cxml: write <ref bean=",
            ": nothing that was stored in full was reported, because dedupStore stands in no chain",
        ),
        (
            "early-store",
            [(STORE, ""), (LOOKUP, LOOKUP + STORE)],
            "dedupStore stands before warcWriter in crawler-beans.cxml: write <ref bean=",
            ": nothing that was stored in full was reported, because dedupStore stands before",
        ),
        (
            "neither",
            [(LOOKUP, ""), (STORE, "")],
            "dedupLookup stands in no chain of crawler-beans.cxml: write <ref bean=",
            "{cure}; how many were not looked up is not known; index the WARCs",
        ),
    ],
)
def test_a_processor_in_the_wrong_place_is_named_at_launch(
    heritrix: Heritrix,
    tmp_path: Path,
    name: str,
    edits: list[tuple[str, str]],
    at_launch: str,
    at_end: str,
) -> None:
    with closing(one_page()) as site, serving(empty_index(tmp_path)) as server:
        job = heritrix.make(name, site, f"http://127.0.0.1:{server.port}")
        profile = job / "crawler-beans.cxml"
        text = profile.read_text()
        for old, new in edits:
            assert text.count(old) == 1
            text = text.replace(old, new)
        profile.write_text(text)
        crawl = heritrix.run(job)
        if name in ("late-lookup", "no-store", "early-store"):  # what was looked up is not reported
            assert until(lambda: crawl_of(server, crawl.name)["lookups"] == 1)
            assert crawl_of(server, crawl.name)["not_reported"] == 1
            told = dedupindex("report", tmp_path / "index", "--crawl", crawl.name)[0]
            assert f"bin/index --add --crawl {crawl.name} FILE... INDEX" in told
    assert at_launch in crawl.alerts().split("dedup: ")[1] and "SEVERE" not in crawl.alerts()
    cure = ': write <ref bean="dedupLookup"/> after <ref bean="fetchHttp"/>'
    assert at_end.format(cure=cure) in crawl.output
    repair = f"(bin/index --add --crawl {crawl.name} '{crawl.launch / 'warcs'}' INDEX)"
    assert crawl.output.count(repair) == 1


def test_a_crawl_of_duplicates_only_has_nothing_to_report(
    heritrix: Heritrix, tmp_path: Path
) -> None:
    with closing(one_page()) as site, serving(empty_index(tmp_path)) as server:
        address = f"http://127.0.0.1:{server.port}"
        heritrix.run(heritrix.make("stored-before", site, address))
        job = heritrix.make("seen-again", site, address)
        profile = job / "crawler-beans.cxml"
        profile.write_text(profile.read_text().replace(STORE, ""))
        crawl = heritrix.run(job)
    assert "dedupStore stands in no chain of crawler-beans.cxml" in crawl.alerts()
    assert "looked up 1, of these duplicates 1" in crawl.output
    assert "nothing that was stored in full was reported" not in crawl.output
    assert "afterwards" not in crawl.output


WRONG = {  # by setting: what is written, and what the message says of it
    "server": ("", 'takes the address of bin/serve, such as http://127.0.0.1:8484, not ""'),
    "token": (
        "töken",
        "takes what bin/token printed: ASCII letters, digits, _ and -, without spaces;",
    ),
    "searchStrategy": ("ANY", "takes DIGEST_ANY, EXACT_URL, CANONICAL_URL, "),
    "maxAge": ("30days", "takes a number and one of s m h d y, such as 12h, 30d or 2y, or nothing"),
    "seenBy": ("everybody", 'takes own or all, not "everybody"'),
    "namespace": ("a b", "takes up to 200 printable ASCII characters, no space and no slash, "),
    "digestCovers": ("body", 'takes auto, stored or entity, not "body"'),
    "cancelOn": ("Ended by (", "takes a regular expression (Unclosed group at character 11), not"),
    "quietSeconds": ("30s", 'takes a whole number of seconds, not "30s"'),
    "digestFilter": ("-1", 'takes a whole number of seconds, not "-1"'),
    "fetchInFull": ("^(text/", "takes a regular expression ("),
}


def with_settings(job: Path, changes: dict[str, str], more: str = "") -> Path:
    """The job, with other values of settings and with further lines of them."""
    beans = job / "dedup-beans.xml"
    text = beans.read_text()
    for name, value in changes.items():
        text, count = re.subn(f"(?m)^{name}=.*$", lambda _, n=name, v=value: f"{n}={v}", text)
        assert count == 1, name
    beans.write_text(text.replace("   </value>", f"{more}   </value>"))
    return job


def not_launched(heritrix: Heritrix, job: Path) -> str:
    """What Heritrix prints of a job that it does not launch; its job log has the same."""
    with heritrix.running(job) as (process, _):
        output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1 and not (job / "latest").exists()
    ours, _, after = output.partition("Can't launch problem configuration")
    assert f"Failed to launch job: {job.name}" in after and "Can't create bean" in ours
    log = (job / "job.log").read_text()
    (message,) = {
        found for found in re.findall(r"SEVERE (.*); ?Can't create bean 'dedupClient'", log)
    }
    assert message in output
    return message


def test_wrong_settings_stop_the_launch(heritrix: Heritrix, site: Site) -> None:
    """Each is named as in the file, with what it takes; the crawl does not begin without them."""
    job = heritrix.make("wrong-settings", site, "http://127.0.0.1:1")
    values = {name: value for name, (value, _) in WRONG.items()}
    message = not_launched(heritrix, with_settings(job, values, "seen_by=all\ncolour=blue\n"))
    assert message.startswith('13 settings of the bean "dedup" in dedup-beans.xml cannot be used, ')
    for name, (_, says) in WRONG.items():
        assert f"; {name} {says}" in message.replace("launched: ", "; "), (name, message)
    assert "there is no setting seen_by; did you mean seenBy?" in message
    assert "there is no setting colour; there are server, token, searchStrategy, " in message
    assert "töken" not in message  # a secret


def test_heritrix_exits_with_0_if_it_refuses_a_value_of_its_own(
    heritrix: Heritrix, site: Site
) -> None:
    """As docs/crawlers.md says: the job is built, and not launched all the same."""
    job = heritrix.make("no-contact", site, "http://127.0.0.1:1")
    profile = job / "crawler-beans.cxml"
    text, count = re.subn("operatorContactUrl=.*", "operatorContactUrl=me", profile.read_text())
    assert count == 1
    profile.write_text(text)
    with heritrix.running(job) as (process, _):
        output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0 and not (job / "latest").exists()
    ours, _, after = output.partition("Can't launch problem configuration")
    assert "Field error in object 'metadata'" in ours and "Failed to launch job" not in after


def test_a_misspelled_setting_stops_the_launch(heritrix: Heritrix, site: Site) -> None:
    job = heritrix.make("misspelled", site, "http://127.0.0.1:1")
    message = not_launched(heritrix, with_settings(job, {}, "serchStrategy=EXACT_URL\n"))
    assert message == (
        'A setting of the bean "dedup" in dedup-beans.xml cannot be used, so the job is not '
        "launched: there is no setting serchStrategy; did you mean searchStrategy?"
    )


def test_settings_may_be_empty(heritrix: Heritrix, tmp_path: Path) -> None:
    """All but the server; names of the DeDuplicator and capitals do not matter."""
    with closing(one_page()) as site, serving(empty_index(tmp_path)) as server:
        job = heritrix.make("empty", site, f"http://localhost:{server.port}/")
        crawl = heritrix.run(with_settings(job, dict.fromkeys([*WRONG][1:], "")))
        assert crawl_of(server, crawl.name)["digest_covers"] == "stored"
        job = with_settings(
            heritrix.make("aliases", site, f"http://127.0.0.1:{server.port}"),
            {
                "searchStrategy": "url_exact",
                "maxAge": "90",
                "seenBy": "all",
                "digestCovers": "entity",
            },
        )
        shown = crawl_of(server, heritrix.run(job).name)
        assert (shown["seen_by"], shown["digest_covers"]) == ("all", "entity")
        assert (shown["lookups"], shown["state"]) == (1, "committed")


@pytest.mark.parametrize("status", [200, 400, 404, 501])
def test_a_server_that_is_no_dedupindex_is_named(heritrix: Heritrix, status: int) -> None:
    with closing(one_page()) as site, stub_server(replying(status, b"<p>another")) as url:
        crawl = heritrix.run(heritrix.make(f"other-{status}", site, url))
    why = (
        f'there is no dedupindex at {url}: set "server" in dedup-beans.xml to the address that bin'
    )
    assert f"not looked up; all is stored, because {why}" in crawl.alerts()
    assert f"was never begun at {url}, because {why}" in crawl.alerts()
    assert f"was answered {status} another" in crawl.alerts()


def test_a_refused_lookup_is_logged_once_with_the_end_of_the_request(
    heritrix: Heritrix, tmp_path: Path
) -> None:
    """The script has a parameter that the server does not know."""
    paths = [f"/{'long/' * 60}{number}" for number in range(3)]
    with closing(Site()) as site, serving(empty_index(tmp_path)) as server:
        site.pages = {path: Page(b"<p>text") for path in paths}
        seeds = [word for path in paths for word in ("--seed", site.url + path)]
        job = heritrix.make("other-script", site, f"http://127.0.0.1:{server.port}", *seeds)
        with_settings(job, {"maxAge": "30d"})
        script = job / "dedupindex.groovy"
        text = script.read_text()
        assert text.count("'&size='") == 1
        script.write_text(text.replace("'&size='", "'&bytes='"))
        crawl = heritrix.run(job)
        report = crawl_of(server, f"{crawl.name}/report")
        page = server.get(f"/pages/crawl?name={crawl.name}")[1].decode()
    (line,) = [line for line in crawl.alerts().splitlines() if "was answered 400" in line]
    assert re.search(
        r"GET /lookup\?\S{100,200}\.\.\.\S{100,200}&max_age=30d was answered 400", line
    )
    assert "; further answers 400 are only counted" in line and len(line) < 1200
    assert report["errors"] == len(paths)
    assert report["warning"] == "all 3 lookups got an error, see the log of the crawler"
    assert report["warning"] in page and "may not have been told to ask" not in page


def test_a_name_that_is_taken_and_an_error_page_are_one_line_each(
    heritrix: Heritrix, tmp_path: Path
) -> None:
    class Stub(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(409 if "taken" in self.server.server_name else 502)
            self.end_headers()
            self.wfile.write(b"<html>\n<body>\n<h1>Bad" + b" gateway" * 1000)

        def log_message(self, format: str, *args: object) -> None:
            """Tests say what went wrong."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Stub)
    Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        with closing(one_page()) as site:
            for name in ("taken", "gateway"):
                server.server_name = name
                crawl = heritrix.run(
                    heritrix.make(name, site, f"http://127.0.0.1:{server.server_port}")
                )
                ours = [line for line in crawl.output.splitlines() if " dedup: " in line]
                if name == "taken":
                    assert "as there is one of this name: POST /crawls was answered 409" in ours[-1]
                    assert "never begun" not in crawl.output
                else:
                    assert "was answered 502 Bad gateway" in crawl.alerts()
                    assert " ... (in thread" in crawl.alerts() and "<h1>" not in crawl.output
                assert len(max(ours, key=len)) < 1200
    finally:
        server.shutdown()
        server.server_close()


def test_a_profile_that_was_edited_twice_works_as_if_edited_once(
    heritrix: Heritrix, site: Site, tmp_path: Path
) -> None:
    with serving(empty_index(tmp_path)) as server:
        job = heritrix.make("twice", site, f"http://127.0.0.1:{server.port}")
        profile = job / "crawler-beans.cxml"
        text = profile.read_text()
        for line in (
            '<import resource="dedup-beans.xml"/>',
            '<ref bean="dedupLookup"/>',
            '<ref bean="dedupStore"/>',
        ):
            assert text.count(line) == 1
            text = text.replace(line, f"{line}\n    {line}")
        profile.write_text(text)
        crawl = heritrix.run(job)
        asked = len(site.payloads()) + 1  # and a response 203
        assert until(lambda: crawl_of(server, crawl.name)["lookups"] >= asked)
        assert crawl_of(server, crawl.name)["lookups"] == asked
    new = len(set(site.payloads().values()))
    assert f"looked up {asked}, of these duplicates 5; reported {new + 1}" in crawl.output
    for name, chain in (("Lookup", "fetch"), ("Store", "disposition")):
        line = f"dedup{name} stands more than once in {chain}Processors of crawler-beans.cxml"
        assert crawl.alerts().count(line) == 1


def test_jobs_of_two_namespaces_do_not_refer_to_each_other(
    heritrix: Heritrix, site: Site, tmp_path: Path
) -> None:
    """Each refers to its own earlier crawls; a digest filter, which lacks these, is not used."""
    index, crawls = empty_index(tmp_path), list[Crawl]()
    token = dedupindex("token", index, "--add", "h", "--namespaces", "n*")[0].strip()
    with serving(index) as server:
        url = f"http://127.0.0.1:{server.port}"
        for name, namespace in (("news", "news"), ("nature", "nature"), ("more-news", "news")):
            job = heritrix.make(name, site, url, "--token", token, "--namespace", namespace)
            beans = job / "dedup-beans.xml"
            beans.write_text(beans.read_text().replace("digestFilter=\n", "digestFilter=1\n"))
            crawls.append(heritrix.run(job))
            shown = crawl_of(server, crawls[-1].name)
            assert (shown["namespace"], shown["state"]) == (namespace, "committed")
    found = [of_kind(crawl.records(), "revisit") for crawl in crawls]
    assert [len(revisits) for revisits in found] == [5, 5, len(site.payloads())]
    for crawl, revisits in zip(crawls[:2], found[:2], strict=True):
        check_revisits(crawl.records(), crawl.records())
        assert len(revisits) == 5
    check_revisits(found[2], crawls[0].records())
    alerts = [crawl.alerts() for crawl in crawls]
    assert all("a crawl in a namespace cannot use the digest filter" in text for text in alerts)
    assert f"has begun at {url} in the namespace news, digests" in crawls[0].output


def test_missed_lookups_are_reported_when_the_server_is_back(
    heritrix: Heritrix, site: Site, tmp_path: Path
) -> None:
    """The server is down between two pages; Heritrix stores all and reports how many.

    With the first page for which the server is there again it asks again.
    """
    index, fetched = empty_index(tmp_path), list[str]()
    with ExitStack() as servers:
        server = servers.enter_context(serving(index))

        def away(path: str) -> None:
            fetched.append(path)
            if path == "/report.pdf":
                server.process.terminate()
                server.process.wait()
            if path == "/data.json":
                servers.enter_context(serving(index, "--port", str(server.port)))
                time.sleep(1.1)  # the longest pause between two probes, while nobody listens

        job = heritrix.make("back", site, f"http://127.0.0.1:{server.port}")
        site.before = away
        try:
            crawl = heritrix.run(job)
        finally:
            site.before = lambda path: None

        def report() -> dict[str, Any]:
            return crawl_of(server, f"{crawl.name}/report")

        between = fetched[fetched.index("/report.pdf") : fetched.index("/data.json")]
        least = len({site.url + path for path in between} & site.payloads().keys())
        total = len(site.payloads()) + 1  # and a response 203

        def all_are_reported() -> bool:
            now = report()
            return int(now["lookups"] + (now["not_looked_up"] or 0)) == total

        assert until(all_are_reported), (report()["lookups"], report()["not_looked_up"], total)
        told = report()
        text = dedupindex("report", index, "--crawl", crawl.name)[0]
    all_stored(site, crawl)
    missed = told["not_looked_up"]
    assert told["state"] == "committed" and missed == least >= 5  # so it was left alone
    assert f"  not looked up:      {missed} more, stored in full (" in text
    assert told["duplicates"] == crawl.report_number("duplicate-by-hash URIs")
    assert told["duplicate_stated_bytes"] == crawl.report_number("duplicate-by-hash crawled bytes")


def test_new_payloads_are_found_in_the_digest_filter(
    heritrix: Heritrix, site: Site, tmp_path: Path
) -> None:
    """Two crawls with the filter find what two without it find, and ask less.

    In a third the filter is damaged, and in a fourth there is none: all is asked.
    """
    index = empty_index(tmp_path)
    token = dedupindex("token", index, "--add", "heritrix")[0].strip()
    dedupindex("index", "--digest-filter", index)
    asked = len(site.payloads()) + 1  # and a response 203
    reports, crawls = [], []
    with serving(index, "--private") as server:
        url = f"http://127.0.0.1:{server.port}"
        for name in ("filtered", "again", "damaged", "none"):
            if name == "damaged":
                (part,) = (index / "filter").glob("*.part")
                part.write_bytes(part.read_bytes().replace(b"dedupflt", b"dedupfit"))
            if name == "none":
                shutil.rmtree(index / "filter")
            job = heritrix.make(name, site, url, "--token", token, "--digest-filter", "1")
            crawl = heritrix.run(job)

            def report(name: str = crawl.name) -> dict[str, Any]:
                path, bearer = f"/crawls/{name}/report?by=host", f"Bearer {token}"
                return dict(json.loads(server.get(path, Authorization=bearer)[1]))

            until(lambda: report()["merged"] and report()["lookups"] == asked)
            assert report()["merged"] and report()["lookups"] == asked, report()
            reports.append(report())
            crawls.append(crawl)
    first, second, *others = reports
    found = [of_kind(crawl.records(), "revisit") for crawl in crawls]
    assert len(found[0]) == first["duplicates"] == 5
    assert {one.url for one in found[1]} == site.payloads().keys()
    check_revisits(found[0] + found[1], crawls[0].records())
    new = first["lookups"] - first["duplicates"]
    assert first["new"] == new and 8 <= first["answered_by_filter"] <= new
    assert first["groups"][0]["lookups"] == asked - first["answered_by_filter"]
    assert first["captures"] == len(stored(site, crawls[0].records())) == new - 1
    assert (second["duplicates"], second["captures"]) == (asked - 1, 0)
    for other in others:
        assert (other["duplicates"], other["answered_by_filter"]) == (asked - 1, 0)
    assert "digest filter was not renewed" in crawls[2].alerts()
    assert "the server has no digest filter" in crawls[3].alerts()
    assert (first["not_looked_up"], first["not_reported"]) == (0, 0)
    assert "SEVERE" not in crawls[0].alerts() + crawls[1].alerts()
    line = f"answered by the filter {first['answered_by_filter']}; reported"
    assert line in crawls[0].output


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class _Stub(BaseHTTPRequestHandler):
    """Refuses twice, answers as the server does, then 503, then not at all."""

    protocol_version = "HTTP/1.1"
    asked: list[str]
    released: Event

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path.endswith("/commit") and self.asked.count(self.path) == 1:
            self.released.wait(2 * DEADLINE)
        lookups = sum(path.startswith("/lookup") for path in self.asked)
        if lookups > 4 and self.command == "GET":
            self.released.wait(2 * DEADLINE)
        status = [204, 429, 409, 204][lookups] if lookups <= 3 else 503
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b'{"bad": 0}' if self.command == "POST" else b""
        self.send_response(200 if self.command == "POST" else status)
        if self.command == "POST" or status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Tests say what went wrong."""


def test_a_server_that_says_503_and_then_hangs(heritrix: Heritrix, site: Site) -> None:
    """Quiet for a second instead of 30, so that both are met in one crawl.

    Refusals before, 429 and 409, say nothing of the next question: it is asked at once.
    Heritrix would exit as soon as the crawl is over, but waits until it is committed at last.
    """
    stub = type("Stub", (_Stub,), {"asked": [], "released": Event()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), stub)
    Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    job = heritrix.make("sick", site, f"http://127.0.0.1:{server.server_port}")
    beans = job / "dedup-beans.xml"
    beans.write_text(beans.read_text().replace("quietSeconds=30", "quietSeconds=1"))

    def slow(path: str) -> None:
        if path == "/story.html":
            time.sleep(1.1)  # the quiet time is over, so the next question is asked

    site.before = slow
    started = time.monotonic()
    try:
        crawl = heritrix.run(job)
    finally:
        site.before = lambda path: None
        stub.released.set()
        server.shutdown()
        server.server_close()
    taken = time.monotonic() - started
    assert taken < DEADLINE  # what hangs would hang for twice as long
    assert of_kind(all_stored(site, crawl), "revisit") == []
    asked = [path for path in stub.asked if path.startswith("/lookup")]
    # Two refused, one answered, one 503, and at most one for each second in which it is quiet.
    assert 5 <= len(asked) <= 5 + taken
    ends = [path.rpartition("/")[2].partition("?")[0] for path in stub.asked[-3:]]
    assert ends == ["commit", "commit", "report"]
    alerts = crawl.alerts()
    assert (
        "was answered 503" in alerts
        and "refused, otherwise with pauses of 1 to 1 s: http" in alerts
    )
    assert alerts.count("was answered 429") == alerts.count("was answered 409") == 1
    assert alerts.index("was answered 409") < alerts.index("failures in a row")


@pytest.mark.parametrize("compiled", [True, False])
def test_the_scripts_are_compiled_once_for_all_threads(
    heritrix: Heritrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    """Two threads wait for one another, so each of them has an engine for scripts."""
    both = Barrier(2)
    file = tmp_path / "classes-%p.log"  # other JVMs than that of the crawl have files of their own
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Xlog:class+load:file={file}")

    def wait(path: str) -> None:
        if path == "/logo.png":
            both.wait(DEADLINE)

    with closing(Site()) as one, closing(Site()) as other, serving(empty_index(tmp_path)) as server:
        one.before = other.before = wait
        url = f"http://127.0.0.1:{server.port}"
        job = heritrix.make(f"threads-{compiled}", one, url, "--seed", f"{other.url}/")
        if not compiled:
            shutil.rmtree(job / "dedup-classes")
        crawl = heritrix.run(job)
        payloads = {**one.payloads(), **other.payloads()}
    lines = (crawl.launch / "logs" / "crawl.log").read_text().splitlines()
    assert len({line.split()[7] for line in lines if "/logo.png " in line}) >= 2, lines
    loaded = "".join(path.read_text() for path in tmp_path.glob("classes-*.log"))
    (source,) = re.findall(r" DedupClient source: (.*)", loaded)
    assert ("dedup-classes" in source) == compiled, source
    if compiled:  # the part of Groovy's runtime that loads its compiler is not needed
        assert "FormatHelper source:" not in loaded
    records = crawl.records()
    assert {one.url for one in records} >= payloads.keys()
    check_revisits(records, records)


def test_a_crawl_over_tls(
    heritrix: Heritrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = certificate(tmp_path, "server")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", trusted(cert))
    tls = ("--tls-cert", str(cert), "--tls-key", str(key))
    with closing(Site()) as site, serving(empty_index(tmp_path), *tls) as server:
        url = server.ready["url"]
        first = heritrix.run(heritrix.make("tls-first", site, url))
        second = heritrix.run(heritrix.make("tls-second", site, url))
        payloads = site.payloads()
    assert "dedup: " not in first.alerts() + second.alerts()
    assert len(stored(site, first.records())) == len(set(payloads.values()))
    assert len(of_kind(second.records(), "revisit")) == len(payloads)
    check_revisits(second.records(), first.records())


def test_a_job_without_its_script_is_not_launched(heritrix: Heritrix, site: Site) -> None:
    """Heritrix must not store everything because a file was forgotten."""
    job = heritrix.make("forgotten", site, "http://127.0.0.1:1")
    (job / "dedupindex.groovy").unlink()
    with heritrix.running(job) as (process, _):
        output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1 and "dedupindex.groovy" in output
    assert not (job / "latest").exists()


def test_unreported_records_of_a_killed_crawl_can_be_indexed(
    heritrix: Heritrix, site: Site, tmp_path: Path
) -> None:
    """Reports are a tenth of a second behind; every original that the server names was written."""
    index, reached, never = empty_index(tmp_path), Event(), Event()

    def hold(path: str) -> None:
        if path == "/tour.mp4":
            reached.set()
            never.wait(DEADLINE)

    site.before = hold
    try:
        with serving(index) as server:
            job = heritrix.make("killed", site, f"http://127.0.0.1:{server.port}")
            with heritrix.running(job) as (process, _):
                assert reached.wait(DEADLINE)
                process.kill()
                process.wait()
            launch = (job / "latest").resolve()
            name = f"{job.name}-{launch.name}"
            shown = crawl_of(server, name)
            assert shown["state"] == "open"
            send(server.port, "POST", f"/crawls/{name}/commit", {"exit": "killed"})
            assert until(lambda: crawl_of(server, name)["merged"])
    finally:
        never.set()
        site.before = lambda path: None
    (unfinished,) = (launch / "warcs").glob("*.open")
    unfinished.rename(unfinished.with_suffix(""))
    folder = launch / "warcs"
    dedupindex("index", "--add", "--crawl", name, folder, index)
    written = stored(site, Crawl(name, launch, "").records())
    assert (
        0 < shown["captures"] <= len({record.headers["WARC-Payload-Digest"] for record in written})
    )
    with closing(open_index(index)) as engine, engine.view() as view:
        for record in written:
            digest = Digest.parse(record.headers["WARC-Payload-Digest"])
            answer = find(view, engine.identity.settings, Query(digest, record.url.encode()))
            assert answer is not None and answer.original.url.decode() in {
                one.url for one in written
            }


def without_timer(job: Path) -> None:
    """Edit the script of a job: what waits is reported when something else asks for it."""
    script = job / "dedupindex.groovy"
    text, often = script.read_text(), "REPORT_EVERY = 100  "
    assert text.count(often) == 1
    script.write_text(text.replace(often, "REPORT_EVERY = 86_400_000  "))


def test_checkpoint_and_pause_report_what_waits_and_terminate_takes_it_back(
    heritrix: Heritrix, tmp_path: Path
) -> None:
    """The script's own timer never comes, and no page has the payload of one that waits."""
    pages = {f"/{number}.html": Page(b"<p>%d " % number * 50) for number in range(1, 6)}
    links = "".join(f'<a href="{path}">{path}</a>' for path in pages)
    index, held, go_on = empty_index(tmp_path), Queue[str](), Semaphore(0)
    fetched = list[str]()  # the next one is asked for when these are stored

    def hold(path: str) -> None:
        if path in ("/2.html", "/4.html"):
            held.put(path)
            assert go_on.acquire(timeout=DEADLINE)
        fetched.append(path)

    with closing(Site()) as site, serving(index) as server:
        site.pages = {"/": Page(links.encode()), **pages}
        job = heritrix.make("ended", site, f"http://127.0.0.1:{server.port}")
        without_timer(job)

        def reported(count: int) -> bool:
            launch = (job / "latest").resolve()
            return bool(crawl_of(server, f"{job.name}-{launch.name}")["captures"] == count)

        def during(port: int) -> None:
            held.get(timeout=DEADLINE)
            waiting = len({site.url + path for path in fetched} & site.payloads().keys())
            assert waiting == 2 and reported(0)
            tell(port, "ended", "checkpoint")
            assert until(lambda: reported(waiting))
            tell(port, "ended", "pause")
            go_on.release()
            assert until(lambda: reported(waiting + 1))
            tell(port, "ended", "unpause")
            held.get(timeout=DEADLINE)
            assert reported(waiting + 1)
            assert "<field>lookups</field>" in page_of(port, "ended", "beans/dedupClient")
            tell(port, "ended", "terminate")
            go_on.release()

        site.before = hold
        crawl = heritrix.run(job, during)
        shown = crawl_of(server, crawl.name)
    assert (shown["state"], shown["exit"]) == ("cancelled", "Finished - Ended by operator")
    assert "SEVERE" not in crawl.alerts()
    kinds = [one.kind for one in stored(site, crawl.records())]
    assert len(kinds) >= 4 and set(kinds) == {"response"}


def test_a_crawl_that_answered_others_is_not_cancelled(heritrix: Heritrix, tmp_path: Path) -> None:
    """Its log says how to commit it, or to cancel it nevertheless."""
    held, go_on = Event(), Event()

    def hold(path: str) -> None:
        if path == "/2.html":
            held.set()
            assert go_on.wait(DEADLINE)

    with closing(Site()) as site, serving(empty_index(tmp_path)) as server:
        links = b"".join(b'<a href="/%d.html">' % number for number in (1, 2))
        site.pages = {"/": Page(links * 9), "/1.html": Page(b"<p>1"), "/2.html": Page(b"<p>2")}
        site.before = hold
        job = heritrix.make("shared", site, f"http://127.0.0.1:{server.port}")
        beans = job / "dedup-beans.xml"
        beans.write_text(beans.read_text().replace("seenBy=own", "seenBy=all"))
        digest = "sha1:" + b32encode(sha1(links * 9).digest()).decode()

        def during(port: int) -> None:
            assert held.wait(DEADLINE)
            send(server.port, "POST", "/crawls", {"name": "other"})
            path = f"/lookup?digest={digest}&crawl=other"
            assert until(lambda: send(server.port, "GET", path)["duplicate"])
            tell(port, "shared", "terminate")
            go_on.set()

        crawl = heritrix.run(job, during)
        assert crawl_of(server, crawl.name)["state"] == "open"
        alerts = crawl.alerts() + crawl.output  # its log may be closed when it exits
        command = re.findall(r"commit it by hand: (curl .*/commit')", alerts)[0]
        assert f"/crawls/{crawl.name}/cancel'" in alerts and "&force=true'" in alerts
        subprocess.run(command, shell=True, check=True, stdout=subprocess.DEVNULL)
        assert crawl_of(server, crawl.name)["state"] == "committed"
