"""A stock Heritrix with the WbmPersistLoadProcessor of contrib asks ``/cdx``, by conf/heritrix.

It makes a revisit of whatever is listed, under the URL that it asked for, and takes every status
but 200 for an outage, each of which costs it ten seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from dedupindex.cli.heritrix_profile import CONF
from tests.integration.test_server_live import serving
from tests.peers import replay
from tests.peers.environments import jar
from tests.peers.front import Asked, in_front_of
from tests.peers.heritrix import VERSION, Crawl, Heritrix, Page, Site, heritrix_home
from tests.unit.cli.test_cli import dedupindex

pytestmark = pytest.mark.peer
CONTRIB = f"org.archive.heritrix:heritrix-contrib:{VERSION}"
NEWS = "/news.html"  # what changes between the crawls
EVERYTHING = ("--by-url", "-w", "-m", ".*", "--status", "2xx,3xx,404")


class Harvests(NamedTuple):
    """Two crawls, with their requests and answers."""

    site: Site
    first: Crawl
    second: Crawl
    asked: list[list[Asked]]
    index: Path


@pytest.fixture(scope="module")
def heritrix(tmp_path_factory: pytest.TempPathFactory) -> Heritrix:
    return Heritrix(heritrix_home(), tmp_path_factory.mktemp("heritrix"), jar(CONTRIB))


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with closing(Site()) as site:
        yield site


def make(heritrix: Heritrix, name: str, site: Site, server: str) -> Path:
    """A job with the edits that wbm-beans.xml describes, in place of those for the scripts."""
    job = heritrix.make(name, site, server)
    beans = (CONF / "wbm-beans.xml").read_text()
    assert beans.count("http://127.0.0.1:8484") == 1
    (job / "wbm-beans.xml").write_text(beans.replace("http://127.0.0.1:8484", server))
    profile = (job / "crawler-beans.cxml").read_text()
    for old, new in (
        ("dedup-beans.xml", "wbm-beans.xml"),
        ('<ref bean="fetchHttp"/>', '<ref bean="wbmLoad"/><ref bean="fetchHttp"/>'),
        ('<ref bean="dedupLookup"/>', '<ref bean="fetchHistory"/>'),
        ('<ref bean="dedupStore"/>', ""),
    ):
        assert profile.count(old) == 1
        profile = profile.replace(old, new)
    (job / "crawler-beans.cxml").write_text(profile)
    return job


@pytest.fixture(scope="module")
def harvests(
    heritrix: Heritrix, site: Site, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Harvests]:
    """The index holds redirects and errors of the first crawl, too, which must not be listed."""
    index, crawls, asked = tmp_path_factory.mktemp("wbm") / "index", [], []
    monday = site.pages[NEWS]
    dedupindex("index", "--empty", *EVERYTHING, index)
    for name in ("first", "second"):
        with serving(index) as server, in_front_of(server.port) as front:
            job = make(heritrix, name, site, front.url)
            front.asked.clear()  # what bin/heritrix-profile has asked
            crawls.append(heritrix.run(job))
            asked.append(front.asked)
        if name == "first":
            dedupindex("index", "--add", *EVERYTHING, *crawls[0].warcs(), index)
            site.pages[NEWS] = Page(b"<p>friday's news " * 60)
    site.pages[NEWS] = monday
    yield Harvests(site, *crawls, asked, index)


def test_a_miss_is_an_empty_200_asked_once(harvests: Harvests) -> None:
    """A miss that was any other status would be asked three times, with five seconds between."""
    for crawl, asked in zip((harvests.first, harvests.second), harvests.asked, strict=True):
        fetched = [one.url for one in crawl.records()]
        assert {one.status for one in asked} == {200}
        assert len({one.path for one in asked}) == len(asked) == len(set(fetched))
    assert {one.body for one in harvests.asked[0]} == {b""}
    assert len([one for one in harvests.asked[1] if not one.body]) >= 5


def test_the_second_crawl_is_full_of_revisits(harvests: Harvests) -> None:
    kinds = {one.url: one.kind for one in harvests.second.records()}
    changed = harvests.site.url + NEWS
    revisits = {url for url, kind in kinds.items() if kind == "revisit"}
    # A 203 is as good as a 200; errors, redirects and empty bodies are in the index, not listed.
    part = harvests.site.url + "/part.bin"
    assert revisits == (harvests.site.payloads().keys() | {part}) - {changed}
    assert {one.kind for one in harvests.first.records()} == {"response"}
    assert harvests.second.report_number("duplicate-by-hash URIs") == len(revisits)


def test_every_revisit_names_an_existing_original_and_replays(
    harvests: Harvests, tmp_path: Path
) -> None:
    warcs = [*harvests.first.warcs(), *harvests.second.warcs()]
    found = replay.records(warcs)
    originals = {(one.url, one.date): one for one in found if one.type == "response"}
    revisits = [one for one in found if one.type == "revisit"]
    for one in revisits:
        assert one.refers_to_url == one.url
        assert originals[one.refers_to_url, one.refers_to_date].digest == one.digest
    whole = [one for one in revisits if one.status == "200"]
    with replay.replay(warcs, tmp_path) as archive:
        checked = replay.check_revisits(whole, archive, harvests.site.payloads())
    assert checked == len(revisits) - 1


def test_in_an_outage_all_is_stored(heritrix: Heritrix, harvests: Harvests) -> None:
    """The server answers for one page, then 503, then nothing, then it is gone."""
    site, fetched = harvests.site, list[str]()
    pages = ["/logo.png", "/story.html", "/data.json", "/report.pdf"]

    def fail_requests(path: str) -> None:
        """Before a page is answered: what becomes of the question for the next one."""
        fetched.extend({path} & set(pages))
        front.sickness = ("", "503", "silent", "silent", "silent")[len(fetched)]
        if len(fetched) == 3:
            front.stop()

    held = site.pages
    links = "".join(f'<a href="{path}">{path}</a> ' for path in pages)
    site.pages = {"/": Page(links.encode()), **{path: held[path] for path in pages}}
    site.before = fail_requests
    try:
        with serving(harvests.index) as server, in_front_of(server.port) as front:
            crawl = heritrix.run(make(heritrix, "ill", site, front.url))
    finally:
        site.pages, site.before = held, lambda path: None
    kinds = {one.url: one.kind for one in crawl.records()}
    expected = dict.fromkeys(fetched, "response") | {fetched[0]: "revisit"}
    assert len(fetched) == 4
    assert {path: kinds[site.url + path] for path in fetched} == expected
    assert (front.statuses().count(503), front.statuses().count(0)) == (3, 3)
