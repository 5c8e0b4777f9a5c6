"""What ``bin/dedup`` says of a result that is not what its reader would expect."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dedupindex.post_crawl import dedup_page
from dedupindex.post_crawl.dedup_report import DedupReport
from dedupindex.post_crawl.rewrite.undo_directory import DIRECTORY
from dedupindex.post_crawl.undo import Undo, restore
from tests.support.commands import ended, typed
from tests.support.rewriting import content
from tests.unit.post_crawl.test_index_originals import two_crawls, write

BODIES = [Random(number).randbytes(1500) for number in range(3)]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Two files of the same three payloads."""
    return two_crawls(tmp_path / "archive", BODIES)


@pytest.fixture
def linked(archive: Path) -> Path:
    """A directory outside of the archive to which a link in it leads."""
    outside = archive.with_name("outside")
    write(outside / "crawl5.warc.gz", 5, BODIES)
    (archive / "ext").symlink_to("../outside")
    return outside


def test_swapped_arguments_are_named_first(archive: Path, tmp_path: Path) -> None:
    """Nothing says that the originals, which stand where results would, are to be removed."""
    out, before = tmp_path / "out", content(archive)
    typed("dedup", archive, "--out", out)
    for _ in range(2):
        printed, said = typed("dedup", "--out", archive, out, status=7)
        first = f"warning: {archive} has files with the names of SOURCE and other content, and no "
        assert said.count("swapped?") == 1 and "remove all" not in said
        assert said.index(first) < said.index("exists already, with other content, and the folder")
        assert "earlier run wrote" not in printed
    (archive / "crawl3.warc.gz").write_bytes((archive / "crawl2.warc.gz").read_bytes() * 2)
    before = content(archive)
    _, said = typed("undedup", out, "--out", archive, status=7)
    assert "name another --out (are the arguments swapped?)" in said and "remove" not in said
    kept = content(archive)
    assert {name: kept[name] for name in before} == before


def test_the_damage_of_a_file_that_is_there_already_is_not_copied(
    archive: Path, tmp_path: Path
) -> None:
    out, back, damaged = tmp_path / "out", tmp_path / "back", archive / "damaged.warc.gz"
    data = bytearray((archive / "crawl2.warc.gz").read_bytes())
    data[-5] ^= 1
    damaged.write_bytes(data)
    _, said = typed("dedup", archive, "--out", out, status=7)
    assert "has a wrong checksum and was not read" in said and "left out" not in said
    assert (out / damaged.name).read_bytes() == data
    assert "was copied with its damage" in typed("undedup", out, "--out", back, status=7)[1]
    _, said = typed("undedup", out, "--out", back, status=7)
    assert f"{damaged.name} is there already with its damage" in said and "copied" not in said


def test_a_run_to_a_directory_is_not_undone_in_place(archive: Path, tmp_path: Path) -> None:
    typed("dedup", archive, "--out", tmp_path / "out")
    _, said = typed("rewrite", tmp_path / "out.dedup/plan", "--undo")
    assert "to undo it, delete its results and working files" in said


def test_revisits_of_originals_in_zstd_are_counted(archive: Path, tmp_path: Path) -> None:
    (archive / "crawl2.warc.gz").rename(tmp_path / "first.warc.gz")
    typed("convert", "--to", "zstd", tmp_path / "first.warc.gz", "--out", archive)
    out, page = tmp_path / "out", tmp_path / "page.html"
    words = ("dedup", archive, "--out", out)
    would = "3 revisits in files that are not zstd would refer to originals in .zst files"
    said = typed(*words, "--dry-run")[1]
    named = f"cannot read: {archive / 'first.warc.zst'}. To avoid that, "
    assert f"warning: {would}, which many replay tools (pywb, warcio) {named}convert" in said
    said = typed(*words, "--html", page)[1]
    assert would.replace("would refer", "refer") in said and "undo" not in said
    assert f"{named}delete the results and the working files, convert these files" in said
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


def test_a_file_that_is_named_opens_no_directory_to_links(archive: Path, linked: Path) -> None:
    write(linked / "crawl6.warc.gz", 6, BODIES)
    before = content(linked)
    words = ("dedup", archive, linked / "crawl6.warc.gz", "--in-place", "--work", f"{archive}.work")
    said = typed(*words, status=7)[1]
    assert f"warning: {archive}/ext/crawl5.warc.gz: a link leads to it, out of the" in said
    assert content(linked)["crawl5.warc.gz"] == before["crawl5.warc.gz"]
    (archive / "ext").unlink()
    typed(*words)
    after = content(linked)
    assert [name for name in before if after[name] != before[name]] == ["crawl6.warc.gz"]


def test_a_directory_whose_name_is_not_utf8_needs_working_files_elsewhere(
    archive: Path, tmp_path: Path
) -> None:
    odd = tmp_path / os.fsdecode(b"odd\xff")
    archive.rename(odd)
    said = typed("dedup", odd, "--in-place", status=4)[1]
    assert "odd\\xff: this name is not UTF-8" in said and "--work DIR" in said
    assert ".dedup" not in said
    typed("dedup", odd, "--in-place", "--work", tmp_path / "work")
    assert (odd / DIRECTORY).is_dir()


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


