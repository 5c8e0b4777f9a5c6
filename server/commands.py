"""Commands that requests run in a process of low priority, because they read much.

So lookups do not wait for them, they can be killed after `LONGEST`, and their memory is freed. A
command ends with its own processes: after that time also if the worker is killed that runs it.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from threading import BoundedSemaphore
from typing import IO, NamedTuple

from werkzeug.wsgi import FileWrapper

from dedupindex.errors import (
    FOR_CLIENTS,
    STDOUT,
    BadInput,
    Damaged,
    DedupError,
    HasDependents,
    IndexUnavailable,
    SpotCheckFailed,
    as_named,
)
from dedupindex.runtime.tables import amount
from server.responses import RequestError

LONGEST = 60  # seconds of one
LARGEST = 1_000_000_000  # bytes of output that is sent as a file
AT_ONCE = 2  # in one worker, as many downloads besides, and one more of `_OF_ADMINS`
FILES = 4  # of output in one worker, from when they are written until they are sent
_OF_ADMINS = ("impact", "purge")
_PIECE = 1 << 16  # bytes of a file that are sent at a time
_TICK = 0.2  # seconds between two looks at the size of a file
_GRACE = 5  # seconds after which a command ends whose worker does not end it
_LONGEST_LINE = 1 << 24  # bytes
_NOTHING_FOUND = 10  # exit status
_ERRORS = {
    kind.exit_status: kind for kind in (BadInput, IndexUnavailable, SpotCheckFailed, Damaged)
}
_ERRORS[2] = BadInput  # wrong usage


class CommandTimeout(BadInput):
    """A command was killed because it took too long; it may have done part of its work."""


class OutputTooLarge(BadInput):
    """A command was killed because it wrote too much."""


class CommandOutput(NamedTuple):
    lines: list[bytes]  # the first ones
    last: bytes  # the last one
    messages: list[str]  # the last lines of stderr
    is_complete: bool = True  # False: it was ended early, see `run`


class OutputFile(FileWrapper):
    """The whole output of a command in pieces, from a file without a name.

    It takes one of the `slots` for files until `close`.
    """

    def __init__(self, content: IO[bytes], slots: BoundedSemaphore) -> None:
        super().__init__(content, _PIECE)
        self.size = os.fstat(content.fileno()).st_size
        self._slots = [slots]

    def close(self) -> None:  # is called once or twice, also if the client is gone
        super().close()
        if self._slots:
            self._slots.pop().release()


class Commands:
    """Runs commands on one index, a few at a time."""

    def __init__(self, index: Path) -> None:
        self._index = os.path.abspath(index)
        self._free = BoundedSemaphore(AT_ONCE)
        self._for_admins = BoundedSemaphore(1)  # readers cannot keep them from purging
        self._for_downloads = BoundedSemaphore(AT_ONCE)
        self._for_files = BoundedSemaphore(FILES)

    def typed(self, name: str, options: Sequence[str]) -> str:
        """Return what a person types to run a command on this index."""
        return typed(name, [self._index, *options])

    def run(
        self,
        name: str,
        options: Sequence[str],
        stdin: IO[bytes] | None = None,
        lines: int = 0,
        *,
        indexed: bool = True,
        enough: float = 0,
    ) -> CommandOutput:
        """Run ``bin/name INDEX``; return the first `lines` lines of its output and the last one.

        Without `indexed`, the command gets no INDEX. After `enough` seconds, if not 0, it is ended,
        and what it has printed is returned.

        Raises `BadInput`, `IndexUnavailable`, `Damaged`, or `RequestError` if too many run already.
        """
        words = _words(name, [*([self._index] if indexed else []), *options])
        with self._slot(name):
            return self._run(words, stdin, lines, enough)

    def run_to_file(self, name: str, options: Sequence[str]) -> OutputFile:
        """Run ``bin/name INDEX``; return its whole output, to be closed.

        So nothing that is cut off looks like something whole: HTTP/1.1 does not show that a stream
        has failed. Raises also what `run` does, and `OutputTooLarge`.
        """
        words = _words(name, [self._index, *options])
        with ExitStack() as held:
            _take(self._for_files, held, f"{FILES} lists are being sent already")
            with ExitStack() as making:
                _take(self._for_downloads, making, f"{AT_ONCE} lists are being prepared already")
                output = held.enter_context(_temporary_file())
                self._write(words, output)
            output.seek(0)
            content = OutputFile(output, self._for_files)
            held.pop_all()
        return content

    def _write(self, words: list[str], output: IO[bytes]) -> None:
        """Run a command that writes to a file."""
        end = time.monotonic() + LONGEST
        with _temporary_file() as stderr, _begin(words, None, output, stderr) as process:
            try:
                while process.poll() is None:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(_TICK)
                    if os.fstat(output.fileno()).st_size > LARGEST:
                        raise OutputTooLarge(
                            f"this has more than {amount(LARGEST)}: use bin/{words[0]} itself"
                        )
                    if time.monotonic() > end:
                        raise _too_long(words[0])
            finally:
                _kill(process)
            _check(words[0], process.returncode, _messages(stderr))

    @contextmanager
    def _slot(self, name: str) -> Iterator[None]:
        """Take one of the slots for commands; raises `RequestError` if there is none."""
        slots = [self._free, *([self._for_admins] if name in _OF_ADMINS else [])]
        taken = next((slot for slot in slots if slot.acquire(blocking=False)), None)
        if taken is None:
            raise RequestError(
                "overloaded", f"{AT_ONCE} commands are running already; try again soon"
            )
        try:
            yield
        finally:
            taken.release()

    def _run(
        self, words: list[str], stdin: IO[bytes] | None, lines: int, enough: float
    ) -> CommandOutput:
        with (
            _temporary_file() as stderr,
            _begin(words, stdin, subprocess.PIPE, stderr) as process,
        ):
            assert process.stdout is not None
            late = threading.Event()

            def end() -> None:
                late.set()
                _kill(process)

            timer = threading.Timer(enough or LONGEST, end)
            timer.start()
            try:
                first_lines, last = _lines(process.stdout, lines)
                process.wait()
            finally:
                timer.cancel()
                _kill(process)
            messages = _messages(stderr)
        if late.is_set() and enough:
            return CommandOutput(first_lines, last, messages, is_complete=False)
        if late.is_set():
            raise _too_long(words[0])
        _check(words[0], process.returncode, messages)
        return CommandOutput(first_lines, last, messages)


def _words(name: str, options: Sequence[str]) -> list[str]:
    """Return the words of a command; raises `BadInput` if no process can be given them."""
    if any("\0" in option for option in options):
        raise BadInput("a name cannot hold a byte of 0")
    return [name, *options]


def _take(slots: BoundedSemaphore, held: ExitStack, why: str) -> None:
    """Take a slot until `held` is closed; raises `RequestError` if there is none."""
    if not slots.acquire(blocking=False):
        raise RequestError("overloaded", f"{why}; try again soon")
    held.callback(slots.release)


def _temporary_file() -> IO[bytes]:
    """Return a file without a name; raises `IndexUnavailable`."""
    try:
        return TemporaryFile()
    except OSError as error:
        why = error.strerror or error
        raise IndexUnavailable(f"no temporary file can be made (TMPDIR): {why}") from error


def _too_long(name: str) -> CommandTimeout:
    return CommandTimeout(f"this takes more than {LONGEST} seconds: use bin/{name} itself")


def _begin(
    words: list[str], stdin: IO[bytes] | None, stdout: IO[bytes] | int, stderr: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a command, which ends after `LONGEST` and `_GRACE`, whoever is left to end it."""
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [
            *("timeout", "-s", "KILL", str(LONGEST + _GRACE), "nice", "-n", "10"),
            *(sys.executable, "-m", "dedupindex", *words),
        ],
        env={**os.environ, "PYTHONPATH": path, FOR_CLIENTS: "1"},
        stdin=stdin or subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )


