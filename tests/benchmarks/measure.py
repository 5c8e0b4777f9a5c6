"""What a command costs: whole processes, pinned to cores, with everything they start."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
_PAGE = os.sysconf("SC_PAGE_SIZE")
_POLL = 0.05  # seconds between two looks at memory


class Failed(Exception):
    """A measured command ended badly: its figures would mean nothing."""


@dataclass(frozen=True)
class Spent:
    """What one run cost."""

    wall: float  # seconds
    cpu: float  # seconds, of the process and all it waited for
    rss: int = 0  # peak bytes resident, mapped files included, all processes together
    private: int = 0  # peak bytes of its own (anonymous), all processes together
    out: str = ""


@dataclass(frozen=True)
class Cores:
    """Where what is measured runs, and where the rest does."""

    one: frozenset[int]  # a single core
    other: frozenset[int]  # another one, the same if there is no other
    both: frozenset[int]

    @classmethod
    def here(cls) -> Cores:
        free = sorted(os.sched_getaffinity(0))
        return cls(frozenset(free[-1:]), frozenset(free[:1]), frozenset({free[0], free[-1]}))


def environment(**more: str) -> dict[str, str]:
    """Ours, without the settings of dedupindex that somebody may have made."""
    kept = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith("DEDUPINDEX_") or name == "DEDUPINDEX_VENV"
    }
    kept.pop("PYTHONDONTWRITEBYTECODE", None)  # would make every start compile our modules
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def start(
    command: Sequence[object],
    cores: frozenset[int],
    *,
    stdin: IO[bytes] | None = None,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int | IO[bytes] = subprocess.DEVNULL,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, on some cores only."""
    ours = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)  # of this thread; what it starts inherits that
    try:
        return subprocess.Popen(
            [str(word) for word in command],
            stdin=stdin or subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=dict(env) if env is not None else environment(),
            start_new_session=True,
        )
    finally:
        os.sched_setaffinity(0, ours)


@contextmanager
def running(
    command: Sequence[object], cores: frozenset[int], **more: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """A command that serves until the block ends; what it started ends with it."""
    process = start(command, cores, **more)
    try:
        yield process
    finally:
        for word in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                os.killpg(process.pid, word)
            try:
                process.wait(10)
                break
            except subprocess.TimeoutExpired:
                continue
        if process.stdout:
            process.stdout.close()


def run(
    command: Sequence[object],
    cores: frozenset[int],
    *,
    stdin: IO[bytes] | None = None,
    env: Mapping[str, str] | None = None,
) -> Spent:
    """Run a command to its end; raises `Failed` with its last words."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as words:
        begin = time.perf_counter()
        process = start(command, cores, stdin=stdin, stdout=out, stderr=words, env=env)
        watch = Watch(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
        watch.stop()
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        if process.returncode:
            words.seek(0)
            last = (words.read() + out.read())[-2000:].decode("utf-8", "replace")
            raise Failed(f"{command[0]} ended with {process.returncode}: {last}")
        text = out.read().decode("utf-8", "replace")
    return Spent(wall, usage.ru_utime + usage.ru_stime, watch.rss, watch.private, text)


class Watch:
    """Looks at the memory of a session of processes, now and then, until it is stopped."""

    def __init__(self, session: int) -> None:
        self.rss = self.private = 0
        self._session, self._over = session, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(_POLL):
            rss, private = memory(self._session)
            self.rss, self.private = max(self.rss, rss), max(self.private, private)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


@contextmanager
def watched(session: int) -> Iterator[Watch]:
    """The memory of a session of processes until the block ends."""
    watch = Watch(session)
    try:
        yield watch
    finally:
        watch.stop()


def size_on_disk(path: Path) -> int:
    """Bytes of disk that a file, or all files of a directory, take: holes take none."""
    files = [path, *path.rglob("*")]
    return sum(file.stat().st_blocks * 512 for file in files if file.is_file())


def processor_time(session: int) -> float:
    """Seconds of processor time of all processes of a session that still run."""
    spent = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.getsid(int(name)) == session:
                # After the name in brackets: state is field 3, utime and stime 14 and 15 (proc(5)).
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                spent += int(fields[11]) + int(fields[12])
        except (OSError, ValueError):
            continue  # ended meanwhile
    return spent / os.sysconf("SC_CLK_TCK")


def memory(session: int) -> tuple[int, int]:
    """Bytes resident, and of these private, of all processes of a session."""
    rss = private = 0
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            if os.getsid(int(name)) != session:
                continue
            _, resident, shared, *_ = Path(f"/proc/{name}/statm").read_text().split()
        except (OSError, ValueError):
            continue  # ended meanwhile
        rss += int(resident) * _PAGE
        private += (int(resident) - int(shared)) * _PAGE
    return rss, private
