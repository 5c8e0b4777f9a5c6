"""Tasks spread over a cluster of Apache Spark; the one door to PySpark, which is an extra.

What runs there are the functions that run here in processes. Executors have the same environment
as the driver, reach the sources by the same names, and share no other storage with it: what a task
makes comes back as rows, and a task whose executor is lost is done again elsewhere.
"""

from __future__ import annotations

import os
import pickle
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from dedupindex.errors import BadInput, DedupError, to_install
from dedupindex.runtime.files import sync_directory

PIECE = 1 << 18  # bytes of a file in a row: Spark holds a thousand rows of whatever size
SLICE = 64 << 20  # bytes of rows that come here at once, of the 1 GB that Spark allows
AT_ONCE = 64  # tasks for each core, in one go: what they made is kept before the next begin
HINT = (
    "with --spark every executor reads the sources itself: name addresses, or paths that all mount"
)
_OURS = "DEDUPINDEX_REMOTE_"  # variables that executors get, too: Spark shows them to all
_LOST = (
    "an executor was lost while what it had made was fetched, and it was made again: run the same "
    "again"
)
T = TypeVar("T")
R = TypeVar("R")


class FilePiece(NamedTuple):
    """Some bytes of a file that a task has made; they come in order."""

    name: str
    data: bytes


@contextmanager
def connected(master: str) -> Iterator[Cluster]:
    """A session on `master`, as ``spark://host:7077``, ``yarn`` or ``local[4]``.

    Raises `BadInput` without PySpark, or if there is no such master.
    """
    try:
        from pyspark import SparkConf, SparkContext  # an extra
    except ImportError as error:
        raise BadInput(f"--spark needs a package: {to_install('spark')}") from error
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
        context.setLogLevel("ERROR")
        cluster = Cluster(context)
    except Exception as error:  # whatever Java says
        raise BadInput(f"--spark {master}: {_first_line(error)}") from error
    try:
        yield cluster
    finally:
        context.stop()


class Cluster:
    """What a run has of Spark."""

    def __init__(self, context: Any) -> None:
        self.context = context
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
    def kept(self, work: Callable[[T], Iterable[R]], tasks: Sequence[T]) -> Iterator[SparkRows[R]]:
        """The same, on the executors' disks."""
        with explained():  # a master that is not there is known by now, a minute later
            spread = self.context.parallelize(tasks, max(len(tasks), 1))
        with _kept(spread.mapPartitionsWithIndex(partial(_made, partial(_each, work)))) as kept:
            yield kept


class SparkRow(NamedTuple):
    """What a task has made, as it lies on an executor's disk: a row, or that there are no more.

    One that is lost is made again, by another attempt.
    """

    task: int
    attempt: bytes
    number: int  # 0, 1 and so on
    value: Any
    last: bool = False


@contextmanager
def _kept(made: Any) -> Iterator[SparkRows[Any]]:
    from pyspark import StorageLevel  # an extra

    made = made.persist(StorageLevel.DISK_ONLY)
    try:
        with explained():
            sizes = made.mapPartitions(_size).collect()
        yield SparkRows(made, sizes)
    finally:
        with suppress(Exception):  # of a context that has died
            made.unpersist()


class SparkRows(Generic[R]):
    """Rows on the executors' disks; those that are lost with one are made again."""

    def __init__(self, made: Any, sizes: list[int]) -> None:
        """`sizes`: bytes of what each task has made."""
        self._made, self._sizes = made, sizes
        self._slices = sum(sizes) // SLICE + 1

    def rows(self) -> Iterator[R]:
        """All rows in the order of the tasks; some tens of megabytes are held at a time.

        Raises `DedupError` if some are lost in the midst of what one task has made.
        """
        made = self._made
        if self._slices > 1:
            starts = list(accumulate(self._sizes, initial=0))
            cut = made.mapPartitionsWithIndex(partial(_cut, starts, SLICE))
            made = cut.partitionBy(self._slices, int).values().mapPartitions(sorted)
        with explained():
            yield from _sound(whole(made.toLocalIterator(), len(self._sizes)))

    def few(self, chosen: Callable[[R], bool]) -> Iterator[R]:
        """Those that are chosen, in any order."""
        made = self._made.filter(partial(_passes, chosen)).coalesce(self._slices)
        with explained():
            yield from _sound(row.value for row in made.toLocalIterator())

    def grouped(
        self, by: Callable[[R], int], groups: int, work: Callable[[int, Iterator[R]], Iterable[T]]
    ) -> Iterator[T]:
        """What ``work(group, rows)`` yields of the rows for which `by` tells a group, of each.

        None are of -1.
        """
        keyed = self._made.flatMap(partial(_keyed, by)).partitionBy(groups, int).values()
        with _kept(keyed.mapPartitionsWithIndex(partial(_made, work))) as made:
            yield from made.rows()


