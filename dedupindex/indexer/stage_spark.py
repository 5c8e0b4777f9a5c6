"""Stage the tasks of a build on Spark: executors read containers and sort entries by digest.

Each task stages its containers under container numbers of its own. When all have ended, names get
the numbers of the index, and each executor merges one range of digests of all tasks into sorted
runs, which are copied to the staging directory.
"""

from __future__ import annotations

import marshal
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from dedupindex.errors import BadInput, BadSource
from dedupindex.index.identity import Settings
from dedupindex.index.load.runs import RunWriter, read_run
from dedupindex.index.load.staging import renumbered
from dedupindex.indexer.stage import Staged, StageTask, container_numbers, stage
from dedupindex.object_store import TaskRequests, add_task_requests, counting_task, is_remote
from dedupindex.runtime.spark import HINT, Cluster, FilePiece, PieceWriter, pieces
from dedupindex.sources import is_stream

_GROUP_BYTES = 64 << 20  # of containers, for each range of digests
_ROW_BYTES = 1 << 18  # of staged entries in a row, about
_CHANGED = (
    "an executor was lost, and a container was not the same, or could not be read, when another "
    "read it again; run the same again"
)


class TaskSummary(NamedTuple):
    """The result of a task without its entries."""

    number: int
    staged: Staged
    names: list[str]  # of containers, which have the numbers 1, 2 and so on
    fingerprint: str  # of the containers as read
    counts: dict[int, int]  # of entries in each range of digests


class StagedPart(NamedTuple):
    """Entries of a task in one range of digests."""

    group: int
    number: int  # of the task
    fingerprint: str
    revisits: bool  # whether they are of the ledger
    entries: bytes  # a list, marshalled


Numbering = dict[int, tuple[str, list[int]]]
"""Task number -> fingerprint, and the numbers in the index of the containers 0, 1 and so on."""


def stage_on(cluster: Cluster, tasks: list[StageTask]) -> Iterator[Staged]:
    """Stage tasks on Spark, many at a time; the runs of what is yielded are on local disk."""
    for task in tasks:
        for item in task.inputs:
            if is_stream(item.path):
                raise BadInput(f"--spark reads files and addresses, not {item.name}")
    for chunk in cluster.in_turn(tasks):
        yield _stage_chunk(cluster, list(chunk))


def _stage_chunk(cluster: Cluster, tasks: list[StageTask]) -> Staged:
    first = tasks[0]
    total = sum(item.size for task in tasks for item in task.inputs)
    groups = max(cluster.cores, total // _GROUP_BYTES)
    result = Staged()
    with cluster.kept(partial(counting_task, partial(_stage, groups)), tasks) as kept:
        numbering: Numbering = {}
        counts = Counter[int]()
        with container_numbers(first) as numbers:
            for summary in add_task_requests(kept.filtered(_is_summary)):
                assert isinstance(summary, TaskSummary)
                result.add(summary.staged)
                of_task = [0, *map(numbers, summary.names)]
                numbering[summary.number] = summary.fingerprint, of_task
                counts.update(summary.counts)
        gather = partial(_gather, first.settings, numbering, counts)
        files = PieceWriter(first.staging)
        for piece in kept.grouped(_group_of, groups, gather):
            files.take(piece._replace(name=f"{first.number:06d}-{piece.name}"))
        files.finish()
    result.runs = [name for name in files.names if "revisits" not in name]
    result.ledger = [name for name in files.names if "revisits" in name]
    return result


_Row = TaskSummary | StagedPart | TaskRequests  # of a task


def _is_summary(row: _Row) -> bool:
    return isinstance(row, TaskSummary | TaskRequests)


def _group_of(row: _Row) -> int:
    return row.group if isinstance(row, StagedPart) else -1


def _stage(groups: int, task: StageTask) -> Iterator[TaskSummary | StagedPart]:
    """Stage a task on an executor; yield its entries by range of digests, then its summary."""
    numbers, counts = {"": 0}, Counter[int]()
    with tempfile.TemporaryDirectory(prefix="dedupindex-") as home:
        try:
            staged = stage(
                replace(task, staging=Path(home)),
                lambda name: numbers.setdefault(name, len(numbers)),
                lambda length, records: None,
            )
        except BadSource as error:
            local = [item.path for item in task.inputs if not is_remote(item.path)]
            raise BadSource(f"{error}; {HINT}" if local else str(error)) from error
        content = repr(sorted(staged.containers)).encode("utf-8", "surrogateescape")
        fingerprint = blake3(content).hexdigest()
        for revisits, runs in ((False, staged.runs), (True, staged.ledger)):
            for run in runs:
                for group, entries in _split(Path(home) / run, groups):
                    counts[group] += len(entries)
                    data = marshal.dumps(entries)
                    yield StagedPart(group, task.number, fingerprint, revisits, data)
    without_runs = replace(staged, runs=[], ledger=[])
    yield TaskSummary(task.number, without_runs, [*numbers][1:], fingerprint, dict(counts))


def _split(run: Path, groups: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the entries of a sorted run in rows of one range of digests each."""
    held: list[bytes] = []
    size = last = 0
    for chunk in read_run(run):
        for entry in chunk:
            group = int.from_bytes(entry[1:5]) * groups >> 32
            if held and (group != last or size >= _ROW_BYTES):
                yield last, held
                held, size = [], 0
            held.append(entry)
            size += len(entry)
            last = group
    if held:
        yield last, held


def _gather(
    settings: Settings,
    numbering: Numbering,
    counts: dict[int, int],
    group: int,
    parts: Iterator[StagedPart],
) -> Iterator[FilePiece]:
    """Merge one range of digests of all tasks on an executor; yield the pieces of sorted runs.

    Spark repeats the tasks of a lost executor. Raises `BadSource` if a repetition read other
    containers, or if the number of entries is not that of `counts`.
    """
    lengths = settings.keys().lengths()
    with tempfile.TemporaryDirectory(prefix="dedupindex-") as home:
        writers: dict[bool, RunWriter] = {}
        count = 0
        for part in parts:
            fingerprint, numbers = numbering[part.number]
            if part.fingerprint != fingerprint:
                raise BadSource(_CHANGED)
            name = f"{'revisits-' if part.revisits else ''}{group:05d}"
            writer = writers.setdefault(part.revisits, RunWriter(Path(home), name))
            entries: list[bytes] = marshal.loads(part.entries)
            count += len(entries)
            writer.extend([renumbered(entry, lengths, numbers.__getitem__) for entry in entries])
        if count != counts.get(group, 0):
            raise BadSource(_CHANGED)
        for _, writer in sorted(writers.items()):
            writer.flush()
            for path in writer.paths:
                yield from pieces(path, path.name)
