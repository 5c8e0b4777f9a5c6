"""``bin/dedup``: all stages in one, as it is typed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import ANY

import pytest

from dedupindex.cli import main
from dedupindex.cli.dedup import covering_directories
from dedupindex.post_crawl import dedup_all as stages
from dedupindex.post_crawl.rewrite import correct_results, rewrite_file
from dedupindex.post_crawl.verify_results import Proof
from dedupindex.runtime.atomic_replace import Untouched
from dedupindex.runtime.tables import amount
from dedupindex.verify.file_bytes import Joined, UnreadableFile, opened
from dedupindex.verify.issues import Finding
from tests.support.commands import typed
from tests.support.rewriting import content, members, records_of, small_set
from tests.support.verifying import BODY, DAY, HOST, page
from tests.support.verifying import write as write_warc
from tests.support.warc_cases import record_id, response, sha1
from tests.unit.post_crawl.test_index_originals import cdxj_of, index_of, write
from tests.unit.post_crawl.test_rewrite_in_place import Failing

Dedup = Callable[..., dict[str, Any]]
NUMBERS = (
    "files", "skipped", "records", "captures", "unique", "originals", "revisits", "bytes_before",
    "bytes_after", "refused", "hosts", "problems", "not_copied", "outside", "skipped_files",
    "bytes_saved", "file_copies", "file_copies_bytes", "equal_files",
)  # fmt: skip


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A set of three containers, and one more without any duplicate."""
    path = tmp_path / "in"
    small_set(path)
    own = response(b"nobody else has this" * 9, number=900, Target_URI=b"http://other.test/")
    (path / "single.warc.gz").write_bytes(members(own))
    return path


@pytest.fixture
def dedup(capsys: pytest.CaptureFixture[str]) -> Dedup:
    def typed(*words: object, status: int = 0) -> dict[str, Any]:
        capsys.readouterr()
        assert main(["dedup", *map(str, words), "--json"]) == status
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return typed


def size_of(files: dict[str, bytes]) -> int:
    return sum(map(len, files.values()))


def sizes_of(folder: Path) -> list[tuple[str, int]]:
    return [(name, len(data)) for name, data in content(folder).items()]


def numbers(report: dict[str, Any]) -> dict[str, Any]:
    return {name: report[name] for name in NUMBERS}


def kept_below(folder: Path) -> int:
    """The bytes of all that is kept in a directory to undo runs."""
    return sum(path.stat().st_size for path in (folder / ".rewrite").iterdir())


def check(report: dict[str, Any]) -> None:
    refused = sum(report["refused"].values())
    assert report["refused_bytes"].keys() <= report["refused"].keys()
    known = report["unique"] + report["originals"] + report["revisits"] + refused
    assert report["captures"] == known == sum(host["captures"] for host in report["hosts"])
    assert report["revisits"] == sum(host["revisits"] for host in report["hosts"])
    saved = sum(host["bytes_saved"] for host in report["hosts"])
    assert report["bytes_before"] - report["bytes_after"] == saved == report["bytes_saved"]
    assert report["bytes_saved_net"] == saved - report["journal_bytes_added"]


def test_a_run_to_a_directory_equals_its_dry_run(
    source: Path, tmp_path: Path, dedup: Dedup
) -> None:
    before = content(source)
    dry = dedup(source, "--out", tmp_path / "out", "--dry-run")
    assert not (tmp_path / "out").exists() and content(source) == before
    done = dedup(source, "--out", tmp_path / "out")
    assert numbers(dry) == numbers(done)
    kept = kept_below(tmp_path / "out")
    assert dry["journal_bytes"] == done["journal_bytes"] == done["journal_bytes_added"] == kept
    assert (done["files"], done["captures"], done["revisits"]) == (4, 27, 19)
    assert done["hosts"][0]["host"] == "example.com" and done["hosts"][0]["revisits"] == 19
    check(done)
    after = content(tmp_path / "out")
    assert set(after) == set(before) and after["single.warc.gz"] == before["single.warc.gz"]
    sizes = [sum(map(len, files.values())) for files in (before, after)]
    assert sizes == [done["bytes_before"], done["bytes_after"]]
    assert done["verified"] == {"files": 4, "findings": {}}
    assert main(["verify", "--against", str(source), str(tmp_path / "out")]) == 0
    for more in ((), ("--dry-run",)):
        assert numbers(dedup(source, "--out", tmp_path / "out", *more)) == numbers(done)
    assert content(tmp_path / "out") == after and kept_below(tmp_path / "out") == kept
    assert main(["undedup", str(tmp_path / "out"), "--out", str(tmp_path / "back")]) == 0
    for name in before:
        assert records_of(tmp_path / "back" / name) == records_of(source / name)


