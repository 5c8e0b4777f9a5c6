"""``bin/convert``: convert ARC files to WARC and back, and compress WARC files anew."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from dedupindex.cli.common import Command, print_result, say, warn
from dedupindex.cli.options import PATH, flag, option, shared_options
from dedupindex.cli.progress_bar import show_progress
from dedupindex.cli.result_lists import check_outputs, write_cdxj
from dedupindex.errors import BadSource, Damaged
from dedupindex.post_crawl.convert.arc_to_warc import (
    conversion_tasks,
    convert,
    convert_all,
    restore_arc,
    restore_tasks,
)
from dedupindex.post_crawl.convert.conversion import ConvertOutcome, ConvertTask
from dedupindex.post_crawl.convert.recompress import (
    GZIP,
    ZSTD,
    map_lines,
    recompress,
    recompress_tasks,
)
from dedupindex.post_crawl.convert.repoint import repoint as repoint_file
from dedupindex.post_crawl.convert.repoint import repoint_tasks
from dedupindex.runtime.files import atomic_file
from dedupindex.runtime.progress import finished
from dedupindex.runtime.tables import amount, singular
from dedupindex.sources.warc_files import is_index

EXAMPLES = """
bin/convert /data/arcs --out /data/warcs               one WARC for each ARC
bin/convert --back /data/warcs --out /data/arcs-again  bit for bit
bin/convert --to gzip /data/zstd --out /data/gzip      .warc.gz, which every replay tool reads
bin/convert --repoint /data/warcs --out /data/changed  revisits of revisits name the original
bin/convert --to zstd /data/warcs --out /data/zstd     .warc.zst with a dictionary, a fifth smaller
"""


_ARC_COUNTS, _RECORD_COUNTS = ("responses", "resources"), ("records",)
_LABELS = {"repointed": "revisits re-pointed"}  # others are their own


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("sources", nargs=-1, required=True, metavar="FILE...")
@option("--out", required=True, type=PATH, help="Write the files below this directory.")
@option("--to", "kind", type=click.Choice([GZIP, ZSTD]), help="Compress WARC files with this.")
@shared_options("--offsets", help="With --to: write a map of old to new offsets here.")
@shared_options("--cdxj")
@flag("--repoint", help="Let revisits that refer to revisits refer to the original instead.")
@flag("--back", help="Restore the ARC files from such WARC files.")
@flag("--content-only", help="Keep only the content of gzip members that zlib cannot reproduce.")
@shared_options("--zstd-dictionary")
@shared_options("--jobs", "--json")
def command(
    sources: tuple[str, ...],
    out: Path,
    kind: str | None,
    offsets: Path | None,
    cdxj: Path | None,
    repoint: bool,
    back: bool,
    content_only: bool,
    jobs: int,
) -> int:
    """Convert each ARC file to a WARC file from which the ARC file can be restored.

    Each result is verified by restoring the ARC file from it. With --to, compress each WARC file
    anew; each result is verified by comparing its records with those of the file. Files that are
    damaged, ambiguous or still being written are left alone and named; the exit status is then 7.
    """
    if back and content_only:
        raise click.UsageError("--content-only has no effect with --back")
    if kind is not None and (back or content_only):
        raise click.UsageError("--back and --content-only are for ARC files, --to for WARC")
    if offsets is not None and kind is None:
        raise click.UsageError("--offsets goes with --to")
    if cdxj is not None and back:
        raise click.UsageError("--cdxj has no effect with --back")
    if repoint and (kind is not None or back or content_only):
        raise click.UsageError("--repoint goes with no other conversion")
    check_outputs((offsets, cdxj))
    if repoint:
        return _repoint(sources, out, cdxj, jobs)
    if kind is not None:
        return _recompress(sources, out, kind, offsets, cdxj, jobs)
    if back:
        tasks, found = restore_tasks(sources, out)
    else:
        tasks, found = conversion_tasks(sources, out, keep=not content_only)
    warn(found.problems)
    if not tasks:
        raise _none(sources, "WARC" if back else "ARC")
    outcomes = convert_all(tasks, out, jobs, restore_arc if back else convert)
    made = "was made of an ARC file by bin/convert" if back else "is an ARC file"
    left_alone = _print_outcomes(outcomes, tasks, found.skipped, _ARC_COUNTS, made)
    sound = cdxj is None or write_cdxj(_names(tasks, left_alone, out), cdxj, jobs)
    return 0 if sound and not (found.problems or left_alone) else Damaged.exit_status


def _none(sources: tuple[str, ...], kinds: str) -> BadSource:
    if indexes := [name for name in sources if is_index(name)]:
        return BadSource(f"{indexes[0]} is an index; name archives")
    return BadSource(f"there is no {kinds} file to convert in {', '.join(sources)}")


def _repoint(sources: tuple[str, ...], out: Path, cdxj: Path | None, jobs: int) -> int:
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".repoint-", dir=out) as home:
        tasks, found, left = repoint_tasks(list(sources), out, Path(home), jobs)
        warn(found.problems)
        for reason, count in left.items():
            say(f"revisits of revisits left as they are, {reason}: {count:,}")
        outcomes = convert_all(tasks, out, jobs, repoint_file)
        made = "has a revisit of a revisit"
        left_alone = _print_outcomes(outcomes, tasks, found.skipped, ("repointed",), made)
    sound = cdxj is None or write_cdxj(_names(tasks, left_alone, out), cdxj, jobs)
    return 0 if sound and not (found.problems or left_alone) else Damaged.exit_status


def _recompress(
    sources: tuple[str, ...],
    out: Path,
    kind: str,
    offsets: Path | None,
    cdxj: Path | None,
    jobs: int,
) -> int:
    with ExitStack() as stack:
        maps = None
        if offsets is not None:
            maps = Path(stack.enter_context(TemporaryDirectory(prefix="dedupindex-convert-")))
        tasks, found = recompress_tasks(sources, out, kind, maps)
        warn(found.problems)
        if not tasks:
            kinds = "plain or zstd WARC" if kind == GZIP else "WARC"
            raise _none(sources, kinds)
        outcomes = convert_all(tasks, out, jobs, recompress)
        made = "is a sound WARC file"
        left_alone = _print_outcomes(outcomes, tasks, found.skipped, _RECORD_COUNTS, made)
        if offsets is not None:
            with atomic_file(offsets) as stream:
                stream.writelines(map_lines(tasks))
    sound = cdxj is None or write_cdxj(_names(tasks, left_alone, out), cdxj, jobs)
    return 0 if sound and not (found.problems or left_alone) else Damaged.exit_status


def _names(tasks: list[ConvertTask], left_alone: set[str], out: Path) -> dict[str, str]:
    """Return the names below `out` of the files that exist now, by path."""
    targets = [task.target for task in tasks if task.path not in left_alone]
    return {os.path.abspath(path): os.path.relpath(path, out) for path in targets}


def _print_outcomes(
    outcomes: Iterator[ConvertOutcome], tasks: list[ConvertTask], skipped: int,
    counted: tuple[str, ...], made: str,
) -> set[str]:  # fmt: skip
    """Print the outcome of each file and the totals; returns the files that were left alone."""
    states: Counter[str] = Counter()
    left_alone = set[str]()
    totals = dict.fromkeys((*counted, "bytes_before", "bytes_after", "kept"), 0)
    with show_progress() as progress:
        for outcome in finished(outcomes, "converting", len(tasks), progress):
            if outcome.state == "skipped":
                skipped += 1
                continue
            states[outcome.state] += 1
            for name in totals:
                totals[name] += getattr(outcome, name)
            if outcome.state == "left_alone":
                left_alone.add(outcome.name)
                say(f"warning: {outcome.name} was left alone: {outcome.problem}")
            else:
                sizes = f"{amount(outcome.bytes_before)} to {amount(outcome.bytes_after)}"
                which = f"{states.total():,} of {len(tasks):,}: {outcome.name}"
                say(f"{which}: {outcome.state}, {sizes}")
    if not states:
        say(singular(f"nothing was written: of {skipped:,} files none ") + made)
    counts = ", ".join(f"{number:,} {state}" for state, number in sorted(states.items()))
    counts = counts.replace("_", " ")
    lines = [
        f"files: {counts or 'none'}; "
        + singular(", ".join(f"{totals[one]:,} {_LABELS.get(one, one)}" for one in counted) + "; ")
        + f"{amount(totals['bytes_before'])} to {amount(totals['bytes_after'])}"
    ]
    if totals["kept"]:
        lines.append(f"  gzip members kept unchanged: {amount(totals['kept'])}")
    if skipped:
        lines.append(f"  files skipped, not to be converted: {skipped:,}")
    print_result({**dict(sorted(states.items())), **totals, "skipped": skipped}, lines)
    return left_alone
