"""A component as a picture: a lane for each URL, its captures from left to right as time goes by.

Full circles stay, hollow ones are covered. Thin lines are pairs, arrows lead from a covered
document to the one that covers it. Text from the web is hostile: all of it is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from dedupindex.runtime.tables import printable

MOST = 60  # documents that a picture shows
MOST_LINES = 600
WIDTH, LEFT, RIGHT, LANE, TOP = 960, 330, 30, 30, 24  # in pixels
_LABEL = 46  # characters of a URL
STYLE = (
    ".graph{max-width:960px;height:auto;background:#8881}"
    ".graph text{font:12px system-ui,sans-serif;fill:currentColor}"
    ".graph .lane{stroke:#8884}.graph .pair{stroke:#8886;fill:none}"
    ".graph .covers{stroke:#b35c00;stroke-width:1.6;fill:none}.graph .head{fill:#b35c00}"
    ".graph .kept{fill:#1f6fb5;stroke:#1f6fb5}"
    ".graph .covered{fill:Canvas;stroke:#b35c00;stroke-width:2}"
)


class Shown(NamedTuple):
    """A document of the picture."""

    n: int
    url: str
    timestamp: str
    kept: bool
    by: int | None
    why: str


@dataclass
class DrawnGraph:
    """A component, or the part of it that is shown."""

    component: int
    size: int  # documents of the whole component
    documents: Sequence[Shown]
    pairs: Iterable[tuple[int, int]]


Place = tuple[float, float]


def svg(graph: DrawnGraph) -> Iterator[str]:
    """The picture; it needs `STYLE`."""
    places, lanes = _placed(graph.documents)
    height = TOP + LANE * len(lanes) + LANE
    label = f"component {graph.component}: {graph.size:,} documents"
    yield (
        f'<svg class="graph" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{label}; the result has all of it">\n'
        '<defs><marker id="head" viewBox="0 0 8 8" refX="13" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path class="head" d="M0 0L8 4L0 8z"/></marker></defs>\n'
    )
    for url, y in lanes.items():
        yield f'<line class="lane" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        yield f'<text x="6" y="{y + 4}">{_text(_short(url))}<title>{_text(url)}</title></text>\n'
    times = sorted(document.timestamp for document in graph.documents if document.timestamp)
    if times:
        yield f'<text x="{LEFT}" y="{height - 8}">{_day(times[0])}</text>'
        last = WIDTH - RIGHT
        yield f'<text x="{last}" y="{height - 8}" text-anchor="end">{_day(times[-1])}</text>\n'
    covering = {(one.n, one.by) for one in graph.documents}
    thin = (pair for pair in graph.pairs if pair not in covering)
    for _, (a, b) in zip(range(MOST_LINES), thin, strict=False):
        if a in places and b in places:
            yield f'<path class="pair" d="{_line(places[a], places[b])}"/>'
    for document in graph.documents:
        if document.by is not None and document.by in places:
            line = _line(places[document.n], places[document.by])
            yield f'<path class="covers" marker-end="url(#head)" d="{line}"/>'
    for document in graph.documents:
        at_x, at_y = places[document.n]
        said = f"{document.url} {_day(document.timestamp)}: {document.why}"
        yield (
            f'\n<circle class="{"kept" if document.kept else "covered"}" cx="{at_x:g}" '
            f'cy="{at_y:g}" r="6"><title>{_text(said)}</title></circle>'
        )
    yield "\n</svg>\n"


def _placed(documents: Sequence[Shown]) -> tuple[Mapping[int, Place], dict[str, int]]:
    """Where each document is, and the height of each lane."""
    ordered = sorted(documents, key=lambda one: (one.timestamp, one.n))
    lanes = {
        url: TOP + LANE * number
        for number, url in enumerate(sorted({one.url for one in documents}))
    }
    step = (WIDTH - LEFT - RIGHT) / max(len(ordered), 1)
    places = {
        one.n: (round(LEFT + step * (rank + 0.5), 1), float(lanes[one.url]))
        for rank, one in enumerate(ordered)
    }
    return places, lanes


def _line(begin: Place, end: Place) -> str:
    """A straight line between lanes, an arc above one."""
    (x, y), (to_x, to_y) = begin, end
    if y != to_y:
        return f"M{x:g} {y:g}L{to_x:g} {to_y:g}"
    rise = 12 + 20 * abs(to_x - x) / WIDTH
    return f"M{x:g} {y:g}Q{(x + to_x) / 2:g} {y - rise:g} {to_x:g} {to_y:g}"


def _short(url: str) -> str:
    return url if len(url) <= _LABEL else f"{url[: _LABEL // 2]}…{url[-_LABEL // 2 :]}"


def _day(digits: str) -> str:
    return f"{digits[:4]}-{digits[4:6]}-{digits[6:8]}" if digits else "no date"


def _text(text: str) -> str:
    return escape(printable(text))
