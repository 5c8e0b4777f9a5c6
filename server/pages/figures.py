"""Statistics as pages show them: match classes in the same order and colours everywhere."""

from __future__ import annotations

from typing import Any

from dedupindex.crawls.statistics_keys import StatisticsRow
from dedupindex.runtime.charts import Values, bar

CLASSES = {
    "exact_url": "same URL",
    "canonical_url": "same canonical URL",
    "digest": "another URL",
    "listed": "asked by URL only",
    "new": "no original",
}
_SAVED = ("exact_url", "canonical_url", "digest")


def found(row: StatisticsRow) -> Values:
    """Return the lookups by match class."""
    return [(name, getattr(row, name)) for name in CLASSES]


def kept(row: StatisticsRow) -> Values:
    """Return the captures saved by match class, and those stored."""
    return [*((name, getattr(row, name)) for name in _SAVED), ("new", row.stored)]


def spent(row: StatisticsRow) -> Values:
    """Return the bytes saved by match class, and those stored."""
    return [*((name, getattr(row, f"{name}_bytes")) for name in _SAVED), ("new", row.stored_bytes)]


def text_of(heading: bytes) -> str:
    """Return a heading of statistics as text; bytes that are not UTF-8 are escaped."""
    return heading.decode("utf-8", "backslashreplace")


def _is_text(heading: bytes) -> bool:
    """Return whether `text_of` escapes nothing."""
    try:
        return bool(heading.decode())
    except UnicodeDecodeError:
        return False


def shown(heading: bytes, row: StatisticsRow, most: float = 0) -> dict[str, Any]:
    """Return a row of a table, with a bar of its lookups in relation to `most`."""
    return {
        "heading": text_of(heading),
        "is_text": _is_text(heading),
        **row.as_json(),
        "bar": bar(found(row), most),
    }
