"""A component that is too large for memory: its pairs in files, covered greedily from there.

In memory there are a few numbers for each document, and what one document covers.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO

from dedupindex.cover.set_cover import Solution, greedy
from dedupindex.runtime.duckdb import Database, number


class Sets(Mapping[int, set[int]]):
    """Of each document a set of documents with itself, in a file."""

    def __init__(
        self, stream: BinaryIO, documents: Iterable[int], rows: Iterable[tuple[int, int]]
    ) -> None:
        """`rows` come in order."""
        self._stream = stream
        self._places: dict[int, tuple[int, int]] = {document: (0, 0) for document in documents}
        at = 0
        for document, some in groupby(rows, itemgetter(0)):
            found = array("q", (one for _, one in some))
            found.tofile(stream)
            self._places[document] = at, len(found) * found.itemsize
            at += len(found) * found.itemsize
        stream.flush()

    def __getitem__(self, document: int) -> set[int]:
        at, size = self._places[document]
        return {document, *array("q", os.pread(self._stream.fileno(), size, at))}

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class Spilled:
    """As `solving.Instance`, which nothing is taken out of."""

    def __init__(self, coverers: Sets, covered: Sets) -> None:
        self.coverers: Mapping[int, set[int]] = coverers
        self.covered: Mapping[int, set[int]] = covered


def solve(
    component: int,
    costs: Mapping[int, float],
    by_covered: Iterable[Any],
    by_covering: Iterable[Any],
    home: Path,
) -> Solution:
    """Cover a component, of which the pairs come each way, in order."""
    with ExitStack() as stack:
        coverers, covered = (
            Sets(stack.enter_context(_nameless(home / name)), costs, rows)
            for name, rows in (("coverers", by_covered), ("covered", by_covering))
        )
        kept, bound = greedy(Spilled(coverers, covered), costs)
    return Solution(component, kept, sum(costs[one] for one in kept), bound, "greedy")


def _nameless(path: Path) -> BinaryIO:
    """A file that is gone once it is closed."""
    stream = open(path, "w+b")  # noqa: SIM115 (the caller closes it)
    path.unlink()
    return stream


# Components of very many pairs, made smaller in DuckDB before Python sees them.

THINNED = 20_000  # pairs of a component that is made smaller here
MOST = 500_000  # pairs of one that is solved in memory


def thin(database: Database) -> None:
    """Make ``edges`` and ``large`` of ``live``, ``labels`` and ``costs``."""
    database.execute(
        "CREATE OR REPLACE TABLE edges AS SELECT l.component, p.a, p.b FROM live p "
        "JOIN labels l ON p.a = l.n"
    )
    if _large(database, THINNED):
        for same in ("AND x.content = y.content", ""):
            _drop(database, same)
    _large(database, MOST)


def joints(database: Database) -> str:
    """SQL for pairs that join the same documents as those of ``live``, mostly far fewer.

    Each document is joined to the largest beside it, then these to each other.
    """
    database.execute(
        "CREATE OR REPLACE TABLE beside AS SELECT n, max(m) AS most FROM (SELECT a AS n, "
        "max(b) AS m FROM live GROUP BY a UNION ALL SELECT b AS n, max(a) AS m FROM live "
        "GROUP BY b) GROUP BY n"
    )
    database.execute("UPDATE beside SET most = n WHERE n > most")
    return (
        "SELECT n, most FROM beside WHERE n <> most UNION ALL SELECT DISTINCT x.most, y.most "
        "FROM live p JOIN beside x ON p.a = x.n JOIN beside y ON p.b = y.n WHERE x.most <> y.most"
    )


def _large(database: Database, most: int) -> int:
    database.execute(
        "CREATE OR REPLACE TABLE large AS SELECT component FROM edges GROUP BY component "
        f"HAVING count(*) > {most}"
    )
    return number(database, "SELECT count(*) FROM large")


def _drop(database: Database, same: str) -> None:
    """Take out coverers of ``large`` that another stands for, of the same terms or of any.

    `place` puts in one order what may stand for what, so that no two stand for each other.
    """
    database.execute(
        "CREATE OR REPLACE TABLE covering AS SELECT b AS n, many, d.content, c.cost, "
        "row_number() OVER (ORDER BY many, c.cost DESC, b) AS place FROM (SELECT b, count(*) AS "
        "many FROM edges SEMI JOIN large USING (component) GROUP BY b) JOIN documents d ON d.n = b "
        "JOIN costs c ON c.n = b"
    )
    database.execute(
        "CREATE OR REPLACE TABLE instead AS SELECT t.n, t.many, o.n AS other FROM (SELECT x.n, "
        "x.many, max(y.place) AS place FROM edges e JOIN covering x ON e.a = x.n "
        f"JOIN covering y ON e.b = y.n WHERE y.cost <= x.cost AND y.place > x.place {same} "
        "GROUP BY x.n, x.many) t JOIN covering o ON t.place = o.place"
    )
    database.execute(
        "CREATE OR REPLACE TABLE needless AS SELECT i.n FROM edges e JOIN instead i ON e.b = i.n "
        "LEFT JOIN (SELECT a, b FROM edges SEMI JOIN instead ON edges.b = instead.other) o "
        "ON o.a = e.a AND o.b = i.other WHERE e.a = i.other OR o.a IS NOT NULL "
        "GROUP BY i.n, i.many HAVING count(*) = i.many"
    )
    database.execute("DELETE FROM edges WHERE b IN (SELECT n FROM needless)")
