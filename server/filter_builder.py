"""The process that makes and renews the filter of all digests of an index on a cluster.

It is of its own, as it reads the whole index: in a worker, lookups would wait for it. A worker
starts it, and again when it has ended; it ends when that worker has. A lock on the memory of the
filter keeps two from writing, when workers are replaced.

    python -m server.filter_builder INDEX FILE FORMAT     FILE: number of the open file of memory
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from dedupindex.crawls.stores import make_store
from dedupindex.index.shared_filter import SharedFilter
from server import logs

_AGAIN = 2.0  # seconds until a process that has ended is started again
_CHECKED = 0.5  # seconds between two checks of whether the worker runs


class FilterBuilder:
    """Keeps the process running, from a daemon thread of one worker."""

    def __init__(self, index: Path, file: int, log_format: str) -> None:
        self._index, self._file, self._log_format = index, file, log_format
        self._ended = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="filter-builder", daemon=True).start()

    def stop(self) -> None:
        """End the process soon."""
        self._ended.set()

    def _run(self) -> None:
        words = [str(self._index), str(self._file), self._log_format]
        command = [sys.executable, "-m", "server.filter_builder", *words]
        path = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, "PYTHONPATH": path}
        while not self._ended.is_set():
            with subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, pass_fds=(self._file,)
            ) as process:
                while process.poll() is None and not self._ended.wait(_CHECKED):
                    pass
                process.terminate()
            self._ended.wait(_AGAIN)


def reported(index: Path) -> int:
    """Return how many captures the crawls of an index have."""
    with closing(make_store(index, create=False)) as store, store.reading() as reading:
        crawls = list(reading.crawls())
        ready = reading.with_statistics(crawls)
        return sum(ready.counts(crawl)[0] for crawl in crawls)


def main() -> None:
    """Make and renew the filter until the process that has started this one has ended."""
    from dedupindex.index.engines.cassandra.cluster_filter import ClusterFilter  # an extra

    index, file, parent = Path(sys.argv[1]), int(sys.argv[2]), os.getppid()
    logs.configure(sys.argv[3])
    shared = SharedFilter(file)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_CHECKED)
        os._exit(0)  # whatever it waits for; readers see how old the filter is

    threading.Thread(target=watch, daemon=True).start()
    fcntl.lockf(file, fcntl.LOCK_EX)  # waits for the one before to end
    with suppress(KeyboardInterrupt):
        ClusterFilter(index, shared, logs.LOGGER.warning, partial(reported, index)).run()


if __name__ == "__main__":
    main()
