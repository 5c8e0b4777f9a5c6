"""Run commands in this process, without another interpreter, or in one that can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import BytesIO, TextIOWrapper
from unittest.mock import patch

import pytest

from dedupindex.cli import main
from tests.support.paths import ROOT


def typed(*words: object, status: int = 0, text: str | None = None, **env: str) -> tuple[str, str]:
    """Run a command with `text` as its input and more environment; return stdout and stderr.

    `dedupindex` of tests.unit.cli.test_cli does the same in a process of its own, for tests where
    the process matters: its exit, its standard streams, a name that is no text.
    """
    code, output, messages = ended(*words, text=text, **env)
    assert code == status, messages
    assert "Traceback" not in messages
    return output, messages


def ended(*words: object, text: str | None = None, **env: str) -> tuple[int, str, str]:
    """As `typed`, for a command that may end as it will: the exit status, stdout and stderr."""
    out, err, stdin = (TextIOWrapper(BytesIO(), "utf-8", write_through=True) for _ in range(3))
    stdin.write(text or "")
    stdin.seek(0)
    with (
        redirect_stdout(out),
        redirect_stderr(err),
        patch("sys.stdin", stdin),
        patch.dict(os.environ, env),
    ):
        code = main([str(word) for word in words])
    output, messages = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
    return code, output, messages


def with_small_files(kibibytes: int, line: list[str]) -> list[str]:
    """A command that can write files of so many KiB only, as on a full disk."""
    return ["bash", "-c", f'ulimit -f {kibibytes} && exec "$@"', "bash", *line]


def run_json(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, object]:
    """Run a command with --json and return the last object that it printed."""
    capsys.readouterr()
    assert main([*map(str, words), "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


@contextmanager
def killable(words: Sequence[object]) -> Iterator[Callable[[], None]]:
    """Run a command of ``bin/``; give what kills it, and wait for its end after the block."""
    command = [*map(str, (ROOT / "bin" / str(words[0]), *words[1:]))]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:

        def kill() -> None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)

        yield kill
