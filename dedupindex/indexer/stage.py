"""Stage one task of a build, in any process: read containers, admit captures, write runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dedupindex.capture import (
    ORDINARY,
    SKIPPED,
    UNRESOLVED,
    Capture,
    Evidence,
    Item,
    Problem,
    Refusal,
    Revisit,
    Rows,
)
from dedupindex.counts import BuildTally
from dedupindex.digest import CUT_DIGEST, is_cut
from dedupindex.index import open_index
from dedupindex.index.engine import IndexedContainer
from dedupindex.index.format.cells import ContainerRef, encode, encode_revisit
from dedupindex.index.format.ledger import dependent
from dedupindex.index.format.visits import Visit
from dedupindex.index.identity import Settings
from dedupindex.index.load.runs import RunWriter
from dedupindex.index.load.staging import Numbers
from dedupindex.indexer.admission import (
    admission_filter,
    admits_all,
    as_response,
    named_original,
    reasons,
)
from dedupindex.indexer.encode_rows import CaptureColumns, stage_captures, stage_rows
from dedupindex.indexer.tasks import Input
from dedupindex.sources import Source, SourceOptions, is_stream, open_source

_MAX_PROBLEMS = 100  # kept of one container; the rest are only counted
_LEDGER_BYTES = 16 << 20  # of revisits before a run of them is written
_PROGRESS_RECORDS = 2048  # between two reports of progress, at least

Progress = Callable[[int, int], None]  # bytes and records read since the last call


@dataclass(frozen=True)
class StageTask:
    """What a process needs to stage some containers."""

    number: int
    inputs: list[Input]
    index: Path
    staging: Path
    settings: Settings
    kind: str | None
    options: SourceOptions
    crawl: str


@dataclass
class Staged:
    """The result of a task. Its entries are in runs, not yet in the index."""

    tally: BuildTally = field(default_factory=BuildTally)
    problems: list[Problem] = field(default_factory=list)
    containers: list[IndexedContainer] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    ledger: list[str] = field(default_factory=list)  # runs of revisits, see `format.ledger`
    nothing_taken: dict[str, dict[str, int]] = field(default_factory=dict)  # see `Built`

    def as_json(self) -> dict[str, Any]:
        """Return the entry of the journal, which `from_json` reads."""
        return {
            **vars(self),
            "tally": self.tally.as_json(),
            "containers": [container._asdict() for container in self.containers],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Staged:
        counts = data["tally"]
        tally = BuildTally(containers=counts["containers"], records=counts["records"])
        tally.revisits = counts.get("revisits", 0)  # an older version has not counted them
        tally.refused.update(counts["refused"])
        tally.refused_in.update(counts["refused_in"])
        tally.remarks.update(counts["remarks"])
        problems = [Problem(*problem) for problem in data["problems"]]
        containers = [IndexedContainer(**container) for container in data["containers"]]
        return cls(
            tally, problems, containers, data["runs"], data["ledger"], data.get("nothing_taken", {})
        )

    def add(self, other: Staged) -> None:
        """Add the result of another task, but not its runs."""
        self.tally.add(other.tally)
        self.problems += other.problems
        self.containers += other.containers
        self.nothing_taken.update(other.nothing_taken)


def run_task(task: StageTask, progress: Progress) -> Staged:
    """Stage the containers of a task; the runs it returns are on disk."""
    with container_numbers(task) as numbers:
        return stage(task, numbers, progress)


@contextmanager
def container_numbers(task: StageTask) -> Iterator[Numbers]:
    """Open the numbers of container names, those that the index knows and those of this build."""
    with closing(open_index(task.index)) as engine:

        def known(name: str) -> int:
            return engine.number_of(ContainerRef(name, task.crawl))

        with closing(Numbers(task.staging, known, engine.next_number())) as numbers:
            yield numbers


def stage(task: StageTask, numbers: Callable[[str], int], progress: Progress) -> Staged:
    """Stage the containers of a task; `numbers` returns the number of a container's name."""
    staged = Staged()
    writer = RunWriter(task.staging, f"{task.number:06d}")
    dependents = RunWriter(task.staging, f"{task.number:06d}-revisits", run_bytes=_LEDGER_BYTES)
    for item in task.inputs:
        stager = _Stager(task.settings, numbers)
        writer.begin()
        dependents.begin()
        with open_source(item.path, task.kind, task.options) as source:
            for batch in stager.read(source, progress):
                writer.extend(batch)
                dependents.extend(stager.dependents)
                stager.dependents = []
        for name in source.members:  # also of those without a capture: reports may name them
            numbers(name)
        staged.problems += stager.problems
        staged.tally.containers += 1
        if source.changed:
            writer.roll_back()
            dependents.roll_back()
            continue
        stager.tally.refused_in = dict.fromkeys(stager.tally.refused, source.name)
        staged.tally.add(stager.tally)
        if not stager.problem_count and (refused := _why_nothing_taken(stager.tally)):
            staged.nothing_taken[source.name] = refused
        staged.containers.append(_container(source, item, stager, task.crawl))
    writer.flush()
    dependents.flush()
    staged.runs = [path.name for path in writer.paths]
    staged.ledger = [path.name for path in dependents.paths]
    return staged


