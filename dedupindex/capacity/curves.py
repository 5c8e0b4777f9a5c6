"""Runtime and cost of documents over the number of instances, as an SVG picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from math import log10

from dedupindex.capacity.documents import FleetOption

_WIDTH, _HEIGHT, _LEFT, _TOP = 460, 260, 56, 40  # of the lines of a panel, and what is before
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")  # Okabe and Ito
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#777}.title{font-size:14px;font-weight:bold}"
    "path{fill:none;stroke-width:2}.grid{stroke:#8884;stroke-width:1}"
)


def picture(rows: Sequence[FleetOption], requests: float) -> str:
    """Hours, and dollars with requests, over the instances that hash; a line for each kind."""
    panels = [
        ("Hours", lambda row: row.hours),
        ("Dollars, with requests", lambda row: row.cost + requests),
    ]
    width, height = 2 * (_LEFT + _WIDTH + 24), _TOP + _HEIGHT + 48
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        "<title>Runtime and cost over the number of instances that hash</title>",
        f"<style>{_STYLE}</style>",
    ]
    for number, (title, value) in enumerate(panels):
        parts.append(f'<g transform="translate({number * (_LEFT + _WIDTH + 24)} 0)">')
        parts += _panel(title, rows, value)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    title: str, rows: Sequence[FleetOption], value: Callable[[FleetOption], float]
) -> Iterator[str]:
    values = [value(row) for row in rows]
    low, high = _decades(min(values), max(values))
    most = log10(max(row.hashing for row in rows)) or 1.0

    def across(count: float) -> float:
        return round(_LEFT + log10(count) / most * _WIDTH, 1)

    def down(amount: float) -> float:
        return round(_TOP + (high - log10(amount)) / (high - low) * _HEIGHT, 1)

    yield f'<text class="title" x="{_LEFT}" y="20">{escape(title)}</text>'
    for power in range(low, high + 1):
        y = down(10.0**power)
        yield f'<path class="grid" d="M{_LEFT} {y}H{_LEFT + _WIDTH}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{10.0**power:,g}</text>'
    for count in sorted({row.hashing for row in rows}):
        x = across(count)
        yield f'<text x="{x}" y="{_TOP + _HEIGHT + 18}" text-anchor="middle">{count}</text>'
    yield (
        f'<text x="{_LEFT + _WIDTH / 2}" y="{_TOP + _HEIGHT + 38}" text-anchor="middle">'
        "instances that hash</text>"
    )
    for number, name in enumerate(dict.fromkeys(row.instance for row in rows)):
        colour = _COLOURS[number % len(_COLOURS)]
        best: dict[int, float] = {}
        for row in rows:
            if row.instance == name:
                best[row.hashing] = min(value(row), best.get(row.hashing, float("inf")))
        points = " L".join(f"{across(count)} {down(best[count])}" for count in sorted(best))
        yield f'<path d="M{points}" stroke="{colour}"/>'
        x, y = _LEFT + _WIDTH - 8, _TOP + 14 + 16 * number
        yield f'<text x="{x}" y="{y}" text-anchor="end" style="fill:{colour}">{escape(name)}</text>'


def _decades(least: float, most: float) -> tuple[int, int]:
    """The powers of ten around what is to be shown."""
    low, high = int(log10(least) // 1), int(-(-log10(most) // 1))
    return low, max(high, low + 1)
