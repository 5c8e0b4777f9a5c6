"""A run of bin/dedup_hashes: shard by shard, out of core, to one path for each hash."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import duckdb

from dedupindex.documents.grouping import ALONE, CANDIDATES, SOME, UNIQUE
from dedupindex.documents.read_shards import Shard, merged, relation, shards_of
from dedupindex.documents.shards import write_rows
from dedupindex.errors import BadInput
from dedupindex.runtime.duckdb import Database, working

SIZE = 32  # bytes of a BLAKE3


@dataclass
class HashDedupReport:
    """What a run came to; the first four fields are those of the seed's profiling report."""

    unique_files: int = 0
    total_files: int = 0  # rows
    elapsed_time_secs: float = 0.0
    rate_rps: float = 0.0
    duplicate_files: int = 0
    repeated: int = 0  # rows of a path that came before: globs of runs overlap
    total_bytes: int = 0  # of files whose size is known, each once
    bytes_saved: int = 0  # of these, of all copies but the first
    unsized: int = 0  # rows that tell no size, as CSV does not
    shards: int = 0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def dedup_hashes(
    pattern: str,
    output: Path,
    *,
    memory: str = "1GB",
    threads: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> HashDedupReport:
    """Write one path for each hash in the shards that a glob names, the first by path.

    `output` is CSV if its name ends so, else Parquet. Raises `BadSource`, `BadInput`.
    """
    return dedup_shards(
        shards_of(pattern, output=output), output, memory=memory, threads=threads, say=say
    )


def dedup_shards(
    shards: list[Shard],
    output: Path,
    *,
    memory: str = "1GB",
    threads: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> HashDedupReport:
    """As `dedup_hashes`, of shards that were found."""
    begin = time.monotonic()
    report = HashDedupReport(shards=len(shards))
    with working(output.absolute().parent, memory, threads) as (database, _):
        database.execute("CREATE TABLE candidates (short UBIGINT)")
        database.execute(
            "CREATE TABLE several (hash BLOB, path VARCHAR, size BIGINT, copies BIGINT, met BIGINT)"
        )
        alone = []
        for shard in merged(shards):
            if shard.first:
                say(f"shards {shard.first} to {shard.last}: {len(shard.files):,} files")
            rows = relation(database, shard)
            try:
                _group(database, shard, rows, report)
            except (duckdb.DataError, duckdb.ProgrammingError) as error:
                names = ", ".join(str(file) for file in shard.files[:3])
                raise BadInput(
                    f"{names} cannot be read as rows of hash and path, which all end alike: "
                    f"{str(error).partition(chr(10))[0]}"
                ) from error
            some = ALONE.format(rows=rows, candidates="candidates")
            alone.append(f"SELECT hash, path, size, 1::BIGINT AS copies FROM {some}")
        write_rows(
            database,
            f"{' UNION ALL '.join(alone)} UNION ALL SELECT hash, path, size, copies FROM several",
            output,
        )
    report.unique_files = report.total_files - report.duplicate_files - report.repeated
    report.elapsed_time_secs = time.monotonic() - begin
    report.rate_rps = report.total_files / report.elapsed_time_secs
    return report


def _group(database: Database, shard: Shard, rows: str, report: HashDedupReport) -> None:
    """Put the hashes that come several times into ``several``, and count."""
    found = database.execute(
        "SELECT count(*), count(size), sum(size), hex(min(hash)), hex(max(hash)), "
        f"coalesce(bool_and(octet_length(hash) = {SIZE} AND path IS NOT NULL), true) FROM {rows}"
    ).fetchone()
    assert found is not None
    count, sized, size, first, last, sound = found
    if not sound:
        raise BadInput(f"{shard.files[0]} or one of its shard has rows without BLAKE3 or path")
    for digest in (first, last):
        if digest is not None and not (
            shard.first <= digest.lower()[: len(shard.first)] <= shard.last
        ):
            raise BadInput(
                f"{shard.files[0]} or another of shards {shard.first} to {shard.last} has the hash "
                f"{digest.lower()}: by its name it is of another shard, and would not be compared"
            )
    database.execute("CREATE OR REPLACE TABLE now AS " + CANDIDATES.format(rows=rows))
    some = SOME.format(rows=rows, candidates="now")
    database.execute(f"CREATE OR REPLACE TABLE found AS {UNIQUE.format(rows=some)} ORDER BY hash")
    database.execute("INSERT INTO candidates FROM now")
    database.execute("INSERT INTO several FROM found")
    several = database.execute(
        "SELECT coalesce(sum(copies - 1), 0), coalesce(sum(met - copies), 0), "
        "coalesce(sum((met - copies) * size), 0), coalesce(sum((copies - 1) * size), 0) FROM found"
    ).fetchone()
    assert several is not None
    copies, repeated, repeated_bytes, saved = map(int, several)
    report.total_files += count
    report.unsized += count - sized
    report.duplicate_files += copies
    report.repeated += repeated
    report.total_bytes += int(size or 0) - repeated_bytes
    report.bytes_saved += saved
