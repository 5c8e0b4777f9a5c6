"""Commands in place: after any failure or kill, every record can be restored.

`test_rewrite_in_place` lets each single write fail or die. Here whole commands meet disks that stay
full, short writes, disks that fail, and kill -9 at random moments: ten times, or as often as
DEDUPINDEX_KILLS says.
"""

from __future__ import annotations

import builtins
import errno
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dedupindex.post_crawl.rewrite.journal import journals
from dedupindex.post_crawl.rewrite.undo_directory import DIRECTORY
from tests.support.post_crawl import Case, CommandResult, Run, tree, typed
from tests.support.rewriting import records_of
from tests.support.zstd_files import trained
from tests.unit.post_crawl.test_rewrite_in_place import wait_for

KILLS = int(os.environ.get("DEDUPINDEX_KILLS", "10"))
DATA_WRITES = ("pwrite", "copy_file_range", "ftruncate", "fsync", "mkdir")


def collection(top: Path, files: int, each: int, size: int) -> Run:
    """Files of which the first has the originals of most records in the others."""
    run, random = Run(top), Random(4)
    bodies = [random.randbytes(size) for _ in range(each)]
    for number in range(files):
        zstd = trained() if number % 3 == 2 else None
        one = Case(f"{number:02}", 500 + number, packed=bool(number % 3), zstd=zstd)
        pieces = [
            one.kept("", one.record(1, body, number=number * 1000 + at, Date=date(number, at),
                                     Target_URI=b"http://f%d.test/%d" % (number, at)))
            for at, body in enumerate([*bodies, random.randbytes(size)])
        ]  # fmt: skip
        one.file("x.warc" + ".gz" * one.packed, *pieces)
        one.write(run.source)
    run.prepare()
    return run


def date(number: int, at: int) -> bytes:
    return b"2020-01-%02dT%02d:00:00Z" % (number + 1, at % 24)


class Made:
    """A collection, the expected result of rewriting it, and how to restore it."""

    def __init__(self, top: Path, files: int, each: int, size: int) -> None:
        self.run = collection(top, files, each, size)
        self.source = self.run.source
        self.before = tree(self.source)
        self.run.to_directory()
        assert self.run.results["out verify"].status == self.run.results["out against"].status == 0
        self.result = {name: data for name, data in tree(self.run.out).items()}
        assert self.result != self.before
        self.copies = self.run.results["out"].totals["revisits"]

    def rewrite(self, *more: object) -> CommandResult:
        return typed("rewrite", self.run.plan, "--in-place", *more)

    def undo(self, *more: object) -> CommandResult:
        return typed("rewrite", self.run.plan, "--undo", *more)

    def check_safe(self) -> None:
        """Every file is the old or the new one, whole; of what is new the old is in a journal."""
        for name, data in tree(self.source).items():
            if not name.endswith(".part"):
                assert data in (self.before[name], self.result[name]), name
        dropped = {one.summary()[0].name for one in journals(self.source) if one.dropped.exists()}
        now = tree(self.source)
        assert {name for name in self.before if now[name] != self.before[name]} <= dropped

    def check_done(self) -> None:
        assert tree(self.source) == self.result
        assert not list(self.source.rglob("*.part"))

    def check_undone(self) -> None:
        assert tree(self.source) == self.before
        kept = [path.name for path in (self.source / DIRECTORY).iterdir()]
        assert kept == ["lock"]  # nothing is protected any more either


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("killed"), 4, 5, 600)


