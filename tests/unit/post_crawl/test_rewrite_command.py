"""``bin/rewrite`` and ``bin/undedup`` as they are typed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from dedupindex.cli import main
from dedupindex.cli.rewrite import restore_file
from dedupindex.errors import SettingsConflict
from dedupindex.post_crawl.rewrite.journal import Journal
from dedupindex.post_crawl.undo import Restored, Undo
from dedupindex.post_crawl.work_directory import check_finished, working
from dedupindex.warc.random_access import ExactRecord
from tests.support.paths import ROOT
from tests.support.rewriting import FakePlan, content, records_of, small_set

Run = Callable[..., tuple[int, dict[str, object]]]


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "in"
    small_set(path)
    plan = FakePlan(path)
    monkeypatch.setattr("dedupindex.cli.rewrite.open_plan", lambda _: plan)
    return path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def typed(*words: object) -> tuple[int, dict[str, object]]:
        status = main([*map(str, words), "--json"])
        return status, json.loads(capsys.readouterr().out or "{}")

    return typed


def test_to_a_directory_and_back(source: Path, tmp_path: Path, run: Run) -> None:
    out, back, moved = tmp_path / "out", tmp_path / "back", tmp_path / "moved.tsv"
    dry = run("rewrite", "plan", "--out", out, "--dry-run")
    assert not out.exists()
    done = run("rewrite", "plan", "--out", out, "--offsets", moved)
    assert done[0] == dry[0] == 0
    assert {**done[1], "dry_run": True} == dry[1]
    assert done[1]["revisits"] == 19 and done[1]["left_alone"] == 0
    check_map(moved, source, out)
    assert run("undedup", out, "--out", back) == (
        0,
        {
            "files": 3,
            "archives": 3,
            "records": 19,
            "exact": 1,
            "rebuilt": 1,
            "partial": 0,
            "copied": 1,
            "existing": 0,
            "unproven": 0,
            "left_alone": 0,
            "damaged": 0,
            "defective": 0,
            "records_existing": 0,
            "records_unproven": 0,
            "records_not_restored": 0,
            "findings": [],
            "problems": [],
            "dry_run": False,
        },  # fmt: skip
    )
    for name in content(source):
        assert records_of(back / name) == records_of(source / name)
    status, report = run("verify", "--against", source, back, "--records")
    assert (status, report["findings"]) == (0, {})


def test_undedup_restores_all_that_a_scan_meets(tmp_path: Path, run: Run) -> None:
    """Files behind links to folders, which stay, and hidden ones that were named themselves."""
    small_set(tmp_path / "far")
    small_set(tmp_path / "in")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "far")
    (tmp_path / "in" / "c.warc").rename(tmp_path / "in" / ".c.warc")
    before, far = content(tmp_path / "in"), content(tmp_path / "far")
    words = "--in-place", "--work", tmp_path / "work", "--jobs", "1"
    assert run("dedup", tmp_path / "in", tmp_path / "in" / ".c.warc", *words)[0] == 7
    assert content(tmp_path / "in") != before and content(tmp_path / "far") == far
    assert run("undedup", tmp_path / "in", "--out", tmp_path / "back")[0] == 0
    linked = {f"link/{name}": data for name, data in far.items()}
    assert content(tmp_path / "back") == {**before, **linked}


def test_undedup_of_files_of_one_name_is_refused(tmp_path: Path, run: Run) -> None:
    """Side by side, one would take the place of the other."""
    for name in ("one", "two"):
        small_set(tmp_path / name)
        assert run("dedup", tmp_path / name, "--out", tmp_path / f"{name}-out")[0] == 0
    folders = tmp_path / "one-out", tmp_path / "two-out"
    assert run("undedup", *folders, "--out", tmp_path / "back")[0] == 4
    assert content(tmp_path / "back") == {}


def test_undedup_names_damage_in_copied_files(
    source: Path, tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    out, back = tmp_path / "out", tmp_path / "back"
    run("rewrite", "plan", "--out", out)
    data = bytearray((out / "a.warc.gz").read_bytes())
    data[len(data) // 2] ^= 1
    (out / "a.warc.gz").write_bytes(data)
    (out / "notes.txt").write_text("no archive")
    assert main(["undedup", str(out), "--out", str(back)]) == 7
    output = capsys.readouterr()
    assert "a.warc.gz was copied with its damage: damaged-member at " in output.err
    assert f"bin/verify --against BEFORE {back} --records" in output.out
    assert "what bin/dedup did not copy is named as file-missing" in output.out
    assert (back / "a.warc.gz").read_bytes() == data


def check_map(moved: Path, source: Path, out: Path) -> None:
    """The map has every byte of the old files once; unchanged records are at the stated places."""
    old = content(source)
    ends = dict.fromkeys(old, 0)
    for line in moved.read_text().splitlines()[1:]:
        name, *numbers = line.split("\t")
        offset, count, new_offset, new_count = map(int, numbers)
        assert offset == ends[name]
        ends[name] = offset + count
        new = (out / name).read_bytes()[new_offset : new_offset + new_count]
        if count == new_count:
            assert new == old[name][offset : offset + count]
        else:
            with open(out / name, "rb", buffering=0) as file:
                assert ExactRecord(file, new_offset, new_count).head.type == b"revisit"
    assert all(end in (0, len(old[name])) for name, end in ends.items())
    assert sum(ends.values()) == len(old["c.warc"]) + len(old["deep/b.warc.gz"])


def test_a_cdxj_of_the_results(
    source: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dedupindex.runtime.external_sort._IN_MEMORY", 7)
    out, index = tmp_path / "out", tmp_path / "index.cdxj"
    run("rewrite", "plan", "--out", out, "--cdxj", index)
    lines = index.read_bytes().splitlines()
    assert lines == sorted(lines) and len(lines) == 26
    kinds = {}
    for line in lines:
        key, digits, text = line.split(b" ", 2)
        said = json.loads(text)
        with open(out / said["filename"], "rb", buffering=0) as file:
            head = ExactRecord(file, int(said["offset"]), int(said["length"])).head
        assert head.fields[b"WARC-Target-URI"] == said["url"].encode()
        assert b"sha1:" + said["digest"].encode() == head.fields[b"WARC-Payload-Digest"]
        assert key.startswith(b"com,example)/") and len(digits) == 14
        kinds.setdefault((head.type, said["mime"], said.get("status")), []).append(line)
    assert {kind: len(found) for kind, found in kinds.items()} == {
        (b"response", "text/html", "200"): 7,
        (b"revisit", "warc/revisit", None): 19,
    }


def test_in_place_undo_and_commit(
    source: Path, tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(source)
    assert main(["rewrite", "plan", "--undo"]) == 0
    assert "nothing was rewritten" in capsys.readouterr().err
    for undo in (("rewrite", "plan", "--undo"), ("undedup", source, "--in-place")):
        assert run("rewrite", "plan", "--in-place")[1]["revisits"] == 19
        assert content(source) != before
        status, report = run(*undo)
        assert (status, report["exact"], report["records"]) == (0, 2, 19)
        assert content(source) == before
    run("rewrite", "plan", "--in-place")
    after = content(source)
    status, report = run("rewrite", "plan", "--commit")
    assert status == 0 and report["files"] == 2 and content(source) == after
    for undo in (("rewrite", "plan", "--undo"), ("undedup", source, "--in-place")):
        status, report = run(*undo)
        assert (status, report["files"], report["left_alone"]) == (7, 2, 2) and content(
            source
        ) == after


def interrupt_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt an undo after its first file."""
    restored = list[str]()

    def restore(_: None, task: Undo) -> Restored:
        if restored:
            raise KeyboardInterrupt
        restored.append(task.name)
        return restore_file(None, task)

    monkeypatch.setattr("dedupindex.cli.rewrite.restore_file", restore)


