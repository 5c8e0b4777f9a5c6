"""A real warcprox with its own CDX deduplication, as conf/warcprox/cdx.sh sets it up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from warcio.exceptions import ArchiveLoadFailed

from tests.integration.test_server_live import serving
from tests.peers.environments import ROOT, until
from tests.peers.front import in_front_of
from tests.peers.replay import check_revisits, free_port, records, replay
from tests.peers.site import COPIES, PAGES, bodies, site
from tests.peers.test_warcprox import ALL, crawl, fetch, proxying, types, warcs
from tests.unit.cli.test_cli import dedupindex

pytestmark = pytest.mark.peer
SCRIPT = "cdx.sh"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    index = tmp_path / "index"
    dedupindex("index", "--empty", "--by-url", "-w", "-m", ".*", index)
    return index


def harvest(index: Path, base: str, paths: Sequence[str], script: str = SCRIPT) -> Path:
    """A first crawl, all of which is stored, and then indexed; gives where its WARCs are."""
    folder = index.with_name("first")
    with serving(index) as server:
        url = f"http://127.0.0.1:{server.port}"
        with proxying(folder, url, script=script) as port:
            crawl(port, base, paths)
    assert types(folder) == dict.fromkeys([base + path for path in paths], "response")
    dedupindex("index", "--add", "--by-url", "-w", "-m", ".*", folder, index)
    return folder


def test_the_second_crawl_is_all_revisits_and_replays(index: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    with site() as base:
        first = harvest(index, base, ALL)
        with serving(index) as server, in_front_of(server.port) as front:
            with proxying(second, front.url, script=SCRIPT) as port:
                crawl(port, base, ALL)
            assert front.statuses() == [200] * len(ALL)
        assert types(second) == dict.fromkeys(bodies(base), "revisit")
        found = records(warcs(first, second))
        responses = {(one.url, one.date): one for one in found if one.type == "response"}
        for one in found:
            if one.type == "revisit":
                original = responses[one.refers_to_url, one.refers_to_date]
                assert (original.url, original.digest) == (one.url, one.digest)
        with replay(warcs(first, second), tmp_path) as archive:
            assert check_revisits(found, archive, bodies(base)) == len(ALL)


def test_changed_pages_and_copies_at_other_urls_are_stored(index: Path, tmp_path: Path) -> None:
    """It asks by URL alone, and takes no payload of another URL for a duplicate."""
    second = tmp_path / "second"
    with site() as base:
        harvest(index, base, ["/", "/logo.png"])
    changed = {"/": PAGES["/data"]}
    with ExitStack() as stack:
        stack.enter_context(site(changed, int(base.rpartition(":")[2])))
        url = f"http://127.0.0.1:{stack.enter_context(serving(index)).port}"
        port = stack.enter_context(proxying(second, url, script=SCRIPT))
        crawl(port, base, ["/logo.png", *COPIES])
        assert fetch(port, base + "/") == changed["/"].body
    written = types(second)
    assert written.pop(base + "/logo.png") == "revisit"
    assert set(written.values()) == {"response"} and len(written) == 1 + len(COPIES)


def test_originals_that_replay_would_not_find_are_not_used(index: Path, tmp_path: Path) -> None:
    """The originals' digests are in hex: asked in base32 there are none, in hex all."""
    first, second, third = tmp_path / "first", tmp_path / "second", tmp_path / "third"
    in_hex = tmp_path / "in_hex.sh"
    text = (ROOT / "conf" / "warcprox" / SCRIPT).read_text()
    in_hex.write_text(text.replace("--base32 ", "").replace("/cdx", "/cdx/hex"))
    in_hex.chmod(0o755)
    paths = ["/", "/logo.png"]
    with site() as base:
        harvest(index, base, paths, str(in_hex))
        with serving(index) as server:
            url = f"http://127.0.0.1:{server.port}"
            for folder, script in ((second, SCRIPT), (third, str(in_hex))):
                with proxying(folder, url, script=script) as port:
                    crawl(port, base, paths)
        assert set(types(second).values()) == {"response"}
        assert set(types(third).values()) == {"revisit"}
        found = records(warcs(first, third))
        with replay(warcs(first, third), tmp_path) as archive:
            assert check_revisits(found, archive, bodies(base)) == len(paths)


def has_written(folder: Path, count: int) -> bool:
    """Whether so many records are in a file that may have half of another at its end."""
    try:
        return len(records(folder.glob("*.warc.gz.open"))) == count
    except ArchiveLoadFailed:
        return False


@pytest.mark.parametrize("sickness", ["down", "503", "silent"])
def test_in_an_outage_all_is_stored(sickness: str, index: Path, tmp_path: Path) -> None:
    """From the start, or after two answers: the earlier answers remain valid."""
    second, paths = tmp_path / "second", ["/", "/logo.png", "/data", "/catalogue.pdf"]
    with site() as base:
        harvest(index, base, paths)
        with serving(index) as server, in_front_of(server.port) as front:
            front.sickness, front.well_for = sickness, 2
            url = front.url if sickness != "down" else f"http://127.0.0.1:{free_port()}"
            with proxying(second, url, script=SCRIPT) as port:
                crawl(port, base, paths)
                # Told to stop before it has given up a lookup, it would lose the response.
                until(lambda: has_written(second, 4), None, second / "log")
    answered = 0 if sickness == "down" else 2
    assert front.statuses().count(200) == answered
    written = Counter({"revisit": answered, "response": 4 - answered})
    assert Counter(types(second).values()) == +written
