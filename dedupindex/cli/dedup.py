"""``bin/dedup``: replace the duplicates in archives by revisits, and verify the result."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from dedupindex.cli.common import (
    UNSOUND,
    ComparingCommand,
    file_lines,
    print_result,
    say,
    status_7,
    warn,
    work_done,
)
from dedupindex.cli.index_location import any_index
from dedupindex.cli.options import (
    PATH,
    flag,
    option,
    results_of,
    shared_options,
    wants_json,
    with_dictionaries,
)
from dedupindex.cli.progress_bar import show_progress
from dedupindex.cli.result_lists import (
    INDEX_PAGE,
    absolute,
    check_outputs,
    index_steps,
    names_below,
    reread_step,
    restore_step,
    write_cdxj,
    write_offsets,
)
from dedupindex.cli.sent_requests import NO_CDXJ, SPARK_TO_STORE, SentRequests, sent_requests
from dedupindex.counts import OnProgress
from dedupindex.errors import BadInput, Damaged, as_called
from dedupindex.object_store import CountedRequests, counted_requests, is_remote, local
from dedupindex.post_crawl import dedup_page
from dedupindex.post_crawl.dedup_all import DedupOptions, dedup, estimate
from dedupindex.post_crawl.dedup_report import (
    REASONS,
    DedupReport,
    hosts_table,
    hosts_without_revisits,
    refused_table,
    unique_text,
)
from dedupindex.post_crawl.estimate_duplicates import DuplicateEstimate, parse_sample
from dedupindex.post_crawl.plan.compare_payloads import Compare
from dedupindex.post_crawl.plan.plan_file import MatchCriteria
from dedupindex.post_crawl.rewrite.result_place import A_COPY, EARLIER
from dedupindex.post_crawl.rewrite.undo_directory import DIRECTORY, has_journals
from dedupindex.runtime import html_page
from dedupindex.runtime.tables import amount, printable, singular
from dedupindex.runtime.walk_directories import is_file
from dedupindex.sources.discover import is_archive_name
from dedupindex.sources.warc_files import find
from dedupindex.verify.issues import level_words

EXAMPLES = """
bin/dedup ~/warcs --out /data/smaller --dry-run    # only the numbers
bin/dedup ~/warcs --in-place --dry-run --sample 10%    # an estimate, from a tenth of the files
bin/dedup ~/warcs --out /data/smaller              # copies, with revisits for duplicates
bin/dedup s3://bucket/warcs/ --out s3://bucket/smaller --state ~/state
bin/dedup ~/warcs --in-place                       # keeps the removed records
bin/dedup s3://bucket/warcs/ --in-place --work ~/warcs.dedup    # replaces objects
bin/rewrite ~/warcs.dedup/plan --undo              # restores the files bit for bit
bin/rewrite ~/warcs.dedup/plan --commit            # discards the removed records
"""
_NOT_READ = f"repeat this with --update-index: the index has not read the results ({INDEX_PAGE})"
_SWAPPED = (
    "{} has files with the names of SOURCE and other content, and no journal of an earlier run: "
    "are SOURCE and --out swapped? Name another --out, and remove nothing from this one"
)
_SHOWN = 20  # files that were not copied
_FOLDERS = 5  # directories of originals that are named
_VERIFY = "verify: "
_WIDE = 0.5  # share of the bytes: a wider interval says next to nothing


@click.command(cls=ComparingCommand, examples=EXAMPLES)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@shared_options("--out", "--state", "--in-place")
@flag("--dry-run", help="Do everything except writing archives.")
@option(
    "--sample", default="", metavar="SIZE", setting=False,
    help="With --dry-run: estimate the duplicates from SIZE files drawn at random, such as 10%.",
)  # fmt: skip
@option("--seed", default=0, setting=False, help="For --sample: another seed draws other files.")
@flag(
    "--restart", setting=False,
    help="Give up an interrupted run in place and plan again; what it did can be undone.",
)  # fmt: skip
@option(
    "--work", type=PATH, metavar="DIR",
    help="Where to keep manifest and plan.  [default: beside DIR or SOURCE, named after it]",
)  # fmt: skip
@option(
    "--index", type=any_index, metavar="INDEX",
    help="Use originals in other files of INDEX, too; keep what revisits in INDEX refer to.",
)  # fmt: skip
@flag("--update-index", help="Read the results into INDEX, in place of SOURCEs.")
@option(
    "--compare", default="strong-digest", metavar="HOW",
    help="What to compare before planning, as in bin/resolve. Rewriting always compares bytes.",
)  # fmt: skip
@shared_options("--any-status", "--same-type", "--other-second", "--offsets", "--cdxj")
@shared_options("--html", "--zstd-dictionary")
@shared_options("--min-size", "--min-gain", "--memory", "--jobs", "--spark", "--verbose", "--json")
def command(
    sources: tuple[str, ...],
    out: Path | str | None,
    state: Path | None,
    in_place: bool,
    compare: str,
    any_status: bool,
    same_type: bool,
    other_second: bool,
    jobs: int,
    verbose: bool,
    dry_run: bool,
    offsets: Path | None,
    cdxj: Path | None,
    html: Path | None,
    sample: str,
    seed: int,
    **options: Any,
) -> int:
    """Turn duplicates in SOURCEs into revisits, and verify the result.

    A SOURCE is a WARC or ARC file, a directory of them, or a glob. Files keep their names and
    directories. Of equal payloads the earliest capture is kept, and every removed record can be
    rebuilt from its revisit and its original. Files that are damaged, unreadable or being written
    are left alone and named (status 7), but a SOURCE must exist. Status 8: do not use the results.
    """
    _check(out, in_place, dry_run, options)
    _check_sample(sample, html, dry_run=dry_run)
    check_outputs(offsets, cdxj, html)
    results, store = results_of(out, state)
    if cdxj is not None and (store or (in_place and any(map(is_remote, map(local, sources))))):
        raise click.UsageError(NO_CDXJ)
    chosen = DedupOptions(
        out=results, store=store, compare=Compare.parse(compare),
        criteria=MatchCriteria(any_status, same_type, other_second),
        dry=dry_run, jobs=jobs, every_host=wants_json(), **options,
    )  # fmt: skip
    with counted_requests() as requests, show_progress(verbose=verbose) as progress:
        if sample:
            return _estimate(list(sources), sample, seed, chosen, progress, requests)
        report = dedup(list(sources), chosen, say, progress)
        sent = sent_requests(requests)
    commands, steps = _next(report, out, chosen.spark), _index_steps(report, sources, out, chosen)
    try:
        _print_report(report, chosen, sent, commands, steps)
    finally:  # lists and page are written even if the report cannot be printed
        listed = dry_run or _write_lists(sources, results, offsets, cdxj, jobs)
        status = _status(report, in_place=in_place) or (0 if listed else Damaged.exit_status)
        _save_page(html, report, sources, [*commands, *sent.lines()])  # last: it may fail
    return status


def _save_page(
    html: Path | None, report: DedupReport, sources: tuple[str, ...], more: list[str]
) -> None:
    """Write the page of a report, if it is wanted."""
    if html is not None:
        html_page.save(html, dedup_page.lines(report, list(sources), more))


@work_done()
def _print_report(
    report: DedupReport, options: DedupOptions, sent: SentRequests, commands: list[str],
    steps: list[str],
) -> None:  # fmt: skip
    results = None if options.store else options.out
    existing = [one for one in report.left if not one.message.endswith(A_COPY)]
    earlier = existing and report.earlier_results_text()
    if results is not None and earlier and not has_journals(results):
        say(f"warning: {_SWAPPED.format(results)}")
    warn(report.left)
    for finding in report.proof.named:
        say(f"warning: {finding.file} at {finding.offset}: {finding.reason}: {finding.message}")
    for text in filter(None, (report.referring_text(), report.zstd_text())):
        say(f"warning: {text}")
    if wants_json():
        sys.stdout.flush()
        sys.stdout.buffer.writelines(report.as_json(sent.as_json()))
        sys.stdout.buffer.flush()
        return
    for line in (*_text_of(report, commands), *commands, *sent.lines()):
        click.echo(as_called(line))
    if report.indexed is not None:
        click.echo(singular(f"{options.index}: read {report.indexed:,} files"))
        return
    for step in steps:
        click.echo(as_called(f"next: {step}"))


def _index_steps(
    report: DedupReport, sources: tuple[str, ...], out: Path | str | None, options: DedupOptions
) -> list[str]:
    """Return what an index needs after a run."""
    if not (report.revisits or report.written) or not report.proof.sound or report.dry_run:
        return []
    if options.index:
        return [_NOT_READ]
    if out is None:
        return [f"{reread_step(shlex.join(map(absolute, sources)))} ({INDEX_PAGE})"]
    return index_steps(str(out), report.moved, options.spark)


def _check(out: Path | str | None, in_place: bool, dry_run: bool, options: dict[str, Any]) -> None:
    """Raise `UsageError` for options that do not go together."""
    if (out is None) != in_place:
        raise click.UsageError("give either --out or --in-place, also with --dry-run")
    if options["update_index"] and options["index"] is None:
        raise click.UsageError("--update-index goes with --index")
    if options["spark"] and not isinstance(out, str):
        raise click.UsageError(SPARK_TO_STORE)
    if options["restart"] and (dry_run or not in_place):
        raise click.UsageError("--restart goes with --in-place, and not with --dry-run")


def _check_sample(sample: str, html: Path | None, *, dry_run: bool) -> None:
    """Raise `UsageError`, likewise."""
    if sample and not dry_run:
        raise click.UsageError("--sample goes with --dry-run")
    if sample and html is not None:
        raise click.UsageError("--html is a page of a whole run: leave --sample out")
    if sample:
        try:
            parse_sample(sample)
        except BadInput as error:
            raise click.UsageError(str(error)) from error


def _estimate(
    sources: list[str], sample: str, seed: int, chosen: DedupOptions, progress: OnProgress,
    requests: CountedRequests,
) -> int:  # fmt: skip
    """Print an estimate, and return the exit status."""
    found = estimate(sources, sample, seed, chosen, progress)
    sent = sent_requests(requests)
    warn(found.left)
    print_result(found.as_json() | sent.as_json(), [*_estimate_lines(found), *sent.lines()])
    return status_7("the files named above are damaged or unusable") if found.left else 0


def _estimate_lines(found: DuplicateEstimate) -> Iterator[str]:
    yield (
        f"sample: {found.sampled_files:,} of {found.files:,} files, "
        f"{amount(found.sampled_bytes)} of {amount(found.bytes_before)}, "
        f"{found.sampled_captures:,} captures, {found.sampled_duplicates:,} of them duplicates"
    )
    yield "  not all duplicates can become revisits: without --sample, --dry-run says how many"
    low, high = (amount(round(share * found.bytes_before)) for share in (found.low, found.high))
    if found.sampled_files == found.files:
        yield f"duplicates in all files: {found.at_least:.1%} of the bytes, {low}"
        return
    yield (
        f"duplicates in all files: between {found.low:.1%} and {found.high:.1%} of the bytes, "
        f"{low} to {high}, with 95 % confidence"
    )
    if found.high - found.low > _WIDE:
        yield (
            "  this cannot tell how much would be saved: too few files were drawn; draw some "
            f"hundred files (there are {found.files:,}), or leave --sample out"
        )
    yield (
        f"  within the sample it is {found.at_least:.1%}, which is too low; if all payloads "
        f"occur equally often, it is about {found.at_most:.1%}"
    )


def _write_lists(
    sources: tuple[str, ...], out: Path | None, offsets: Path | None, cdxj: Path | None, jobs: int
) -> bool:
    """Write the map and the CDXJ of the results, if wanted; returns whether they are whole."""
    places = list(sources) if out is None else [str(out)]
    if offsets is not None:
        roots = [str(out)] if out else sorted({file.root for file in find(places).files})
        write_offsets(roots, offsets)
    return cdxj is None or write_cdxj(names_below(places), cdxj, jobs)


def _status(report: DedupReport, *, in_place: bool) -> int:
    if not report.proof.sound:
        advice = (
            "restore the files with bin/rewrite --undo" if in_place else "do not use the result"
        )
        say(f"status {UNSOUND}: verification failed; {advice}")
        return UNSOUND
    if report.left:
        if in_place:
            would = "would be" if report.dry_run else "were"
            return status_7(f"the files named above {would} left alone, or keep their damage")
        if report.dry_run:
            return status_7(
                "the files named above would be left alone, or copied with their damage"
            )
        others = ", except those not copied" if report.lacking else ""
        return status_7(
            "the files named above were left alone or have damage; the result has them with "
            f"that damage{others}"
        )
    return 0


def _other_files(report: DedupReport, originals: str) -> Iterator[str]:
    """Yield the lines of files that were not copied, and those outside that revisits need.

    `originals` are the options with which bin/verify finds these, "" if a command has them.
    """
    if lacking := report.absent_text():
        dry = "WOULD NOT BE COPIED" if report.dry_run else "NOT COPIED"
        yield f"{dry}, so keep the source: {lacking}"
        absent = [f"not copied: {missing.file}" for missing in report.lacking]
        yield from file_lines(absent, len(absent), _SHOWN)
    if earlier := report.earlier_results_text():
        yield f"{EARLIER}: {earlier}" + ("" if report.dry_run else "; verify them (below)")
        kept = [f"kept: {missing.file}" for missing in report.absent if missing.existing_bytes]
        yield from file_lines(kept, len(kept), _SHOWN)
    if outside := sorted(+report.outside):
        yield (
            singular(f"{report.outside.total():,} revisits of originals outside, ")
            + singular(f"in {len(outside):,} files to be kept")
            + (f": bin/verify takes {originals}" if originals else "")
        )
        others = [f"{report.outside[path]:,} to {path}" for path in outside]
        yield from file_lines(others, len(others))
        if where := report.protected_text():
            yield f"  {printable(where)}"


def _originals(report: DedupReport) -> str:
    """Return the options of bin/verify for the originals outside, "" if there are none."""
    folders = covering_directories(+report.outside)
    return " ".join(f"--originals {shlex.quote(printable(folder))}" for folder in folders)


def covering_directories(paths: Iterable[str], most: int = _FOLDERS) -> list[str]:
    """Return directories that have all files of `paths` in them or below, sorted.

    These are the directories of the files; if there are more than `most`, parents take the place
    of the deepest ones. The root is never one of them, so there may be more.
    """
    found = _outermost(os.path.dirname(path) for path in paths)
    while len(found) > most:
        depth = max(folder.count("/") for folder in found)
        parents = {one: os.path.dirname(one) for one in found if one.count("/") == depth}
        if any(parent in ("", "/") or parent.endswith((":", ":/")) for parent in parents.values()):
            break  # the root, or that of a store
        found = _outermost(parents.get(folder, folder) for folder in found)
    return found


def _outermost(folders: Iterable[str]) -> list[str]:
    """Return directories without those that are in another one, sorted."""
    kept = set(folders)
    return sorted(
        folder
        for folder in kept
        if not any(folder[:at] in kept for at, letter in enumerate(folder) if letter == "/")
    )


def _verified_line(report: DedupReport) -> str:
    """Say what verification found, and why there are fewer files than in the first line."""
    proof = report.proof
    words = ["no new defects"] if proof.sound and proof.files else []
    words += level_words(proof.levels)
    line = singular(", ".join([f"verified: {proof.files:,} files", *words]))
    return "; ".join(filter(None, (line, report.not_verified_text())))


def _text_of(report: DedupReport, commands: list[str]) -> Iterator[str]:
    """Yield the lines of a report, above those of the next commands."""
    would = "would become" if report.dry_run else "became"
    damaged = report.damaged_text()
    yield singular(f"{report.files:,} files of {report.records:,} records") + (
        damaged and f"; {printable(damaged)}"
    )
    yield singular(
        f"{report.captures:,} captures: {report.unique:,} {unique_text(report)}, "
        f"{report.originals:,} originals, {report.revisits:,} revisits, "
        f"{report.refused.total():,} not rewritten"
    )
    if report.revisits_before:
        yield as_called(report.revisits_before_text())
    captures = "1 capture" if report.revisits == 1 else f"{report.revisits:,} captures"
    revisits = "a revisit" if report.revisits == 1 else "revisits"
    before, after = amount(report.bytes_before), amount(report.bytes_after)
    yield f"{captures} {would} {revisits}; {before} {would} {after}"
    if linked := report.linked_text():
        yield f"  {linked}"
    if report.in_place and report.revisits:
        until = "would be free" if report.dry_run else "is free"
        yield (
            f"the space of the removed records {until} only after bin/rewrite --commit: until then "
            f"{DIRECTORY}/ keeps them"
        )
    committed = f"; after --commit, {report.committed_text()}" if report.in_place else ""
    place, earlier = printable(report.journal_place), report.earlier_text()
    if report.journal:
        kept = f"in {place}, to undo it: {amount(report.journal)}"
        yield f"{kept}; with that, {report.net_text()}{committed}{earlier and f' ({earlier})'}"
        if hint := report.gain_text():
            yield f"  {hint}"
    elif report.journals:
        yield f"in {place}, to undo earlier runs: {amount(report.journals)}"
    has_verify = any(line.startswith(_VERIFY) for line in commands)
    yield from _other_files(report, "" if has_verify else _originals(report))
    if report.refused:
        rows = report.refused_rows()
        refused = refused_table(rows, dry_run=report.dry_run)
        yield f"\n{refused.title}:"
        yield from refused.text_lines(rows)
        yield as_called(f"  {REASONS}")
    yield from _named_files(report)
    yield from _hosts(report)
    seconds = ", ".join(f"{step} {value:.1f} s" for step, value in report.seconds.items())
    yield f"\n{seconds}; manifest and plan are in {printable(str(report.work))}"
    if not report.dry_run:
        yield _verified_line(report)


def _named_files(report: DedupReport) -> Iterator[str]:
    """Yield the files that are copies of others, and those that are no archives."""
    if report.file_copies:
        yield f"\n{report.copies_text()}"
        equal = [one.in_words() for one in report.equal_files]
        yield from file_lines(equal, report.file_copies)
    if report.skipped:
        copied = "" if report.in_place else ", not copied"
        yield f"\nfiles skipped, neither WARC nor ARC{copied}: {report.skipped:,}"
        yield from file_lines(report.skipped_files, report.skipped)


def _hosts(report: DedupReport) -> Iterator[str]:
    """Yield the hosts that save something, and how many others there are."""
    if not report.hosts:
        return
    hosts = hosts_table(dry_run=report.dry_run)
    yield f"\n{hosts.title}:"
    saving = [host for host in report.hosts if host.saves]
    if saving:
        yield from hosts.text_lines(host.as_row() for host in saving)
    if others := hosts_without_revisits(report.hosts):
        what = ("other" if others == 1 else "others") if saving else "hosts"
        yield singular(f"  {others:,} {what} with nothing")


def _undo(report: DedupReport) -> Iterator[str]:
    """Yield the commands that undo a run in place, or make it final."""
    if report.undoable and not report.dry_run:
        plan = printable(shlex.quote(str(report.work / "plan")))
        own, runs = "this and " if report.journal else "", ""
        if report.earlier_undoable:
            runs = f" {own}the earlier runs"
        elif report.journals > report.journal:  # earlier runs are committed
            runs = " this run"
        yield f"undo{runs}: bin/rewrite {plan} --undo"
        if not (report.earlier_undoable and report.revisits_missing):
            yield f"or discard the removed records for good: bin/rewrite {plan} --commit"


def _next(report: DedupReport, out: Path | str | None, spark: str) -> list[str]:
    """Return the commands that verify a run once more and undo it."""
    if report.dry_run or out is None:
        return [as_called(with_dictionaries(line)) for line in _undo(report)]
    undo = [restore_step(str(out), report.state)] if report.revisits else []
    lines = [*_verify(report, str(out), spark), *undo]
    return [as_called(printable(with_dictionaries(line))) for line in lines]


def _missing(report: DedupReport) -> str:
    """Say which findings a comparison has since files were not copied; empty if it has none.

    Like the comparison it passes over names of other files.
    """
    unknown = list[OSError]()
    absent = [one.file for one in report.lacking if one.file not in report.unlisted]
    files = sum(
        is_archive_name(file) and (is_remote(file) or is_file(file, unknown.append))
        for file in absent
    )
    found = [f"{files:,} files not copied (file-missing)"] if files else []
    if report.unlisted or unknown:
        found.append("what cannot be read (unreadable)")
    if not found:
        return ""
    status = UNSOUND if files else Damaged.exit_status
    return singular(f"  it will name {' and '.join(found)}, with the status {status}")


def _verify(report: DedupReport, out: str, spark: str) -> Iterator[str]:
    """Yield the commands that compare the results with the sources, at most `_FOLDERS`."""
    result, absent = shlex.quote(out), {missing.file for missing in report.lacking}
    places = [
        (old, name)
        for old, name in report.comparable
        if not name or (old if is_remote(old) else os.path.abspath(old)) not in absent
    ]
    more = f" {_originals(report)}".rstrip() + (f" --spark {shlex.quote(spark)}" if spark else "")
    for old, name in places[:_FOLDERS]:
        file = shlex.quote(f"{out.rstrip('/')}/{name}")
        new = f"{file} --originals {result}" if name else result
        yield f"{_VERIFY}bin/verify --against {shlex.quote(old)} {new}{more}"
    if places and (text := _missing(report)):
        yield text
    if len(places) > _FOLDERS:
        yield f"and {len(places) - _FOLDERS:,} more such commands, for the other files"