def test_a_directory_that_was_not_copied_has_no_known_size(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, scandir = archive / "closed", os.scandir
    closed.mkdir()

    def refuse(path: Any = ".") -> Any:
        if str(path) == str(closed):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    words = ("dedup", archive, "--out", tmp_path / "out", "--html", tmp_path / "page.html")
    out, _ = typed(*words, status=7)
    directory = "1 directory of unknown size, which cannot be listed"
    assert f"NOT COPIED, so keep the source: {directory}\n" in out
    assert "it will name what cannot be read (unreadable), with the status 7" in out
    assert directory in (tmp_path / "page.html").read_text()
    (archive / "crawl3.warc.gz").rename(archive / "crawl3.warc.gz.open")
    words = ("dedup", archive, "--out", tmp_path / "other")
    out, _ = typed(*words, status=7)
    size = (archive / "crawl3.warc.gz.open").stat().st_size / 1000
    assert f"so keep the source: 1 file, {size:.1f} kB, {directory}\n" in out
    assert json.loads(typed(*words, "--json", status=7)[0])["not_listed"] == [str(closed)]


def test_the_command_that_verifies_is_said_to_name_what_was_not_copied(
    archive: Path, tmp_path: Path
) -> None:
    (archive / "crawl3.warc.gz").rename(archive / "crawl3.warc.gz.open")
    out, _ = typed("dedup", archive, "--out", tmp_path / "out", status=7)
    assert "\n  it will name 1 file not copied (file-missing), with the status 8\n" in out
    command = re.search(r"^verify: \S+(.*)", out, re.MULTILINE)
    assert command is not None
    status, listed, _ = ended("verify", *command[1].split())
    assert status == 8 and listed.count("file-missing") == 1
    (archive / "crawl3.warc.gz.open").rename(archive / "crawl3.warc.gz")
    assert "it will name" not in typed("dedup", archive, "--out", tmp_path / "all")[0]


def test_a_page_of_a_run_in_place_says_first_what_is_on_disk(archive: Path, tmp_path: Path) -> None:
    (archive / "gone.warc.gz").symlink_to("nowhere")
    page = tmp_path / "page.html"
    for more, first in (("--dry-run", "Until it is committed,"), ("--jobs=1", "Today")):
        typed("dedup", archive, "--in-place", "--html", page, more, status=7)
        html = page.read_text()
        headline = html.index(f"{first} the files and what is kept to undo the run")
        assert headline < html.index("more than before") < html.index("The files alone")
        assert "in the result" not in html and "gone.warc.gz" in html
        assert "named above" not in html
    assert html.index("On disk now") < html.index("Saved in files")
    report = DedupReport(dry_run=False, bytes_before=9, bytes_after=9)
    assert "On disk" not in "".join(dedup_page.lines(report, ["x"]))


def test_the_next_step_is_one_short_line(archive: Path) -> None:
    out, _ = typed("dedup", archive, "--in-place", "--html", archive.with_name("page.html"))
    page = "docs/post-crawl.md#originals-outside-of-the-sources"
    line = f"next: an index that has these files is outdated: bin/index --replace {archive} INDEX"
    assert out.splitlines()[-1].endswith(f"{page})")
    assert line.partition(": bin")[0] in out.splitlines()[-1]
    assert len(out.splitlines()[-1].replace(str(archive), "")) < 200


def test_an_undo_says_what_an_earlier_one_has_restored(archive: Path) -> None:
    """As one that was killed."""
    for number in (4, 5):
        write(archive / f"crawl{number}.warc.gz", number, BODIES)
    typed("dedup", archive, "--in-place")
    undo = ("rewrite", archive.with_name("archive.dedup") / "plan", "--undo")
    assert restore(Undo(archive, "crawl4.warc.gz", None)).state == "exact"
    said = "1 file was restored before (same size, another file), as by an undo that was killed"
    assert said in typed(*undo)[1].splitlines()
    typed("dedup", archive, "--in-place")
    assert "restored before" not in typed(*undo)[1]


def test_records_that_are_rebuilt_and_not_proven_are_not_called_a_part(
    archive: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    typed("dedup", archive, "--out", out)
    for journal in (out / DIRECTORY).glob("*.jsonl"):
        journal.unlink()
    text, _ = typed("undedup", out, "--out", tmp_path / "again", status=7)
    assert "1 rebuilt, not proven to be as before, " in text and "in part" not in text
    words = ("undedup", out, "--out", tmp_path / "json", "--json")
    report = json.loads(typed(*words, status=7)[0])
    assert report["partial"] == report["unproven"] == 1 and report["records_unproven"] == 3
    (out / "crawl2.warc.gz").unlink()
    text, _ = ended("undedup", out, "--out", tmp_path / "third")[1:]
    assert "not proven to be as before" not in text
