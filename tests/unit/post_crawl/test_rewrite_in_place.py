"""In place: no record is lost if any write fails or the process is killed at any point."""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from select import select
from typing import Any

import pytest

from dedupindex.errors import DedupError, IndexBusy
from dedupindex.post_crawl.rewrite.journal import Journal, discard_unfinished, journals
from dedupindex.post_crawl.rewrite.protection import protected, record_key
from dedupindex.post_crawl.rewrite.rewrite_file import RewriteJob
from dedupindex.post_crawl.rewrite.rewrite_outcome import RewriteOutcome
from dedupindex.post_crawl.rewrite.undo_directory import DIRECTORY
from dedupindex.post_crawl.undo import Restored, Undo, commit, restore
from dedupindex.runtime.files import exclusive
from tests.support.rewriting import FakePlan, content, members, records_of, run, small_set, total
from tests.support.warc_cases import response

WRITES = (
    "pwrite", "copy_file_range", "fsync", "replace", "fchmod", "utime", "unlink", "mkdir",
    "ftruncate",
)  # fmt: skip


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A set of files, and the expected result of rewriting it."""
    small_set(tmp_path / "in")
    run(RewriteJob(FakePlan(tmp_path / "in"), tmp_path / "out"))
    return tmp_path


def undo(root: Path) -> list[str]:
    return [restore(Undo(root, one.summary()[0].name, None)).state for one in journals(root)]


def parts(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.name.endswith(".part")]


def test_in_place_equals_the_directory_and_undo_restores(made: Path) -> None:
    source, result = made / "in", content(made / "out")
    before, times = content(source), [path.stat().st_mtime_ns for path in source.rglob("*.warc*")]
    plan = FakePlan(source)
    dry = total(run(RewriteJob(plan, dry=True)))
    found = total(run(RewriteJob(plan)))
    assert dry == found and found.revisits == 19
    assert content(source) == result
    again = run(RewriteJob(plan))
    assert total(again).revisits == 19
    assert [one.state for one in again] == ["kept", "existing", "existing"]
    assert undo(source) == ["exact", "exact"]
    assert content(source) == before
    assert times == [path.stat().st_mtime_ns for path in source.rglob("*.warc*")]
    assert list(journals(source)) == [] and parts(source) == []


class Failing:
    """Makes the nth call of any function that writes fail, or die."""

    def __init__(self, at: int, how: Callable[[], None]) -> None:
        self.at, self.how, self.calls = at, how, 0
        self.before = {name: getattr(os, name) for name in WRITES}

    def __enter__(self) -> Failing:
        for name, function in self.before.items():
            setattr(os, name, self._wrapped(function))
        return self

    def __exit__(self, *exception: object) -> None:
        for name, function in self.before.items():
            setattr(os, name, function)

    def _wrapped(self, function: Any) -> Any:
        def called(*args: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == self.at:
                self.how()
            return function(*args, **options)

        return called


def full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def sweep(work: Callable[[], None], how: Callable[[], None]) -> Iterator[bool]:
    """Runs `work` again and again, failing at its first write, its second, and so on.

    Yields after each whether it has failed; ends with the run that has no such write.
    """
    at = 1
    while True:
        failing = Failing(at, how)
        failed = False
        try:
            with failing:
                work()
        except (OSError, DedupError):
            failed = True
        yield failed
        if failing.calls < at:
            return
        at += 1


def check_nothing_lost(source: Path, before: dict[str, bytes], result: dict[str, bytes]) -> None:
    """Every file is the old or the new one, complete; new ones can be undone."""
    for name, data in content(source).items():
        if not name.endswith(".part"):
            assert data in (before[name], result[name]), name


def test_any_write_may_fail(made: Path) -> None:
    before, result = content(made / "in"), content(made / "out")
    source = made / "in"
    plan = FakePlan(source)
    outcomes = sweep(lambda: void(run(RewriteJob(plan))), full)
    count = 0
    for failed in outcomes:
        count += failed
        check_nothing_lost(source, before, result)
        if failed:
            run(RewriteJob(plan))
        assert content(source) == result and parts(source) == []
        undo(source)
        assert content(source) == before and list(journals(source)) == []
        plan.__init__(source)  # type: ignore[misc]
    assert count > 20


def test_any_write_of_undo_may_fail(made: Path) -> None:
    before, result = content(made / "in"), content(made / "out")
    source = made / "in"
    run(RewriteJob(FakePlan(source)))
    count = 0
    for failed in sweep(lambda: void(undo(source)), full):
        count += failed
        check_nothing_lost(source, before, result)
        undo(source)
        assert content(source) == before and list(journals(source)) == [] and not parts(source)
        run(RewriteJob(FakePlan(source)))
        assert content(source) == result
    assert count > 10


def void(_: object) -> None:
    return None


def killed(work: Callable[[], None], at: int) -> bool:
    """Run `work` in a process that is killed at its nth write; False if it has none."""
    child = os.fork()
    if not child:
        try:
            with Failing(at, lambda: os.kill(os.getpid(), signal.SIGKILL)):
                work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert status == 0 or os.WIFSIGNALED(status), "it must die or come to its end"
    return status != 0


def counts(outcomes: list[RewriteOutcome]) -> list[tuple[dict[str, Any], dict[str, Any], Any]]:
    """What a report adds up: the same whatever interrupted the run, and the sums of each other."""
    for one in outcomes:
        sums = [sum(column) for column in zip(*one.hosts.values(), strict=True)] or [0, 0]
        assert sums == [one.revisits, one.bytes_before - one.bytes_after], one
        assert one.records == one.revisits + one.refused.total()
    return [(one.as_json(), one.hosts, one.refused) for one in outcomes]


def test_a_run_may_be_killed_before_any_write(made: Path) -> None:
    before, source = content(made / "in"), made / "in"
    plan, at = FakePlan(source), 1
    run(RewriteJob(plan, made / "less", min_size=1800))
    result = content(made / "less")
    counted = counts(run(RewriteJob(plan, min_size=1800, dry=True)))
    assert any(hosts for _, hosts, _ in counted) and any(refused for *_, refused in counted)
    while killed(lambda plan=plan: void(run(RewriteJob(plan, min_size=1800))), at):
        check_nothing_lost(source, before, result)
        # Every second time it is undone as it was left, else finished first.
        if at % 2:
            assert counts(run(RewriteJob(plan, min_size=1800))) == counted
            assert content(source) == result and parts(source) == []
        undo(source)
        kept = {name: data for name, data in content(source).items() if not name.endswith("part")}
        assert kept == before
        plan = FakePlan(source)
        at += 1
    assert at > 20


def test_what_a_killed_run_protects_is_what_its_revisits_refer_to(made: Path) -> None:
    """Each original of a replaced file stays protected, and undone none is any more."""
    before, source, at, replaced = content(made / "in"), made / "in", 1, 0
    plan = FakePlan(source)
    counted = counts(run(RewriteJob(plan, dry=True)))
    while killed(lambda plan=plan: void(run(RewriteJob(plan))), at):
        discard_unfinished(source)
        for planned in plan.found:
            file, original = plan.container(planned.line.container), planned.original
            if content(source)[file.name] != before[file.name]:
                key = record_key(original.url, original.date)
                assert key in protected(source / plan.container(original.container).name)
                replaced += 1
        undo(source)
        assert [path.name for path in (source / DIRECTORY).glob("*") if path.name != "lock"] == []
        plan, at = FakePlan(source), at + 1
        assert counts(run(RewriteJob(plan, dry=True))) == counted
    assert at > 20 and replaced


def test_a_killed_run_does_not_take_the_protection_of_an_earlier_one(made: Path) -> None:
    """The revisits of a file may have their journal in a directory above or below."""
    inner, plan = made / "in" / "deep", FakePlan(made / "in")
    run(RewriteJob(plan))
    journal = next(one for one in journals(made / "in") if one.name == "deep/b.warc.gz")
    pins = {path: path.read_bytes() for path in (made / "in" / DIRECTORY).glob("*.pins")}
    folder = inner / DIRECTORY
    folder.mkdir()
    lines = journal.lines.read_text().replace('"deep/b.warc.gz"', '"b.warc.gz"')
    lines = lines.replace('"root": ""', json.dumps({"root": str(made / "in")})[1:-1])
    part = Journal(inner, "b.warc.gz").lines
    part.with_name(f"{part.name}.part").write_text(lines)
    discard_unfinished(inner)
    assert not list(folder.iterdir()) and pins
    assert {path: path.read_bytes() for path in (made / "in" / DIRECTORY).glob("*.pins")} == pins


def test_undo_may_be_killed_before_any_write(made: Path) -> None:
    before = content(made / "in")
    source = made / "in"
    at = 1
    while True:
        run(RewriteJob(FakePlan(source)))
        if not killed(lambda: void(undo(source)), at):
            break
        undo(source)
        assert content(source) == before and list(journals(source)) == []
        at += 1
    assert at > 10 and content(source) == before


def test_a_run_may_be_killed_at_any_time(made: Path) -> None:
    """Several processes are at work, and all of them die with the one that is killed."""
    before, result = content(made / "in"), content(made / "out")
    source, moments = made / "in", Random(5)
    for turn in range(10):
        plan = FakePlan(source)
        child = os.fork()
        if not child:
            run(RewriteJob(plan), 2)
            os._exit(0)
        wait_for(child, moments.random() * 0.1)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        check_nothing_lost(source, before, result)
        deadline = time.monotonic() + 60
        while True:  # the workers die too, and only then can another run begin
            try:
                run(RewriteJob(plan), 2)
                break
            except IndexBusy:
                assert time.monotonic() < deadline
        assert content(source) == result and parts(source) == []
        undo(source)
        assert content(source) == before, turn


def wait_for(child: int, seconds: float) -> None:
    """Let some time pass, at most until a process ends."""
    descriptor = os.pidfd_open(child)
    select([descriptor], [], [], seconds)
    os.close(descriptor)


def test_a_second_run_does_not_wait(made: Path) -> None:
    source = made / "in"
    (source / DIRECTORY).mkdir()
    with exclusive(source / DIRECTORY / "lock", "x"), pytest.raises(IndexBusy):
        run(RewriteJob(FakePlan(source)))


def test_files_with_links_or_writers_are_not_rewritten(made: Path) -> None:
    source = made / "in"
    os.link(source / "c.warc", made / "another")
    plan = FakePlan(source)
    before = content(source)
    with open(source / "deep" / "b.warc.gz", "ab"):
        found = {one.name: one for one in run(RewriteJob(plan))}
    assert [one.state for one in found.values()] == ["kept", "left_alone", "left_alone"]
    assert "hard links" in found["c.warc"].problem
    assert "writing" in found["deep/b.warc.gz"].problem
    assert content(source) == before
    (source / "deep" / "b.warc.gz").rename(made / "elsewhere")
    (source / "deep" / "b.warc.gz").symlink_to(made / "elsewhere")
    assert "symbolic" in run(RewriteJob(plan))[2].problem


def test_a_file_with_several_names_is_not_rewritten(made: Path) -> None:
    """What refers to it by one name would not know that it was replaced by the other."""
    source = made / "in"
    (source / "0.warc").symlink_to("c.warc")
    before = content(source)
    for job in (RewriteJob(FakePlan(source), dry=True), RewriteJob(FakePlan(source))):
        found = {one.name: one for one in run(job)}
        remove = f"Remove or move what is a symbolic link ({source}/0.warc), then repeat this"
        for name, other in (("0.warc", "c.warc"), ("c.warc", "0.warc")):
            said = f"the set contains it under several names: also {source}/{other}. {remove}"
            assert found[name].problem == said
        assert found["deep/b.warc.gz"].revisits == 12
    after = content(source)
    assert {name for name in before if before[name] != after[name]} == {"deep/b.warc.gz"}


def test_of_hard_links_one_name_is_to_stay(made: Path) -> None:
    source = made / "in"
    os.link(source / "c.warc", source / "0.warc")
    found = {one.name: one for one in run(RewriteJob(FakePlan(source)))}
    said = f"also {source}/c.warc. These are hard links: remove all names but one"
    assert said in found["0.warc"].problem
    (source / "0.warc").unlink()
    assert run(RewriteJob(FakePlan(source)))[1].state == "rewritten"


@pytest.mark.parametrize("code", [errno.EPERM, errno.EROFS, errno.EBUSY])
def test_a_file_that_cannot_be_replaced_is_left_alone(
    made: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with an immutable file, ``chattr +i``: the others are rewritten, and undone."""
    source, replace = made / "in", os.replace
    before = content(source)

    def refuse(old: Any, new: Any) -> None:
        if new == source / "c.warc":
            raise OSError(code, os.strerror(code), str(new))
        replace(old, new)

    monkeypatch.setattr(os, "replace", refuse)
    found = {one.name: one for one in run(RewriteJob(FakePlan(source)))}
    assert found["c.warc"].state == "left_alone"
    assert found["c.warc"].problem == f"it cannot be replaced: {os.strerror(code)}"
    assert found["deep/b.warc.gz"].state == "rewritten"
    assert [one.summary()[0].name for one in journals(source)] == ["deep/b.warc.gz"]
    assert parts(source) == []
    undo(source)
    assert content(source) == before


