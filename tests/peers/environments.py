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

import pytest

from tests.conftest import need

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / ".peers"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
DEADLINE = 180.0  # seconds after which a peer that does nothing has failed the test

# setuptools: both still import pkg_resources, which is gone since 82.
WARCPROX = ("warcprox==2.13.1", "setuptools<81")
PYWB = ("pywb==2.10.0", "setuptools<81")
JWARC = "org.netpreserve:jwarc:0.36.0"
# What older source packages import of setuptools, and pip runs to name them, is gone since 72.
BUILD = "setuptools<72\n"


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

    def download(folder: Path) -> subprocess.CompletedProcess[str]:
        limits = folder.with_suffix(".txt")
        limits.write_text(BUILD)
        words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        return subprocess.run(
            [*words, "--no-binary", ":all:", "--dest", str(folder), package],
            capture_output=True,
            text=True,
            env={
                **os.environ,
                "PIP_DISABLE_PIP_VERSION_CHECK": "1",
                "PIP_CONSTRAINT": str(limits),
                "PIP_BUILD_CONSTRAINT": str(limits),  # as newer versions of pip call it
            },
        )

    return _unpacked(package.replace("==", "-"), sha256, download)


def npm(package: str, sha256: str) -> Path:
    """The unpacked package ``name@version`` of npm; skips where that, or npm, is not."""

    def download(folder: Path) -> subprocess.CompletedProcess[str]:
        need("npm", found=shutil.which("npm") is not None)
        words = ["npm", "pack", "--silent", package, "--pack-destination", str(folder)]
        return subprocess.run(words, capture_output=True, text=True, cwd=folder)

    return _unpacked(f"npm-{package}", sha256, download)


def built(name: str) -> Path:
    """A program that no package registry has: of DEDUPINDEX_PEERS, else of PATH; or skips."""
    places = (os.environ.get("DEDUPINDEX_PEERS", ""), os.environ["PATH"])
    path = shutil.which(name, path=os.pathsep.join(filter(None, places)))
    if path is None:
        pytest.skip(f"{name} is in no package registry and not installed here, so it was not run")
    return Path(path).absolute()


def _unpacked(
    name: str, sha256: str, download: Callable[[Path], subprocess.CompletedProcess[str]]
) -> Path:
    """What the one tar file that `download` puts into a folder has; kept under `name`."""
    PEERS.mkdir(exist_ok=True)
    home = PEERS / name
    with open(PEERS / f".{name}.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.exists():
            with tempfile.TemporaryDirectory(dir=PEERS) as folder:
                packed = Path(folder, "packed")
                packed.mkdir()
                done = download(packed)
                need(f"{name} ({done.stderr.strip()[-200:]})", found=not done.returncode)
                (file,) = packed.iterdir()
                assert hashlib.sha256(file.read_bytes()).hexdigest() == sha256
                with tarfile.open(file) as archive:
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
        time.sleep(0.05)  # nothing but asking again tells when the peer is ready
