"""``bin/dedup --in-place`` that was interrupted or refused: what the next run does."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from dedupindex.cli import main
from dedupindex.counts import ProgressUpdate
from dedupindex.post_crawl import dedup_all
from dedupindex.post_crawl.dedup_all import DedupOptions
from dedupindex.post_crawl.rewrite import rewrite_file
from dedupindex.post_crawl.rewrite.journal import Journal
from dedupindex.post_crawl.rewrite.undo_directory import DIRECTORY
from tests.integration import test_dedup
from tests.integration.test_dedup import Dedup
from tests.support.commands import typed
from tests.support.paths import ROOT
from tests.support.rewriting import content
from tests.unit.post_crawl.test_index_originals import write

source, dedup = test_dedup.source, test_dedup.dedup  # fixtures


def interrupted(source: Path, *words: object) -> None:
    """A run in place that was killed when it had rewritten the first of its containers."""

    def killed() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        put = rewrite_file.replace_file
        rewrite_file.replace_file = lambda *args: (put(*args), killed())  # type: ignore[assignment,func-returns-value]
        os._exit(main(["dedup", str(source), "--in-place", "--jobs", "1", *map(str, words)]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_an_interrupted_run_in_place_is_finished_with_its_own_options_only(
    source: Path, tmp_path: Path, dedup: Dedup, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = content(source)
    typed = ("--min-size", 1800, "--same-type", "--compare", "always")
    there = dedup(source, "--out", tmp_path / "out", *typed)
    interrupted(source, *typed)
    begun = content(source)
    assert begun != whole
    for words, told in (
        ((), ["started with --min-size 1800, this one has no --min-size",
              "--same-type is not given",
              "started with --compare always, this one has --compare strong-digest"]),
        ((*typed, "--any-status"), ["--any-status is given"]),
        ((*typed, "--min-gain", 9), ["started with --min-gain 1, this one has --min-gain 9"]),
        ((*typed, "--index", tmp_path / "none"), [f"this one has --index {tmp_path / 'none'}"]),
    ):  # fmt: skip
        capsys.readouterr()
        assert main(["dedup", str(source), "--in-place", *map(str, words)]) == 5
        err = capsys.readouterr().err
        assert all(text in err for text in (*told, "--restart")), err
        assert content(source) == begun
    work = ("--work", str(tmp_path / "in.dedup"))
    assert main(["dedup", str(source), *work, "--out", str(tmp_path / "other")]) == 5
    assert main(["dedup", str(source), *work, "--in-place", "--dry-run"]) == 5
    assert "with --in-place --restart, without --dry-run" in capsys.readouterr().err
    done = dedup(source, "--in-place", "--jobs", 1, "--memory", "500MB", *typed)
    test_dedup.check(done)  # with the file of which the interrupted run told nobody
    assert test_dedup.numbers(done) == test_dedup.numbers(there)
    assert content(source) == content(tmp_path / "out")
    assert dedup(source, "--in-place", status=7)[
        "problems"
    ]  # a run of its own, with its own options


@pytest.mark.parametrize("work", ["in.dedup", "elsewhere"])
def test_an_interrupted_run_in_place_is_not_committed(
    source: Path, tmp_path: Path, dedup: Dedup, capsys: pytest.CaptureFixture[str], work: str
) -> None:
    plan, there = tmp_path / work / "plan", ("--work", tmp_path / work)
    out = dedup(source, "--out", tmp_path / "out")
    interrupted(source, *there)
    begun, kept = content(source), sorted((source / ".rewrite").glob("*.dropped"))
    (tmp_path / "link").symlink_to(plan)
    for one in (plan, tmp_path / "link"):
        assert main(["rewrite", str(one), "--commit"]) == 5
        err = capsys.readouterr().err
        assert f"bin/dedup {source} --in-place --work {tmp_path / work}" in err, err
    assert content(source) == begun and sorted((source / ".rewrite").glob("*.dropped")) == kept
    if work == "in.dedup":  # another plan of the same files
        assert main(["rewrite", str(tmp_path / "out.dedup" / "plan"), "--commit"]) == 5
    done = dedup(source, "--in-place", *there)
    assert test_dedup.numbers(done) == test_dedup.numbers(out)
    assert main(["rewrite", str(plan), "--commit"]) == 0


def test_an_interrupted_run_in_place_is_finished_with_its_own_files_only(
    source: Path, tmp_path: Path, dedup: Dedup, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = content(source)
    interrupted(source)
    begun = content(source)
    write(source / "new.warc.gz", 7, [b"a new payload" * 99] * 2)
    (source / "single.warc.gz").rename(tmp_path / "away")
    assert main(["dedup", str(source), "--in-place"]) == 5
    err = capsys.readouterr().err
    assert f"files that it did not start with: {source / 'new.warc.gz'}" in err
    assert f"files of it that are gone: {source / 'single.warc.gz'}" in err
    (tmp_path / "away").rename(source / "single.warc.gz")
    assert set(content(source)) == {*begun, "new.warc.gz"}
    assert main(["dedup", str(source), "--in-place", "--restart", "--dry-run"]) == 2
    assert dedup(source, "--in-place", "--restart")["files"] == 5
    assert main(["undedup", str(source), "--in-place"]) == 0
    assert {name: data for name, data in content(source).items() if name in whole} == whole
    assert dedup(source, "--in-place")["files"] == 5


@pytest.mark.parametrize("work", ["in.dedup", "elsewhere"])
@pytest.mark.parametrize("how", ["rewrite", "undedup"])
def test_an_interrupted_run_that_was_undone_is_over(
    source: Path, tmp_path: Path, dedup: Dedup, work: str, how: str
) -> None:
    whole, plan, there = content(source), tmp_path / work / "plan", ("--work", tmp_path / work)
    interrupted(source, *there)
    if how == "undedup":
        typed("undedup", source, "--in-place")
        assert content(source) == whole
    if how == "rewrite" or work == "elsewhere":  # which undedup cannot know
        _, said = typed("dedup", source, "--in-place", "--dry-run", *there, status=5)
        assert f"or undo it with bin/rewrite {plan} --undo" in said
        _, said = typed("rewrite", plan, "--undo")
        assert f"({tmp_path / work}) is given up: all is as before it" in said
        assert content(source) == whole
    _, said = typed("rewrite", plan, "--commit")
    assert "there is nothing to commit" in said
    assert dedup(source, "--in-place", "--dry-run", *there)["revisits"] == 19
    assert dedup(source, "--in-place", "--min-size", 1, *there)["revisits"] == 19
    assert "nothing to commit" not in typed("rewrite", plan, "--commit")[1]


def test_what_restores_committed_files_is_said_once_and_can_be_typed(
    source: Path, tmp_path: Path
) -> None:
    before = content(source)
    typed("dedup", source, "--in-place")
    files = sorted(name for name, data in content(source).items() if data != before[name])
    plan = source.with_name(f"{source.name}.dedup") / "plan"
    typed("rewrite", plan, "--commit")
    remedy = f"bin/undedup {source} --out OTHER rebuilds them"
    for words in (("rewrite", plan, "--undo"), ("undedup", source, "--in-place")):
        _, said = typed(*words, status=7)
        assert said.count(remedy) == 1 < len(files)
        for name in files:
            assert said.count(name) == 1 + (name == files[0])  # with the others, which name it
        others = len(files) - 1
        many = "1 more file" if others == 1 else f"{others} more files"
        assert f"warning: the same is true of {many} as of {files[0]}: " in said
    typed("undedup", source, "--out", tmp_path / "other")
    typed("verify", "--against", tmp_path / "other", source)


def test_an_interrupted_run_that_was_undone_in_part_goes_on(
    source: Path, tmp_path: Path, dedup: Dedup
) -> None:
    interrupted(source)
    moved = tmp_path / "moved"
    moved.mkdir()
    typed("rewrite", tmp_path / "in.dedup/plan", "--root", f"{source}={moved}", "--undo")
    rewritten = next(path for path in sorted(source.rglob("*.warc*")) if journaled(source, path))
    rewritten.rename(tmp_path / "after")
    rewritten.write_bytes(b"another file")
    typed("rewrite", tmp_path / "in.dedup/plan", "--undo", status=7)
    (tmp_path / "after").replace(rewritten)
    typed("dedup", source, "--in-place", "--dry-run", status=5)
    assert dedup(source, "--in-place")["revisits"] == 19


def journaled(root: Path, path: Path) -> bool:
    return Journal(root, str(path.relative_to(root))).exists()


def test_the_records_of_rewriting_are_not_those_of_verifying(source: Path, tmp_path: Path) -> None:
    seen: list[ProgressUpdate] = []
    dedup_all.dedup([str(source)], DedupOptions(tmp_path / "out"), on_progress=seen.append)
    assert {update.records for update in seen if update.phase == "verifying"} == {0}


@pytest.mark.parametrize("in_place", [True, False])
def test_an_interruption_says_how_to_go_on(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], in_place: bool,
) -> None:  # fmt: skip
    def rewrite(job: object, jobs: int, begin: Callable[[], None], *_: object) -> None:
        begin()
        raise KeyboardInterrupt

    monkeypatch.setattr(dedup_all, "rewrite", rewrite)
    out = ["--in-place"] if in_place else ["--out", str(tmp_path / "out")]
    assert main(["dedup", str(source), *out]) == 130
    err = capsys.readouterr().err
    assert "the same command resumes" in err
    undo = f"bin/rewrite {tmp_path / 'in.dedup' / 'plan'} --undo restores them"
    assert (undo in err) == ("some files may be replaced already" in err) == in_place
    if in_place:
        assert main(["dedup", str(source), *out, "--restart"]) == 130
        assert "the same command without --restart resumes" in capsys.readouterr().err


FEW_BYTES = """
import os
real = os.statvfs
def statvfs(path):
    fields = list(real(path))
    fields[4] = 1  # blocks that are free
    return os.statvfs_result(fields)
