"""Apache Spark of PyPI, for processes that have our packages, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any

from demo.executors import MASTER, spark_environment
from demo.nodes import Missing
from tests.conftest import need
from tests.peers.environments import PEERS

DEADLINE = 1200.0  # seconds, of all tests together


def spark() -> dict[str, str]:
    """The environment of a process that finds PySpark and our packages; skips where it is not."""
    try:
        return {**os.environ, **spark_environment(PEERS)}
    except Missing as missing:
        need(f"{missing.what} ({missing})", found=False)
        raise


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
