"""Read the selected captures and compute their values, in local processes or on Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import orjson
from blake3 import blake3

from dedupindex.corpus.enrich import Enrichment, EnrichmentFailed, Entry, Makers, as_json, plain
from dedupindex.corpus.extract_report import CorpusReport
from dedupindex.corpus.read_records import Containers
from dedupindex.corpus.replay import Replay, ReplayReader
from dedupindex.corpus.row import CorpusRow
from dedupindex.corpus.select import Best, Chunk, MetadataCondition, SpooledChunks
from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.errors import Damaged
from dedupindex.runtime.scratch_database import open_scratch
from dedupindex.runtime.spark import AT_ONCE, Cluster
from dedupindex.runtime.workers import limit_cpu_time, map_in_order, run_alone, run_to_end

R = TypeVar("R")
_SECONDS = 60.0  # CPU time limit for one capture
_KILLED = f"reading it killed the process, for want of memory or after {_SECONDS:.0f} s of work"
_PROBE = 0  # as `Chunk.next`: only tells whether the group would go on
_MAX_RESULT = 16 << 20  # bytes rendered of a chunk before the rest of it is put off


class Keep(NamedTuple):
    """Keep captures that have a value at a path, for which the test is true."""

    path: str
    test: Callable[[Any], object]


class DropFailed(NamedTuple):
    """Keep captures of which nothing has failed, also not the values at some paths."""

    paths: tuple[str, ...]


Test = Keep | MetadataCondition | DropFailed


class ExtractionPlan(NamedTuple):
    """What to do with each capture; of a group only the first that passes is kept."""

    tests: tuple[Test, ...]
    best: Best | None
    after: tuple[Test, ...]  # tests of the best capture of a group
    output: tuple[Enrichment, ...]  # computed last, only for captures that pass
    makers: Makers
    max_record: int  # bytes of a record in memory
    render: Callable[[Entry], bytes]  # makes the result for a capture that is kept
    needs: tuple[str, ...] = ()  # paths of values that `render` computes
    replay: Replay | None = None  # where payloads come from in place of WARC files
    distinct: str = ""  # the path of a value of which only the first capture is kept

    @property
    def reads(self) -> bool:
        """Whether any record may have to be read."""
        tests = any(not isinstance(test, MetadataCondition) for test in (*self.tests, *self.after))
        return bool(self.output or self.needs or self.distinct) or tests


class KeptCapture(NamedTuple):
    capture: CorpusRow
    rendered: bytes
    failed: tuple[str, ...]  # names of what failed
    why: str = ""  # the first error
    key: bytes = b""  # JSON of the value that is to be distinct; empty without one


class ChunkResult(NamedTuple):
    kept: list[KeptCapture]
    tried: int
    left: Chunk | None = None  # the rest, still to be processed
    records: int = 0
    opened: int = 0
    bytes_read: int = 0
    dropped: int = 0


Run = Callable[[ExtractionPlan, SpooledChunks], Iterator[ChunkResult]]
"""Process all chunks, and yield their results in order."""


def extract_chunk(plan: ExtractionPlan, chunk: Chunk) -> ChunkResult:
    """Process a chunk, or its first groups."""
    kept: list[KeptCapture] = []
    tried = size = dropped = 0
    left: Chunk | None = None
    with closing(_reader(plan)) as containers:
        for number, group in enumerate(chunk.groups, 1):
            settled = False
            for capture in group:
                tried += 1
                limit_cpu_time(_SECONDS)
                with closing(Entry(capture, plan.makers, containers)) as entry:
                    result, settled = _try(entry, plan)
                    dropped += entry.dropped
                if result is not None:
                    kept.append(result)
                    size += len(result.rendered)
                if settled:
                    break
            if size > _MAX_RESULT or not (settled or chunk.next < 0):
                left = Chunk(chunk.groups[number:], -1 if settled else chunk.next)
                break
        limit_cpu_time(0)
        return ChunkResult(
            kept, tried, left, containers.records, containers.opened, containers.bytes,
            dropped,
        )  # fmt: skip


def _reader(plan: ExtractionPlan) -> Containers | ReplayReader:
    if plan.replay is not None:
        return ReplayReader(plan.replay, plan.max_record)
    return Containers(plan.max_record)


def _try(entry: Entry, plan: ExtractionPlan) -> tuple[KeptCapture | None, bool]:
    """Return the result for a capture, and whether it is the best of its group."""
    if not _passes(entry, plan.tests):
        return None, False
    certain = not entry.errors
    if not _passes(entry, plan.after):
        return None, certain
    for enrichment in plan.output:
        entry.output(enrichment)
    return _render(entry, plan), certain


def _passes(entry: Entry, tests: Sequence[Test]) -> bool:
    """Return whether all tests pass. An error becomes one of the entry, and passes."""
    for test in tests:
        if isinstance(test, DropFailed):
            if entry.fails(test.paths):
                entry.dropped = True
                return False
            continue
        if isinstance(test, MetadataCondition):
            if not test.holds(entry.capture):
                return False
            continue
        try:
            value = entry.value(test.path)
        except EnrichmentFailed as error:
            entry.fail(error)
            continue
        try:
            if value is None or not test.test(value):
                return False
        except (Exception, SystemExit) as error:  # of a user's function
            entry.fail(EnrichmentFailed("filter", f"{type(error).__name__}: {error}"))
    return True


def _render(entry: Entry, plan: ExtractionPlan) -> KeptCapture:
    key = _distinct_key(entry, plan.distinct) if plan.distinct else b""
    try:
        rendered = plan.render(entry)
    except (TypeError, ValueError, RecursionError):  # a value that JSON cannot represent
        entry.check()
        rendered = plan.render(entry)
    return KeptCapture(entry.capture, rendered, tuple(entry.errors), _why(entry), key)


def _why(entry: Entry) -> str:
    return next(iter(entry.errors.values()), "")


def _distinct_key(entry: Entry, path: str) -> bytes:
    """Return the JSON of a value; empty if there is none, or it cannot be computed."""
    try:
        value = entry.value(path)
        return b"" if value is None else orjson.dumps(plain(value))
    except EnrichmentFailed as error:
        entry.fail(error)
    except (TypeError, ValueError, RecursionError) as error:
        entry.fail(EnrichmentFailed("distinct", f"{path} can be no JSON: {error}"))
    return b""


def nested(entry: Entry) -> bytes:
    """Render JSON with values below those they derive from."""
    return orjson.dumps(as_json(entry))


def nothing(entry: Entry) -> bytes:
    """Render nothing, if only the captures themselves matter."""
    return b""


def extract_locally(
    jobs: int, plan: ExtractionPlan, chunks: SpooledChunks
) -> Iterator[ChunkResult]:
    """Process chunks in `jobs` processes of this machine."""
    more = partial(_spooled_rest, chunks)
    isolate, jobs = partial(_isolate, plan), jobs if plan.reads else 1
    return map_in_order(extract_chunk, plan, chunks, jobs, isolate, more)


def _spooled_rest(chunks: SpooledChunks, done: ChunkResult) -> Chunk | None:
    return chunks.after(done.left)


def _isolate(plan: ExtractionPlan, chunk: Chunk) -> Iterator[ChunkResult]:
    """Process a chunk that killed its process, so that only the offending capture has an error."""
    if len(chunk.groups) > 1:
        for group in chunk.groups:
            yield from run_alone(extract_chunk, plan, Chunk([group]), partial(_isolate, plan))
        return
    (group,) = chunk.groups
    left = None if chunk.next < 0 else Chunk([], chunk.next)
    if len(group) == 1:
        entry = Entry(group[0], plan.makers, Containers())
        entry.fail(EnrichmentFailed("process", _KILLED))
        drops = any(isinstance(test, DropFailed) for test in (*plan.tests, *plan.after))
        blank = KeptCapture(
            entry.capture, b"", tuple(entry.errors), _why(entry)
        )  # it must not be read again
        rendered = blank if plan.needs else _render(entry, plan._replace(distinct=""))
        yield ChunkResult([] if drops else [rendered], 1, left, dropped=int(drops))
        return
    for number, capture in enumerate(group, 1):
        settled = False
        probe = Chunk([[capture]], _PROBE)
        for done in run_alone(extract_chunk, plan, probe, partial(_isolate, plan)):
            settled = done.left is None or done.left.next != _PROBE
            yield done._replace(left=left if number == len(group) and not settled else None)
        if settled:
            return


def counted(
    results: Iterable[ChunkResult],
    report: CorpusReport,
    on_progress: OnProgress,
    *,
    distinct: bool = False,
    stop: bool = False,
) -> Iterator[KeptCapture]:
    """Yield the captures that were kept, and update the report.

    With `distinct`, of equal keys only the first is kept. With `stop`, raises `Damaged` for the
    first that has an error.
    """
    tallied = _tallied(results, report, on_progress)
    found = (kept for result in tallied for kept in result.kept)
    for kept in first_of_each(found, lambda kept: kept.key) if distinct else found:
        if stop and kept.failed:
            raise Damaged(f"{kept.capture.url} of {kept.capture.timestamp}: {kept.why}")
        report.count(kept.capture)
        if kept.failed:
            report.errors.update(kept.failed)
        yield kept


def first_of_each(found: Iterable[R], key_of: Callable[[R], bytes]) -> Iterator[R]:
    """Yield the first item of each key, and all with an empty key; keys are on disk."""
    with closing(open_scratch()) as seen:
        seen.execute("CREATE TABLE seen (key BLOB PRIMARY KEY) WITHOUT ROWID")
        for item in found:
            if key := key_of(item):
                added = seen.execute(
                    "INSERT OR IGNORE INTO seen VALUES (?)", (blake3(key).digest(),)
                )
                if not added.rowcount:
                    continue
            yield item


def _tallied(
    results: Iterable[ChunkResult], report: CorpusReport, on_progress: OnProgress
) -> Iterator[ChunkResult]:
    for result in results:
        report.tried += result.tried
        report.records += result.records
        report.containers += result.opened
        report.bytes_read += result.bytes_read
        report.dropped += result.dropped
        part = report.tried / report.chosen if report.chosen else None
        on_progress(ProgressUpdate("reading", report.bytes_read, records=report.tried, part=part))
        yield result


def spark_extractor(cluster: Cluster) -> Run:
    """Process chunks on Spark; executors have WARC files and modules under the same names."""

    def run(plan: ExtractionPlan, chunks: SpooledChunks) -> Iterator[ChunkResult]:
        if not plan.reads:
            yield from extract_locally(1, plan, chunks)
            return

        def extract(tasks: Sequence[Chunk]) -> Iterator[ChunkResult]:
            return cluster.rows(partial(_extract_on_executor, plan), tasks)

        remaining = iter(chunks)
        while batch := list(islice(remaining, AT_ONCE * cluster.cores)):
            for done in extract(batch):
                yield done
                if (rest := chunks.after(done.left)) is not None:
                    more = partial(_spooled_rest, chunks)
                    yield from run_to_end(lambda chunk: extract([chunk]), rest, more)

    return run


def _extract_on_executor(plan: ExtractionPlan, chunk: Chunk) -> Iterator[ChunkResult]:
    """Run on an executor, in a separate process, whose death must not end the run.

    The next piece of a long group is on the driver's disk, so such a rest is returned.
    """
    isolate = partial(_isolate, plan)
    for done in map_in_order(extract_chunk, plan, [chunk], 2, isolate, _rest_in_memory):
        yield done._replace(left=None) if _rest_in_memory(done) else done


def rendered_on_executor(plan: ExtractionPlan, chunk: Chunk) -> Iterator[bytes]:
    """Yield what is rendered of a chunk that has no next piece; run on an executor."""
    for done in _extract_on_executor(plan, chunk):
        for kept in done.kept:
            yield kept.rendered


def _rest_in_memory(done: ChunkResult) -> Chunk | None:
    return done.left if done.left is not None and done.left.groups else None
