"""Components with very many pairs: reduced in DuckDB, or covered greedily from files."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from dedupindex.cover.set_cover import Solution, greedy
from dedupindex.runtime.duckdb import Database, number

REDUCED = 20_000  # pairs: components with more are reduced in DuckDB
MOST = 500_000  # pairs: components with more are covered from files


class FileSets(Mapping[int, set[int]]):
    """Sets, each of a document that it contains, in a file; memory has two numbers for each."""

    def __init__(
        self, stream: BinaryIO, documents: Iterable[int], rows: Iterable[tuple[int, int]]
    ) -> None:
        """`rows` are (document, member of its set), in order."""
        self._stream = stream
        self._places: dict[int, tuple[int, int]] = {document: (0, 0) for document in documents}
        offset = 0
        for document, group in groupby(rows, itemgetter(0)):
            members = array("q", (member for _, member in group))
            members.tofile(stream)
            self._places[document] = offset, len(members) * members.itemsize
            offset += len(members) * members.itemsize
        stream.flush()

    def __getitem__(self, document: int) -> set[int]:
        offset, size = self._places[document]
        return {document, *array("q", os.pread(self._stream.fileno(), size, offset))}

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def solve_from_files(
    component: int,
    costs: Mapping[int, float],
    by_covered: Iterable[Any],
    by_covering: Iterable[Any],
    home: Path,
) -> Solution:
    """Cover a component whose pairs come in the order of each side, from files in `home`."""
    with ExitStack() as stack:
        coverers, covered = (
            FileSets(stack.enter_context(TemporaryFile(dir=home)), costs, rows)
            for rows in (by_covered, by_covering)
        )
        kept, bound = greedy(coverers, covered, costs)
    return Solution(component, kept, sum(costs[document] for document in kept), bound, "greedy")


def reduce_large(database: Database) -> None:
    """Make ``edges`` and ``large`` from ``live``, ``labels`` and ``costs``."""
    database.execute(
        "CREATE OR REPLACE TABLE edges AS SELECT l.component, p.a, p.b FROM live p "
        "JOIN labels l ON p.a = l.n"
    )
    if _find_large(database, REDUCED):
        for condition in ("AND x.content = y.content", ""):
            _drop_replaceable(database, condition)
    _find_large(database, MOST)


def joining_pairs(database: Database) -> str:
    """Return SQL of mostly far fewer pairs that join the same documents as those of ``live``.

    Each document is joined to its largest neighbour, and these to each other.
    """
    database.execute(
        "CREATE OR REPLACE TABLE neighbours AS SELECT n, max(m) AS most FROM (SELECT a AS n, "
        "max(b) AS m FROM live GROUP BY a UNION ALL SELECT b AS n, max(a) AS m FROM live "
        "GROUP BY b) GROUP BY n"
    )
    database.execute("UPDATE neighbours SET most = n WHERE n > most")
    return (
        "SELECT n, most FROM neighbours WHERE n <> most UNION ALL SELECT DISTINCT x.most, y.most "
        "FROM live p JOIN neighbours x ON p.a = x.n JOIN neighbours y ON p.b = y.n "
        "WHERE x.most <> y.most"
    )


def _find_large(database: Database, most: int) -> int:
    database.execute(
        "CREATE OR REPLACE TABLE large AS SELECT component FROM edges GROUP BY component "
        f"HAVING count(*) > {most}"
    )
    return number(database, "SELECT count(*) FROM large")


def _drop_replaceable(database: Database, condition: str) -> None:
    """Remove the coverers of ``large`` that another one meeting the condition can replace.

    `place` orders all coverers, so that no two replace each other.
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
        f"JOIN covering y ON e.b = y.n WHERE y.cost <= x.cost AND y.place > x.place {condition} "
        "GROUP BY x.n, x.many) t JOIN covering o ON t.place = o.place"
    )
    database.execute(
        "CREATE OR REPLACE TABLE needless AS SELECT i.n FROM edges e JOIN instead i ON e.b = i.n "
        "LEFT JOIN (SELECT a, b FROM edges SEMI JOIN instead ON edges.b = instead.other) o "
        "ON o.a = e.a AND o.b = i.other WHERE e.a = i.other OR o.a IS NOT NULL "
        "GROUP BY i.n, i.many HAVING count(*) = i.many"
    )
    database.execute("DELETE FROM edges WHERE b IN (SELECT n FROM needless)")
