"""Components of very many pairs, made smaller in DuckDB before Python sees them.

A document that covers nothing that a cheaper or equal one does not cover as well is not needed as a
coverer: some least cover does without it. For each document one other is tried, the one that covers
most of those that cover it, first among documents of the same terms: of a thousand captures of one
text that each cover the earlier ones only the latest is left as a coverer. All that is large may go
to disk.

``edges(component, a, b)``   the pairs that decide a least cover
``large(component)``         components of which still too many are left for memory
"""

from __future__ import annotations

from dedupindex.runtime.duckdb import Database, number

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
