"""``bin/cover``: find the smallest set of documents that covers all others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from dedupindex.cli.common import Command, print_result, say, warn, warn_of_lines
from dedupindex.cli.index_location import any_index
from dedupindex.cli.options import (
    COUNT,
    FILE,
    RealNumber,
    flag,
    option,
    require_parent,
    shared_options,
    wants_json,
)
from dedupindex.cli.progress_bar import show_progress
from dedupindex.corpus.extract_report import CorpusReport
from dedupindex.corpus.output import check_outputs
from dedupindex.cover import cover_page, document_store, result
from dedupindex.cover.covering import CoverCounts
from dedupindex.cover.document_store import LoadCounts
from dedupindex.cover.estimate import CoverEstimate, estimate
from dedupindex.cover.exact import check_installed
from dedupindex.cover.find_cover import EXACT_SECONDS, CoverOptions, CoverReport, run, settings_of
from dedupindex.cover.load_documents import ArchiveOptions, gather, lines_of
from dedupindex.cover.relation import Relation, parse
from dedupindex.errors import BadInput, Damaged
from dedupindex.runtime.duckdb import Database
from dedupindex.runtime.report_table import share_text
from dedupindex.runtime.tables import amount, duration, printable, singular

EXAMPLES = """
bin/cover my-warcs --relation conf/cover/journalist.txt -o cover.jsonl --html cover.html
bin/cover pages.jsonl --relation 'jaccard(k=3) >= 0.9 and hostname(a) == hostname(b)' \\
    -o cover.jsonl --what-if 0.5,0.7
