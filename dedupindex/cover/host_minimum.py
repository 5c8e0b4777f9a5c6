"""Keep a minimum of documents of each host, and find or bound the least cost of such covers.

Hosts are filled up with their cheapest covered documents. Components that a host joins are a group;
a group whose cost is above its lower bound is solved once more as a whole, if it is small enough.

``grouped(n, component, hostname, cost, kept, was, forced, own)``   the documents of the groups that
were filled up: `was` kept without the minimum, `forced` to be kept in any cover, `own` group
``hosts_short(hostname, needed)``   how many documents a host needs beside those always kept
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path

from dedupindex.cover.components import Labels
from dedupindex.cover.document_store import fetch, fill
from dedupindex.cover.exact import SPAN
from dedupindex.cover.set_cover import MOST, NOISE, SLACK, CoverTask, Solution, settled
from dedupindex.runtime.duckdb import Database


@dataclass
class HostGroup:
    """Components joined by hosts: the cost of what is kept, and a lower bound of any such cover."""

    components: int
    proved: int  # components whose covers were minimal without the minimum
    before: float  # the cost without the minimum
    least: float  # the lower bound without the minimum
    cost: float
    bound: float

    @property
    def minimal(self) -> bool:
        return self.cost <= self.bound


Join = Callable[[Iterator[tuple[int, int]], int], Labels]


def fill_up(
    database: Database, minimum: int, join: Join, documents: int, home: Path
) -> dict[int, HostGroup]:
    """Keep the cheapest covered documents of hosts that lack some; return the groups of these."""
    database.execute(
        "CREATE OR REPLACE TABLE more AS SELECT n FROM (SELECT d.n, kept, hostname, "
        "count(*) FILTER (coalesce(c.kept, true)) OVER (PARTITION BY hostname) AS count, "
        "row_number() OVER (PARTITION BY hostname, coalesce(c.kept, true) "
        "ORDER BY d.cost, d.timestamp DESC NULLS LAST, d.n DESC) AS place "
        "FROM (SELECT n, hostname, timestamp, cost FROM documents "
        "JOIN costs USING (n) WHERE hostname IS NOT NULL) d "
        f"LEFT JOIN chosen c ON d.n = c.n) WHERE kept = false AND place <= {minimum} - count"
    )
    database.execute("UPDATE chosen SET kept = true WHERE n IN (SELECT n FROM more)")
    database.execute(
        "CREATE OR REPLACE TABLE forced AS SELECT n FROM chosen ANTI JOIN live ON n = live.a"
    )
    database.execute(
        f"CREATE OR REPLACE TABLE hosts_short AS SELECT hostname, least({minimum}, count(*)) - "
        "count(*) FILTER (c.n IS NULL OR f.n IS NOT NULL) AS needed FROM documents d "
        "LEFT JOIN chosen c ON d.n = c.n LEFT JOIN forced f ON d.n = f.n "
        "WHERE hostname IS NOT NULL GROUP BY hostname HAVING needed > 0"
    )
    _group(database, join, documents, home)
    return {number: HostGroup(*row) for number, *row in database.execute(_GROUPS).fetchall()}


def _group(database: Database, join: Join, documents: int, home: Path) -> None:
    """Make ``grouped``."""
    joining = fetch(
        database,
        "SELECT n, component FROM chosen WHERE n <> component UNION ALL "
        "SELECT n, max(n) OVER (PARTITION BY hostname) FROM chosen JOIN documents USING (n) "
        "SEMI JOIN hosts_short USING (hostname)",
    )
    lines = (f"{document}\t{group}\n" for document, group in join(joining, documents))
    fill(database, "joined", "n INTEGER, own INTEGER", home / "joined", lines)
    database.execute(
        "CREATE OR REPLACE TABLE grouped AS SELECT c.n, c.component, d.hostname, k.cost, c.kept, "
        "c.kept AND m.n IS NULL AS was, f.n IS NOT NULL AS forced, j.own FROM chosen c "
        "JOIN joined j ON c.n = j.n JOIN documents d ON c.n = d.n JOIN costs k ON c.n = k.n "
        "LEFT JOIN more m ON c.n = m.n LEFT JOIN forced f ON c.n = f.n "
        "WHERE j.own IN (SELECT own FROM joined SEMI JOIN more ON joined.n = more.n)"
    )


_GROUPS = """
WITH parts AS (
    SELECT own, component, any_value(s.bound) AS bound, any_value(s.minimal) AS minimal
    FROM grouped g JOIN solved s ON g.n = s.n GROUP BY own, component),
