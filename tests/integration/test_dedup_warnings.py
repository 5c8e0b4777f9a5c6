"""What ``bin/dedup`` says of a result that is not what its reader would expect."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from tests.support.commands import typed
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