def test_a_run_in_place_equals_one_to_a_directory(
    source: Path, tmp_path: Path, dedup: Dedup, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(source)
    there = dedup(source, "--out", tmp_path / "out")
    dry = dedup(source, "--in-place", "--dry-run")
    assert content(source) == before
    done = dedup(source, "--in-place")
    assert numbers(done) == numbers(dry) == numbers(there)
    assert dry["journal_bytes"] == done["journal_bytes"] > there["journal_bytes"]
    assert done["verified"] == {"files": 2, "findings": {}}
    assert content(source) == content(tmp_path / "out")
    assert Path(done["work"]) == tmp_path / "in.dedup"
    again = dedup(source, "--in-place")
    assert (again["revisits"], again["bytes_after"]) == (0, done["bytes_after"])
    assert again["revisits_before"] == done["revisits"] and not done["revisits_before"]
    kept = kept_below(source)
    assert done["journal_bytes"] == done["journal_bytes_added"] == again["journal_bytes"] == kept
    assert again["bytes_saved"] == again["bytes_saved_net"] == again["journal_bytes_added"] == 0
    assert main(["undedup", str(source), "--in-place"]) == 0
    assert content(source) == before


def test_a_second_run_in_place_counts_what_it_adds(
    source: Path, tmp_path: Path, dedup: Dedup, capsys: pytest.CaptureFixture[str]
) -> None:
    first = dedup(source, "--in-place")
    for day in (8, 9):
        write(source / f"more{day}.warc.gz", day, [Random(7).randbytes(1500)])
    words, more = ("--in-place",), tmp_path / "more"
    shutil.copytree(source, more)
    page = tmp_path / "page.html"
    assert main(["dedup", str(more), *words, "--html", str(page)]) == 0
    text = capsys.readouterr().out
    dry = dedup(source, *words, "--dry-run")
    second = dedup(source, *words)
    check(second)
    kept = kept_below(source)
    assert second["revisits"] and dry["journal_bytes"] == second["journal_bytes"] == kept
    added = kept - first["journal_bytes"]
    assert dry["journal_bytes_added"] == second["journal_bytes_added"] == added
    said = f"{amount(kept_below(more))} are kept in all, with those of earlier runs"
    assert said in text and said in page.read_text()
    assert main(["rewrite", str(tmp_path / "in.dedup" / "plan"), "--commit"]) == 0
    committed = dedup(source, *words)
    assert committed["journal_bytes"] == kept_below(source) and not committed["bytes_saved_net"]


def test_a_run_in_place_says_which_runs_can_be_undone(
    source: Path, dedup: Dedup, capsys: pytest.CaptureFixture[str]
) -> None:
    def more(day: int) -> str:
        for number in (day, day + 1):
            write(source / f"more{number}.warc.gz", number, [Random(day).randbytes(1500)])
        assert main(["dedup", str(source), "--in-place"]) == 0
        return capsys.readouterr().out

    plan = source.with_name("in.dedup") / "plan"
    assert f"\nundo: bin/rewrite {plan} --undo\n" in more(8)
    assert f"\nundo this and the earlier runs: bin/rewrite {plan} --undo\n" in more(10)
    assert main(["rewrite", str(plan), "--commit"]) == 0
    assert f"\nundo this run: bin/rewrite {plan} --undo\n" in more(12)


def test_a_run_in_place_says_what_is_saved_after_commit(
    source: Path, tmp_path: Path, dedup: Dedup, capsys: pytest.CaptureFixture[str]
) -> None:
    page, words = tmp_path / "page.html", ("--in-place", "--html", str(tmp_path / "page.html"))
    dry = dedup(source, "--in-place", "--dry-run")
    shutil.copytree(source, tmp_path / "other")
    assert main(["dedup", str(tmp_path / "other"), *words]) == 0
    text, html = capsys.readouterr().out, page.read_text()
    done = dedup(source, "--in-place")
    assert main(["rewrite", str(tmp_path / "in.dedup" / "plan"), "--commit"]) == 0
    saved = done["bytes_saved"] - kept_below(source)
    assert dry["bytes_saved_committed"] == done["bytes_saved_committed"] == saved
    assert done["bytes_saved"] > saved > done["bytes_saved_net"]
    assert f"; after --commit, {amount(saved)} less than before" in text
    assert f"the files then take {amount(saved)} less than before" in html
    assert f"; after --commit, with what is still kept, {amount(saved)} less than before" in html


def test_a_run_in_place_prints_the_undo_command(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(source)
    assert main(["dedup", str(source), "--in-place", "--dry-run"]) == 0
    assert "--undo" not in capsys.readouterr().out
    assert main(["dedup", str(source), "--in-place"]) == 0
    lines = capsys.readouterr().out.splitlines()
    undo = next(line for line in lines if line.startswith("undo: bin/"))
    assert any(line.endswith(" --commit") for line in lines)
    words = shlex.split(undo.removeprefix("undo: bin/"))
    assert main(words) == 0
    assert content(source) == before
    assert main(["dedup", str(source), "--in-place"]) == 0
    assert main([*words[:-1], "--commit"]) == 0
    capsys.readouterr()
    assert main(["dedup", str(source), "--in-place"]) == 0
    assert "--undo" not in capsys.readouterr().out  # nothing of the committed run is kept


@pytest.mark.parametrize("at", [1, 60, 90])
def test_a_killed_run_in_place_is_resumed(
    source: Path, tmp_path: Path, dedup: Dedup, at: int
) -> None:
    before = content(source)
    whole = dedup(source, "--out", tmp_path / "out")
    child = os.fork()
    if not child:
        with Failing(at, lambda: os.kill(os.getpid(), signal.SIGKILL)):
            status = main(["dedup", str(source), "--in-place", "--jobs", "1"])
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    done = dedup(source, "--in-place", "--jobs", "1")
    check(done)
    assert numbers(done) == numbers(whole)
    assert done["verified"]["findings"] == {}
    assert content(source) == content(tmp_path / "out")
    assert main(["rewrite", str(tmp_path / "in.dedup" / "plan"), "--undo"]) == 0
    assert content(source) == before


def test_unreadable_files_are_copied_and_named(
    source: Path, tmp_path: Path, dedup: Dedup, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = (source / "a.warc.gz").read_bytes()
    odd = {
        "odd.warc.zst": b"\x28\xb5\x2f\xfd" + b"x" * 50,
        "deep/empty.warc.gz": b"",
        "noise.warc": b"nothing at all",
        "cut.warc.gz": whole[:-7],
    }
    for name, data in odd.items():
        (source / name).write_bytes(data)
    (source / "growing.warc.gz.open").write_bytes(whole)
    (source / "index.cdx").write_text(" CDX N b a m s k r M S V g\n")
    (source / "marker.done").touch()
    sample = "--compare", "sample", "5"  # as two words, as in bin/resolve
    dry = dedup(source, "--out", tmp_path / "out", "--dry-run", *sample, status=7)
    done = dedup(source, "--out", tmp_path / "out", status=7)
    assert numbers(dry) == numbers(done)
    check(done)
    after = content(tmp_path / "out")
    assert {name: after[name] for name in odd} == odd
    aside = {"growing.warc.gz.open", "index.cdx", "marker.done"}
    assert set(after) == set(content(source)) - aside
    left = [Path(one["file"]).relative_to(source).as_posix() for one in done["problems"]]
    assert sorted(left) == sorted({*odd, "growing.warc.gz.open"})  # each once
    absent = {
        "file": str(source / "growing.warc.gz.open"),
        "bytes": len(whole),
        "existing_bytes": 0,
    }
    assert done["not_copied"] == [absent]
    assert done["bytes_after"] == size_of(after)
    assert done["bytes_before"] == dry["bytes_before"]
    assert done["bytes_before"] == sum(size for name, size in sizes_of(source) if name in after)
    skipped = [Path(name).name for name in done["skipped_files"]]
    assert skipped == ["index.cdx", "marker.done"] and done["skipped"] == 2
    assert main(["dedup", str(source), "--out", str(tmp_path / "out")]) == 7
    text = capsys.readouterr().out
    assert f"files skipped, neither WARC nor ARC, not copied: 2\n  {source / 'index.cdx'}\n" in text
    assert set(done["verified"]["findings"]) == {"no-refers-to"}  # twice the same record ids


def test_free_space_is_checked_for_copied_files_too(
    source: Path, tmp_path: Path, dedup: Dedup, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "odd.warc.zst").write_bytes(b"\x28\xb5\x2f\xfd" + b"x" * 5000)
    (source / "y.warc.gz.open").write_bytes(b"x" * 9000)
    needed = size_of(content(source)) - 9000
    words = ["dedup", str(source), "--out", str(tmp_path / "out"), "--work", str(tmp_path / "w")]
    monkeypatch.setattr("dedupindex.runtime.atomic_replace.free_space", lambda _: needed - 1)
    assert main(words) == 3
    assert content(tmp_path / "out") == {}
    monkeypatch.setattr("dedupindex.runtime.atomic_replace.free_space", lambda _: needed)
    dedup(*words[1:], status=7)
    assert len(content(tmp_path / "out")["odd.warc.zst"]) == 5004
    (tmp_path / "out" / "single.warc.gz").unlink()
    single = (source / "single.warc.gz").stat().st_size
    saved = sum((source / name).stat().st_size - len(data) for name, data in
                content(tmp_path / "out").items())  # fmt: skip
    monkeypatch.setattr("dedupindex.runtime.atomic_replace.free_space", lambda _: saved + single)
    dedup(*words[1:], status=7)


def test_files_being_written_are_not_rewritten(source: Path, tmp_path: Path, dedup: Dedup) -> None:
    with open(source / "deep" / "b.warc.gz", "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = dedup(source, "--out", tmp_path / "out", status=7)
    check(done)
    assert [one["file"] for one in done["problems"]] == [str(source / "deep" / "b.warc.gz")]
    assert [one["file"] for one in done["not_copied"]] == [str(source / "deep" / "b.warc.gz")]
    assert done["bytes_after"] == size_of(content(tmp_path / "out"))
    assert done["refused"] == {"file-left-alone": 12} and done["files"] == 4
    assert dedup(source, "--out", tmp_path / "out")["revisits"] == 19


def test_a_second_run_with_an_earlier_file(
    tmp_path: Path, dedup: Dedup, capsys: pytest.CaptureFixture[str]
) -> None:
    bodies = [Random(number).randbytes(1500) for number in range(2)]
    source, out = tmp_path / "in", tmp_path / "out"
    write(source / "b.warc.gz", 2, bodies)
    write(source / "c.warc.gz", 3, bodies)
    first = dedup(source, "--out", out)
    assert first["journal_bytes"] == kept_below(out) > 0 and not first["not_copied"]
    write(source / "a.warc.gz", 1, bodies)
    argv = ["dedup", str(source), "--out", str(out)]
    assert main(argv) == 7
    output = capsys.readouterr()
    assert (
        "other content: if it is not a result of an earlier run with this source (are the "
        "arguments swapped?), name another folder with --out. If it is, another plan made it"
    ) in output.err
    assert "Else remove all files that are named so, and repeat the command" in output.err
    assert "are SOURCE and --out swapped" not in output.err
    assert f"kept: {source / 'b.warc.gz'}" in output.out
    again = dedup(source, "--out", out, status=7)
    check(again)
    assert again["bytes_after"] == (out / "a.warc.gz").stat().st_size
    assert again["bytes_before"] == (source / "a.warc.gz").stat().st_size
    absent = {Path(one["file"]).name: one["existing_bytes"] for one in again["not_copied"]}
    assert sorted(absent) == ["b.warc.gz", "c.warc.gz"] and all(absent.values())
    assert main(["verify", str(out)]) == 0


def test_a_manifest_of_an_earlier_version(source: Path, tmp_path: Path, dedup: Dedup) -> None:
    work = tmp_path / "work"
    first = dedup(source, "--in-place", "--dry-run", "--work", work)
    for name in ("manifest/manifest.json", "dedup.json"):
        said = json.loads((work / name).read_text())
        said["format" if "manifest" in name else "begun"] = 1 if "manifest" in name else {}
        (work / name).write_text(json.dumps(said))
    argv = ["dedup", str(source), "--in-place", "--work", str(work)]
    assert main(argv) == 5
    (work / "dedup.json").write_text(json.dumps({**said, "begun": None}))
    assert numbers(dedup(source, "--in-place", "--work", work)) == numbers(first)


def test_a_finished_run_in_place_changes_no_more_files(
    source: Path, tmp_path: Path, dedup: Dedup
) -> None:
    before = content(source)
    first = dedup(source, "--in-place", "--min-size", 1800)
    done = content(source)
    assert first["refused"]["small"]
    again = dedup(source, "--in-place", "--min-size", 1800)  # what is small is still in the plan
    assert (again["revisits"], again["problems"], content(source)) == (0, [], done)
    assert dedup(source, "--in-place", "--min-size", 1800, "--dry-run")["problems"] == []
    check(again)
    more = dedup(source, "--in-place", status=7)
    assert "--commit or --undo" in more["problems"][0]["why"]
    assert main(["undedup", str(source), "--in-place"]) == 0
    assert content(source) == before


def busy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has begun to write a file after others were made revisits of it."""
    known = rewrite_file.being_written
    monkeypatch.setattr(
        rewrite_file, "being_written", lambda file: str(file.name).endswith(name) or known(file)
    )


def failing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sector of a file that nothing but its copy needs cannot be read."""
    known = os.copy_file_range

    def copied(source: int, *words: Any, **more: Any) -> int:
        if os.readlink(f"/proc/self/fd/{source}").endswith(name):
            raise OSError(errno.EIO, "Input/output error")
        return known(source, *words, **more)

    monkeypatch.setattr(os, "copy_file_range", copied)


def conflicting_file(name: str, out: Path) -> None:
    (out / name).parent.mkdir(parents=True)
    (out / name).write_bytes(members(response(b"another")))


@pytest.mark.parametrize("how", ["busy", "failing", "there"])
def test_no_revisit_refers_to_a_file_not_rewritten(
    source: Path, tmp_path: Path, dedup: Dedup, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    before, out = content(source), tmp_path / "out"
    with monkeypatch.context() as patch:
        if how == "there":
            conflicting_file("a.warc.gz", out)
        else:
            {"busy": busy, "failing": failing}[how]("in/a.warc.gz", patch)
        done = dedup(source, "--out", out, "--jobs", 1, status=7)
        again = dedup(source, "--out", out, "--jobs", 1, status=7)
    check(done)
    assert done["refused"] == {"original-left-alone": 19} and done["files"] == 4
    assert [one["file"] for one in done["problems"]] == [str(source / "a.warc.gz")]
    after = content(out)
    same = {"c.warc", "deep/b.warc.gz", "single.warc.gz"}
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert main(["verify", str(out)]) == 0
    assert again["revisits"] == 0 and content(out) == after
    assert not list((out / ".rewrite").glob("*.jsonl*"))


def test_a_dry_run_counts_existing_output_files(source: Path, tmp_path: Path, dedup: Dedup) -> None:
    (source / "odd.warc.zst").write_bytes(b"\x28\xb5\x2f\xfd" + b"x" * 50)
    out = tmp_path / "out"

    def both() -> dict[str, Any]:
        before = content(out)
        dry = dedup(source, "--out", out, "--jobs", 1, "--dry-run", status=7)
        assert content(out) == before
        done = dedup(source, "--out", out, "--jobs", 1, status=7)
        assert numbers(dry) == numbers(done)
        return done

    out.mkdir()
    whole = both()
    assert both() == {**whole, "seconds": ANY}  # all of it is there
    data = (out / "deep" / "b.warc.gz").read_bytes()
    for other in (data + b"\0", data[:-1], data[:-1] + b"?"):
        (out / "deep" / "b.warc.gz").write_bytes(other)
        assert both()["refused"] == {"file-left-alone": 12}
    (out / "odd.warc.zst").write_bytes(b"another")
    (out / "a.warc.gz").write_bytes(b"another")  # which has all originals but one
    assert both()["refused"] == {"file-left-alone": 12}  # what a complete run wrote stays


@pytest.mark.parametrize("which", ["the original", "another record"])
def test_no_revisit_refers_to_a_result_that_was_damaged(
    tmp_path: Path, dedup: Dedup, which: str
) -> None:
    """Its size is that of its journal: the bytes of each original are compared."""
    bodies = [Random(number).randbytes(1500) for number in range(3)]
    top, out = tmp_path / "in", tmp_path / "out"
    write(top / "a.warc.gz", 1, bodies[:1])
    write(top / "b.warc.gz", 2, [bodies[1], bodies[0], bodies[2]])
    dedup(top, "--out", out)
    whole = (out / "b.warc.gz").read_bytes()
    at = 700 if which == "the original" else len(whole) - 700
    damaged = bytes(byte ^ (16 * (at == number)) for number, byte in enumerate(whole))
    (out / "b.warc.gz").write_bytes(damaged)
    write(top / "c.warc.gz", 3, [bodies[1]])
    done = dedup(top, "--out", out, "--jobs", 1, status=7)
    kept = {"original-left-alone": 1} if which == "the original" else {}
    assert done["refused"] == {"file-left-alone": 1} | kept
    same = (out / "c.warc.gz").read_bytes() == (top / "c.warc.gz").read_bytes()
    assert same == (which == "the original")


def test_a_file_that_cannot_be_copied_is_removed_with_its_dependents(
    tmp_path: Path, dedup: Dedup, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [Random(number).randbytes(1500) for number in range(2)]
    for name, number, held in (("a", 1, bodies[:1]), ("b", 2, bodies), ("c", 3, bodies[1:])):
        write(tmp_path / "in" / f"{name}.warc.gz", number, held)
    check_unchanged = correct_results.check_unchanged

    def changed(container: Any, file: Any) -> None:
        if container.name == "b.warc.gz":
            raise Untouched("it is not what was scanned")
        check_unchanged(container, file)

    monkeypatch.setattr(correct_results, "check_unchanged", changed)
    busy("in/a.warc.gz", monkeypatch)
    done = dedup(tmp_path / "in", "--out", tmp_path / "out", "--jobs", 1, status=7)
    assert done["refused"] == {"file-left-alone": 1, "original-left-alone": 1}
    after = content(tmp_path / "out")
    assert after == {"c.warc.gz": (tmp_path / "in" / "c.warc.gz").read_bytes()}
    assert len(done["problems"]) == 2 and done["verified"]["findings"] == {}


def test_results_must_stand_without_the_sources(
    source: Path, tmp_path: Path, dedup: Dedup, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tampered(monkeypatch, (tmp_path / "out" / "a.warc.gz").unlink):
        done = dedup(source, "--out", tmp_path / "out", status=8)
    assert "original-missing" in done["verified"]["findings"]


def test_originals_that_an_index_names(tmp_path: Path, dedup: Dedup) -> None:
    bodies = [Random(number).randbytes(1500) for number in range(3)]
    index = index_of(tmp_path, write(tmp_path / "old" / "x.warc.gz", 1, bodies))
    write(tmp_path / "set" / "y.warc.gz", 2, bodies)
    done = dedup(tmp_path / "set", "--out", tmp_path / "out", "--index", index)
    assert (done["revisits"], done["originals"]) == (3, 0)
    assert done["verified"] == {"files": 1, "findings": {}}
    assert done["outside"] == {str(tmp_path / "old" / "x.warc.gz"): 3}
    assert done["protected_in"] == [f"{tmp_path}/old/.rewrite/"]
    assert list((tmp_path / "old" / ".rewrite").glob("*.pins"))
    check(done)
    argv = ["verify", "--against", str(tmp_path / "set"), str(tmp_path / "out"), "--originals"]
    assert main([*argv, str(tmp_path / "old")]) == 0


def test_each_directory_of_originals_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not the parent of all: on a real machine that is the root."""
    bodies = [Random(number).randbytes(1500) for number in range(2)]
    folders = [tmp_path / "disk 1" / "warcs", tmp_path / "disk2" / "warcs"]
    for number, folder in enumerate(folders):
        write(folder / "x.warc.gz", number + 1, bodies[number : number + 1])
    index = tmp_path / "index"
    assert main(["index", *map(str, folders), str(index), "-w", "-m", ".*"]) == 0
    write(tmp_path / "set" / "y.warc.gz", 3, bodies)
    html = tmp_path / "page.html"
    words = ["dedup", tmp_path / "set", "--out", tmp_path / "out", "--index", index, "--html", html]
    capsys.readouterr()
    assert main([str(word) for word in words]) == 0
    originals = f"--originals '{folders[0]}' --originals {folders[1]}"
    shown = capsys.readouterr().out
    assert shown.count("bin/verify") == 1
    (command,) = re.findall(r"^verify: .*bin/verify (.*)$", shown, re.MULTILINE)
    assert command.endswith(originals)
    places = ", ".join(f"{folder}/.rewrite/" for folder in folders)
    protected = f"these originals are protected from later runs there, by entries in {places}"
    assert f"\n  {protected}\n" in shown and f"; {protected}." in html.read_text()
    assert main(["verify", *shlex.split(command)]) == 0


@pytest.mark.parametrize(
    ("folders", "named"),
    [
        (["/a/1", "/a/1", "/b/2"], ["/a/1", "/b/2"]),
        (["/a", "/a/1/2", "/ab"], ["/a", "/ab"]),
        ([f"/a/jobs/{day}/warcs" for day in range(9)] + ["/b/c"], ["/a/jobs", "/b/c"]),
        ([f"/{day}" for day in range(7)], [f"/{day}" for day in range(7)]),
        ([f"s3://{day}" for day in range(7)], [f"s3://{day}" for day in range(7)]),
        ([f"s3://b/{day}" for day in range(7)], ["s3://b"]),
        (["s3://b/x", "/a"], ["/a", "s3://b/x"]),
    ],
)
def test_directories_that_have_all_originals(folders: list[str], named: list[str]) -> None:
    assert covering_directories([f"{folder}/x.warc.gz" for folder in folders]) == named


def test_captures_that_an_index_did_not_read_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = Random(1).randbytes(1500)
    row = cdxj_of(write(tmp_path / "old/x.warc.gz", 1, [body]), 0, "http://a.test/0", 1, body)
    write(tmp_path / "set/y.warc.gz", 2, [body])
    argv = ["dedup", str(tmp_path / "set"), "--out", str(tmp_path / "out")]
    assert main([*argv, "--index", str(index_of(tmp_path, row))]) == 0
    assert (
        "known only from a CDX, a log or a crawler, which are no originals: 1. "
        in capsys.readouterr().err
    )


def test_originals_that_were_indexed_through_a_link_are_reported_once_it_moved(
    tmp_path: Path, dedup: Dedup, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `latest` of a job of Heritrix; what the manual gives for it repairs the index."""
    bodies = [Random(number).randbytes(1500) for number in range(2)]
    write(tmp_path / "run1/x.warc.gz", 1, bodies)
    write(tmp_path / "run2/y.warc.gz", 2, bodies)
    (latest := tmp_path / "latest").symlink_to("run1")
    index = index_of(tmp_path, latest)
    latest.unlink()
    latest.symlink_to("run2")
    words = (tmp_path / "run2", "--out", tmp_path / "out", "--index", index, "--dry-run")
    done = dedup(*words)
    assert (done["revisits"], done["unique"], done["unread_originals"]) == (0, 2, 2)
    assert main(["dedup", *map(str, words)]) == 0
    said = "may stay whole because their originals cannot be read: 2. Files that are not where the"
    assert said in (messages := capsys.readouterr().err)
    assert f"1 ({latest}/x.warc.gz). If they moved" in messages
    repair = ["index", "--replace", tmp_path / "run1", index, "--instead-of", latest]
    assert main([str(word) for word in repair]) == 0
    done = dedup(*words)
    assert (done["revisits"], done["unread_originals"]) == (2, 0)


def test_a_record_of_warc_1_0_names_no_fraction_of_a_second(tmp_path: Path, dedup: Dedup) -> None:
    fine = {"version": b"WARC/1.1", "Date": b"2020-01-01T00:00:00.25Z"}
    body = Random(3).randbytes(3000)
    old = response(body, number=1, Target_URI=b"http://a.test/1", **fine)
    new = response(body, number=2, Date=b"2021-01-01T00:00:00Z")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.warc.gz").write_bytes(members(old, new))
    found = dedup(tmp_path / "in", "--out", tmp_path / "out")
    assert (found["revisits"], found["verified"]["findings"]) == (1, {})
    header = records_of(tmp_path / "out/a.warc.gz")[1][0]
    assert b"\r\nWARC-Refers-To-Date: 2020-01-01T00:00:00Z\r\n" in header


@contextmanager
def tampered(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[], None]) -> Iterator[None]:
    """Something goes wrong between writing and verifying."""
    rewrite = stages.rewrite

    def spoiled(*words: Any) -> Iterator[Any]:
        yield from rewrite(*words)
        spoil()

    with monkeypatch.context() as patch:
        patch.setattr(stages, "rewrite", spoiled)
        yield


def test_output_is_verified(
    source: Path, tmp_path: Path, dedup: Dedup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drop_originals() -> None:
        (tmp_path / "out" / "a.warc.gz").write_bytes(members(response(b"gone")))

    with tampered(monkeypatch, drop_originals):
        done = dedup(source, "--out", tmp_path / "out", status=8)
    assert {"original-missing", "record-missing"} <= set(done["verified"]["findings"])

    def spoil_journal() -> None:
        for path in (source / ".rewrite").glob("*.dropped"):
            path.write_bytes(path.read_bytes()[:-1] + b"!")

    with tampered(monkeypatch, spoil_journal):
        done = dedup(source, "--in-place", status=8)
    assert {"bytes-changed", "not-rebuilt"} & set(done["verified"]["findings"])


def test_the_manifest_is_used_again(source: Path, tmp_path: Path, dedup: Dedup) -> None:
    work = tmp_path / "work"
    dedup(source, "--out", tmp_path / "out", "--work", work, "--dry-run")
    times = {path: path.stat().st_mtime_ns for path in (work / "manifest" / "lines").iterdir()}
    dedup(source, "--out", tmp_path / "out", "--work", work)
    assert times == {p: p.stat().st_mtime_ns for p in (work / "manifest" / "lines").iterdir()}
    argv = ["resolve", str(work / "manifest"), "-o", str(tmp_path / "plan")]
    assert main(argv) == 0
    other = tmp_path / "other"
    small_set(other)
    argv = ["dedup", str(other), "--out", str(tmp_path / "out2"), "--work", str(work)]
    assert main(argv) == 5
    assert main(["dedup", str(other), "--out", str(tmp_path / "o"), "--work", str(source)]) == 4


def test_impossible_runs_are_refused_before_anything_is_read(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    small_set(other)
    for words, status in (
        ([source, other, "--out", tmp_path / "out"], 4),
        ([source, "--out", source / "out"], 4),
        ([source / "*.warc.gz", "--out", source / "out"], 4),
        ([source / "single.warc.gz", source, "--out", source / "out"], 4),
        ([source / "single.warc.gz", "--out", source], 4),
        ([source, other, "--in-place"], 4),
        ([source], 2),
        ([source, "--in-place", "--out", tmp_path / "out"], 2),
        ([tmp_path / "nothing", "--out", tmp_path / "out"], 4),
    ):
        (tmp_path / "empty").mkdir(exist_ok=True)
        assert main(["dedup", *map(str, words)]) == status
    assert main(["dedup", str(tmp_path / "empty"), "--out", str(tmp_path / "out")]) == 4
    assert not list(tmp_path.glob("*.dedup"))
    capsys.readouterr()


def test_results_of_files_may_be_below_their_directory(source: Path, dedup: Dedup) -> None:
    """Nothing searches the directory of files that are named one by one."""
    files = sorted(path for path in source.iterdir() if path.is_file())
    before, out = content(source), source / "out"
    dry = dedup(*files, "--out", out, "--dry-run")
    done = dedup(*files, "--out", out)
    assert numbers(done) == numbers(dry) and done["revisits"]
    again = dedup(*files, "--out", out)
    assert numbers(again) == numbers(done)
    assert main(["undedup", str(out), "--out", str(source / "back")]) == 0
    assert {path.name for path in (source / "back").iterdir()} == {path.name for path in files}
    assert {name: data for name, data in content(source).items() if name in before} == before


def test_a_file_that_is_only_named_like_an_archive_is_not_verified(
    tmp_path: Path, dedup: Dedup, capsys: pytest.CaptureFixture[str]
) -> None:
    (junk := tmp_path / "junk.warc").write_bytes(b"no archive" * 100)
    assert dedup(junk, "--out", tmp_path / "out", status=7)["verified"]["files"] == 0
    assert main(["dedup", str(junk), "--out", str(tmp_path / "out")]) == 7
    said = capsys.readouterr()
    assert "verified: 0 files; not verified, because" in said.out
    assert "By host" not in said.out
    assert "the result has them with that damage" in said.err


def test_the_report_as_text(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dedup", str(source), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "19 captures became revisits" in said
    assert "verified: 4 files, no new defects" in said
    assert "example.com" in said


def test_json_has_every_host(tmp_path: Path, dedup: Dedup) -> None:
    body = [Random(1).randbytes(1500)]
    for number in range(1, 28):
        write(tmp_path / "in" / f"{number:02}.warc.gz", number, body, chr(ord("A") + number))
    done = dedup(tmp_path / "in", "--out", tmp_path / "out")
    check(done)
    assert len(done["hosts"]) == len({host["host"] for host in done["hosts"]}) == 27


def test_dependents_of_an_index_are_known_once_the_results_are_indexed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bodies = [Random(number).randbytes(1500) for number in range(3)]
    index = str(index_of(tmp_path, write(tmp_path / "old" / "x.warc.gz", 1, bodies)))
    write(tmp_path / "set" / "y.warc.gz", 2, bodies)
    words = [str(tmp_path / "set"), "--index", index]

    def dependents() -> int:
        capsys.readouterr()
        assert main(["impact", index, "--container", "x.warc.gz", "--json"]) == 0
        found: int = json.loads(capsys.readouterr().out)["dependents"]["captures"]
        return found

    assert main(["dedup", *words, "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert dependents() == 0
    assert "next: repeat this with --update-index: the index has not read the results (" in said
    assert main(["dedup", *words, "--out", str(tmp_path / "out"), "--update-index"]) == 0
    assert dependents() == 3
    write(tmp_path / "later" / "z.warc.gz", 3, bodies)
    again = ["dedup", str(tmp_path / "later"), "--index", index, "--in-place"]
    assert main(again) == 0
    assert main([*again, "--update-index"]) == 0
    assert dependents() == 6


def test_a_file_in_ranges_reads_as_one(tmp_path: Path) -> None:
    data = [bytes(range(100)), bytes(range(100, 200))]
    for number, piece in enumerate(data):
        (tmp_path / str(number)).write_bytes(piece)
    ranges = [(0, 10, 30), (1, 0, 1), (0, 0, 5), (1, 90, 10)]
    whole = b"".join(data[file][at : at + count] for file, at, count in ranges)
    joined = Joined(tmp_path / "x", [(tmp_path / str(file), *rest) for file, *rest in ranges])  # type: ignore[misc]
    with opened(joined) as read:
        assert read.size == len(whole)
        for at in range(len(whole) + 1):
            for count in range(len(whole) + 2):
                assert read.read(at, count) == whole[at : at + count]
    with pytest.raises(UnreadableFile), opened(Joined(tmp_path, [(tmp_path / "none", 0, 1)])):
        pass
    with (
        opened(Joined(tmp_path, [(tmp_path / "0", 90, 20)])) as read,
        pytest.raises(UnreadableFile),
    ):
        read.read(0, 20)


def test_remarks_do_not_displace_findings() -> None:
    remarks = [Finding("larger", "a", number, "", "") for number in range(200)]
    proof = Proof()
    proof.add_findings(iter([*remarks, Finding("not-rebuilt", "a", 200, "", "")]))
    assert [finding.reason for finding in proof.named] == ["not-rebuilt"]
    assert proof.findings == {"larger": 200, "not-rebuilt": 1}


def test_captures_of_one_second_stay_where_the_original_must_be_of_another(tmp_path: Path) -> None:
    """OutbackCDX keeps one row of a URL and second: that of the revisit would hide the original."""
    at, old = {"Target_URI": HOST + b"1", "Date": DAY % 1}, tmp_path / "old"
    later = {"Target_URI": HOST + b"1", "Date": DAY % 2}
    records = [page(1), page(2, **at), page(3, **later), page(4, **later), page(5)]
    write_warc(old / "a.warc.gz", records)
    for words, revisits in (((), 4), (("--other-second",), 3)):
        out = tmp_path / f"new-{revisits}"
        report = json.loads(typed("dedup", old, "--out", out, "--json", *words)[0])
        assert (report["revisits"], report["verified"]["findings"]) == (revisits, {})
    assert report["refused"] == {"same-second": 1}


def test_equal_captures_of_one_second_are_restored(tmp_path: Path) -> None:
    """Their revisits name their own URL and second, where their original is."""
    old, new, at = tmp_path / "old", tmp_path / "new", {"Target_URI": HOST + b"1", "Date": DAY % 1}
    for name, records in (
        ("a", [page(1)]),
        ("b", [page(2, **at)]),
        ("c", [page(3, **at), page(4)]),
    ):
        write_warc(old / f"{name}.warc.gz", records)
    report = json.loads(typed("dedup", old, "--out", new, "--json")[0])
    assert (report["revisits"], report["refused"], report["verified"]["findings"]) == (3, {}, {})
    assert json.loads(typed("verify", new, "--json")[0])["findings"] == {}
    again = json.loads(typed("dedup", new, "--out", tmp_path / "again", "--json")[0])
    assert (again["revisits"], again["captures"]) == (0, 1)
    typed("undedup", new, "--out", tmp_path / "back")
    typed("verify", "--against", old, tmp_path / "back", "--records")
    report = json.loads(typed("index", "-w", "-m", ".*", new, tmp_path / "ix", "--json")[0])
    assert report["added"] == 1
    words = ("lookup", tmp_path / "ix", "--digest", sha1(BODY).decode(), "--json")
    assert json.loads(typed(*words)[0])["original"]["record_id"] == record_id(1)[1:-1].decode()
    one = tmp_path / "one.warc.gz"
    typed("export", new, "--self-contained", "--url", HOST.decode() + "1", "-o", one)
    typed("dedup", old, "--in-place")
    assert (old / "b.warc.gz").read_bytes() == (new / "b.warc.gz").read_bytes()
    lines = [
        json.loads(line) for line in typed("corpus", new, "--enrich", "string")[0].splitlines()
    ]
    assert (
        len({json.dumps(line["payload"], sort_keys=True) for line in lines}) == 1 < len(lines) == 4
    )


def test_a_run_in_place_does_not_claim_free_space_before_commit(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*more: str) -> tuple[str, str]:
        words = ["dedup", str(source), "--in-place", "--html", str(tmp_path / "page.html"), *more]
        assert main(words) == 0
        return capsys.readouterr().out, (tmp_path / "page.html").read_text()

    text, html = run("--dry-run")
    assert "would be free only after bin/rewrite --commit" in text
    assert "The space of the removed records would be free only after bin/rewrite --commit." in html
    assert "Would be saved in files" in html and "Would become revisits" in html
    assert "would not be rewritten" in html and "not rewritten:" not in html
    assert "Bytes that would be saved" in html and "those that would save the most" in html
    text, html = run()
    assert "is free only after bin/rewrite --commit" in text and "with that, " in text
    assert "not verified, because not changed: 2 files" in text
    assert "The space of the removed records is free only after bin/rewrite --commit." in html
    text, html = run()  # nothing is left to do
    assert "revisits that were there before: 19; " in text
    assert "0 captures became revisits" in text and "to undo earlier runs" in text
    assert "with that" not in text and "only after" not in text + html
