"""What demonstrations are made of: steps that are said, our own commands, servers."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def finished(
    name: str, about: str | None, run: Callable[[Path], int], nodes: Callable[[], int] | None = None
) -> int:
    """Run a demonstration in a directory for its files; returns the exit status.

    With ``--nodes``, if there is such an option, `nodes` is run instead.
    """
    parser = argparse.ArgumentParser(prog=name, description=about)
    parser.add_argument("--out", type=Path, help="directory for its files (default: a new one)")
    if nodes is not None:
        parser.add_argument(
            "--nodes", action="store_true", help="only start the nodes, to try things on, and wait"
        )
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what it has started ends with it
    try:
        if nodes is not None and asked.nodes:
            return nodes()
        out = asked.out or Path(tempfile.mkdtemp(prefix="dedupindex-demo-"))
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            parser.error(f"{out} is not empty; name a new directory")
        return run(out)
    except subprocess.CalledProcessError as error:
        return int(error.returncode)  # it has said why on stderr
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def step(text: str) -> None:
    """Say what comes now."""
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


def command(*words: object, **env: str) -> str:
    """What one of our commands says on stdout; its failure is ours."""
    line = [sys.executable, "-m", "dedupindex", *map(str, words)]
    ours = {**os.environ, **env}
    return subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True, env=ours).stdout


@contextmanager
def server(index: Path | str, **env: str) -> Iterator[str]:
    """A running server; gives its address."""
    line = [sys.executable, "-m", "dedupindex", "serve", str(index), "--port", "0", "--json"]
    with subprocess.Popen(
        line,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **env},
    ) as it:
        assert it.stdout is not None
        ready = it.stdout.readline()
        if not ready:
            raise SystemExit(f"bin/serve {index} did not start; try it by hand")
        try:
            yield json.loads(ready)["url"]
        finally:
            it.terminate()
