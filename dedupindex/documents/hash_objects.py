"""Run bin/hash_documents: list objects, hash new and changed ones, write the shards.

Beside the shards, OUTPUT_DIR has ``.<key>.state`` with all hashes (a cache for the next run of the
same glob, which may be deleted), ``.<key>.lock``, and ``.<run id>.unfinished`` until all shards of
the run are written.
"""

from __future__ import annotations

import bz2
import gzip
import os
import secrets
import socket
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from blake3 import blake3

from dedupindex.capture import Problem
from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.documents.list_objects import ListedObject, Warn, absolute_glob, find, stamp_of
from dedupindex.documents.shard_target import ShardTarget, shard_target
from dedupindex.documents.shards import ShardLayout, write_shards
from dedupindex.errors import SOURCE_ERRORS, BadSource, Damaged, FormatFromFuture
from dedupindex.object_store import ObjectFacts, RemoteFile, is_remote
from dedupindex.runtime.files import check_name, exclusive
from dedupindex.runtime.workers import workers
from dedupindex.warc.zstd_format import MAGIC, Dictionaries, UnreadableFrame, frame_pieces

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


def hash_all(
    threads: int, batch: Sequence[ListedObject], *, decompress: bool = False
) -> list[Hashed]:
    """Hash local objects one after the other, remote ones concurrently.

    With `decompress` the hash and the size of compressed objects are those of their content.
    """
    if batch and is_remote(batch[0].path):
        with ThreadPoolExecutor(_DOWNLOADS) as pool:
            return list(pool.map(partial(_hash_object, threads, decompress), batch))
    return [_hash_file(listed.path, threads, decompress) for listed in batch]


def _content(file: BinaryIO, length: int) -> Iterator[bytes] | None:
    """Return the content of a compressed file in pieces; None for other files."""
    start = file.read(4)
    file.seek(0)
    if start.startswith(b"\x1f\x8b\x08"):
        return _pieces(cast(BinaryIO, gzip.GzipFile(fileobj=file)))
    if start.startswith(b"BZh"):
        return _pieces(cast(BinaryIO, bz2.BZ2File(file)))
    if start == MAGIC:

        def read(offset: int, count: int) -> bytes:
            file.seek(offset)
            return file.read(count)

        return frame_pieces(read, 0, length, Dictionaries.read(read))
    return None


def _pieces(content: BinaryIO) -> Iterator[bytes]:
    with content:
        while piece := content.read(_PIECE):
            yield piece


def _hash_content(file: BinaryIO, length: int) -> tuple[int, bytes] | None:
    """Return size and hash of the content of a file; None if it cannot be decompressed."""
    hasher, size = blake3(), 0
    try:
        content = _content(file, length)
        if content is None:
            return None
        for piece in content:
            hasher.update(piece)
            size += len(piece)
    except (EOFError, zlib.error, UnreadableFrame):
        return None
    except OSError as error:
        if error.errno is not None:  # of the disk, not of the format
            raise
        return None
    return size, hasher.digest()


def _content_stamp(stamp: str, stored: int) -> str:
    """Return the stamp of an object of which the row has the size of the content."""
    return stamp and f"{stamp}+{stored:x}"


def _hash_object(threads: int, decompress: bool, listed: ListedObject) -> Hashed:
    address = listed.path
    try:
        known = ObjectFacts(listed.size, listed.stamp)
        with closing(RemoteFile(address, known, in_order=True)) as file:
            if decompress and (content := _hash_content(file, listed.size)) is not None:
                if file.changed():
                    return Hashed(address, problem=CHANGED)
                stamp = _content_stamp(listed.stamp, listed.size)
                return Hashed(address, content[0], stamp, content[1])
            file.seek(0)
            hasher, size = blake3(max_threads=threads if listed.size >= LARGE else 1), 0
            while piece := file.read(_REMOTE_PIECE):
                hasher.update(piece)
                size += len(piece)
            if size != listed.size or file.changed():
                return Hashed(address, problem=CHANGED)
    except SOURCE_ERRORS as error:
        return Hashed(address, problem=str(error).removeprefix(f"{address} "))
    return Hashed(address, size, listed.stamp, hasher.digest())


