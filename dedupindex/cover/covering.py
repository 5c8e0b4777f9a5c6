"""Pairs to components, components to covers, and who covers whom: tables of DuckDB in between.

``chosen(n, component, kept)``           documents that are in a component with others
``coverers(n, by, likeness, shared…)``   of covered documents: the kept one that is most like it
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.cover import document_store, reduce
from dedupindex.cover.executors import CHUNK, Means
from dedupindex.cover.pairs import holds, measured
from dedupindex.cover.reduce import joints, thin
from dedupindex.cover.relation import Relation
from dedupindex.cover.set_cover import CoverTask, Solution
from dedupindex.errors import BadInput
from dedupindex.runtime.duckdb import Database, number

_AT_ONCE = 10_000  # rows from DuckDB


@dataclass
class Covered:
    """What covers came to."""

    pairs: int = 0
    components: int = 0  # of two documents or more
    largest: int = 0  # documents
    kept: int = 0  # documents, those included that are in no pair
    covered: int = 0
    bytes_kept: int = 0
    bytes_covered: int = 0
    how: Counter[str] = field(default_factory=Counter)  # components by the last thing to be done
    proved: int = 0  # components whose cover is minimal for certain
    cost: float = 0  # of what is kept in components
    bound: float = 0  # no cover costs less
    added: int = 0  # kept only for the minimum of their host

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "how": dict(self.how), "minimal": self.minimal}

    @property
    def minimal(self) -> bool:
        """Whether no cover is less."""
        return self.proved == self.components


def cover(database: Database, relation: Relation, means: Means) -> Covered:
    """Make ``chosen`` and ``coverers`` of the pairs that are in a relation."""
    result = Covered()
    database.execute(
        f"CREATE OR REPLACE TABLE live AS SELECT * FROM pairs WHERE {_alike(relation)}"
    )
    result.pairs = number(database, "SELECT count(*) FROM live")
    count = number(database, "SELECT max(n) + 1 FROM documents")
    joined = means.join(_rows(database, joints(database)), count)
    lines = (f"{document}\t{component}\n" for document, component in joined)
    document_store.fill(
        database, "labels", "n INTEGER, component INTEGER", means.home / "labels", lines
    )
    thin(database)
    solutions = chain(means.solve(_chunks(_tasks(database))), _of_large(database, means.home))
    expected = number(database, "SELECT count(DISTINCT component) FROM labels")
    stay = _solved(solutions, result, expected, means.on_progress)
    document_store.fill(database, "staying", "n INTEGER", means.home / "staying", stay)
    database.execute(
        "CREATE OR REPLACE TABLE chosen AS SELECT l.n, l.component, s.n IS NOT NULL AS kept "
        "FROM labels l LEFT JOIN staying s ON l.n = s.n"
    )
    if means.per_host:
        _keep_more(database, relation, means.per_host, result)
    _count(database, result)
    _who_covers(database, relation)
    return result


def _alike(relation: Relation) -> str:
    """Pairs were looked for with the least of several thresholds."""
    return " AND ".join(
        ["true"]
        + [
            holds(one, f"shared_{one.k}", f"of_a_{one.k}", f"of_b_{one.k}")
            for one in relation.content
        ]
    )


def _rows(database: Database, query: str) -> Iterator[Any]:
    """What a query yields, on a connection of its own."""
    with database.cursor() as cursor:
        rows = cursor.execute(query)
        while some := rows.fetchmany(_AT_ONCE):
            yield from some


def _tasks(database: Database) -> Iterator[CoverTask]:
    """All components, one by one; not those that are too large for memory."""
    costs = groupby(
        _rows(
            database,
            "SELECT l.component, l.n, d.cost FROM labels l JOIN costs d ON l.n = d.n "
            "ANTI JOIN large g ON l.component = g.component ORDER BY l.component, l.n",
        ),
        itemgetter(0),
    )
    pairs = groupby(
        _rows(
            database,
            "SELECT component, a, b FROM edges ANTI JOIN large USING (component) "
            "ORDER BY component, a, b",
        ),
        itemgetter(0),
    )
    for (component, of), (_, joined) in zip(costs, pairs, strict=True):
        yield CoverTask(
            component,
            {document: cost for _, document, cost in of},
            [(covered, covering) for _, covered, covering in joined],
        )


def _of_large(database: Database, home: Path) -> Iterator[list[Solution]]:
    """Those that are too large, one by one."""
    for (component,) in database.execute("FROM large ORDER BY component").fetchall():
        costs = _rows(
            database,
            f"SELECT n, cost FROM labels JOIN costs USING (n) WHERE component = {component} "
            "ORDER BY n",
        )
        ways = (
            _rows(
                database,
                f"SELECT {one}, {other} FROM edges WHERE component = {component} "
                f"ORDER BY {one}, {other}",
            )
            for one, other in (("a", "b"), ("b", "a"))
        )
        by_covered, by_covering = ways
        yield [reduce.solve(component, dict(costs), by_covered, by_covering, home)]


def _chunks(tasks: Iterator[CoverTask]) -> Iterator[list[CoverTask]]:
    held: list[CoverTask] = []
    size = 0
    for task in tasks:
        held.append(task)
        size += len(task.pairs)
        if size >= CHUNK:
            yield held
            held, size = [], 0
    if held:
        yield held


def _solved(
    solutions: Iterator[list[Solution]], result: Covered, expected: int, on_progress: OnProgress
) -> Iterator[str]:
    """Rows of what stays; counts the rest."""
    for some in solutions:
        on_progress(ProgressUpdate("covering components", part=result.components / expected))
        for solution in some:
            result.components += 1
            result.how[solution.how] += 1
            result.proved += solution.minimal
            result.cost += solution.cost
            result.bound += solution.bound
            yield "".join(f"{document}\n" for document in solution.kept)


def _keep_more(database: Database, relation: Relation, least: int, result: Covered) -> None:
    """Keep the cheapest covered documents of hosts of which too few stay.

    With costs of 1 and pairs within hosts only, no other cover with as many is less: one that is
    least has more than the minimum already, or just as many now.
    """
    database.execute(
        "CREATE OR REPLACE TABLE more AS SELECT n FROM (SELECT d.n, kept, hostname, "
        "count(*) FILTER (coalesce(c.kept, true)) OVER (PARTITION BY hostname) AS staying, "
        "row_number() OVER (PARTITION BY hostname, coalesce(c.kept, true) "
        "ORDER BY d.cost, d.timestamp DESC NULLS LAST, d.n DESC) AS place "
        "FROM (SELECT n, hostname, timestamp, cost FROM documents "
        "JOIN costs USING (n) WHERE hostname IS NOT NULL) d "
        f"LEFT JOIN chosen c ON d.n = c.n) WHERE kept = false AND place <= {least} - staying"
    )
    result.added = number(database, "SELECT count(*) FROM more")
    database.execute("UPDATE chosen SET kept = true WHERE n IN (SELECT n FROM more)")
    cost = "SELECT sum(cost) FROM more JOIN costs USING (n)"
    found = database.execute(cost).fetchone()
    result.cost += (found[0] or 0) if found else 0
    within = any(getattr(key, "name", "") == "hostname" for key in relation.keys)
    dear = number(database, "SELECT count(*) FROM costs WHERE cost <> 1")
    if result.added and (dear or not within):
        result.proved = min(result.proved, result.components - 1)
    elif result.added:
        result.bound += result.added


def _count(database: Database, result: Covered) -> None:
    found = database.execute(
        "SELECT count(*) FILTER (stays), count(*) FILTER (NOT stays), "
        "coalesce(sum(size) FILTER (stays), 0), coalesce(sum(size) FILTER (NOT stays), 0) FROM "
        "(SELECT size, coalesce(c.kept, true) AS stays FROM documents d "
        "LEFT JOIN chosen c ON d.n = c.n)"
    ).fetchone()
    assert found is not None
    result.kept, result.covered, result.bytes_kept, result.bytes_covered = map(int, found)
    result.largest = number(
        database,
        "SELECT max(met) FROM (SELECT count(*) AS met FROM chosen GROUP BY component)",
    )


def _who_covers(database: Database, relation: Relation) -> None:
    """For every covered document the kept one that is most like it, of several the latest."""
    first = relation.content[:1]
    likeness = (
        measured(first[0], f"shared_{first[0].k}", f"of_a_{first[0].k}", f"of_b_{first[0].k}")
        if first
        else "1.0"
    )
    columns = "".join(f", l.of_a_{k}, l.of_b_{k}, l.shared_{k}" for k in relation.ks)
    database.execute(
        f"CREATE OR REPLACE TABLE coverers AS SELECT l.a AS n, l.b AS by{columns}, "
        "count(*) OVER (PARTITION BY l.a) AS several FROM live l "
        "JOIN chosen ca ON l.a = ca.n JOIN chosen cb ON l.b = cb.n JOIN documents d ON l.b = d.n "
        "WHERE NOT ca.kept AND cb.kept QUALIFY row_number() OVER (PARTITION BY l.a "
        f"ORDER BY {likeness} DESC, d.timestamp DESC NULLS LAST, l.b DESC) = 1"
    )


def price(database: Database, cost: str, asked: str) -> None:
    """Make ``costs`` of what keeping each document costs, in SQL; raises `BadInput`."""
    database.execute(
        f"CREATE OR REPLACE TABLE costs AS SELECT n, ({cost})::DOUBLE AS cost FROM documents d"
    )
    wrong = database.execute(
        "SELECT id, cost FROM costs JOIN documents USING (n) "
        "WHERE cost IS NULL OR NOT cost > 0 OR NOT isfinite(cost) ORDER BY n LIMIT 1"
    ).fetchone()
    if wrong is not None:
        told = "is not known" if wrong[1] is None else f"would be {wrong[1]:g}"
        raise BadInput(f"--cost {asked}: that of {wrong[0]} {told}, and it must be above 0")
