"""The store of crawls in an LMDB file beside the index, ``INDEX/crawls.mdb``.

`lmdb_crawl_state` describes its trees. Several processes may write, one at a time; every
transaction is forced to disk.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import lmdb

from dedupindex.crawls.crawl import Crawl
from dedupindex.crawls.store import FILE, CrawlWriter, Held, Store, Writing
from dedupindex.crawls.stores.lmdb_crawl_state import (
    NUMBER,
    CrawlTrees,
    LmdbReading,
    LmdbWriting,
    format_of,
    put_format,
)
from dedupindex.errors import (
    Damaged,
    DedupError,
    FormatFromFuture,
    FormatFromPast,
    IndexUnavailable,
)
from dedupindex.index.engines.lmdb.lmdb_file import check_pages, failed, open_in, unopened
from dedupindex.index.format.cells import unsealed
from dedupindex.index.identity import FORMAT
from dedupindex.runtime.files import stable_directory, sync_directory, unwritable

CELLS_PER_READ = 100_000  # cells in one read transaction


class LmdbStore(Store):
    """The open file; a process can open it once."""

    def __init__(self, index: Path, *, create: bool = True) -> None:
        """Open or `create` the file, on a read-only disk to read.

        Raises `Damaged`, `IndexUnavailable`.
        """
        self.path = index / FILE
        self._env: Any = None
        try:
            with stable_directory(index) as home:  # another index may replace this one at any time
                made = not (home / FILE).exists()
                if made and not create:
                    raise FileNotFoundError(f"{self.path} is gone")
                if not made:
                    check_pages(home / FILE)
                self._open(home, write=os.access(home, os.W_OK))
                self._inode = os.stat(home / FILE).st_ino
                if made:
                    sync_directory(home)
        except (lmdb.Error, OSError) as error:
            raise unopened(self.path, error) from error
        except DedupError:
            self.close()
            raise

    def _open(self, home: Path, *, write: bool) -> None:
        self._writable = write
        self._env = open_in(
            home,
            self.path,
            write=write,
            lock=write,
            create=write,
            max_dbs=len(CrawlTrees._fields),
            readahead=False,
        )
        if write:
            with self._env.begin(write=True) as txn:
                if not txn.stat()["entries"]:
                    put_format(txn, CrawlTrees.open(self._env, txn).meta)
        try:
            meta = self._env.open_db(b"meta", create=False)
            with self._env.begin() as txn:
                self._agree(format_of(txn, meta))
            self.trees = CrawlTrees.open(self._env)
        except lmdb.NotFoundError as error:  # a new tree would pass for an empty one
            raise Damaged(f"{self.path} is damaged: it lacks a tree; restore a copy") from error

    def _agree(self, number: int) -> None:
        """Raise `FormatFromPast` or `FormatFromFuture` for another format."""
        if number < FORMAT:
            raise FormatFromPast(
                f"{self.path} was written by an older version, whose format this one does not "
                "read: index the WARCs that its crawls wrote with bin/index, then remove the file"
            )
        if number != FORMAT:
            raise FormatFromFuture(
                f"{self.path} has format {number}, this version reads format {FORMAT}; "
                "use the dedupindex that wrote it, or a newer one"
            )

    def in_place(self) -> bool:
        try:
            return os.stat(self.path).st_ino == self._inode
        except OSError:
            return False

    def forget_dead_readers(self) -> None:
        """Release pages that killed processes were reading; they would make the file grow."""
        with self._explained():
            self._env.reader_check()

    def reading(self) -> ReadTransaction:
        return ReadTransaction(self.path, self._env, self.trees)

    @contextmanager
    def writing(self) -> Iterator[LmdbWriting]:
        if not self._writable:
            raise IndexUnavailable(unwritable(self.path.parent))
        with self._explained(), self._env.begin(write=True) as txn:
            yield LmdbWriting(txn, self.trees)

    @contextmanager
    def part(self, whole: LmdbWriting) -> Iterator[LmdbWriting]:
        """Open a nested transaction, which can be undone alone."""
        with self._explained(), self._env.begin(write=True, parent=whole.txn) as txn:
            yield LmdbWriting(txn, self.trees)

    def writer(self) -> GroupWriter:
        return GroupWriter(self)

    def _chunks(self) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield the places of all captures and what is stored there, as transactions read it."""
        after: bytes | None = b""
        while after is not None:
            with self.reading() as reading:
                found, after = reading.chunk(after, CELLS_PER_READ)
            yield found

    def batches(self) -> Iterator[list[Held]]:
        for chunk in self._chunks():
            yield [
                (place[:-NUMBER], int.from_bytes(place[-NUMBER:], "big"), unsealed(place, stored))
                for place, stored in chunk
            ]

    def keys_of(self, crawl: Crawl) -> Iterator[list[bytes]]:
        number = crawl.number.to_bytes(NUMBER, "big")
        for chunk in self._chunks():
            yield [place[:-NUMBER] for place, _ in chunk if place.endswith(number)]

    def check(self) -> list[str]:
        try:
            with self.reading() as reading:
                return [f"{self.path}: {problem}" for problem in reading.problems()]
        except DedupError as error:
            return [f"{self.path} cannot be read to its end: {error}"]

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except lmdb.Error as error:
            raise failed(self.path, error) from error

    def copy(self, target: Path) -> None:
        with self._explained(), open(target / FILE, "xb") as stream:
            # Page by page: LMDB 0.9's compacting copy crashes on a large tree of fixed duplicates.
            self._env.copyfd(stream.fileno())
            os.fsync(stream.fileno())

    def close(self) -> None:
        if self._env is not None:
            self._env.close()


