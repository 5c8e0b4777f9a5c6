"""Run bin/cover: read documents, find pairs, compute the cover, write the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.cover import covering, document_store, exact, pairs, revisit_dependencies
from dedupindex.cover.components import connected_components, spark_components
from dedupindex.cover.covering import CoverCounts, CoverExecution, cover, map_ahead
from dedupindex.cover.load_documents import Line, LineBatch, batches, prepare
from dedupindex.cover.quality import apply_quality
from dedupindex.cover.relation import ALONE, Relation, exactly
from dedupindex.errors import BadInput, SettingsConflict
from dedupindex.expression.evaluate import to_sql
from dedupindex.expression.parser import amount
from dedupindex.expression.tree import leaves
from dedupindex.runtime.duckdb import Database, number, open_database, show_progress
from dedupindex.runtime.spark import spark_session
from dedupindex.runtime.workers import workers

EXACT_SECONDS = 10.0  # time limit of HiGHS for one component


@dataclass(frozen=True)
class CoverOptions:
    approximate: bool = False
    exact_seconds: float = EXACT_SECONDS
    cost: str = "1"
    quality: Path | None = None  # a table of the quality of documents
    per_host: int = 0
    what_if: tuple[Fraction, ...] = ()
    jobs: int = 1
    spark: str = ""  # the master of a cluster that finds and covers components
    memory: str = "1GB"


@dataclass
class CoverReport:
    relation: str
    loaded: document_store.LoadCounts = field(default_factory=document_store.LoadCounts)
    found: pairs.PairCounts = field(default_factory=pairs.PairCounts)
    covered: CoverCounts = field(default_factory=CoverCounts)
    what_if: dict[str, CoverCounts] = field(default_factory=dict)  # by threshold
    changed: dict[str, int] = field(default_factory=dict)  # by an update
    rated: int | None = None  # documents whose quality a table states
    listed: tuple[int, int] | None = None  # documents listed for deletion; left out as needed
    hosts: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        listed, needed = self.listed or (None, None)
        return {
            "relation": self.relation,
            **asdict(self.loaded),
            **asdict(self.found),
            **self.covered.as_json(),
            "what_if": {name: counts.as_json() for name, counts in self.what_if.items()},
            "changed": self.changed,
            "rated": self.rated,
            "listed": listed,
            "needed": needed,
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
    total_bytes: int = 0,
    on_progress: OnProgress = lambda seen: None,
) -> CoverReport:
    """Compute a cover, and call `finish` while the tables exist in `home`. Raises `BadInput`.

    `before` is the state of an earlier run, `left_out` the revisits that conditions exclude.
    """
    if options.exact_seconds > 0:
        exact.check_installed()
    report, widest = CoverReport(relation.text), _widest(relation, options.what_if)
    _check_settings(before, settings_of(relation, options))
    cost = _cost(options)
    pools = nullcontext() if options.jobs <= 1 else workers(options.jobs)  # before DuckDB's threads
    engine = open_database(home, options.memory, 0)
    with pools as pool, engine as (database, scratch), show_progress(database, on_progress) as at:
        with _timed(report, "reading"), document_store.Spools(scratch, relation.ks) as spools:
            tasks = batches(lines, document_store.next_number(before), relation.ks)
            _spool(tasks, spools, pool, options.jobs, total_bytes, on_progress)
            at("loading documents")
            report.loaded = spools.load(database, before)
            revisit_dependencies.load(database, left_out, before, scratch)
        if not report.loaded.documents:
            raise BadInput("there is no document in the sources")
        report.rated = _compute_costs(database, options, cost)  # before hours are spent on pairs
        with _timed(report, "pairs"):
            report.found = pairs.find(database, widest, approximate=options.approximate, at=at)
            if before is not None:
                earlier = document_store.earlier(before, "pairs")
                database.execute(f"INSERT INTO pairs BY NAME FROM {earlier}")
        with _timed(report, "covers"):
            at("joining pairs")
            with _execution(scratch, options, pool, on_progress) as execution:
                report.what_if = {
                    exactly(threshold): cover(database, relation.at(threshold), execution)
                    for threshold in options.what_if
                }
                report.covered = cover(database, relation, execution)
        report.changed = {} if before is None else _changes(database)
        at("writing results")
        finish(database, report)
    return report


def _cost(options: CoverOptions) -> str:
    """Return the cost as SQL; raises `BadQuery`, `BadInput`."""
    cost = amount(options.cost, ALONE)
    if options.quality and not any(leaf.name == "quality" for leaf in leaves(cost)):
        raise BadInput("--quality takes a --cost that names it, as --cost '1 / quality'")
    return to_sql(cost, lambda leaf: f"d.{leaf.name}")


def _compute_costs(database: Database, options: CoverOptions, cost: str) -> int | None:
    """Make ``costs``; return of how many documents a table states the quality."""
    rated = None if options.quality is None else apply_quality(database, options.quality)
    covering.compute_costs(database, cost, options.cost)
    return rated


def _spool(
    tasks: Iterator[LineBatch], spools: document_store.Spools, pool: Executor | None, jobs: int,
    total_bytes: int, on_progress: OnProgress,
) -> None:  # fmt: skip
    seen = size = 0
    for batch in map_ahead(pool, prepare, tasks, 2 * jobs) if pool else map(prepare, tasks):
        spools.add(batch)
        seen, size = seen + batch.lines, size + batch.size
        on_progress(ProgressUpdate("reading documents", size, total_bytes, seen))


def settings_of(relation: Relation, options: CoverOptions) -> dict[str, Any]:
    """Return the settings that a later run with ``--update`` must share."""
    widest = _widest(relation, options.what_if)
    return {
        "relation": widest.text,
        "content": list(map(str, widest.content)),
        "approximate": options.approximate,
    }


def _check_settings(before: Path | None, settings: dict[str, Any]) -> None:
    """Raise `SettingsConflict` if an earlier run computed other pairs than these settings."""
    if before is None:
        return
    earlier = document_store.read_state(before)
    if any(earlier[name] != settings[name] for name in ("relation", "content")):
        raise SettingsConflict(
            f"{before} is of another relation, {earlier['relation']} (pairs from "
            f"{', '.join(earlier['content'])}): give the same, and the same --what-if"
        )
    if earlier["approximate"] != settings["approximate"]:
        approximate = settings["approximate"]
        which = "all pairs" if approximate else "only pairs that --approximate found"
        remedy = "leave --approximate out" if approximate else "give it again"
        raise SettingsConflict(f"{before} has {which}: {remedy}, or run bin/cover on all sources")


def _widest(relation: Relation, thresholds: Iterable[Fraction]) -> Relation:
    """Return the relation with the lowest of all thresholds; its pairs include the others'."""
    if relation.content:
        return relation.at(min([relation.content[0].threshold, *thresholds]))
    if list(thresholds):
        raise BadInput("--what-if takes a relation with a content constraint")
    return relation


@contextmanager
def _execution(
    home: Path, options: CoverOptions, pool: Executor | None, on_progress: OnProgress
) -> Iterator[CoverExecution]:
    seconds, more = options.exact_seconds, (options.per_host, on_progress)
    if not options.spark:
        solver = covering.local_solver(pool, options.jobs, seconds)
        yield CoverExecution(home, connected_components, solver, *more)
        return
    with spark_session(options.spark) as cluster:
        join = partial(spark_components, cluster)
        yield CoverExecution(home, join, covering.spark_solver(cluster, seconds), *more)


@contextmanager
def _timed(report: CoverReport, phase: str) -> Iterator[None]:
    begin = time.monotonic()
    yield
    report.seconds[phase] = round(time.monotonic() - begin, 3)


def _changes(database: Database) -> dict[str, int]:
    """Count the documents for which an update changes the earlier result."""
    rows = (
        "FROM documents d LEFT JOIN chosen c ON d.n = c.n WHERE NOT d.fresh AND d.kept "
        "{} AND {}coalesce(c.kept, true)"
    )
    return {
        "covered_now": number(database, "SELECT count(*) " + rows.format("", "NOT ")),
        "kept_again": number(database, "SELECT count(*) " + rows.format("= false", "")),
    }