os.statvfs = statvfs
"""


def test_a_run_that_is_refused_for_space_has_not_begun(source: Path, tmp_path: Path) -> None:
    """The shipped command, on a disk that reports no free space."""
    before = content(source)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "sitecustomize.py").write_text(FEW_BYTES)
    command = [str(ROOT / "bin" / "dedup"), str(source), "--in-place"]
    full = {**os.environ, "PYTHONPATH": str(tmp_path / "full")}
    found = subprocess.run([*command, "--min-size", "1800"], env=full, capture_output=True)
    assert found.returncode == 3 and b"no archive was written" in found.stderr
    out = [*command[:2], "--out", str(tmp_path / "out")]
    found = subprocess.run(out, env=full, capture_output=True)
    assert found.returncode == 3 and not (tmp_path / "out").exists()
    assert content(source) == before and not (source / ".rewrite").exists()
    write(source / "new.warc.gz", 7, [b"a new payload" * 99] * 2)
    done = subprocess.run([*command, "--json"], capture_output=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["files"] == 5
    assert b"resuming" not in done.stderr and "small" not in json.loads(done.stdout)["refused"]


def test_the_sources_are_not_the_directory_of_results(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(source)
    for out, told in (
        (source, "has the sources in it: name another directory (bin/dedup and bin/rewrite"),
        (source / "out", f"is in {source}, where the next scan would read it"),
    ):
        assert main(["dedup", str(source), "--out", str(out)]) == 4
        assert told in capsys.readouterr().err and content(source) == before


@pytest.mark.parametrize("more", [(), ("--dry-run", "--sample", "50%")])
def test_working_files_are_not_among_the_sources(
    source: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    words, before = ("dedup", source, "--out", tmp_path / "out", *more), content(source)
    for work in (source, source / "deep" / "work"):
        said = typed(*words, "--work", work, status=4)[1]
        assert f"--work {work} is in {source}, where the next scan would read it" in said
    assert content(source) == before and not (tmp_path / "out").exists()
    typed(*words, "--work", source / "deep" / "work.dedup")  # which scans pass over


def test_a_run_that_writes_nothing_leaves_nothing_to_undo(source: Path, tmp_path: Path) -> None:
    """As of a run with SOURCE and DIR swapped; but undo data of others stays."""
    smaller, before = tmp_path / "smaller", content(source)
    typed("dedup", source, "--out", smaller)
    typed("dedup", smaller, "--out", source, status=7)
    assert content(source) == before and not (source / DIRECTORY).exists()
    for how in (("--out", tmp_path / "again"), ("--dry-run",)):
        said = typed("undedup", source, *how, status=4)[1]
        assert f"{source} has no journal ({DIRECTORY})" in said
    typed("undedup", smaller, "--out", tmp_path / "again")


def test_results_without_revisits_are_restored_as_others(tmp_path: Path) -> None:
    write(tmp_path / "plain/x.warc.gz", 2, [b"one payload of its own" * 50])
    typed("dedup", tmp_path / "plain", "--out", tmp_path / "same")
    typed("undedup", tmp_path / "same", "--out", tmp_path / "again")
    assert content(tmp_path / "again") == content(tmp_path / "plain")


def test_stages_in_place_are_not_finished_with_other_options(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def typed(*words: object) -> int:
        capsys.readouterr()
        return main([*map(str, words)])

    before = content(source)
    manifest, plan, other = (tmp_path / name for name in ("manifest", "plan", "other"))
    assert typed("manifest", source, "-o", manifest) == 0
    assert typed("resolve", manifest, "-o", plan) == 0
    assert typed("resolve", manifest, "-o", other, "--same-type") == 0
    assert typed("rewrite", plan, "--in-place", "--min-size", 1800) == 0
    begun = content(source)
    for words, told in (
        ((plan,), "with --min-size 1800 --min-gain 1, not --min-size 0 --min-gain 1"),
        ((plan, "--dry-run"), "with --min-size 1800"),
        ((other, "--min-size", 1800), "by another plan"),
    ):
        assert typed("rewrite", *words, "--in-place") == 5
        assert told in capsys.readouterr().err and content(source) == begun
    assert typed("rewrite", plan, "--in-place", "--min-size", 1800) == 0
    assert content(source) == begun != before
    assert typed("rewrite", plan, "--undo") == 0
    assert typed("rewrite", other, "--in-place") == 0


def test_a_plan_that_is_refused_is_not_there(source: Path, tmp_path: Path) -> None:
    assert main(["manifest", str(source), "-o", str(tmp_path / "manifest")]) == 0
    words = ["resolve", str(tmp_path / "manifest"), "-o", str(tmp_path / "plan")]
    assert main([*words, "--index", str(tmp_path / "typo")]) == 6
    assert not (tmp_path / "plan").exists() and not (tmp_path / "typo").exists()
    assert main(words) == 0


@pytest.mark.parametrize("commit", [False, True])
def test_a_run_on_a_directory_below_does_not_hide_originals(
    tmp_path: Path, dedup: Dedup, *, commit: bool
) -> None:
    """It moves originals of an interrupted run, which are found where they are then."""
    source, below = tmp_path / "in", tmp_path / "in" / "2023"
    below.mkdir(parents=True)
    shared, own, *others = (Random(seed).randbytes(2000) for seed in range(9))
    write(below / "a.warc.gz", 1, [own, own, shared])
    write(source / "big.warc.gz", 20, [shared, *others])
    interrupted(source)
    size = (below / "a.warc.gz").stat().st_size
    dedup(below, "--in-place", "--work", tmp_path / "w2")
    assert (below / "a.warc.gz").stat().st_size < size
    if commit:
        assert main(["rewrite", str(tmp_path / "w2" / "plan"), "--commit"]) == 0
    done = dedup(source, "--in-place", status=7)
    assert done["verified"]["findings"] == {} and done["verified"]["files"] == 1
    assert done["bytes_after"] == sum(map(len, content(source).values()))


@pytest.mark.parametrize("lost", [False, True])
def test_an_original_that_another_program_has_moved_is_looked_for(
    tmp_path: Path, dedup: Dedup, *, lost: bool
) -> None:
    source = tmp_path / "in"
    shared, *others = (Random(seed).randbytes(2000) for seed in range(9))
    first = write(source / "a.warc.gz", 1, [shared, others[0]])
    write(source / "big.warc.gz", 20, [shared, *others])
    interrupted(source)
    members = first.read_bytes()
    second = members.index(gzip.compress(b"")[:3], 100)
    first.write_bytes(members[second:] + (b"" if lost else members[:second]))
    done = dedup(source, "--in-place", status=8 if lost else 0)
    assert done["verified"]["findings"] == ({"original-missing": 1} if lost else {})


@pytest.mark.parametrize("damaged", [False, True])
def test_a_run_says_that_originals_of_earlier_revisits_are_missing(
    tmp_path: Path, dedup: Dedup, capsys: pytest.CaptureFixture[str], *, damaged: bool
) -> None:
    source, body = tmp_path / "in", Random(1).randbytes(2000)
    first = write(source / "a.warc.gz", 1, [body])
    write(source / "b.warc.gz", 2, [body])
    dedup(source, "--in-place")
    assert dedup(source, "--in-place")["revisits_missing"] == 0
    if damaged:
        data = bytearray(first.read_bytes())
        data[600] ^= 4
        first.write_bytes(data)
    else:
        first.unlink()
    capsys.readouterr()
    assert main(["dedup", str(source), "--in-place"]) == (7 if damaged else 0)
    text = capsys.readouterr().out
    assert "before: 1; of these, with an original that is whole in no source: 1 (bin/ver" in text
    assert "--undo" in text and "--commit" not in text
