"""Tables of reports: one definition, from which text, JSON, CSV and HTML are made.

A label means the same in all reports. Bytes of a *payload* are those that a browser gets, also if
they are stored compressed; bytes *in files* are those on disk. What is not known is None, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from html import escape
from typing import Any, NamedTuple

from dedupindex.runtime.tables import UNKNOWN, amount, csv_lines, json_bytes, printable

_DIGITS = 2  # of per cents in JSON and CSV
_SHORT = 6  # characters of texts other than the heading, in text
Row = Mapping[str, Any]
"""Values by the names of columns."""


class Unit(Enum):
    """What the values of a column are; the value is the width of the column in text."""

    COUNT = 9
    BYTES = 10
    PERCENT = 8
    MILLISECONDS = 11
    TEXT = 0


class Shown(Enum):
    """Where a column is; JSON and CSV have all."""

    EVERYWHERE = "text, HTML"
    ON_PAGES = "HTML"  # but not on phones
    AS_DATA = ""


class ReportColumn(NamedTuple):
    name: str  # in JSON and CSV
    label: str
    unit: Unit = Unit.COUNT
    shown: Shown = Shown.EVERYWHERE
    absent: str = UNKNOWN  # what stands for None

    @property
    def title(self) -> str:
        """The label, as it stands above a column of a page."""
        return self.label[:1].upper() + self.label[1:]

    def value(self, row: Row) -> Any:
        """Return the value of a row as it is in JSON and CSV."""
        value = row[self.name]
        is_share = self.unit is Unit.PERCENT and value is not None
        return round(value, _DIGITS) if is_share else value

    def text(self, value: Any) -> str:
        """Return a value with its unit, on one line."""
        if value is None:
            return self.absent
        if isinstance(value, bool):
            return "yes" if value else "no"
        if self.unit is Unit.BYTES:
            return amount(value)
        if self.unit is Unit.PERCENT:
            return share_text(value)
        if self.unit is Unit.MILLISECONDS:
            return f"{value:,} ms"
        return f"{value:,}" if self.unit is Unit.COUNT else printable(str(value))


def hidden(*columns: ReportColumn) -> tuple[ReportColumn, ...]:
    """Return columns for JSON and CSV only."""
    return tuple(column._replace(shown=Shown.AS_DATA) for column in columns)


def on_pages(*columns: ReportColumn) -> tuple[ReportColumn, ...]:
    """Return columns that are too many for text."""
    return tuple(column._replace(shown=Shown.ON_PAGES) for column in columns)


@dataclass(frozen=True)
class Table:
    """Rows of one kind, under their headings; the first column is the heading of a row."""

    title: str
    columns: tuple[ReportColumn, ...]
    order: str  # the column by which rows are sorted

    def __post_init__(self) -> None:
        assert self.order in {column.name for column in self.shown()}, self.order

    def shown(self) -> Sequence[ReportColumn]:
        """Return the columns in text."""
        return [column for column in self.columns if column.shown is Shown.EVERYWHERE]

    def on_page(self) -> Sequence[ReportColumn]:
        """Return the columns of a page."""
        return [column for column in self.columns if column.shown is not Shown.AS_DATA]

    def as_json(self, row: Row) -> dict[str, Any]:
        """Return a row as an object with all columns."""
        return {column.name: column.value(row) for column in self.columns}

    def json_items(self, rows: Iterable[Row]) -> Iterator[str]:
        """Yield the rows as items of a JSON array, with commas: they may not fit in memory."""
        for before, row in enumerate(rows):
            yield ("," if before else "") + json_bytes(self.as_json(row)).decode()

    def csv_lines(self, rows: Iterable[Row]) -> Iterator[str]:
        """Yield a line with the names of all columns, and a line for each row.

        A heading that is not known has the word for it; other cells are empty.
        """
        heading = self.columns[0]
        named = (
            {**row, heading.name: heading.absent} if row[heading.name] is None else row
            for row in rows
        )
        return csv_lines([column.name for column in self.columns], map(self.as_json, named))

    def text_lines(self, rows: Iterable[Row]) -> Iterator[str]:
        """Yield a line with labels and one for each row, without line ends.

        Texts follow the numbers, the heading last, as it may be long.
        """
        numbers = [column for column in self.shown() if column.unit is not Unit.TEXT]
        texts = [column for column in self.shown() if column.unit is Unit.TEXT]
        texts = [*texts[1:], *texts[:1]]
        *short, last = texts
        widths = {
            column: max(len(column.label), column.unit.value or _SHORT) for column in self.shown()
        }
        titles = [f"{column.label:>{widths[column]}}" for column in numbers]
        titles += [f"{column.label:<{widths[column]}}" for column in short]
        yield "  ".join((*titles, last.label))
        for row in rows:
            cells = [f"{column.text(row[column.name]):>{widths[column]}}" for column in numbers]
            cells += [f"{column.text(row[column.name]):<{widths[column]}}" for column in short]
            yield "  ".join((*cells, last.text(row[last.name])))

    def html_lines(self, rows: Iterable[Row]) -> Iterator[str]:
        """Yield a table of HTML, which scrolls where it is too wide."""
        columns, title = self.on_page(), escape(printable(self.title))
        yield f'<div class="box" role="region" aria-label="{title}" tabindex="0">\n'
        yield f"<table><caption>{title}</caption>\n<thead><tr>"
        for column in columns:
            yield f'<th scope="col"{_class_of(column)}>{escape(column.title)}</th>'
        yield "</tr></thead>\n<tbody>\n"
        classes = [_class_of(column) for column in columns]
        for row in rows:
            heading, *cells = (escape(column.text(row[column.name])) for column in columns)
            yield f'<tr><th scope="row"{classes[0]}>{heading}</th>'
            pairs = zip(classes[1:], cells, strict=True)
            yield "".join(f"<td{kind}>{cell}</td>" for kind, cell in pairs) + "</tr>\n"
        yield "</tbody></table></div>\n"


def _class_of(column: ReportColumn) -> str:
    kinds = ["n"] * (column.unit is not Unit.TEXT)
    kinds += ["minor"] * (column.shown is Shown.ON_PAGES)
    return f' class="{" ".join(kinds)}"' if kinds else ""


def share_text(share: float) -> str:
    """Return a share of `exact_percent` as all text and pages show it."""
    return f"{share:.1f} %"


def exact_percent(part: float, whole: float) -> float:
    """Return a share in per cent for rows, 0 if the whole is 0.

    What is shown is rounded once, by `share_text`, columns or `rounded_shares`: 3.846 rounded to
    3.85 for JSON would be 3.9 in text, where 3.8 is right.
    """
    return 100 * part / whole if whole else 0.0


def rounded_shares(value: Any) -> Any:
    """Return what becomes JSON with its shares rounded: values whose names end with "percent"."""
    if isinstance(value, Mapping):
        return {
            name: round(item, _DIGITS)
            if isinstance(item, float) and name.endswith("percent")
            else rounded_shares(item)
            for name, item in value.items()
        }
    return list(map(rounded_shares, value)) if isinstance(value, list) else value
