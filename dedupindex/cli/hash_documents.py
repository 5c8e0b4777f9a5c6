"""``bin/hash_documents``: the BLAKE3 of every object that a glob names, into shards."""

from __future__ import annotations

from pathlib import Path

import click

from dedupindex.cli.common import Command, interrupt_on_sigterm, print_json, say, warn
from dedupindex.cli.options import jobs_option, json_option, memory_option, verbose_option
from dedupindex.cli.progress_bar import show_progress
from dedupindex.documents.hash_objects import HashOptions, HashReport, hash_documents
from dedupindex.documents.shards import CHARACTERS, FORMATS, ShardLayout
from dedupindex.errors import Damaged
from dedupindex.runtime.tables import amount, printable

EXAMPLES = """
bin/hash_documents '/data/docs/**/*.pdf' hashes        again: only what is new or changed
bin/hash_documents /data/docs hashes --json               a directory: all that is below it
bin/hash_documents '/data/[a-m]*' hashes --characters 2 --format csv
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("input_glob", metavar="INPUT_GLOB")
@click.argument("output_dir", metavar="OUTPUT_DIR", type=click.Path(path_type=Path))
@click.option(
    "--characters", type=click.IntRange(1, CHARACTERS), default=1, show_default=True,
    help="Of the hash, that tell the shard: 16 shards with one, 65,536 with four.",
)  # fmt: skip
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="parquet", show_default=True,
    help="Of the shards; csv has no sizes.",
)  # fmt: skip
@click.option(
    "--deterministic", is_flag=True,
    help="Take the run id from INPUT_GLOB: the same input gives the same files.",
)  # fmt: skip
@jobs_option("Processes that hash side by side; large objects are hashed by as many threads.")
@memory_option("What DuckDB may take to sort the rows; the rest goes to disk, in OUTPUT_DIR.")
@verbose_option
@json_option
def command(
    input_glob: str,
    output_dir: Path,
    characters: int,
    form: str,
    deterministic: bool,
    jobs: int,
    memory: str,
    verbose: bool,
    as_json: bool,
) -> int:
    """Hash every object that INPUT_GLOB names, and write hash and path into shards in OUTPUT_DIR.

    Shards are named after the first characters of the hashes in them and the run. A run that was
    killed goes on where it was. What cannot be read, or is written to meanwhile, is named and left
    out; the exit status is then 7.
    """
    interrupt_on_sigterm()
    options = HashOptions(ShardLayout(characters, form), jobs, deterministic, memory)
    with show_progress(verbose=verbose) as progress:
        report = hash_documents(
            input_glob, output_dir, options, lambda problem: warn([problem]), progress
        )
    if as_json:
        print_json(report.as_json())
    else:
        _tell(report, output_dir)
    if not report.problems:
        return 0
    say(f"status 7: {report.problems:,} objects, named above, are in no shard")
    return Damaged.exit_status


def _tell(report: HashReport, output_dir: Path) -> None:
    click.echo(
        f"{report.num_files_processed:,} files hashed, {amount(report.bytes)} in "
        f"{report.elapsed_time_secs:.1f} s ({report.rate_mb_per_sec:,.0f} MB/s); known before: "
        f"{report.known:,}, gone: {report.gone:,}"
    )
    click.echo(
        f"{printable(str(output_dir))}: {report.rows:,} rows in {report.shards:,} shards of run "
        f"{report.run}"
    )
