"""Run bin/dedup_hashes: reduce shards to one path for each hash, out of core or on Spark."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import duckdb

from dedupindex.counts import OnProgress, silent
from dedupindex.documents.read_shards import Shard, fetched_shards, merged, relation, shards_of
from dedupindex.documents.shards import write_rows
from dedupindex.errors import BadInput
from dedupindex.object_store import check_writable, is_remote, upload
from dedupindex.runtime.duckdb import Database, literal, open_database, quoted, show_progress
from dedupindex.runtime.files import check_name
from dedupindex.runtime.progress import Say, finished
from dedupindex.runtime.spark import Cluster, FilePiece, PieceWriter, pieces

UNIQUE = """
SELECT hash, min(path) AS path, max(size) AS size, count(DISTINCT path) AS copies, count(*) AS met
FROM {rows} GROUP BY hash"""
"""SQL: a row for each hash, with the first path. `copies` counts paths, `met` rows, which differ if
the globs of runs overlap."""

CANDIDATES = "SELECT hash(hash) AS short FROM {rows} GROUP BY short HAVING count(*) > 1"
"""SQL: eight bytes of each repeated hash, and of very few others; whole hashes would take five
times the memory. Only these rows go through `UNIQUE`; all others are unique."""

REPEATED = "(SELECT * FROM {rows} WHERE hash(hash) IN (FROM {candidates}))"
SINGLE = "(SELECT * FROM {rows} WHERE hash(hash) NOT IN (FROM {candidates}))"

HASH_SIZE = 32  # bytes of a BLAKE3


@dataclass
class HashDedupReport:
    """The counts of a run; the names of the first four are given by the report format."""

    unique_files: int = 0
    total_files: int = 0  # rows
    elapsed_time_secs: float = 0.0
    rate_rps: float = 0.0
    duplicate_files: int = 0
    repeated: int = 0  # further rows of a path, if globs of runs overlap
    total_bytes: int = 0  # of files of known size, each once
    bytes_saved: int = 0  # of these, in copies after the first
    unsized: int = 0  # rows without a size, as in CSV
    shards: int = 0


def _silent(text: str) -> None:
    """Print nothing."""


def dedup_hashes(
    pattern: str,
    output: Path | str,
    *,
    memory: str = "1GB",
    threads: int = 0,
    say: Say = _silent,
    on_progress: OnProgress = silent,
) -> HashDedupReport:
    """Write the first path of each hash in the shards that match a glob.

    Both may be addresses of an object store; shards are then downloaded first. `output` is CSV by
    its name, else Parquet. Raises `BadSource`, `BadInput`.
    """
    check_name(output if isinstance(output, str) else str(output.absolute()))
    if isinstance(output, Path) and not is_remote(pattern):
        found = shards_of(pattern, output=output)
        return dedup_shards(found, output, memory, threads, say, on_progress)
    if isinstance(output, str):
        check_writable(output)
    beside = output.absolute().parent if isinstance(output, Path) else None
    with tempfile.TemporaryDirectory(prefix="dedupindex-shards-", dir=beside) as name:
        home = Path(name)
        target = output if isinstance(output, Path) else home / os.path.basename(output)
        (home / "shards").mkdir()
        shards = (
            fetched_shards(pattern, home / "shards") if is_remote(pattern) else shards_of(pattern)
        )
        report = dedup_shards(shards, target, memory, threads, say, on_progress)
        if isinstance(output, str):
            upload([(target, output)])
    return report


def dedup_shards(
    shards: list[Shard],
    output: Path,
    memory: str,
    threads: int,
    say: Say = _silent,
    on_progress: OnProgress = silent,
) -> HashDedupReport:
    """Like `dedup_hashes`, for the given shards."""
    begin = time.monotonic()
    report = HashDedupReport(shards=len(shards))
    with open_database(output.absolute().parent, memory, threads) as (database, _):
        database.execute("CREATE TABLE candidates (short UBIGINT)")
        database.execute(
            "CREATE TABLE several (hash BLOB, path VARCHAR, size BIGINT, copies BIGINT, met BIGINT)"
        )
        selects = []
        shards = merged(shards)
        for shard in finished(shards, "grouping", len(shards), on_progress):
            if shard.first:
                say(f"shards {shard.first} to {shard.last}: {len(shard.files):,} files")
            rows = relation(database, shard)
            try:
                _group(database, shard, rows, report)
            except (duckdb.DataError, duckdb.ProgrammingError) as error:
                names = ", ".join(str(file) for file in shard.files[:3])
                raise BadInput(
                    f"{names} is not a table of hash and path, all shards in one format: "
                    f"{str(error).partition(chr(10))[0]}"
                ) from error
            single = SINGLE.format(rows=rows, candidates="candidates")
            selects.append(f"SELECT hash, path, size, 1::BIGINT AS copies FROM {single}")
        selects.append("SELECT hash, path, size, copies FROM several")
        with show_progress(database, on_progress, "writing"):
            write_rows(database, " UNION ALL ".join(selects), output)
    report.unique_files = report.total_files - report.duplicate_files - report.repeated
    return _timed(report, begin)


def _timed(report: HashDedupReport, begin: float) -> HashDedupReport:
    report.elapsed_time_secs = time.monotonic() - begin
    report.rate_rps = report.total_files / report.elapsed_time_secs
    return report


def _group(database: Database, shard: Shard, rows: str, report: HashDedupReport) -> None:
    """Put the repeated hashes into ``several``, and count."""
    found = database.execute(
        "SELECT count(*), count(size), sum(size), hex(min(hash)), hex(max(hash)), "
        f"coalesce(bool_and(octet_length(hash) = {HASH_SIZE} AND path IS NOT NULL), true) "
        f"FROM {rows}"
    ).fetchone()
    assert found is not None
    count, sized, size, first, last, valid = found
    if not valid:
        raise BadInput(
            f"{shard.files[0]} or another file of its shard has rows without a BLAKE3 hash or "
            "a path"
        )
    for digest in (first, last):
        prefix = shard.first if digest is None else digest.lower()[: len(shard.first)]
        if not shard.first <= prefix <= shard.last:
            raise BadInput(
                f"{shard.files[0]} or another of shards {shard.first} to {shard.last} has the hash "
                f"{digest.lower()}: by its name it is of another shard, and would not be compared"
            )
    database.execute("CREATE OR REPLACE TABLE now AS " + CANDIDATES.format(rows=rows))
    unique = UNIQUE.format(rows=REPEATED.format(rows=rows, candidates="now"))
    database.execute(f"CREATE OR REPLACE TABLE found AS {unique} ORDER BY hash")
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


# --- on Spark: each shard is deduplicated by one task ---------------------------------------------

_OUTPUT = "unique.parquet"
_OF_WHOLE = ("elapsed_time_secs", "rate_rps", "shards")  # counts that are no sums of those of tasks
Task = tuple[int, list[Shard], list[int]]  # number, shards, and the sizes of all their files


def dedup_on(
    cluster: Cluster, pattern: str, output: Path, *, memory: str = "1GB", threads: int = 0,
    say: Say = _silent, on_progress: OnProgress = silent,
) -> HashDedupReport:  # fmt: skip
    """Like `dedup_hashes`, for shards on storage that driver and executors mount."""
    begin = time.monotonic()
    check_name(str(output.absolute()))
    shards = [
        shard._replace(files=tuple(file.absolute() for file in shard.files))
        for shard in shards_of(pattern, output=output)
    ]
    count = min(len(shards), 4 * cluster.cores)
    parts = [
        shards[i * len(shards) // count : (i + 1) * len(shards) // count] for i in range(count)
    ]
    tasks = [
        (number, part, [file.stat().st_size for shard in part for file in shard.files])
        for number, part in enumerate(parts)
    ]
    report = HashDedupReport(shards=len(shards))
    say(f"{len(shards):,} shards in {len(tasks):,} tasks")
    with (
        open_database(output.absolute().parent, memory, threads) as (database, home),
        cluster.shown("grouping", on_progress),
    ):
        files = PieceWriter(home)
        for batch in cluster.in_turn(tasks):
            for row in cluster.rows(partial(_dedup, memory, threads or 1), batch):
                if isinstance(row, FilePiece):
                    files.take(row)
                else:
                    for name, value in vars(row).items():
                        if name not in _OF_WHOLE:
                            setattr(report, name, getattr(report, name) + value)
        files.finish()
        paths = ", ".join(quoted(literal(home / name)) for name in files.names)
        write_rows(database, f"SELECT * FROM read_parquet([{paths}])", output)
    return _timed(report, begin)


def _dedup(memory: str, threads: int, task: Task) -> Iterator[FilePiece | HashDedupReport]:
    """Run on an executor."""
    number, shards, sizes = task
    files = [file for shard in shards for file in shard.files]
    for file, size in zip(files, sizes, strict=True):
        if not file.is_file() or file.stat().st_size != size:
            raise BadInput(
                f"an executor cannot read the same {file} as the driver: with --spark put "
                "shards on storage that the driver and all executors mount"
            )
    with tempfile.TemporaryDirectory(prefix="dedupindex-") as home:
        output = Path(home) / _OUTPUT
        report = dedup_shards(shards, output, memory, threads)
        yield from pieces(output, f"{number:06d}-{_OUTPUT}")
    yield report
