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
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from blake3 import blake3

from dedupindex.capture import Problem
from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.documents.hashing import LARGE, Hashed, hash_all
from dedupindex.documents.list_objects import ListedObject, Warn, find, normal
from dedupindex.documents.naming import ShardLayout, clear, publish, shards_in
from dedupindex.documents.state import HashState
from dedupindex.errors import BadSource, Damaged
from dedupindex.runtime.files import exclusive, sync_directory
from dedupindex.runtime.workers import workers

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