@pytest.mark.parametrize("code", [errno.EPERM, errno.EBUSY])
def test_an_undo_names_the_file_that_cannot_be_replaced(
    made: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not its temporary name, which the system names."""
    source, replace = made / "in", os.replace
    before = content(source)
    run(RewriteJob(FakePlan(source)))

    def refuse(old: Any, new: Any) -> None:
        if new == source / "c.warc":
            raise OSError(code, os.strerror(code), str(old), None, str(new))
        replace(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        found = restore(Undo(source, "c.warc", None))
    assert (found.state, found.problem) == (
        "left_alone", f"it cannot be replaced: {os.strerror(code)}",
    )  # fmt: skip
    undo(source)
    assert content(source) == before and parts(source) == []


@pytest.mark.parametrize("dry", [False, True])
@pytest.mark.parametrize("change", [-1, 1])
def test_an_undo_says_that_a_file_is_not_the_one_of_the_run(
    made: Path, change: int, dry: bool
) -> None:
    source = made / "in"
    run(RewriteJob(FakePlan(source)))
    file = source / "c.warc"
    after = file.read_bytes()
    file.write_bytes(after[:change] if change < 0 else after + b"\n")
    found = restore(Undo(source, "c.warc", None, dry=dry))
    assert found.problem.startswith("it is neither the file before the run nor the file after it: ")
    file.write_bytes(after)
    assert restore(Undo(source, "c.warc", None, dry=dry)).state == "exact"


def test_a_changed_file_is_not_rewritten(made: Path) -> None:
    source = made / "in"
    plan = FakePlan(source)
    data = (source / "c.warc").read_bytes()
    (source / "c.warc").write_bytes(data[:-9] + b"\0" + data[-8:])
    assert [one.state for one in run(RewriteJob(plan))] == ["kept", "left_alone", "rewritten"]


def test_free_space_is_checked_before_anything_is_written(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dedupindex.runtime.atomic_replace.free_space", lambda path: 1000)
    before = content(made / "in")
    with pytest.raises(DedupError, match="no archive was written"):
        run(RewriteJob(FakePlan(made / "in")))
    assert content(made / "in") == before


def test_commit_deletes_dropped_records_which_originals_restore(made: Path) -> None:
    source = made / "in"
    before = content(source)
    run(RewriteJob(FakePlan(source)))
    tasks = [Undo(source, one.summary()[0].name, None) for one in journals(source)]
    holder = source / "a.warc.gz"
    kept = holder.read_bytes()
    holder.write_bytes(kept[:900] + b"!" + kept[901:])
    assert [commit(task).state for task in tasks] == ["left_alone", "left_alone"]
    holder.unlink()
    assert [commit(task).state for task in tasks] == ["left_alone", "left_alone"]
    holder.write_bytes(kept)
    assert [commit(task).state for task in tasks] == ["committed", "committed"]
    assert not list((source / DIRECTORY).glob("*.dropped"))
    states = {name: restore(Undo(source, name, made / "back")).state for name in before}
    assert sorted(states.values()) == ["copied", "exact", "rebuilt"]
    assert states["c.warc"] == "exact"  # it is not compressed
    assert (made / "back/c.warc").read_bytes() == before["c.warc"]
    for name in before:
        old = made / "old" / name
        old.parent.mkdir(parents=True, exist_ok=True)
        old.write_bytes(before[name])
        assert records_of(made / "back" / name) == records_of(old)


@pytest.mark.parametrize("work", [restore, commit])
def test_a_file_that_was_changed_after_the_run_is_neither_undone_nor_committed(
    made: Path, work: Callable[[Undo], Restored]
) -> None:
    source = made / "in"
    before = (source / "c.warc").read_bytes()
    run(RewriteJob(FakePlan(source)))
    task = Undo(source, "c.warc", None)
    with open(source / "c.warc", "ab") as file:
        file.write(b"\r\n")
    found = work(task)
    assert found.state == "left_alone" and "it was changed after the run" in found.problem
    assert "or bin/undedup DIR --out OTHER rebuilds the records" in found.problem
    (source / "c.warc").write_bytes(before)
    if work is commit:
        assert "it is the file before the run again" in commit(task).problem
    assert restore(task).state == "existing"


def test_a_later_run_builds_on_a_committed_one(made: Path) -> None:
    """Its originals are counted from files as they were then, whatever happened before."""
    source = made / "in"
    run(RewriteJob(FakePlan(source)))
    for one in list(journals(source)):
        assert commit(Undo(source, one.summary()[0].name, None)).state == "committed"
    later = Random(9).randbytes(2000)  # what c.warc has an original of, moved by the first run
    data = members(
        response(later, number=77, Target_URI=b"http://later/", Date=b"2026-12-01T00:00:00Z")
    )
    (source / "d.warc.gz").write_bytes(data)
    before = content(source)
    plan = FakePlan(source)
    assert [planned.original.container for planned in plan.found] == [2]
    assert total(run(RewriteJob(plan))).revisits == 1
    assert restore(Undo(source, "d.warc.gz", made / "back")).state == "exact"
    (task,) = [Undo(source, one.summary()[0].name, None) for one in journals(source)]
    assert commit(task).state == "committed"
    assert restore(Undo(source, "d.warc.gz", made / "again")).state == "rebuilt"
    (made / "old").mkdir()
    (made / "old" / "d.warc.gz").write_bytes(before["d.warc.gz"])
    assert records_of(made / "again" / "d.warc.gz") == records_of(made / "old" / "d.warc.gz")
