"""``bin/dedup_hashes``: of all paths with the same hash, the first."""

from __future__ import annotations

from pathlib import Path

import click

from dedupindex.cli.common import Command, interrupt_on_sigterm, print_json, say
from dedupindex.cli.options import json_option, memory_option, spark_option
from dedupindex.documents.dedup_shards import HashDedupReport, dedup_hashes, dedup_on
from dedupindex.runtime.spark import spark_session
from dedupindex.runtime.tables import amount, printable

EXAMPLES = """
bin/dedup_hashes hashes unique.parquet                 all shards of a directory
bin/dedup_hashes 'hashes/a_*' a.csv --json             one shard, here or on a host of its own
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("input_glob", metavar="INPUT_GLOB")
@click.argument("output_file", metavar="OUTPUT_FILE", type=click.Path(path_type=Path))
@memory_option("What DuckDB may take; the rest goes to disk, beside OUTPUT_FILE.")
@click.option(
    "--threads", type=click.IntRange(0), default=0, show_default="number of cores",
    help="That DuckDB uses.",
)  # fmt: skip
@spark_option
@click.option("-v", "--verbose", is_flag=True, help="Say which shards are read.")
@json_option
def command(
    input_glob: str,
    output_file: Path,
    memory: str,
    threads: int,
    spark: str,
    verbose: bool,
    as_json: bool,
) -> int:
    """Write each hash in the shards that INPUT_GLOB names once, with one path: the first by name.

    Shards are Parquet or CSV, as bin/hash_documents writes them. OUTPUT_FILE is CSV if its name
    ends so, otherwise Parquet, with the size and the number of equal files.
    """
    interrupt_on_sigterm()
    tell_shards = say if verbose else lambda text: None
    if spark:
        with spark_session(spark) as cluster:
            report = dedup_on(
                cluster, input_glob, output_file, memory=memory, threads=threads, say=tell_shards
            )
    else:
        report = dedup_hashes(
            input_glob, output_file, memory=memory, threads=threads, say=tell_shards
        )
    if as_json:
        print_json(report.as_json())
    else:
        tell(report, output_file)
    return 0


def tell(report: HashDedupReport, output: Path) -> None:
    """Say what became of the rows."""
    click.echo(
        f"{printable(str(output))}: {report.unique_files:,} unique of {report.total_files:,} files "
        f"in {report.elapsed_time_secs:.1f} s ({report.rate_rps:,.0f} rows/s)"
    )
    saved = f"; {amount(report.bytes_saved)} of {amount(report.total_bytes)} saved"
    sizes = saved if report.unsized < report.total_files else ""
    click.echo(f"  {report.duplicate_files:,} duplicates{sizes}")
    if report.repeated:
        click.echo(f"  {report.repeated:,} rows name a path again: globs overlap")
    if report.unsized:
        click.echo(f"  {report.unsized:,} rows tell no size, and count nothing as saved")
