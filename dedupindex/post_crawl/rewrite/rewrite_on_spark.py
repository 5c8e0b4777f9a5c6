"""Rewrite the files of a plan on a Spark cluster, from and into object stores; a file is a task.

An executor gets the rows of the plan of its file, reads the file and its originals, and creates the
result, as a local process does. The journal comes back to the driver, which keeps it. So a result
may exist before its journal is on the driver's disk. If the driver is killed in between, the next
run compares the result, which has the same bytes, and makes the same journal; until then an undo
must not take the result for a copy (`undo_directory.awaited`).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from dedupindex.errors import BadInput, DedupError
from dedupindex.object_store import task_rows
from dedupindex.post_crawl.manifest.parquet import ManifestContainer
from dedupindex.post_crawl.rewrite.journal import adopt
from dedupindex.post_crawl.rewrite.result_place import check_in_stores
from dedupindex.post_crawl.rewrite.rewrite_file import (
    RewriteJob,
    rewrite_container,
)
from dedupindex.post_crawl.rewrite.rewrite_outcome import RewriteOutcome
from dedupindex.post_crawl.rewrite.undo_directory import DIRECTORY
from dedupindex.runtime.spark import Cluster, FilePiece, PieceWriter, pieces

_BESIDE = f"{DIRECTORY}-"  # beginning of the names of directories with journals that arrive


class _SparkTask(NamedTuple):
    job: RewriteJob  # with the plan of the container alone; `out` is a directory of the executor
    container: ManifestContainer


def check_for_spark(job: RewriteJob) -> None:
    """Raise `BadInput` unless executors can read the files, and write the results."""
    if job.out is None or not job.store:
        raise BadInput("executors of Spark write results to an object store only")
    check_in_stores("rewrites", (container.path for container in job.containers().values()))


def rewrite_on_spark(
    cluster: Cluster, job: RewriteJob, containers: list[ManifestContainer]
) -> Iterator[RewriteOutcome]:
    """Yield the outcome of each file when its journal is on disk; raises `DedupError`."""
    assert job.out is not None
    shared = job._replace(searched=None, out=Path())
    tasks = (
        _SparkTask(shared._replace(plan=job.plan.of_container(one.number)), one)
        for one in containers
    )
    place = None if job.dry else job.out
    for stale in place.glob(f"{_BESIDE}*") if place else ():  # of a driver that was killed
        shutil.rmtree(stale)
    with TemporaryDirectory(prefix=_BESIDE, dir=place) as name:
        beside = Path(name) / DIRECTORY
        beside.mkdir()
        files = PieceWriter(beside.parent)
        rows: Iterator[FilePiece | RewriteOutcome]
        rows = task_rows(cluster, _rewrite_on_executor, tasks)
        for row in rows:
            if isinstance(row, FilePiece):
                files.take(row)
                continue
            files.finish()
            if not job.dry:
                adopt(job.out, row.name, beside.parent)
            shutil.rmtree(beside)
            beside.mkdir()
            files = PieceWriter(beside.parent)  # the next file may have pieces of these names
            yield row


def _rewrite_on_executor(task: _SparkTask) -> Iterator[FilePiece | RewriteOutcome]:
    """Yield the files with the journal, then the outcome."""
    job, container = task
    with TemporaryDirectory(prefix="dedupindex-rewrite-") as name:
        home = Path(name)
        (home / DIRECTORY).mkdir()
        try:
            outcome = rewrite_container(job._replace(out=home), container)
        except OSError as error:
            raise DedupError(
                f"{container.path}, on an executor: {error.strerror or error}; the files before it "
                "are done: run the same command again to resume"
            ) from error
        for path in sorted((home / DIRECTORY).iterdir()):
            if path.suffix in (".jsonl", ".pins"):
                yield from pieces(path, f"{DIRECTORY}/{path.name}")
    yield outcome
