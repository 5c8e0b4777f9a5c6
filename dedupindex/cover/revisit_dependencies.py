"""Find the originals of the revisits that are kept: to delete one would lose a payload.

An original is identified by its place (from archives) or its URL and time (from a corpus). If
neither matches a document, say because a WARC file was renamed, all documents with the digest are
needed. Revisits that ``--where`` excludes are always kept.

``left_out(id, of_container, of_offset, of_url, of_digits, of_digest)``   the excluded revisits
``needed(n, by)``   the documents that are needed, each with the id of a revisit
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import orjson

from dedupindex.cover.document_lines import document
from dedupindex.cover.document_store import COLUMNS, MAX_LINE, earlier
from dedupindex.cover.load_documents import Line
from dedupindex.runtime.duckdb import Database, from_json

_OF = ("of_container", "of_offset", "of_url", "of_digits", "of_digest")
_NO_DOCUMENT = (1 << 31) - 1  # above the number of any document


def load(database: Database, left_out: Iterable[Line], before: Path | None, home: Path) -> None:
    """Make ``left_out`` from lines and the state of an earlier run."""
    spool, names = home / "left_out.json", ("id", *_OF)
    with open(spool, "wb") as stream:
        for where, line in left_out:
            row = document(line, where)
            stream.write(orjson.dumps({name: row.get(name) for name in names}) + b"\n")
    rows = from_json([spool], {name: COLUMNS[name] for name in names}, MAX_LINE)
    old = f"UNION SELECT * FROM {earlier(before, 'left_out')}" if before else ""
    database.execute(f"CREATE TABLE left_out AS SELECT DISTINCT * FROM {rows} {old}")
    spool.unlink()


def find(database: Database) -> None:
    """Make ``needed``. If a needed document is itself a revisit, its original is needed, too."""
    of = ", ".join(_OF)
    database.execute(
        "CREATE OR REPLACE TABLE revisits AS SELECT *, row_number() OVER () AS which FROM ("
        f"SELECT d.n AS revisit, i.id, coalesce(c.kept, true) AS kept, {of} FROM documents d "
        "JOIN ids i ON d.n = i.n LEFT JOIN chosen c ON d.n = c.n WHERE of_container IS NOT NULL "
        "OR of_url IS NOT NULL OR of_digest IS NOT NULL "
        f"UNION ALL SELECT NULL, id, true, {of} FROM left_out)"
    )
    database.execute(
        "CREATE OR REPLACE TABLE repeats AS SELECT d.n, r.* FROM revisits r JOIN documents d "
        'ON d.container = r.of_container AND d."offset" = r.of_offset'
    )
    unknown = "r.which NOT IN (SELECT which FROM repeats)"
    # the place may hold another capture than the revisit names: then both are needed
    mismatch = (
        "r.which NOT IN (SELECT x.which FROM repeats x JOIN documents o ON x.n = o.n "
        "WHERE o.url = x.of_url AND o.digits = x.of_digits)"
    )
    for on, when in (
        ("d.url = r.of_url AND d.digits = r.of_digits", f"(d.container IS NULL OR {mismatch})"),
        ("d.digest = r.of_digest", unknown),
    ):
        database.execute(
            f"INSERT INTO repeats SELECT d.n, r.* FROM revisits r JOIN documents d ON {on} "
            f"WHERE {when} AND d.n IS DISTINCT FROM r.revisit"
        )
    database.execute(
        "CREATE OR REPLACE TABLE needed AS WITH RECURSIVE reached(n) AS (SELECT n FROM repeats "
        "WHERE kept UNION SELECT r.n FROM repeats r JOIN reached ON r.revisit = reached.n) "
        f"SELECT n, arg_min(id, (coalesce(revisit, {_NO_DOCUMENT}), id)) AS by FROM repeats "
        "WHERE kept OR revisit IN (FROM reached) GROUP BY n"
    )
