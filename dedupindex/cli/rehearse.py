"""``bin/rehearse``: try bin/dedup on copies, step by step."""

from __future__ import annotations

from typing import Any

import click

from dedupindex.cli.common import UNSOUND, Command, print_json, say
from dedupindex.cli.options import COUNT, PATH, flag, option, shared_options
from dedupindex.cli.progress_bar import show_progress
from dedupindex.post_crawl.rehearsal import RehearseOptions, Step, rehearse
from dedupindex.runtime.tables import amount, printable, singular

EXAMPLES = """
bin/rehearse ~/warcs --work /data/rehearsal               seven steps; ~/warcs is not changed
bin/rehearse ~/warcs --work /data/rehearsal --sample 1000 --seed 7
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@option(
    "--work", required=True, type=PATH, metavar="DIR",
    help="Directory for the copies; needs four times the space of SOURCEs.",
)  # fmt: skip
@option("--sample", type=COUNT, default=100, help="Revisits to rebuild.")
@option("--seed", default=0, help="Chooses the sample.")
@shared_options("--memory", "--jobs", "--verbose")
@flag("--json", "as_json", help="JSON on stdout, a line for each step.")
def command(sources: tuple[str, ...], verbose: bool, as_json: bool, **options: Any) -> int:
    """Run bin/dedup on copies of SOURCEs, and check every step.

    The steps: test, manifest, convert, validate, dedup, compare, commit. The exit status is 8 if
    one of them failed.
    """
    sound = True
    with show_progress(verbose=verbose) as progress:
        for step in rehearse(list(sources), RehearseOptions(**options), say, progress):
            sound = sound and step.sound
            if as_json:
                print_json(step.as_json())
            else:
                _print_step(step)
    return 0 if sound else UNSOUND


def _print_step(step: Step) -> None:
    verdict = "passed" if step.sound else singular(f"failed: {step.failed:,} things")
    click.echo(f"{step.name}: {verdict} ({step.seconds:.1f} s)")
    for name, value in step.numbers.items():
        text = "no pywb on PATH" if value is None else str(value)
        if isinstance(value, dict):
            text = ", ".join(f"{what} {count:,}" for what, count in value.items()) or "none"
        elif isinstance(value, int):
            text = amount(value) if name.startswith("bytes") else f"{value:,}"
        click.echo(f"  {name.replace('_', ' '):<14} {text}")
    for problem in step.problems:
        click.echo(f"  ! {printable(problem)}")
