"""Turn pairs into components, components into covers, and name the coverer of each document.

``chosen(n, component, kept)``         documents of components that have several
``coverers(n, by, …, several)``        of each covered document the most similar one that is kept,
                                       the sizes of `pairs`, and how many kept ones cover it
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.cover import document_store, host_minimum
from dedupindex.cover.components import Labels
from dedupindex.cover.document_store import fetch
from dedupindex.cover.pairs import measure, satisfied
from dedupindex.cover.reduce import joining_pairs, reduce_large, solve_from_files
from dedupindex.cover.relation import Relation
from dedupindex.cover.set_cover import CoverTask, Solution, solve
from dedupindex.errors import BadInput
from dedupindex.runtime.duckdb import Database, number
from dedupindex.runtime.spark import AT_ONCE, Cluster

# --- executors: this process, several processes, or Spark -----------------------------------------

CHUNK = 20_000  # pairs of components that are solved as one task
_QUEUED = 4  # such tasks for each process

Join = Callable[[Iterator[tuple[int, int]], int], Labels]
"""Find the components of pairs of documents below a number."""
Solve = Callable[[Iterator[list[CoverTask]]], Iterator[list[Solution]]]
"""Cover components; the solutions are in the order of the tasks."""


@dataclass(frozen=True)
class CoverExecution:
    """How and where covers are computed."""

    home: Path
    join: Join
    solve: Solve
    per_host: int = 0  # documents to keep of each host, if it has that many
    on_progress: OnProgress = lambda seen: None


def solve_all(seconds: float, tasks: list[CoverTask]) -> list[Solution]:
    return [solve(task, seconds) for task in tasks]


def local_solver(pool: Executor | None, jobs: int, seconds: float) -> Solve:
    """Solve in the processes of a pool, or in this one."""
    work = partial(solve_all, seconds)
    if pool is None:
        return partial(map, work)
    return lambda tasks: map_ahead(pool, work, tasks, _QUEUED * jobs, _is_large)


def spark_solver(cluster: Cluster, seconds: float) -> Solve:
    """Solve on Spark."""

    def run(tasks: Iterator[list[CoverTask]]) -> Iterator[list[Solution]]:
        for large, group in groupby(tasks, _is_large):
            while batch := list(islice(group, 1 if large else AT_ONCE * cluster.cores)):
                yield list(cluster.rows(partial(solve_all, seconds), batch))

    return run


def _is_large(tasks: list[CoverTask]) -> bool:
    """Return whether memory should hold no other tasks beside these."""
    return sum(len(task.pairs) for task in tasks) > 2 * CHUNK


def map_ahead(
    pool: Executor,
    work: Callable[[Any], Any],
    tasks: Iterator[Any],
    most: int,
    is_large: Callable[[Any], bool] = lambda task: False,
) -> Iterator[Any]:
    """Yield ``work(task)`` in order, submitting at most `most` tasks at once, large ones alone."""
    waiting: deque[Future[Any]] = deque()
    for task in tasks:
        large = is_large(task)
        while waiting and large:
            yield waiting.popleft().result()
        waiting.append(pool.submit(work, task))
        while len(waiting) >= (1 if large else most):
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


# --- covers ---------------------------------------------------------------------------------------


@dataclass
class CoverCounts:
    pairs: int = 0
    components: int = 0  # with at least two documents
    largest: int = 0  # documents of the largest component
    kept: int = 0  # documents, including those in no pair
    covered: int = 0
    bytes_kept: int = 0
    bytes_covered: int = 0
    how: Counter[str] = field(default_factory=Counter)  # components by `Solution.how`
    proved: int = 0  # components whose cover is proved to be minimal
    cost: float = 0  # of the documents kept in components
    bound: float = 0  # lower bound of the cost of any cover
    added: int = 0  # documents kept only for the minimum of their host

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "how": dict(self.how), "minimal": self.minimal}

    @property
    def minimal(self) -> bool:
        return self.proved == self.components


def cover(database: Database, relation: Relation, execution: CoverExecution) -> CoverCounts:
    """Make ``chosen`` and ``coverers`` of the pairs that meet a relation."""
    counts, home = CoverCounts(), execution.home
    # pairs were searched with the lowest of several thresholds
    database.execute(
        "CREATE OR REPLACE TABLE live AS SELECT * FROM pairs WHERE "
        + " AND ".join(["true", *(satisfied(one, *_shared(one.k)) for one in relation.content)])
    )
    counts.pairs = number(database, "SELECT count(*) FROM live")
    documents = number(database, "SELECT max(n) + 1 FROM documents")
    labels = execution.join(fetch(database, joining_pairs(database)), documents)
    lines = (f"{document}\t{component}\n" for document, component in labels)
    document_store.fill(database, "labels", "n INTEGER, component INTEGER", home / "labels", lines)
    reduce_large(database)
    solutions = chain(execution.solve(_chunks(_tasks(database))), _solve_large(database, execution))
    expected = number(database, "SELECT count(DISTINCT component) FROM labels")
    kept = _count_solutions(solutions, counts, expected, execution.on_progress)
    solved = "n INTEGER, bound DOUBLE, minimal BOOLEAN"  # both of the component
    document_store.fill(database, "solved", solved, home / "solved", kept)
    database.execute(
        "CREATE OR REPLACE TABLE chosen AS SELECT l.n, l.component, s.n IS NOT NULL AS kept "
        "FROM labels l LEFT JOIN solved s ON l.n = s.n"
    )
    if execution.per_host:
        _keep_per_host(database, execution, documents, counts)
    _count_documents(database, counts)
    _name_coverers(database, relation)
    return counts


def _shared(k: int) -> tuple[str, str, str]:
    return f"shared_{k}", f"of_a_{k}", f"of_b_{k}"


def _tasks(database: Database) -> Iterator[CoverTask]:
    """Yield all components that are solved in memory."""
    costs = fetch(
        database,
        "SELECT l.component, l.n, d.cost FROM labels l JOIN costs d ON l.n = d.n "
        "ANTI JOIN large g ON l.component = g.component ORDER BY l.component, l.n",
    )
    pairs = fetch(
        database,
        "SELECT component, a, b FROM edges ANTI JOIN large USING (component) "
        "ORDER BY component, a, b",
    )
    by_component = itemgetter(0)
    for (component, documents), (_, edges) in zip(
        groupby(costs, by_component), groupby(pairs, by_component), strict=True
    ):
        yield CoverTask(
            component,
            {document: cost for _, document, cost in documents},
            [(covered, covering) for _, covered, covering in edges],
        )


def _solve_large(database: Database, execution: CoverExecution) -> Iterator[list[Solution]]:
    """Cover the components that are too large for memory."""
    for (component,) in database.execute("FROM large ORDER BY component").fetchall():
        where = f"WHERE component = {component}"
        costs = fetch(
            database, f"SELECT n, cost FROM labels JOIN costs USING (n) {where} ORDER BY n"
        )
        by_covered, by_covering = (
            fetch(database, f"SELECT {columns} FROM edges {where} ORDER BY {columns}")
            for columns in ("a, b", "b, a")
        )
        yield [solve_from_files(component, dict(costs), by_covered, by_covering, execution.home)]


def _chunks(tasks: Iterator[CoverTask]) -> Iterator[list[CoverTask]]:
    chunk: list[CoverTask] = []
    size = 0
    for task in tasks:
        chunk.append(task)
        size += len(task.pairs)
        if size >= CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _count_solutions(
    solutions: Iterator[list[Solution]], counts: CoverCounts, expected: int, on_progress: OnProgress
) -> Iterator[str]:
    """Count the solutions, and yield lines of ``solved``: the documents that they keep."""
    for batch in solutions:
        on_progress(ProgressUpdate("covering components", part=counts.components / expected))
        for solution in batch:
            counts.components += 1
            counts.how[solution.how] += 1
            counts.proved += solution.minimal
            counts.cost += solution.cost
            counts.bound += solution.bound
            facts = f"{solution.bound!r}\t{solution.minimal}"
            yield "".join(f"{document}\t{facts}\n" for document in solution.kept)


def _keep_per_host(
    database: Database, execution: CoverExecution, documents: int, counts: CoverCounts
) -> None:
    """Keep the minimum of each host, and count what that costs."""
    kept = "SELECT count(*) FILTER (kept) FROM chosen"
    before, home = number(database, kept), execution.home
    groups = host_minimum.fill_up(database, execution.per_host, execution.join, documents, home)
    small = host_minimum.tasks(database, groups, home)
    host_minimum.improve(database, groups, execution.solve(_chunks(small)), home)
    counts.added = number(database, kept) - before
    for group in groups.values():
        counts.cost += group.cost - group.before
        counts.bound += group.bound - group.least
        counts.proved += (group.components if group.minimal else 0) - group.proved


def _count_documents(database: Database, counts: CoverCounts) -> None:
    row = database.execute(
        "SELECT count(*) FILTER (kept), count(*) FILTER (NOT kept), "
        "coalesce(sum(size) FILTER (kept), 0), coalesce(sum(size) FILTER (NOT kept), 0) FROM "
        "(SELECT size, coalesce(c.kept, true) AS kept FROM documents d "
        "LEFT JOIN chosen c ON d.n = c.n)"
    ).fetchone()
    assert row is not None
    counts.kept, counts.covered, counts.bytes_kept, counts.bytes_covered = map(int, row)
    counts.largest = number(
        database,
        "SELECT max(size) FROM (SELECT count(*) AS size FROM chosen GROUP BY component)",
    )


def _name_coverers(database: Database, relation: Relation) -> None:
    """Make ``coverers``: of equally similar documents the latest covers."""
    likeness = "1.0"
    for first in relation.content[:1]:
        likeness = measure(first, *_shared(first.k))
    columns = "".join(f", l.of_a_{k}, l.of_b_{k}, l.shared_{k}" for k in relation.ks)
    database.execute(
        f"CREATE OR REPLACE TABLE coverers AS SELECT l.a AS n, l.b AS by{columns}, "
        "count(*) OVER (PARTITION BY l.a) AS several FROM live l "
        "JOIN chosen ca ON l.a = ca.n JOIN chosen cb ON l.b = cb.n JOIN documents d ON l.b = d.n "
        "WHERE NOT ca.kept AND cb.kept QUALIFY row_number() OVER (PARTITION BY l.a "
        f"ORDER BY {likeness} DESC, d.timestamp DESC NULLS LAST, l.b DESC) = 1"
    )


def compute_costs(database: Database, cost: str, option: str) -> None:
    """Make ``costs``, the cost of keeping each document, by SQL; raises `BadInput`."""
    database.execute(
        f"CREATE OR REPLACE TABLE costs AS SELECT n, ({cost})::DOUBLE AS cost FROM documents d"
    )
    wrong = database.execute(
        "SELECT id, cost FROM costs JOIN documents USING (n) "
        "WHERE cost IS NULL OR NOT cost > 0 OR NOT isfinite(cost) ORDER BY n LIMIT 1"
    ).fetchone()
    if wrong is not None:
        value = "is not known" if wrong[1] is None else f"would be {wrong[1]:g}"
        raise BadInput(f"--cost {option}: that of {wrong[0]} {value}, and it must be above 0")
