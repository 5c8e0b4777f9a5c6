"""``bin/report --crawl NAME --compare NAME``: what has changed from one crawl to another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from dedupindex.cli.common import is_typed, print_and_save, say
from dedupindex.cli.progress_bar import show_progress
from dedupindex.crawls.compare_crawls import (
    CHANGES,
    MOST,
    ORDERS,
    CrawlComparison,
    compare,
)
from dedupindex.crawls.comparison_table import comparison_table
from dedupindex.errors import as_called
from dedupindex.runtime import html_page
from dedupindex.runtime.report_table import ReportColumn, Table, Unit, share_text
from dedupindex.runtime.tables import UNKNOWN, amount, json_bytes, printable

_TOP = 20  # hosts of text
_TAKEN = (
    *("index", "engine", "crawl", "compare", "order", "limit", "format", "html", "json", "config"),
    "by",
)
_COUNTED = (
    "Without these captures a URL that has not changed is counted as new or gone, or not at all."
)
_NOT_KNOWN = (
    "new, gone, same and changed are not known: they are counted without what was not read or "
    "was purged"
)
_PARTS = [html_page.ChartPart(change, change) for change in CHANGES]


def check(context: click.Context, options: dict[str, Any]) -> None:
    """Raise `UsageError` for options that have no effect on a comparison."""
    if not options["crawl"]:
        raise click.UsageError("--compare is for --crawl: name the later crawl there")
    for name in context.params:
        if is_typed(name) and name not in _TAKEN:
            raise click.UsageError(f"--{name.replace('_', '-')} has no effect with --compare")
    if options["by"] not in (None, "host"):
        raise click.UsageError("crawls are compared by host")
    if not is_typed("order"):
        options["order"] = ORDERS[0]
    if options["order"] not in ORDERS:
        raise click.UsageError(f"with --compare, --order takes one of {', '.join(ORDERS)}")


def run(index: Path, *, format: str, html: Path | None, **options: Any) -> int:
    """Print the comparison of two crawls; returns the exit status."""
    top = options["limit"]
    if top is None:
        top = _TOP if format == "text" else MOST
    with show_progress() as progress:
        found = compare(
            index, options["compare"], options["crawl"], options["order"], top, progress
        )
    for warning in found.warnings if format != "text" else ():  # the text has them
        say(f"warning: {warning}")
    if found.warnings and format != "text":
        say(f"note: of each host, too, {_NOT_KNOWN}")
    for remark in found.remarks if format != "text" else ():
        say(f"note: {remark}")
    table = comparison_table(options["order"], _NOT_KNOWN if found.warnings else "")
    print_and_save(_written(found, table, format), html, lambda: _page(found, table))
    return 0


def _written(found: CrawlComparison, table: Table, style: str) -> Iterator[str]:
    """Yield the comparison in one of the formats of reports."""
    if style == "json":
        yield json_bytes(found.as_json()).decode() + "\n"
    elif style == "csv":
        yield from table.csv_lines(_rows(found))
    elif style == "html":
        yield from _page(found, table)
    else:
        lines = (*map(as_called, _text(found)), table.title, *table.text_lines(_rows(found)))
        yield from (f"{line}\n" for line in lines)


def _rows(found: CrawlComparison) -> Iterator[dict[str, Any]]:
    yield from found.rows
    if found.others is not None:
        hosts = found.others["hosts"]
        yield {"host": "one other" if hosts == 1 else f"all {hosts:,} others", **found.others}


def _page(found: CrawlComparison, table: Table) -> Iterator[str]:
    total, rows = found.total, list(_rows(found))
    unsized = total["unsized"]
    urls = sum(total[change] for change in CHANGES)
    figures = [
        html_page.Figure(f"URLs {change}", f"{total[change]:,}", amount(total[f"{change}_bytes"]))
        for change in CHANGES
    ]
    headline = f"Of {urls:,} URLs, {total['same']:,} answered the same in both crawls."
    if found.warnings:  # what looks new or gone may have answered the same
        figures = [figure._replace(value=UNKNOWN, note="") for figure in figures]
        headline = "What is new, gone, the same and changed is not known: the warning says why."

    def body() -> Iterator[str]:
        for warning in found.warnings:
            yield f"<p><strong>Warning:</strong> {html_page.text(warning)}</p>\n"
        if found.warnings:
            yield f"<p>{html_page.text(_COUNTED)}</p>\n"
        else:  # a picture would show as changed what may be the same
            yield from _pictures(total, rows)
        for remark in found.remarks:
            yield f"<p><strong>Note:</strong> {html_page.text(remark)}</p>\n"
        yield from table.html_lines(rows)

    return html_page.page(
        f"Earlier crawl {found.first}, later crawl {found.second}",
        headline,
        figures,
        body(),
        f"Sizes not known: {unsized:,}; they add no bytes." if unsized else "",
    )


def _pictures(total: Mapping[str, int], rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    counts = [(part, total[part.name]) for part in _PARTS]
    yield from html_page.split("URLs by what has changed", counts, ReportColumn("", ""))
    sizes = [(part, total[f"{part.name}_bytes"] or 0) for part in _PARTS]
    yield from html_page.split(
        "Payload by what has changed", sizes, ReportColumn("", "", Unit.BYTES)
    )
    largest = [
        (row["host"] or UNKNOWN, [row[change] for change in CHANGES], f"{row['changed']:,} changed")
        for row in rows[: html_page.MOST]
    ]
    yield from html_page.ranking("URLs of the hosts", _PARTS, largest)


def _text(found: CrawlComparison) -> Iterator[str]:
    total = found.total
    yield f"Earlier crawl:        {printable(found.first)}"
    yield f"Later crawl:          {printable(found.second)}"
    for warning in found.warnings:
        yield f"Warning:              {printable(warning)}"
    if found.warnings:
        yield f"                      {_COUNTED}"
    for remark in found.remarks:
        yield f"Note:                 {printable(remark)}"
    for change in CHANGES:
        if found.warnings:
            counted = f" (counted without them: {total[change]:,})"
            yield f"{f'URLs {change}:':<22}{UNKNOWN}{counted}"
            continue
        payload = amount(total[f"{change}_bytes"])
        share = share_text(total[f"{change}_percent"])
        yield f"{f'URLs {change}:':<22}{total[change]:,} ({share}), bytes of payload: {payload}"
    for name, label in (("first", "Earlier"), ("second", "Later")):
        saved, size = total[f"{name}_revisit_bytes"], total[f"{name}_stored_bytes"]
        yield (
            f"{f'{label} stored:':<22}{total[f'{name}_stored']:,}, {amount(size)}; "
            f"revisits: {total[f'{name}_revisits']:,}, {amount(saved)}"
        )
    if total["unsized"]:
        yield f"Sizes not known:      {total['unsized']:,} (they add no bytes)"
    yield ""
