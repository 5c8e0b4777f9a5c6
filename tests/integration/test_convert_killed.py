"""`bin/convert --to` is killed with SIGKILL and typed again: nothing is lost, nothing differs.

A hook that the interpreter loads (sitecustomize) kills the command at its nth step on files: the
command itself is what ships. Steps are those that the interpreter announces to audit hooks: files
that are opened, linked, renamed and removed. Other tests kill all processes of a run while they
write.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.post_crawl import tree
from tests.support.verifying import asked, copy_of, page
from tests.support.warc_cases import gz
from tests.support.zstd_files import trained, write_zst

KINDS = ["gzip", "zstd"]
HOOK = """
import os, signal, sys
steps, last, below = 0, int(os.environ["KILLED_AT"]), os.environ["KILLED_BELOW"]
def hook(event, arguments):
    global steps
    if event not in ("open", "os.link", "os.rename", "os.remove", "os.mkdir"):
        return
    if any(below in str(one) for one in arguments[:2]):
        steps += 1
        if steps == last:
            os.kill(os.getpid(), signal.SIGKILL)
        with open(os.environ["KILLED_LOG"], "w") as log:
            log.write(str(steps))
sys.addaudithook(hook)
"""


class Conversion:
    """A command, what it reads, what it must write, and how to kill it."""

    def __init__(self, home: Path, kind: str, size: int) -> None:
        self.home, self.source = home, home / "in"
        choice = random.Random(kind)
        for name in ("a.warc", "below/b.warc"):
            records = [page(1, choice.randbytes(size)), asked(1), copy_of(2, 1)]
            records += [page(number) for number in range(3, 20)]
            path = self.source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == "zstd":
                path.with_name(f"{path.name}.gz").write_bytes(b"".join(map(gz, records)))
            else:
                write_zst(path.with_name(f"{path.name}.zst"), records, trained())
        self.kind, self.before = kind, tree(self.source)
        assert self.run("whole") == 0
        self.whole = tree(home / "whole")

    def words(self, name: str, jobs: int = 1) -> list[str]:
        """The command that writes everything below the directory `name`."""
        top = self.home / name
        top.mkdir(exist_ok=True)
        outputs = ["--offsets", top / "map", "--cdxj", top / "new.cdxj", "--jobs", jobs]
        words = [ROOT / "bin" / "convert", "--to", self.kind, self.source, "--out", top / "out"]
        return [str(word) for word in (*words, *outputs)]

    def run(self, name: str, **env: str) -> int:
        done = subprocess.run(
            self.words(name), capture_output=True, env={**os.environ, **env}, check=False
        )
        assert b"Traceback" not in done.stderr, done.stderr
        return done.returncode

    def check(self, name: str) -> None:
        """Nothing is half there after a kill; typed again, the command writes what it should."""
        assert tree(self.source) == self.before
        top = self.home / name
        for path in top.rglob("*"):
            if path.is_file() and not path.name.startswith("."):
                assert path.read_bytes() == self.whole[str(path.relative_to(top))]
        assert self.run(name) == 0
        assert tree(self.source) == self.before
        found = tree(top)
        left = {one for one in found if one.startswith((".map.", ".new.cdxj."))}
        assert {one: found[one] for one in found.keys() - left} == self.whole


@pytest.fixture(scope="module", params=KINDS)
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Conversion:
    return Conversion(tmp_path_factory.mktemp(request.param), request.param, 3000)


def test_killed_at_steps_on_files(small: Conversion, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    hook = {"PYTHONPATH": str(tmp_path), "KILLED_LOG": str(tmp_path / "steps")}
    assert (
        small.run("counted", **hook, KILLED_AT="0", KILLED_BELOW=str(small.home / "counted")) == 0
    )
    steps = int((tmp_path / "steps").read_text())
    assert steps > 10
    for number in range(1, steps + 1, max(steps // 4, 1)):
        name = f"at-{number}"
        below = str(small.home / name)
        status = small.run(name, **hook, KILLED_AT=str(number), KILLED_BELOW=below)
        assert status == -signal.SIGKILL
        small.check(name)


@pytest.fixture(scope="module", params=KINDS)
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Conversion:
    return Conversion(tmp_path_factory.mktemp(request.param), request.param, 8 << 20)


def _parts(top: Path) -> Iterator[int]:
    for path in top.rglob(".*.warc.*.part"):
        try:
            yield path.stat().st_size
        except FileNotFoundError:  # it got its name
            continue


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "a file begun": lambda top: any(True for _ in _parts(top)),
    "a file written in part": lambda top: any(size > 2 << 20 for size in _parts(top)),
    "a file done": lambda top: any(top.rglob("[ab].warc.*")),
}


@pytest.mark.parametrize("moment,jobs", [*zip(MOMENTS, (1, 1, 2), strict=True)])
def test_killed_while_it_writes(large: Conversion, moment: str, jobs: int) -> None:
    """All processes of the command die at once."""
    reached = MOMENTS[moment]
    for turn in range(20):
        name = f"{moment} {jobs} {turn}"
        words, top = large.words(name, jobs), large.home / name
        command = subprocess.Popen(words, stderr=subprocess.DEVNULL, start_new_session=True)
        while command.poll() is None and not reached(top):
            os.sched_yield()
        if command.poll() is None:
            os.killpg(command.pid, signal.SIGKILL)
            assert command.wait() == -signal.SIGKILL
            large.check(name)
            return
    pytest.fail("it ended before it could be killed, each time")
