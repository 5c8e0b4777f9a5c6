"""Two manifests beside each other: which captures of one the other does not have."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from dedupindex.post_crawl.manifest.parquet import Manifest
from dedupindex.runtime.duckdb import Database, quoted, working

SAME_CAPTURE = ("url", "moment", "strong", "length", "status", "coding", "content_type")
"""Columns that a conversion leaves as they are."""
SAME_RECORD = (*SAME_CAPTURE, "stored", "record_id", "date", "digest", "name")
"""Columns of a record that was copied as the bytes it is, its file among them."""
_NAMED = 20  # captures of a difference; more are only counted


class MissingCaptures(NamedTuple):
    """Captures that one manifest has and the other has not."""

    number: int
    named: list[tuple[str, str]]  # URL and date of the first


class ManifestDifference(NamedTuple):
    """What two manifests do not have in common."""

    gone: MissingCaptures  # only before
    new: MissingCaptures  # only after


def compare(
    before: Manifest, after: Manifest, columns: tuple[str, ...], beside: Path, memory: str = "1GB"
) -> ManifestDifference:
    """Compare all captures by some columns, out of core in a directory below `beside`."""
    with working(beside, memory, 0) as (database, _):
        for name, manifest in (("before", before), ("after", after)):
            containers = quoted(f"{manifest.path}/containers.parquet")
            database.execute(f"""
                CREATE VIEW {name} AS SELECT l.*, c.name
                FROM read_parquet({quoted(manifest.parquet)}) AS l
                JOIN read_parquet({containers}) AS c ON c.number = l.container""")
        chosen = ", ".join(f'"{column}"' for column in columns)
        return ManifestDifference(
            _missing(database, "before", "after", chosen),
            _missing(database, "after", "before", chosen),
        )


def _missing(database: Database, mine: str, theirs: str, columns: str) -> MissingCaptures:
    """Those that `mine` has more often than `theirs`."""
    database.execute(f"""
        CREATE OR REPLACE TABLE missing AS
        SELECT any_value(u) AS url, any_value(d) AS date, sum(mine) AS n
        FROM (SELECT {columns}, url AS u, date AS d, 1 AS mine FROM {mine}
              UNION ALL SELECT {columns}, url AS u, date AS d, -1 FROM {theirs})
        GROUP BY {columns} HAVING sum(mine) > 0""")
    row = database.execute("SELECT sum(n) FROM missing").fetchone()
    named = database.execute(
        f"SELECT url, date FROM missing ORDER BY url, date LIMIT {_NAMED}"
    ).fetchall()
    return MissingCaptures(int(row[0] or 0) if row else 0, named)
