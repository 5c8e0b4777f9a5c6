"""What ``bin/dedup`` says of a result that is not what its reader would expect."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from dedupindex.post_crawl.rewrite.undo_directory import DIRECTORY
from tests.support.commands import typed
from tests.support.rewriting import content
from tests.unit.post_crawl.test_index_originals import write

BODIES = [Random(number).randbytes(1500) for number in range(3)]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Two files of the same three payloads."""
    for day in (2, 3):
        write(tmp_path / f"archive/crawl{day}.warc.gz", day, BODIES)
    return tmp_path / "archive"


@pytest.fixture
def linked(archive: Path) -> Path:
    """A directory outside of the archive to which a link in it leads."""
    outside = archive.with_name("outside")
    write(outside / "crawl5.warc.gz", 5, BODIES)
    (archive / "ext").symlink_to("../outside")
    return outside


def test_revisits_of_originals_in_zstd_are_counted(archive: Path, tmp_path: Path) -> None:
    (archive / "crawl2.warc.gz").rename(tmp_path / "first.warc.gz")
    typed("convert", "--to", "zstd", tmp_path / "first.warc.gz", "--out", archive)
    out, page = tmp_path / "out", tmp_path / "page.html"
    words = ("dedup", archive, "--out", out)
    would = "3 revisits in files that are not zstd would refer to originals in .zst files"
    said = typed(*words, "--dry-run")[1]
    assert f"warning: {would}, which many replay tools (pywb, warcio) cannot read: convert" in said
    said = typed(*words, "--html", page)[1]
    assert would.replace("would refer", "refer") in said and "undo this, and convert" in said
    assert "revisits in files that are not zstd" in page.read_text()
    again = ("rewrite", tmp_path / "out.dedup/plan", "--out", tmp_path / "again")
    assert would.replace("would refer", "refer") in typed(*again)[1]
    for command in (words, again):  # an existing result, too
        assert json.loads(typed(*command, "--json")[0])["originals_in_zstd"] == 3
    typed("convert", "--to", "gzip", archive, "--out", tmp_path / "gzip")
    (tmp_path / "gzip/crawl3.warc.gz").write_bytes((archive / "crawl3.warc.gz").read_bytes())
    out, said = typed("dedup", tmp_path / "gzip", "--out", tmp_path / "last", "--json")
    assert json.loads(out)["originals_in_zstd"] == 0 < json.loads(out)["revisits"]
    assert "zstd" not in said


def test_a_run_in_place_does_not_leave_the_sources_by_a_link(archive: Path, linked: Path) -> None:
    before, words = content(linked), ("dedup", archive, "--in-place")
    for more in ("--dry-run", "--json"):
        out, said = typed(*words, more, status=7)
        assert f"warning: {archive}/ext/crawl5.warc.gz: a link leads to it, out of the" in said
        assert f"rewrite {linked} in a run of its own" in said
    report = json.loads(out)
    assert report["revisits"] == 3 and report["refused"] == {"file-left-alone": 3}
    assert content(linked) == before
    write(linked / "crawl6.warc.gz", 6, BODIES)
    before = content(linked)
    assert json.loads(typed("dedup", linked, "--in-place", "--json")[0])["revisits"] == 3
    typed("undedup", archive, "--in-place")  # in any order: no file is in both
    typed("undedup", linked, "--in-place")
    assert content(linked) == before


def test_a_source_may_be_a_link_itself(archive: Path, linked: Path) -> None:
    (link := archive.with_name("link")).symlink_to(archive)
    (archive / "ext").unlink()
    assert json.loads(typed("dedup", link, "--in-place", "--json")[0])["revisits"] == 3
    assert (archive / DIRECTORY).is_dir()


def test_results_of_linked_files_are_copies_as_before(
    archive: Path, linked: Path, tmp_path: Path
) -> None:
    report = json.loads(typed("dedup", archive, "--out", tmp_path / "out", "--json")[0])
    assert report["revisits"] == 6 and (tmp_path / "out/ext/crawl5.warc.gz").is_file()