bin/cover pages.jsonl --relation r.txt -o cover.jsonl --updatable
bin/cover more.jsonl --relation r.txt --update cover.jsonl -o cover.jsonl
"""
STATE = ".state"  # suffix of the file for --update
_SHOWN = 20  # hosts


def _thresholds(ctx: click.Context, option: click.Parameter, text: str) -> tuple[Fraction, ...]:
    with suppress(ValueError, ZeroDivisionError):
        found = tuple(Fraction(part.strip()) for part in text.split(",") if part.strip())
        if all(0 < one <= 1 and one.denominator <= 10**9 for one in found):
            return found
    raise click.BadParameter("takes thresholds above 0 and at most 1, as 0.5,0.7,0.9")


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@option("--relation", required=True, metavar="FILE|EXPR", help="When document b covers document a.")
@option(
    "-o", "--out", type=FILE, metavar="RESULT",
    help="Where to write a line of JSON for each document; required without --estimate.",
)  # fmt: skip
@shared_options("--where")
@shared_options("--containers")
@option("--originals", type=any_index, metavar="INDEX", help="Where to look up other originals.")
@option(
    "--what-if", default="", metavar="T,T…", callback=_thresholds,
    help="Report the result for other thresholds of the first content constraint, too.",
)  # fmt: skip
@option(
    "--cost", default="1", metavar="EXPR",
    help="Cost of keeping a document: size, 1 / quality, …; the total is minimized.",
)  # fmt: skip
@option(
    "--quality", type=FILE, metavar="TABLE",
    help="A table with quality and id or url, for --cost: CSV, JSON lines or Parquet.",
)  # fmt: skip
@option(
    "--min-per-host", "per_host", type=COUNT, default=0,
    help="Keep at least this many documents of each host.",
)  # fmt: skip
@option(
    "--exact-seconds", type=RealNumber(0), default=EXACT_SECONDS,
    help="Time limit for the optimal cover of a component; 0: greedy only.",
)  # fmt: skip
@flag("--approximate", help="Find pairs by MinHash; the share of pairs found is measured.")
@flag(
    "--estimate",
    "estimated",
    setting=False,
    help="Estimate the duration from a sample; write nothing.",
)
@flag("--updatable", help="Keep a file beside RESULT that --update needs.")
@option("--update", type=FILE, metavar="RESULT", help="Add SOURCEs to those of this RESULT.")
@shared_options("--html")
@option("--list", "listed", type=FILE, metavar="FILE", help="Write the covered documents as CSV.")
@shared_options("--zstd-dictionary")
@shared_options("--memory", "--jobs", "--spark", "--verbose", "--json")
def command(
    sources: tuple[str, ...],
    relation: str,
    out: Path | None,
    where: tuple[str, ...],
    containers: tuple[str, ...],
    originals: Path | None,
    estimated: bool,
    updatable: bool,
    update: Path | None,
    html: Path | None,
    listed: Path | None,
    jobs: int,
    verbose: bool,
    **options: Any,
) -> int:
    """Find the smallest set of documents in SOURCEs that covers all others.

    A SOURCE is an archive as for bin/corpus (WARC, ARC, WACZ, CDX, an index), or a file of JSON
    lines: {"url", "timestamp", "text", "title", "mime", "status", "bytes"}, or the output of
    bin/corpus --enrich html.title,text. RESULT says which document covers which. A relation is
    'containment(k=5) >= 0.7 and timestamp(a) <= timestamp(b) and hostname(a) == hostname(b)'
    for example. Nothing is deleted.
    """
    wanted = parse(_text(relation))
    chosen = CoverOptions(jobs=jobs, updatable=updatable or update is not None, **options)
    outputs = [one for one in (out, listed, html) if one is not None]
    _check_outputs(outputs, (*sources, *([str(chosen.quality)] if chosen.quality else [])))
    how = ArchiveOptions(where, containers, originals, chosen.jobs, chosen.memory)
    if estimated:
        return _estimate(sources, how, wanted, chosen, out, update, verbose=verbose)
    check_installed(chosen.exact_seconds)  # before archives are read
    if out is None:
        raise click.UsageError("give --out RESULT, or --estimate")
    kept = _state(out) if chosen.updatable else None
    write = partial(_write, wanted, chosen, out, listed, html, kept)
    with (
        TemporaryDirectory(prefix=".cover-", dir=out.absolute().parent) as name,
        show_progress(verbose=verbose) as progress,
    ):
        home = Path(name)
        gathered = gather(sources, how, home, progress, listing=listed is not None)
        report = run(
            lines_of(gathered.files), wanted, chosen, home, write,
            before=update and _state(update), left_out=lines_of(gathered.left_out),
            files=gathered.files, on_progress=progress,
        )  # fmt: skip
    _warn(gathered.report, unlisted_revisits=listed is not None and not gathered.all_revisits)
    print_result(report.as_json(), _text_of(report, wanted, out))
    return 0 if gathered.report.whole else Damaged.exit_status


def _check_outputs(outputs: list[Path], sources: tuple[str, ...]) -> None:
    """Raise `UsageError` or `BadInput` if one cannot be written, before hours of work."""
    for output in outputs:
        require_parent(output)
    check_outputs(outputs, sources)


def _estimate(
    sources: tuple[str, ...], archives: ArchiveOptions, relation: Relation, options: CoverOptions,
    out: Path | None, update: Path | None, *, verbose: bool,
) -> int:  # fmt: skip
    if options.spark or update is not None:
        raise BadInput("--estimate is for a run on this machine, of all sources: leave "
                       f"{'--spark' if options.spark else '--update'} out")  # fmt: skip
    with (
        TemporaryDirectory(prefix=".cover-", dir=out.absolute().parent if out else None) as name,
        show_progress(verbose=verbose) as progress,
    ):
        found = estimate(sources, archives, relation, options, Path(name), progress)
    print_result(found.as_json(), _estimate_text(found))
    return 0


def _estimate_text(found: CoverEstimate) -> Iterator[str]:
    seconds = sum(found.seconds.values())
    about = f"about {duration(seconds)}" if round(seconds) else "less than a second"
    yield singular(f"{about} for {found.documents:,} documents")
    yield singular(f"expected: {found.candidates:,} candidates, {found.pairs:,} pairs")
    yield f"estimated from {found.sampled:,} documents; it may well be half or twice as much"
    for step, seconds in found.seconds.items():
        yield f"{step:<25}{duration(seconds):>12}"


def _warn(gathered: CorpusReport, *, unlisted_revisits: bool) -> None:
    warn(gathered.problems)
    warn_of_lines(gathered.refused)
    if unlisted_revisits:
        say("--list: if a CDX leaves out revisits, as wget's does, their originals may be on the "
            "list: name the WARC files instead, unless the CDX has all revisits")  # fmt: skip
    for failed, count in sorted(gathered.errors.items()):
        say(singular(f"{failed} failed for {count:,} captures: no text here; "
                     "bin/corpus --enrich text says why"))  # fmt: skip


def _write(
    relation: Relation, options: CoverOptions, out: Path, listed: Path | None,
    html: Path | None, kept: Path | None, database: Database, report: CoverReport,
) -> None:  # fmt: skip
    """Write the files of a run, those that are not None."""
    result.write(database, relation, out)
    if listed is not None:
        report.listed = result.write_list(database, relation, listed)
    if html is not None:
        cover_page.write(database, relation, report, html)
    if kept is not None:
        document_store.save(database, kept, relation.ks, settings_of(relation, options))
    report.hosts = result.hosts(database, 0 if wants_json() else _SHOWN)


def _text(relation: str) -> str:
    """Return a relation, read from the file of this name if there is one; raises `BadInput`."""
    is_file = False
    with suppress(OSError, ValueError):  # too long a name, as relations are
        is_file = Path(relation).is_file()
    if is_file:
        try:
            return Path(relation).read_text()
        except (OSError, ValueError) as error:
            raise BadInput(f"--relation {relation} cannot be read: {error}") from error
    is_path = "/" in relation or not re.search(r"[\s()]", relation)
    if is_path and not re.search("[<>=]", relation):  # else the parser says where it is wrong
        raise BadInput(
            f"--relation {relation}: there is no such file, and it is not a relation either, as "
            "'jaccard(k=3) >= 0.9 and hostname(a) == hostname(b)' is one"
        )
    return relation


def _state(out: Path) -> Path:
    return out.with_name(out.name + STATE)


def _text_of(report: CoverReport, relation: Relation, out: Path) -> Iterator[str]:
    loaded, covered = report.loaded, report.covered
    yield printable(relation.text)
    added = loaded.fresh < loaded.documents
    more, of_these = (f" ({loaded.fresh:,} new)", "of the new ") if added else ("", "")
    documents = f"{loaded.documents:,} documents{more}, {loaded.empty:,} {of_these}without text"
    components = f"{covered.components:,} components of at most {covered.largest:,}"
    yield singular(f"{documents}; {covered.pairs:,} pairs, {components}")
    yield from _collection(loaded)
    if loaded.repeated:
        yield f"{loaded.repeated:,} repeated captures, counted once"
    yield f"{_totals(covered, loaded.unsized)}: {printable(str(out))}"
    yield _optimality(covered)
    if covered.added:
        yield f"{covered.added:,} of them are kept only for --min-per-host"
    if report.rated is not None:
        yield f"quality: {report.rated:,} of {loaded.documents:,} documents, from the table"
    if report.found.recall is not None:
        sample = f"measured on a sample of {report.found.sampled:,}"
        yield f"approximate: {report.found.recall:.1%} of pairs found, {sample}"
    if report.listed is not None:
        count, needed = report.listed
        left = f"; {needed:,} are not, because a kept revisit needs their payload" * bool(needed)
        yield f"listed: {count:,} of those that are covered{left}"
    for name, count in report.changed.items():
        yield f"since the last result, {count:,} are {name.replace('_', ' ')}"
    if report.hosts:
        yield f"\n{result.HOSTS.title}:"
        yield from result.HOSTS.text_lines(
            {**row, "host": row["host"] or "-"} for row in report.hosts
        )
    if report.what_if:
        yield f"\n{result.WHAT_IF.title}:"
        rows = result.what_if_rows(report.what_if, loaded.unsized)
        yield from result.WHAT_IF.text_lines(rows)


def _collection(loaded: LoadCounts) -> Iterator[str]:
    """Describe the collection: versions of a URL, and shingles."""
    versions = "{mean:.2f} documents each (standard deviation {deviation:.2f}, at most {most:,})"
    yield singular(f"{loaded.urls:,} URLs with ") + versions.format(**loaded.versions)
    for k, counts in loaded.shingles.items():
        yield f"shingles of {k} terms: {counts['all']:,}, of them {counts['distinct']:,} distinct"
    if loaded.unsized:
        yield singular(f"{loaded.unsized:,} documents have no known size: they add no bytes")


def _totals(covered: CoverCounts, unsized: int) -> str:
    (row,) = result.what_if_rows({"": covered}, unsized)
    share = row["covered_bytes_percent"]
    percent = "" if share is None else f" ({share_text(share)})"
    return (
        f"kept: {covered.kept:,} of {row['documents']:,}; "
        f"covered: {covered.covered:,} ({share_text(row['covered_percent'])}), "
        f"{amount(row['covered_bytes'])} of {amount(row['bytes'])} in files{percent}"
    )


def _optimality(covered: CoverCounts) -> str:
    if covered.minimal:
        return "this is optimal: no cover costs less"
    return (
        f"optimal for {covered.proved:,} of {covered.components:,} components; the total cost is "
        f"{covered.cost:,.6g}, and no cover costs less than {covered.bound:,.6g}"
    )
