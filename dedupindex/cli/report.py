"""``bin/report``: what a crawl saved, or would have saved."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import click
import orjson
from click.core import ParameterSource

from dedupindex.capture import Item
from dedupindex.cli.common import Command, say, warn
from dedupindex.cli.index_location import ENGINE_HELP, any_engine, any_index, index_or_engine
from dedupindex.cli.progress_bar import show_progress
from dedupindex.counts import OnProgress, ProgressUpdate
from dedupindex.crawls import crawl_report
from dedupindex.crawls.crawl_report import FORMATS, ReportRequest
from dedupindex.crawls.statistics import BY, ORDERS
from dedupindex.crawls.stores import open_store
from dedupindex.errors import Damaged, UnknownCrawl
from dedupindex.index import open_index
from dedupindex.index.engine import View
from dedupindex.index.identity import Settings
from dedupindex.indexer.admission import statuses
from dedupindex.lookup.savings import COLUMNS, GROUPS, DuplicationReport, ReportFilter
from dedupindex.runtime.tables import amount, csv_lines, html_lines, printable
from dedupindex.sources import (
    KINDS,
    Expanded,
    Source,
    SourceOptions,
    expand,
    is_stream,
    open_source,
)
from dedupindex.sources.line_source import TextSource
from dedupindex.sources.source import annotation
from dedupindex.urlkey import urlkey

_READABLE = (
    *("handled", "handled_bytes", "duplicates", "duplicates_percent", "duplicate_bytes"),
    *("duplicate_bytes_percent", "exact_url", "canonical_url", "digest", "new"),
)
_LABELS = {
    "exact_url": "Exact URL hits",
    "canonical_url": "Canonical URL hits",
    "digest": "Digest hits",
}


def _print_json(head: dict[str, Any], groups: Iterable[dict[str, Any]]) -> None:
    """Print one JSON object on one line, group by group: they may not fit in memory."""
    write = sys.stdout.buffer.write
    write(orjson.dumps(head)[:-1] + b',"groups":[')
    for number, group in enumerate(groups):
        write((b"," if number else b"") + orjson.dumps(group))
    write(b"]}\n")
    sys.stdout.buffer.flush()


def _print_csv(head: dict[str, Any], groups: Iterable[dict[str, Any]]) -> None:
    """Print the groups of a report as CSV."""
    for line in csv_lines(_names(head), groups):
        click.echo(line, nl=False)


def _print_html(head: dict[str, Any], groups: Iterable[dict[str, Any]]) -> None:
    """Print a page with the figures of a report and its groups."""
    facts = {name: value for name, value in head.items() if isinstance(value, int | float | str)}
    names = [head["by"], *_READABLE]
    for line in html_lines("What the crawl would have saved", facts, names, groups):
        click.echo(line, nl=False)


def _names(head: dict[str, Any]) -> list[str]:
    return [head["by"], *COLUMNS, "duplicates", "duplicate_bytes", "new", "new_bytes"]


def _print_text(content: dict[str, Any], groups: Iterable[dict[str, Any]]) -> None:
    """Print a report as text, with every field that the DeDuplicator reports."""
    for line in (*_totals(content), *_strategies(content), ""):
        click.echo(line)
    for line in _groups(content["by"], groups):
        click.echo(line)
    for line in ("", *_index(content["index"])):
        click.echo(line)


def _totals(content: dict[str, Any]) -> list[str]:
    lines = [
        f"Records read:         {content['records']:,}",
        *(
            f"  not handled: {name:<28}{count:>12,}"
            for name, count in content["not_handled"].items()
        ),
        f"Total handled:        {content['handled']:,}",
        f"Duplicates found:     {content['duplicates']:,} ({content['duplicates_percent']} %)",
        f"Bytes total:          {content['handled_bytes']:,} ({amount(content['handled_bytes'])})"
        + _unsized(content["size_unknown"]),
        f"Bytes duplicate:      {content['duplicate_bytes']:,} "
        f"({content['duplicate_bytes_percent']} %)",
        f"  of these stored as revisits: {content['already_revisits']:,}, "
        f"bytes: {content['already_revisits_bytes']:,}",
        f"New (no hits):        {content['new']:,}, bytes: {content['new_bytes']:,}",
    ]
    for name, label in _LABELS.items():
        lines.append(f"{label + ':':<22}{content[name]:,}, bytes: {content[f'{name}_bytes']:,}")
    return [
        *lines,
        f"Average lookup time:  {content['average_lookup_ms']} ms",
        f"Last lookup time:     {content['last_lookup_ms']} ms",
    ]


def _strategies(content: dict[str, Any]) -> list[str]:
    lines = [
        "",
        "What each strategy would have saved (each includes the one above it):",
    ]
    for row in content["filters"]:
        left_out = f"without {row['mime']}" if row["mime"] else "all media types"
        lines.append(f"  {left_out}, from {row['min_size']} bytes")
        for strategy, saving in row["strategies"].items():
            lines.append(
                f"    {strategy:<15}{saving['captures']:>12,} captures"
                f"{amount(saving['bytes']):>12} ({saving['percent']} %)"
            )
    return lines


def _unsized(count: int) -> str:
    return f", and {count:,} captures of unknown size" if count else ""


def _groups(by: str, groups: Iterable[dict[str, Any]]) -> Iterator[str]:
    yield f"{'handled':>9} {'exact':>8} {'canonical':>9} {'digest':>8} {'saved':>10}  by {by}"
    for group in groups:
        yield (
            f"{group['handled']:>9,} {group['exact_url']:>8,} {group['canonical_url']:>9,} "
            f"{group['digest']:>8,} {amount(group['duplicate_bytes']):>10}  {printable(group[by])}"
        )


def _index(index: dict[str, Any]) -> list[str]:
    return [
        "Index:",
        f"  URL indexed:        {_yes(index['url_indexed'])}",
        f"  Digest indexed:     {_yes(index['digest_indexed'])}",
        f"  Canonical URL available: {_yes(index['canonical_url_available'])}",
        "  Search strategy:    all, calculated from one lookup",
        f"  Digest in index includes hashing algorithm: {_yes(index['digest_includes_algorithm'])}",
        f"  Records in index:   {index['records_in_index']:,}",
        "  BloomFilter size:   none (none is needed: a miss costs one seek)",
        "  BloomFilter hits:   none",
    ]


def _yes(value: bool) -> str:
    return "yes" if value else "no"


PRINT = {"text": _print_text, "json": _print_json, "csv": _print_csv, "html": _print_html}


EXAMPLES = """
bin/report my-index --crawl weekly-20261120
bin/report my-index --crawl weekly-20261120 --by host --top 50 --order duplicate_bytes --format csv
bin/report my-index --against new-crawl/
bin/report my-index --against crawl.log --by mime --format csv
bin/report my-index --against new-crawl/ --mime '' --mime '^text/.*' --min-size 0 --min-size 1024
"""
_ROWS = 20  # of text
_BY = list(dict.fromkeys((*GROUPS, *BY)))
_PROGRESS_EVERY = 2048  # records


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("index", type=any_index, required=False)
@click.argument("more", nargs=-1, metavar="[SOURCE...]")
@click.option("--engine", type=any_engine, default="", metavar="ADDRESS", help=ENGINE_HELP)
@click.option("--against", multiple=True, metavar="SOURCE", help="The crawl (or the arguments).")
@click.option(
    "-i", "--iterator", default=None, metavar="KIND", help=f"Kind of source: {', '.join(KINDS)}."
)
@click.option(
    "--crawl", default="", metavar="NAME", help="A crawl that looked up and reported while it ran."
)
@click.option(
    "--by", type=click.Choice(_BY), default=None,
    help="Group by. Default: host; with --crawl no groups. strategy and hour: only with --crawl.",
)  # fmt: skip
@click.option(
    "--order", type=click.Choice(list(ORDERS)), default="lookups", show_default=True,
    help="With --crawl: the column that groups are ranked by.",
)  # fmt: skip
@click.option(
    "-m", "--mime", multiple=True, default=("",),
    help="Leave out these media types; several are compared. Default: none left out.",
)  # fmt: skip
@click.option(
    "--min-size", multiple=True, type=click.IntRange(0), default=(0,),
    help="Smallest payload, in bytes; several are compared. Default: 0.",
)  # fmt: skip
@click.option("--status", default="200", show_default=True, help="HTTP codes: 200,203 or 2xx.")
@click.option(
    "--limit", "--top", type=click.IntRange(0), default=None,
    help="Largest groups only; 0 for all. Default: 20 in text, else all; hours and days: all.",
)  # fmt: skip
@click.option(
    "--revisit-annotation", default="", metavar="REGEX",
    help="crawl.log: further annotations that mark duplicates.",
)  # fmt: skip
@click.option(
    "--format", type=click.Choice(list(FORMATS)), default="text", show_default=True,
    help="csv has the groups only; html is a page.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    index: Path | None,
    engine: str,
    more: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> int:
    """Report what a crawl of INDEX saved, or what the crawl in SOURCE would have saved.

    By strategy, and by group.
    """
    sources = [*options["against"], *more]
    if bool(sources) is bool(options["crawl"]):
        raise click.UsageError("name the crawl: either --crawl NAME or --against SOURCE...")
    if as_json and options["format"] != "json":
        if ctx.get_parameter_source("format") is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"give either --json or --format {options['format']}")
        options["format"] = "json"
    by, known = options["by"], BY if options["crawl"] else GROUPS
    if by and by not in known:
        raise click.UsageError(f"such a report is by {', '.join(known)}")
    if options["limit"] is None:
        few = options["format"] == "text" and by not in ("hour", "day", "year")
        options["limit"] = _ROWS if few else 0
    index = index_or_engine(index, engine)
    return _of_crawl(index, **options) if options["crawl"] else _against(index, sources, **options)


def _of_crawl(index: Path, *, crawl: str, format: str, **options: Any) -> int:
    """Print what a crawl looked up and reported until a second ago."""
    store = open_store(index)
    if store is None:
        open_index(index).close()
        raise UnknownCrawl(f"no crawl has looked up or reported in {index} while it ran")
    asked = ReportRequest(options["by"] or "", options["limit"], options["order"])
    with closing(store), store.reading() as reading:
        found = crawl_report.report(reading, reading.crawl_or_suggest(crawl), asked)
        for piece in crawl_report.written(found, format):
            click.echo(piece, nl=False)
    return 0


def _against(index: Path, sources: list[str], **options: Any) -> int:
    """Print what a crawl would have saved; returns the exit status."""
    kind = options["iterator"]
    filters = [ReportFilter(mime, size) for mime in options["mime"] for size in options["min_size"]]
    status = statuses(options["status"])
    report = DuplicationReport(filters, by=options["by"] or "host", status=status)
    reading = SourceOptions(revisit_annotation=annotation(options["revisit_annotation"]))
    with closing(open_index(index)) as engine, engine.view() as view:
        settings = engine.identity.settings
        kinds = _read(report, expand(sources, kind), kind, reading, view, settings)
        head = report.head(settings, view.counts().captures)
    warn(report.problems)
    _warn_of_overlaps(report, kinds)
    PRINT[options["format"]](head, report.groups(options["limit"]))
    return Damaged.exit_status if report.problems else 0


def _read(
    report: DuplicationReport,
    found: Expanded,
    kind: str | None,
    reading: SourceOptions,
    view: View,
    settings: Settings,
) -> set[str]:
    """Look up all captures of the sources; returns whether these were "rows", "records" or both."""
    urlkey(b"http://[::1]:1/")  # keeps its imports for unusual URLs out of the lookup times
    report.problems += found.problems
    unsized = any(map(is_stream, found.paths))
    sizes = {path: facts.size for path, facts in found.remote.items()}
    of = 0 if unsized else sum(sizes.get(path) or os.path.getsize(path) for path in found.paths)
    kinds: set[str] = set()
    before = 0
    with show_progress(verbose=False) as progress:
        for path in found.paths:
            with open_source(path, kind, reading) as source:
                kinds.add("rows" if isinstance(source, TextSource) else "records")
                notify = partial(_notify, progress, source, before, of, report)
                report.add(_watched(source.items(), notify), view, settings)
                before += max(source.size, 0)
    return kinds


def _notify(
    progress: OnProgress, source: Source, before: int, of: int, report: DuplicationReport
) -> None:
    progress(ProgressUpdate("reading", before + source.position, of, report.records))


def _watched(items: Iterable[Item], notify: Callable[[], None]) -> Iterator[Item]:
    for number, item in enumerate(items, 1):
        if not number % _PROGRESS_EVERY:
            notify()
        yield item


def _warn_of_overlaps(report: DuplicationReport, kinds: set[str]) -> None:
    """Warn if the figures are misleading."""
    if len(kinds) > 1:
        say(
            "warning: WARCs were read as well as CDX files or logs: a capture in both is counted "
            "twice; name only one of them"
        )
    if report.self_matches:
        say(
            "warning: the index already has captures of this crawl, not counted as their own "
            "duplicates; make the report before bin/index --add"
        )
