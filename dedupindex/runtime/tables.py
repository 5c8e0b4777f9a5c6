"""Numbers and text from the web as people read them; lines of CSV; JSON of any text."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from itertools import chain
from math import floor, log10
from typing import Any

import orjson

_SENSIBLE = 2.0  # seconds of a run; the rate of a shorter one is that of its beginning and end
UNKNOWN = "not known"  # in the place of a number
_PLURAL = re.compile(
    r"(?<![\w.,-])1 (?:(file|record|revisit|original|capture|line|thing|response|resource|digest"
    r"|payload|document|pair|component|host|lookup|worker|duplicate|problem)s|(cop)ies)\b"
)
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


def json_bytes(value: Any) -> bytes:
    """Return a value or a dataclass as JSON.

    Names of files may have bytes that are not UTF-8, which JSON cannot represent: these are escaped
    as `printable` escapes them.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        return orjson.dumps(_as_utf8(value))


def _as_utf8(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return {_as_utf8(key): _as_utf8(one) for key, one in value.items()}
    return list(map(_as_utf8, value)) if isinstance(value, (list, tuple)) else value


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


def dollars(count: float) -> str:
    """Return an amount as ``1,234.50``; one below a dollar has two digits that are not 0."""
    digits = 2 if count >= 1 or count <= 0 else max(2, 1 - floor(log10(count)))
    return f"{count:,.{digits}f}"


def rate(count: float, seconds: float, unit: str) -> str:
    """Return so much in a second as ``12,300 records/s``, ``1.4 MB/s`` if `unit` is ``B``.

    "" if there was nothing, or too little time to know.
    """
    if not count or seconds < _SENSIBLE:
        return ""
    each = count / seconds
    if unit == "B":
        return f"{amount(each)}/s"
    digits = 2 - math.floor(math.log10(each))  # three of them are known
    return f"{round(each, digits):,.{min(max(digits, 0), 2)}f}{unit}/s"


def names_text(names: Sequence[str], most: int, count: int | None = None) -> str:
    """Return the first names, at most `most`, and how many more there are.

    `count` is the number of all, if not all are given.

    >>> names_text(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = (len(names) if count is None else count) - len(names[:most])
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


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
