"""One task: read containers to their ends, admit captures, write runs. Runs in any process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from dedupindex.capture import Capture, Evidence, Item, Problem, Refusal, Revisit, Rows
from dedupindex.counts import BuildTally
from dedupindex.digest import CUT_DIGEST, is_cut
from dedupindex.index import open_index
from dedupindex.index.engine import IndexedContainer
from dedupindex.index.format.cells import ContainerRef, encode, encode_revisit
from dedupindex.index.format.ledger import dependent
from dedupindex.index.identity import Settings
from dedupindex.index.load.runs import RunWriter
from dedupindex.index.load.staging import Numbers
from dedupindex.indexer.admission import Judge, make_judge, named_original, reasons
from dedupindex.indexer.encode_rows import stage_rows
from dedupindex.indexer.tasks import Input
from dedupindex.sources import Source, SourceOptions, open_source, passing
from dedupindex.sources.cdx import CdxSource
from dedupindex.sources.wacz import WaczSource
from dedupindex.sources.warc import WarcSource

PROBLEMS_KEPT = 100  # of one container; the rest are only counted
_LEDGER_BYTES = 16 << 20  # of revisits before a run of them is written
_AT_ONCE = 64  # items held at a time: so few stay in the processor's cache
_STRETCH = 2048  # records, or a batch of rows if that has more, between two signs of life

Progress = Callable[[int, int], None]  # bytes and records read since the last call


@dataclass(frozen=True)
class StageTask:
    """Everything a process needs to know."""

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
    """What a task did: its admitted records are in its runs, and not yet added or replaced."""

    tally: BuildTally = field(default_factory=BuildTally)
    admitted: int = 0
    problems: list[Problem] = field(default_factory=list)
    containers: list[IndexedContainer] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    ledger: list[str] = field(default_factory=list)  # runs of revisits, see `index.ledger`

    def as_json(self) -> dict[str, Any]:
        """For the journal; `from_json` reads it."""
        return {
            "tally": self.tally.as_json(),
            "admitted": self.admitted,
            "problems": [list(problem) for problem in self.problems],
            "containers": [container._asdict() for container in self.containers],
            "runs": self.runs,
            "ledger": self.ledger,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Staged:
        counts = data["tally"]
        tally = BuildTally(containers=counts["containers"], records=counts["records"])
        tally.refused.update(counts["refused"])
        tally.remarks.update(counts.get("remarks", {}))
        return cls(
            tally,
            data["admitted"],
            [Problem(*problem) for problem in data["problems"]],
            [IndexedContainer(**container) for container in data["containers"]],
            data["runs"],
            data.get("ledger", []),
        )

    def add(self, other: Staged) -> None:
        """Take what another task did; its runs stay its own."""
        self.tally.add(other.tally)
        self.admitted += other.admitted
        self.problems += other.problems
        self.containers += other.containers


def run_task(task: StageTask, progress: Progress) -> Staged:
    """Stage the containers of a task; what it returns is on disk."""
    engine = open_index(task.index)

    def known(name: str) -> int:
        return engine.number_of(ContainerRef(name, task.crawl))

    numbers = Numbers(task.staging, known, engine.next_number())
    staged = stage(task, numbers, progress)
    numbers.close()
    engine.close()
    return staged


def stage(task: StageTask, numbers: Callable[[str], int], progress: Progress) -> Staged:
    """The same, with numbers from elsewhere for the names of containers."""
    staged = Staged()
    writer = RunWriter(task.staging, f"{task.number:06d}")
    dependents = RunWriter(task.staging, f"{task.number:06d}-revisits", run_bytes=_LEDGER_BYTES)
    judge = judge_of(task.settings)
    for item in task.inputs:
        stager = _Stager(task.settings, judge, numbers)
        writer.begin()
        dependents.begin()
        with open_source(item.path, task.kind, task.options) as source:
            for batch in stager.read(source, progress):
                writer.extend(batch)
                dependents.extend(stager.dependents)
                stager.dependents = []
        staged.problems += stager.problems
        staged.tally.containers += 1
        if source.changed:
            writer.roll_back()
            dependents.roll_back()
            continue
        staged.tally.add(stager.tally)
        staged.admitted += stager.admitted
        staged.containers.append(_container(source, item, stager, task.crawl))
    writer.flush()
    dependents.flush()
    staged.runs = [path.name for path in writer.paths]
    staged.ledger = [path.name for path in dependents.paths]
    return staged


def _container(source: Source, item: Input, stager: _Stager, crawl: str) -> IndexedContainer:
    """How a container that was read is registered; what is no file is known by its content, too."""
    name = f"{source.name}:{source.content_hash}" if passing(item.path) else source.name
    records, damaged = stager.tally.records, stager.damages > 0
    return IndexedContainer(
        name, source.size, source.content_hash, records, crawl, damaged, item.modified
    )


def judge_of(settings: Settings) -> Judge:
    """Which captures an index with these settings admits; raises `BadInput` for bad ones."""
    return make_judge(
        mime=settings.mime,
        whitelist=settings.whitelist,
        status=settings.status,
        min_size=settings.min_size,
    )


def _batches(source: Source) -> Iterator[Rows | list[Item]]:
    """All items of a source, many at once."""
    if isinstance(source, CdxSource):
        return source.in_bulk()
    items = source.items()
    return iter(lambda: list(islice(items, _AT_ONCE)), [])


class _Stager:
    """Turns the items of one source into staged entries and counts."""

    def __init__(self, settings: Settings, judge: Judge, numbers: Callable[[str], int]) -> None:
        self._keys, self._etag = settings.keys(), settings.etag
        self._judge, self._numbers = judge, numbers
        self.tally = BuildTally()
        self.admitted = 0
        self.problems: list[Problem] = []
        self.dependents: list[bytes] = []
        self._reads = False  # records, and not only rows
        self.damages = 0  # all problems; only the first are kept

    def read(self, source: Source, progress: Progress) -> Iterator[list[bytes]]:
        """Batches of staged entries, until the source ends."""
        self._reads = isinstance(source, WarcSource | WaczSource)
        position = records = 0
        staged: list[bytes] = []
        for batch in _batches(source):
            if isinstance(batch, Rows):
                self._take_rows(batch, staged)
            else:
                self._take(batch, staged)
            if self.tally.records - records >= _STRETCH:
                progress(source.position - position, self.tally.records - records)
                position, records = source.position, self.tally.records
                yield staged
                staged = []
        progress(source.position - position, self.tally.records - records)
        if isinstance(source, WarcSource | WaczSource):
            self.tally.remarks.update(source.remarks)
        yield staged

    def _take(self, batch: list[Item], staged: list[bytes]) -> None:
        """The inner loop of a build: what is done here is done for every record."""
        judge, numbers, key_of, etag = self._judge, self._numbers, self._keys.of, self._etag
        refused = self.tally.refused
        records, put_aside = len(batch), 0
        for item in batch:
            if item.__class__ is Capture:
                capture: Capture = item  # told by its class, for speed
                reason = judge(capture)
                if reason:
                    refused[reason] += 1
                    put_aside += 1
                    continue
                entry = encode(capture, numbers(capture.container), etag=etag)
                staged.append(key_of(capture.digest, capture.url) + entry)
                if capture.also:
                    staged += self._also(capture)
            else:
                put_aside += 1
                if item.__class__ is Refusal:
                    refused[item.reason] += 1
                    if item.itself is not None:
                        staged += self._marks(item.itself)
                elif not self._other(item, staged):
                    records -= 1
        self.admitted += len(batch) - put_aside
        self.tally.records += records

    def _take_rows(self, rows: Rows, staged: list[bytes]) -> None:
        """The same for rows, of which those that are refused leave no mark either."""
        self.tally.records += len(rows.urls)
        found = reasons(self._judge, rows)
        if any(found):
            self.tally.refused.update(filter(None, found))
            if all(found):
                return
            rows = rows.only([not reason for reason in found])
        staged += stage_rows(rows, self._keys, self._numbers)
        self.admitted += len(rows.urls)

    def _also(self, capture: Capture) -> list[bytes]:
        number = self._numbers(capture.container)
        entry = encode(capture, number, etag=self._etag, also=True)
        return [self._keys.of(digest, capture.url) + entry for digest in capture.also]

    def _marks(self, capture: Capture) -> list[bytes]:
        """What keeps `capture` from being made an original."""
        entry = encode_revisit(capture, read=self._reads)
        digests = (capture.digest, *capture.also)
        return [self._keys.of(digest, capture.url) + entry for digest in digests]

    def _other(self, item: Item, staged: list[bytes]) -> bool:
        """Take what is neither a capture nor a refusal; whether it was a record."""
        if isinstance(item, Revisit):
            self._revisit(item, staged)
            return True
        if isinstance(item, Problem):
            self.damages += 1
            if self.damages <= PROBLEMS_KEPT:
                self.problems.append(item)
        return False

    def _revisit(self, revisit: Revisit, staged: list[bytes]) -> None:
        """A revisit is remembered as such, and what it names becomes an original."""
        itself = revisit.capture
        cut = is_cut(itself.digest.raw)  # no original can have it: there is nothing to mark
        if itself.evidence == Evidence.REVISIT:
            staged += [] if cut else self._marks(itself)
            self.dependents.append(dependent(revisit, self._keys, self._numbers(itself.container)))
        if cut:  # the payload that was left out may have been another than that of the original
            self.tally.refused[CUT_DIGEST] += 1
            return
        original = named_original(revisit)
        if original is None:
            self.tally.refused["unresolved-revisit"] += 1
            return
        reason = self._judge(original)
        if reason:
            self.tally.refused[reason] += 1
            return
        self.admitted += 1
        entry = encode(original, 0, etag=self._etag)
        staged.append(self._keys.of(original.digest, original.url) + entry)
