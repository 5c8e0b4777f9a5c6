"""What a run says: a line of JSON for each document, and lists made of these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from dedupindex.corpus.output import compressed
from dedupindex.cover import revisit_dependencies
from dedupindex.cover.relation import Relation
from dedupindex.runtime.duckdb import Database
from dedupindex.runtime.files import atomic_file
from dedupindex.runtime.tables import csv_lines

_AT_ONCE = 1000
_IDS = (  # an id that two documents have is told apart by a number
    "SELECT n, CASE WHEN place = 1 THEN id ELSE id || '#' || place END AS id FROM (SELECT n, id, "
    "row_number() OVER (PARTITION BY id ORDER BY n) AS place FROM documents)"
)
_PLACE = ("container", "offset", "length")
LISTED = ("id", "url", "timestamp", "bytes", "container", "offset", "length", "covered_by")


def rows(database: Database, relation: Relation) -> Iterator[dict[str, Any]]:
    """All documents, in the order in which they came."""
    shared = "".join(f", k.of_a_{one}, k.of_b_{one}, k.shared_{one}" for one in relation.ks)
    database.execute(f"CREATE OR REPLACE TABLE ids AS {_IDS}")
    revisit_dependencies.find(database)
    query = (
        'SELECT d.n, i.id, d.url, d.digits, d.size, d.container, d."offset", d.length, '
        f"coalesce(c.component, d.n), coalesce(c.kept, true), b.id, f.by, k.several{shared} "
        "FROM documents d LEFT JOIN chosen c ON d.n = c.n LEFT JOIN coverers k ON d.n = k.n "
        "LEFT JOIN ids i ON d.n = i.n LEFT JOIN ids b ON k.by = b.n "
        "LEFT JOIN needed f ON d.n = f.n ORDER BY d.n"
    )
    with database.cursor() as cursor:
        found = cursor.execute(query)
        while some := found.fetchmany(_AT_ONCE):
            for row in some:
                yield _row(row, relation)


def _row(row: Sequence[Any], relation: Relation) -> dict[str, Any]:
    _, name, url, digits, size, *place, component, kept, by, revisit, several = row[:13]
    made = {
        "id": name,
        "url": url,
        "timestamp": digits,
        "bytes": size,
        "component": component,
        "kept": kept,
        "covered_by": by,
    }
    if by is not None:
        made["covered_by_others"] = several - 1
        made["why"] = dict(why(relation, row[13:]))
    if revisit is not None:
        made["needed_by"] = revisit
    made |= {key: at for key, at in zip(_PLACE, place, strict=True) if at is not None}
    return made


def why(relation: Relation, shared: Sequence[int]) -> Iterator[tuple[str, Any]]:
    """What a pair comes to: its measures, and how many shingles each has and both share."""
    for one in relation.content:
        at = 3 * relation.ks.index(one.k)
        of_a, of_b, both = shared[at : at + 3]
        yield one.name, round(float(one.value(both, of_a, of_b)), 4)
    for at, k in enumerate(relation.ks):
        yield f"shingles(k={k})", list(shared[3 * at : 3 * at + 3])


def write(database: Database, relation: Relation, path: Path) -> None:
    """Write all lines, plain, gzip or zstd by the ending of the name; the file appears whole."""
    with atomic_file(path) as stream, compressed(stream, path.name) as add:
        for row in rows(database, relation):
            add(orjson.dumps(row) + b"\n")


def write_list(database: Database, relation: Relation, path: Path) -> tuple[int, int]:
    """List the covered documents as CSV, compressed as by `write`, for who deletes.

    Without those whose payload a revisit that stays repeats: it would be lost. Returns how many are
    listed, and how many of those there are.
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


def hosts(database: Database, most: int = 0) -> list[dict[str, Any]]:
    """What stays and goes of each host, those of which most bytes go first; 0: all of them."""
    with database.cursor() as cursor:
        found = cursor.execute(
            "SELECT coalesce(hostname, '') AS host, count(*) AS documents, "
            "count(*) FILTER (coalesce(c.kept, true)) AS kept, "
            "count(*) FILTER (c.kept = false) AS covered, coalesce(sum(size), 0)::BIGINT AS bytes, "
            "coalesce(sum(size) FILTER (c.kept = false), 0)::BIGINT AS covered_bytes "
            "FROM documents d LEFT JOIN chosen c ON d.n = c.n GROUP BY 1 "
            f"ORDER BY covered_bytes DESC, covered DESC, host {f'LIMIT {most}' if most else ''}"
        )
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]