def typed(name: str, words: Sequence[str]) -> str:
    """Return a command as a person types it."""
    return f"{as_named(f'bin/{name}')} {shlex.join(words)}"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a command that has not been waited for, and all processes that it started."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _lines(stream: IO[bytes], most: int) -> tuple[list[bytes], bytes]:
    """Return the first lines of a stream, and the last one, in bounded memory."""
    first_lines: list[bytes] = []
    last = b""
    while line := stream.readline(_LONGEST_LINE):
        if last and len(first_lines) < most:
            first_lines.append(last)
        last = line
    return first_lines, last


def _messages(stream: IO[bytes]) -> list[str]:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(size - (1 << 14), 0))
    lines = stream.read().decode("utf-8", "replace").splitlines()
    return [line for line in lines if line][-20:]


def _check(name: str, status: int, messages: list[str]) -> None:
    """Raise the error that the exit status means."""
    text = messages[-1].removeprefix("dedupindex: ") if messages else f"bin/{name} gave no message"
    if status == Damaged.exit_status and name in ("report", "dedup"):
        return  # they leave out what is damaged, and report it
    if status == _NOTHING_FOUND and name in ("list", "impact", "purge"):
        return
    if status == HasDependents.exit_status and name == "purge":
        raise HasDependents(text)
    if status == DedupError.exit_status and text.startswith(f"{STDOUT}: "):
        text = text.replace(STDOUT, "temporary files (TMPDIR)", 1)  # one of these here
    if status == DedupError.exit_status and "(TMPDIR)" in text:
        raise IndexUnavailable(text)  # the disk is full
    if status in _ERRORS:
        raise _ERRORS[status](text)
    if status:
        raise RuntimeError(f"bin/{name} ended with {status}: {messages}")