def _hash_file(path: str, threads: int, decompress: bool) -> Hashed:
    begin = time.time_ns()
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would block
        try:
            before = os.fstat(file)
            found = None
            if decompress:
                with open(file, "rb", closefd=False) as stream:
                    found = _hash_content(stream, before.st_size)
                os.lseek(file, 0, os.SEEK_SET)
            size, digest = found or _hash_stored(file, before.st_size, threads)
            after = os.fstat(file)
        finally:
            os.close(file)
    except OSError as error:
        return Hashed(path, problem=f"cannot be read: {error.strerror or error}")
    stamp = stamp_of(after)
    if (found is None and size != before.st_size) or stamp != stamp_of(before):
        return Hashed(path, problem=CHANGED)
    if after.st_size != before.st_size:
        return Hashed(path, problem=CHANGED)
    if max(after.st_mtime_ns, after.st_ctime_ns) > begin - _COARSE:
        stamp = ""  # a later change may have the same time
    if found is not None:
        stamp = _content_stamp(stamp, before.st_size)
    return Hashed(path, size, stamp, digest)


def _hash_stored(file: int, length: int, threads: int) -> tuple[int, bytes]:
    """Return size and hash of an open file of `length` bytes as it is."""
    large = length >= LARGE
    hasher, size = blake3(max_threads=threads if large else 1), 0
    buffer = _buffer(_LARGE_PIECE if large else _PIECE)
    # not mapped: truncation of a mapped file would kill the process
    while size < length and (count := os.readv(file, [buffer])):
        hasher.update(buffer[:count])
        size += count
    return size, hasher.digest()


@cache
def _buffer(length: int) -> memoryview:
    """Return a buffer to reuse: allocating one takes as long as hashing it."""
    return memoryview(bytearray(length))


FORMAT = 1
_COMMIT_SECONDS = 1.0  # between commits: so much is hashed again after an interruption
_DECOMPRESSED = b"\0decompressed"  # after the pattern, in the state of a run with that option
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

    def __init__(
        self, path: Path, pattern: str, run: str, save: Callable[[bool], None],
        *, decompress: bool = False,
    ) -> None:  # fmt: skip
        """Open or create it; `run` is the id of a new one. Raises `FormatFromFuture`.

        The hashes of a run with another `decompress` are deleted.

        `save` is called after each commit, with True if it must not wait for a later one.
        """
        self._save = save
        with ExitStack() as stack:
            database = stack.enter_context(closing(sqlite3.connect(path, isolation_level=None)))
            database.executescript(_SCHEMA)
            about = database.execute("SELECT format, run, turn, pattern FROM about").fetchone()
            kind = os.fsencode(pattern) + (_DECOMPRESSED if decompress else b"")
            database.execute("BEGIN")
            if about is None:
                about = (FORMAT, run, 0, kind)
                row = (FORMAT, kind, run)
                database.execute("INSERT INTO about VALUES (?, ?, ?, 0)", row)
            elif about[0] > FORMAT:
                raise FormatFromFuture(f"{path} has format {about[0]}, this knows {FORMAT}")
            elif about[3] != kind:
                database.execute("DELETE FROM object")
                database.execute("UPDATE about SET pattern = ?", (kind,))
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
            "UPDATE object SET turn = ? WHERE path = ? AND (size = ? AND stamp = ? OR stamp = ?)",
            (
                self._turn,
                os.fsencode(listed.path),
                listed.size,
                listed.stamp,
                _content_stamp(listed.stamp, listed.size),
            ),
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

    def save(self) -> None:
        """Commit, and save all that was hashed."""
        self._commit_then_begin(at_once=True)

    def _commit_then_begin(self, *, at_once: bool = False) -> None:
        self._database.execute("COMMIT")
        try:
            self._save(at_once)
        finally:
            self._database.execute("BEGIN")
        self._due = time.monotonic() + _COMMIT_SECONDS


_BATCH_FILES, _BATCH_BYTES = 256, 1 << 25  # of a batch
_AHEAD = 3  # submitted batches per process