def _each(work: Callable[[Any], Iterable[Any]], task: int, given: Iterator[Any]) -> Iterator[Any]:
    for one in given:
        yield from work(one)


def _made(
    work: Callable[[int, Iterator[Any]], Iterable[Any]], task: int, given: Iterator[Any]
) -> Iterator[SparkRow]:
    """Runs on an executor. What is wrong with the input is a row: to try again is of no use."""
    attempt, number = secrets.token_bytes(8), 0
    try:
        for value in work(task, given):
            yield SparkRow(task, attempt, number, value)
            number += 1
    except DedupError as error:
        yield SparkRow(task, attempt, number, error)
        number += 1
    yield SparkRow(task, attempt, number, None, last=True)


def _size(made: Iterable[SparkRow]) -> list[int]:
    return [sum(len(pickle.dumps(one, pickle.HIGHEST_PROTOCOL)) for one in made)]


def _cut(
    starts: list[int], length: int, task: int, made: Iterator[SparkRow]
) -> Iterator[tuple[int, SparkRow]]:
    """The slice of each row: so many bytes of all that tasks have made, one after the other.

    What was made again may be longer, but is in no slice of the next task.
    """
    at, most = starts[task], max(starts[task + 1] - 1, 0) // length
    for one in made:
        yield min(at // length, most), one
        at += _size([one])[0]


def whole(made: Iterable[SparkRow], tasks: int) -> Iterator[Any]:
    """The rows of all tasks in order, of each those of one attempt, all of them."""
    before = SparkRow(-1, b"", 0, None, last=True)
    for one in made:
        follows = (before.task + 1, 0) if before.last else (before.task, before.number + 1)
        same = before.last or one.attempt == before.attempt
        if (one.task, one.number) != follows or not same:
            raise DedupError(_LOST)
        if not one.last:
            yield one.value
        before = one._replace(value=None)
    if not before.last or before.task != tasks - 1:
        raise DedupError(_LOST)


def _sound(rows: Iterable[Any]) -> Iterator[Any]:
    """Raise what is among the rows that is wrong with the input."""
    for row in rows:
        if isinstance(row, DedupError):
            raise row
        yield row


def _passes(chosen: Callable[[Any], bool], made: SparkRow) -> bool:
    if made.last:
        return False
    return isinstance(made.value, DedupError) or chosen(made.value)


def _keyed(by: Callable[[Any], int], made: SparkRow) -> Iterator[tuple[int, Any]]:
    if isinstance(made.value, DedupError):  # only of rows that were lost, and are made again
        raise made.value
    if not made.last and (group := by(made.value)) >= 0:
        yield group, made.value


@contextmanager
def explained() -> Iterator[None]:
    try:
        yield
    except DedupError:
        raise
    except Exception as error:  # of Java, or of the way to it
        raise DedupError(f"Spark gave up, and has said before why: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    """What is worth reading of all that Java says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "Exception" in line or "Error" in line]
    return (told or lines or [type(error).__name__])[0].removeprefix(": ")[:400]


def pieces(path: Path, name: str) -> Iterator[FilePiece]:
    """A file as rows; at least one, so that an empty file comes, too."""
    with open(path, "rb") as stream:
        data = stream.read(PIECE)
        yield FilePiece(name, data)
        while data := stream.read(PIECE):
            yield FilePiece(name, data)


class PieceWriter:
    """Writes the pieces of files; each appears whole, when the next begins or at the end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.names: list[str] = []
        self._stream: Any = None

    def take(self, piece: FilePiece) -> None:
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
