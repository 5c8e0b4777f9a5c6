"""Write the results: a line of JSON for each document, and a CSV list of the covered ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from dedupindex.corpus.output import compressed
from dedupindex.cover import revisit_dependencies
from dedupindex.cover.covering import CoverCounts
from dedupindex.cover.document_store import fetch
from dedupindex.cover.relation import Relation
from dedupindex.runtime.duckdb import Database
from dedupindex.runtime.files import atomic_file
from dedupindex.runtime.report_table import ReportColumn, Shown, Table, Unit, exact_percent
from dedupindex.runtime.tables import csv_lines

_IDS = (  # an id that several documents have gets a number
    "SELECT n, CASE WHEN place = 1 THEN id ELSE id || '#' || place END AS id FROM (SELECT n, id, "
    "row_number() OVER (PARTITION BY id ORDER BY n) AS place FROM documents)"
)
_PLACE = ("container", "offset", "length")
LISTED = ("id", "url", "timestamp", "bytes", "container", "offset", "length", "covered_by")


def rows(database: Database, relation: Relation) -> Iterator[dict[str, Any]]:
    """Yield all documents, in the order of the input."""
    shared = shared_columns(relation)
    database.execute(f"CREATE OR REPLACE TABLE ids AS {_IDS}")
    revisit_dependencies.find(database)
    query = (
        'SELECT d.n, i.id, d.url, d.digits, d.size, d.container, d."offset", d.length, '
        f"coalesce(c.component, d.n), coalesce(c.kept, true), b.id, f.by, k.several{shared} "
        "FROM documents d LEFT JOIN chosen c ON d.n = c.n LEFT JOIN coverers k ON d.n = k.n "
        "LEFT JOIN ids i ON d.n = i.n LEFT JOIN ids b ON k.by = b.n "
        "LEFT JOIN needed f ON d.n = f.n ORDER BY d.n"
    )
    for row in fetch(database, query):
        yield _row(row, relation)


def shared_columns(relation: Relation) -> str:
    """Return SQL of the columns of ``coverers`` that `why` takes."""
    return "".join(f", k.of_a_{k}, k.of_b_{k}, k.shared_{k}" for k in relation.ks)


def _row(row: Sequence[Any], relation: Relation) -> dict[str, Any]:
    _, name, url, digits, size, *place, component, kept, by, revisit, coverers = row[:13]
    line = {
        "id": name,
        "url": url,
        "timestamp": digits,
        "bytes": size,
        "component": component,
        "kept": kept,
        "covered_by": by,
    }
    if by is not None:
        line["covered_by_others"] = coverers - 1
        line["why"] = dict(why(relation, row[13:]))
    if revisit is not None:
        line["needed_by"] = revisit
    line |= {key: part for key, part in zip(_PLACE, place, strict=True) if part is not None}
    return line


def why(relation: Relation, shared: Sequence[int]) -> Iterator[tuple[str, Any]]:
    """Yield the measures of a pair, and for each k the shingles of a, of b and in common."""
    counts = {k: shared[3 * place : 3 * place + 3] for place, k in enumerate(relation.ks)}
    for constraint in relation.content:
        of_a, of_b, both = counts[constraint.k]
        yield constraint.name, round(float(constraint.value(both, of_a, of_b)), 4)
    for k, sizes in counts.items():
        yield f"shingles(k={k})", list(sizes)


def write(database: Database, relation: Relation, path: Path) -> None:
    """Write all lines, compressed if the name ends with ``.gz`` or ``.zst``, or nothing at all."""
    with atomic_file(path) as stream, compressed(stream, path.name) as add:
        for row in rows(database, relation):
            add(orjson.dumps(row) + b"\n")


def write_list(database: Database, relation: Relation, path: Path) -> tuple[int, int]:
    """Write the covered documents that can be deleted as CSV, compressed like `write`.

    The originals of revisits that are kept are left out. Returns how many documents are listed, and
    how many are left out.
    """
    counts = [0, 0]

    def covered() -> Iterator[dict[str, Any]]:
        for row in rows(database, relation):
            if not row["kept"]:
                counts["needed_by" in row] += 1
                if "needed_by" not in row:
                    yield {name: row.get(name) for name in LISTED}

    with atomic_file(path) as stream, compressed(stream, path.name) as add:
        for line in csv_lines(LISTED, covered()):
            add(line.encode())
    return counts[0], counts[1]


_KEPT = (
    ReportColumn("kept", "kept"),
    ReportColumn("covered", "covered"),
    ReportColumn("covered_percent", "covered, %", Unit.PERCENT),
    ReportColumn("bytes", "bytes in files", Unit.BYTES),
    ReportColumn("covered_bytes", "bytes covered", Unit.BYTES),
    ReportColumn("covered_bytes_percent", "bytes, %", Unit.PERCENT),
)
HOSTS = Table(
    "By host, those with the most bytes covered first",
    (
        ReportColumn("host", "host", Unit.TEXT),
        ReportColumn("documents", "documents"),
        *_KEPT,
        ReportColumn("unsized", "of unknown size", shown=Shown.ON_PAGES),
    ),
    order="covered_bytes",
)
WHAT_IF = Table(
    "By threshold",
    (ReportColumn("threshold", "threshold", Unit.TEXT), ReportColumn("pairs", "pairs"), *_KEPT),
    order="threshold",
)


def hosts(database: Database, most: int = 0) -> list[dict[str, Any]]:
    """Return the rows of `HOSTS`, at most `most` (0: all)."""
    with database.cursor() as cursor:
        found = cursor.execute(
            "SELECT coalesce(hostname, '') AS host, count(*) AS documents, "
            "count(*) FILTER (coalesce(c.kept, true)) AS kept, "
            "count(*) FILTER (c.kept = false) AS covered, coalesce(sum(size), 0)::BIGINT AS bytes, "
            "coalesce(sum(size) FILTER (c.kept = false), 0)::BIGINT AS covered_bytes, "
            "count(*) FILTER (size IS NULL) AS unsized, "
            "count(*) FILTER (size IS NULL AND c.kept = false) AS covered_unsized "
            "FROM documents d LEFT JOIN chosen c ON d.n = c.n GROUP BY 1 "
            f"ORDER BY covered_bytes DESC, covered DESC, host {f'LIMIT {most}' if most else ''}"
        )
        names = [column[0] for column in found.description or ()]
        return [_with_shares(dict(zip(names, row, strict=True))) for row in found.fetchall()]


def what_if_rows(tried: Mapping[str, CoverCounts], unsized: int) -> list[dict[str, Any]]:
    """Return the rows of `WHAT_IF`; `unsized` documents state no bytes."""
    return [
        _with_shares({
            "threshold": threshold,
            "pairs": counts.pairs,
            "documents": counts.kept + counts.covered,
            "kept": counts.kept,
            "covered": counts.covered,
            "bytes": counts.bytes_kept + counts.bytes_covered,
            "covered_bytes": counts.bytes_covered,
            "unsized": unsized,
            "covered_unsized": 0,
        })
        for threshold, counts in tried.items()
    ]  # fmt: skip


def _with_shares(row: dict[str, Any]) -> dict[str, Any]:
    """Add percentages to a row; bytes are None if no document states any."""
    size, covered = row["bytes"], row["covered_bytes"]
    row["covered_percent"] = exact_percent(row["covered"], row["documents"])
    row["covered_bytes_percent"] = None if row["unsized"] else exact_percent(covered, size)
    if row["unsized"] == row["documents"]:
        row["bytes"] = None
    unsized = row.pop("covered_unsized")
    if row["covered"] and (unsized == row["covered"] or row["bytes"] is None):
        row["covered_bytes"] = None
    return row
