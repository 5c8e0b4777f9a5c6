"""Run tasks on a cluster of Apache Spark.

PySpark is an optional package; only this module and those of `cover` that need more import it.

Executors run the same functions as local processes. They need the same environment as the driver
and the same names of sources, but no other shared storage: results are returned as rows, and the
task of a lost executor is repeated elsewhere.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import secrets
import socket
import sys
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.errors import BadInput, DedupError, to_install
from dedupindex.runtime.files import atomic_file
from dedupindex.runtime.progress import measured

PIECE = 1 << 18  # bytes of a file in a row, as Spark holds a thousand rows of any size
SLICE = 64 << 20  # bytes of rows that the driver fetches at a time; Spark allows 1 GB
AT_ONCE = 64  # tasks for each core in one job; results are stored before the next job
ROUND = 256 << 20  # bytes of packed tasks in one job, which the driver's JVM holds
HINT = (
    "with --spark every executor reads the sources itself: name addresses, or paths that all mount"
)
CREDENTIALS = "executors need credentials of their own for the store: docs/batch.md"
_OURS = "DEDUPINDEX_REMOTE_"  # prefix of variables that executors get; Spark publishes them
_DICTIONARIES = "DEDUPINDEX_ZSTD_DICTIONARY"  # executors get it, too: paths, with colons between
_NODES = "docs/batch.md says what each node needs"
_IMPORT = re.compile(r"(?:[\w.]+\.)?(?:Import|ModuleNotFound|PackageNotFound)Error: (.*)")
_STOPPED = "stopped SparkContext"  # Java, of a call after the master has ended the application
_ENDED = (
    "Spark ended the application: no Spark master of this version answers there, or it has removed "
    f"the application because executors failed, as its log says ({_NODES})"
)
_LOG4J = "log4j2.properties"  # ours is beside this module: Spark prints only errors
_MASTERS = re.compile(r"spark://((?:[^,/]+:\d+,?)+)")
_MASTER_TIMEOUT = 5.0  # seconds for a connection
_CHECK_EVERY = 30.0  # seconds between two checks whether executors take tasks
_WAITING = (
    "dedupindex: {} has had no executor for this run for 30 seconds or more: are its workers "
    "running, with a free core and the memory of spark.executor.memory (1 GB)? Waiting for one; "
    "Ctrl-C ends"
)
_OTHER_MASTER = re.compile(r"(?!k8s://)(?:\w+://|[^/\[]+:\d+$)")
_LOST = (
    "an executor was lost while its results were fetched, and they were computed again: run the "
    "same command again"
)
T = TypeVar("T")
R = TypeVar("R")


class FilePiece(NamedTuple):
    """Bytes of a file that a task has made, in order."""

    name: str
    data: bytes


@contextmanager
def spark_session(master: str) -> Iterator[Cluster]:
    """Open a session on `master`: ``spark://host:7077``, ``yarn`` or ``local[4]``.

    Raises `BadInput` without PySpark, and if the master cannot be reached.
    """
    try:
        from pyspark import SparkConf, SparkContext  # an extra
    except ImportError as error:
        raise BadInput(f"--spark needs a package: {to_install('spark')}") from error
    check_master(master)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # not the system's
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if not has_log_settings():
        os.environ.setdefault("LOG4J_CONFIGURATION_FILE", str(Path(__file__).with_name(_LOG4J)))
    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    if master.startswith("local"):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    settings |= {f"spark.executorEnv.{name}": value for name, value in _passed_on()}
    conf = SparkConf().setMaster(master).setAppName("dedupindex").setAll(list(settings.items()))
    try:
        context = SparkContext(conf=conf)
        context.setLogLevel("ERROR")
        cluster = Cluster(context)
    except Exception as error:  # of Java
        raise BadInput(f"--spark {master}: {_first_line(error)}") from error
    logging.getLogger().addFilter(_is_not_of_py4j)
    ended = threading.Event()
    watched = (master, context.statusTracker(), ended)
    threading.Thread(target=report_waiting, args=watched, daemon=True).start()
    try:
        yield cluster
    finally:
        ended.set()
        context.stop()


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Leave out the trace that py4j logs of each call that Ctrl-C interrupts."""
    return f"{os.sep}py4j{os.sep}" not in record.pathname