class ReadTransaction(LmdbReading):
    """A state to read, as a context manager; a generator would cost a lookup 2 microseconds."""

    def __init__(self, path: Path, env: Any, trees: CrawlTrees) -> None:
        self._path, self._env = path, env
        self.trees = self.origin = trees

    def __enter__(self) -> LmdbReading:
        try:
            self.txn = self._env.begin()
        except lmdb.Error as error:
            raise failed(self._path, error) from error
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.txn.abort()
        if isinstance(error, lmdb.Error):
            raise failed(self._path, error) from error


# --- group commit: changes of many threads are forced to disk together --------------------------

_T = TypeVar("_T")
_AT_ONCE = 1000  # writes in one transaction


class _Job:
    """A change. Once `turn` can be acquired, it has a result or failure, or `leads` is set.

    `turn` is a lock, as a future costs several times as much for every capture.
    """

    __slots__ = ("change", "failure", "leads", "result", "turn")

    def __init__(self, change: Callable[[Writing], object]) -> None:
        self.change = change
        self.result: object = None
        self.failure: BaseException | None = None
        self.leads = False  # its thread, which waited, writes next, for all that wait
        self.turn = threading.Lock()
        self.turn.acquire()


class GroupWriter(CrawlWriter):
    """Writes to a file of crawls: the writes of many threads are one transaction."""

    _store: LmdbStore

    def __init__(self, store: LmdbStore) -> None:
        super().__init__(store)
        self._jobs: list[_Job] = []  # waiting
        self._led = False  # a thread writes, or is about to
        self._open = True
        self._changed = threading.Condition(threading.Lock())

    def write(self, change: Callable[[Writing], _T]) -> _T:
        """Make a change and wait until it is on disk; raises what `change` or the disk raises.

        A change that raises is undone. It is called again if the change of another thread raised.
        Raises `IndexUnavailable` if the file was replaced: the change must be repeated.
        """
        job = _Job(change)
        with self._changed:
            if not self._open:
                raise IndexUnavailable(f"{self._store.path} was replaced; send it again")
            self._jobs.append(job)
            leads, self._led = not self._led, True
        if not leads:  # not `job.leads`: it may be set already, and the turn must be taken
            job.turn.acquire()
        if leads or job.leads:
            self._lead()
        failure, job.failure = job.failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                # Its traceback has this frame: a cycle would keep a replaced file open.
                del failure
        return job.result  # type: ignore[return-value]

    def close(self) -> None:
        with self._changed:
            self._open = False
            self._changed.wait_for(lambda: not self._led)

    def _lead(self) -> None:
        """Write all waiting changes, the leader's first; the next waiting thread leads then."""
        with self._changed:
            jobs, self._jobs = self._jobs[:_AT_ONCE], self._jobs[_AT_ONCE:]
        try:
            self._commit(jobs)
        finally:
            with self._changed:
                following = self._jobs[0] if self._jobs else None
                self._led = following is not None
                self._changed.notify_all()
            if following is not None:
                following.leads = True
                following.turn.release()

    def _commit(self, jobs: list[_Job]) -> None:
        try:
            if not self._commit_all(jobs):
                self._commit_each(jobs)
            if not self._store.in_place():
                raise IndexUnavailable(f"{self._store.path} was replaced; send it again")
        except BaseException as error:
            for job in jobs:
                job.failure = error
        for job in jobs:
            job.turn.release()

    def _commit_all(self, jobs: list[_Job]) -> bool:
        """Make all changes; return False, with none made, if one of them raises."""
        with suppress(_ChangeFailed), self._store.writing() as whole:
            for job in jobs:
                try:
                    job.result = job.change(whole)
                except Exception as error:
                    raise _ChangeFailed from error
            return True
        return False

    def _commit_each(self, jobs: list[_Job]) -> None:
        """Make every change that does not raise, each in a nested transaction, which costs more."""
        with self._store.writing() as whole:
            for job in jobs:
                try:
                    with self._store.part(whole) as part:
                        job.result = job.change(part)
                except Exception as error:
                    job.failure = error


class _ChangeFailed(Exception):
    """One of several changes raised."""
