"""Statistics as pages show them: what was found, by class, in the same order and colours."""

from __future__ import annotations

from typing import Any

from dedupindex.crawls.statistics_keys import Row
from dedupindex.runtime.charts import Values, bar

CLASSES = {
    "exact_url": "same URL",
    "canonical_url": "same canonical URL",
    "digest": "another URL",
    "listed": "asked by URL only",
    "new": "no original",
}
_SAVED = ("exact_url", "canonical_url", "digest")


def found(row: Row) -> Values:
    """Lookups by what was found."""
    return [(name, getattr(row, name)) for name in CLASSES]


def kept(row: Row) -> Values:
    """Captures that need not be stored again, by class, and those that were stored."""
    return [*((name, getattr(row, name)) for name in _SAVED), ("new", row.stored)]


def spent(row: Row) -> Values:
    """Bytes that need not be stored again, by class, and those that were stored."""
    return [*((name, getattr(row, f"{name}_bytes")) for name in _SAVED), ("new", row.stored_bytes)]


def text_of(heading: bytes) -> str:
    """A heading of statistics as text; what is no text is escaped."""
    return heading.decode("utf-8", "backslashreplace")


def _is_text(heading: bytes) -> bool:
    """Whether `text_of` gives all of it."""
    try:
        return bool(heading.decode())
    except UnicodeDecodeError:
        return False


def shown(heading: bytes, row: Row, most: float = 0) -> dict[str, Any]:
    """A row of a table; with a bar of its lookups, which `most` would fill."""
    return {
        "heading": text_of(heading),
        "is_text": _is_text(heading),
        **row.as_json(),
        "bar": bar(found(row), most),
    }
