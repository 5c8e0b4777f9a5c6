"""Run bin/cover: read documents, find pairs, compute the cover, write the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.cover import covering, document_store, exact, pairs, revisit_dependencies
from dedupindex.cover.components import connected_components, spark_components
from dedupindex.cover.covering import CoverCounts, CoverExecution, cover, map_ahead
from dedupindex.cover.load_documents import Line, LineBatch, batches, prepare, size_of
from dedupindex.cover.quality import apply_quality
from dedupindex.cover.relation import ALONE, Relation, exactly
from dedupindex.cover.spark_shingles import SparkShingles
from dedupindex.errors import BadInput, SettingsConflict
from dedupindex.expression.evaluate import to_sql
from dedupindex.expression.parser import amount
from dedupindex.expression.tree import leaves
from dedupindex.runtime.duckdb import Database, number, open_database, show_progress
from dedupindex.runtime.report_table import rounded_shares
from dedupindex.runtime.spark import Cluster, spark_session
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
    spark: str = ""  # the master of a cluster that finds pairs and components, and covers these
    updatable: bool = False  # shingles stay on this machine, for a state
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
            "hosts": rounded_shares(self.hosts),
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
    files: Sequence[str] = (),
    on_progress: OnProgress = lambda seen: None,
) -> CoverReport:
    """Compute a cover, and call `finish` while the tables exist in `home`. Raises `BadInput`.

    `before` is the state of an earlier run, `left_out` the revisits that conditions exclude.
    `files` have the `lines`; the executors of a cluster read these themselves.
    """
    exact.check_installed(options.exact_seconds)
    report, widest = CoverReport(relation.text), _widest(relation, options.what_if)
    _check_settings(before, settings_of(relation, options))
    cost = _cost(options)
    with _engines(home, relation, options, files, on_progress) as engines:
        database = engines.database
        with _timed(report, "reading"):
            report.loaded = _read(engines, lines, files, relation.ks, before)
            revisit_dependencies.load(database, left_out, before, engines.home)
        if not report.loaded.documents:
            raise BadInput("there is no document in the sources")
        report.rated = _compute_costs(database, options, cost)  # before hours are spent on pairs
        with _timed(report, "pairs"):
            approximate, shingles = options.approximate, engines.shingles
            report.found = pairs.find(
                database, widest, approximate=approximate, at=engines.at, shingles=shingles
            )
            if before is not None:
                earlier = document_store.earlier(before, "pairs")
                database.execute(f"INSERT INTO pairs BY NAME FROM {earlier}")
        with _timed(report, "covers"):
            engines.at("joining pairs")
            execution = _execution(engines, options)
            report.what_if = {
                exactly(threshold): cover(database, relation.at(threshold), execution)
                for threshold in options.what_if
            }
            report.covered = cover(database, relation, execution)
        report.changed = {} if before is None else _changes(database)
        engines.at("writing results")
        finish(database, report)
    return report


class _Engines(NamedTuple):
    """Where a run computes."""

    database: Database
    home: Path
    jobs: int
    pool: Executor | None
    cluster: Cluster | None
    shingles: SparkShingles | None  # on the cluster; None if they are here
    at: Callable[[str], None]  # takes the name of each step
    on_progress: OnProgress


@contextmanager
def _engines(
    home: Path, relation: Relation, options: CoverOptions, files: Sequence[str],
    on_progress: OnProgress,
) -> Iterator[_Engines]:  # fmt: skip
    """Open DuckDB, and processes or a cluster.

    The cluster has the shingles if it can read the files, but not for a state or MinHash.
    """
    pools = nullcontext() if options.jobs <= 1 else workers(options.jobs)  # before DuckDB's threads
    master = options.spark
    with (
        pools as pool, spark_session(master) if master else nullcontext() as cluster,
        open_database(home, options.memory, 0) as (database, scratch),
        show_progress(database, on_progress) as at,
    ):  # fmt: skip
        engines = _Engines(database, scratch, options.jobs, pool, cluster, None, at, on_progress)
        here = not relation.content or options.updatable or options.approximate
        if cluster is None or not files or here:
            yield engines
            return
        with SparkShingles(cluster, relation.ks, database, scratch) as shingles:
            yield engines._replace(shingles=shingles)


def _read(
    engines: _Engines, lines: Iterable[Line], files: Sequence[str], ks: tuple[int, ...],
    before: Path | None,
) -> document_store.LoadCounts:  # fmt: skip
    """Load the documents."""
    there = engines.shingles
    with document_store.Spools(engines.home, ks, elsewhere=there is not None) as spools:
        if there is not None:
            there.read(files, spools)
        else:
            tasks = batches(lines, document_store.next_number(before), ks)
            _spool(tasks, spools, engines, size_of(files))
        engines.at("loading documents")
        loaded = spools.load(engines.database, before)
    if there is not None:
        there.count_shingles(loaded)
    return loaded


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
    tasks: Iterator[LineBatch], spools: document_store.Spools, engines: _Engines, total_bytes: int
) -> None:
    seen, size, pool = 0, 0, engines.pool
    for batch in map_ahead(pool, prepare, tasks, 2 * engines.jobs) if pool else map(prepare, tasks):
        spools.add(batch)
        seen, size = seen + batch.lines, size + batch.size
        engines.on_progress(ProgressUpdate("reading documents", size, total_bytes, seen))


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


def _execution(engines: _Engines, options: CoverOptions) -> CoverExecution:
    seconds, more = options.exact_seconds, (options.per_host, engines.on_progress)
    if engines.cluster is None:
        solver = covering.local_solver(engines.pool, engines.jobs, seconds)
        return CoverExecution(engines.home, connected_components, solver, *more)
    join = partial(spark_components, engines.cluster)
    solver = covering.spark_solver(engines.cluster, seconds)
    return CoverExecution(engines.home, join, solver, *more)


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
