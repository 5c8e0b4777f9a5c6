"""Candidates by MinHash instead of the inverted index: quicker where texts are long, not all found.

Of each unit the least of so many hashes of its shingles are kept; two units agree in one with the
probability of their Jaccard index. Units that agree in all rows of one of the bands are candidates,
which are then counted like those of the exact way: what is found is right, but some is missed.
Where containment is asked for, that is above all what is contained in something far larger.
"""

from __future__ import annotations

from dedupindex.cover.relation import Constraint
from dedupindex.resolve.engine import Database

HASHES = 128
AIM = 0.97  # of pairs that are just alike enough, as many are to be candidates
SAMPLE = 200  # units that the recall is measured with
_SALT = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: its multiples differ in many bits


def bands(jaccard: float) -> tuple[int, int]:
    """How many bands of how many rows: the most rows that still reach the aim."""
    for rows in range(HASHES, 1, -1):
        count = HASHES // rows
        if 1 - (1 - jaccard**rows) ** count >= AIM:
            return count, rows
    return HASHES, 1


def candidates(database: Database, constraint: Constraint) -> None:
    """Make ``candidates`` of ``shingled_K``, for sets of about the same size."""
    threshold = float(constraint.threshold)
    count, rows = bands(
        threshold if constraint.measure == "jaccard" else threshold / (2 - threshold)
    )
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
    for table in ("signatures", "bands"):
        database.execute(f"DROP TABLE {table}")


def sample(database: Database, constraint: Constraint) -> None:
    """Make ``sampled`` of all pairs of units of which the first is one of a few."""
    k = constraint.k
    database.execute(
        "CREATE OR REPLACE TABLE few AS SELECT unit, fresh FROM units WHERE goes "
        f"ORDER BY hash(unit) LIMIT {SAMPLE}"
    )
    database.execute(
        "CREATE OR REPLACE TABLE sampled AS SELECT DISTINCT x.unit AS ua, y.unit AS ub "
        f"FROM postings_{k} x JOIN few f ON x.unit = f.unit JOIN postings_{k} y ON x.id = y.id "
        "JOIN units u ON y.unit = u.unit WHERE x.unit <> y.unit AND u.covers "
        "AND (f.fresh OR u.fresh)"
    )
    database.execute("DROP TABLE few")
