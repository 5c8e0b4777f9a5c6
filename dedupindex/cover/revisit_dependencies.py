"""What revisits that stay repeat: who deletes such a document deletes their payload.

An archive tells the place of that payload, lines of a corpus say which capture it is, by URL and
time. Where neither leads to a document, as where a CDX names a file that has another name now, all
that have its digest are needed. Revisits that ``--where`` leaves out stay in any case.

``left_out(id, of_container, of_offset, of_url, of_digits, of_digest)``   these
``needed(n, by)``   documents that are needed, each with the id of a revisit
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import orjson

from dedupindex.cover.document_lines import document
from dedupindex.cover.document_store import COLUMNS, LONGEST, earlier
from dedupindex.cover.load_documents import Line, row_of
from dedupindex.runtime.duckdb import Database, from_json

_OF = ("of_container", "of_offset", "of_url", "of_digits", "of_digest")
_LAST = (1 << 31) - 1  # above all numbers of documents


def load(database: Database, left_out: Iterable[Line], before: Path | None, home: Path) -> None:
    """Make ``left_out`` of lines, and of the state of an earlier run."""
    spool, names = home / "left_out.json", ("id", *_OF)
    with open(spool, "wb") as stream:
        for where, line in left_out:
            row = row_of(0, document(line, where), "")
            stream.write(orjson.dumps({name: row[name] for name in names}) + b"\n")
    rows = from_json([spool], {name: COLUMNS[name] for name in names}, LONGEST)
    old = f"UNION SELECT * FROM {earlier(before, 'left_out')}" if before else ""
    database.execute(f"CREATE TABLE left_out AS SELECT DISTINCT * FROM {rows} {old}")
    spool.unlink()


def find(database: Database) -> None:
    """Make ``needed``, once it is known what stays.

    What is needed is not deleted, and if it is a revisit itself, its own payload is needed, too.
    """
    of = ", ".join(_OF)
    database.execute(
        "CREATE OR REPLACE TABLE revisits AS SELECT *, row_number() OVER () AS which FROM ("
        f"SELECT d.n AS revisit, i.id, coalesce(c.kept, true) AS stays, {of} FROM documents d "
        "JOIN ids i ON d.n = i.n LEFT JOIN chosen c ON d.n = c.n WHERE of_container IS NOT NULL "
        f"OR of_url IS NOT NULL OR of_digest IS NOT NULL "
        f"UNION ALL SELECT NULL, id, true, {of} FROM left_out)"
    )
    database.execute(
        "CREATE OR REPLACE TABLE repeats AS SELECT d.n, r.* FROM revisits r JOIN documents d "
        'ON d.container = r.of_container AND d."offset" = r.of_offset'
    )
    unknown = "r.which NOT IN (SELECT which FROM repeats)"
    # what is read for a revisit may be another capture than it names: both are needed then
    unmet = (
        "r.which NOT IN (SELECT x.which FROM repeats x JOIN documents o ON x.n = o.n "
        "WHERE o.url = x.of_url AND o.digits = x.of_digits)"
    )
    for on, when in (
        ("d.url = r.of_url AND d.digits = r.of_digits", f"(d.container IS NULL OR {unmet})"),
        ("d.digest = r.of_digest", unknown),
    ):
        database.execute(
            f"INSERT INTO repeats SELECT d.n, r.* FROM revisits r JOIN documents d ON {on} "
            f"WHERE {when} AND d.n IS DISTINCT FROM r.revisit"
        )
    database.execute(
        "CREATE OR REPLACE TABLE needed AS WITH RECURSIVE reached(n) AS (SELECT n FROM repeats "
        "WHERE stays UNION SELECT r.n FROM repeats r JOIN reached ON r.revisit = reached.n) "
        f"SELECT n, arg_min(id, (coalesce(revisit, {_LAST}), id)) AS by FROM repeats "
        "WHERE stays OR revisit IN (FROM reached) GROUP BY n"
    )
