"""Shards of made-up rows, to measure deduplication by."""

from __future__ import annotations

from pathlib import Path

from dedupindex.documents.naming import ShardLayout
from dedupindex.documents.shards import write_rows
from dedupindex.runtime.duckdb import working

_ROWS = """
SELECT unhex(sha256(if(hash(i) % 20 = 0 AND i > 0, i - 1, i)::VARCHAR)) AS hash,
  '/data/corpus/' || left(sha256('path' || i), 32) || '.bin' AS path,
  (500000 + hash(i) % 5000)::BIGINT AS size
FROM range({count}) AS r(i)"""


def write_rows_of(top: Path, count: int) -> None:
    """So many rows, one in twenty the hash of another, in 16 shards in the new directory `top`."""
    top.mkdir()
    with working(top, "1GB", 0) as (database, _):
        database.execute(f"CREATE TABLE rows AS {_ROWS.format(count=count)}")
        for digit in "0123456789abcdef":
            low, high = int(digit, 16) << 4, (int(digit, 16) << 4) + 15
            write_rows(
                database,
                "SELECT * FROM rows WHERE hash[:1] BETWEEN "
                f"unhex('{low:02x}') AND unhex('{high:02x}') ORDER BY path",
                top / ShardLayout().name(digit, "madeup"),
            )