@dataclass(frozen=True)
class HashOptions:
    layout: ShardLayout = field(default_factory=ShardLayout)
    jobs: int = 1
    deterministic: bool = False
    decompress: bool = False  # hash the content of compressed objects
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
    top: Path | str,
    options: HashOptions,
    warn: Warn = lambda problem: None,
    on_progress: OnProgress = lambda seen: None,
) -> HashReport:
    """Hash the objects that match a glob, and write shards to the directory `top`.

    `top` is a path, or the address of a directory in an object store. `warn` is called for every
    object that cannot be read. Raises `BadSource` if nothing matches, `IndexBusy` if another
    process hashes the same glob, `DedupError` of DuckDB.
    """
    begin = time.monotonic()
    pattern, report = absolute_glob(pattern), HashReport()
    top = top.rstrip("/") if isinstance(top, str) else top.absolute()
    check_name(str(top))

    def report_problem(problem: Problem) -> None:
        report.problems += 1
        warn(problem)

    found = _found(pattern, top, report_problem)
    anywhere = options.deterministic or (isinstance(top, str) and is_remote(pattern))
    host = b"" if anywhere else os.fsencode(socket.gethostname()) + b"\0"
    key = blake3(host + os.fsencode(pattern)).hexdigest()[:12]  # shared by all runs of the glob
    run = key if options.deterministic else secrets.token_hex(6)
    with (
        shard_target(top) as target,
        exclusive(target.top / f".{key}.lock", f"the shards of {pattern} in {top}"),
    ):
        path = target.top / f".{key}.state"
        target.fetch(path.name)
        try:
            with closing(
                HashState(
                    path, pattern, run, partial(target.save, path), decompress=options.decompress
                )
            ) as state:
                report.run = state.run
                _hash_and_write(target, options, state, report, found, report_problem, on_progress)
        except sqlite3.DatabaseError as error:
            raise Damaged(
                f"{top}/.{key}.state: {error}; remove it, and all is hashed again"
            ) from error
    report.elapsed_time_secs = time.monotonic() - begin
    report.total_processed_gb = report.bytes / 1e9
    report.rate_mb_per_sec = report.bytes / 1e6 / report.elapsed_time_secs
    return report


def _found(pattern: str, top: Path | str, warn: Warn) -> Iterator[ListedObject]:
    """Yield the objects that match a glob, except those in `top`."""
    if isinstance(top, Path):
        return find(pattern, warn, top)
    own = f"{top}/"
    found = find(pattern, warn, Path(os.devnull))
    return (listed for listed in found if not listed.path.startswith(own))


def _hash_and_write(
    target: ShardTarget, options: HashOptions, state: HashState, report: HashReport,
    found: Iterator[ListedObject], warn: Warn, on_progress: OnProgress,
) -> None:  # fmt: skip
    """Hash what the state does not know, and write the shards; the lock is held."""

    def unknown() -> Iterator[ListedObject]:
        for listed in found:
            if state.knows(listed):
                report.known += 1
            else:
                yield listed

    before = target.has_shards(state.run)
    if not before:
        target.mark(state.run)
    for batch in _hash_all(unknown(), options):
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
            target.unmark(state.run)
        raise BadSource(
            f"nothing matches {state.pattern}: give a directory, or a glob in quotation marks"
        )
    report.gone = state.forget_others()
    state.save()
    names = write_shards(state.rows(), target.top, state.run, options.layout, options.memory)
    target.mark(state.run)
    target.publish(state.run, names)
    target.unmark(state.run)
    report.shards = len(names)


def _hash_all(found: Iterable[ListedObject], options: HashOptions) -> Iterator[list[Hashed]]:
    """Hash in several processes; yield results as they are ready."""
    jobs, work = options.jobs, partial(hash_all, decompress=options.decompress)
    if jobs <= 1:
        for batch in _batches(found):
            yield work(1, batch)
        return
    with workers(jobs) as pool:  # started before listing a store starts threads
        pending: set[Future[list[Hashed]]] = set()
        for batch in _batches(found):
            pending.add(pool.submit(work, jobs, batch))
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