def report_waiting(master: str, tracker: Any, ended: threading.Event) -> None:
    """Say on stderr, once, that no executor takes a task, which Spark waits for without end."""
    idle = set[int]()  # stages without a task the last time
    while not ended.wait(_CHECK_EVERY):
        with suppress(Exception):  # of a session that ends meanwhile
            stages = {stage: tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()}
            counts = {
                stage: found.numActiveTasks + found.numCompletedTasks
                for stage, found in stages.items() if found
            }  # fmt: skip
            if any(counts.values()):
                return
            if idle & counts.keys():
                print(_WAITING.format(master), file=sys.stderr)
                return
            idle = set(counts)


def _passed_on() -> Iterator[tuple[str, str]]:
    """Yield the variables that executors get."""
    yield from ((name, value) for name, value in os.environ.items() if name.startswith(_OURS))
    if paths := os.environ.get(_DICTIONARIES):
        absolute = map(os.path.abspath, filter(None, paths.split(os.pathsep)))
        yield _DICTIONARIES, os.pathsep.join(absolute)


def has_log_settings() -> bool:
    """Return whether a user has settings for the log of Spark."""
    homes = os.environ.get("SPARK_HOME"), os.environ.get("SPARK_CONF_DIR")
    places = (Path(home) / below for home in homes if home for below in (".", "conf"))
    return any((place / _LOG4J).exists() for place in places)


def check_master(master: str) -> None:
    """Raise `BadInput` if no host of ``spark://host:port,host:port`` accepts a connection.

    Spark itself tries for a minute and prints a hundred lines. Other addresses are not checked.
    """
    if not (match := _MASTERS.fullmatch(master)):
        if _OTHER_MASTER.match(master):
            meant = "name a master as spark://HOST:PORT, yarn or local[4]"
            raise BadInput(f"--spark {master}: {meant}")
        return
    reasons = []
    for place in match[1].split(","):
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _MASTER_TIMEOUT).close()
        except OSError as error:
            reasons.append(error.strerror or str(error))
            continue
        except (ValueError, OverflowError) as error:  # of a name or port that none can have
            reasons.append(str(error))
            continue
        return
    raise BadInput(f"no Spark master answers at {master}: {', '.join(dict.fromkeys(reasons))}")


class Cluster:
    """An open Spark session."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.cores = max(int(context.defaultParallelism), 1)

    @contextmanager
    def shown(self, phase: str, on_progress: OnProgress) -> Iterator[None]:
        """Report which part of the tasks that run has ended, while the block runs."""
        tracker = self.context.statusTracker()

        def ended() -> ProgressUpdate | None:
            with suppress(Exception):  # of a session that ends meanwhile
                stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
                counts = [(one.numCompletedTasks, one.numTasks) for one in stages if one]
                if tasks := sum(all_of_it for _, all_of_it in counts):
                    return ProgressUpdate(phase, part=sum(done for done, _ in counts) / tasks)
            return None

        with measured(ended, on_progress):
            yield

    def in_turn(self, tasks: Sequence[T]) -> Iterator[Sequence[T]]:
        """Yield the tasks in groups of the size of a job."""
        most = AT_ONCE * self.cores
        return (tasks[at : at + most] for at in range(0, len(tasks), most))

    def rows(self, work: Callable[[T], Iterable[R]], tasks: Sequence[T]) -> Iterator[R]:
        """Yield the results of ``work(task)`` for every task in order, after all have ended.

        `work` is a function of a module, or a partial of one. Raises what it raises.
        """
        with self.kept(work, tasks) as kept:
            yield from kept.rows()

    def packed_rows(self, work: Callable[[T], Iterable[R]], tasks: Iterable[T]) -> Iterator[R]:
        """Yield the results of tasks that may be large, in order, as `rows` does.

        Tasks are made when they are sent, and sent compressed, `ROUND` bytes in one job.
        """
        for kept in self.kept_packed(work, tasks):
            yield from kept.rows()

    def kept_packed(
        self, work: Callable[[T], Iterable[R]], tasks: Iterable[T]
    ) -> Iterator[SparkRows[R]]:
        """Yield the results of tasks that may be large, those of one job after the other.

        The results of a job are gone when the next ones are asked for.
        """
        for batch in self._packed(tasks):
            with self.kept(partial(_run_packed, work), batch) as kept:
                yield kept

    def _packed(self, tasks: Iterable[Any]) -> Iterator[list[bytes]]:
        """Yield tasks as bytes, those of a job in a list."""
        batch, size = list[bytes](), 0
        for task in tasks:
            batch.append(zlib.compress(pickle.dumps(task, pickle.HIGHEST_PROTOCOL), 1))
            size += len(batch[-1])
            if size >= ROUND or len(batch) >= AT_ONCE * self.cores:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    @contextmanager
    def kept(self, work: Callable[[T], Iterable[R]], tasks: Sequence[T]) -> Iterator[SparkRows[R]]:
        """Yield the results of ``work(task)`` as rows on the executors' disks."""
        with (
            spark_errors()
        ):  # a master that accepts connections and does not answer is noticed here
            rdd = self.context.parallelize(tasks, max(len(tasks), 1))
        with _kept(rdd.mapPartitionsWithIndex(partial(_run_task, partial(_each, work)))) as kept:
            yield kept


