"""Read the quality of documents from a table: CSV, JSON lines or Parquet.

It has a column ``quality``, a number, and ``id`` or else ``url``, which name documents as a result
does. A document that the table does not name keeps the quality that its line states.
"""

from __future__ import annotations

from pathlib import Path

from dedupindex.errors import BadInput, BadSource
from dedupindex.runtime.duckdb import Database, errors_as, literal, number, quoted

_READERS = {
    ".csv": "read_csv({}, header = true, all_varchar = true)",
    ".parquet": "read_parquet({})",
    ".jsonl": "read_json({}, format = 'newline_delimited')",
}
_READERS |= dict.fromkeys((".json", ".ndjson"), _READERS[".jsonl"])
_MOST_SHOWN = 100  # characters of a value in a message


def apply_quality(database: Database, table: Path) -> int:
    """Set ``quality`` of the documents that a table names; return their number.

    Raises `BadInput` if it lacks a column, names a document twice or has a quality that is no
    number, `BadSource` if it cannot be read.
    """
    kind = Path(table.name.removesuffix(".gz").removesuffix(".zst")).suffix
    if kind not in _READERS:
        known = ", ".join(_READERS)
        raise BadInput(f"--quality {table}: its name must end with {known}, or these and .gz, .zst")
    rows = _READERS[kind].format(quoted(literal(table)))
    with errors_as(BadSource):
        database.execute(f"CREATE TABLE rated AS SELECT * FROM {rows}")
    names = {row[0] for row in database.execute("DESCRIBE rated").fetchall()}
    key = next((name for name in ("id", "url") if name in names), "")
    if not key or "quality" not in names:
        raise BadInput(f"--quality {table} needs the columns quality, and id or url; it has "
                       f"{', '.join(sorted(names))}")  # fmt: skip
    database.execute(
        f"CREATE TABLE qualities AS SELECT {key}::VARCHAR AS key, quality::VARCHAR AS stated, "
        f"TRY_CAST(quality AS DOUBLE) AS quality FROM rated WHERE {key} IS NOT NULL "
        "AND quality IS NOT NULL"
    )
    _reject(database, table, "quality IS NULL OR NOT isfinite(quality)", "is no number")
    twice = "key IN (SELECT key FROM qualities GROUP BY key HAVING count(DISTINCT quality) > 1)"
    _reject(database, table, twice, "is one of several")
    database.execute(
        "UPDATE documents SET quality = q.quality FROM (SELECT key, any_value(quality) AS quality "
        f"FROM qualities GROUP BY key) q WHERE documents.{key} = q.key"
    )
    named = f"SELECT count(*) FROM documents SEMI JOIN qualities ON documents.{key} = key"
    count = number(database, named)
    for made in ("rated", "qualities"):
        database.execute(f"DROP TABLE {made}")
    return count


def _reject(database: Database, table: Path, wrong: str, why: str) -> None:
    """Raise `BadInput` for the first row that meets a condition."""
    row = database.execute(
        f"SELECT key, stated FROM qualities WHERE {wrong} ORDER BY key, stated LIMIT 1"
    ).fetchone()
    if row is not None:
        key, stated = (text[:_MOST_SHOWN] for text in row)
        raise BadInput(f"--quality {table}: the quality {stated} of {key} {why}")
