"""``bin/convert``: convert ARC files to WARC, and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click

from dedupindex.cli.common import Command, print_result, say, warn
from dedupindex.cli.options import PATH, flag, option, shared_options
from dedupindex.errors import BadSource, Damaged
from dedupindex.post_crawl.convert.arc_to_warc import (
    ConvertOutcome,
    conversion_tasks,
    convert_all,
    restore_tasks,
)
from dedupindex.runtime.tables import amount, singular

EXAMPLES = """
bin/convert /data/arcs --out /data/warcs               one WARC for each ARC
bin/convert --back /data/warcs --out /data/arcs-again  bit for bit
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("sources", nargs=-1, required=True, metavar="ARC...")
@option("--out", required=True, type=PATH, help="Write the files below this directory.")
@flag("--back", help="Restore the ARC files from such WARC files.")
@flag("--content-only", help="Keep only the content of gzip members that zlib cannot reproduce.")
@shared_options("--jobs", "--json")
def command(sources: tuple[str, ...], out: Path, back: bool, content_only: bool, jobs: int) -> int:
    """Convert each ARC file to a WARC file from which the ARC file can be restored.

    Each result is verified by restoring the ARC file from it. Files that are damaged, ambiguous or
    still being written are left alone and named; the exit status is then 7.
    """
    if back and content_only:
        raise click.UsageError("--content-only has no effect with --back")
    if back:
        tasks, found = restore_tasks(sources, out)
    else:
        tasks, found = conversion_tasks(sources, out, keep=not content_only)
    warn(found.problems)
    if not tasks:
        raise BadSource(f"there is no {'WARC' if back else 'ARC'} file in {', '.join(sources)}")
    outcomes = convert_all(tasks, out, jobs, back=back)
    status = _print_outcomes(outcomes, len(tasks), found.skipped, back=back)
    return Damaged.exit_status if found.problems else status


def _print_outcomes(
    outcomes: Iterator[ConvertOutcome], count: int, skipped: int, *, back: bool
) -> int:
    """Print the outcome of each file and the totals; returns the exit status."""
    states: Counter[str] = Counter()
    totals = dict.fromkeys(("responses", "resources", "bytes_before", "bytes_after", "kept"), 0)
    for outcome in outcomes:
        if outcome.state == "skipped":
            skipped += 1
            continue
        states[outcome.state] += 1
        for name in totals:
            totals[name] += getattr(outcome, name)
        if outcome.state == "left_alone":
            say(f"warning: {outcome.name} was left alone: {outcome.problem}")
        else:
            sizes = f"{amount(outcome.bytes_before)} to {amount(outcome.bytes_after)}"
            say(f"{states.total():,} of {count:,}: {outcome.name}: {outcome.state}, {sizes}")
    if not states:
        made = "was made of an ARC file by bin/convert" if back else "is an ARC file"
        say(singular(f"nothing was written: of {count:,} files none ") + made)
    counts = ", ".join(f"{number:,} {state}" for state, number in sorted(states.items()))
    counts = counts.replace("_", " ")
    lines = [
        f"files: {counts or 'none'}; "
        + singular(f"{totals['responses']:,} responses, {totals['resources']:,} resources; ")
        + f"{amount(totals['bytes_before'])} to {amount(totals['bytes_after'])}"
    ]
    if totals["kept"]:
        lines.append(f"  gzip members kept unchanged: {amount(totals['kept'])}")
    if skipped:
        lines.append(f"  files skipped, of other kinds: {skipped:,}")
    print_result({**dict(sorted(states.items())), **totals, "skipped": skipped}, lines)
    return Damaged.exit_status if states["left_alone"] else 0
