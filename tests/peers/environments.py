"""Crawlers and replay tools: those of the Python world each in an environment of its own, and jars.

They are put into ``.peers/`` of the checkout, from PyPI and Maven Central, and used again by later
runs. What they need would not go together with what we need, so nothing of them is in our own
environment.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import need

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / ".peers"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
DEADLINE = 180.0  # seconds after which a peer that does nothing has failed the test

# setuptools: both still import pkg_resources, which is gone since 82.
WARCPROX = ("warcprox==2.13.1", "httpx>=0.28", "setuptools<81")
PYWB = ("pywb==2.10.0", "setuptools<81")
JWARC = "org.netpreserve:jwarc:0.36.0"


def environment(name: str, packages: tuple[str, ...]) -> Path:
    """The ``bin`` directory of an environment with these packages; skips where PyPI is not."""
    PEERS.mkdir(exist_ok=True)
    home, stamp = PEERS / name, PEERS / name / "packages.json"
    wanted = json.dumps([sys.version, *packages])
    with open(PEERS / f".{name}.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run side by side
        if not stamp.exists() or stamp.read_text() != wanted:
            venv.create(home, clear=True, with_pip=True)
            done = subprocess.run(
                [home / "bin" / "python", "-m", "pip", "install", "--quiet", *packages],
                capture_output=True,
                text=True,
                env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            )
            need(f"{name} (from PyPI: {done.stderr.strip()[-200:]})", found=not done.returncode)
            stamp.write_text(wanted)
    return home / "bin"


def sdist(package: str, sha256: str) -> Path:
    """The unpacked source package ``name==version`` of PyPI; skips where that is not."""
    PEERS.mkdir(exist_ok=True)
    home = PEERS / package.replace("==", "-")
    with open(PEERS / f".{home.name}.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.exists():
            with tempfile.TemporaryDirectory(dir=PEERS) as folder:
                words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
                done = subprocess.run(
                    [*words, "--no-binary", ":all:", "--dest", folder, package],
                    capture_output=True,
                    text=True,
                    env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
                )
                need(f"{package} (from PyPI: {done.stderr[-200:]})", found=not done.returncode)
                (packed,) = Path(folder).iterdir()
                assert hashlib.sha256(packed.read_bytes()).hexdigest() == sha256
                with tarfile.open(packed) as archive:
                    archive.extractall(Path(folder, "unpacked"), filter="data")
                Path(folder, "unpacked").rename(home)
    return home


def jar(artifact: str) -> Path:
    """A jar of Maven Central, ``group:name:version``; skips where that, or Java, is not."""
    need("java", found=shutil.which("java") is not None)
    _, name, version = artifact.split(":")
    PEERS.mkdir(exist_ok=True)
    path = PEERS / f"{name}-{version}.jar"
    with open(PEERS / f".{name}.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            need("mvn", found=shutil.which("mvn") is not None)
            with tempfile.TemporaryDirectory(dir=PEERS) as folder:
                words = ["mvn", "-q", "-B", COPY, f"-Dartifact={artifact}"]
                done = subprocess.run(
                    [*words, f"-DoutputDirectory={folder}"], cwd=folder, stdout=subprocess.DEVNULL
                )
                need(f"{name} {version} (from Maven Central)", found=done.returncode == 0)
                (Path(folder) / path.name).rename(path)
    return path


@contextmanager
def running(
    words: list[str | Path], log: Path, ready: Callable[[], bool], **env: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A peer's process, from when it is ready until it has ended in its own good time."""
    with (
        open(log, "ab") as stream,
        subprocess.Popen(
            words, stdout=stream, stderr=stream, cwd=log.parent, env={**os.environ, **env}
        ) as process,
    ):
        try:
            until(ready, process, log)
            yield process
        finally:
            process.terminate()
            try:
                process.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def until(
    condition: Callable[[], bool], process: subprocess.Popen[bytes] | None, log: Path
) -> None:
    """Wait for another process to do something; its log is the failure's text."""
    end = time.monotonic() + DEADLINE
    while not condition():
        alive = process is None or process.poll() is None
        assert alive and time.monotonic() < end, log.read_text(errors="replace")[-4000:]
        time.sleep(0.05)
