"""Tables as CSV and HTML, and text from the web made safe for each format."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import chain
from typing import Any

STYLE = (
    "body{font:1rem/1.4 system-ui,sans-serif;margin:1.5rem;color-scheme:light dark}"
    "h1{overflow-wrap:anywhere}div{overflow-x:auto}"
    "table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums}"
    "caption{text-align:left;font-weight:bold}"
    "th,td{padding:.2rem .6rem;border-bottom:1px solid #8888;text-align:right;vertical-align:top}"
    "th{font-weight:500}thead th{vertical-align:bottom}td{white-space:nowrap}"
    "th:first-child{text-align:left;min-width:12rem;max-width:30rem;overflow-wrap:anywhere}"
)
UNKNOWN = "not known"  # in the place of a number
_WORDS = {  # labels of fields; others are labelled by their names
    "mime": "media type",
    "status": "HTTP status",
    "handled": "looked up",
    "handled_bytes": "looked up, bytes",
    "duplicates_percent": "duplicates, share",
    "duplicate_bytes": "bytes saved",
    "duplicate_bytes_percent": "bytes saved, share",
    "exact_url": "same URL",
    "canonical_url": "same canonical URL",
    "digest": "another URL",
    "listed": "listed by URL only",
    "errors": "lookups that got an error",
    "unsized": "hits of unknown size",
    "merged": "in the index itself",
    "p99_lookup_ms": "99 of 100 lookups within",
    "last_lookup_ms": "time of the last lookup",
}
_PLURAL = re.compile(
    r"(?<![\w.,-])1 (?:(file|record|revisit|original|capture|line|thing|response|resource|digest"
    r"|payload|document|pair|component|host|lookup)s|(cop)ies)\b"
)
_UNITS = re.compile("_(bytes|percent|ms)$")
# Printable by Python but invisible: letters and marks of Default_Ignorable_Code_Point (joiners,
# fillers, variation selectors); blank Braille pattern, note head and letter; object replacement.
_UNSEEN = frozenset(
    map(
        chr,
        (
            *(0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x3164, 0xFFA0),
            *(*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)),
            *(0x2800, 0x1D159, 0x16FE4, 0xFFFC),
        ),
    )
)


def printable(text: str) -> str:
    """Return text from the web on one line, with all invisible characters escaped.

    These are control and format characters, spaces other than U+0020, line ends, lone surrogates,
    unassigned characters, and those that browsers and terminals draw as nothing.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable() and char not in _UNSEEN
        else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )


def number(count: float | None) -> str:
    """Return a number as ``12,345``."""
    return UNKNOWN if count is None else f"{count:,}"


def amount(count: float | None) -> str:
    """Return a number of bytes as ``1.4 MB``."""
    if count is None:
        return UNKNOWN
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    return ""


def singular(text: str) -> str:
    """Replace ``1 files`` by ``1 file`` in a sentence."""
    return _PLURAL.sub(lambda one: f"1 {one[1] or one[2] + 'y'}", text)


def duration(seconds: float) -> str:
    """Return a length of time in two units at most: ``12 s``, ``4 min 20 s``, ``3 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s" if whole else "<1 s"
    (large, big), (small, unit) = (
        ((whole // 3600, "h"), (whole % 3600 // 60, "min")) if whole >= 3600
        else ((whole // 60, "min"), (whole % 60, "s"))
    )  # fmt: skip
    return f"{large:,} {big} {small} {unit}" if small else f"{large:,} {big}"


def csv_lines(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A header and a line for each row, with its ``\\n``."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    for cells in chain([names], ([row[name] for name in names] for row in rows)):
        writer.writerow(map(_safe_cell, cells))
        yield stream.getvalue()
        stream.seek(0)
        stream.truncate()


def _safe_cell(value: Any) -> Any:
    """Quote text that a spreadsheet would run as a formula."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def html_lines(
    title: str,
    facts: Mapping[str, Any],
    names: Sequence[str] = (),
    rows: Iterable[Mapping[str, Any]] = (),
    pictures: Iterable[str] = (),
    style: str = "",
) -> Iterator[str]:
    """Yield an HTML page without scripts: facts, and a table with the columns `names`.

    `pictures` are HTML, placed between them; `style` is CSS for them.
    """
    yield (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{_text(title)}</title><style>{STYLE}{style}</style></head>\n<body><h1>{_text(title)}</h1>"
    )
    yield "<table><caption>In all</caption>\n"
    for name, value in facts.items():
        yield f'<tr><th scope="row">{_words(name)}</th><td>{_shown(name, value)}</td></tr>\n'
    yield "</table>\n"
    yield from pictures
    if names:
        yield '<div role="region" aria-label="Groups" tabindex="0">'
        yield f"<table><caption>By {_text(_WORDS.get(names[0], names[0]))}</caption>\n<thead><tr>"
        yield "".join(f'<th scope="col">{_words(name)}</th>' for name in names)
        yield "</tr></thead>\n<tbody>\n"
        for row in rows:
            yield f'<tr><th scope="row">{_shown("", row[names[0]])}</th>'
            yield "".join(f"<td>{_shown(name, row[name])}</td>" for name in names[1:]) + "</tr>\n"
        yield "</tbody></table></div>\n"
    yield "</body></html>\n"


def _words(name: str) -> str:
    """Return the label of a field: ``Bytes saved``."""
    words = _WORDS.get(name) or _UNITS.sub(_unit, name).replace("_", " ")
    return _text(words[:1].upper() + words[1:])


def _unit(found: re.Match[str]) -> str:
    return {"bytes": ", bytes", "percent": ", share", "ms": ""}[found[1]]


def _shown(name: str, value: Any) -> str:
    """Return a value with the unit in its field's name."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return _text(str(value))
    if name == "bytes" or name.endswith("_bytes"):
        return amount(value)
    if name.endswith("_percent"):
        return f"{value:.1f} %"
    return f"{value:,} ms" if name.endswith("_ms") else f"{value:,}"


def _text(value: str) -> str:
    return escape(printable(value))