class SparkRow(NamedTuple):
    """A result of a task on an executor's disk, or the end of its results.

    A lost row is computed again, by another attempt.
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
        with spark_errors():
            sizes = made.mapPartitions(_size).collect()
        yield SparkRows(made, sizes)
    finally:
        with suppress(Exception):  # of a context that has died
            made.unpersist()


class SparkRows(Generic[R]):
    """Rows on the executors' disks; those of a lost executor are computed again."""

    def __init__(self, made: Any, sizes: list[int]) -> None:
        """`sizes` are the bytes of the rows of each task."""
        self._rdd, self._sizes = made, sizes
        self._slices = sum(sizes) // SLICE + 1

    def rows(self) -> Iterator[R]:
        """Yield all rows in the order of tasks, with some tens of megabytes in memory.

        Raises `DedupError` if an executor is lost while its rows are fetched.
        """
        made = self._rdd
        if self._slices > 1:
            starts = list(accumulate(self._sizes, initial=0))
            cut = made.mapPartitionsWithIndex(partial(_cut, starts, SLICE))
            made = cut.partitionBy(self._slices, int).values().mapPartitions(sorted)
        with spark_errors():
            yield from _raise_errors(complete_rows(made.toLocalIterator(), len(self._sizes)))

    def filtered(self, chosen: Callable[[R], bool]) -> Iterator[R]:
        """Yield the rows for which `chosen` is true, in any order."""
        made = self._rdd.filter(partial(_passes, chosen)).coalesce(self._slices)
        with spark_errors():
            yield from _raise_errors(row.value for row in made.toLocalIterator())

    def applied(self, work: Callable[[Iterator[R]], Iterable[T]]) -> Iterator[T]:
        """Yield the results of ``work(rows)`` of the rows of each task, after all have ended.

        Work of a lost executor is repeated, with rows that may be computed again.
        """
        made = self._rdd.mapPartitionsWithIndex(partial(_run_task, partial(_applied, work)))
        with spark_errors():
            yield from _raise_errors(row.value for row in made.collect() if not row.last)

    def mapped(self, work: Callable[[R], Iterable[T]]) -> Any:
        """Return an RDD of the results of ``work(row)`` for all rows, in any order."""
        return self._rdd.flatMap(partial(_mapped, work))

    def grouped(
        self, by: Callable[[R], int], groups: int, work: Callable[[int, Iterator[R]], Iterable[T]]
    ) -> Iterator[T]:
        """Yield the results of ``work(group, rows)`` for each group of rows.

        `by` returns the number of a row's group, -1 to leave the row out.
        """
        keyed = self._rdd.flatMap(partial(_keyed, by)).partitionBy(groups, int).values()
        with _kept(keyed.mapPartitionsWithIndex(partial(_run_task, work))) as made:
            yield from made.rows()