@pytest.mark.parametrize("undo", ["rewrite", "undedup"])
def test_an_interrupted_undo_is_not_committed(
    source: Path, run: Run, undo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(source)
    words = (
        ("rewrite", "plan", "--undo") if undo == "rewrite" else ("undedup", source, "--in-place")
    )
    assert run("rewrite", "plan", "--in-place")[0] == 0
    with pytest.MonkeyPatch.context() as patch:
        interrupt_second(patch)
        assert run(*words, "--jobs", "1")[0] == 130
    half = content(source)
    capsys.readouterr()
    assert main(["rewrite", "plan", "--commit"]) == 5
    said = capsys.readouterr().err
    assert f"an undo in {source} was interrupted: some files are restored" in said
    assert "finish it first with bin/rewrite plan --undo, or, if" in said
    assert f"delete {source}/.rewrite/undoing and repeat this" in said
    assert content(source) == half
    status, done = run(*words)
    assert (status, done["exact"], done["left_alone"]) == (0, 1, 0)
    assert content(source) == before
    assert not (source / ".rewrite" / "undoing").exists()


@pytest.mark.parametrize("how", ["deleted", "rewritten"])
def test_what_an_interrupted_undo_has_left_is_committed_if_it_is_to_stay(
    source: Path, run: Run, how: str
) -> None:
    assert run("rewrite", "plan", "--in-place")[0] == 0
    after = content(source)
    with pytest.MonkeyPatch.context() as patch:
        interrupt_second(patch)
        assert run("rewrite", "plan", "--undo", "--jobs", "1")[0] == 130
    if how == "deleted":
        (source / ".rewrite" / "undoing").unlink()
    else:
        assert run("rewrite", "plan", "--in-place")[0] == 0
        assert content(source) == after
    status, done = run("rewrite", "plan", "--commit")
    assert (status, done["files"]) == (0, 1 if how == "deleted" else 2)


@pytest.mark.parametrize("committed", [False, True])
def test_undo_checks_the_free_space_before_it_writes(
    source: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    """In place the largest files that are made at once need it, in a folder all of them."""
    before = content(source)
    assert run("rewrite", "plan", "--in-place")[0] == 0
    if committed:
        assert run("rewrite", "plan", "--commit")[0] == 0
    sizes = {name: len(data) for name, data in before.items() if name != "a.warc.gz"}
    commands = [(sum(map(len, before.values())), ("undedup", source, "--out", tmp_path / "x"))]
    if not committed:
        for jobs, needed in ((1, max(sizes.values())), (2, sum(sizes.values()))):
            for words in (("rewrite", "plan", "--undo"), ("undedup", source, "--in-place")):
                commands.append((needed, (*words, "--jobs", jobs)))
    for needed, words in commands:
        after = content(tmp_path)
        monkeypatch.setattr(
            "dedupindex.runtime.atomic_replace.free_space", lambda _, free=needed - 1: free
        )
        assert run(*words) == (3, {})
        assert content(tmp_path) == after
        monkeypatch.setattr(
            "dedupindex.runtime.atomic_replace.free_space", lambda _, free=needed: free
        )
        assert run(*words)[0] == 0
        if words[0] == "rewrite" or "--in-place" in words:
            assert content(source) == before
            monkeypatch.setattr("dedupindex.runtime.atomic_replace.free_space", lambda _: 1 << 40)
            assert run("rewrite", "plan", "--in-place")[0] == 0


def test_a_full_disk_has_the_remedy_of_the_command(
    source: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Undoing cannot be told to do fewer files; --jobs helps only where files are replaced."""
    assert run("rewrite", "plan", "--in-place")[0] == 0
    monkeypatch.setattr("dedupindex.runtime.atomic_replace.free_space", lambda _: 1)
    out = ("--out", tmp_path / "x")
    for words, remedy in (
        (("undedup", source, *out), "an --out on another disk"),
        (("undedup", source, "--in-place"), "give --jobs 1, which needs less"),
        (
            ("convert", "--to", "zstd", source, *out),
            "name fewer files in each of several runs, or ",
        ),
        (("dedup", source, *out), "name fewer SOURCEs in each of several runs, or an --out on "),
    ):
        capsys.readouterr()
        assert main([*map(str, words)]) == 3
        assert f"no archive was written: make room, or {remedy}" in capsys.readouterr().err


def test_a_run_that_was_interrupted_can_be_undone_by_the_command_that_is_named(
    tmp_path: Path,
) -> None:
    with working(tmp_path / "my work", [str(tmp_path)]) as work:
        work.begin({}, [])
    named = re.escape(f"or restore the files with bin/rewrite '{work.plan}' --undo")
    with pytest.raises(SettingsConflict, match=named):
        check_finished(work.plan, [])


def test_a_commit_does_not_say_that_a_changed_file_can_be_undone(
    source: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("rewrite", "plan", "--in-place")[0] == 0
    with open(source / "c.warc", "ab") as file:
        file.write(b"\r\n")
    assert main(["rewrite", "plan", "--commit"]) == 7
    said = capsys.readouterr().err
    assert "can still be undone" not in said
    assert "c.warc keeps its removed records: it is neither the file before the run nor" in said


def test_totals_are_those_of_the_plan_and_of_the_files_that_are_there(
    source: Path, tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    lost = (source / "c.warc").stat().st_size
    (source / "c.warc").unlink()
    status, dry = run("rewrite", "plan", "--out", out, "--dry-run")
    status, done = run("rewrite", "plan", "--out", out)
    assert status == 7 and {**dry, "dry_run": False} == done
    assert done["records"] == 19 and done["revisits"] == 12
    assert done["refused"] == {"file-left-alone": 7}
    assert done["bytes_after"] == sum(map(len, content(out).values()))
    assert done["bytes_before"] == sum(map(len, content(source).values()))
    assert done["not_copied"] == [
        {"file": str(source / "c.warc"), "bytes": lost, "existing_bytes": 0}
    ]
    assert main(["rewrite", "plan", "--out", str(out)]) == 7
    said = capsys.readouterr().out
    assert "2 files" not in said and "of 19 records in the plan 12 became revisits" in said
    assert "NOT COPIED, so keep the source: 1 file, " in said
    assert f"  not copied: {source / 'c.warc'}\n" in said


def test_a_resumed_undo_needs_no_space_for_restored_files(
    source: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(source)
    assert run("rewrite", "plan", "--in-place")[0] == 0
    for name, data in before.items():
        (source / name).write_bytes(data)
    monkeypatch.setattr("dedupindex.runtime.atomic_replace.free_space", lambda _: 0)
    status, done = run("rewrite", "plan", "--undo")
    assert (status, done["existing"]) == (0, 2)


def test_files_that_were_restored_before_are_compared(
    source: Path, tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    out, back = tmp_path / "out", tmp_path / "back"
    assert run("rewrite", "plan", "--out", out)[0] == 0
    (out / "README.txt").write_text("about these files")
    words = ("undedup", out, "--out", back)
    assert main([*map(str, words)]) == 0
    assert (
        "4 files, 1 of them not named as archives: 19 records restored" in capsys.readouterr().out
    )
    whole = content(back)
    first, second, *_ = sorted(whole)
    (back / first).unlink()  # as if the run had been killed before
    status, done = run(*words)
    assert (status, done["existing"], done["files"], done["archives"]) == (0, 3, 4, 3)
    assert content(back) == whole
    changed = bytearray(whole[second])
    changed[50:54] = b"\0\0\0\0"
    (back / second).write_bytes(changed)
    capsys.readouterr()
    status, done = run(*words)
    assert (status, done["existing"], done["left_alone"]) == (7, 3, 1)
    assert (back / second).read_bytes() == changed and not list(back.rglob("*.part"))


def test_a_relative_directory_is_restored_bit_for_bit(
    source: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = content(source)
    assert run("rewrite", "plan", "--in-place")[0] == 0
    status, done = run("undedup", source.name, "--out", "exact")
    assert (status, done["exact"]) == (0, 2)
    assert content(tmp_path / "exact") == before


def test_files_not_rewritten_are_named(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "c.warc").write_bytes(b"something else")
    assert main(["rewrite", "plan", "--out", str(out)]) == 7
    output = capsys.readouterr().err
    assert "c.warc was left alone" in output and "exists already, with other content" in output
    assert (out / "c.warc").read_bytes() == b"something else"


@pytest.mark.parametrize("words", [[], ["--out", "x", "--in-place"], ["--undo", "--commit"]])
def test_one_thing_at_a_time(source: Path, words: list[str]) -> None:
    assert main(["rewrite", "plan", *words]) == 2


@pytest.mark.parametrize("word", ["--undo", "--commit"])
def test_a_dry_run_without_copies_writes_nothing(source: Path, run: Run, word: str) -> None:
    run("rewrite", "plan", "--in-place")
    before = content(source)
    assert main(["rewrite", "plan", word, "--dry-run"]) == 2
    assert content(source) == before and run("rewrite", "plan", "--undo")[1]["records"] == 19


def test_results_in_a_source_directory_are_refused(source: Path) -> None:
    assert main(["rewrite", "plan", "--out", str(source / "out")]) == 4
    assert not (source / "out").exists()


def test_a_directory_without_a_journal_cannot_be_undone(tmp_path: Path) -> None:
    assert main(["undedup", str(tmp_path), "--in-place"]) == 4


def test_undedup_names_the_expected_directory(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, back = tmp_path / "out", tmp_path / "back"
    assert main(["rewrite", "plan", "--out", str(out)]) == 0
    first = next(path for path in sorted(out.iterdir()) if path.is_file())
    for given, said in ((first, f"{out} has: "), (tmp_path / "none", "does not exist")):
        assert main(["undedup", str(given), "--out", str(back)]) == 4
        assert said in capsys.readouterr().err
    assert main(["undedup", str(first), "--in-place"]) == 4
    assert f"{out} has: " in capsys.readouterr().err
    for inside in (out, out / "back"):
        assert main(["undedup", str(out), "--out", str(inside)]) == 4
    assert not back.exists() and not (out / "back").exists()


def test_every_reason_to_keep_a_copy_is_documented() -> None:
    code = {
        "bad-date",
        "bad-digest",
        "no-end-of-headers",
        "no-url",
        "original-left-alone",
        "original-elsewhere",
    }
    for path in (ROOT / "dedupindex" / "post_crawl" / "rewrite").glob("*.py"):
        for call in re.findall(r"NotRewritable\(([^)]*)\)", path.read_text()):
            code.update(re.findall(r'"([a-z-]+[a-z])"', call))
    text = (ROOT / "docs" / "stages.md").read_text()
    section = text.partition("## Rewrite\n")[2].partition("\n## ")[0]
    assert code == set(re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE))


def two_plans(source: Path) -> tuple[FakePlan, FakePlan]:
    """Plans of different files of one folder."""
    return FakePlan(source, ["a.warc.gz", "deep/b.warc.gz"]), FakePlan(source, ["c.warc"])


def test_undo_and_commit_change_the_files_of_their_plan_only(
    source: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(source)
    plans = dict(zip(("one", "two"), two_plans(source), strict=True))
    monkeypatch.setattr("dedupindex.cli.rewrite.open_plan", lambda path: plans[path.name])
    for plan in plans:
        assert run("rewrite", plan, "--in-place")[0] == 0
    status, report = run("rewrite", "two", "--commit")
    assert (status, report["files"]) == (0, 1)
    status, report = run("rewrite", "one", "--undo")
    assert (status, report["exact"], report["left_alone"]) == (0, 1, 0)
    assert content(source)["deep/b.warc.gz"] == before["deep/b.warc.gz"]
    assert content(source)["c.warc"] != before["c.warc"]


def test_a_bad_file_or_journal_does_not_stop_others(source: Path, run: Run) -> None:
    before = content(source)
    run("rewrite", "plan", "--in-place")
    after = (source / "c.warc").read_bytes()
    (source / "c.warc").write_bytes(after[:5000])
    status, report = run("rewrite", "plan", "--undo", "--jobs", "1")
    assert (status, report["exact"], report["left_alone"]) == (7, 1, 1)
    assert content(source)["deep/b.warc.gz"] == before["deep/b.warc.gz"]
    (source / "c.warc").write_bytes(after)
    lines = Journal(source, "c.warc").lines
    whole = lines.read_bytes()
    for keep in (-30, 3):  # without its end, and without even a name
        lines.write_bytes(whole[:keep])
        assert run("rewrite", "plan", "--commit")[0] == 7
        for command in (("rewrite", "plan", "--undo"), ("undedup", source, "--in-place")):
            status, report = run(*command)
            assert (status, report["files"], report["left_alone"]) == (7, 1, 1)
    lines.write_bytes(whole)
    assert run("rewrite", "plan", "--undo")[0] == 0 and content(source) == before


def test_the_totals_of_undoing_add_up(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also after an undo that was killed when it had replaced a file and kept its journal."""
    before = content(source)
    assert main(["rewrite", "p", "--in-place"]) == 0
    (source / "c.warc").write_bytes(before["c.warc"])
    capsys.readouterr()
    assert main(["rewrite", "p", "--undo"]) == 0
    assert capsys.readouterr().out == (
        "2 files: 12 records restored; 1 file bit for bit, 0 record for record, "
        "0 copied as they are, 1 there already with 7 records, 0 left alone\n"
        f"next: an index that has these files is outdated: bin/index --replace {source} INDEX\n"
    )
    assert content(source) == before


def test_an_undo_of_a_part_says_that_an_index_is_outdated(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the directory from the root on, and says nothing if no file was restored."""
    assert main(["rewrite", "p", "--in-place"]) == 0
    monkeypatch.chdir(source.parent)
    after = content(source)
    for name in ("c.warc", "deep/b.warc.gz"):
        (source / name).write_bytes(b"another file")
    capsys.readouterr()
    assert main(["undedup", source.name, "--in-place"]) == 7
    assert "next:" not in capsys.readouterr().out
    (source / "c.warc").write_bytes(after["c.warc"])
    assert main(["undedup", source.name, "--in-place"]) == 7
    said = capsys.readouterr().out
    assert "1 left alone\n" in said
    assert "next: an index that has these files is outdated: " in said
    assert said.endswith(f"bin/index --replace {source} INDEX\n")


def test_a_directory_without_journals_is_not_the_one_that_is_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["undedup", str(tmp_path), "--out", str(tmp_path / "back")]) == 4
    assert "name the directory that bin/dedup wrote" in capsys.readouterr().err