class Failing:
    """Makes writes fail from the nth on, as a full disk does; cleaning up still works."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int, number: int, *, once: bool) -> None:
        self.calls = 0
        self._at, self._number, self._once = at, number, once
        for name in DATA_WRITES:
            patch.setattr(os, name, self._wrapped(getattr(os, name)))
        self._open = builtins.open
        patch.setattr(builtins, "open", self._opened)

    def _fails(self) -> bool:
        self.calls += 1
        return self.calls == self._at or (self.calls > self._at and not self._once)

    def _wrapped(self, function: Any) -> Any:
        def called(*args: Any, **options: Any) -> Any:
            if self._fails():
                raise OSError(self._number, os.strerror(self._number))
            return function(*args, **options)

        return called

    def _opened(self, file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        if isinstance(file, Path) and mode.startswith("w") and self._fails():
            raise OSError(self._number, os.strerror(self._number), str(file))
        return self._open(file, mode, *args, **options)


def sweep(
    work: Callable[[], CommandResult], number: int, *, once: bool, step: int
) -> Iterator[CommandResult]:
    """Run a command again and again, each time with one more write that still works."""
    at = 1
    while True:
        with pytest.MonkeyPatch.context() as patch:
            failing = Failing(patch, at, number, once=once)
            result = work()
        if failing.calls < at:
            return
        yield result
        at += step


@pytest.mark.parametrize(
    ("number", "once"), [(errno.ENOSPC, False), (errno.EIO, False), (errno.EIO, True)]
)
def test_a_disk_that_is_full_or_fails(made: Made, number: int, once: bool) -> None:
    """99: each source is unchanged or rewritten, the error is reported; the next run resumes."""
    turns = 0
    for told in sweep(lambda: made.rewrite("--jobs", "1"), number, once=once, step=5):
        turns += 1
        if told.status:
            assert told.status in (3, 7) and os.strerror(number) in told.err, told.err
        made.check_safe()
        if turns % 2:
            assert made.rewrite().status == 0
            made.check_done()
        assert made.undo().status == 0
        made.check_undone()
    assert turns > 10
    assert made.undo().status == 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_undoing_on_a_disk_that_is_full_or_fails(made: Made, number: int) -> None:
    assert made.rewrite().status == 0
    turns = 0
    for _ in sweep(lambda: made.undo("--jobs", "1"), number, once=False, step=3):
        turns += 1
        made.check_safe()
        assert made.undo().status == 0
        made.check_undone()
        assert made.rewrite().status == 0
    made.check_undone()
    assert turns > 3


def test_writes_that_write_only_a_part(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may write less than it was asked to, and says so."""
    pwrite, copy = os.pwrite, os.copy_file_range

    def short(descriptor: int, data: Any, offset: int) -> int:
        return pwrite(descriptor, memoryview(data)[: max(1, len(data) // 3)], offset)

    def some(source: int, into: int, count: int, *rest: Any) -> int:
        return copy(source, into, max(1, count // 3), *rest)

    monkeypatch.setattr(os, "pwrite", short)
    monkeypatch.setattr(os, "copy_file_range", some)
    assert made.rewrite("--jobs", "1").status == 0
    made.check_done()
    assert made.undo().status == 0
    made.check_undone()


def test_a_sector_that_cannot_be_read(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is not rewritten but named; the others are rewritten."""
    bad, pread = "02/x.warc.gz", os.pread

    def fails(descriptor: int, count: int, offset: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(made.source / bad) and offset > 1000:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(descriptor, count, offset)

    monkeypatch.setattr(os, "pread", fails)
    told = made.rewrite("--jobs", "1")
    monkeypatch.undo()
    assert told.status == 7 and f"{bad} was left alone: the disk fails" in told.err
    now = tree(made.source)
    assert {name for name in now if now[name] != made.result[name]} == {bad}
    assert made.undo().status == 0
    made.check_undone()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """So much that killing meets every part of the work."""
    return Made(tmp_path_factory.mktemp("large"), 8, 24, 3000)


def killed(work: Callable[[], CommandResult], seconds: float, *, worker: bool = False) -> bool:
    """Whether a command that was killed after so long was still at work.

    All of its processes die with it. With `worker` one of those is killed, if there is one.
    """
    child = os.fork()
    if not child:
        os._exit(work().status)
    wait_for(child, seconds)
    victim = child
    if worker:
        text = Path(f"/proc/{child}/task/{child}/children").read_text().split()
        victim = int(text[0]) if text else child
    with suppress(ProcessLookupError):  # a worker may have come to its end just now
        os.kill(victim, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if worker and victim != child:
        assert os.waitstatus_to_exitcode(status) in (0, 3), "it says that one was killed"
    return status != 0


def patiently(work: Callable[[], CommandResult]) -> CommandResult:
    """Run a command as soon as the processes of the last are gone."""
    deadline = time.monotonic() + 60
    while (told := work()).status == 75 or "another process" in told.err:
        assert time.monotonic() < deadline, told.err
    return told


def test_kill_9_at_random_moments(large: Made) -> None:
    """97: a second run finishes, and undo brings back every bit, whatever was killed when."""
    random, hits = Random(KILLS), 0
    begin = time.monotonic()
    assert large.rewrite().status == 0
    duration = time.monotonic() - begin
    large.undo()
    for turn in count():
        if turn >= KILLS and hits > KILLS / 3:
            break
        assert turn < 5 * KILLS, hits  # what is measured beside others may take far less alone
        moment = random.random() * duration
        hits += killed(large.rewrite, moment, worker=turn % 5 == 4)
        large.check_safe()
        if turn % 3 == 1:  # killed once more, going on
            hits += killed(large.rewrite, random.random() * duration)
            large.check_safe()
        if turn % 3 < 2:
            result = patiently(large.rewrite)
            assert result.status == 0, result.err
            assert result.totals["revisits"] in (large.copies, 0)  # 0: the kill came after the end
            large.check_done()
        if turn % 2:
            killed(large.undo, random.random() * duration)
            large.check_safe()
        assert patiently(large.undo).status == 0
        large.check_undone()


def test_undedup_in_place_may_be_killed_at_random_moments(large: Made, tmp_path: Path) -> None:
    """What it leaves is not misread: `--out` has every bit, and a second run ends right."""
    random = Random(KILLS)

    def undedup(*more: object) -> CommandResult:
        return typed("undedup", large.source, *(more or ("--in-place",)))

    assert large.rewrite().status == 0
    begin = time.monotonic()
    assert undedup().status == 0
    duration = time.monotonic() - begin
    large.check_undone()
    for turn in range(KILLS):
        assert large.rewrite().status == 0
        killed(undedup, random.random() * duration, worker=turn % 5 == 4)
        large.check_safe()
        back = tmp_path / str(turn)
        result = patiently(lambda back=back: undedup("--out", back))  # type: ignore[misc]
        assert (result.status, result.totals["findings"]) == (0, []), result.err
        assert {name: data for name, data in tree(back).items()} == large.before
        shutil.rmtree(back)
        assert patiently(undedup).status == 0
        large.check_undone()


def test_bin_dedup_is_killed_at_random_moments(large: Made) -> None:
    """The next run completes the rewriting, or undo restores the sources."""
    random, work = Random(KILLS + 1), large.run.top / "work"

    def dedup() -> CommandResult:
        return typed("dedup", large.source, "--in-place", "--work", work)

    def undo() -> CommandResult:
        return typed("rewrite", work / "plan", "--undo")

    begin = time.monotonic()
    assert dedup().status == 0
    duration = time.monotonic() - begin
    assert undo().status == 0
    large.check_undone()
    shutil.rmtree(work)
    for turn in range(KILLS // 2):
        killed(dedup, random.random() * duration, worker=turn % 5 == 4)
        large.check_safe()
        if turn % 2 or not (work / "plan").exists():
            result = patiently(dedup)
            assert result.status == 0, result.err
            assert result.totals["revisits"] in (large.copies, 0)  # 0: the kill came after the end
            large.check_done()
        if list((work / "plan").glob("part-*")):
            assert patiently(undo).status == 0
        assert tree(large.source) == large.before
        shutil.rmtree(work)
    assert patiently(dedup).status == 0 and undo().status == 0
    large.check_undone()


def test_commit_may_be_killed_at_random_moments(large: Made, tmp_path: Path) -> None:
    """What was let go of can be made of the originals, all the rest can be undone or committed."""
    random = Random(3)
    assert large.rewrite().status == 0
    for _ in range(max(3, KILLS // 10)):
        killed(lambda: typed("rewrite", large.run.plan, "--commit"), random.random() * 0.2)
        assert tree(large.source) == large.result
    assert patiently(lambda: typed("rewrite", large.run.plan, "--commit")).status == 0
    assert not list((large.source / DIRECTORY).glob("*.dropped"))
    assert typed("undedup", large.source, "--out", tmp_path / "back").status == 0
    for name, data in large.before.items():
        (tmp_path / "old").write_bytes(data)
        assert records_of(tmp_path / "back" / name) == records_of(tmp_path / "old")
