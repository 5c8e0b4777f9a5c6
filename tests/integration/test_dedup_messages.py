"""What ``bin/dedup``, ``bin/rewrite`` and ``bin/undedup`` say to a new user."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
from html import unescape
from pathlib import Path
from random import Random

import pytest

from dedupindex.cli.dedup import _text_of
from dedupindex.errors import BadInput, DedupError, SettingsConflict
from dedupindex.post_crawl import dedup_page
from dedupindex.post_crawl.dedup_report import DedupReport
from dedupindex.post_crawl.rewrite.undo_directory import DIRECTORY
from dedupindex.post_crawl.work_directory import working
from dedupindex.runtime import html_page
from dedupindex.runtime.tables import amount, singular
from dedupindex.sources.warc_files import find
from tests.support.commands import ended, typed
from tests.support.paths import ROOT
from tests.support.rewriting import content
from tests.unit.post_crawl.test_index_originals import two_crawls, write

BODIES = [Random(number).randbytes(1500) for number in range(3)]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Two files of the same three payloads."""
    return two_crawls(tmp_path / "archive", BODIES)


def test_a_result_whose_name_is_not_utf_8_is_refused_first(archive: Path, tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"caf\xe9")
    for words in (("manifest", archive, "-o", odd), ("dedup", archive, "--out", odd)):
        assert "caf\\xe9" in (said := typed(*words, status=4)[1]), said
        assert "parquet" not in said
    assert [*tmp_path.iterdir()] == [archive]


def test_results_of_hard_links_are_files_of_their_own(archive: Path) -> None:
    first = archive / "crawl2.warc.gz"
    (archive / "again.warc.gz").hardlink_to(first)
    said = typed("dedup", archive, "--out", archive.with_name("out"))[1]
    assert "warning: sources that are links to others of them: 1 file. Their results are" in said
    assert f"count {amount(first.stat().st_size)} that are not on disk" in said


@pytest.mark.parametrize("dry", [False, True])
def test_a_report_compares_results_of_links_with_what_was_on_disk(
    archive: Path, tmp_path: Path, dry: bool
) -> None:
    (archive / "crawl3.warc.gz").unlink()
    size = (archive / "crawl2.warc.gz").stat().st_size
    for name in ("hard", "soft"):
        (archive / f"{name}.warc.gz").hardlink_to(archive / "crawl2.warc.gz")
    (archive / "soft.warc.gz").unlink()
    (archive / "soft.warc.gz").symlink_to("crawl2.warc.gz")
    page = tmp_path / "page.html"
    words = ("dedup", archive, "--out", tmp_path / "out", "--html", page, "--work", tmp_path / "w")
    options = ["--dry-run"] if dry else []
    found = json.loads(typed(*words, *options, "--json")[0])
    assert (found["linked_files"], found["linked_bytes"]) == (2, 2 * size)
    more = found["bytes_after"] - size
    assert more > 0 and found["bytes_saved_net"] == -more - found["journal_bytes_added"]
    assert found["bytes_saved"] == 3 * size - found["bytes_after"]
    html = page.read_text()
    takes = f"the results {'would take' if dry else 'take'} {amount(more)} more than before"
    assert takes in html and " larger: " in html and " smaller: " not in html
    assert f"-{amount(more)}" in html and f"{amount(size)} on disk before, " in html
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    assert f"On disk all took {amount(size)} before; {takes}\n" in typed(*words, *options)[0]


def test_a_page_says_why_its_hosts_save_more_than_all(archive: Path, tmp_path: Path) -> None:
    (archive / "hard.warc.gz").hardlink_to(archive / "crawl3.warc.gz")
    page = tmp_path / "page.html"
    words = ("dedup", archive, "--out", tmp_path / "out", "--html", page, "--json")
    found = json.loads(typed(*words)[0])
    total, linked = sum(host["bytes_saved"] for host in found["hosts"]), found["linked_bytes"]
    assert total == found["bytes_saved"] > 0 < linked
    said = f"The hosts add up to {amount(total)}: with {amount(linked)} of links, which took no"
    assert said in page.read_text()
    (archive / "hard.warc.gz").unlink()
    typed("dedup", archive, "--out", tmp_path / "other", "--html", page)
    assert "The hosts add up" not in page.read_text()


