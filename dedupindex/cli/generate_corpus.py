"""``bin/generate_corpus``: files to try deduplication on."""

from __future__ import annotations

import re
from pathlib import Path

import click

from dedupindex.cli.common import Command, interrupt_on_sigterm, print_json
from dedupindex.cli.options import json_option, verbose_option
from dedupindex.cli.progress_bar import show_progress
from dedupindex.documents.generate import GeneratorOptions, generate
from dedupindex.runtime.tables import amount, printable

EXAMPLES = """
bin/generate_corpus /data/corpus                       2 GiB, a file in twenty a copy
bin/generate_corpus corpus --size 100MiB --duplicates 0.3 --seed 7 --json
"""
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]?)i?B?", re.IGNORECASE)
_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def _size(ctx: click.Context, param: click.Parameter, value: str) -> int:
    """Bytes: a number with KiB, MiB, GiB or TiB."""
    match = _SIZE.fullmatch(value)
    if match is None:
        raise click.BadParameter(f"{value} is no size: write a number with KiB, MiB or GiB")
    return round(float(match[1]) * int(1024 ** _UNITS[match[2].upper()]))


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--size", callback=_size, default="2GiB", show_default=True, help="Of all files.")
@click.option(
    "--duplicates", type=click.FloatRange(0, 1), default=0.05, show_default=True,
    help="How many of the files are copies of the one before.",
)  # fmt: skip
@click.option("--mean", callback=_size, default="500KiB", show_default=True, help="Of a file.")
@click.option(
    "--deviation", callback=_size, default="5KiB", show_default=True,
    help="Standard deviation of that; no file is smaller than 1 KiB.",
)  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="The same gives the same files.")
@verbose_option
@json_option
def command(
    directory: Path,
    size: int,
    duplicates: float,
    mean: int,
    deviation: int,
    seed: int,
    verbose: bool,
    as_json: bool,
) -> int:
    """Make DIR with random files, some of them copies of others.

    Their names are 32 hexadecimal digits, their sizes normally distributed.
    """
    interrupt_on_sigterm()
    with show_progress(verbose=verbose) as progress:
        corpus = generate(
            directory, GeneratorOptions(size, duplicates, mean, deviation, seed), progress
        )
    if as_json:
        print_json(corpus.as_json())
    else:
        click.echo(
            f"{printable(str(directory))}: {corpus.files:,} files, {amount(corpus.bytes)}; "
            f"{corpus.duplicates:,} copies, {amount(corpus.duplicate_bytes)}"
        )
    return 0
