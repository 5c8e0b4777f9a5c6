"""``bin/rewrite`` and ``bin/undedup`` as they are typed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from dedupindex.cli import main
from dedupindex.warc.single import Single
from tests.rewriting import FakePlan, content, records_of, small_set

ROOT = Path(__file__).resolve().parents[1]
Run = Callable[..., tuple[int, dict[str, object]]]


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "in"
    small_set(path)
    monkeypatch.setattr("dedupindex.cli.rewrite.open_plan", lambda _: FakePlan(path))
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
    assert done[1]["revisits"] == 19 and done[1]["left"] == 0
    check_map(moved, source, out)
    assert run("undedup", out, "--out", back) == (
        0,
        {"files": 3, "exact": 0, "records": 2, "copied": 1, "there": 0, "left": 0, "restored": 19},
    )
    for name in content(source):
        assert records_of(back / name) == records_of(source / name)
    status, told = run("verify", "--against", source, back, "--records")
    assert (status, told["findings"]) == (0, {})


def check_map(moved: Path, source: Path, out: Path) -> None:
    """Every byte of the old files is in the map, once; what did not change is where it says."""
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
                assert Single(file, new_offset, new_count).head.type == b"revisit"
    assert all(end in (0, len(old[name])) for name, end in ends.items())
    assert sum(ends.values()) == len(old["c.warc"]) + len(old["deep/b.warc.gz"])


def test_a_cdxj_of_the_results(
    source: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dedupindex.cli.rewrite.open_manifest", lambda _: FakePlan(source))
    monkeypatch.setattr("dedupindex.rewrite.cdxj._SORTED", 7)
    out, index = tmp_path / "out", tmp_path / "index.cdxj"
    run("rewrite", "plan", "--out", out, "--cdxj", index, "--manifest", "m")
    lines = index.read_bytes().splitlines()
    assert lines == sorted(lines) and len(lines) == 26
    kinds = {}
    for line in lines:
        key, digits, text = line.split(b" ", 2)
        said = json.loads(text)
        with open(out / said["filename"], "rb", buffering=0) as file:
            head = Single(file, int(said["offset"]), int(said["length"])).head
        assert head.fields[b"WARC-Target-URI"] == said["url"].encode()
        assert b"sha1:" + said["digest"].encode() == head.fields[b"WARC-Payload-Digest"]
        assert key.startswith(b"com,example)/") and len(digits) == 14
        kinds.setdefault((head.type, said["mime"], said.get("status")), []).append(line)
    assert {kind: len(found) for kind, found in kinds.items()} == {
        (b"response", "unk", "200"): 7,
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
        status, told = run(*undo)
        assert (status, told["exact"], told["restored"]) == (0, 2, 19)
        assert content(source) == before
    run("rewrite", "plan", "--in-place")
    after = content(source)
    status, told = run("rewrite", "plan", "--commit")
    assert status == 0 and told["files"] == 2 and content(source) == after
    assert run("undedup", source, "--in-place")[1]["files"] == 0


def test_what_is_left_alone_is_named(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "c.warc").write_bytes(b"something else")
    assert main(["rewrite", "plan", "--out", str(out)]) == 7
    told = capsys.readouterr().err
    assert "c.warc was left alone" in told and "is there already, with another content" in told
    assert (out / "c.warc").read_bytes() == b"something else"


@pytest.mark.parametrize("words", [[], ["--out", "x", "--in-place"], ["--undo", "--commit"]])
def test_one_thing_at_a_time(source: Path, words: list[str]) -> None:
    assert main(["rewrite", "plan", *words]) == 2


def test_results_do_not_go_where_the_next_scan_finds_them(source: Path) -> None:
    assert main(["rewrite", "plan", "--out", str(source / "out")]) == 4
    assert not (source / "out").exists()


def test_nothing_is_known_of_a_directory_without_a_journal(tmp_path: Path) -> None:
    assert main(["undedup", str(tmp_path), "--in-place"]) == 4


def test_every_reason_why_a_copy_stays_is_documented() -> None:
    code = {"bad-date", "no-url"}  # of `sources.stated`
    for path in (ROOT / "dedupindex" / "rewrite").glob("*.py"):
        for call in re.findall(r"Stays\(([^)]*)\)", path.read_text()):
            code.update(re.findall(r'"([a-z-]+[a-z])"', call))
    text = (ROOT / "docs" / "post-crawl.md").read_text()
    section = text.partition("## Rewrite\n")[2].partition("\n## ")[0]
    assert code == set(re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE))