def _container(source: Source, item: Input, stager: _Stager, crawl: str) -> IndexedContainer:
    """Return the registration of a container; the name of a stream includes its content hash."""
    name = f"{source.name}:{source.content_hash}" if is_stream(item.path) else source.name
    records = stager.tally.records
    damaged = stager.problem_count > 0 or bool(_why_nothing_taken(stager.tally))
    return IndexedContainer(
        name, source.size, source.content_hash, records, crawl, damaged, item.modified
    )


def _why_nothing_taken(tally: BuildTally) -> dict[str, int]:
    """Return why all responses of a container are refused, if most have a defect; else nothing."""
    refused = {name: count for name, count in tally.refused.items() if name not in SKIPPED}
    taken = tally.records - tally.refused.total()
    if taken or tally.revisits or UNRESOLVED in refused:
        return {}
    defects = sum(count for name, count in refused.items() if name not in ORDINARY)
    return refused if 2 * defects > sum(refused.values()) else {}


def _behind(damage: Mapping[str, int], item: Item) -> Refusal | None:
    """Return the refusal of a capture behind damage in its file, where replay tools do not read."""
    if not isinstance(item, Capture) or item.offset <= damage.get(item.container, item.offset):
        return None
    return Refusal("behind-damage", item._replace(evidence=Evidence.REVISIT))


