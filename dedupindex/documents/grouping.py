"""Equal hashes to one row: the first by path, with how many there are."""

from __future__ import annotations

UNIQUE = """
SELECT hash, min(path) AS path, max(size) AS size, count(DISTINCT path) AS copies, count(*) AS met
FROM {rows} GROUP BY hash"""
"""From a relation of hash, path and size (null where it is not known) to a row for each hash.

A path comes twice where the globs of runs overlap: `copies` counts paths, `met` rows. Plain SQL.
"""

CANDIDATES = "SELECT hash(hash) AS short FROM {rows} GROUP BY short HAVING count(*) > 1"
"""Of the hashes that come several times, and very few others, eight bytes: all hashes would take
five times the memory. Only these go through `UNIQUE`; the others are unique as they stand."""

SOME = "(SELECT * FROM {rows} WHERE hash(hash) IN (FROM {candidates}))"
ALONE = "(SELECT * FROM {rows} WHERE hash(hash) NOT IN (FROM {candidates}))"
