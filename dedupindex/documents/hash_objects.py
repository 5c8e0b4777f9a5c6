"""A run of bin/hash_documents: find, hash what is not known, write the shards.

OUTPUT_DIR has beside the shards ``.<key>.state`` with all hashes, which makes the next run of the
same glob cheap and may be deleted, ``.<key>.lock``, and ``.<run id>.unfinished`` until all shards
of the run are there.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from blake3 import blake3

from dedupindex.capture import Problem
from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.documents.list_objects import ListedObject, Warn, find, normal, stamp_of
from dedupindex.documents.shards import ShardLayout, clear, publish, shards_in
from dedupindex.errors import BadSource, Damaged, FormatFromFuture
from dedupindex.object_store import ObjectFacts, RemoteFile, is_remote
from dedupindex.runtime.files import exclusive, sync_directory
from dedupindex.runtime.workers import workers

# The BLAKE3 of one object, noticing when it changes meanwhile.

LARGE = 1 << 26  # bytes from which an object is hashed by several threads
_PIECE = 1 << 19  # bytes read at a time: they are hashed while a core's cache has them
_LARGE_PIECE = 1 << 24  # enough for all threads
_REMOTE_PIECE = 1 << 20
AT_ONCE = 16  # objects that a process reads from a store side by side
_COARSE = 2_000_000_000  # nanoseconds: the coarsest time stamps of file systems

CHANGED = "was written to while it was hashed; run the same again when it is at rest"


class Hashed(NamedTuple):
    """What came of an object."""

    path: str
    size: int = 0
    stamp: str = ""
    digest: bytes = b""
    problem: str = ""  # why there is no digest


def hash_all(threads: int, batch: Sequence[ListedObject]) -> list[Hashed]:
    """Hash objects one after the other, those elsewhere side by side; large ones by threads."""
    if batch and is_remote(batch[0].path):
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(partial(_hash_object, threads), batch))
    return [_hash(found, threads) for found in batch]


def _hash(found: ListedObject, threads: int) -> Hashed:
    try:
        return _hash_file(found.path, threads)
    except OSError as error:
        return Hashed(found.path, problem=f"cannot be read: {error.strerror or error}")


def _hash_object(threads: int, found: ListedObject) -> Hashed:
    """An object in a store or on a web server."""
    address = found.path
    try:
        known = ObjectFacts(found.size, found.stamp)
        with closing(RemoteFile(address, known, in_order=True)) as file:
            hasher, size = blake3(max_threads=threads if found.size >= LARGE else 1), 0
            while piece := file.read(_REMOTE_PIECE):
                hasher.update(piece)
                size += len(piece)
            if size != found.size or file.changed():
                return Hashed(address, problem=CHANGED)
    except BadSource as error:
        return Hashed(address, problem=str(error).removeprefix(f"{address} "))
    return Hashed(address, size, found.stamp, hasher.digest())


def _hash_file(path: str, threads: int) -> Hashed:
    """Raises `OSError`. Read, not mapped: a file that is cut off meanwhile would kill us."""
    begin = time.time_ns()
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait for ever
    try:
        before = os.fstat(file)
        large = before.st_size >= LARGE
        hasher, size = blake3(max_threads=threads if large else 1), 0
        buffer = _buffer(_LARGE_PIECE if large else _PIECE)
        while size < before.st_size and (count := os.readv(file, [buffer])):
            hasher.update(buffer[:count])
            size += count
        after = os.fstat(file)
    finally:
        os.close(file)
    stamp = stamp_of(after)
    if size != before.st_size or size != after.st_size or stamp != stamp_of(before):
        return Hashed(path, problem=CHANGED)
    if max(after.st_mtime_ns, after.st_ctime_ns) > begin - _COARSE:
        stamp = ""  # a change to come may bear the same time
    return Hashed(path, size, stamp, hasher.digest())


@cache
def _buffer(length: int) -> memoryview:
    """The same one again and again: making it costs as much as hashing it."""
    return memoryview(bytearray(length))


# What a run has hashed so far, in SQLite: a run that was killed goes on with it.

FORMAT = 1
_EVERY = 1.0  # seconds between two commits: as much is hashed again after a kill
_SCHEMA = """
CREATE TABLE IF NOT EXISTS about (format INTEGER, pattern BLOB, run TEXT, turn INTEGER);
CREATE TABLE IF NOT EXISTS object (
  path BLOB PRIMARY KEY, size INTEGER, stamp TEXT, hash BLOB, turn INTEGER
) WITHOUT ROWID;
"""


class HashState:
    """Every object with its hash; those that the present run has met are of its turn."""

    def __init__(self, path: Path, pattern: str, run: str) -> None:
        """Open or make it; `run` is the id of a new one. Raises `FormatFromFuture`."""
        self._database = sqlite3.connect(path, isolation_level=None)
        try:
            self._open(path, pattern, run)
        except BaseException:
            self._database.close()
            raise

    def _open(self, path: Path, pattern: str, run: str) -> None:
        self._database.executescript(_SCHEMA)
        about = self._database.execute("SELECT format, run, turn FROM about").fetchone()
        self._begin()
        if about is None:
            about = (FORMAT, run, 0)
            self._database.execute(
                "INSERT INTO about VALUES (?, ?, ?, 0)", (FORMAT, os.fsencode(pattern), run)
            )
        elif about[0] > FORMAT:
            raise FormatFromFuture(f"{path} has format {about[0]}, this knows {FORMAT}")
        self.run: str = about[1]
        self.pattern = pattern
        self._turn = about[2] + 1
        self._database.execute("UPDATE about SET turn = ?", (self._turn,))
        self._fresh = not self._database.execute("SELECT 1 FROM object LIMIT 1").fetchone()
        self._commit_then_begin()

    def close(self) -> None:
        """Keep all that was put."""
        self._database.execute("COMMIT")
        self._database.close()

    def knows(self, found: ListedObject) -> bool:
        """Whether an object was hashed as it is; it then counts as met."""
        if self._fresh or not found.stamp:
            return False
        met = self._database.execute(
            "UPDATE object SET turn = ? WHERE path = ? AND size = ? AND stamp = ?",
            (self._turn, os.fsencode(found.path), found.size, found.stamp),
        )
        return met.rowcount > 0

    def put(self, batch: Iterable[Hashed]) -> None:
        """Keep what was hashed, and count it as met."""
        self._database.executemany(
            "INSERT OR REPLACE INTO object VALUES (?, ?, ?, ?, ?)",
            [(os.fsencode(one.path), one.size, one.stamp, one.digest, self._turn) for one in batch],
        )
        if time.monotonic() > self._due:
            self._commit_then_begin()

    def forget_others(self) -> int:
        """Drop what this run has not met; returns how many those are."""
        gone = self._database.execute("DELETE FROM object WHERE turn <> ?", (self._turn,))
        self._commit_then_begin()
        return gone.rowcount

    def rows(self) -> Iterator[tuple[bytes, int, bytes]]:
        """Path, size and hash of every object, in the order of paths."""
        yield from self._database.execute("SELECT path, size, hash FROM object ORDER BY path")

    def _commit_then_begin(self) -> None:
        self._database.execute("COMMIT")
        self._begin()

    def _begin(self) -> None:
        self._database.execute("BEGIN")
        self._due = time.monotonic() + _EVERY


UNFINISHED = ".unfinished"
_BATCH_FILES, _BATCH_BYTES = 256, 1 << 25  # what a process takes at a time
_AHEAD = 3  # batches that wait, for each process


@dataclass(frozen=True)
class HashOptions:
    """How a run is done."""

    layout: ShardLayout = field(default_factory=ShardLayout)
    jobs: int = 1
    deterministic: bool = False
    memory: str = "1GB"  # that DuckDB may take


@dataclass
class HashReport:
    """What a run did; the first four fields are those of the seed's profiling report."""

    num_files_processed: int = 0  # hashed in this run
    elapsed_time_secs: float = 0.0
    total_processed_gb: float = 0.0  # 1e9 bytes
    rate_mb_per_sec: float = 0.0  # 1e6 bytes
    bytes: int = 0  # hashed in this run
    known: int = 0  # hashed before, the same since
    gone: int = 0  # of an earlier run, no longer there
    problems: int = 0  # objects that could not be read, all named
    rows: int = 0  # in the shards
    shards: int = 0
    run: str = ""  # the run id

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def hash_documents(
    pattern: str,
    top: Path,
    options: HashOptions,
    warn: Warn = lambda problem: None,
    on_progress: OnProgress = lambda seen: None,
) -> HashReport:
    """Hash what a glob names into shards in the directory `top`.

    `warn` hears of every object that is left out. Raises `BadSource` if the glob names nothing,
    `IndexBusy` if another process does the same, `DedupError` of DuckDB.
    """
    begin = time.monotonic()
    pattern, top, report = normal(pattern), top.absolute(), HashReport()

    def tell(problem: Problem) -> None:
        report.problems += 1
        warn(problem)

    found = find(pattern, tell, top)
    key = _key(pattern, options)
    with _made(top), exclusive(top / f".{key}.lock", f"the shards of {pattern} in {top}"):
        try:
            with closing(HashState(top / f".{key}.state", pattern, _run_id(key, options))) as state:
                _Run(top, options, state, report).go(found, tell, on_progress)
        except sqlite3.DatabaseError as error:
            raise Damaged(
                f"{top}/.{key}.state: {error}; remove it, and all is hashed again"
            ) from error
    report.elapsed_time_secs = time.monotonic() - begin
    report.total_processed_gb = report.bytes / 1e9
    report.rate_mb_per_sec = report.bytes / 1e6 / report.elapsed_time_secs
    return report


