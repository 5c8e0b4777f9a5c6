"""Candidates by MinHash instead of the inverted index: of a bounded size, but not all are found.

Of each unit the least of so many hashes of its shingles are kept; two units agree in one with the
probability of their Jaccard index. Units that agree in all rows of one of the bands, and in enough
hashes altogether, are candidates, which are then counted like those of the exact way: what is found
is right, but some is missed.
Where containment is asked for, that is above all what is contained in something far larger.
"""

from __future__ import annotations

from math import floor, sqrt

from dedupindex.cover.relation import Constraint
from dedupindex.runtime.duckdb import Database

HASHES = 128
AIM = 0.97  # of pairs that are just alike enough, as many are to be candidates
SAMPLE = 1000  # units that the recall is measured with
_SALT = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: its multiples differ in many bits


def bands(jaccard: float) -> tuple[int, int]:
    """How many bands of how many rows: the most rows that still reach the aim."""
    for rows in range(HASHES, 1, -1):
        count = HASHES // rows
        if 1 - (1 - jaccard**rows) ** count >= AIM:
            return count, rows
    return HASHES, 1


def enough(jaccard: float, hashes: int) -> int:
    """Of so many hashes, in how many two sets agree that are just alike enough, or bad luck has it.

    Bad luck are three standard deviations, which one pair in 700 has.
    """
    return floor(hashes * jaccard - 3 * sqrt(hashes * jaccard * (1 - jaccard)))


def minhash_candidates(database: Database, constraint: Constraint) -> None:
    """Make ``candidates`` of ``shingled_K``, for sets of about the same size."""
    jaccard = float(constraint.threshold)
    if constraint.measure != "jaccard":
        jaccard /= 2 - jaccard
    count, rows = bands(jaccard)
    least = ", ".join(
        f"min(hash(xor(h, {(place + 1) * _SALT % (1 << 64)}::UBIGINT))) AS m{place}"
        for place in range(count * rows)
    )
    database.execute(
        f"CREATE OR REPLACE TABLE signatures AS SELECT unit, block, {least} FROM "
        f"(SELECT unit, block, hash(shingle) AS h FROM shingled_{constraint.k}) GROUP BY ALL"
    )
    keys = ", ".join(
        f"hash(block, {band}, {', '.join(f'm{band * rows + row}' for row in range(rows))})"
        for band in range(count)
    )
    database.execute(
        "CREATE OR REPLACE TABLE bands AS SELECT s.unit, s.key, u.goes, u.covers, u.fresh FROM "
        f"(SELECT unit, unnest([{keys}]) AS key FROM signatures) s JOIN units u ON u.unit = s.unit"
    )
    database.execute(
        "CREATE OR REPLACE TABLE candidates AS SELECT DISTINCT x.unit AS ua, y.unit AS ub "
        "FROM bands x JOIN bands y ON x.key = y.key WHERE x.unit <> y.unit AND x.goes AND y.covers "
        "AND (x.fresh OR y.fresh)"
    )
    agreed = " + ".join(f"(x.m{place} = y.m{place})::INTEGER" for place in range(count * rows))
    database.execute(
        "CREATE OR REPLACE TABLE candidates AS SELECT c.* FROM candidates c "
        "JOIN signatures x ON x.unit = c.ua JOIN signatures y ON y.unit = c.ub "
        f"WHERE {agreed} >= {enough(jaccard, count * rows)}"
    )
    for table in ("signatures", "bands"):
        database.execute(f"DROP TABLE {table}")


def few(database: Database) -> str:
    """Make a table of the units that the recall is measured with; returns its name."""
    database.execute(
        "CREATE OR REPLACE TABLE few AS SELECT unit FROM units WHERE goes "
        f"ORDER BY hash(unit) LIMIT {SAMPLE}"
    )
    return "few"
