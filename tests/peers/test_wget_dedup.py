"""A real wget with the CDX of ``bin/export`` writes duplicates as revisits."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import need
from tests.peers.replay import Record, check_references, records, replay
from tests.peers.site import COPIES, PAGES, bodies, site
from tests.unit.cli.test_cli import dedupindex

pytestmark = pytest.mark.peer


def harvest(folder: Path, name: str, urls: list[str], *options: str) -> list[Record]:
    """What wget writes of some URLs."""
    need("wget", found=shutil.which("wget") is not None)
    seeds = folder / f"{name}.txt"
    seeds.write_text("\n".join(urls) + "\n")
    subprocess.run(
        [
            *("wget", "--quiet", "--output-document=/dev/null", "--no-warc-keep-log"),
            *(f"--warc-file={name}", f"--input-file={seeds}", *options),
        ],
        check=True,
        cwd=folder,
    )
    return records([folder / f"{name}.warc.gz"])


def test_the_second_harvest_has_revisits(tmp_path: Path) -> None:
    with site() as base:
        both = [base + path for path in (*PAGES, *COPIES)]
        first = harvest(tmp_path, "one", both)
        assert {record.type for record in first} == {"response"} and len(first) == len(both)
        index, cdx = tmp_path / "index", tmp_path / "dedup.cdx"
        dedupindex("index", "-w", "-m", ".*", tmp_path / "one.warc.gz", index)
        # Two bodies have two URLs each: the crawl of the copies, and of what is no copy.
        for paths in (COPIES, PAGES):
            name = "copies" if paths is COPIES else "pages"
            seeds = [base + path for path in paths]
            (tmp_path / "seeds").write_text("\n".join(seeds))
            dedupindex("export", "--wget", index, "--out", cdx, "--seeds", tmp_path / "seeds")
            second = harvest(tmp_path, name, seeds, f"--warc-dedup={cdx}")
            assert [record.type for record in second] == ["revisit"] * len(seeds)
            assert check_references([*first, *second], by_id_only=True) == len(seeds)
            same = {record.record_id: record.url for record in first}
            assert [same[record.refers_to] for record in second] == seeds
        # Without seeds one of the two URLs is taken, and wget stores the other in full.
        dedupindex("export", "--wget", index, "--out", cdx)
        third = harvest(tmp_path, "all", both, f"--warc-dedup={cdx}")
        assert [record.type for record in third].count("revisit") == len(PAGES)


def test_originals_of_revisits_equal_the_served_pages(tmp_path: Path) -> None:
    """wget names its originals by record id alone, which pywb does not follow.

    A reader gets the same bytes nevertheless: of the original, which has the same URL.
    """
    with site() as base:
        urls = [base + path for path in PAGES]
        first = harvest(tmp_path, "one", urls)
        dedupindex("index", "-w", "-m", ".*", tmp_path / "one.warc.gz", tmp_path / "index")
        dedupindex("export", "--wget", tmp_path / "index", "--out", tmp_path / "dedup.cdx")
        second = harvest(tmp_path, "two", urls, f"--warc-dedup={tmp_path / 'dedup.cdx'}")
    stored = {one.record_id: one for one in first}
    served = bodies(base)
    with replay([tmp_path / "one.warc.gz", tmp_path / "two.warc.gz"], tmp_path) as archive:
        for revisit in second:
            original = stored[revisit.refers_to]
            assert (revisit.type, original.url) == ("revisit", revisit.url)
            for date in (original.date, revisit.date):
                answer = archive.get(revisit.url, date)
                assert answer == (200, served[revisit.url], original.date)
    assert len(second) == len(urls)


def test_changed_pages_are_stored(tmp_path: Path) -> None:
    with site() as base:
        harvest(tmp_path, "one", [base + "/"])
        port = base.rpartition(":")[2]
    dedupindex("index", "-w", "-m", ".*", tmp_path / "one.warc.gz", tmp_path / "index")
    cdx = tmp_path / "dedup.cdx"
    dedupindex("export", "--wget", tmp_path / "index", "--out", cdx)
    with site({"/": PAGES["/data"]}, int(port)) as base:
        (again,) = harvest(tmp_path, "two", [base + "/"], f"--warc-dedup={cdx}")
    assert again.type == "response"
