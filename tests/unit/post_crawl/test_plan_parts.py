"""Large files are checked and verified in parts: with the same result as whole ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from dedupindex.post_crawl.dedup_all import DedupOptions, dedup
from dedupindex.post_crawl.plan import plan_file
from dedupindex.post_crawl.plan.plan_file import Planned, open_plan
from dedupindex.post_crawl.rewrite import rewrite_all
from dedupindex.post_crawl.rewrite.check_copies import CheckedPart, CopyChecker
from dedupindex.post_crawl.rewrite.rewrite_file import RewriteJob, check_part, rewrite_container
from dedupindex.post_crawl.verify_results import VerifyJob, verify_containers
from tests.support.rewriting import FakePlan, all_proofs, content, run, small_set

Spoil = Callable[[bytearray], None]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    small_set(tmp_path / "in")
    return tmp_path / "in"


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make parts of one copy or two."""
    monkeypatch.setattr(plan_file, "_MIN_PART", 1)
    monkeypatch.setattr(plan_file, "_PARTS", 4)


def test_parts_follow_each_other_and_begin_at_copies(source: Path, tiny: None) -> None:
    plan = FakePlan(source)
    plan.preload()
    parts = plan.parts(2)
    assert plan.parts(1) == {
        number: [range(file.size)] for number, file in plan.containers().items()
    }
    assert [len(parts[number]) for number in sorted(parts)] == [1, 4, 6]
    for number, file in plan.containers().items():
        places = parts[number]
        assert places[0].start == 0 and places[-1].stop == file.size
        assert [part.stop for part in places[:-1]] == [part.start for part in places[1:]]
        offsets = [planned.line.offset for planned in plan.copies(number)]
        assert {part.start for part in places[1:]} <= set(offsets)
        within = [[one.line.offset for one in plan.copies(number, part)] for part in places]
        assert sum(within, []) == offsets and all(within[1:])


@pytest.mark.parametrize("place", ["out", "in place", "dry"])
def test_parts_make_the_same_files(source: Path, tiny: None, place: str) -> None:
    job = RewriteJob(FakePlan(source), dry=place == "dry")
    if place == "in place":
        whole = job._replace(out=source.parent / "whole")
        expected, made = run(whole), source
    else:
        expected, made = run(job._replace(out=source.parent / "whole")), source.parent / "parts"
        job = job._replace(out=made)
    found = run(job, 2)
    if place == "in place":  # its journals have the removed records, too
        for one, other in zip(found, expected, strict=True):
            assert one.journal > other.journal or not one.revisits
            one.journal = other.journal
    assert [vars(one) for one in found] == [vars(one) for one in expected]
    assert place == "dry" or content(made) == content(source.parent / "whole")


def test_what_was_checked_before_is_not_read_again(
    source: Path, tmp_path: Path, tiny: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = FakePlan(source)
    plan.preload()
    job = RewriteJob(plan, tmp_path / "out")
    container = plan.container(3)  # deep/b.warc.gz
    checked = [
        check_part(job, container, part, tmp_path / str(part.start))
        for part in plan.parts(2)[container.number]
    ]
    calls: list[Planned] = []
    check = CopyChecker.check

    def counted(self: CopyChecker, planned: Planned) -> Any:
        calls.append(planned)
        return check(self, planned)

    monkeypatch.setattr(CopyChecker, "check", counted)
    assert rewrite_container(job, container, checked[::-1]).revisits == 12 and not calls
    (tmp_path / "out" / container.name).unlink()
    path = source / container.name
    os.utime(path, ns=(0, container.mtime_ns + 1))  # it may be another file since
    assert rewrite_container(job, container, checked).revisits == 12 and len(calls) == 12


@pytest.mark.parametrize("how", ["writer", "changed", "gone"])
def test_a_part_of_a_file_that_cannot_be_used(source: Path, tmp_path: Path, how: str) -> None:
    """The rewriting of the whole file says why."""
    plan = FakePlan(source)
    plan.preload()
    job, container = RewriteJob(plan, tmp_path / "out"), plan.container(3)
    path, part = source / container.name, range(container.size)
    if how == "changed":
        path.write_bytes(path.read_bytes() + b"\0")
    if how == "gone":
        path.unlink()
    with open(path if how != "gone" else os.devnull, "r+b" if how == "writer" else "rb"):
        checked = check_part(job, container, part, tmp_path / "spool")
        assert checked == CheckedPart(3, part, tmp_path / "spool", None)
        assert rewrite_container(job, container, [checked]).state == "left_alone"


def _nothing(data: bytearray) -> None:
    pass


def _flipped(share: float) -> Spoil:
    def spoil(data: bytearray) -> None:
        data[int(len(data) * share)] ^= 4

    return spoil


def _cut(data: bytearray) -> None:
    del data[len(data) * 2 // 3 :]


def _longer(data: bytearray) -> None:
    data += data[: len(data) // 4]


def _moved(data: bytearray) -> None:
    data[:0] = data[: data.find(b"\x1f\x8b\x08", 3)]


_SPOILS = [_nothing, _cut, _longer, _moved, *map(_flipped, (0.01, 0.2, 0.5, 0.77, 0.99))]


@pytest.mark.parametrize("in_place", [False, True])
def test_parts_find_what_whole_files_do(
    source: Path, tmp_path: Path, tiny: None, in_place: bool
) -> None:
    out = None if in_place else tmp_path / "out"
    work = tmp_path / "work"
    assert dedup([str(source)], DedupOptions(out=out, work=work)).proof.sound
    plan = open_plan(work / "plan")
    plan.preload()
    assert max(map(len, plan.parts(2).values())) > 2
    job = VerifyJob(RewriteJob(plan, out), frozenset())
    containers = list(plan.containers().values())
    for name, spoil in product(("a.warc.gz", "deep/b.warc.gz", "c.warc"), _SPOILS):
        made = (out or source) / name
        before = made.read_bytes()
        spoil(data := bytearray(before))
        made.write_bytes(data)
        whole, parts = (all_proofs(verify_containers(job, containers, jobs)) for jobs in (1, 2))
        assert vars(parts) == vars(whole) and whole.files == 3
        kept = in_place and name == "a.warc.gz"  # nothing in it was rewritten
        assert whole.sound == (spoil is _nothing) or kept
        made.write_bytes(before)


def test_a_killed_process_ends_the_run_and_leaves_no_file_behind(
    source: Path, tmp_path: Path, tiny: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = tmp_path / "temporary"
    beside.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(beside))
    monkeypatch.setattr(rewrite_all, "check_part", lambda *words: os._exit(9))
    with pytest.raises(rewrite_all.DedupError, match="was killed"):
        run(RewriteJob(FakePlan(source), tmp_path / "out"), 2)
    assert not list(beside.iterdir()) and not content(tmp_path / "out")
