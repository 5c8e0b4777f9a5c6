"""Rewrite the files of a plan on a Spark cluster, from and into object stores.

A file is a task. An executor gets the rows of the plan of its file, reads the file and its
originals, and creates the result, as a local process does. The journal comes back to the driver,
which keeps it. So a result may exist before its journal is on the driver's disk. If the driver is
killed in between, the next run compares the result, which has the same bytes, and makes the same
journal; until then an undo must not take the result for a copy (`undo_directory.awaited`).

The records of files that one core would have long work with are checked before, by range, a part in
each task. What was found comes back to the driver, and is sent with the task of the file.
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
from dedupindex.post_crawl.rewrite.check_copies import CheckedPart
from dedupindex.post_crawl.rewrite.journal import adopt
from dedupindex.post_crawl.rewrite.result_place import check_in_stores
from dedupindex.post_crawl.rewrite.rewrite_file import (
    RewriteJob,
    check_stored_part,
    rewrite_container,
)
from dedupindex.post_crawl.rewrite.rewrite_outcome import RewriteOutcome
from dedupindex.post_crawl.rewrite.undo_directory import DIRECTORY
from dedupindex.runtime.spark import Cluster, FilePiece, PieceWriter, pieces

_BESIDE = f"{DIRECTORY}-"  # beginning of the names of directories with journals that arrive
_MOST_SENT = 50_000  # copies of a file that are checked before: 75 MB that the driver sends


class _SparkTask(NamedTuple):
    job: RewriteJob  # with the plan of the container alone; `out` is a directory of the executor
    container: ManifestContainer
    checked: tuple[tuple[range, bytes], ...] = ()  # parts, and what was found in each


class _PartTask(NamedTuple):
    job: RewriteJob  # with the plan of the part alone
    container: ManifestContainer
    part: range


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
    place = None if job.dry else job.out
    for stale in place.glob(f"{_BESIDE}*") if place else ():  # of a driver that was killed
        shutil.rmtree(stale)
    with TemporaryDirectory(prefix=_BESIDE, dir=place) as name:
        beside, spools = Path(name) / DIRECTORY, Path(name) / "checked"
        beside.mkdir()
        spools.mkdir()
        checked = _checked_parts(cluster, shared, containers, spools)
        tasks = (
            _SparkTask(
                shared._replace(plan=job.plan.of_container(one.number)),
                one,
                tuple((part, (spools / spool).read_bytes()) for part, spool in checked[one.number]),
            )
            for one in containers
        )
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


def _checked_parts(
    cluster: Cluster, job: RewriteJob, containers: list[ManifestContainer], spools: Path
) -> dict[int, list[tuple[range, str]]]:
    """Check the records of large files in parts; return the parts with names of files in `spools`.

    A container has no parts if it is small, and lacks those that could not be checked.
    """
    parts = job.plan.task_parts(cluster.cores, {one.number for one in containers})
    tasks = _part_tasks(job, containers, parts)
    checked: dict[int, list[tuple[range, str]]] = {one.number: [] for one in containers}
    files = PieceWriter(spools)
    rows: Iterator[FilePiece | tuple[int, range, str]]
    rows = task_rows(cluster, _check_on_executor, tasks)
    for row in rows:
        if isinstance(row, FilePiece):
            files.take(row)
        else:
            number, part, spool = row
            checked[number].append((part, spool))
    files.finish()
    return checked


def _part_tasks(
    job: RewriteJob, containers: list[ManifestContainer], parts: dict[int, list[range]]
) -> Iterator[_PartTask]:
    for one in containers:
        left = _MOST_SENT
        for part in parts.get(one.number, ()):
            plan = job.plan.of_container(one.number, part)
            left -= sum(1 for _ in plan.copies(one.number))
            if left < 0:
                break
            yield _PartTask(job._replace(plan=plan), one, part)


def _check_on_executor(task: _PartTask) -> Iterator[FilePiece | tuple[int, range, str]]:
    """Yield what was found in a part as a file, then what the file is; nothing if that failed."""
    job, container, part = task
    name = f"{container.number}-{part.start}"
    with TemporaryDirectory(prefix="dedupindex-check-") as home:
        if check_stored_part(job, container, part, Path(home, name)):
            yield from pieces(Path(home, name), name)
            yield container.number, part, name


def _rewrite_on_executor(task: _SparkTask) -> Iterator[FilePiece | RewriteOutcome]:
    """Yield the files with the journal, then the outcome."""
    job, container, parts = task
    with TemporaryDirectory(prefix="dedupindex-rewrite-") as name:
        home = Path(name)
        (home / DIRECTORY).mkdir()
        checked = []
        for part, found in parts:
            checked.append(CheckedPart(container.number, part, home / f"checked-{part.start}"))
            checked[-1].spool.write_bytes(found)
        try:
            outcome = rewrite_container(job._replace(out=home), container, checked)
        except OSError as error:
            raise DedupError(
                f"{container.path}, on an executor: {error.strerror or error}; the files before it "
                "are done: run the same command again to resume"
            ) from error
        for path in sorted((home / DIRECTORY).iterdir()):
            if path.suffix in (".jsonl", ".pins"):
                yield from pieces(path, f"{DIRECTORY}/{path.name}")
    yield outcome
