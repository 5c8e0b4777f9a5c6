"""Containers read on a cluster, their captures grouped there by digest, and brought here as runs.

A task stages its containers as it would here (`stage`), with numbers of its own for their names.
When all have ended, the names get the index's numbers, and each executor takes one range of digests
together from all tasks: runs in order, ready to be loaded.
"""

from __future__ import annotations

import marshal
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from blake3 import blake3

from dedupindex.errors import BadInput, BadSource
from dedupindex.index import open_index
from dedupindex.index.format.cells import ContainerRef
from dedupindex.index.identity import Settings
from dedupindex.index.load.runs import RunWriter, read_run
from dedupindex.index.load.staging import Numbers, renumbered
from dedupindex.indexer.stage import Staged, StageTask, stage
from dedupindex.object_store import is_remote
from dedupindex.runtime.spark import HINT, Cluster, FilePiece, PieceWriter, pieces
from dedupindex.sources import passing

_GROUP_BYTES = 64 << 20  # of containers, for each range of digests
_ROW_BYTES = 1 << 18  # of staged entries in a row, about
_CHANGED = (
    "an executor was lost, and a container was not the same, or could not be read, when another "
    "read it again; run the same again"
)


class TaskSummary(NamedTuple):
    """What a task says of itself."""

    number: int
    staged: dict[str, Any]  # `Staged.as_json`
    names: list[str]  # of containers: number 1, 2 and so on
    mark: str  # of what was read: the same when it is read again
    counts: dict[int, int]  # of entries in each range of digests


class StagedPart(NamedTuple):
    """Entries of a task in one range of digests."""

    group: int
    number: int  # of the task
    mark: str
    revisits: bool  # whether they are of the ledger
    entries: bytes  # a list, marshalled


def stage_on(cluster: Cluster, tasks: list[StageTask]) -> Iterator[Staged]:
    """Stage tasks on a cluster, many at a time; what is yielded is on disk here."""
    for task in tasks:
        for item in task.inputs:
            if passing(item.path):
                raise BadInput(f"--spark reads files and addresses, not {item.name}")
    for some in cluster.in_turn(tasks):
        yield _stage_some(cluster, list(some))


def _stage_some(cluster: Cluster, tasks: list[StageTask]) -> Staged:
    first = tasks[0]
    total = sum(item.size for task in tasks for item in task.inputs)
    groups = max(cluster.cores, total // _GROUP_BYTES)
    together = Staged()
    with cluster.kept(partial(_stage, groups), tasks) as kept:
        told: dict[int, tuple[str, list[int]]] = {}
        wanted = Counter[int]()
        with (
            closing(open_index(first.index)) as engine,
            closing(
                Numbers(
                    first.staging,
                    lambda name: engine.number_of(ContainerRef(name, first.crawl)),
                    engine.next_number(),
                )
            ) as numbers,
        ):
            for one in kept.few(_is_told):
                assert isinstance(one, TaskSummary)
                together.add(Staged.from_json(one.staged))
                told[one.number] = one.mark, [0, *map(numbers, one.names)]
                wanted.update(one.counts)
        gather = partial(_gather, first.settings, told, wanted)
        files = PieceWriter(first.staging)
        for piece in kept.grouped(_group_of, groups, gather):
            files.take(piece._replace(name=f"{first.number:06d}-{piece.name}"))
        files.finish()
    together.runs = [name for name in files.names if "revisits" not in name]
    together.ledger = [name for name in files.names if "revisits" in name]
    return together


def _is_told(row: TaskSummary | StagedPart) -> bool:
    return isinstance(row, TaskSummary)


def _group_of(row: TaskSummary | StagedPart) -> int:
    return row.group if isinstance(row, StagedPart) else -1


def _stage(groups: int, task: StageTask) -> Iterator[TaskSummary | StagedPart]:
    """Runs on an executor: read the containers of a task to their ends."""
    names, counts = _Names(), Counter[int]()
    with tempfile.TemporaryDirectory(prefix="dedupindex-") as home:
        try:
            staged = stage(replace(task, staging=Path(home)), names, lambda length, records: None)
        except BadSource as error:
            here = [item.path for item in task.inputs if not is_remote(item.path)]
            raise BadSource(f"{error}; {HINT}" if here else str(error)) from error
        mark = blake3(
            repr(sorted(staged.containers)).encode("utf-8", "surrogateescape")
        ).hexdigest()
        for revisits, runs in ((False, staged.runs), (True, staged.ledger)):
            for run in runs:
                for group, entries in _parted(Path(home) / run, groups):
                    counts[group] += len(entries)
                    yield StagedPart(group, task.number, mark, revisits, marshal.dumps(entries))
    said = {**staged.as_json(), "runs": [], "ledger": []}
    yield TaskSummary(task.number, said, names.names, mark, dict(counts))


def _parted(run: Path, groups: int) -> Iterator[tuple[int, list[bytes]]]:
    """The entries of a run, which is in order, by ranges of what their digests begin with."""
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


class _Names:
    """Numbers for the containers of one task, as they are met."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers = {"": 0}

    def __call__(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            self.names.append(name)
            number = self._numbers[name] = len(self.names)
        return number


def _gather(
    settings: Settings,
    told: dict[int, tuple[str, list[int]]],
    wanted: dict[int, int],
    group: int,
    parts: Iterator[StagedPart],
) -> Iterator[FilePiece]:
    """Runs on an executor: all that tasks have of one range of digests, as runs in order.

    What was lost with an executor was made again: there must be as many entries as were `wanted`.
    """
    lengths = settings.keys().lengths()
    with tempfile.TemporaryDirectory(prefix="dedupindex-") as home:
        writers: dict[bool, RunWriter] = {}
        count = 0
        for part in parts:
            mark, given = told[part.number]
            if part.mark != mark:
                raise BadSource(_CHANGED)
            name = f"{'revisits-' if part.revisits else ''}{group:05d}"
            writer = writers.setdefault(part.revisits, RunWriter(Path(home), name))
            entries: list[bytes] = marshal.loads(part.entries)
            count += len(entries)
            writer.extend([renumbered(entry, lengths, given) for entry in entries])
        if count != wanted.get(group, 0):
            raise BadSource(_CHANGED)
        for _, writer in sorted(writers.items()):
            writer.flush()
            for path in writer.paths:
                yield from pieces(path, path.name)
