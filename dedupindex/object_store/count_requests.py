"""Count the requests to S3 of a run, of all its processes, by kind, also of executors of Spark.

Each process counts in a file of its own in a temporary directory, mapped into memory, so that no
count is lost when a process is killed. An executor returns what it has counted as the last row of a
task, so what one that is killed has sent is not known.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar

from dedupindex.errors import DedupError
from dedupindex.runtime.spark import Cluster

VARIABLE = "DEDUPINDEX_COUNTED_REQUESTS"  # the directory of a run, for the processes that it starts
KINDS = ("get", "head", "list", "put", "part", "copy", "post", "delete", "read", "written")
"""Requests by kind, then bytes. A part is one of a large object; POST begins or ends those."""
_SIZE = 8 * len(KINDS)
_mapped: dict[tuple[int, str], memoryview] = {}  # by process and directory: a fork has its own file
_sessions: dict[tuple[int, str], Any] = {}  # by process and profile
T = TypeVar("T")
R = TypeVar("R")


class CountedRequests:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def totals(self) -> dict[str, int]:
        """Return the numbers of `KINDS` up to now, of all processes."""
        sums = array("q", bytes(_SIZE))
        for path in self._directory.iterdir():
            counts = array("q", path.read_bytes())
            if len(counts) == len(sums):
                sums = array("q", map(sum, zip(sums, counts, strict=True)))
        return dict(zip(KINDS, sums, strict=True))


@contextmanager
def counted_requests() -> Iterator[CountedRequests]:
    """Count the requests that this process, and those that it starts, send in the block."""
    with TemporaryDirectory(prefix="dedupindex-requests-") as beside:
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = beside
        try:
            yield CountedRequests(Path(beside))
        finally:
            del os.environ[VARIABLE]
            if before is not None:
                os.environ[VARIABLE] = before
            _mapped.pop((os.getpid(), beside), None)  # a Python of Spark's runs many tasks


class TaskRequests(NamedTuple):
    """What an executor sent for a task."""

    totals: dict[str, int]


def counting_task(work: Callable[[T], Iterable[R]], task: T) -> Iterator[R | TaskRequests]:
    """Yield the results of a task of an executor, then the requests that it has sent.

    Those of a task that raises a `DedupError` are yielded before that is raised.
    """
    with counted_requests() as requests:
        failed = None
        try:
            yield from work(task)
        except DedupError as error:
            failed = error
        yield TaskRequests(requests.totals())
        if failed is not None:
            raise failed


def add_task_requests(rows: Iterable[R | TaskRequests]) -> Iterator[R]:
    """Yield the results of tasks; requests of executors are counted as those of this process."""
    for row in rows:
        if isinstance(row, TaskRequests):
            for kind, count in row.totals.items():
                _add(kind, count)
        else:
            yield row


def task_rows(
    cluster: Cluster, work: Callable[[T], Iterable[R]], tasks: Iterable[T]
) -> Iterator[R]:
    """Yield the results of tasks as `Cluster.packed_rows`, and count the requests of executors."""
    return add_task_requests(cluster.packed_rows(partial(counting_task, work), tasks))


def counting_session(profile: str) -> Any:
    """Return the session of aiobotocore with which clients of this process count, during a run.

    It has the credentials of a profile, or the usual ones.
    """
    from aiobotocore.session import AioSession  # an extra

    key = os.getpid(), profile
    session = _sessions.get(key)
    if session is None:
        session = _sessions[key] = AioSession(profile=profile or None)
        session.register("before-send.s3", _sent)
        session.register("response-received.s3.GetObject", _received)
    return session


def _add(kind: str, count: int) -> None:
    directory = os.environ.get(VARIABLE)
    if not directory:
        return
    key = os.getpid(), directory
    counts = _mapped.get(key)
    if counts is None:
        if not os.path.isdir(directory):  # the run has ended
            return
        with open(os.path.join(directory, str(os.getpid())), "w+b") as file:
            file.truncate(_SIZE)
            counts = memoryview(mmap.mmap(file.fileno(), _SIZE)).cast("q")
        _mapped[key] = counts
    counts[KINDS.index(kind)] += count


def _sent(request: Any, **_: Any) -> None:
    """Count a request, one that is repeated as well."""
    method, query = request.method, request.url.partition("?")[2]
    kind = {"GET": "get", "HEAD": "head", "DELETE": "delete", "PUT": "put"}.get(method, "post")
    if method == "GET" and any(part.startswith("list-type=") for part in query.split("&")):
        kind = "list"
    elif method == "PUT" and "x-amz-copy-source" in request.headers:
        kind = "copy"
    elif method == "PUT" and "partNumber=" in query:
        kind = "part"
    _add(kind, 1)
    if method == "PUT":
        _add("written", int(request.headers.get("Content-Length") or 0))


def _received(response_dict: Any, **_: Any) -> None:
    if response_dict and response_dict.get("status_code") in (200, 206):
        headers = {name.lower(): value for name, value in response_dict["headers"].items()}
        _add("read", int(headers.get("content-length") or 0))
