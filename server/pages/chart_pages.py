"""Charts over time: lookups by match class; captures and bytes, saved and stored."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from flask import render_template, request

from dedupindex.crawls import statistics
from dedupindex.crawls.statistics_keys import StatisticsRow
from dedupindex.errors import BadQuery
from dedupindex.runtime.charts import Values, bar, columns
from dedupindex.runtime.tables import number, singular
from server.auth import NamespaceAccess
from server.services import Handlers

CLASSES = {  # in the same order and colours everywhere
    "exact_url": "same URL",
    "canonical_url": "same canonical URL",
    "digest": "another URL",
    "listed": "asked by URL only",
    "new": "no original",
}
_SAVED = ("exact_url", "canonical_url", "digest")


def lookup_counts(row: StatisticsRow) -> Values:
    """Return lookups by match class."""
    return [(name, getattr(row, name)) for name in CLASSES]


def capture_counts(row: StatisticsRow) -> Values:
    """Return the captures saved by match class, and those stored."""
    return [*((name, getattr(row, name)) for name in _SAVED), ("new", row.stored)]


def byte_counts(row: StatisticsRow) -> Values:
    """Return the bytes saved by match class, and those stored."""
    return [*((name, getattr(row, f"{name}_bytes")) for name in _SAVED), ("new", row.stored_bytes)]


_CHARTS = {  # values and tooltip of a column
    "lookups": (lookup_counts, "{lookups} lookups, {duplicates} duplicates"),
    "captures": (capture_counts, "{duplicates} captures saved, {stored} stored"),
    "bytes": (byte_counts, "bytes of payload: {duplicate_bytes} saved, {stored_bytes} stored"),
}


def text_of(heading: bytes) -> str:
    """Return a heading of statistics as text; bytes that are not UTF-8 are escaped."""
    return heading.decode("utf-8", "backslashreplace")


def table_row(heading: bytes, row: StatisticsRow, most: float = 0) -> dict[str, Any]:
    """Return a row of a table, with a bar of its lookups in relation to `most`."""
    text = text_of(heading)
    return {
        "heading": text,
        "is_text": bool(heading) and text.encode() == heading,
        **row.as_json(),
        "bar": bar(lookup_counts(row), most),
    }


def texts_of(row: StatisticsRow) -> dict[str, str]:
    """Return the numbers that tooltips name."""
    columns = ("lookups", "duplicates", "stored", "duplicate_bytes", "stored_bytes")
    content = row.as_json()
    return {name: number(content[name]) for name in columns}


class _Period(NamedTuple):
    """A period until now, in units."""

    name: str
    by: str  # of the statistics
    width: int  # characters of a date that name a unit
    units: int


SPANS = {
    "hours": _Period("48 hours", "hour", len("2026-11-20T09"), 48),
    "days": _Period("60 days", "day", len("2026-11-20"), 60),
    "months": _Period("24 months", "day", len("2026-11"), 24),
}


class Charts(Handlers):
    def charts(self) -> str:
        """Show the charts of all crawls, or of one."""
        name, crawl = request.args.get("span", "hours"), request.args.get("crawl", "")
        if name not in SPANS:
            raise BadQuery(f"there are charts of {', '.join(SPANS)}; choose one on the page")
        rows = self._rows(SPANS[name], crawl)
        charts = {
            chart: columns(
                [(f"{text_of(unit)}: {singular(title.format_map(texts_of(row)))}", values(row))
                 for unit, row in rows]
            )
            for chart, (values, title) in _CHARTS.items()
        }  # fmt: skip
        return render_template(
            "charts.html",
            crawl=crawl,
            span=name,
            spans={key: span.name for key, span in SPANS.items()},
            classes=CLASSES,
            any=any(any(row) for _, row in rows),
            rows=[table_row(unit, row) for unit, row in reversed(rows)],
            units=[text_of(unit) for unit, _ in rows],
            **charts,
        )

    def _rows(self, span: _Period, crawl: str) -> Sequence[tuple[bytes, StatisticsRow]]:
        """Return a row for every unit, also for those without events."""
        sums = {unit: StatisticsRow() for unit in _units(span, datetime.now(UTC))}
        self._live.opened()
        visible = NamespaceAccess(self._access, request.environ)
        with self._live.crawls.reading() as reading:
            if reading is not None:
                if crawl:
                    known = reading.crawl_or_suggest(crawl, visible.sees)
                    visible.require(known)
                    crawls = iter([known])
                else:
                    known_crawls = filter(visible.sees, reading.crawls())
                    crawls = (crawl for crawl in known_crawls if crawl.kept)
                first = min(sums)
                for unit, row in statistics.over_time(reading, crawls, span.by, since=first):
                    unit = unit[: span.width]
                    if unit in sums:  # a clock that is ahead has later ones
                        sums[unit] = sums[unit].plus(row)
        return list(sums.items())


def _units(span: _Period, now: datetime) -> list[bytes]:
    """Return the units of a span in order of time."""
    if span.by == "hour":
        starts = [now - timedelta(hours=back) for back in range(span.units)]
    elif span.width == len("2026-11-20"):
        starts = [now - timedelta(days=back) for back in range(span.units)]
    else:
        months = now.year * 12 + now.month - 1
        starts = [
            datetime((months - back) // 12, (months - back) % 12 + 1, 1)
            for back in range(span.units)
        ]
    return [start.isoformat()[: span.width].encode() for start in reversed(starts)]
