"""Apache Spark of PyPI, for processes that have our packages, too."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import need
from tests.peers.environments import PEERS, ROOT

LOCK = ROOT / "requirements-spark.lock"
MASTER = "local-cluster[2,1,1024]"  # two executors, each a process of its own with a core
DEADLINE = 600.0  # seconds
BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # half the time of what lives for a minute


def spark() -> dict[str, str]:
    """The environment of a process that finds PySpark beside our packages; skips where it is not.

    It stands in a directory of its own: half a gigabyte that no other test needs.
    """
    need("java", found=shutil.which("java") is not None)
    PEERS.mkdir(exist_ok=True)
    home = PEERS / "spark"
    stamp = home / "packages.txt"
    with open(PEERS / ".spark.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run side by side
        if not stamp.exists() or stamp.read_text() != LOCK.read_text():
            shutil.rmtree(home, ignore_errors=True)
            words = [sys.executable, "-m", "pip", "install", "--quiet", "--target", home]
            words += ["--require-hashes", "--no-build-isolation", "-r", LOCK]
            env = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
            done = subprocess.run(words, capture_output=True, text=True, env=env)
            need(f"Spark (from PyPI: {done.stderr.strip()[-200:]})", found=not done.returncode)
            stamp.write_text(LOCK.read_text())
    paths = [str(home), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "JAVA_TOOL_OPTIONS": BRIEF,
    }


def on_spark(code: str, *arguments: str | Path) -> subprocess.Popen[str]:
    """A Python process with PySpark that runs `code`."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], env=spark(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
