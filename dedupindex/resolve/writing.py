"""What groups came to, written as a part of a plan, whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from dedupindex.files import sync_directory, write_whole
from dedupindex.manifest.line import TYPES
from dedupindex.manifest.spool import literal, quoted
from dedupindex.resolve.engine import Database, number
from dedupindex.resolve.inputs import Inputs
from dedupindex.resolve.plan import (
    CONTAINERS,
    COPIES,
    FORMAT,
    ORIGINALS,
    ORIGINALS_OWN,
    PART,
    Totals,
)

_ALIKE = ("digest", "strong", "length", "status", "coding")
_LINE = ", ".join(f'l."{name}"' for name in TYPES)
_ROWS = 20480  # in a row group: so much is read to find one container


def write_rows(database: Database, target: Path) -> None:
    """Write the rows of the plan from ``outcomes`` and ``equal``; they become the view ``planned``.

    Here lines that have the same hash are asked whether they are equal indeed.
    """
    database.execute("""
        CREATE TABLE shared AS
        SELECT hash(record_id) AS record FROM lines
        WHERE hash(record_id) IN (
          SELECT record FROM equal
          WHERE place IN (SELECT original FROM outcomes WHERE outcome = 'copy'))
        GROUP BY 1 HAVING count(*) > 1""")
    own = ", ".join(
        f'o."{name}" AS original_{name}' for name in ORIGINALS_OWN if name != "record_id"
    )
    alike = " AND ".join(f"l.{name} = o.{name}" for name in _ALIKE)
    _copy(
        database,
        f"""
        SELECT {_LINE}, c.copy, coalesce(e.extension, 1) AS extension, {own},
          if(o.record IN (SELECT record FROM shared), '', o.record_id) AS original_record_id
        FROM (SELECT place, original, 1 + row_number() OVER
                (PARTITION BY original ORDER BY key) AS copy
              FROM outcomes WHERE outcome = 'copy') AS c
        JOIN equal AS l ON l.place = c.place
        JOIN equal AS o ON o.place = c.original AND {alike}
        LEFT JOIN extensions AS e ON e.label = l.label AND e.strong = l.strong""",
        target,
    )
    database.execute(
        f"CREATE VIEW planned AS SELECT * FROM read_parquet({quoted(literal(target))})"
    )


def totals_of(database: Database, inputs: Inputs) -> Totals:
    """Count what became of every line of this part that is in the set."""
    totals = Totals()
    ours = f"place >= {inputs.first_place}"
    totals.lines = number(database, f"SELECT count(*) FROM part WHERE {ours}")
    counted = database.execute(
        f"SELECT outcome, count(*) FROM outcomes WHERE {ours} GROUP BY outcome"
    ).fetchall()
    totals.stayed = Counter(dict(counted))
    chosen, hashed = totals.stayed.pop("original", 0), totals.stayed.pop("copy", 0)
    totals.unique = totals.lines - sum(count for _, count in counted)
    row = database.execute(
        f"""
        SELECT count(*), count(*) FILTER (outside), sum(stored),
          count(DISTINCT hash(original_container, original_offset)) FILTER (NOT outside)
        FROM (SELECT *, original_container > {len(inputs.containers)} AS outside FROM planned)"""
    ).fetchone()
    assert row is not None
    totals.copies, totals.outside, totals.stored, totals.originals = (int(n or 0) for n in row)
    totals.stayed["others-stay"] = chosen - totals.originals
    totals.stayed["unlike"] = hashed - totals.copies
    totals.stayed = +totals.stayed
    collisions = database.execute("""
        SELECT count(*) FILTER (NOT reframed), count(*) FILTER (reframed) FROM labels
        WHERE collides""").fetchone()
    assert collisions is not None
    totals.collisions, totals.reframed = collisions
    totals.collided = number(
        database,
        "SELECT count(*) FROM extensions WHERE label IN "
        "(SELECT label FROM labels WHERE collides AND NOT reframed)",
    )
    return totals


def write_part(
    database: Database, inputs: Inputs, part: Path, about: dict[str, Any], compared: Counter[str]
) -> Totals:
    """Write the part beside its place and force it to disk; then it appears."""
    beside = part.with_name(f".{part.name}.{os.getpid()}.part")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        write_rows(database, beside / COPIES)
        totals = totals_of(database, inputs)
        totals.compared = compared
        stay = """
            SELECT original_container AS container, original_offset AS "offset" FROM planned
            UNION SELECT container, "offset" FROM named"""
        _copy(database, stay, beside / ORIGINALS)
        lines = [
            json.dumps({**container._asdict(), "outside": number > 0})
            for number, places in enumerate((inputs.containers, inputs.outside))
            for container in places
        ]
        write_whole(beside / CONTAINERS, "".join(f"{line}\n" for line in lines).encode("ascii"))
        said = {"format": FORMAT, **about, "totals": totals.as_json()}
        write_whole(beside / PART, json.dumps(said, indent=1).encode() + b"\n")
        os.rename(beside, part)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    sync_directory(part.parent)
    return totals


def _copy(database: Database, rows: str, target: Path) -> None:
    database.execute(
        f'COPY ({rows} ORDER BY container, "offset") TO {quoted(str(target))} '
        f"(FORMAT parquet, COMPRESSION lz4_raw, ROW_GROUP_SIZE {_ROWS})"
    )
    with open(target, "rb") as stream:
        os.fsync(stream.fileno())
