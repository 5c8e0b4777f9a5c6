"""Reports as pages of HTML: a sentence, a few figures, pictures, then tables.

A page is one file without scripts that loads nothing; its policy (CSP) forbids both. Pictures are
SVG with colours from classes, so that they fit every screen, dark ones and paper too. Every text
is escaped here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import NamedTuple

from dedupindex import __version__
from dedupindex.runtime.charts import HEIGHT, bar, columns
from dedupindex.runtime.files import atomic_file
from dedupindex.runtime.page_style import POLICY, STYLE
from dedupindex.runtime.report_table import ReportColumn, Row, exact_percent, share_text
from dedupindex.runtime.tables import UNKNOWN, printable

MOST = 12  # rows of a ranking


class Figure(NamedTuple):
    """A number that a reader in a hurry takes away."""

    label: str
    value: str
    note: str = ""


class ChartPart(NamedTuple):
    """What a colour stands for in a picture."""

    name: str  # CSS class
    label: str


def page(
    title: str, headline: str, figures: Iterable[Figure], body: Iterable[str], footer: str = ""
) -> Iterator[str]:
    """Yield a page; `body` is HTML."""
    shown = text(title)
    yield (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{shown}</title><style>{STYLE}</style></head>\n<body><main>\n"
        f"<h1>{shown}</h1>\n{note(_made())}"
        f'<p class="headline">{text(headline)}</p>\n<dl class="cards">\n'
    )
    for label, value, more in figures:
        small = f'<dd class="note">{text(more)}</dd>' if more else ""
        yield f"<div><dt>{text(label)}</dt><dd>{text(value)}</dd>{small}</div>\n"
    yield "</dl>\n"
    yield from body
    yield f"</main>\n<footer><p>{text(footer)}</p></footer></body></html>\n"


def note(value: str) -> str:
    """Return a line of HTML in small type."""
    return f'<p class="note">{text(value)}</p>\n'


def _made() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, dedupindex {__version__}"


def save(path: Path, lines: Iterable[str]) -> None:
    """Write a page whole, or not at all."""
    with atomic_file(path) as stream:
        for line in lines:
            stream.write(line.encode("utf-8", "replace"))


def facts(title: str, columns: Iterable[ReportColumn], values: Row) -> Iterator[str]:
    """Yield a list of labels and values, of columns with a known value or a word of their own."""
    yield f'<h2>{text(title)}</h2>\n<dl class="facts">\n'
    for column in columns:
        if values.get(column.name) is not None or column.absent != UNKNOWN:
            shown = text(column.text(values.get(column.name)))
            yield f"<div><dt>{text(column.title)}</dt><dd>{shown}</dd></div>\n"
    yield "</dl>\n"


def split(
    title: str,
    parts: Sequence[tuple[ChartPart, float | None]],
    column: ReportColumn,
    *,
    with_shares: bool = True,
) -> Iterator[str]:
    """Yield a bar of a whole and its parts, whose values are in the unit of `column`.

    Shares in per cent are left out if they are not wanted, or a value is not known (None).
    """
    known = [(part, value or 0) for part, value in parts]
    whole = sum(value for _, value in known)
    with_shares = with_shares and bool(whole) and all(value is not None for _, value in parts)
    shares = [
        (
            part,
            f"{part.label}: {column.text(value)}"
            + (f" ({share_text(exact_percent(value or 0, whole))})" if with_shares else ""),
        )
        for part, value in parts
    ]
    yield f"<figure><figcaption>{text(title)}</figcaption>\n"
    yield from _bar("; ".join(label for _, label in shares), known, whole, 28)
    yield from _legend(ChartPart(part.name, label) for part, label in shares)
    yield "</figure>\n"


def ranking(
    title: str,
    parts: Sequence[ChartPart],
    rows: Iterable[tuple[str, Sequence[float], str]],
    remark: str = "",
) -> Iterator[str]:
    """Yield bars on one scale: of each row a name, the values of the parts, and what to write."""
    shown = list(rows)
    most = max((sum(values) for _, values, _ in shown), default=0)
    if not most:
        return
    yield f"<figure><figcaption>{text(title)}</figcaption>\n"
    if remark:
        yield note(remark)
    yield from _legend(parts)
    yield '<ol class="ranking">\n'
    for name, values, label in shown:
        yield f'<li><span>{text(name)}</span><span class="value">{text(label)}</span>'
        yield from _bar(f"{name}: {label}", list(zip(parts, values, strict=True)), most, 12)
        yield "</li>\n"
    yield "</ol></figure>\n"


def over_time(
    title: str,
    parts: Sequence[ChartPart],
    rows: Sequence[tuple[str, Sequence[float]]],
    column: ReportColumn,
) -> Iterator[str]:
    """Yield columns, of each time the values of the parts, in the unit of `column`."""
    if len(rows) < 2:
        return
    names = [part.name for part in parts]
    chart = columns([(time, list(zip(names, values, strict=True))) for time, values in rows])
    yield f"<figure><figcaption>{text(title)}</figcaption>\n"
    yield from _legend(parts)
    yield f'<p class="note">{text(column.text(chart.highest))}</p>'
    yield f'<svg width="100%" height="{HEIGHT}" role="img" aria-label="{text(title)}">\n'
    for name, x, width, y, height in chart.parts:
        yield f'<rect class="{name}" x="{x}%" y="{y}" width="{width}%" height="{height}"/>'
    for (name, x, width, y, height), time in chart.titles:
        yield f'<rect class="{name}" x="{x}%" y="{y}" width="{width}%" height="{height}">'
        yield f"<title>{text(time)}</title></rect>"
    yield f'</svg>\n<p class="axis note"><span>{text(rows[0][0])}</span>'
    yield f"<span>{text(rows[-1][0])}</span></p></figure>\n"


def text(value: str) -> str:
    """Return text for HTML, also within quotes."""
    return escape(printable(value))


def _legend(parts: Iterable[ChartPart]) -> Iterator[str]:
    yield '<ul class="legend">'
    for name, label in parts:
        yield '<li><svg class="key" width="12" height="12" aria-hidden="true">'
        yield f'<rect class="{name}" width="12" height="12"/></svg>{text(label)}</li>'
    yield "</ul>\n"


def _bar(
    label: str, values: Sequence[tuple[ChartPart, float]], whole: float, height: int
) -> Iterator[str]:
    yield f'<svg width="100%" height="{height}" role="img" aria-label="{text(label)}">'
    yield f'<title>{text(label)}</title><rect class="rest" width="100%" height="{height}"/>'
    for rect in bar([(part.name, value) for part, value in values], whole):
        yield f'<rect class="{rect.name}" x="{rect.x}%" width="{rect.width}%" height="{height}"/>'
    yield "</svg>"
