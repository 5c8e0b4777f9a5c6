"""How ``bin/report`` shows what a crawl would have saved."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import click
import orjson

from dedupindex.lookup.savings import COLUMNS
from dedupindex.runtime.tables import amount, csv_lines, html_lines, printable

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
    """One JSON object on one line, its groups one by one: all of them may not fit in memory."""
    write = sys.stdout.buffer.write
    write(orjson.dumps(head)[:-1] + b',"groups":[')
    for number, group in enumerate(groups):
        write((b"," if number else b"") + orjson.dumps(group))
    write(b"]}\n")
    sys.stdout.buffer.flush()


def _print_csv(head: dict[str, Any], groups: Iterable[dict[str, Any]]) -> None:
    """The groups of a report, one a line under a header."""
    for line in csv_lines(_names(head), groups):
        click.echo(line, nl=False)


def _print_html(head: dict[str, Any], groups: Iterable[dict[str, Any]]) -> None:
    """A page with the figures of a report and its groups."""
    facts = {name: value for name, value in head.items() if isinstance(value, int | float | str)}
    names = [head["by"], *_READABLE]
    for line in html_lines("What the crawl would have saved", facts, names, groups):
        click.echo(line, nl=False)


def _names(head: dict[str, Any]) -> list[str]:
    return [head["by"], *COLUMNS, "duplicates", "duplicate_bytes", "new", "new_bytes"]


def _print_text(content: dict[str, Any], groups: Iterable[dict[str, Any]]) -> None:
    """A report for people, with every field of the DeDuplicator's."""
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
    return lines


def _unsized(count: int) -> str:
    return f", and {count:,} captures whose sizes the sources do not tell" if count else ""


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
