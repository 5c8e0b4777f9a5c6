"""Staging: a resumed build uses only what a killed build left complete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dedupindex.errors import Damaged, SettingsConflict
from dedupindex.index.format.cells import encode
from dedupindex.index.identity import Settings
from dedupindex.index.load.runs import CHUNK, read_run, write_run
from dedupindex.index.load.staging import Numbers, Staging, renumbered
from tests.support.captures import capture

WHAT = {"sources": ["x"]}


def task(*runs: str) -> dict[str, Any]:
    return {"runs": list(runs)}


def test_tasks_end_in_any_order_and_numbers_are_not_given_twice(tmp_path: Path) -> None:
    staging = Staging(tmp_path, WHAT, resume=False)
    assert staging.next_task() == 0
    for name in ("000001-0.run", "000003-0.run"):
        (staging.directory / name).touch()
        staging.finish(task(name))
    assert Staging(tmp_path, WHAT, resume=True).next_task() == 4


def test_a_task_that_found_only_revisits_has_its_number(tmp_path: Path) -> None:
    staging = Staging(tmp_path, WHAT, resume=False)
    (staging.directory / "000004-revisits-0.run").touch()
    staging.finish({"runs": [], "ledger": ["000004-revisits-0.run"]})
    assert Staging(tmp_path, WHAT, resume=True).next_task() == 5


def test_numbers_that_others_have_meanwhile_are_given_anew(tmp_path: Path) -> None:
    lengths = Settings().keys().lengths()
    staging = Staging(tmp_path, WHAT, resume=False)
    first = Numbers(staging.directory, lambda name: 0, 2)
    numbers = [first(name) for name in ("a", "b", "c")]
    first.close()
    found = [
        Settings().keys().key_of(one.digest, one.url) + encode(one, number)
        for number in numbers
        for one in (capture(at) for at in range(number, CHUNK + 5, 3))
    ]
    write_run(staging.directory / "000000-0.run", [sorted(found)])
    staging.finish(task("000000-0.run"))
    staging.renumber(lengths, lambda name: 0, 2)  # nobody has them
    assert dict(staging.names()) == {2: "a", 3: "b", 4: "c"}
    again = Staging(tmp_path, WHAT, resume=True)
    again.renumber(lengths, lambda name: 3 if name == "b" else 0, 5)
    assert dict(again.names()) == {5: "a", 6: "c"}
    now = {2: 5, 3: 3, 4: 6}
    (run,) = Staging(tmp_path, WHAT, resume=True).runs()
    assert [one for chunk in read_run(run) for one in chunk] == sorted(
        renumbered(one, lengths, now.__getitem__) for one in found
    )
    loaded = {"a": 5, "c": 6}
    again.renumber(lengths, loaded.__getitem__, 9)  # by the build itself, which was killed then
    assert dict(again.names()) == {5: "a", 6: "c"}
    again.clear()
    assert list(tmp_path.iterdir()) == []


def test_files_that_the_journal_does_not_name_are_removed(tmp_path: Path) -> None:
    staging = Staging(tmp_path, WHAT, resume=False)
    for name in ("000000-0.run", "000001-0.run", "000002-0.part"):
        (staging.directory / name).touch()
    staging.finish(task("000000-0.run"))
    again = Staging(tmp_path, WHAT, resume=True)
    assert {path.name for path in again.directory.glob("0*")} == {"000000-0.run"}
    assert again.runs() == [again.directory / "000000-0.run"]


def test_a_cut_line_is_a_task_that_was_not_done(tmp_path: Path) -> None:
    staging = Staging(tmp_path, WHAT, resume=False)
    staging.finish(task("000000-0.run"))
    with open(staging.directory / "journal.jsonl", "ab") as stream:
        stream.write(b'{"runs": ["0000')
    assert Staging(tmp_path, WHAT, resume=True).done == [task("000000-0.run")]


def test_a_damaged_journal_is_refused(tmp_path: Path) -> None:
    staging = Staging(tmp_path, WHAT, resume=False)
    with open(staging.directory / "journal.jsonl", "ab") as stream:
        stream.write(b"\x00\x01\n")
    with pytest.raises(Damaged, match="--resume"):
        Staging(tmp_path, WHAT, resume=True)


def test_another_build_starts_anew_unless_it_is_to_resume_one(tmp_path: Path) -> None:
    other = {"sources": ["y"]}
    Staging(tmp_path, WHAT, resume=False)
    with pytest.raises(SettingsConflict, match="other sources"):  # also if nothing was read yet
        Staging(tmp_path, other, resume=True)
    assert Staging(tmp_path, WHAT, resume=True).done == []
    Staging(tmp_path, WHAT, resume=False).finish(task("000000-0.run"))
    with pytest.raises(SettingsConflict, match="other sources; .* without --resume"):
        Staging(tmp_path, other, resume=True)
    assert Staging(tmp_path, WHAT, resume=True).done == [task("000000-0.run")]
    assert Staging(tmp_path, other, resume=False).done == []


def test_container_numbers_are_shared_and_kept(tmp_path: Path) -> None:
    names = ["a.warc.gz", "x" * 5000, "caf\udce9.warc.gz", ""]
    staging = Staging(tmp_path, WHAT, resume=False)
    first = Numbers(staging.directory, lambda name: 3 if name == "old.warc.gz" else 0, 7)
    given = {name: first(name) for name in [*names, "old.warc.gz"]}
    first.close()
    assert given[""] == 0
    assert given["old.warc.gz"] == 3
    assert sorted(given[name] for name in names if name) == [7, 8, 9]
    second = Numbers(staging.directory, lambda name: 0, 7)
    assert [second(name) for name in names] == [given[name] for name in names]
    assert second("new") == 10
    second.close()
    assert dict(staging.names()) == {given[name]: name for name in names if name} | {10: "new"}


def test_clearing_leaves_nothing(tmp_path: Path) -> None:
    staging = Staging(tmp_path, WHAT, resume=False)
    staging.finish(task())
    staging.clear()
    assert list(tmp_path.iterdir()) == []


def test_a_flipped_bit_of_the_journal_is_damage(tmp_path: Path) -> None:
    """What --resume takes up becomes entries with right checksums."""
    what = {"sources": ["a"]}
    Staging(tmp_path, what, resume=False).finish({"runs": [], "records": 1})
    path = tmp_path / "staging" / "journal.jsonl"
    sound = path.read_bytes()
    for bit in range(8 * sound.index(b"\n") + 8, 8 * len(sound)):
        changed = bytearray(sound)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        try:
            done = Staging(tmp_path, what, resume=True).done
        except Damaged:
            continue
        assert done == []  # its line has no end: the task is done again
