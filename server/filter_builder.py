"""The process that makes and renews the filter of all digests of an index on a cluster.

It is of its own, as it reads the whole index: in a worker, lookups would wait for it. The main
process starts it, and again when it has ended; it ends when the main process has.

    python -m server.filter_builder INDEX FILE FORMAT     FILE: number of the open file of memory
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path

from dedupindex.crawls.stores import make_store
from dedupindex.index.shared_filter import SharedFilter
from server import logs

_AGAIN = 2.0  # seconds between two starts
_CHECKED = 0.5  # seconds between two checks of whether the main process runs


class FilterBuilder:
    """Keeps the process running, for the main process of a server."""

    def __init__(self, index: Path, file: int, log_format: str) -> None:
        words = [str(index), str(file), log_format]
        self._command = [sys.executable, "-m", "server.filter_builder", *words]
        self._file = file
        self._process: subprocess.Popen[bytes] | None = None
        self._next = 0.0

    def keep(self) -> None:
        """Start the process unless it runs; called several times a second."""
        if self._process is not None and self._process.poll() is None:
            return
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _AGAIN
        path = os.pathsep.join(filter(None, sys.path))
        self._process = subprocess.Popen(
            self._command,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            pass_fds=(self._file,),
            start_new_session=True,  # an interrupt from the terminal is for the main process alone
        )

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


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
    ClusterFilter(index, shared, logs.LOGGER.warning, partial(reported, index)).run()


if __name__ == "__main__":
    main()
