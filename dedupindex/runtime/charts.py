"""Charts as rectangles: widths in per cent of what there is, so that they fit every screen.

No chart has a style or a script of its own; colours come from classes. Each stands beside a table
of the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

HEIGHT = 160  # of columns, in pixels

Values = Sequence[tuple[str, float]]
"""Amounts by class, the first one at the left or at the bottom."""


class ChartBar(NamedTuple):
    """One rectangle. x and width are per cent, y and height pixels."""

    name: str  # its class
    x: float
    width: float
    y: float = 0
    height: float = 0


class Columns(NamedTuple):
    """Columns side by side."""

    highest: float  # sum of a column
    parts: list[ChartBar]
    titles: list[tuple[ChartBar, str]]  # the whole height of each column, and what to say of it


def bar(values: Values, whole: float = 0) -> list[ChartBar]:
    """Values side by side in one bar, of which `whole` would fill all; 0: their sum."""
    whole = whole or sum(value for _, value in values)
    parts, x = [], 0.0
    for name, value in values:
        if whole and value:
            width = 100 * value / whole
            parts.append(ChartBar(name, round(x, 3), round(width, 3)))
            x += width
    return parts


def columns(rows: Sequence[tuple[str, Values]]) -> Columns:
    """A column for each row, its values one upon the other; the highest fills the height."""
    highest = max((sum(value for _, value in values) for _, values in rows), default=0)
    step = 100 / max(len(rows), 1)
    parts, titles = [], []
    for place, (title, values) in enumerate(rows):
        x, y = round(place * step, 3), float(HEIGHT)
        titles.append((ChartBar("over", x, round(step, 3), 0, HEIGHT), title))
        for name, value in values:
            if value:
                height = HEIGHT * value / highest
                y -= height
                parts.append(
                    ChartBar(name, x, round(step * 0.85, 3), round(max(y, 0), 2), round(height, 2))
                )
    return Columns(highest, parts, titles)