class _Stager:
    """Turns the items of one source into staged entries and counts."""

    def __init__(self, settings: Settings, numbers: Callable[[str], int]) -> None:
        self._keys, self._etag = settings.keys(), settings.etag
        self._visits = settings.etag and settings.url_index
        self._refuse, self._numbers = admission_filter(settings), numbers
        self.tally = BuildTally()
        self.problems: list[Problem] = []
        self.dependents: list[bytes] = []  # and visits: items of the ledger
        self._reads_records = False
        self.problem_count = 0  # all; `problems` holds only the first

    def read(self, source: Source, progress: Progress) -> Iterator[list[bytes]]:
        """Yield batches of staged entries until the source ends."""
        self._reads_records = source.reads_records
        position = records = 0
        staged: list[bytes] = []
        for batch in source.batches():
            if isinstance(batch, Rows):
                self._add_rows(batch, staged)
            else:
                if source.damage:
                    batch = [_behind(source.damage, item) or item for item in batch]
                self._add_items(batch, staged)
            if self.tally.records - records >= _PROGRESS_RECORDS:
                progress(source.position - position, self.tally.records - records)
                position, records = source.position, self.tally.records
                yield staged
                staged = []
        progress(source.position - position, self.tally.records - records)
        self.tally.remarks.update(source.remarks)
        yield staged

    def _add_items(self, batch: list[Item], staged: list[bytes]) -> None:
        """Stage a batch of items."""
        captures: list[Capture] = []
        refused = self.tally.refused
        records = len(batch)
        for item in batch:
            if item.__class__ is Capture:  # quicker than isinstance
                captures.append(item)
            elif item.__class__ is Refusal:
                refused[item.reason] += 1
                if item.itself is not None:
                    staged += self._tombstones(item.itself)
                    if item.reason != "method":  # another method than GET visits something else
                        # as no revisit: then the validators of earlier visits are not used, either
                        self._add_visits([item.itself], Evidence.ROW)
            elif isinstance(item, Revisit):
                self._add_revisit(item, staged)
            elif isinstance(item, Problem):
                records -= 1
                self.problem_count += 1
                if self.problem_count <= _MAX_PROBLEMS:
                    self.problems.append(item)
        self.tally.records += records
        if captures:
            self._add_captures(captures, staged)

    def _add_captures(self, captures: list[Capture], staged: list[bytes]) -> None:
        """Stage the admitted captures: all at once if they are plain, as nearly always."""
        self._add_visits(captures)
        columns = CaptureColumns.of(captures)
        if columns.plain and admits_all(self._refuse, columns):
            staged += stage_captures(columns, self._keys, self._numbers)
            return
        numbers, key_of, etag = self._numbers, self._keys.key_of, self._etag
        for capture in captures:
            reason = self._refuse(capture)
            if reason:
                self.tally.refused[reason] += 1
                continue
            entry = encode(capture, numbers(capture.container), etag=etag)
            staged.append(key_of(capture.digest, capture.url) + entry)
            if capture.also:
                entry = encode(capture, numbers(capture.container), etag=etag, also=True)
                staged += [key_of(digest, capture.url) + entry for digest in capture.also]

    def _add_rows(self, rows: Rows, staged: list[bytes]) -> None:
        """Stage the admitted rows; the refused ones leave no tombstones."""
        self.tally.records += len(rows.urls)
        self._add_visits(rows.captures())
        found = reasons(self._refuse, rows)
        if any(found):
            self.tally.refused.update(filter(None, found))
            if all(found):
                return
            rows = rows.only([not reason for reason in found])
        staged += stage_rows(rows, self._keys, self._numbers)

    def _add_visits(self, captures: Iterable[Capture], evidence: Evidence | None = None) -> None:
        """Keep what URLs answered, also if it is refused as an original; `evidence` replaces."""
        if not self._visits:
            return
        if evidence is not None:
            captures = [capture._replace(evidence=evidence) for capture in captures]
        self.dependents += [Visit.of(capture).item(self._keys) for capture in captures]

    def _tombstones(self, capture: Capture) -> list[bytes]:
        """Return entries that keep `capture` from becoming an original."""
        entry = encode_revisit(capture, read=self._reads_records)
        digests = (capture.digest, *capture.also)
        return [self._keys.key_of(digest, capture.url) + entry for digest in digests]

    def _add_revisit(self, revisit: Revisit, staged: list[bytes]) -> None:
        """Stage a tombstone of a revisit, and the original that it names."""
        itself = revisit.capture
        self.tally.revisits += 1
        self._add_visits([itself], Evidence.REVISIT)
        cut = is_cut(itself.digest.raw)  # no original can have it: no tombstone is needed
        if itself.evidence == Evidence.REVISIT:
            staged += [] if cut else self._tombstones(itself)
            number = self._numbers(itself.container)
            refused = bool(self._refuse(as_response(revisit)))
            self.dependents.append(dependent(revisit, self._keys, number, refused=refused))
        original = None if cut else named_original(revisit)
        if original is None:  # a cut digest may be that of another payload than the original's
            self.tally.refused[CUT_DIGEST if cut else UNRESOLVED] += 1
            return
        reason = self._refuse(original)
        if reason:
            self.tally.refused[reason] += 1
            return
        entry = encode(original, 0, etag=self._etag)
        staged.append(self._keys.key_of(original.digest, original.url) + entry)
