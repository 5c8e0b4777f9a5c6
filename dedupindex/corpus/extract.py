"""The second phase: one function for each capture, in processes here or on a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import orjson

from dedupindex.corpus.enrich import Enrichment, Entry, Failed, Makers, as_json
from dedupindex.corpus.extract_report import CorpusReport
from dedupindex.corpus.filters import Condition
from dedupindex.corpus.read_records import Containers
from dedupindex.corpus.row import CorpusRow
from dedupindex.corpus.select import Best, Chunk, Chunks
from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.runtime.spark import AT_ONCE, Cluster
from dedupindex.runtime.workers import limit_cpu_time, map_in_order, run_alone, run_to_end

_SECONDS = 60.0  # of work on one capture
_KILLED = f"reading it killed the process, for want of memory or after {_SECONDS:.0f} s of work"
_ASKED = 0  # as `Chunk.then`: whether there would be more to do is all that is asked
_HELD = 16 << 20  # bytes that are made of a chunk before the rest of it is put off


class Keep(NamedTuple):
    """Captures stay for whose value at a path the test is true; those without one do not."""

    path: str
    test: Callable[[Any], object]


Test = Keep | Condition


class ExtractionPlan(NamedTuple):
    """What is done with a capture; of a group only the first that passes is kept.

    What is to be output is made last, so that nothing is read for what a test leaves out.
    """

    tests: tuple[Test, ...]
    best: Best | None
    after: tuple[Test, ...]  # that this one has to pass as well
    shown: tuple[Enrichment, ...]
    makers: Makers
    most: int  # bytes of a record that are held
    render: Callable[[Entry], bytes]  # what is wanted of those that are kept

    @property
    def reads(self) -> bool:
        """Whether any record may have to be read."""
        return bool(self.shown) or any(
            isinstance(test, Keep) for test in (*self.tests, *self.after)
        )


class KeptCapture(NamedTuple):
    """A capture that has passed."""

    capture: CorpusRow
    made: bytes  # what the plan renders
    failed: tuple[str, ...]  # names of what failed


class ChunkResult(NamedTuple):
    """What became of a chunk."""

    kept: list[KeptCapture]
    tried: int
    left: Chunk | None = None  # what is still to be done of it
    records: int = 0
    opened: int = 0
    bytes_read: int = 0


Run = Callable[[ExtractionPlan, Chunks], Iterator[ChunkResult]]
"""Does all chunks, and yields what became of each in their order."""


def work(plan: ExtractionPlan, chunk: Chunk) -> ChunkResult:
    """A chunk, or its first groups; a pure function of it and of the containers that it names."""
    kept: list[KeptCapture] = []
    tried = held = 0
    left: Chunk | None = None
    with closing(Containers(plan.most)) as containers:
        for number, group in enumerate(chunk.groups, 1):
            settled = False
            for capture in group:
                tried += 1
                limit_cpu_time(_SECONDS)
                with closing(Entry(capture, plan.makers, containers)) as entry:
                    made, settled = _tried(entry, plan)
                if made is not None:
                    kept.append(made)
                    held += len(made.made)
                if settled:
                    break
            if held > _HELD or not (settled or chunk.then < 0):
                left = Chunk(chunk.groups[number:], -1 if settled else chunk.then)
                break
        limit_cpu_time(0)
        return ChunkResult(
            kept, tried, left, containers.records, containers.opened, containers.bytes
        )


def _tried(entry: Entry, plan: ExtractionPlan) -> tuple[KeptCapture | None, bool]:
    """What is kept of a capture, and whether it is the best of its group."""
    if not _passes(entry, plan.tests):
        return None, False
    certain = not entry.errors
    if not _passes(entry, plan.after):
        return None, certain
    for enrichment in plan.shown:
        entry.show(enrichment)
    return _kept(entry, plan), certain


def _passes(entry: Entry, tests: Sequence[Test]) -> bool:
    """Whether all tests are passed. What cannot be told for an error stays, and says so."""
    for test in tests:
        if isinstance(test, Condition):
            if not test.holds(entry.capture):
                return False
            continue
        try:
            value = entry.value(test.path)
        except Failed as error:
            entry.fail(error)
            continue
        try:
            if value is None or not test.test(value):
                return False
        except (Exception, SystemExit) as error:  # of somebody else's function
            entry.fail(Failed("filter", f"{type(error).__name__}: {error}"))
    return True


def _kept(entry: Entry, plan: ExtractionPlan) -> KeptCapture:
    try:
        made = plan.render(entry)
    except (TypeError, ValueError, RecursionError):  # a value that is no JSON
        entry.check()
        made = plan.render(entry)
    return KeptCapture(entry.capture, made, tuple(entry.errors))


def nested(entry: Entry) -> bytes:
    """JSON with values below what they were made of."""
    return orjson.dumps(as_json(entry))


def nothing(entry: Entry) -> bytes:
    """For who only asks which captures there are."""
    return b""


def rest_of(chunks: Chunks, done: ChunkResult) -> Chunk | None:
    """What is still to be done of a chunk."""
    return None if done.left is None else chunks.after(done.left)


def here(jobs: int) -> Run:
    """Runs in processes of this machine."""

    def run(plan: ExtractionPlan, chunks: Chunks) -> Iterator[ChunkResult]:
        processes = jobs if plan.reads else 1
        more = partial(rest_of, chunks)
        return map_in_order(work, plan, chunks, processes, partial(_killed, plan), more)

    return run


def _killed(plan: ExtractionPlan, chunk: Chunk) -> Iterator[ChunkResult]:
    """A chunk of which something kills the process that reads it: that one is told of, alone."""
    if len(chunk.groups) > 1:
        for group in chunk.groups:
            yield from run_alone(work, plan, Chunk([group]), partial(_killed, plan))
        return
    (group,) = chunk.groups
    left = None if chunk.then < 0 else Chunk([], chunk.then)
    if len(group) == 1:
        entry = Entry(group[0], plan.makers, Containers())
        entry.fail(Failed("process", _KILLED))
        yield ChunkResult([_kept(entry, plan)], 1, left)
        return
    for number, capture in enumerate(group, 1):
        settled = False
        for done in run_alone(work, plan, Chunk([[capture]], _ASKED), partial(_killed, plan)):
            settled = done.left is None or done.left.then != _ASKED
            yield done._replace(left=left if number == len(group) and not settled else None)
        if settled:
            return


def counted(
    done: Iterable[ChunkResult], into: CorpusReport, on_progress: OnProgress
) -> Iterator[KeptCapture]:
    """Yield what was kept, and count it."""
    for one in done:
        into.tried += one.tried
        into.records += one.records
        into.containers += one.opened
        into.bytes_read += one.bytes_read
        part = into.tried / into.chosen if into.chosen else None
        on_progress(ProgressUpdate("reading", into.bytes_read, records=into.tried, part=part))
        for kept in one.kept:
            into.entries += 1
            into.errors.update(Counter(kept.failed))
            yield kept


# Captures read on a cluster, by the function that reads them here.


def on(cluster: Cluster) -> Run:
    """Runs on a cluster, many chunks at a time; executors find containers where this machine does.

    Functions of one's own go there, too: they must be of modules that are there, or be whole in
    themselves.
    """

    def run(plan: ExtractionPlan, chunks: Chunks) -> Iterator[ChunkResult]:
        if not plan.reads:
            yield from here(1)(plan, chunks)
            return

        def each(chunk: Chunk) -> Iterator[ChunkResult]:
            return cluster.rows(partial(_work, plan), [chunk])

        left = iter(chunks)
        while some := list(islice(left, AT_ONCE * cluster.cores)):
            for done in cluster.rows(partial(_work, plan), some):
                yield done
                if (rest := rest_of(chunks, done)) is not None:
                    yield from run_to_end(each, rest, partial(rest_of, chunks))

    return run


class _One:
    """A chunk by itself, of a group of which more may be on the driver's disk."""

    def __init__(self, chunk: Chunk) -> None:
        self._chunk = chunk

    def __iter__(self) -> Iterator[Chunk]:
        yield self._chunk

    def after(self, left: Chunk) -> Chunk | None:
        """See `chunks.Chunks`."""
        return left if left.groups else None


def _work(plan: ExtractionPlan, chunk: Chunk) -> Iterator[ChunkResult]:
    """Runs on an executor, in a process of its own: what kills that must not end the run."""
    for done in here(2)(plan, _One(chunk)):
        is_here = done.left is not None and done.left.groups
        yield done._replace(left=None) if is_here else done
