"""Apache Spark of PyPI, for processes that have our packages, too."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any

from tests.conftest import need
from tests.peers.environments import PEERS, ROOT

LOCK = ROOT / "requirements-spark.lock"
MASTER = "local-cluster[2,1,1024]"  # two executors, each a process of its own with a core
DEADLINE = 1200.0  # seconds, of all tests together
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


_SESSION = """
import io, json, sys
from contextlib import redirect_stdout
import pyspark
from dedupindex.runtime import spark
from dedupindex.cli import main
from dedupindex.cover.components import spark_components

spark.SLICE = 20_000  # as if there were a thousand times as much
start, held = pyspark.SparkContext, []

class Once:  # most of the time goes into starting executors
    def __call__(self, conf):
        if not held:
            held.append(start(conf=conf))
            held[0].stop = lambda: None
        return held[0]

    def __getattr__(self, name):
        return getattr(start, name)

pyspark.SparkContext = Once()
for line in sys.stdin:
    name, *words = json.loads(line)
    if name == "together":
        with spark.spark_session(words[0]) as cluster:
            answer = sorted(spark_components(cluster, map(tuple, words[1])))
    else:
        with redirect_stdout(io.TextIOWrapper(io.BytesIO())) as out:
            status = main([name, *words])
            out.flush()
        answer = [status, out.buffer.getvalue().decode()]
    print(json.dumps(answer), flush=True)
if held:
    start.stop(held[0])
"""


class Session:
    """A process with one Spark session, in which commands run one after the other."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.pid, self.folder = process.pid, folder  # its executors find modules in the folder
        self._process = process

    def _ask(self, *words: object) -> Any:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, (self.folder / "log").read_text(errors="replace")[-4000:]
        return json.loads(answer)

    def run(self, *words: object) -> dict[str, object]:
        """What a command prints as JSON; it succeeds, or names what is damaged."""
        status, out = self._ask(*map(str, words), "--spark", MASTER, "--json")
        assert status in (0, 7), (self.folder / "log").read_text(errors="replace")[-4000:]
        return dict(json.loads(out))

    def together(self, pairs: list[tuple[int, int]]) -> object:
        """The connected components of pairs of numbers."""
        return self._ask("together", MASTER, pairs)


@contextmanager
def spark_session(folder: Path) -> Iterator[Session]:
    """A process with PySpark, and with the modules of a folder."""
    env = spark()
    env["PYTHONPATH"] = os.pathsep.join([str(folder), env["PYTHONPATH"]])
    with (
        open(folder / "log", "wb") as log,
        subprocess.Popen(
            [sys.executable, "-c", _SESSION], env=env, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=log, start_new_session=True,
        ) as process,
    ):  # fmt: skip
        watch = Timer(DEADLINE, process.kill)  # then the answer that is awaited does not come
        watch.start()
        try:
            yield Session(process, folder)
            assert process.stdin
            process.stdin.close()
            process.wait()
        finally:
            watch.cancel()
            process.kill()
