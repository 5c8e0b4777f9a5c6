"""The second phase: one function for each capture, in processes here or on a cluster.

What is left by the metadata waits on disk, in order of containers, and is handed out in chunks.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from dedupindex.corpus.captures import Capture, Place
from dedupindex.corpus.choosing import KEYS, Best
from dedupindex.corpus.conditions import Condition
from dedupindex.corpus.enriching import Enrichment, Entry, Failed, Makers, as_json
from dedupindex.corpus.places import Places
from dedupindex.corpus.records import Containers
from dedupindex.corpus.report import Report
from dedupindex.processes import alone, hurry, in_turn
from dedupindex.resolve.engine import Database
from dedupindex.tally import OnProgress, Seen

_SECONDS = 60.0  # of work on one capture
_KILLED = f"reading it killed the process, for want of memory or after {_SECONDS:.0f} s of work"
_AT_ONCE = 1000  # rows from DuckDB
_MOST = 200  # captures of a chunk
_CHUNKS = 8  # for each process, if there are captures for so many


class Keep(NamedTuple):
    """Captures stay for whose value at a path the test is true; those without one do not."""

    path: str
    test: Callable[[Any], object]


Test = Keep | Condition
Group = list[Capture]  # in the order in which they are tried
Chunk = list[Group]


class Plan(NamedTuple):
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


class Kept(NamedTuple):
    """A capture that has passed."""

    capture: Capture
    made: bytes  # what the plan renders
    failed: tuple[str, ...]  # names of what failed


class Done(NamedTuple):
    """What became of a chunk."""

    kept: list[Kept]
    tried: int
    records: int = 0
    opened: int = 0
    bytes_read: int = 0


Run = Callable[[Plan, Iterable[Chunk]], Iterator[Done]]
"""Does all chunks, and yields what became of each in their order."""


def work(plan: Plan, chunk: Chunk) -> Done:
    """All of a chunk; a pure function of it and of the containers that it names."""
    kept: list[Kept] = []
    tried = 0
    with closing(Containers(plan.most)) as containers:
        for group in chunk:
            for capture in group:
                tried += 1
                hurry(_SECONDS)
                entry = Entry(capture, plan.makers, containers)
                if not _passes(entry, plan.tests):
                    continue
                certain = not entry.errors
                if _passes(entry, plan.after):
                    for enrichment in plan.shown:
                        entry.show(enrichment)
                    kept.append(_kept(entry, plan))
                if certain:
                    break  # the best of its group
        hurry(0)
        return Done(kept, tried, containers.records, containers.opened, containers.bytes)


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
        except Exception as error:  # of somebody else's function
            entry.fail(Failed("filter", f"{type(error).__name__}: {error}"))
    return True


def _kept(entry: Entry, plan: Plan) -> Kept:
    return Kept(entry.capture, plan.render(entry), tuple(entry.errors))


def nested(entry: Entry) -> bytes:
    """JSON with values below what they were made of."""
    return orjson.dumps(as_json(entry))


def nothing(entry: Entry) -> bytes:
    """For who only asks which captures there are."""
    return b""


def here(jobs: int) -> Run:
    """Runs in processes of this machine."""

    def run(plan: Plan, chunks: Iterable[Chunk]) -> Iterator[Done]:
        return in_turn(work, plan, chunks, jobs if plan.reads else 1, partial(_killed, plan))

    return run


def _killed(plan: Plan, chunk: Chunk) -> Iterator[Done]:
    """A chunk of which something kills the process that reads it: that one is told of, alone."""
    if len(chunk) > 1:
        for group in chunk:
            yield from alone(work, plan, [group], partial(_killed, plan))
        return
    entry = Entry(chunk[0][0], plan.makers, Containers())
    entry.fail(Failed("process", _KILLED))
    yield Done([_kept(entry, plan)], len(chunk[0]))


def spool(
    database: Database, best: Best | None, places: Places, path: Path, jobs: int, count: int
) -> None:
    """Write what is chosen to disk, in chunks for `chunks` to read."""
    size = max(min(count // (jobs * _CHUNKS), _MOST), 1)
    key = KEYS[best.by] if best is not None else "NULL"
    order = f"k, {best.order}" if best is not None else 'container, "offset", url, "timestamp"'
    rows = database.execute(
        f'SELECT surt, "timestamp", url, mime, status, digest, redirect, meta, length, revisit, '
        "to_url, to_timestamp, coalesce(unmodified, false), container, container, beside, "
        '"offset", at_container, at_beside, at_offset, '
        f"at_length, {key} AS k FROM chosen ORDER BY {order}"
    )
    with open(path, "wb") as stream:
        chunk: Chunk = []
        last: object = None
        held = 0
        while found := rows.fetchmany(_AT_ONCE):
            for row in found:
                same = best is not None and row[-1] is not None and row[-1] == last
                if not same and held >= size:
                    pickle.dump(chunk, stream)
                    chunk, held = [], 0
                if not same or not chunk:
                    chunk.append([])
                chunk[-1].append(_capture(row, places))
                held += 1
                last = row[-1]
        if chunk:
            pickle.dump(chunk, stream)


def _capture(row: tuple[Any, ...], places: Places) -> Capture:
    told, (container, beside, offset), there = row[:14], row[14:17], row[17:21]
    at_container, at_beside, at_offset, at_length = there
    length, revisit = told[8], told[9]
    record = _place(places, container, beside, offset, length)
    payload = None
    if revisit and at_container is not None and at_offset is not None:
        payload = _place(places, at_container, at_beside or beside, at_offset, at_length)
    return Capture._make((*told, record, payload))


def _place(
    places: Places,
    container: str | None,
    beside: str | None,
    offset: int | None,
    length: int | None,
) -> Place:
    found = places.find(container, beside or "") if container else ""
    return Place(found, -1 if offset is None else offset, -1 if length is None else length)


def chunks(path: Path) -> Iterator[Chunk]:
    """What `spool` has written."""
    with open(path, "rb") as stream:
        while stream.peek(1):
            yield pickle.load(stream)


def counted(done: Iterable[Done], into: Report, on_progress: OnProgress) -> Iterator[Kept]:
    """Yield what was kept, and count it."""
    for one in done:
        into.tried += one.tried
        into.records += one.records
        into.containers += one.opened
        into.bytes_read += one.bytes_read
        on_progress(Seen("reading", into.bytes_read, 0, into.tried))
        for kept in one.kept:
            into.entries += 1
            into.errors.update(Counter(kept.failed))
            yield kept
