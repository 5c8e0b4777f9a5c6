"""A run of bin/dedup_hashes: shard by shard, out of core, to one path for each hash."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import duckdb

from dedupindex.documents.read_shards import Shard, merged, relation, shards_of
from dedupindex.documents.shards import write_rows
from dedupindex.errors import BadInput
from dedupindex.runtime.duckdb import Database, literal, open_database, quoted
from dedupindex.runtime.spark import Cluster, FilePiece, PieceWriter, pieces

# Equal hashes to one row: the first by path, with how many there are.

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
    with open_database(output.absolute().parent, memory, threads) as (database, _):
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


# Shards deduplicated on a cluster by what deduplicates them here: no hash is in two of them.

_MADE = "unique.parquet"
Task = tuple[int, list[Shard], list[int]]  # number, shards, and the sizes of all their files


def dedup_on(
    cluster: Cluster,
    pattern: str,
    output: Path,
    *,
    memory: str = "1GB",
    threads: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> HashDedupReport:
    """As `dedup.dedup_hashes`; the shards are on storage that driver and executors mount."""
    begin = time.monotonic()
    shards = [
        shard._replace(files=tuple(file.absolute() for file in shard.files))
        for shard in shards_of(pattern, output=output)
    ]
    tasks = [_task(number, some) for number, some in enumerate(_dealt(shards, cluster.cores))]
    report = HashDedupReport(shards=len(shards))
    say(f"{len(shards):,} shards in {len(tasks):,} tasks")
    with open_database(output.absolute().parent, memory, threads) as (database, home):
        files = PieceWriter(home)
        for some in cluster.in_turn(tasks):
            for row in cluster.rows(partial(_dedup, memory, threads or 1), some):
                if isinstance(row, FilePiece):
                    files.take(row)
                else:
                    _add(report, row)
        files.finish()
        made = ", ".join(quoted(literal(home / name)) for name in files.names)
        write_rows(database, f"SELECT * FROM read_parquet([{made}])", output)
    report.elapsed_time_secs = time.monotonic() - begin
    report.rate_rps = report.total_files / report.elapsed_time_secs
    return report


def _dealt(shards: list[Shard], cores: int) -> Iterator[list[Shard]]:
    """Neighbours together, four tasks for each core if there are as many shards."""
    count = min(len(shards), 4 * cores)
    for number in range(count):
        yield shards[number * len(shards) // count : (number + 1) * len(shards) // count]


def _task(number: int, shards: list[Shard]) -> Task:
    return number, shards, [file.stat().st_size for shard in shards for file in shard.files]


def _dedup(memory: str, threads: int, task: Task) -> Iterator[FilePiece | HashDedupReport]:
    """Runs on an executor."""
    number, shards, sizes = task
    files = [file for shard in shards for file in shard.files]
    for file, size in zip(files, sizes, strict=True):
        if not file.is_file() or file.stat().st_size != size:
            raise BadInput(
                f"an executor does not have the {file} that the driver has: with --spark shards "
                "are on storage that all mount"
            )
    with tempfile.TemporaryDirectory(prefix="dedupindex-") as home:
        made = Path(home) / _MADE
        report = dedup_shards(shards, made, memory=memory, threads=threads)
        yield from pieces(made, f"{number:06d}-{_MADE}")
    yield report


def _add(report: HashDedupReport, part: HashDedupReport) -> None:
    for name in ("unique_files", "total_files", "duplicate_files", "repeated", "total_bytes",
                 "bytes_saved", "unsized"):  # fmt: skip
        setattr(report, name, getattr(report, name) + getattr(part, name))