def test_a_page_of_a_run_that_found_nothing_new_says_so(archive: Path, tmp_path: Path) -> None:
    words = ("dedup", archive, "--in-place", "--html", page := tmp_path / "page.html")
    typed(*words)
    html = page.read_text()
    assert "Every revisit that this run made was verified." in html
    assert "without a duplicate" in html and "stored in full" not in html
    out, _ = typed(*words)
    assert "3 captures: 3 without a duplicate that is stored in full, 0 originals" in out
    html = page.read_text()
    assert "3 records were revisits before this run, and no other capture became one." in html
    assert "without a duplicate that is stored in full" in html
    assert "This run made no revisit." in html and "was verified" not in html
    assert "Verified" not in html


def test_results_of_an_earlier_run_are_not_called_missing(archive: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "out", tmp_path / "page.html"
    typed("dedup", archive, "--out", out)
    write(archive / "crawl1.warc.gz", 1, BODIES)
    (archive / "crawl4.warc.gz.open").write_bytes((archive / "crawl1.warc.gz").read_bytes())
    typed("dedup", archive, "--out", out, "--html", page, status=7)
    said, _ = typed("dedup", archive, "--out", out, "--html", page, status=7)
    size = sum(path.stat().st_size for path in out.glob("crawl[23].warc.gz"))
    kept = f"kept as they are, with other content: 2 files, {amount(size)}; verify them (below)\n"
    assert kept in said and f"kept: {archive}/crawl2.warc.gz" in said
    assert "NOT COPIED, so keep the source: 1 file, " in said
    assert "it will name 1 file not copied (file-missing), with the status 8" in said
    html = page.read_text()
    assert "Kept as they are, with other content: 2 files" in html and "of an earlier run" in html
    (archive / "crawl4.warc.gz.open").unlink()
    said, _ = typed("dedup", archive, "--out", out, status=7)
    assert kept in said and "NOT COPIED" not in said and "it will name" not in said
    typed("verify", "--against", archive, out)


def test_a_directory_that_cannot_be_written_to_is_named_before_anything_is_written(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a user who is not root; files without copies may be in such a directory."""
    below, other = archive / "below", archive / "other"
    write(below / "x.warc.gz", 4, BODIES)
    write(other / "y.warc.gz", 5, [b"once"])
    closed, access = {other}, os.access
    monkeypatch.setattr(os, "access", lambda path, how: path not in closed and access(path, how))
    before = content(archive)
    words, named = ("dedup", archive, "--in-place"), f"{below} cannot be written to, and {below}/x."
    assert "cannot be written to" not in typed(*words, "--dry-run")[1]
    closed.add(below)
    assert f"warning: {named}" in typed(*words, "--dry-run")[1]
    assert named in typed(*words, status=3)[1] and content(archive) == before
    closed.remove(below)
    typed(*words)


def test_an_undo_of_a_part_names_the_directory_that_has_the_journals(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed("dedup", archive.parent, "--in-place")
    monkeypatch.chdir(archive.parent)
    typed("manifest", archive, "-o", "part")
    typed("resolve", "part", "-o", "part-plan")
    said = typed("rewrite", "part-plan", "--undo", status=BadInput.exit_status)[1]
    assert f"{archive} has no journal; {archive.parent} has: " in said
    assert f"bin/undedup {archive.parent} restores all that is below that" in said


def test_an_undo_of_a_directory_that_was_moved_is_an_error(archive: Path) -> None:
    typed("dedup", archive, "--in-place")
    plan = archive.with_name("archive.dedup") / "plan"
    moved = archive.rename(archive.with_name("moved"))
    said = typed("rewrite", plan, "--undo", status=BadInput.exit_status)[1]
    assert f"{archive}, whose files the plan rewrites, does not exist" in said
    assert "bin/undedup NEWDIR --in-place" in said
    said = typed("rewrite", plan, "--commit", status=BadInput.exit_status)[1]
    assert f"{archive}, " in said and "--root" in said
    out, _ = typed("undedup", moved, "--in-place", "--json")
    assert json.loads(out)["exact"] == 1
    moved.rename(archive)
    assert "there is nothing to undo" in typed("rewrite", plan, "--undo")[1]


def test_an_undo_restores_the_sets_below_as_well(archive: Path) -> None:
    """Also where only the set below is left to undo."""
    below = archive / "c"
    bodies = [Random(number).randbytes(1500) for number in range(5, 9)]
    write(archive / "a.warc.gz", 4, bodies[:2])
    for day, found in ((5, bodies), (6, bodies[2:])):
        write(below / f"{day}.warc.gz", day, found)
    before = content(archive)
    typed("dedup", archive, "--in-place")
    typed("rewrite", archive.with_name("archive.dedup") / "plan", "--undo")
    write(below / "7.warc.gz", 7, bodies[3:])
    before |= content(archive)
    typed("dedup", below, "--in-place", "--work", archive.with_name("w"))
    typed("dedup", archive, "--in-place")
    assert content(archive).keys() == before.keys() and content(archive) != before
    out, said = typed("undedup", archive, "--in-place")
    assert content(archive) == before and said == "", said
    assert "4 files: 8 records restored; 4 files bit for bit" in out
    typed("dedup", below, "--in-place", "--work", archive.with_name("w"))
    out, said = typed("undedup", archive, "--in-place")
    assert content(archive) == before and said == "" and "3 records restored" in out
    assert "there is nothing to undo" in typed("undedup", archive, "--in-place")[1]


def test_working_files_below_an_archive_are_no_part_of_it(archive: Path) -> None:
    for day in (5, 6):
        write(archive / f"c/{day}.warc.gz", day, BODIES)
    typed("dedup", archive / "c", "--in-place")
    assert (archive / "c.dedup/plan").exists()
    report = json.loads(typed("dedup", archive, "--in-place", "--json")[0])
    assert report["skipped"] == 0 and report["problems"] == []
    typed("undedup", archive, "--out", archive.with_name("back"))
    assert content(archive.with_name("back")).keys() == {
        "c/5.warc.gz", "c/6.warc.gz", "crawl2.warc.gz", "crawl3.warc.gz",
    }  # fmt: skip


def test_results_are_restored_through_a_link_to_them(archive: Path, tmp_path: Path) -> None:
    """A revisit that the source had is that of an earlier run, and no journal of it is missing."""
    before, smaller = tmp_path / "before", tmp_path / "smaller"
    typed("dedup", archive, "--out", before)
    shutil.rmtree(before / DIRECTORY)  # the source of the next run
    write(before / "crawl3b.warc.gz", 4, BODIES[:1])
    revisits = before / "crawl3.warc.gz"
    revisits.write_bytes(revisits.read_bytes() + (before / "crawl3b.warc.gz").read_bytes())
    (before / "crawl3b.warc.gz").unlink()
    typed("dedup", before, "--out", smaller)
    (tmp_path / "link").symlink_to(smaller)
    for result in (smaller, tmp_path / "link"):
        again = tmp_path / f"again-{result.name}"
        out, said = typed("undedup", result, "--out", again)
        assert "1 record restored" in out.replace("records", "record") and "missing" not in said
        typed("verify", "--against", before, again, "--records")


def test_a_directory_of_working_files_is_read_if_it_is_named(tmp_path: Path) -> None:
    working = tmp_path / "archive/x.dedup"
    write(working / "y.warc.gz", 2, BODIES)
    (working / "dedup.json").touch()
    archive = str(tmp_path / "archive")
    assert not find([archive]).files
    for named in ([archive, str(working)], [str(working), archive]):
        assert [file.name for file in find(named).files] == ["y.warc.gz"]


def test_an_out_that_cannot_be_a_directory_is_named(archive: Path) -> None:
    file = archive.with_name("file")
    file.write_bytes(b"")
    for out in (file, file / "below"):
        said = typed("dedup", archive, "--out", out, "--dry-run", status=4)[1]
        assert f"--out {out} cannot be a directory: {file} is a file" in said
    said = typed("dedup", archive, "--out", "/proc/none", "--dry-run", status=4)[1]
    assert "/proc/none.dedup, the directory of working files beside --out" in said


def test_a_result_of_out_is_not_called_one_without_its_records(archive: Path) -> None:
    out = archive.with_name("out")
    typed("dedup", archive, "--out", out)
    said = typed("undedup", out, "--in-place", status=7)[1]
    assert "it was written with --out, so its source has them" in said and "gone" not in said
    back = archive.with_name("back")
    assert "3 records restored" in typed("undedup", out, "--out", back)[0]
    again = typed("undedup", out, "--out", back)[0]
    assert "2 files: 0 records restored" in again and "2 there already with 3 records" in again


def test_a_file_that_only_has_the_name_of_an_archive_is_copied_and_not_skipped(
    archive: Path, tmp_path: Path
) -> None:
    (archive / "c.warc.xz").write_bytes(b"no archive")
    (archive / "notes.txt").write_bytes(b"neither")
    page = tmp_path / "page.html"
    out, said = typed("dedup", archive, "--out", tmp_path / "out", "--html", page, status=7)
    assert (tmp_path / "out/c.warc.xz").read_bytes() == b"no archive"
    skipped = f"not copied: 1\n  {archive / 'notes.txt'}\n"
    assert out.startswith("3 files of 6 records\n") and skipped in out
    assert f"not copied: 1 ({archive / 'notes.txt'})" in page.read_text()
    assert said.count("c.warc.xz") == 1
    found = json.loads(typed("dedup", archive, "--out", tmp_path / "out", "--json", status=7)[0])
    assert found["skipped"] == 1 and found["skipped_files"] == [str(archive / "notes.txt")]
    assert [one["file"] for one in found["problems"]] == [str(archive / "c.warc.xz")]
    assert found["not_copied"] == []


def test_copies_of_whole_files_are_named(archive: Path, tmp_path: Path) -> None:
    backup, first = archive / "z-backup.warc.gz", archive / "crawl2.warc.gz"
    backup.write_bytes(first.read_bytes())
    for name in ("empty", "void"):
        (archive / f"{name}.warc.gz").touch()
    page = tmp_path / "page.html"
    dry = typed("dedup", archive, "--out", tmp_path / "out", "--dry-run", "--json", status=7)[0]
    out, _ = typed("dedup", archive, "--out", tmp_path / "out", "--html", page, status=7)
    size = amount(backup.stat().st_size)
    text = (
        f"1 file is a copy of another ({size} before): what both have is stored twice, "
        "and revisits of it name no record id; run without the copies if you can"
    )
    assert f"{text}\n  {backup} equals {first}\n" in out
    assert f"{text} ({backup} equals {first})." in unescape(page.read_text())
    assert "same-record: it has the record id of its original, as in a copy of a file" in out
    done = json.loads(typed("dedup", archive, "--out", tmp_path / "out", "--json", status=7)[0])
    assert done["equal_files"] == [{"file": str(backup), "equals": str(first)}]
    assert (done["file_copies"], done["file_copies_bytes"]) == (1, backup.stat().st_size)
    assert json.loads(dry)["equal_files"] == done["equal_files"]


def test_links_are_no_copies(archive: Path, tmp_path: Path) -> None:
    (archive / "linked.warc.gz").hardlink_to(archive / "crawl2.warc.gz")
    found = json.loads(typed("dedup", archive, "--out", tmp_path / "out", "--json")[0])
    assert found["file_copies"] == 0 and found["equal_files"] == []


def test_a_copy_of_what_is_rewritten_is_named_too(archive: Path, tmp_path: Path) -> None:
    """Its captures become revisits like those of the other: of originals in a third file."""
    backup, last = archive / "z-backup.warc.gz", archive / "crawl3.warc.gz"
    backup.write_bytes(last.read_bytes())
    found = json.loads(typed("dedup", archive, "--in-place", "--json")[0])
    assert found["revisits"] == 6 and found["file_copies"] == 1
    assert found["equal_files"] == [{"file": str(backup), "equals": str(last)}]


def verify_commands(*sources: object, out: Path) -> list[list[str]]:
    """Return the commands that a run of these sources prints, each of which passes."""
    lines = typed("dedup", *sources, "--out", out)[0].splitlines()
    commands = [line.split(": ", 1)[1] for line in lines if line.startswith("verify: ")]
    found = [shlex.split(command) for command in commands]
    assert all(words[:2] == ["bin/verify", "--against"] for words in found)
    for _, *words in found:
        typed("verify", *words)
    return found


def test_each_directory_has_a_command_that_verifies_its_files(tmp_path: Path) -> None:
    for day, name in ((2, "a"), (3, "b")):
        write(tmp_path / name / f"{name}.warc.gz", day, BODIES)
    out = tmp_path / "out"
    commands = verify_commands(tmp_path / "a", tmp_path / "b", out=out)
    assert len(commands) == 2
    revisits = out / "b/b.warc.gz" if (out / "b").exists() else out / "b.warc.gz"
    revisits.unlink()
    status = [ended("verify", *words)[0] for _, *words in commands]
    assert sorted(status) == [0, 8]


def test_sources_of_any_form_have_commands_that_verify_them(tmp_path: Path) -> None:
    """Twice the same, one in another, and files: each with what it became."""
    for day, name in ((2, "2023/a"), (3, "2025/b"), (4, "2025/c d")):
        write(tmp_path / f"arch/{name}.warc.gz", day, BODIES)
    arch = tmp_path / "arch"
    inner, one, two = arch / "2025", arch / "2023/a.warc.gz", arch / "2025/c d.warc.gz"

    def against(out: Path, *sources: object) -> list[str]:
        found = verify_commands(*sources, out=out)
        for *_, result in [words[:4] for words in found]:
            assert Path(result) == out or out in Path(result).parents
        return [words[2] for words in found]

    assert against(tmp_path / "1", arch, f"{arch}/") == [str(arch)]
    assert against(tmp_path / "2", arch, inner) == [str(arch)]
    assert against(tmp_path / "3", inner, arch) == [str(inner), str(one)]
    assert against(tmp_path / "4", one) == [str(one)]
    assert against(tmp_path / "5", two, one, inner) == [str(two), str(one), str(inner)]
    assert against(tmp_path / "6", f"{arch}/202[35]", arch) == [f"{arch}/202[35]", str(arch)]
    (tmp_path / "3" / "2023/a.warc.gz").unlink()
    words = ("verify", "--against", one, tmp_path / "3/2023/a.warc.gz")
    typed(*words, "--originals", tmp_path / "3", status=4)


def test_the_first_of_many_commands_are_printed(tmp_path: Path) -> None:
    files = [tmp_path / f"{day}.warc.gz" for day in range(1, 8)]
    for day, file in enumerate(files, 1):
        write(file, day, BODIES[:1])
    said = typed("dedup", *files, "--out", tmp_path / "out")[0]
    assert said.count("\nverify: ") == 5
    assert "\nand 2 more such commands, for the other files\n" in said


def test_working_files_of_a_dry_run_with_other_sources_are_replaced(
    archive: Path, tmp_path: Path
) -> None:
    other = write(tmp_path / "other/x.warc.gz", 4, BODIES).parent
    typed("dedup", other, "--out", archive, "--dry-run")  # meant the other way round
    assert (tmp_path / "archive.dedup/plan").exists()
    out, said = typed("dedup", archive, "--in-place", "--json")
    assert json.loads(out)["revisits"] == 3 and said == ""
    said = typed("dedup", other, "--out", archive, "--dry-run", status=5)[1]
    assert "has the working files of a run with other sources" in said and str(archive) in said
    assert "by which bin/rewrite --undo restores" in said and "or delete" not in said
    typed("rewrite", tmp_path / "archive.dedup/plan", "--undo")
    typed("dedup", archive, "--out", tmp_path / "out")
    said = typed("dedup", other, "--out", tmp_path / "out", status=5)[1]
    assert "its manifest and plan. Name those sources" in said and "in place" not in said
    work = tmp_path / "out.dedup"
    assert said.endswith(f"--work, or delete {work}, which nothing needs any more\n")
    shutil.rmtree(work)
    typed("dedup", other, "--out", tmp_path / "out")


def test_the_same_sources_may_be_written_with_a_slash(tmp_path: Path) -> None:
    with working(tmp_path / "w", ["s3://b/warcs", str(tmp_path)]) as work:
        work.begin({}, [])
        work.end()
    with working(tmp_path / "w", [f"{tmp_path}/", "s3://b/warcs/"]):
        pass
    with pytest.raises(SettingsConflict), working(tmp_path / "w", ["s3://b/other"]):
        pass


def test_a_dry_run_warns_if_the_real_one_would_find_no_space(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    needed = sum(path.stat().st_size for path in archive.iterdir())
    for free in (needed, needed - 1):
        monkeypatch.setattr("dedupindex.runtime.atomic_replace.free_space", lambda _, n=free: n)
        said = typed("dedup", archive, "--out", out, "--dry-run")[1]
        assert ("the real run would write no archive" in said) == (free < needed)
    assert "no archive was written" in typed("dedup", archive, "--out", out, status=3)[1]
    assert not out.exists()


def test_the_report_names_where_journals_of_a_store_are(tmp_path: Path) -> None:
    report = DedupReport(False, revisits=1, journal=9, state=tmp_path / "state")
    page = "".join(dedup_page.lines(report, ["s3://b/warcs"]))
    assert f"in {tmp_path}/state/.rewrite/; " in page
    assert any(f"in {tmp_path}/state/.rewrite/, to undo it" in line for line in text_of(report))
    report.state = None
    assert any(line.startswith("in .rewrite/, to undo it") for line in text_of(report))


def text_of(report: DedupReport) -> list[str]:
    return list(_text_of(report, []))


def test_verifying_takes_globs_and_says_what_may_be_meant(archive: Path, tmp_path: Path) -> None:
    """A result of a glob, places that were swapped, and a file that was compressed otherwise."""
    write(archive / "other/one.arc.warc.gz", 4, BODIES[:1])
    out, pattern = tmp_path / "out", f"{archive}/**/crawl*.warc.gz"
    said = typed("dedup", pattern, "--out", out)[0]
    assert f"bin/verify --against '{pattern}' {out}\n" in said
    said = typed("verify", "--against", pattern, out)[1]
    assert "2 files" in said and "held is there" in said
    wrong = f"{archive}/*.arc"
    assert f"nothing matches {wrong}" in typed("verify", "--against", wrong, out, status=4)[1]
    assert "file-missing" in typed("verify", "--against", archive, out, status=8)[0]
    said = typed("verify", "--against", out, archive, status=8)[1]
    assert f"3 revisits of {out} are whole records in PLACE: name the source with" in said
    (out / "crawl2.warc.gz").rename(out / "crawl2.warc")
    found = typed("verify", "--against", pattern, out, status=8)[0]
    assert "files are compared by name, and crawl2.warc is there" in found


def test_verifying_says_why_an_unfinished_file_is_missing(archive: Path, tmp_path: Path) -> None:
    (archive / "new.warc.gz.open").write_bytes((archive / "crawl2.warc.gz").read_bytes())
    typed("dedup", archive, "--out", tmp_path / "out", status=7)
    page = tmp_path / "page.html"
    words = ("verify", "--against", archive, tmp_path / "out", "--html", page)
    line = typed(*words, status=8)[0]
    assert "file-missing" in line and "bin/dedup leaves out what is still being written" in line
    assert "Findings by level, without remarks" in page.read_text()
    out, _ = typed("undedup", tmp_path / "out", "--out", tmp_path / "again")
    assert "1 record for record, 1 copied as they are, " in out.replace("1 file", "1")


@pytest.mark.parametrize("change", ["none", "replaced", "grown"])
def test_journals_of_an_earlier_run_with_out_are_passed_over(archive: Path, change: str) -> None:
    """A run in place that changes only a file that was added since has only that to undo."""
    result, back, work = (archive.with_name(name) for name in ("result", "back", "work"))
    typed("dedup", archive, "--out", result)
    if change == "replaced":  # by its source
        (result / "crawl3.warc.gz").write_bytes((archive / "crawl3.warc.gz").read_bytes())
    write(result / "crawl4.warc.gz", 4, [*BODIES, *BODIES])
    before = content(result)
    typed("dedup", result, "--in-place", "--work", work)
    changed = {name for name, data in content(result).items() if data != before[name]}
    assert "crawl4.warc.gz" in changed
    if change == "grown":
        before["crawl3.warc.gz"] += (archive / "crawl2.warc.gz").read_bytes()
        (result / "crawl3.warc.gz").write_bytes(before["crawl3.warc.gz"])
    out, said = typed("rewrite", work / "plan", "--undo")
    assert said == "" and singular(f"; {len(changed)} files bit for bit, ") in out
    assert "0 left alone" in out and content(result) == before
    out, said = typed("rewrite", work / "plan", "--undo")
    assert f"there is nothing to undo of this plan below {result}" in said and "0 left alone" in out
    if change == "grown":
        return
    typed("dedup", result, "--in-place", "--work", work)
    for files in (len(changed), 0):
        out, said = typed("rewrite", work / "plan", "--commit")
        assert ("there is nothing to commit" in said) == (not files)
        assert singular(f"discarded the removed records of {files:,} files") in out
    assert "3 files: 9 records restored; " in typed("undedup", result, "--out", back)[0]


def test_rewriting_elsewhere_names_what_proves_and_undoes_it(archive: Path, tmp_path: Path) -> None:
    typed("manifest", archive, "-o", tmp_path / "m")
    typed("resolve", tmp_path / "m", "-o", tmp_path / "p")
    out, _ = typed("rewrite", tmp_path / "p", "--out", tmp_path / "new")
    verify = re.search(r"to compare all once more: \S*bin/(verify --against \S+ \S+) \(", out)
    undo = re.search(r"restore the records: \S*bin/(undedup \S+ --out) OTHER\n", out)
    assert verify and undo
    typed(*verify[1].split())
    typed(*undo[1].split(), tmp_path / "old")
    typed("verify", "--against", archive, tmp_path / "old", "--records")
    out, _ = typed("rewrite", tmp_path / "p", "--out", tmp_path / "none", "--dry-run")
    assert "bin/verify" not in out and "bin/undedup" not in out


def test_what_can_be_undone_is_not_passed_over(archive: Path) -> None:
    """Of a file that the plan has rewritten, missing removed records are named."""
    typed("dedup", archive, "--in-place")
    plan = archive.with_name("archive.dedup") / "plan"
    (kept,) = (archive / DIRECTORY).glob("*.dropped")
    data = kept.read_bytes()
    kept.unlink()
    for option in ("--undo", "--commit"):
        assert "crawl3.warc.gz" in typed("rewrite", plan, option, status=7)[1]
    kept.write_bytes(data)
    assert "1 file: 3 records restored" in typed("rewrite", plan, "--undo")[0]


def test_a_page_that_cannot_be_written_is_refused_before_the_run(archive: Path) -> None:
    page = archive.with_name("x" * 250 + ".html")  # the file beside it has too long a name
    before, beside = content(archive), sorted(archive.parent.iterdir())
    corpus = archive.with_name("corpus.jsonl")
    for words in (
        ("dedup", archive, "--in-place"), ("verify", archive), ("corpus", archive, "-o", corpus),
    ):  # fmt: skip
        out, said = typed(*words, "--html", page, status=DedupError.exit_status)
        assert out == "" and said == f"dedupindex: {page}: File name too long\n"
    for option in ("--offsets", "--cdxj"):
        typed("dedup", archive, "--in-place", option, page, status=DedupError.exit_status)
    assert content(archive) == before and sorted(archive.parent.iterdir()) == beside


def test_two_outputs_are_two_files(archive: Path, tmp_path: Path) -> None:
    same = tmp_path / "out"
    words = ("dedup", archive, "--in-place", "--offsets", same, "--html", f"{tmp_path}/./out")
    before = content(archive)
    assert "two options name" in typed(*words, status=4)[1]
    assert content(archive) == before and not same.exists()


def test_a_report_is_printed_if_its_page_cannot_be_written(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, _: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(html_page, "save", full)
    page, result = tmp_path / "page.html", tmp_path / "corpus.jsonl"
    for words, expected in (
        (("dedup", archive, "--in-place"), "3 captures became revisits"),
        (("verify", archive), "2 files"),
        (("corpus", archive, "-o", result), "captures"),
    ):
        out, said = typed(*words, "--html", page, status=DedupError.exit_status)
        assert expected in out + said
        assert said.endswith(f"dedupindex: {page}: No space left on device\n")
    assert not page.exists()


def test_a_dry_run_of_undedup_copied_nothing(archive: Path, tmp_path: Path) -> None:
    write(archive / "one.warc.gz", 4, [Random(9).randbytes(1500)])
    typed("dedup", archive, "--out", tmp_path / "out")
    path = tmp_path / "out/one.warc.gz"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    out, said = typed(
        "undedup", tmp_path / "out", "--out", tmp_path / "back", "--dry-run", status=7
    )
    assert "one.warc.gz would be copied with its damage: " in said
    assert " 2 would be copied as they are, " in out and not (tmp_path / "back").exists()


def test_a_report_says_what_it_counts_as_damaged(archive: Path, tmp_path: Path) -> None:
    path = archive / "crawl2.warc.gz"
    data = bytearray(path.read_bytes() + b"no record")
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    out, said = typed("dedup", archive, "--out", tmp_path / "out", status=7)
    assert said.count(f"warning: {path} at ") == 2
    where = "places where a record cannot be read: 1 (1 in crawl2.warc.gz)"
    assert out.startswith(f"2 files of 5 records; {where}\n")
    found = json.loads(typed("dedup", archive, "--out", tmp_path / "out", "--json", status=7)[0])
    assert (found["damaged"], found["damaged_in"]) == (1, {"crawl2.warc.gz": 1})


def test_reports_say_what_is_not_among_the_files(archive: Path, tmp_path: Path) -> None:
    (archive / "gone.warc.gz").symlink_to("nothing")
    (archive / "open.warc.gz.open").write_bytes((archive / "crawl2.warc.gz").read_bytes())
    out, _ = typed("dedup", archive, "--out", tmp_path / "out", status=7)
    assert out.startswith("3 files of ") and "NOT COPIED, so keep the source: 2 files, " in out
    link = "1 of these cannot be opened, as a link that leads nowhere or a pipe, and is not among"
    assert f" ({link} the 3 files)\n" in out
    (archive / "gone.warc.gz").unlink()
    assert "read once" not in typed("verify", archive)[1]
    (archive / "linked.warc.gz").hardlink_to(archive / "crawl2.warc.gz")
    said = typed("verify", archive)[1]
    assert "\n1 name more of these files, as links: a file is read once\n" in said


def test_hints_work_in_the_directory_where_the_command_was_called(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a relative source, neither `bin/` of the checkout nor another directory would do."""
    archive.rename(tmp_path / "my old")
    before = content(tmp_path / "my old")
    monkeypatch.chdir(tmp_path)
    typed("index", "--all", "my old", "INDEX")
    out, _ = typed("dedup", "my old", "--in-place")
    scripts = shlex.quote(str(ROOT / "bin"))
    undo = next(line for line in out.splitlines() if line.startswith("undo: "))
    assert undo.startswith(f"undo: {scripts}/rewrite '{tmp_path}/my old.dedup/plan' --undo")
    renew = f"{scripts}/index --replace '{tmp_path}/my old' INDEX"
    assert f"{renew} ({ROOT}/docs/post-crawl.md#" in out and " bin/" not in out
    assert "files read: 2, " in typed(*shlex.split(renew.removeprefix(f"{scripts}/")))[0]
    typed(*shlex.split(undo.removeprefix(f"undo: {scripts}/")))
    assert content(tmp_path / "my old") == before
    said = typed("rewrite", "my old.dedup/none", "--undo", status=BadInput.exit_status)[1]
    assert " bin/" not in said
    monkeypatch.chdir(ROOT)
    assert f"undo: bin/rewrite '{tmp_path}" in typed("dedup", tmp_path / "my old", "--in-place")[0]


def test_what_a_moved_archive_has_undone_protects_nothing(archive: Path) -> None:
    """The archive may become as small again as it was before it was moved."""
    report = json.loads(typed("dedup", archive, "--in-place", "--json")[0])
    moved = archive.rename(archive.with_name("moved"))
    before = json.loads(typed("undedup", moved, "--in-place", "--json")[0])
    assert before["exact"] and not list((moved / DIRECTORY).glob("*.pins"))
    again = json.loads(typed("dedup", moved, "--in-place", "--json")[0])
    assert again["revisits"] == report["revisits"] > 0 and again["refused"] == report["refused"]
    out, _ = typed("undedup", moved, "--in-place")
    assert "next: an index that has these files is outdated: " in out


def test_results_of_what_was_rewritten_before_have_no_undo_data_of_that(archive: Path) -> None:
    out, again = archive.with_name("out"), archive.with_name("again")
    typed("dedup", archive, "--in-place")
    said = typed("dedup", archive, "--out", out)[1]
    assert f"warning: {archive} has the undo data of earlier runs ({archive}/.rewrite), " in said
    above = typed("dedup", archive.parent, "--out", archive.parent.with_name("above"))[1]
    assert f"warning: {archive} has the undo data of earlier runs" in above
    typed("undedup", archive, "--out", again)
    assert "undo data" not in typed("dedup", again, "--out", archive.with_name("last"))[1]


def test_undo_data_of_other_files_is_not_that_of_the_sources(archive: Path) -> None:
    """Here of results that were written above the sources."""
    typed("dedup", archive, "--out", archive.parent)
    assert (archive.parent / DIRECTORY).is_dir()
    assert "undo data" not in typed("dedup", archive, "--out", archive.parent / "other")[1]
    said = typed("dedup", archive.parent / "crawl3.warc.gz", "--out", archive.parent / "last")[1]
    assert f"warning: {archive.parent} has the undo data of earlier runs" in said
