"""``bin/run_pipeline``: hash and deduplicate on one machine."""

from __future__ import annotations

from pathlib import Path

import click

from dedupindex.cli.common import Command, interrupt_on_sigterm, print_json, say, warn
from dedupindex.cli.options import jobs_option, json_option, memory_option
from dedupindex.documents.both_stages import run_pipeline
from dedupindex.documents.hash_objects import HashOptions
from dedupindex.documents.shards import CHARACTERS, FORMATS, ShardLayout
from dedupindex.errors import Damaged
from dedupindex.runtime.tables import amount, printable

EXAMPLES = """
bin/run_pipeline '/data/[0-7]*,/data/[89a-f]*' out     out/unique has a file for each shard
bin/run_pipeline '/data/**' out --debug                one process at a time, and what each did
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("globs", metavar="GLOBS")
@click.argument("output_dir", metavar="OUTPUT_DIR", type=click.Path(path_type=Path))
@click.option("--debug", is_flag=True, help="Run the processes one by one, and say what each did.")
@click.option(
    "--characters", type=click.IntRange(1, CHARACTERS), default=1, show_default=True,
    help="Of the hash, that tell the shard.",
)  # fmt: skip
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="parquet", show_default=True,
    help="Of shards and output.",
)  # fmt: skip
@jobs_option("Processes for all globs together.")
@memory_option("What DuckDB may take, in each process.")
@json_option
def command(
    globs: str,
    output_dir: Path,
    debug: bool,
    characters: int,
    form: str,
    jobs: int,
    memory: str,
    as_json: bool,
) -> int:
    """Hash what GLOBS (separated by commas) name, a process for each, and keep one path a hash.

    OUTPUT_DIR/hashes has the shards of bin/hash_documents, OUTPUT_DIR/unique what bin/dedup_hashes
    makes of each. Run again, only what is new or has changed is hashed.
    """
    interrupt_on_sigterm()
    named = [part.strip() for part in globs.split(",") if part.strip()]
    if not named:
        raise click.UsageError("GLOBS names nothing")
    options = HashOptions(ShardLayout(characters, form), jobs, memory=memory)
    report = run_pipeline(
        named, output_dir, options, one_by_one=debug, say=say if debug else lambda text: None
    )
    failed = 0
    for done in report.hashing:
        warn(done.problems)
        failed += done.report.as_json()["problems"]
    said = report.as_json()
    if as_json:
        print_json(said)
    else:
        click.echo(
            f"{printable(str(output_dir))}: {said['unique_files']:,} unique of "
            f"{said['total_files']:,} files in {said['elapsed_time_secs']:.1f} s; "
            f"{said['duplicate_files']:,} duplicates"
            + (f", {amount(said['bytes_saved'])} saved" if said["bytes_saved"] else "")
        )
    if not failed:
        return 0
    say(f"status 7: {failed:,} objects could not be read, and are left out")
    return Damaged.exit_status
