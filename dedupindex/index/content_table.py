"""The table of what an index holds, of ``bin/index --stats`` and of the page Content."""

from __future__ import annotations

from typing import Any

from dedupindex.index.summary import DIMENSIONS, Row, known_bytes
from dedupindex.runtime.report_table import (
    ReportColumn,
    Shown,
    Table,
    Unit,
    exact_percent,
    hidden,
    on_pages,
)

HEADINGS = {
    "host": "host", "mime": "media type", "status": "HTTP status", "size": "payload",
    "crawl": "crawl", "year": "year", "month": "month",
}  # fmt: skip
assert HEADINGS.keys() == set(DIMENSIONS)
_AMOUNTS = (
    ReportColumn("captures", "captures stored"),
    ReportColumn("bytes", "payload", Unit.BYTES),
    ReportColumn("duplicates", "stored again"),
    ReportColumn("duplicates_percent", "stored again, %", Unit.PERCENT),
    ReportColumn("duplicate_bytes", "that costs", Unit.BYTES),
    *on_pages(ReportColumn("revisits", "revisits")),
    *hidden(ReportColumn("revisit_bytes", "saved by revisits", Unit.BYTES)),
)


def content_table(by: str, order: str) -> Table:
    """Return the table of one of `DIMENSIONS`; the order, and its share of all, come first."""
    first = next(column for column in _AMOUNTS if column.name == order)
    return Table(
        f"By {HEADINGS[by]}, sorted by: {first.label}",
        (
            ReportColumn("heading", HEADINGS[by], Unit.TEXT, absent=absent(by)),
            first._replace(shown=Shown.EVERYWHERE),
            ReportColumn("percent", "share", Unit.PERCENT),
            *(column for column in _AMOUNTS if column is not first),
        ),
        order,
    )


def absent(by: str) -> str:
    """Return what stands for a value that captures do not have: crawls may have no name."""
    return "not named" if by == "crawl" else "not known"


def content_row(row: Row, by: str, order: str, total: Row) -> dict[str, Any]:
    """Return the values of a row of the summary; a share of what is not known is not known."""
    known, whole = known_bytes(row), known_bytes(total)
    part, all_of_it = known[order], whole[order]
    return {
        **known,
        "heading": row.get(by),
        "percent": None if None in (part, all_of_it) else exact_percent(part, all_of_it),
        "duplicates_percent": exact_percent(row["duplicates"], row["captures"]),
    }
