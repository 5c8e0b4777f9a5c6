"""``bin/report --crawl NAME --compare NAME``: what has changed from one crawl to another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import orjson
from click.core import ParameterSource

from dedupindex.crawls.compare_crawls import (
    CHANGES,
    COLUMNS,
    MOST,
    ORDERS,
    CrawlComparison,
    compare,
)
from dedupindex.runtime.tables import amount, csv_lines, html_lines, printable

_TOP = 20  # hosts of text
_TAKEN = ("index", "engine", "crawl", "compare", "order", "limit", "format", "json", "config", "by")
_READABLE = (
    *(name for change in CHANGES for name in (change, f"{change}_bytes")),
    *("first_stored_bytes", "second_stored_bytes", "second_revisits"),
)


def check(context: click.Context, options: dict[str, Any]) -> None:
    """Raise `UsageError` for options that have no effect on a comparison."""
    if not options["crawl"]:
        raise click.UsageError("--compare is for --crawl: name the later crawl there")
    for name in context.params:
        typed = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if typed and name not in _TAKEN:
            raise click.UsageError(f"--{name.replace('_', '-')} has no effect with --compare")
    if options["by"] not in (None, "host"):
        raise click.UsageError("crawls are compared by host")
    if context.get_parameter_source("order") is not ParameterSource.COMMANDLINE:
        options["order"] = ORDERS[0]
    if options["order"] not in ORDERS:
        raise click.UsageError(f"with --compare, --order takes one of {', '.join(ORDERS)}")


def run(index: Path, **options: Any) -> int:
    """Print the comparison of two crawls; returns the exit status."""
    style, top = options["format"], options["limit"]
    if top is None:
        top = _TOP if style == "text" else MOST
    found = compare(index, options["compare"], options["crawl"], options["order"], top)
    for piece in _WRITERS[style](found):
        click.echo(piece, nl=False)
    return 0


def _json(found: CrawlComparison) -> Iterator[str]:
    yield orjson.dumps(found.as_json()).decode() + "\n"


def _csv(found: CrawlComparison) -> Iterator[str]:
    return csv_lines(["host", *COLUMNS], _rows(found))


def _html(found: CrawlComparison) -> Iterator[str]:
    title = f"From crawl {found.first} to crawl {found.second}"
    return html_lines(title, found.total, ["host", *_READABLE], _rows(found))


def _rows(found: CrawlComparison) -> Iterator[dict[str, Any]]:
    yield from found.rows
    if found.others is not None:
        yield {"host": f"all {found.others['hosts']:,} others", **found.others}


def _text(found: CrawlComparison) -> Iterator[str]:
    total = found.total
    yield f"From crawl:           {printable(found.first)}\n"
    yield f"To crawl:             {printable(found.second)}\n"
    for change in CHANGES:
        payload = amount(total[f"{change}_bytes"])
        yield f"{f'URLs {change}:':<22}{total[change]:,}, bytes of payload: {payload}\n"
    for name, label in (("first", "The first"), ("second", "The second")):
        saved, size = total[f"{name}_revisit_bytes"], total[f"{name}_stored_bytes"]
        yield (
            f"{f'{label} stored:':<22}{total[f'{name}_stored']:,}, {amount(size)}; "
            f"revisits: {total[f'{name}_revisits']:,}, {amount(saved)}\n"
        )
    if total["unsized"]:
        yield f"Sizes not known:      {total['unsized']:,} (they add no bytes)\n"
    yield (
        "\n"
        + "".join(f"{change:>9}" for change in CHANGES)
        + f"{'first':>11}{'second':>11}  host\n"
    )
    for row in _rows(found):
        yield (
            "".join(f"{row[change]:>9,}" for change in CHANGES)
            + f"{amount(row['first_stored_bytes']):>11}{amount(row['second_stored_bytes']):>11}"
            + f"  {printable(row['host'])}\n"
        )


_WRITERS = {"text": _text, "json": _json, "csv": _csv, "html": _html}
