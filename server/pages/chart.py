"""Charts as rectangles: widths in per cent of what there is, so that they fit every screen.

No chart has a style or a script of its own; colours come from classes. Each stands beside a table
of the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

HEIGHT = 160  # of the columns, in pixels


class Part(NamedTuple):
    """One rectangle. x and width are per cent, y and height pixels."""

    name: str  # its class
    x: float
    width: float
    y: float
    height: float
    label: str


def bar(values: Sequence[tuple[str, float]], whole: float = 0) -> list[Part]:
    """Values side by side in one bar, of which `whole` would fill all; 0: their sum."""
    whole = whole or sum(value for _, value in values)
    parts, x = [], 0.0
    for name, value in values:
        if whole and value:
            width = 100 * value / whole
            parts.append(Part(name, round(x, 3), round(width, 3), 0, 14, ""))
            x += width
    return parts


def columns(rows: Sequence[tuple[str, Sequence[tuple[str, float]]]]) -> list[Part]:
    """A column for each row, its values one upon the other; the highest fills the height."""
    highest = max((sum(value for _, value in values) for _, values in rows), default=0)
    if not highest:
        return []
    step, parts = 100 / len(rows), []
    for place, (label, values) in enumerate(rows):
        y = float(HEIGHT)
        for name, value in values:
            height = HEIGHT * value / highest
            y -= height
            if value:
                x, width = place * step + step * 0.1, step * 0.8
                parts.append(
                    Part(name, round(x, 3), round(width, 3), round(y, 2), round(height, 2), label)
                )
    return parts
