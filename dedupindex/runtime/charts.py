"""Charts as rectangles, with widths in per cent so that they fit every screen.

Colours come from CSS classes. Every chart stands beside a table of the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

HEIGHT = 160  # of columns, in pixels
WIDEST = 10  # per cent: a column alone would fill the chart

Values = Sequence[tuple[str, float]]
"""Amounts by CSS class, the first at the left or the bottom."""


class ChartBar(NamedTuple):
    """A rectangle; x and width in per cent, y and height in pixels."""

    name: str  # CSS class
    x: float
    width: float
    y: float = 0
    height: float = 0


class Columns(NamedTuple):
    """Columns side by side."""

    highest: float  # sum of a column
    parts: list[ChartBar]
    titles: list[tuple[ChartBar, str]]  # each column in full height, and its tooltip


def bar(values: Values, whole: float = 0) -> list[ChartBar]:
    """Return values side by side in a bar that stands for `whole`, or their sum if 0."""
    whole = whole or sum(value for _, value in values)
    parts, x = [], 0.0
    for name, value in values:
        if whole and value:
            width = 100 * value / whole
            parts.append(ChartBar(name, round(x, 3), round(width, 3)))
            x += width
    return parts


def columns(rows: Sequence[tuple[str, Values]]) -> Columns:
    """Return a column of stacked values for each row; the highest fills the height."""
    highest = max((sum(value for _, value in values) for _, values in rows), default=0)
    step = 100 / max(len(rows), 1)
    width = round(min(step * 0.85, WIDEST), 3)
    # Few columns reach from edge to edge, as the names below them do.
    apart = step if width < WIDEST else (100 - width) / max(len(rows) - 1, 1)
    parts, titles = [], []
    for place, (title, values) in enumerate(rows):
        x, y = round(place * apart, 3), float(HEIGHT)
        over = ChartBar("over", round(place * step, 3), round(step, 3), 0, HEIGHT)
        titles.append((over, title))
        for name, value in values:
            if value:
                height = HEIGHT * value / highest
                y -= height
                parts.append(ChartBar(name, x, width, round(max(y, 0), 2), round(height, 2)))
    return Columns(highest, parts, titles)
