"""``bin/report``: what a crawl would have saved, for people, programs and spreadsheets."""

from __future__ import annotations

import csv
import io
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from dedupindex.admission import statuses
from dedupindex.cli.common import Command, amount, print_json, printable, say, warn
from dedupindex.errors import Damaged
from dedupindex.index import open_index
from dedupindex.report import COLUMNS, GROUPS, Filter, Report
from dedupindex.sources import KINDS, SourceOptions, expand, open_source
from dedupindex.sources.text import TextSource

EXAMPLES = """
bin/report my-index --against new-crawl/
bin/report my-index --against crawl.log --by mime --format csv
bin/report my-index --against new-crawl/ --mime '' --mime '^text/.*' --min-size 0 --min-size 1024
"""
_ROWS = 20  # of text
_LABELS = {
    "exact_url": "Exact URL hits",
    "canonical_url": "Canonical URL hits",
    "digest": "Digest hits",
}


@click.command(cls=Command, examples=EXAMPLES)
@click.argument("index", type=click.Path(path_type=Path))
@click.argument("more", nargs=-1, metavar="[SOURCE...]")
@click.option("--against", multiple=True, metavar="SOURCE", help="The crawl (or the arguments).")
@click.option(
    "-i", "--iterator", default=None, metavar="KIND", help=f"Kind of source: {', '.join(KINDS)}."
)
@click.option(
    "--by", type=click.Choice(list(GROUPS)), default="host", show_default=True, help="Group by."
)
@click.option(
    "-m",
    "--mime",
    "mimes",
    multiple=True,
    default=("",),
    help="Leave these media types out; several are tried side by side. Default: none left out.",
)
@click.option(
    "--min-size",
    "min_sizes",
    multiple=True,
    type=click.IntRange(0),
    default=(0,),
    help="Smallest payload, in bytes; several are tried side by side. Default: 0.",
)
@click.option("--status", default="200", show_default=True, help="HTTP codes: 200,203 or 2xx.")
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=None,
    help="Largest groups only; 0 for all. Default: 20 in text, else all.",
)
@click.option(
    "--format",
    "style",
    type=click.Choice(["text", "json", "csv"]),
    default="text",
    show_default=True,
    help="csv gives the groups, one a line.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
def command(
    index: Path,
    more: tuple[str, ...],
    against: tuple[str, ...],
    iterator: str | None,
    by: str,
    mimes: tuple[str, ...],
    min_sizes: tuple[int, ...],
    status: str,
    limit: int | None,
    style: str,
    as_json: bool,
) -> int:
    """What the crawl in SOURCE would have saved had it asked INDEX, by strategy and by group."""
    if not against and not more:
        raise click.UsageError("name the crawl: --against SOURCE...")
    filters = [Filter(mime, size) for mime in mimes for size in min_sizes]
    report = Report(filters, by=by, status=statuses(status))
    with closing(open_index(index)) as engine, engine.view() as view:
        settings = engine.identity.settings
        kinds: set[str] = set()
        expanded = expand([*against, *more], iterator)
        report.problems += expanded.problems
        for path in expanded.paths:
            with open_source(path, iterator, SourceOptions()) as source:
                kinds.add("rows" if isinstance(source, TextSource) else "records")
                report.take(source.items(), view, settings)
        if limit is None:
            limit = _ROWS if style == "text" and not as_json else 0
        content = report.as_json(settings, view.counts().captures, limit)
    warn(report.problems)
    _doubts(report, kinds)
    if style == "json" or as_json:
        print_json(content)
    elif style == "csv":
        sys.stdout.write(as_csv(content))
    else:
        click.echo(as_text(content), nl=False)
    return Damaged.exit_status if report.problems else 0


def _doubts(report: Report, kinds: set[str]) -> None:
    """Say what makes the figures other than they look."""
    if len(kinds) > 1:
        say(
            "warning: both WARCs and CDX files or logs were read: a capture that is in both was "
            "counted twice; name only one of them"
        )
    if report.themselves:
        say(
            "warning: the index holds captures of this crawl itself, which are not counted as "
            "their own duplicates; make the report before bin/index --add"
        )


def as_csv(content: dict[str, Any]) -> str:
    """The groups of a report, one a line under a header."""
    out = io.StringIO()
    names = [content["by"], *COLUMNS, "duplicates", "duplicate_bytes", "new", "new_bytes"]
    writer = csv.DictWriter(out, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for group in content["groups"]:
        writer.writerow({**group, content["by"]: _safe_cell(printable(group[content["by"]]))})
    return out.getvalue()


def _safe_cell(text: str) -> str:
    """Spreadsheets run cells that begin like a formula; a host of the web may."""
    return f"'{text}" if text[:1] in "=+-@" else text


def as_text(content: dict[str, Any]) -> str:
    """A report for people, with every field of the DeDuplicator's."""
    lines = [
        f"Records read:         {content['records']:,}",
        *(f"  not handled: {name:<18}{count:,}" for name, count in content["not_handled"].items()),
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
    lines += [
        f"Average lookup time:  {content['average_lookup_ms']} ms",
        f"Last lookup time:     {content['last_lookup_ms']} ms",
        "",
        "What each strategy would have saved (each finds what the one above it does, and more):",
    ]
    for row in content["filters"]:
        left_out = f"without {row['mime']}" if row["mime"] else "all media types"
        lines.append(f"  {left_out}, from {row['min_size']} bytes")
        for strategy, saving in row["strategies"].items():
            lines.append(
                f"    {strategy:<15}{saving['captures']:>12,} captures"
                f"{amount(saving['bytes']):>12} ({saving['percent']} %)"
            )
    lines += ["", *_groups(content), "", *_index(content["index"])]
    return "\n".join(lines) + "\n"


def _unsized(count: int) -> str:
    return f", and {count:,} captures whose sizes the sources do not tell" if count else ""


def _groups(content: dict[str, Any]) -> list[str]:
    lines = [f"{'handled':>9} {'exact':>8} {'canonical':>9} {'digest':>8} {'saved':>10}  by host"]
    lines[0] = lines[0].replace("by host", f"by {content['by']}")
    for group in content["groups"]:
        lines.append(
            f"{group['handled']:>9,} {group['exact_url']:>8,} {group['canonical_url']:>9,} "
            f"{group['digest']:>8,} {amount(group['duplicate_bytes']):>10}  "
            f"{printable(group[content['by']])}"
        )
    return lines


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
