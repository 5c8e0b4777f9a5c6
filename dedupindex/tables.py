"""Tables and facts as text, CSV and HTML. Text from the web is hostile in each of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

STYLE = (
    "body{font:1rem/1.4 system-ui,sans-serif;margin:1.5rem;color-scheme:light dark}"
    "table{border-collapse:collapse;margin:1rem 0}caption{text-align:left;font-weight:bold}"
    "th,td{padding:.2rem .6rem;border-bottom:1px solid #8888;text-align:right}"
    "th:first-child,td:first-child{text-align:left;overflow-wrap:anywhere}"
)


def printable(text: str) -> str:
    """Text from the web as a terminal may show it: no control characters, no lone surrogates."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )


def amount(count: float) -> str:
    """Bytes for people: ``1.4 MB``."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return ""


def csv_lines(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A header and a line for each row, with its ``\\n``."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    for cells in _cells(names, rows):
        writer.writerow(map(_safe_cell, cells))
        yield stream.getvalue()
        stream.seek(0)
        stream.truncate()


def _cells(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Iterator[Sequence[Any]]:
    yield names
    for row in rows:
        yield [row[name] for name in names]


def _safe_cell(value: Any) -> Any:
    """Spreadsheets run cells that begin like a formula; a host of the web may."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def html_lines(
    title: str,
    facts: Mapping[str, Any],
    names: Sequence[str] = (),
    rows: Iterable[Mapping[str, Any]] = (),
) -> Iterator[str]:
    """A page of its own, without script: facts, and a table where there are `names`."""
    yield (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{_text(title)}</title><style>{STYLE}</style></head>\n<body><h1>{_text(title)}</h1>"
    )
    yield "<table><caption>In all</caption>\n"
    for name, value in facts.items():
        yield f'<tr><th scope="row">{_text(name)}</th><td>{_shown(value)}</td></tr>\n'
    yield "</table>\n"
    if names:
        yield f"<table><caption>By {_text(names[0])}</caption>\n<thead><tr>"
        yield "".join(f'<th scope="col">{_text(name)}</th>' for name in names)
        yield "</tr></thead>\n<tbody>\n"
        for row in rows:
            head, *cells = (_shown(row[name]) for name in names)
            yield f'<tr><th scope="row">{head}</th>'
            yield "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>\n"
        yield "</tbody></table>\n"
    yield "</body></html>\n"


def _shown(value: Any) -> str:
    if value is None:
        return "not known"
    grouped = f"{value:,}" if isinstance(value, int | float) else str(value)
    return _text(grouped)


def _text(value: str) -> str:
    return escape(printable(value))
