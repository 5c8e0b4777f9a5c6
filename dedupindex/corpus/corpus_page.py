"""The report of bin/corpus as a page: how many captures were selected, read and written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dedupindex.corpus.extract_report import GROUPS, CorpusReport
from dedupindex.runtime import html_page
from dedupindex.runtime.html_page import MOST, ChartPart, Figure
from dedupindex.runtime.report_table import (
    ReportColumn,
    Table,
    Unit,
    exact_percent,
    share_text,
)
from dedupindex.runtime.tables import amount, names_text

_ROWS = 50  # of a table
_WRITTEN = ChartPart("kept", "written")
_ERRORS = Table(
    "What failed; the captures have an error in its place, or are left out",
    (
        ReportColumn("step", "step", Unit.TEXT),
        ReportColumn("captures", "captures"),
        ReportColumn("captures_percent", "captures, %", Unit.PERCENT),
    ),
    order="captures",
)


def _group_table(by: str) -> Table:
    title = f"Captures written, by {by}, at most {_ROWS}; those with the most first"
    return Table(title, (ReportColumn("heading", by, Unit.TEXT), *_ERRORS.columns[1:]), "captures")


def lines(report: CorpusReport, sources: Sequence[str], out: Path | None) -> Iterator[str]:
    """Yield the page."""
    title = f"Corpus of {names_text(sources, 2)}" if sources else "Corpus"
    place = f" in {out}" if out is not None else ""
    headline = (
        f"{report.chosen:,} captures matched; {report.entries:,} entries were written{place}."
    )
    failed = report.errors.total() + report.dropped
    figures = [
        Figure("Matched", f"{report.chosen:,}", "captures, by their metadata"),
        Figure("Written", f"{report.entries:,}", amount(report.bytes)),
        Figure("Records read", f"{report.records:,}", f"{amount(report.bytes_read)} of files"),
        Figure("Errors", f"{failed:,}", f"{report.refused:,} lines skipped" * bool(report.refused)),
    ]

    def body() -> Iterator[str]:
        for by in GROUPS:
            yield from _pictures(by, report)
        if report.errors:
            found = sorted(report.errors.items(), key=lambda one: (-one[1], one[0]))
            yield from _ERRORS.html_lines(
                {"step": step, **_share(count, report)} for step, count in found
            )
        for by in GROUPS:
            if rows := _rows(by, report, _ROWS):
                yield from _group_table(by).html_lines(rows)

    footer = "Everything was read." if report.whole else "Not everything could be read."
    return html_page.page(title, headline, figures, body(), footer)


def _rows(by: str, report: CorpusReport, most: int) -> list[dict[str, Any]]:
    if by not in report.groups:
        return []
    return [
        {
            "heading": name.decode("utf-8", "backslashreplace") or "not known",
            **_share(count, report),
        }
        for name, (count,) in report.groups[by].largest(most, 0)
    ]


def _share(count: int, report: CorpusReport) -> dict[str, Any]:
    return {"captures": count, "captures_percent": exact_percent(count, report.entries)}


def _pictures(by: str, report: CorpusReport) -> Iterator[str]:
    rows = _rows(by, report, MOST)
    if by == "year":
        rows.sort(key=lambda row: row["heading"])
        times = [(row["heading"], [row["captures"]]) for row in rows]
        yield from html_page.over_time("Captures by year", [_WRITTEN], times, _ERRORS.columns[1])
        return
    bars = [
        (
            row["heading"],
            [row["captures"]],
            f"{row['captures']:,} ({share_text(row['captures_percent'])})",
        )
        for row in rows
    ]
    yield from html_page.ranking(f"Captures by {by}", [_WRITTEN], bars)
