"""Write a part of a plan, whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from dedupindex.post_crawl.manifest.lines import TYPES
from dedupindex.post_crawl.plan.manifest_input import ManifestInputs
from dedupindex.post_crawl.plan.plan_file import (
    CONTAINERS,
    COPIES,
    FORMAT,
    ORIGINALS,
    ORIGINALS_OWN,
    PART,
    MatchCriteria,
    Totals,
)
from dedupindex.runtime.duckdb import Database, literal, number, quoted
from dedupindex.runtime.files import sync_directory, write_file

_LINE = ", ".join(f'l."{name}"' for name in TYPES)
_ROWS = 20480  # in a row group, all of which are read to find one container
BATCH = 1_000_000  # lines that are joined with the chosen copies at once


def _write_rows(
    database: Database, inputs: ManifestInputs, criteria: MatchCriteria, part: Path, home: Path
) -> None:
    """Write the rows of the plan from ``outcomes`` and ``equal``, and make the view ``planned``.

    The chosen copies are first joined with their originals, which may be in any container, and
    sorted; then with their own lines, a batch of containers at a time. Here the values themselves
    are compared, of which only the hashes are known to be equal.
    """
    _choose(database)
    same = criteria.columns()
    chosen = quoted(literal(home / "chosen.parquet"))
    wanted = ", ".join(
        f'o."{name}" AS original_{name}' for name in dict.fromkeys((*ORIGINALS_OWN, *same))
    )
    database.execute(f"""
        COPY (
          SELECT c.place, c.copy, c.extension, {wanted}
          FROM chosen AS c JOIN (
            SELECT * REPLACE (
              if(hash(record_id) IN (SELECT record FROM shared), '', record_id) AS record_id)
            FROM lines WHERE place IN (SELECT DISTINCT original FROM chosen)) AS o
          ON o.place = c.original ORDER BY c.place)
        TO {quoted(str(home / "chosen.parquet"))} (FORMAT parquet, COMPRESSION lz4_raw)""")
    own = ", ".join(f"c.original_{name}" for name in ORIGINALS_OWN)
    equal = " AND ".join(f"l.{name} = c.original_{name}" for name in same)
    for file, (lines, first, last) in enumerate(inputs.batches(BATCH)):
        rows = f"""
            SELECT {_LINE}, c.copy, c.extension, {own} FROM ({lines}) AS l
            JOIN (SELECT * FROM read_parquet({chosen}) WHERE place BETWEEN {first} AND {last}) AS c
            ON l.place = c.place AND {equal}"""
        _copy(database, rows, copies_file(part, file))
    database.execute(
        f"CREATE VIEW planned AS SELECT * FROM read_parquet({quoted(f'{literal(part)}/{COPIES}')})"
    )


def copies_file(part: Path, number: int) -> Path:
    """Return the path of the file with the copies of a batch of containers."""
    return part / COPIES.replace("*", f"{number:06d}")


def _choose(database: Database) -> None:
    """Create the tables ``chosen``, all copies with the places of their originals, and ``shared``.

    ``shared`` has the hashes of those record ids of originals that other lines have, too.
    """
    database.execute("""
        CREATE TABLE chosen AS
        SELECT place, original, coalesce(extension, 1) AS extension,
          1 + row_number() OVER (PARTITION BY original ORDER BY key) AS copy
        FROM outcomes LEFT JOIN (
          SELECT place, extension FROM equal JOIN extensions USING (label, form)) USING (place)
        WHERE outcome = 'copy'""")
    database.execute("""
        CREATE TABLE shared AS
        SELECT hash(record_id) AS record FROM lines
        WHERE hash(record_id) IN (
          SELECT record FROM equal WHERE place IN (SELECT DISTINCT original FROM chosen))
        GROUP BY 1 HAVING count(*) > 1""")


def _totals(database: Database, inputs: ManifestInputs) -> Totals:
    """Count the outcomes of all lines of this part that are in the set."""
    totals = Totals()
    ours = f"place >= {inputs.first_place}"
    totals.lines = number(database, f"SELECT count(*) FROM part WHERE {ours}")
    outcomes = database.execute(
        f"SELECT outcome, count(*) FROM outcomes WHERE {ours} GROUP BY outcome"
    ).fetchall()
    totals.stayed = Counter(dict(outcomes))
    originals, copies = totals.stayed.pop("original", 0), totals.stayed.pop("copy", 0)
    totals.unique = totals.lines - sum(count for _, count in outcomes)
    row = database.execute(
        f"""
        SELECT count(*), count(*) FILTER (outside), sum(stored),
          count(DISTINCT hash(original_container, original_offset)) FILTER (NOT outside)
        FROM (SELECT *, original_container > {len(inputs.containers)} AS outside FROM planned)"""
    ).fetchone()
    assert row is not None
    totals.copies, totals.outside, totals.stored, totals.originals = (int(n or 0) for n in row)
    totals.stayed["others-stay"] = originals - totals.originals
    totals.stayed["unlike"] = copies - totals.copies
    totals.stayed = +totals.stayed
    collisions = database.execute("""
        SELECT count(*) FILTER (NOT reframed), count(*) FILTER (reframed)
        FROM colliding""").fetchone()
    assert collisions is not None
    totals.collisions, totals.reframed = collisions
    totals.collided = number(
        database,
        "SELECT count(*) FROM extensions WHERE label IN "
        "(SELECT label FROM colliding WHERE NOT reframed)",
    )
    return totals


def write_part(
    database: Database,
    inputs: ManifestInputs,
    criteria: MatchCriteria,
    part: Path,
    about: dict[str, Any],
    compared: Counter[str],
    home: Path,
) -> Totals:
    """Write the part, force it to disk, then rename it; `home` is for temporary files."""
    beside = part.with_name(f".{part.name}.{os.getpid()}.part")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        _write_rows(database, inputs, criteria, beside, home)
        totals = _totals(database, inputs)
        totals.compared = compared
        protected = """
            SELECT original_container AS container, original_offset AS "offset" FROM planned
            UNION SELECT container, "offset" FROM named"""
        _copy(database, protected, beside / ORIGINALS)
        lines = [
            json.dumps({**container._asdict(), "outside": outside})
            for outside, containers in ((False, inputs.containers), (True, inputs.outside))
            for container in containers
        ]
        write_file(beside / CONTAINERS, "".join(f"{line}\n" for line in lines).encode("ascii"))
        fields = {"format": FORMAT, **about, "totals": totals.as_json()}
        write_file(beside / PART, json.dumps(fields, indent=1).encode() + b"\n")
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
