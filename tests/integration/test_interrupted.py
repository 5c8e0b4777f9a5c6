"""Ctrl-C: SIGINT to all processes of a command at once, wherever each of them is."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dedupindex import cli
from dedupindex.runtime.duckdb import open_database

_BUSY = """
import hashlib, os, signal, sys
from dedupindex import cli
from dedupindex.runtime.workers import workers

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's "&" turns off

def busy():
    os.write(1, b".")
    hashlib.pbkdf2_hmac("sha256", b"", b"", (1 << 31) - 1)  # deaf to signals while it is in C

def run(*_, **__):
    with workers(2) as pool:  # one has nothing to do
        pool.submit(busy).result()

cli.group.main = run
sys.exit(cli.main())
"""
_BEGINNING = """
import signal, sys
from threading import Thread
from dedupindex import cli
from dedupindex.runtime.workers import workers

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's "&" turns off

start = Thread.start

def interrupted(thread):
    signal.raise_signal(signal.SIGINT)
    start(thread)

def run(*_, **__):
    with workers(2, wait_for_tasks=True):
        print("it goes on")

Thread.start = interrupted
cli.group.main = run
sys.exit(cli.main())
"""
_IMPORTING = """
import runpy, signal, sys

class Interrupting:
    def find_spec(self, name, *_):
        if name == "click":
            signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's "&" turns off
sys.meta_path.insert(0, Interrupting())
runpy.run_module("dedupindex", run_name="__main__")
"""
_FAILING = """
import sys, time
from dedupindex import cli
from dedupindex.errors import BadInput
from dedupindex.runtime.workers import workers

def bad():
    raise BadInput("no good")

def run(*_, **__):
    with workers(2) as pool:
        pool.submit(time.sleep, 3600)
        pool.submit(bad).result()

cli.group.main = run
sys.exit(cli.main())
"""
_WAITING = """
import signal, sys
if sys.argv[2:] == ["default"]:  # the tests may run under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
import click
from dedupindex import cli
from dedupindex.cli.common import Command

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])

@click.command(cls=Command, interrupted="repeat it")
def waiting():
    try:
        print("ready", flush=True)
        signal.sigtimedwait([signal.SIGUSR1], 60)
    finally:
        open(sys.argv[1], "w").write("cleaned up")

cli.group.get_command = lambda *_: waiting
status = cli.main(["lookup"])
open(sys.argv[1], "a").write(f", {status}")
sys.exit(status)
"""


def test_a_query_that_is_interrupted(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), open_database(tmp_path, "100MB", 1) as (database, _):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            database.execute("SELECT sum(a.range * b.range) FROM range(10000000) a, range(1000) b")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not list(tmp_path.iterdir())


def test_an_unexpected_end_of_a_file_is_no_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although click would abort the command, as if the user had pressed Ctrl-D."""

    def read(*_: object, **__: object) -> None:
        raise EOFError("marshal data too short")

    monkeypatch.setattr(cli.group, "invoke", read)
    with pytest.raises(EOFError, match="too short"):
        cli.main(["lookup"])


def test_an_interrupted_command_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build is kept by an option only, a lookup has nothing to go on with."""

    def pressed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for words, said in (
        (("manifest", ".", "-o", "new"), "; run the same command again to resume"),
        (("index", ".", "new"), "; run the same command again, a build with --resume to keep"),
        (("lookup", ".", "--url", "http://a.example/"), "\n"),
    ):
        command = cli.group.get_command(None, words[0])  # type: ignore[arg-type]
        assert command is not None
        monkeypatch.setattr(command, "callback", pressed)
        monkeypatch.chdir(tmp_path)
        assert cli.main(words) == 130
        assert f"dedupindex: interrupted{said}" in capsys.readouterr().err


def test_processes_at_work_end_with_their_parent_and_say_nothing() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _BUSY], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.read(1) == b"."
        os.killpg(process.pid, signal.SIGINT)
        _, talk = process.communicate(timeout=120)  # until nobody has these pipes any more
    assert (process.returncode, talk) == (130, b"dedupindex: interrupted\n")


@pytest.mark.parametrize("ignored", [False, True])
def test_a_hangup_is_an_interruption_unless_it_is_ignored(tmp_path: Path, ignored: bool) -> None:
    """As ``nohup`` ignores it."""
    trap = "trap '' HUP; " if ignored else ""
    words = ["bash", "-c", f'{trap}exec "$@"', "bash", sys.executable, "-c", _WAITING]
    words += [str(tmp_path / "said"), *([] if ignored else ["default"])]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGHUP)
        if ignored:
            process.send_signal(signal.SIGUSR1)  # it goes on
        _, talk = process.communicate(timeout=120)
    expected = (0, b"") if ignored else (130, b"dedupindex: interrupted; repeat it")
    assert (process.returncode, talk.strip()) == expected


def test_a_command_whose_terminal_is_gone_cleans_up(tmp_path: Path) -> None:
    """What it prints then goes nowhere, and is no error."""
    said = tmp_path / "said"
    process, terminal = pty.fork()
    if not process:
        os.execv(sys.executable, [sys.executable, "-c", _WAITING, str(said), "default"])
    assert os.read(terminal, 5) == b"ready"
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    assert said.read_text() == "cleaned up, 130"


def test_processes_that_are_interrupted_while_they_begin() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BEGINNING], capture_output=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (130, b"dedupindex: interrupted\n")


def test_a_command_that_is_interrupted_while_it_imports_modules() -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORTING], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_an_interrupted_command_returns_to_its_python_caller() -> None:
    """Though a process is still at a task: it is waited for, or not, by the caller."""
    script = _BUSY.replace("cli.main()", "cli.main([])").replace("1 << 31", "1 << 20")
    done = subprocess.run(
        [sys.executable, "-c", script.replace(").result()", "); raise KeyboardInterrupt")
         .replace("sys.exit(", "print(")],
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert b"130" in done.stdout, done.stderr


def test_a_command_whose_task_fails_does_not_wait_for_the_other_tasks() -> None:
    """Nor for Python's own end of a pool, which may print a traceback (Python 3.11)."""
    done = subprocess.run(
        [sys.executable, "-c", _FAILING], capture_output=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (4, b"dedupindex: no good\n")
