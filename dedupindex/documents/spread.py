"""Shards deduplicated on a cluster by what deduplicates them here: no hash is in two of them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from dedupindex.documents.dedup_shards import HashDedupReport, dedup_shards
from dedupindex.documents.read_shards import Shard, shards_of
from dedupindex.documents.shards import write_rows
from dedupindex.errors import BadInput
from dedupindex.runtime.duckdb import literal, quoted, working
from dedupindex.runtime.spark import Cluster, FilePiece, PieceWriter, pieces

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
    with working(output.absolute().parent, memory, threads) as (database, home):
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
