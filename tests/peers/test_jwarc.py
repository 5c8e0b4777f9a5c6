"""jwarc deduplicates finished WARCs with answers in our CDX dialect, and validates WARCs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from demo.site import Page
from tests.integration.test_server_live import serving
from tests.peers.environments import JWARC, jar
from tests.peers.front import Front, in_front_of
from tests.peers.replay import check_revisits, free_port, records, replay
from tests.peers.site import COPIES, PAGES, bodies, site
from tests.unit.cli.test_cli import dedupindex

pytestmark = pytest.mark.peer
ALL = [*PAGES, *COPIES]
# What it never asks of: bodies whose length it does not know, or under 256 bytes.
UNASKED = {path for path, page in PAGES.items() if page.chunked or len(page.body) < 256}
TIMEOUTS = ("-Dsun.net.client.defaultConnectTimeout={}", "-Dsun.net.client.defaultReadTimeout={}")


def jwarc(*words: object, folder: Path, status: int = 0, patience: int = 60_000) -> str:
    """Runs jwarc, which waits so many milliseconds for a server; gives what it says."""
    timeouts = [one.format(patience) for one in TIMEOUTS]
    done = subprocess.run(
        ["java", "-XX:TieredStopAtLevel=1", *timeouts, "-jar", jar(JWARC), *map(str, words)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def harvest(folder: Path, name: str, pages: Mapping[str, Page] | None = None, port: int = 0) -> str:
    """What jwarc fetches of the site, as NAME.warc.gz; gives the site's URL."""
    with site(pages, port) as base:
        jwarc("fetch", "-o", f"{name}.warc.gz", *(base + path for path in ALL), folder=folder)
    return base


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jwarc")


@pytest.fixture(scope="module")
def base(folder: Path) -> str:
    """Two harvests of one site; between them, one page changes. The first one is indexed."""
    base = harvest(folder, "one")
    harvest(folder, "two", {"/": Page(b"<p>changed " * 300)}, int(base.rpartition(":")[2]))
    dedupindex("index", "--by-url", "-w", "-m", ".*", folder / "one.warc.gz", folder / "index")
    return base


@pytest.fixture
def front(base: str, folder: Path) -> Iterator[Front]:
    with serving(folder / "index") as server, in_front_of(server.port) as front:
        yield front


def test_its_revisits_resolve_and_replay(
    base: str, folder: Path, front: Front, tmp_path: Path
) -> None:
    jwarc("dedupe", "--cdx-server", f"{front.url}/cdx", "two.warc.gz", folder=folder)
    warcs = [folder / "one.warc.gz", folder / "two-dedup.warc.gz"]
    found = records(warcs)
    revisits = [one for one in found if one.type == "revisit"]
    # It has found what it has asked for and what had not changed, and nothing else.
    expected = {base + path for path in ALL} - {base + path for path in UNASKED}
    assert {one.url for one in revisits} == expected - {base + "/"}
    assert front.statuses() == [200] * len(expected)
    originals = {(one.url, one.date): one for one in found if one.type == "response"}
    for one in revisits:
        assert originals[one.refers_to_url, one.refers_to_date].digest == one.digest
        assert one.refers_to_url == one.url
    with replay(warcs, tmp_path) as archive:
        assert check_revisits(found, archive, bodies(base)) == len(revisits)
    jwarc("validate", *warcs, folder=folder)


@pytest.mark.parametrize("sickness", ["down", "503", "silent"])
def test_jwarc_leaves_files_unchanged_in_an_outage(
    sickness: str, folder: Path, front: Front, tmp_path: Path
) -> None:
    """Also in the middle of the file: no half a result is left."""
    content = (folder / "two.warc.gz").read_bytes()
    (tmp_path / "two.warc.gz").write_bytes(content)
    url, front.sickness, front.well_for = front.url, sickness, 2
    if sickness == "down":
        url = f"http://127.0.0.1:{free_port()}"
    patience = 5000 if sickness == "silent" else 60_000
    words = ("dedupe", "--cdx-server", f"{url}/cdx", "two.warc.gz")
    said = jwarc(*words, folder=tmp_path, status=1, patience=patience)
    assert "Failed to dedupe two.warc.gz" in said
    assert [path.name for path in tmp_path.iterdir()] == ["two.warc.gz"]
    assert (tmp_path / "two.warc.gz").read_bytes() == content
    if sickness != "down":
        assert front.statuses().count(200) == 2
