"""``bin/rehearse``: seven steps on copies, each of which must detect its defect."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dedupindex.cli import main
from dedupindex.errors import IndexBusy
from dedupindex.post_crawl import rehearsal
from dedupindex.runtime.files import exclusive
from tests.support.rewriting import content, members, small_set
from tests.support.warc_cases import DATA, response
from tests.support.zstd_files import trained, zst

STEPS = ["test", "manifest", "convert", "validate", "dedup", "compare", "commit"]
Rehearse = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in"
    small_set(path)
    return path


@pytest.fixture
def rehearse(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Rehearse:
    def typed(*words: object, status: int = 0) -> dict[str, dict[str, Any]]:
        capsys.readouterr()
        argv = ["rehearse", str(source), "--work", str(tmp_path / "work"), *map(str, words)]
        assert main([*argv, "--json"]) == status
        steps = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [step["step"] for step in steps] == STEPS
        return {step["step"]: step for step in steps}

    return typed


def test_all_steps_of_sound_sources(source: Path, tmp_path: Path, rehearse: Rehearse) -> None:
    (source / "example.arc").write_bytes((DATA / "example.arc").read_bytes())
    (source / "odd.warc.zst").write_bytes(zst(response(b"no dictionary", number=900), trained()))
    before = content(source)
    steps = rehearse("--sample", 7, "--seed", 3, status=7)  # as bin/dedup, of the zstd file
    assert [one["file"] for one in steps["manifest"]["left"]] == [str(source / "odd.warc.zst")]
    assert all(step["sound"] for step in steps.values()), steps
    assert steps["test"]["findings"] == steps["commit"]["findings"] == {"no-dictionary": 1}
    assert content(source) == before
    assert steps["dedup"]["revisits"] == steps["compare"]["gone"] == 19
    assert steps["compare"]["sample"] == 7 and steps["compare"]["new"] == 0
    assert steps["commit"]["undone"] == steps["commit"]["committed"] == 2
    assert steps["manifest"]["captures"] == steps["validate"]["captures"] == 27
    assert steps["convert"]["converted"] == 1 and steps["convert"]["copied"] == 4
    assert steps["convert"]["names_taken"] == 0
    assert steps["test"]["files"] == steps["manifest"]["files"] + steps["manifest"]["not_read"]
    work = tmp_path / "work"
    assert (work / "copy" / "example.warc").exists()
    assert content(work / "copy") == content(work / "out")
    assert all(step["sound"] for step in rehearse("--sample", 0, status=7).values())  # once more


def test_an_arc_file_whose_name_is_taken_is_named_and_counters_have_units(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source / "a.arc").write_bytes((DATA / "example.arc").read_bytes())
    (source / "a.warc").write_bytes(response(b"of the same name", number=901))
    assert main(["rehearse", str(source), "--work", str(tmp_path / "work")]) == 0
    shown = capsys.readouterr()
    assert "a.arc is copied, not converted: the sources have a.warc" in shown.err
    assert "names taken    1 file, copied since" in shown.out
    assert "undone         2 files\n" in shown.out and "gone           19 records\n" in shown.out


def test_in_a_relative_directory(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    for directory, up in ((tmp_path, ""), (tmp_path / "here", "../")):
        monkeypatch.chdir(directory)
        assert main(["rehearse", f"{up}{source.name}", "--work", f"{up}work"]) == 0
    assert content(tmp_path / "work" / "copy") == content(tmp_path / "work" / "out")


def spoiled(
    monkeypatch: pytest.MonkeyPatch, name: str, spoil: Callable[[Path], None], at: int
) -> None:
    """Have `spoil` change a file of the copy or of the results after a call of a function."""
    function, calls = getattr(rehearsal, name), []

    def then(*words: Any, **more: Any) -> Any:
        done = function(*words, **more)
        calls.append(1)
        if len(calls) == at:
            spoil(done)
        return done

    monkeypatch.setattr(rehearsal, name, then)


def test_a_copy_that_differs_from_its_source(
    tmp_path: Path, rehearse: Rehearse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(_: object) -> None:
        (tmp_path / "work/copy/a.warc.gz").write_bytes(members(response(b"another")))

    spoiled(monkeypatch, "copy", lose, 3)
    steps = rehearse(status=8)
    assert not steps["validate"]["sound"]
    assert (steps["validate"]["gone"], steps["validate"]["new"]) == (6, 1)


def test_wrong_results(tmp_path: Path, rehearse: Rehearse, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(_: object) -> None:
        (tmp_path / "work/out/a.warc.gz").write_bytes(members(response(b"another")))

    spoiled(monkeypatch, "dedup", lose, 1)
    steps = rehearse("--sample", 19, status=8)
    assert steps["dedup"]["sound"]
    compared = steps["compare"]
    assert (compared["gone"], compared["new"]) == (19 + 6, 1)
    assert compared["findings"]["dangling"] > 0
    assert compared["failed"] >= 2 * 18  # but for one, each dangles and is not rebuilt
    assert not steps["commit"]["sound"]  # it has other bytes in place


def test_rehearsals_that_are_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["rehearse", str(source), "--work"]
    assert main([*words, str(source / "work")]) == 4
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").touch()
    assert main([*words, str(tmp_path / "other")]) == 4
    assert (tmp_path / "other" / "mine").exists()
    (tmp_path / "empty").mkdir()
    assert main(["rehearse", str(tmp_path / "empty"), "--work", str(tmp_path / "work")]) == 4
    monkeypatch.setattr(rehearsal, "free_space", lambda _: 10)
    assert main([*words, str(tmp_path / "work")]) == 3


def test_without_pywb_no_replay_is_reported(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(rehearsal.shutil, "which", lambda _: None)
    words = ["rehearse", str(source), "--work", str(tmp_path / "work"), "--sample", "2"]
    assert main([*words, "--json"]) == 0
    steps = map(json.loads, capsys.readouterr().out.splitlines())
    assert [step["replayed"] for step in steps if "replayed" in step] == [None]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "replayed       no pywb on PATH" in said
    assert "\ncompare: passed; replay was not compared: no pywb on PATH (" in f"\n{said}"


def test_replay_without_captures_fails_the_rehearsal(
    tmp_path: Path, rehearse: Rehearse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pywb whose indexer fails, and which then has nothing to serve."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, does in (("wayback", "exec sleep 60"), ("cdx-indexer", "echo no >&2; exit 1")):
        (tools / name).write_text(f"#!/bin/sh\n{does}\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setattr(rehearsal, "_PYWB_TIMEOUT", 0.2)
    compared = rehearse("--sample", 3, status=8)["compare"]
    assert compared["replayed"] == 0 and not compared["sound"]
    assert any("could not index" in problem for problem in compared["problems"])
    assert any("replayed nothing" in problem for problem in compared["problems"])


def test_sources_in_the_directory_of_work_are_not_removed(
    tmp_path: Path, rehearse: Rehearse
) -> None:
    rehearse("--sample", 1)
    work = tmp_path / "work"
    (tmp_path / "elsewhere").symlink_to(work / "out")
    (work / "mine").mkdir()
    (work / "mine" / "a.warc.gz").write_bytes(members(response(b"mine")))
    before = content(work)
    for source in (work / "out", tmp_path / "elsewhere", work / "out/c.warc", work / "mine"):
        assert main(["rehearse", str(source), "--work", str(work)]) == 4
        assert main(["rehearse", str(source), "--work", str(tmp_path / "elsewhere/..")]) == 4
    assert content(work) == before


def test_links_to_other_places_are_not_followed(
    source: Path, tmp_path: Path, rehearse: Rehearse
) -> None:
    """What is there would be deduplicated, and let go of."""
    rehearse("--sample", 1)
    work, mine = tmp_path / "work", tmp_path / "mine"
    shutil.rmtree(work / "copy")
    shutil.copytree(source, mine)
    (work / "copy").symlink_to(mine)
    before = content(mine)
    assert main(["rehearse", str(source), "--work", str(work)]) == 4
    assert content(mine) == before


def test_one_rehearsal_at_a_time(source: Path, tmp_path: Path, rehearse: Rehearse) -> None:
    rehearse("--sample", 1)
    work = tmp_path / "work"
    before = content(work)
    with exclusive(work / "lock", "it"):
        assert main(["rehearse", str(source), "--work", str(work)]) == IndexBusy.exit_status
    assert content(work) == before


def test_the_report_as_text(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rehearse", str(source), "--work", str(tmp_path / "work")]) == 0
    said = capsys.readouterr().out
    assert said.count(": passed") == len(STEPS)
    assert "revisits" in said and "sample" in said