def _each(work: Callable[[Any], Iterable[Any]], task: int, given: Iterator[Any]) -> Iterator[Any]:
    for one in given:
        yield from work(one)


def _run_packed(work: Callable[[Any], Iterable[Any]], task: bytes) -> Iterable[Any]:
    return work(pickle.loads(zlib.decompress(task)))  # noqa: S301 (of the driver)


def _run_task(
    work: Callable[[int, Iterator[Any]], Iterable[Any]], task: int, given: Iterator[Any]
) -> Iterator[SparkRow]:
    """Run a task on an executor. A `DedupError` becomes a row, as a retry would be of no use."""
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
    """Assign rows to slices of `length` bytes over the rows of all tasks.

    Rows that were computed again may be longer, but are in no slice of the next task.
    """
    at, most = starts[task], max(starts[task + 1] - 1, 0) // length
    for one in made:
        yield min(at // length, most), one
        at += _size([one])[0]


def complete_rows(made: Iterable[SparkRow], tasks: int) -> Iterator[Any]:
    """Yield the values of all rows in order; check that each task has all rows of one attempt."""
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


def _raise_errors(rows: Iterable[Any]) -> Iterator[Any]:
    """Raise the first `DedupError` among rows."""
    for row in rows:
        if isinstance(row, DedupError):
            raise row
        yield row


def _passes(chosen: Callable[[Any], bool], made: SparkRow) -> bool:
    if made.last:
        return False
    return isinstance(made.value, DedupError) or chosen(made.value)


def _mapped(work: Callable[[Any], Iterable[Any]], made: SparkRow) -> Iterable[Any]:
    if isinstance(made.value, DedupError):  # of a row that was computed again
        raise made.value
    return () if made.last else work(made.value)


def _applied(
    work: Callable[[Iterator[Any]], Iterable[Any]], task: int, made: Iterator[SparkRow]
) -> Iterable[Any]:
    return work(_raise_errors(row.value for row in made if not row.last))


def _keyed(by: Callable[[Any], int], made: SparkRow) -> Iterator[tuple[int, Any]]:
    if isinstance(made.value, DedupError):  # of a row that was computed again
        raise made.value
    if not made.last and (group := by(made.value)) >= 0:
        yield group, made.value


@contextmanager
def spark_errors() -> Iterator[None]:
    try:
        yield
    except DedupError:
        raise
    except Exception as error:  # of Java, or of the way to it
        line = _first_line(error)
        because = "" if line == _ENDED else "Spark failed, for the reason that it has printed: "
        raise DedupError(f"{because}{line}") from error


def _first_line(error: Exception) -> str:
    """Return the most useful line of an error of Java, or of Python on an executor."""
    text = str(error)
    if raised := _raised_on_executor(text):
        missing = _IMPORT.match(raised)
        return (
            f"a node cannot import what tasks need: {missing[1]} ({_NODES})" if missing else raised
        )
    if _STOPPED in text:
        return _ENDED
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "Exception" in line or "Error" in line]
    return (errors or lines or [type(error).__name__])[0].removeprefix(": ")[:400]


def _raised_on_executor(text: str) -> str:
    """Return the line of a trace of Python that says what was raised; empty without a trace."""
    _, begin, trace = text.rpartition("Traceback (most recent call last):")
    lines = (line for line in trace.splitlines() if line and not line[0].isspace())
    return next(lines, "")[:400] if begin else ""


def pieces(path: Path, name: str) -> Iterator[FilePiece]:
    """Yield a file as rows; one for an empty file."""
    with open(path, "rb") as stream:
        data = stream.read(PIECE)
        yield FilePiece(name, data)
        while data := stream.read(PIECE):
            yield FilePiece(name, data)


class PieceWriter:
    """Writes the pieces of files; each file appears when it is complete."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.names: list[str] = []
        self._files = ExitStack()

    def take(self, piece: FilePiece) -> None:
        if not self.names or self.names[-1] != piece.name:
            self.finish()
            self.names.append(piece.name)
            self._stream = self._files.enter_context(atomic_file(self.directory / piece.name))
        self._stream.write(piece.data)

    def finish(self) -> None:
        """Complete the last file."""
        self._files.close()