covers AS (
    SELECT own, count(*) AS components, count(*) FILTER (minimal) AS proved, sum(bound) AS least
    FROM parts GROUP BY own),
costs_of AS (
    SELECT own, sum(cost) FILTER (was) AS before, sum(cost) FILTER (kept) AS cost,
    coalesce(sum(cost) FILTER (forced), 0) AS forced FROM grouped GROUP BY own),
cheapest AS (
    SELECT own, sum(cost) AS needed FROM (
        SELECT g.own, g.cost, h.needed,
        row_number() OVER (PARTITION BY g.hostname ORDER BY g.cost) AS place
        FROM grouped g JOIN hosts_short h ON g.hostname = h.hostname WHERE NOT g.forced)
    WHERE place <= needed GROUP BY own)
SELECT own, components, proved, before, least, cost, greatest(least, forced + needed) AS bound
FROM covers JOIN costs_of USING (own) JOIN cheapest USING (own) ORDER BY own
"""


def tasks(database: Database, groups: dict[int, HostGroup], home: Path) -> Iterator[CoverTask]:
    """Yield the groups that are not known to be minimal and are small enough for HiGHS."""
    for group in groups.values():
        group.bound = settled(group.cost, group.bound, NOISE)
    lines = (f"{number}\n" for number, group in groups.items() if not group.minimal)
    fill(database, "unproved", "own INTEGER", home / "unproved", lines)
    database.execute(
        "CREATE OR REPLACE TABLE small AS SELECT g.* FROM grouped g SEMI JOIN ("
        "SELECT own FROM grouped SEMI JOIN unproved USING (own) LEFT JOIN (SELECT a AS n, "
        "count(*) AS pairs FROM live GROUP BY a) USING (n) GROUP BY own HAVING "
        f"count(*) + coalesce(sum(pairs), 0) <= {MOST} AND max(cost) <= {SPAN} * min(cost)) "
        "USING (own)"
    )
    costs = fetch(database, "SELECT own, n, cost FROM small ORDER BY own, n")
    pairs = fetch(
        database, "SELECT own, a, b FROM live JOIN small ON a = small.n ORDER BY own, a, b"
    )
    hosts = fetch(
        database,
        "SELECT own, needed, n, hostname FROM small JOIN hosts_short USING (hostname) "
        "WHERE NOT forced ORDER BY own, hostname, n",
    )
    by_group = itemgetter(0)
    for (number, documents), (_, edges), (_, candidates) in zip(
        groupby(costs, by_group), groupby(pairs, by_group), groupby(hosts, by_group), strict=True
    ):
        yield CoverTask(
            number,
            {document: cost for _, document, cost in documents},
            [(covered, covering) for _, covered, covering in edges],
            [
                (needed, [document for _, _, document, _ in of_host])
                for (needed, _), of_host in groupby(candidates, itemgetter(1, 3))
            ],
        )


def improve(
    database: Database,
    groups: dict[int, HostGroup],
    solutions: Iterable[list[Solution]],
    home: Path,
) -> None:
    """Take the solutions that cost less than what is kept, and their lower bounds."""

    def cheaper() -> Iterator[str]:
        for solution in chain.from_iterable(solutions):
            group = groups[solution.component]
            group.bound = max(group.bound, solution.bound)
            if solution.cost < group.cost:
                group.cost = solution.cost
                yield "".join(f"{n}\t{solution.component}\n" for n in solution.kept)
            group.bound = settled(group.cost, group.bound, SLACK)

    fill(database, "cheaper", "n INTEGER, own INTEGER", home / "cheaper", cheaper())
    database.execute(
        "UPDATE chosen SET kept = n IN (SELECT n FROM cheaper) WHERE n IN "
        "(SELECT n FROM grouped SEMI JOIN cheaper USING (own))"
    )
