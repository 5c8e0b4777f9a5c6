"""Tasks spread over a cluster of Apache Spark; the one door to PySpark, which is an extra.

What runs there are the functions that run here in processes. Executors have the same environment
as the driver, reach the sources by the same names, and share no other storage with it: what a task
makes comes back as rows, and a task whose executor is lost is done again elsewhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from dedupindex.errors import BadInput, DedupError
from dedupindex.files import sync_directory

PIECE = 4 << 20  # bytes of a file in a row
AT_ONCE = 64  # tasks for each core, in one go: what they made is kept before the next begin
HINT = (
    "with --spark every executor reads the sources itself: name addresses, or paths that all mount"
)
_OURS = "DEDUPINDEX_REMOTE_"  # variables that executors get, too: Spark shows them to all
T = TypeVar("T")
R = TypeVar("R")


class Piece(NamedTuple):
    """Some bytes of a file that a task has made; they come in order."""

    name: str
    data: bytes


@contextmanager
def connected(master: str) -> Iterator[Cluster]:
    """A session on `master`, as ``spark://host:7077``, ``yarn`` or ``local[4]``.

    Raises `BadInput` without PySpark, or if there is no such master.
    """
    try:
        from pyspark import SparkConf, SparkContext
    except ImportError as error:
        raise BadInput("--spark needs a package: pip install 'dedupindex[spark]'") from error
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # of all packages, not the system's
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    chosen = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    if master.startswith("local"):
        chosen |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    for name, value in os.environ.items():
        if name.startswith(_OURS):
            chosen[f"spark.executorEnv.{name}"] = value
    conf = SparkConf().setMaster(master).setAppName("dedupindex").setAll(list(chosen.items()))
    try:
        context = SparkContext(conf=conf)
    except Exception as error:  # whatever Java says
        raise BadInput(f"--spark {master}: {_first_line(error)}") from error
    context.setLogLevel("ERROR")
    try:
        yield Cluster(context)
    finally:
        context.stop()


class Cluster:
    """What a run has of Spark."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.cores = max(int(context.defaultParallelism), 1)

    def in_turn(self, tasks: Sequence[T]) -> Iterator[Sequence[T]]:
        """The tasks, so many at a time as are worth a job."""
        most = AT_ONCE * self.cores
        return (tasks[at : at + most] for at in range(0, len(tasks), most))

    def rows(self, work: Callable[[T], Iterable[R]], tasks: Sequence[T]) -> Iterator[R]:
        """What ``work(task)`` yields for every task, task by task, once all have come to their end.

        `work` is a function of a module, or a partial of one. Raises what it raises.
        """
        with self.kept(work, tasks) as kept:
            yield from kept.rows()

    @contextmanager
    def kept(self, work: Callable[[T], Iterable[R]], tasks: Sequence[T]) -> Iterator[Kept[R]]:
        """The same, on the executors' disks."""
        from pyspark import StorageLevel

        spread = self._context.parallelize(tasks, max(len(tasks), 1))
        kept = spread.flatMap(partial(_guarded, work)).persist(StorageLevel.DISK_ONLY)
        try:
            with _explained():
                kept.count()
            yield Kept(kept)
        finally:
            with suppress(Exception):  # of a context that has died
                kept.unpersist()


class Kept(Iterable[R]):
    """Rows on the executors' disks; those that are lost with one are made again."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[R]:
        return self.rows()

    def rows(self) -> Iterator[R]:
        """All rows in the order of the tasks; those of one task are held at a time."""
        return _sound(self._rows.toLocalIterator())

    def few(self, chosen: Callable[[R], bool]) -> Iterator[R]:
        """Those that are chosen, few enough to be held."""
        with _explained():
            rows = self._rows.filter(partial(_passes, chosen)).collect()
        return _sound(rows)

    def grouped(
        self, by: Callable[[R], int], groups: int, work: Callable[[Iterator[R]], Iterable[T]]
    ) -> Iterator[T]:
        """What `work` yields of all rows for which `by` tells the same group; none are of -1."""
        from pyspark import StorageLevel

        keyed = self._rows.flatMap(partial(_keyed, by)).partitionBy(groups, int)
        made = keyed.values().mapPartitions(partial(_guarded, work))
        made = made.persist(StorageLevel.DISK_ONLY)
        try:
            with _explained():
                made.count()
            yield from _sound(made.toLocalIterator())
        finally:
            with suppress(Exception):
                made.unpersist()


def _sound(rows: Iterable[Any]) -> Iterator[Any]:
    """Raise what is among the rows that is wrong with the input."""
    with _explained():
        for row in rows:
            if isinstance(row, DedupError):
                raise row
            yield row


def _guarded(work: Callable[[Any], Iterable[Any]], task: Any) -> Iterator[Any]:
    """What is wrong with the input is a row, too: to try again would be of no use."""
    try:
        yield from work(task)
    except DedupError as error:
        yield error


def _passes(chosen: Callable[[Any], bool], row: Any) -> bool:
    return isinstance(row, DedupError) or chosen(row)


def _keyed(by: Callable[[Any], int], row: Any) -> Iterator[tuple[int, Any]]:
    if isinstance(row, DedupError):  # only of rows that were lost, and are made again
        raise row
    if (group := by(row)) >= 0:
        yield group, row


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except DedupError:
        raise
    except Exception as error:  # of Java, or of the way to it
        raise DedupError(f"Spark gave up: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    """What is worth reading of all that Java says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "Exception" in line or "Error" in line]
    return (told or lines or [type(error).__name__])[0][:400]


def pieces(path: Path, name: str) -> Iterator[Piece]:
    """A file as rows; at least one, so that an empty file comes, too."""
    with open(path, "rb") as stream:
        data = stream.read(PIECE)
        yield Piece(name, data)
        while data := stream.read(PIECE):
            yield Piece(name, data)


class Files:
    """Writes the pieces of files; each appears whole, when the next begins or at the end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.names: list[str] = []
        self._stream: Any = None

    def take(self, piece: Piece) -> None:
        if not self.names or self.names[-1] != piece.name:
            self.finish()
            self.names.append(piece.name)
            self._stream = open(self._beside(piece.name), "wb")  # noqa: SIM115 (`finish` closes it)
        self._stream.write(piece.data)

    def finish(self) -> None:
        """Let the last file appear."""
        if self._stream is None:
            return
        with self._stream as stream:
            stream.flush()
            os.fsync(stream.fileno())
        self._stream = None
        path = self.directory / self.names[-1]
        os.replace(self._beside(self.names[-1]), path)
        sync_directory(path.parent)

    def _beside(self, name: str) -> Path:
        path = self.directory / name
        return path.with_name(f".{path.name}.{os.getpid()}.part")
