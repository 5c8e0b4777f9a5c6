"""``bin/convert``: convert ARC files to WARC and back, and compress WARC files anew."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from dedupindex.cli.common import RESUMED, Command, print_result, say, warn
from dedupindex.cli.options import OUT, flag, option, path_or_address, shared_options
from dedupindex.cli.progress_bar import show_progress
from dedupindex.cli.result_lists import check_outputs, write_cdxj
from dedupindex.cli.sent_requests import NO_CDXJ, sent_requests
from dedupindex.errors import BadSource, Damaged
from dedupindex.object_store import CountedRequests, check_creatable, counted_requests
from dedupindex.post_crawl.convert.arc_to_warc import (
    conversion_tasks,
    convert,
    restore_arc,
    restore_tasks,
)
from dedupindex.post_crawl.convert.conversion import (
    ConvertOutcome,
    ConvertTask,
    Work,
    convert_all,
)
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
from dedupindex.sources.warc_files import Sources, is_index

EXAMPLES = """
bin/convert /data/arcs --out /data/warcs               # one WARC for each ARC
bin/convert --back /data/warcs --out /data/arcs-again  # bit for bit
bin/convert --to gzip /data/zstd --out /data/gzip      # .warc.gz, which every replay tool reads
bin/convert --repoint /data/warcs --out /data/changed  # revisits of revisits name the original
bin/convert --to zstd /data/warcs --out /data/zstd     # .warc.zst with a dictionary
bin/convert s3://bucket/arcs/ --out s3://bucket/warcs  # in an object store
"""


_ARC_COUNTS, _RECORD_COUNTS = ("responses", "resources"), ("records",)
_LABELS = {"repointed": "revisits re-pointed"}  # others are their own


@dataclass(frozen=True)
class _Run:
    """What all conversions are given."""

    sources: tuple[str, ...]
    out: Path  # or where the names of results begin that go to a store
    store: str  # address, or empty
    cdxj: Path | None
    jobs: int
    requests: CountedRequests

    def convert(
        self, tasks: list[ConvertTask], found: Sources, work: Work, counted: tuple[str, ...],
        made: str,
    ) -> int:  # fmt: skip
        """Convert files, print what became of them, and return the exit status.

        Of nothing but files that are not converted it says that none `made`.
        """
        outcomes = convert_all(tasks, self.out, self.jobs, work, self.store)
        left_alone = _print_outcomes(outcomes, tasks, found, counted, made, self.requests)
        sound = True
        if self.cdxj is not None:
            sound = write_cdxj(_names(tasks, left_alone, self.out), self.cdxj, self.jobs)
        return 0 if sound and not (found.problems or left_alone) else Damaged.exit_status


@click.command(cls=Command, examples=EXAMPLES, interrupted=RESUMED)
@click.argument("sources", nargs=-1, required=True, metavar="FILE...")
@option("--out", required=True, type=path_or_address, metavar="DIR", help=OUT)
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
    out: Path | str,
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
    if cdxj is not None and isinstance(out, str):
        raise click.UsageError(NO_CDXJ)
    check_outputs(offsets, cdxj)
    with TemporaryDirectory(prefix="dedupindex-convert-") as name, counted_requests() as requests:
        place, store = (Path(name), out.rstrip("/")) if isinstance(out, str) else (out, "")
        if store:
            check_creatable(store)
        run = _Run(sources, place, store, cdxj, jobs, requests)
        if repoint:
            return _repoint(run)
        if kind is not None:
            return _recompress(run, kind, offsets)
        return _restore(run) if back else _convert(run, keep=not content_only)


def _convert(run: _Run, *, keep: bool) -> int:
    tasks, found = conversion_tasks(run.sources, run.out, keep=keep)
    warn(found.problems)
    if not tasks:
        raise _none(run.sources, "ARC", "; WARC files need --to gzip, --to zstd or --repoint")
    return run.convert(tasks, found, convert, _ARC_COUNTS, "is an ARC file")


def _restore(run: _Run) -> int:
    tasks, found = restore_tasks(run.sources, run.out)
    warn(found.problems)
    if not tasks:
        raise _none(run.sources, "WARC")
    made = "was made of an ARC file by bin/convert"
    return run.convert(tasks, found, restore_arc, _ARC_COUNTS, made)


def _none(sources: tuple[str, ...], kinds: str, more: str = "") -> BadSource:
    if indexes := [name for name in sources if is_index(name)]:
        return BadSource(f"{indexes[0]} is an index; name archives")
    return BadSource(f"there is no {kinds} file to convert in {', '.join(sources)}{more}")


def _repoint(run: _Run) -> int:
    run.out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".repoint-", dir=run.out) as home:
        tasks, found, left = repoint_tasks(list(run.sources), run.out, Path(home), run.jobs)
        warn(found.problems)
        for reason, count in left.items():
            say(f"revisits of revisits left as they are, {reason}: {count:,}")
        made = "has a revisit of a revisit"
        return run.convert(tasks, found, repoint_file, ("repointed",), made)


def _recompress(run: _Run, kind: str, offsets: Path | None) -> int:
    with TemporaryDirectory(prefix="dedupindex-convert-") as maps:
        beside = None if offsets is None else Path(maps)
        tasks, found = recompress_tasks(run.sources, run.out, kind, beside)
        warn(found.problems)
        if not tasks:
            raise _none(run.sources, "plain or zstd WARC" if kind == GZIP else "WARC")
        status = run.convert(tasks, found, recompress, _RECORD_COUNTS, "is a sound WARC file")
        if offsets is not None:
            with atomic_file(offsets) as stream:
                stream.writelines(map_lines(tasks))
    return status


def _names(tasks: list[ConvertTask], left_alone: set[str], out: Path) -> dict[str, str]:
    """Return the names below `out` of the files that exist now, by path."""
    targets = [task.target for task in tasks if task.path not in left_alone]
    return {os.path.abspath(path): os.path.relpath(path, out) for path in targets}


def _print_outcomes(
    outcomes: Iterator[ConvertOutcome], tasks: list[ConvertTask], found: Sources,
    counted: tuple[str, ...], made: str, requests: CountedRequests,
) -> set[str]:  # fmt: skip
    """Print the outcome of each file and the totals; returns the files that were left alone.

    Records and bytes are those of files that were converted. Files that could not be opened were
    named before, and count as left alone.
    """
    states: Counter[str] = Counter()
    skipped, left_alone = found.skipped, set[str]()
    totals = dict.fromkeys((*counted, "bytes_before", "bytes_after", "kept"), 0)
    with show_progress() as progress:
        for outcome in finished(outcomes, "converting", len(tasks), progress):
            if outcome.state == "skipped":
                skipped += 1
                continue
            states[outcome.state] += 1
            if outcome.state == "left_alone":
                left_alone.add(outcome.name)
                say(f"warning: {outcome.name} was left alone: {outcome.problem}")
            else:
                for name in totals:
                    totals[name] += getattr(outcome, name)
                sizes = f"{amount(outcome.bytes_before)} to {amount(outcome.bytes_after)}"
                which = f"{states.total():,} of {len(tasks):,}: {outcome.name}"
                say(f"{which}: {outcome.state}, {sizes}")
    if not states:
        say(singular(f"nothing was written: of {skipped:,} files none ") + made)
    unusable = {file.path for file in found.others} & {one.container for one in found.problems}
    whole = states.total() > states["left_alone"]
    if unusable:
        states["left_alone"] += len(unusable)
    counts = ", ".join(f"{number:,} {state}" for state, number in sorted(states.items()))
    counts = counts.replace("_", " ")
    lines = [f"files: {counts or 'none'}"]
    if whole:
        records = ", ".join(f"{totals[one]:,} {_LABELS.get(one, one)}" for one in counted)
        sizes = f"{amount(totals['bytes_before'])} to {amount(totals['bytes_after'])}"
        lines[0] += f"; {singular(records)}; {sizes}"
    if totals["kept"]:
        lines.append(f"  gzip members kept unchanged: {amount(totals['kept'])}")
    if skipped:
        lines.append(f"  files skipped, not to be converted: {skipped:,}")
    sent = sent_requests(requests)
    content = {**dict(sorted(states.items())), **totals, "skipped": skipped, **sent.as_json()}
    print_result(content, [*lines, *sent.lines()])
    return left_alone
