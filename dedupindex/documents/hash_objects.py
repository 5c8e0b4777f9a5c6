"""Run bin/hash_documents: list objects, hash new and changed ones, write the shards.

Beside the shards, OUTPUT_DIR has ``.<key>.state`` with all hashes (a cache for the next run of the
same glob, which may be deleted), ``.<key>.lock``, and ``.<run id>.unfinished`` until all shards of
the run are written.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from dedupindex.capture import Problem
from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.documents.list_objects import ListedObject, Warn, absolute_glob, find, stamp_of
from dedupindex.documents.shards import ShardLayout, clear, publish, shards_in, write_shards
from dedupindex.errors import BadSource, Damaged, FormatFromFuture
from dedupindex.object_store import ObjectFacts, RemoteFile, is_remote
from dedupindex.runtime.files import exclusive, sync_directory
from dedupindex.runtime.workers import workers

LARGE = 1 << 26  # bytes: larger objects are hashed by several threads
_PIECE = 1 << 19  # bytes read at a time, which fit in the cache of a core
_LARGE_PIECE = 1 << 24  # enough for all threads
_REMOTE_PIECE = 1 << 20
_DOWNLOADS = 16  # objects that a process reads from a store at the same time
_COARSE = 2_000_000_000  # nanoseconds: the coarsest time stamps of file systems

CHANGED = "changed while it was hashed; run the same command again"


class Hashed(NamedTuple):
    path: str
    size: int = 0
    stamp: str = ""
    digest: bytes = b""
    problem: str = ""  # why there is no digest


def hash_all(threads: int, batch: Sequence[ListedObject]) -> list[Hashed]:
    """Hash local objects one after the other, remote ones concurrently."""
    if batch and is_remote(batch[0].path):
        with ThreadPoolExecutor(_DOWNLOADS) as pool:
            return list(pool.map(partial(_hash_object, threads), batch))
    return [_hash_file(listed.path, threads) for listed in batch]


def _hash_object(threads: int, listed: ListedObject) -> Hashed:
    address = listed.path
    try:
        known = ObjectFacts(listed.size, listed.stamp)
        with closing(RemoteFile(address, known, in_order=True)) as file:
            hasher, size = blake3(max_threads=threads if listed.size >= LARGE else 1), 0
            while piece := file.read(_REMOTE_PIECE):
                hasher.update(piece)
                size += len(piece)
            if size != listed.size or file.changed():
                return Hashed(address, problem=CHANGED)
    except BadSource as error:
        return Hashed(address, problem=str(error).removeprefix(f"{address} "))
    return Hashed(address, size, listed.stamp, hasher.digest())


def _hash_file(path: str, threads: int) -> Hashed:
    begin = time.time_ns()
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would block
        try:
            before = os.fstat(file)
            large = before.st_size >= LARGE
            hasher, size = blake3(max_threads=threads if large else 1), 0
            buffer = _buffer(_LARGE_PIECE if large else _PIECE)
            # not mapped: truncation of a mapped file would kill the process
            while size < before.st_size and (count := os.readv(file, [buffer])):
                hasher.update(buffer[:count])
                size += count
            after = os.fstat(file)
        finally:
            os.close(file)
    except OSError as error:
        return Hashed(path, problem=f"cannot be read: {error.strerror or error}")
    stamp = stamp_of(after)
    if size != before.st_size or size != after.st_size or stamp != stamp_of(before):
        return Hashed(path, problem=CHANGED)
    if max(after.st_mtime_ns, after.st_ctime_ns) > begin - _COARSE:
        stamp = ""  # a later change may have the same time
    return Hashed(path, size, stamp, hasher.digest())


@cache
def _buffer(length: int) -> memoryview:
    """Return a buffer to reuse: allocating one takes as long as hashing it."""
    return memoryview(bytearray(length))


FORMAT = 1
_COMMIT_SECONDS = 1.0  # between commits: so much is hashed again after an interruption
_SCHEMA = """
CREATE TABLE IF NOT EXISTS about (format INTEGER, pattern BLOB, run TEXT, turn INTEGER);
CREATE TABLE IF NOT EXISTS object (
  path BLOB PRIMARY KEY, size INTEGER, stamp TEXT, hash BLOB, turn INTEGER
) WITHOUT ROWID;
"""


class HashState:
    """All hashes in SQLite, so that an interrupted run is resumed.

    The column `turn` is the number of the last run that met the object.
    """

    def __init__(self, path: Path, pattern: str, run: str) -> None:
        """Open or create it; `run` is the id of a new one. Raises `FormatFromFuture`."""
        with ExitStack() as stack:
            database = stack.enter_context(closing(sqlite3.connect(path, isolation_level=None)))
            database.executescript(_SCHEMA)
            about = database.execute("SELECT format, run, turn FROM about").fetchone()
            database.execute("BEGIN")
            if about is None:
                about = (FORMAT, run, 0)
                row = (FORMAT, os.fsencode(pattern), run)
                database.execute("INSERT INTO about VALUES (?, ?, ?, 0)", row)
            elif about[0] > FORMAT:
                raise FormatFromFuture(f"{path} has format {about[0]}, this knows {FORMAT}")
            self._database, self.pattern = database, pattern
            self.run, self._turn = str(about[1]), about[2] + 1
            database.execute("UPDATE about SET turn = ?", (self._turn,))
            self._fresh = not database.execute("SELECT 1 FROM object LIMIT 1").fetchone()
            self._commit_then_begin()
            stack.pop_all()

    def close(self) -> None:
        self._database.execute("COMMIT")
        self._database.close()

    def knows(self, listed: ListedObject) -> bool:
        """Return whether an object was hashed in its present state; if so, it counts as met."""
        if self._fresh or not listed.stamp:
            return False
        found = self._database.execute(
            "UPDATE object SET turn = ? WHERE path = ? AND size = ? AND stamp = ?",
            (self._turn, os.fsencode(listed.path), listed.size, listed.stamp),
        )
        return found.rowcount > 0

    def put(self, batch: Iterable[Hashed]) -> None:
        """Store hashes, and count their objects as met."""
        self._database.executemany(
            "INSERT OR REPLACE INTO object VALUES (?, ?, ?, ?, ?)",
            [
                (os.fsencode(path), size, stamp, digest, self._turn)
                for path, size, stamp, digest, _ in batch
            ],
        )
        if time.monotonic() > self._due:
            self._commit_then_begin()

    def forget_others(self) -> int:
        """Delete what this run has not met; return the number."""
        deleted = self._database.execute("DELETE FROM object WHERE turn <> ?", (self._turn,))
        self._commit_then_begin()
        return deleted.rowcount

    def rows(self) -> Iterator[tuple[bytes, int, bytes]]:
        """Yield path, size and hash of every object, in the order of paths."""
        yield from self._database.execute("SELECT path, size, hash FROM object ORDER BY path")

    def _commit_then_begin(self) -> None:
        self._database.execute("COMMIT")
        self._database.execute("BEGIN")
        self._due = time.monotonic() + _COMMIT_SECONDS


UNFINISHED = ".unfinished"
_BATCH_FILES, _BATCH_BYTES = 256, 1 << 25  # of a batch
_AHEAD = 3  # submitted batches per process


@dataclass(frozen=True)
class HashOptions:
    layout: ShardLayout = field(default_factory=ShardLayout)
    jobs: int = 1
    deterministic: bool = False
    memory: str = "1GB"  # of DuckDB


@dataclass
class HashReport:
    """The counts of a run; the names of the first four are given by the report format."""

    num_files_processed: int = 0  # hashed in this run
    elapsed_time_secs: float = 0.0
    total_processed_gb: float = 0.0  # 1e9 bytes
    rate_mb_per_sec: float = 0.0  # 1e6 bytes
    bytes: int = 0  # hashed in this run
    known: int = 0  # hashed before and unchanged
    gone: int = 0  # objects of an earlier run that no longer exist
    problems: int = 0  # objects that could not be read
    rows: int = 0  # in the shards
    shards: int = 0
    run: str = ""  # run id


def hash_documents(
    pattern: str,
    top: Path,
    options: HashOptions,
    warn: Warn = lambda problem: None,
    on_progress: OnProgress = lambda seen: None,
) -> HashReport:
    """Hash the objects that match a glob, and write shards to the directory `top`.

    `warn` is called for every object that cannot be read. Raises `BadSource` if nothing matches,
    `IndexBusy` if another process hashes the same glob, `DedupError` of DuckDB.
    """
    begin = time.monotonic()
    pattern, top, report = absolute_glob(pattern), top.absolute(), HashReport()

    def report_problem(problem: Problem) -> None:
        report.problems += 1
        warn(problem)

    found = find(pattern, report_problem, top)
    host = b"" if options.deterministic else os.fsencode(socket.gethostname()) + b"\0"
    key = blake3(host + os.fsencode(pattern)).hexdigest()[:12]  # shared by all runs of the glob
    run = key if options.deterministic else secrets.token_hex(6)
    with _directory(top), exclusive(top / f".{key}.lock", f"the shards of {pattern} in {top}"):
        try:
            with closing(HashState(top / f".{key}.state", pattern, run)) as state:
                report.run = state.run
                _hash_and_write(top, options, state, report, found, report_problem, on_progress)
        except sqlite3.DatabaseError as error:
            raise Damaged(
                f"{top}/.{key}.state: {error}; remove it, and all is hashed again"
            ) from error
    report.elapsed_time_secs = time.monotonic() - begin
    report.total_processed_gb = report.bytes / 1e9
    report.rate_mb_per_sec = report.bytes / 1e6 / report.elapsed_time_secs
    return report


@contextmanager
def _directory(top: Path) -> Iterator[None]:
    """Create the directory; remove a new one if nothing matches."""
    new = not top.exists()
    top.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BadSource:
        if new:
            shutil.rmtree(top)
        raise


def _hash_and_write(
    top: Path, options: HashOptions, state: HashState, report: HashReport,
    found: Iterator[ListedObject], warn: Warn, on_progress: OnProgress,
) -> None:  # fmt: skip
    """Hash what the state does not know, and write the shards; the lock is held."""

    def unknown() -> Iterator[ListedObject]:
        for listed in found:
            if state.knows(listed):
                report.known += 1
            else:
                yield listed

    clear(top, state.run)
    marker = top / f".{state.run}{UNFINISHED}"
    before = bool(shards_in(top, state.run))
    if not before:
        _touch(marker)
    for batch in _hash_all(unknown(), options.jobs):
        state.put(hashed for hashed in batch if not hashed.problem)
        for hashed in batch:
            if hashed.problem:
                warn(Problem(hashed.path, -1, hashed.problem))
                continue
            report.num_files_processed += 1
            report.bytes += hashed.size
        on_progress(ProgressUpdate("hashing", report.bytes, 0, report.num_files_processed))
    report.rows = report.num_files_processed + report.known
    if not report.rows and not report.problems:
        if not before:
            marker.unlink()
        raise BadSource(f"nothing matches {state.pattern}")
    report.gone = state.forget_others()
    names = write_shards(state.rows(), top, state.run, options.layout, options.memory)
    _touch(marker)
    publish(top, state.run, names)
    marker.unlink()
    report.shards = len(names)


def _touch(marker: Path) -> None:
    marker.touch()
    sync_directory(marker.parent)


def _hash_all(found: Iterable[ListedObject], jobs: int) -> Iterator[list[Hashed]]:
    """Hash in `jobs` processes; yield results as they are ready."""
    if jobs <= 1:
        for batch in _batches(found):
            yield hash_all(1, batch)
        return
    with workers(jobs) as pool:  # started before listing a store starts threads
        pending: set[Future[list[Hashed]]] = set()
        for batch in _batches(found):
            pending.add(pool.submit(hash_all, jobs, batch))
            if len(pending) >= _AHEAD * jobs:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        for future in pending:
            yield future.result()


def _batches(found: Iterable[ListedObject]) -> Iterator[list[ListedObject]]:
    """Divide objects into batches; a large one is a batch of its own."""
    batch: list[ListedObject] = []
    size = 0
    for listed in found:
        if listed.size >= LARGE:
            yield [listed]
            continue
        batch.append(listed)
        size += listed.size
        if len(batch) >= _BATCH_FILES or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
