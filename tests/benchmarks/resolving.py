"""What resolving costs, beside DuckDB's bare GROUP BY over the same columns.

python -m tests.benchmarks.resolving GLOB MEMORY    runs that alone
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb

from dedupindex.post_crawl.manifest.parquet import (
    CONTAINERS,
    FILE,
    FORMAT,
    LINES,
    REFERENCES,
    ParquetWriter,
    lines_file,
    references_file,
)
from dedupindex.runtime.duckdb import quoted, write_parquet
from tests.benchmarks.measure import ROOT, Spent, run
from tests.benchmarks.suite import Bench, Line, Target, compare

MEMORY = "1GB"  # that DuckDB may take, for both
_IN_FILE = 100_000  # lines
_BARE = """
SELECT count(*), sum(n), max(first) FROM (
  SELECT digest, strong, length, status, coding, count(*) AS n, min(date) AS first
  FROM read_parquet({}) GROUP BY ALL)"""


def made_up(top: Path, count: int) -> None:
    """A manifest of so many lines, three in ten of payloads that others have, too."""
    for name in (LINES, REFERENCES):
        (top / name).mkdir(parents=True)
    about = {"format": FORMAT, "algorithm": "sha1", "complete": True}
    (top / FILE).write_text(json.dumps(about))
    with duckdb.connect() as database, open(top / CONTAINERS, "w") as containers:
        for empty in (lines_file(top, 0), references_file(top, 0)):
            ParquetWriter(empty).finish(database)
        for number, start in enumerate(range(0, count, _IN_FILE), start=1):
            stop = min(start + _IN_FILE, count)
            write_parquet(database, _lines(number, start, stop, count), lines_file(top, number))
            container = {
                "number": number, "root": "/made-up", "name": f"{number:06d}.warc.gz",
                "size": _IN_FILE * 3000, "mtime_ns": 0, "inode": number, "device": 1,
                "content_hash": str(number), "lines": stop - start, "records": {}, "problems": [],
            }  # fmt: skip
            containers.write(json.dumps(container) + "\n")


def _lines(container: int, start: int, stop: int, count: int) -> str:
    return f"""
        SELECT {container}::INTEGER AS container, (i - {start}) * 2900 AS "offset",
          2000 + hash(i) % 900 AS stored, 'urn:uuid:' || uuid()::VARCHAR AS record_id,
          'http://www' || p % 5000 || '.example.org/' || hash(i) || '/' || p || '.html' AS url,
          strftime(TIMESTAMP '2020-01-01' + INTERVAL 1 SECOND * i, '%Y-%m-%dT%H:%M:%SZ') AS date,
          'sha1:' || upper(left(sha256(p::VARCHAR), 32)) AS digest,
          unhex(left(sha256(p::VARCHAR), 40)) AS payload, 3::TINYINT AS covers,
          unhex(sha256('b' || p)) AS strong, (500 + p % 90000)::BIGINT AS length,
          200::SMALLINT AS status, chr(10) AS coding, 'text/html' AS content_type,
          hash(i, 'moment') AS replay_key, '' AS not_rewritable_reason,
          '' AS not_original_reason, unhex(left(sha256('c' || i), 32)) AS header
        FROM (SELECT i, if(hash(i, 'kind') % 10 < 3, hash(i) % {count // 10}, {count} + i) AS p
              FROM range({start}, {stop}) AS r(i)) ORDER BY "offset\""""


def resolve(bench: Bench) -> Iterator[Line]:
    """bin/resolve of a made-up manifest, beside DuckDB's bare GROUP BY of its lines."""
    count = bench.size.manifest
    manifest = bench.inputs.manifest(count)
    glob = f"{manifest}/{LINES}/*.parquet"

    def ours() -> Spent:
        plan = bench.fresh("plan")
        return run(
            [ROOT / "bin" / "resolve", manifest, "-o", plan, "--memory", MEMORY, "--json"],
            bench.cores.both,
        )

    def bare() -> Spent:
        return run(
            [sys.executable, "-m", "tests.benchmarks.resolving", glob, MEMORY], bench.cores.both
        )

    spent = bench.interleaved({"ours": ours, "bare": bare})
    yield compare(
        "resolve", "lines/s", count, [one.wall for one in spent["ours"]],
        [one.wall for one in spent["bare"]], "DuckDB's GROUP BY", Target(1 / 3),
        f"{count:,} lines",
    )  # fmt: skip
    peak = max(one.rss for one in spent["ours"])
    yield Line("resolve", "MB memory", peak / 1e6, target=Target(2000, "ours", most=True))


def main() -> None:
    glob, memory = sys.argv[1:]
    with duckdb.connect(config={"memory_limit": memory}) as database:
        print(database.execute(_BARE.format(quoted(glob))).fetchall())


if __name__ == "__main__":
    main()