@contextmanager
def _made(top: Path) -> Iterator[None]:
    """Make the directory; if it is new and the glob names nothing, it goes again."""
    new = not top.exists()
    top.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BadSource:
        if new:
            shutil.rmtree(top)
        raise


class _Run:
    """One run, its lock held."""

    def __init__(
        self, top: Path, options: HashOptions, state: HashState, report: HashReport
    ) -> None:
        self._top, self._options, self._state, self._report = top, options, state, report
        report.run = state.run

    def go(self, found: Iterator[ListedObject], tell: Warn, on_progress: OnProgress) -> None:
        top, state, report = self._top, self._state, self._report
        clear(top, state.run)
        mark = top / f".{state.run}{UNFINISHED}"
        before = bool(shards_in(top, state.run))
        if not before:
            _touch(mark)
        for batch in _hash_all(self._unknown(found), self._options.jobs):
            import dedupindex.documents.shards  # noqa: F401 (slow, with DuckDB; by now all hash)

            state.put(one for one in batch if not one.problem)
            for hashed in batch:
                if hashed.problem:
                    tell(Problem(hashed.path, -1, hashed.problem))
                    continue
                report.num_files_processed += 1
                report.bytes += hashed.size
            on_progress(ProgressUpdate("hashing", report.bytes, 0, report.num_files_processed))
        report.rows = report.num_files_processed + report.known
        if not report.rows and not report.problems:
            if not before:
                mark.unlink()
            raise BadSource(f"nothing matches {state.pattern}")
        report.gone = state.forget_others()
        from dedupindex.documents.shards import write_shards  # slow: DuckDB

        layout, memory = self._options.layout, self._options.memory
        names = write_shards(state.rows(), top, state.run, layout, memory)
        _touch(mark)
        publish(top, state.run, names)
        mark.unlink()
        report.shards = len(names)

    def _unknown(self, found: Iterator[ListedObject]) -> Iterator[ListedObject]:
        for one in found:
            if self._state.knows(one):
                self._report.known += 1
            else:
                yield one


def _key(pattern: str, options: HashOptions) -> str:
    """Under which a run finds what it, or the same run before, has done."""
    home = b"" if options.deterministic else os.fsencode(socket.gethostname()) + b"\0"
    return blake3(home + os.fsencode(pattern)).hexdigest()[:12]


def _run_id(key: str, options: HashOptions) -> str:
    return key if options.deterministic else secrets.token_hex(6)


def _touch(mark: Path) -> None:
    mark.touch()
    sync_directory(mark.parent)


def _hash_all(found: Iterable[ListedObject], jobs: int) -> Iterator[list[Hashed]]:
    """Hash in so many processes; results as they are ready."""
    if jobs <= 1:
        for batch in _batches(found):
            yield hash_all(1, batch)
        return
    from concurrent.futures import FIRST_COMPLETED, Future, wait  # slow, as in `processes`

    with workers(jobs) as pool:  # which are there before listing a store makes threads here
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
    """Some objects at a time; a large one goes alone."""
    batch: list[ListedObject] = []
    size = 0
    for one in found:
        if one.size >= LARGE:
            yield [one]
            continue
        batch.append(one)
        size += one.size
        if len(batch) >= _BATCH_FILES or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
