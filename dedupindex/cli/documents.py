"""The commands for documents: hash, deduplicate, both in a pipeline, and generate a corpus."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from dedupindex.cli.common import RESUMED, Command, print_result, say, status_7, warn
from dedupindex.cli.options import (
    PATH,
    Number,
    RealNumber,
    flag,
    option,
    parse_size,
    path_or_address,
    shared_options,
)
from dedupindex.cli.output_files import PARQUET, UNIQUE_CSV, check_output
from dedupindex.cli.progress_bar import show_progress
from dedupindex.documents.both_stages import run_pipeline
from dedupindex.documents.dedup_shards import HashDedupReport, dedup_hashes, dedup_on
from dedupindex.documents.generate import GeneratorOptions, generate
from dedupindex.documents.hash_objects import HashOptions, hash_documents
from dedupindex.documents.shards import CHARACTERS, FORMATS, ShardLayout
from dedupindex.runtime.spark import spark_session
from dedupindex.runtime.tables import amount, printable, rate

HASH_EXAMPLES = """
bin/hash_documents '/data/docs/**/*.pdf' hashes        # later runs hash new and changed objects
bin/hash_documents /data/docs hashes --json               # everything below a directory
bin/hash_documents '/data/[a-m]*' hashes --characters 2 --format csv
bin/hash_documents 's3://bucket/docs/[0-7]*' s3://bucket/hashes
"""
DEDUP_EXAMPLES = """
bin/dedup_hashes hashes unique.parquet                 # all shards of a directory
bin/dedup_hashes 's3://bucket/hashes/a_*' s3://bucket/unique/a.parquet
bin/dedup_hashes 'hashes/a_*' a.csv --json             # one shard, here or on a host of its own
"""
PIPELINE_EXAMPLES = """
bin/run_pipeline '/data/[0-7]*,/data/[89a-f]*' out     # out/unique has a file for each shard
bin/run_pipeline '/data/**' out --debug                # one process at a time, with its output
"""
GENERATE_EXAMPLES = """
bin/generate_corpus /data/corpus                       # 2 GiB, one file in twenty a copy
bin/generate_corpus corpus --size 100MiB --duplicates 0.3 --seed 7 --json
"""
_DIGITS = "Digits of the hash that name the shard: 16 shards with one, 65,536 with four."
_characters_option = option("--characters", type=Number(1, CHARACTERS), default=1, help=_DIGITS)
_format_option = option(
    "--format", type=click.Choice(FORMATS), default="parquet", help="csv has no sizes."
)


@click.command(cls=Command, examples=HASH_EXAMPLES, interrupted=RESUMED)
@click.argument("input_glob", metavar="INPUT_GLOB")
@click.argument("output_dir", metavar="OUTPUT_DIR", type=path_or_address)
@_characters_option
@_format_option
@flag("--deterministic", help="Derive the run id from INPUT_GLOB: same input, same files.")
@flag("--decompress", help="Hash the content of gzip, bzip2 and zstd files; sizes are its sizes.")
@shared_options("--jobs", help="Processes; large objects are hashed by as many threads.")
@shared_options("--memory", help="Memory for DuckDB; the rest goes to disk, in OUTPUT_DIR.")
@shared_options("--verbose", "--json")
def hash_command(
    input_glob: str,
    output_dir: Path | str,
    characters: int,
    format: str,
    verbose: bool,
    **options: Any,
) -> int:
    """Hash every object that INPUT_GLOB matches; write hashes and paths to shards in OUTPUT_DIR.

    Shards are named after the first digits of their hashes and the run. OUTPUT_DIR may be in an
    object store, as s3://bucket/hashes. An interrupted run is resumed. Objects that cannot be read
    or change meanwhile are named and left out; the exit status is then 7.
    """
    chosen = HashOptions(ShardLayout(characters, format), **options)
    with show_progress(verbose=verbose) as progress:
        report = hash_documents(
            input_glob, output_dir, chosen, lambda problem: warn([problem]), progress
        )
    hashed = (
        f"{report.num_files_processed:,} files hashed, {amount(report.bytes)} in "
        f"{_timed(report.elapsed_time_secs, report.bytes, 'B')}; known before: "
        f"{report.known:,}, gone: {report.gone:,}"
    )
    shards = f"{report.rows:,} rows in {report.shards:,} shards of run {report.run}"
    print_result(report, [hashed, f"{printable(str(output_dir))}: {shards}"])
    if report.problems:
        return status_7(f"{report.problems:,} objects, named above, are in no shard")
    return 0


@click.command(cls=Command, examples=DEDUP_EXAMPLES)
@click.argument("input_glob", metavar="INPUT_GLOB")
@click.argument("output_file", metavar="OUTPUT_FILE", type=path_or_address)
@shared_options("--memory", help="Memory for DuckDB; the rest goes to disk, beside OUTPUT_FILE.")
@shared_options("--threads", "--spark")
@shared_options("--verbose", help="Print which shards are read.")
@shared_options("--json")
def dedup_command(
    input_glob: str, output_file: Path | str, spark: str, verbose: bool, **options: Any
) -> int:
    """Write each hash in the shards of INPUT_GLOB once, with its first path by name.

    Shards are Parquet or CSV, as bin/hash_documents writes them. OUTPUT_FILE is CSV if its name
    ends in .csv, otherwise Parquet, with the size and the number of equal files.
    """
    if isinstance(output_file, Path):
        is_csv = output_file.suffix.lower() == ".csv"
        check_output(output_file, UNIQUE_CSV if is_csv else PARQUET)
    if verbose:
        options["say"] = say
    if spark:
        if isinstance(output_file, str):
            raise click.UsageError("--spark writes OUTPUT_FILE to a disk, not to an address")
        with spark_session(spark) as cluster, show_progress() as progress:
            report = dedup_on(cluster, input_glob, output_file, **options, on_progress=progress)
    else:
        with show_progress() as progress:
            report = dedup_hashes(input_glob, output_file, **options, on_progress=progress)
    print_result(report, _dedup_lines(report, output_file))
    return 0


def _timed(seconds: float, count: int, unit: str) -> str:
    """Return how long a run took, and its rate if that is known."""
    each = rate(count, seconds, unit)
    return f"{seconds:.1f} s" + (f" ({each})" if each else "")


def _dedup_lines(report: HashDedupReport, output: Path | str) -> Iterator[str]:
    yield (
        f"{printable(str(output))}: {report.unique_files:,} unique of {report.total_files:,} files "
        f"in {_timed(report.elapsed_time_secs, report.total_files, ' rows')}"
    )
    saved = f"; {amount(report.bytes_saved)} of {amount(report.total_bytes)} saved"
    sizes = saved if report.unsized < report.total_files else ""
    yield f"  {report.duplicate_files:,} duplicates{sizes}"
    if report.repeated:
        yield f"  {report.repeated:,} rows repeat a path: globs overlap"
    if report.unsized:
        yield f"  {report.unsized:,} rows have no size and are not counted as saved"


@click.command(cls=Command, examples=PIPELINE_EXAMPLES, interrupted=RESUMED)
@click.argument("globs", metavar="GLOBS")
@click.argument("output_dir", metavar="OUTPUT_DIR", type=PATH)
@flag("--debug", help="Run the processes one by one, and print what each did.")
@_characters_option
@_format_option
@shared_options("--jobs", help="Processes for all globs together.")
@shared_options("--memory", help="Memory for DuckDB, in each process.")
@shared_options("--json")
def pipeline_command(
    globs: str,
    output_dir: Path,
    debug: bool,
    characters: int,
    format: str,
    **options: Any,
) -> int:
    """Hash what GLOBS (separated by commas) match, a process for each, and keep one path a hash.

    OUTPUT_DIR/hashes has the shards of bin/hash_documents, OUTPUT_DIR/unique the output of
    bin/dedup_hashes for each. Later runs hash only new and changed objects.
    """
    named = [part.strip() for part in globs.split(",") if part.strip()]
    if not named:
        raise click.UsageError("GLOBS is empty")
    chosen = HashOptions(ShardLayout(characters, format), **options)
    with show_progress() as progress:
        report = run_pipeline(
            named, output_dir, chosen, one_by_one=debug,
            say=say if debug else lambda text: None, on_progress=progress,
        )  # fmt: skip
    warn(report.problems)
    totals = report.as_json()
    line = (
        f"{printable(str(output_dir))}: {totals['unique_files']:,} unique of "
        f"{totals['total_files']:,} files in {totals['elapsed_time_secs']:.1f} s; "
        f"{totals['duplicate_files']:,} duplicates"
    )
    saved = f", {amount(totals['bytes_saved'])} saved" if totals["bytes_saved"] else ""
    print_result(totals, [line + saved])
    if failed := sum(step["problems"] for step in totals["hash_documents"]):
        return status_7(f"{failed:,} objects could not be read, and are left out")
    return 0


@click.command(cls=Command, examples=GENERATE_EXAMPLES)
@click.argument("directory", metavar="DIR", type=PATH)
@option("--size", callback=parse_size, default="2GiB", help="Size of all files.")
@option(
    "--duplicates", type=RealNumber(0, 1), default=0.05,
    help="Share of files that are copies.",
)  # fmt: skip
@option("--mean", callback=parse_size, default="500KiB", help="Mean size of a file.")
@option(
    "--deviation", callback=parse_size, default="5KiB", help="Standard deviation; minimum 1 KiB."
)
@option("--ending", default=".bin", help="Of the names of files, such as .txt.")
@option("--seed", default=0, help="The same seed gives the same files.")
@shared_options("--verbose", "--json")
def generate_command(directory: Path, verbose: bool, **options: Any) -> int:
    """Make DIR with random files, some of them copies of others.

    Names have 32 hexadecimal digits; sizes are normally distributed.
    """
    with show_progress(verbose=verbose) as progress:
        corpus = generate(directory, GeneratorOptions(**options), progress)
    files = f"{corpus.files:,} files, {amount(corpus.bytes)}"
    copies = f"{corpus.duplicates:,} copies, {amount(corpus.duplicate_bytes)}"
    print_result(corpus, [f"{printable(str(directory))}: {files}; {copies}"])
    return 0
