"""Shared by the demonstrations: steps, product commands, servers, ports."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import SystemRandom

import click

from dedupindex.errors import SCRIPTS, SHIPPED, help_as_called

_PORTS = range(20_000, 32_000)  # below those that Linux assigns by itself


OUT = click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for its files; a new one is made otherwise.",
)


def finished(run: Callable[[Path], int], out: Path | None) -> int:
    """Run a demonstration in a directory for its files; returns the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and stop what was started
    try:
        out = out or Path(tempfile.mkdtemp(prefix="dedupindex-demo-"))
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise click.UsageError(f"{out} is not empty; name a new directory")
        return run(out)
    except subprocess.CalledProcessError as error:
        return int(error.returncode)  # the command has printed why
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def show(text: str) -> None:
    """Print a line, with the commands in it as they are called here."""
    print(_as_called(text), flush=True)


def _as_called(text: str) -> str:
    """Return `help_as_called`; outside of a checkout, its files are named by their place."""
    if SCRIPTS is None or Path.cwd() == SHIPPED:
        return help_as_called(text)
    return re.sub(r"(?<![\w/.-])(?=(bin|conf|docs)/[a-z])", lambda _: f"{SHIPPED}/", text)


def step(text: str) -> None:
    """Print the heading of a step."""
    text = _as_called(text)
    print(f"\n\033[1m{text}\033[0m" if _takes_bold() else f"\n{text}", flush=True)


def _takes_bold() -> bool:
    """Return whether stdout is a terminal that shows bold text, and the user wants any."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    return sys.stdout.isatty() and not plain


def product(*words: object, **env: str) -> str:
    """Run a product command; returns its stdout. Raises `CalledProcessError`."""
    line = [sys.executable, "-m", "dedupindex", *map(str, words)]
    ours = {**os.environ, **env}
    return subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True, env=ours).stdout


@contextmanager
def server(index: Path | str, **env: str) -> Iterator[str]:
    """Run bin/serve on a free port; gives its URL."""
    line = [sys.executable, "-m", "dedupindex", "serve", str(index), "--port", "0", "--json"]
    with subprocess.Popen(
        line,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **env},
    ) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        if not ready:
            raise SystemExit(f"bin/serve {index} did not start; try it by hand")
        try:
            yield json.loads(ready)["url"]
        finally:
            process.terminate()


def free_port(*addresses: str) -> int:
    """Return a port below the ephemeral range that is free on all addresses, loopback by default.

    For programs that need their port before they start, and may bind it late.
    """
    for port in SystemRandom().sample(_PORTS, 100):
        with ExitStack() as stack:
            try:
                for address in addresses or ("127.0.0.1",):
                    stack.enter_context(socket.create_server((address, port)))
            except OSError:
                continue
            return port
    raise OSError("no port is free")
