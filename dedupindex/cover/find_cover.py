"""A run of bin/cover: documents in, which of them stay out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.cover import document_store, exact, pairs, revisit_dependencies
from dedupindex.cover.covering import Covered, cover, price
from dedupindex.cover.executors import Means, ahead, join_here, join_on, solve_here, solve_on
from dedupindex.cover.load_documents import Line, batches, prepare
from dedupindex.cover.relation import ALONE, Relation, exactly
from dedupindex.errors import BadInput, SettingsConflict
from dedupindex.expression.parser import amount
from dedupindex.expression.sql import to_sql
from dedupindex.runtime.duckdb import Database, number, open_database, show_progress
from dedupindex.runtime.spark import spark_session
from dedupindex.runtime.workers import workers

EXACT_SECONDS = 10.0  # that HiGHS gets for one component


@dataclass(frozen=True)
class CoverOptions:
    """How a run is made."""

    approximate: bool = False
    exact_seconds: float = EXACT_SECONDS
    cost: str = "1"
    per_host: int = 0
    what_if: tuple[Fraction, ...] = ()
    jobs: int = 1
    spark: str = ""  # where components are found and covered instead of here
    memory: str = "1GB"


@dataclass
class CoverReport:
    """What a run came to."""

    relation: str
    loaded: document_store.Loaded = field(default_factory=document_store.Loaded)
    found: pairs.PairCounts = field(default_factory=pairs.PairCounts)
    covered: Covered = field(default_factory=Covered)
    what_if: dict[str, Covered] = field(default_factory=dict)  # by threshold
    changed: dict[str, int] = field(default_factory=dict)  # by an update
    listed: tuple[int, int] | None = None  # for who deletes; and left out, since needed
    hosts: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "relation": self.relation,
            **asdict(self.loaded),
            **asdict(self.found),
            **self.covered.as_json(),
            "what_if": {name: one.as_json() for name, one in self.what_if.items()},
            "changed": self.changed,
            "listed": None if self.listed is None else self.listed[0],
            "needed": None if self.listed is None else self.listed[1],
            "hosts": self.hosts,
            "seconds": self.seconds,
        }


Finish = Callable[[Database, CoverReport], None]


def run(
    lines: Iterable[Line],
    relation: Relation,
    options: CoverOptions,
    home: Path,
    finish: Finish,
    *,
    before: Path | None = None,
    left_out: Iterable[Line] = (),
    of: int = 0,
    on_progress: OnProgress = lambda seen: None,
) -> CoverReport:
    """Cover documents; `finish` is given the tables while they are there.

    `home` is an empty directory with room, `before` the state of an earlier run, `left_out` what
    `reading.gather` tells of revisits, `of` the bytes of all lines, 0 if nobody knows. Raises
    `BadInput`.
    """
    if options.exact_seconds > 0:
        exact.available()
    report = CoverReport(relation.text)
    widened = _widened(relation, options.what_if)
    if before is not None:
        _check(before, widened, options)
    cost = to_sql(amount(options.cost, ALONE), lambda leaf: f"d.{leaf.name}")
    pools = nullcontext() if options.jobs <= 1 else workers(options.jobs)  # before DuckDB's threads
    engine = open_database(home, options.memory, 0)
    with pools as pool, engine as (database, scratch), show_progress(database, on_progress) as at:
        with _timed(report, "reading"):
            report.loaded = _load(lines, relation.ks, database, scratch, pool, options, before,
                                  of, on_progress, at)  # fmt: skip
            revisit_dependencies.load(database, left_out, before, scratch)
        if not report.loaded.documents:
            raise BadInput("there is no document in the sources")
        with _timed(report, "pairs"):
            report.found = pairs.find(database, widened, approximate=options.approximate, at=at)
            if before is not None:
                database.execute(
                    f"INSERT INTO pairs BY NAME FROM {document_store.earlier(before, 'pairs')}"
                )
        with _timed(report, "covers"):
            at("joining pairs")
            price(database, cost, options.cost)
            with _means(scratch, options, pool, on_progress) as means:
                _cover(database, relation, options.what_if, means, report)
        if before is not None:
            report.changed = _changed(database)
        at("writing results")
        finish(database, report)
    return report


def _cover(
    database: Database,
    relation: Relation,
    what_if: Iterable[Fraction],
    means: Means,
    to: CoverReport,
) -> None:
    for threshold in what_if:
        to.what_if[exactly(threshold)] = cover(database, relation.at(threshold), means)
    to.covered = cover(database, relation, means)


def told(relation: Relation, options: CoverOptions) -> dict[str, Any]:
    """What a later run must know of this one."""
    widened = _widened(relation, options.what_if)
    return {
        "relation": widened.text,
        "content": list(map(str, widened.content)),
        "approximate": options.approximate,
    }


def _check(before: Path, widened: Relation, options: CoverOptions) -> None:
    """Raise `SettingsConflict` if the pairs of an earlier run are not those that are wanted."""
    was = document_store.asked(before)
    if [was["relation"], was["content"]] != [widened.text, list(map(str, widened.content))]:
        raise SettingsConflict(
            f"{before} is of another relation, {was['relation']} (pairs from "
            f"{', '.join(was['content'])}): give the same, and the same --what-if"
        )
    if was["approximate"] != options.approximate:
        which = "all pairs" if options.approximate else "only pairs that --approximate found"
        what = "leave --approximate out" if options.approximate else "give it again"
        raise SettingsConflict(f"{before} has {which}: {what}, or run bin/cover on all sources")


def _widened(relation: Relation, thresholds: Iterable[Fraction]) -> Relation:
    """The relation with the least of all thresholds, of which the others are a part."""
    if not relation.content:
        if list(thresholds):
            raise BadInput("--what-if takes a relation with a content constraint")
        return relation
    first = relation.content[0]
    least = min([first.threshold, *thresholds])
    return replace(relation, content=(replace(first, threshold=least), *relation.content[1:]))


def _load(
    lines: Iterable[Line],
    ks: tuple[int, ...],
    database: Database,
    home: Path,
    pool: Executor | None,
    options: CoverOptions,
    before: Path | None,
    of: int,
    on_progress: OnProgress,
    at: Callable[[str], None],
) -> document_store.Loaded:
    tasks = batches(lines, document_store.next_number(before), ks)
    done = map(prepare, tasks) if pool is None else ahead(pool, prepare, tasks, 2 * options.jobs)
    seen = size = 0
    with document_store.Spools(home, ks) as spools:
        for prepared in done:
            spools.add(prepared)
            seen += prepared.lines
            size += prepared.size
            on_progress(ProgressUpdate("reading documents", size, of, seen))
        at("loading documents")
        return spools.load(database, before)


@contextmanager
def _means(
    home: Path, options: CoverOptions, pool: Executor | None, on_progress: OnProgress
) -> Iterator[Means]:
    if not options.spark:
        solving = solve_here(pool, options.jobs, options.exact_seconds)
        yield Means(home, join_here, solving, options.per_host, on_progress)
        return
    with spark_session(options.spark) as cluster:
        yield Means(
            home, partial(join_on, cluster), solve_on(cluster, options.exact_seconds),
            options.per_host, on_progress,
        )  # fmt: skip


@contextmanager
def _timed(report: CoverReport, phase: str) -> Iterator[None]:
    begin = time.monotonic()
    yield
    report.seconds[phase] = round(time.monotonic() - begin, 3)


def _changed(database: Database) -> dict[str, int]:
    """What an update has changed of what was said before."""
    rows = (
        "FROM documents d LEFT JOIN chosen c ON d.n = c.n WHERE NOT d.fresh AND d.kept "
        "{} AND {}coalesce(c.kept, true)"
    )
    return {
        "covered_now": number(database, "SELECT count(*) " + rows.format("", "NOT ")),
        "kept_again": number(database, "SELECT count(*) " + rows.format("= false", "")),
    }
