"""The databases that a real warcprox fills are read, also while it runs; its WARCs agree."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from dedupindex.capture import Capture, Evidence
from dedupindex.sources import open_source
from dedupindex.sources.conformance import check_source
from demo.steps import free_port
from tests.peers.environments import ROOT, WARCPROX, environment, running, until
from tests.peers.replay import records
from tests.peers.site import COPIES, PAGES, site
from tests.peers.test_warcprox import crawl, fetch, has_started, meta, warcs
from tests.support.commands import typed

pytestmark = pytest.mark.peer


@contextmanager
def warcprox(folder: Path, *options: str) -> Iterator[int]:
    """warcprox with its own deduplication, in a directory of its own; gives its port."""
    tools, port = environment("warcprox", WARCPROX), free_port()
    folder.mkdir()
    words: list[str | Path] = [tools / "python", ROOT / "tests" / "peers" / "warcprox_main.py"]
    words += ["-b", "127.0.0.1", "-p", str(port), "-d", folder / "warcs", "-z", *options]
    words += ["-c", folder / "ca.pem", "--certs-dir", folder / "certs"]
    log = folder / "log"
    with running(words, log, lambda: has_started(port, log), PYTHONPATH=""):
        yield port


def count(database: Path) -> int:
    """How many payloads warcprox has noted."""
    if not database.exists():
        return 0
    with closing(sqlite3.connect(database)) as opened:
        return int(opened.execute("select count(*) from dedup").fetchone()[0])


@pytest.mark.parametrize("options", [[], ["--base32"]], ids=["hex", "base32"])
def test_the_index_of_a_database_has_what_the_warcs_have(
    options: list[str], tmp_path: Path
) -> None:
    folder, index = tmp_path / "proxy", tmp_path / "index"
    database = folder / "warcprox.sqlite"  # with the statistics, by default
    bodies = {page.body for page in PAGES.values()}
    with site() as base, warcprox(folder, *options) as port:
        crawl(port, base, [*PAGES, *COPIES])
        until(lambda: count(database) == len(bodies), None, folder / "log")
        items = check_source(lambda: open_source(str(database)))  # while it runs
        typed("index", database, index)
        fetch(port, base + "/data", **meta(news="rw"))
        until(lambda: count(database) == len(bodies) + 1, None, folder / "log")
        typed("index", "--replace", database, index)
    found = [one for one in items if isinstance(one, Capture)]
    assert len(items) == len(found) == len(bodies)
    stored = [one for one in records(warcs(folder / "warcs")) if one.type == "response"]
    written = {(one.url, one.date, one.record_id, one.digest) for one in stored}
    for one in found:
        digest, url = one.digest.spelled(one.spelling), one.url.decode()
        assert (url, one.date.decode(), f"<{one.record_id.decode()}>", digest) in written
        assert one.evidence == Evidence.NAMED
        shown, _ = typed("lookup", index, "--digest", digest, "--url", url, "--json")
        original = json.loads(shown)["original"]  # /data: of this second, the one of either bucket
        named = original["url"], original["date"], f"<{original['record_id']}>", original["digest"]
        assert named in written and original["url"] == url


def test_an_exported_database_makes_revisits(tmp_path: Path) -> None:
    """Its own, and those of what it stores itself, in the same table."""
    index, database = tmp_path / "index", tmp_path / "exported.sqlite"
    first, second = tmp_path / "first", tmp_path / "second"
    with site() as base:
        with warcprox(first) as port:
            crawl(port, base, ["/", "/logo.png"])
        typed("index", "--all", *warcs(first / "warcs"), index)
        typed("export", "--warcprox", index, "--out", database)
        assert count(database) == 2
        with warcprox(second, "--dedup-db-file", str(database)) as port:
            crawl(port, base, ["/", "/copy/logo.png", "/catalogue.pdf", "/copy/catalogue.pdf"])
            until(lambda: count(database) == 3, None, second / "log")
        found = {one.url.removeprefix(base): one for one in records(warcs(second / "warcs"))}
        kinds = {path: one.type for path, one in found.items()}
    assert kinds["/"] == kinds["/copy/logo.png"] == "revisit"
    assert kinds["/catalogue.pdf"] == "response"
    originals = {one.record_id: one for one in records(warcs(first / "warcs"))}
    for path in ("/", "/copy/logo.png"):
        one = found[path]
        original = originals[one.refers_to]
        assert (one.refers_to_url, one.refers_to_date) == (original.url, original.date)
        assert one.digest == original.digest
