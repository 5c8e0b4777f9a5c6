"""The report of bin/cover as an HTML page: figures, charts, and a table by host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from dedupindex.corpus.output import compressed
from dedupindex.cover import result
from dedupindex.cover.find_cover import CoverReport
from dedupindex.cover.relation import Relation, exactly
from dedupindex.runtime.charts import bar
from dedupindex.runtime.duckdb import Database
from dedupindex.runtime.files import atomic_file
from dedupindex.runtime.tables import amount, html_lines, printable

MAX_DOCUMENTS, MAX_LINES = 60, 600  # of a graph
WIDTH, LEFT, RIGHT, LANE, TOP = 960, 330, 30, 30, 24  # in pixels
_LABEL = 46  # characters of a URL
_STYLE = (
    ".graph{max-width:960px;height:auto;background:#8881}"
    ".graph text{font:12px system-ui,sans-serif;fill:currentColor}"
    ".graph .lane{stroke:#8884}.graph .pair{stroke:#8886;fill:none}"
    ".graph .covers{stroke:#b35c00;stroke-width:1.6;fill:none}.graph .head{fill:#b35c00}"
    ".graph .kept{fill:#1f6fb5;stroke:#1f6fb5}"
    ".graph .covered{fill:Canvas;stroke:#b35c00;stroke-width:2}"
    ".bar{vertical-align:middle}rect.kept{fill:#1f6fb5}rect.covered{fill:#b35c00}"
    "th+td:last-child{white-space:normal;overflow-wrap:anywhere}"  # relations are long
    "rect.rest{fill:#8882}table.bars td{min-width:20rem;width:100%}.key{margin:0 .3rem 0 1rem}"
)


class DrawnDocument(NamedTuple):
    n: int
    url: str
    timestamp: str
    kept: bool
    by: int | None
    why: str


Point = tuple[float, float]


def svg(
    title: str, documents: Sequence[DrawnDocument], pairs: Iterable[tuple[int, int]]
) -> Iterator[str]:
    """Draw a lane for each URL, with its captures from left to right; it needs `_STYLE`."""
    places, lanes = _layout(documents)
    height = TOP + LANE * len(lanes) + LANE
    yield (
        f'<svg class="graph" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{title}; the result has all of it">\n'
        '<defs><marker id="head" viewBox="0 0 8 8" refX="13" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path class="head" d="M0 0L8 4L0 8z"/></marker></defs>\n'
    )
    for url, y in lanes.items():
        yield f'<line class="lane" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        yield f'<text x="6" y="{y + 4}">{_text(_short(url))}<title>{_text(url)}</title></text>\n'
    times = sorted(document.timestamp for document in documents if document.timestamp)
    if times:
        yield f'<text x="{LEFT}" y="{height - 8}">{_day(times[0])}</text>'
        last = WIDTH - RIGHT
        yield f'<text x="{last}" y="{height - 8}" text-anchor="end">{_day(times[-1])}</text>\n'
    covering = {(document.n, document.by) for document in documents}
    others = (pair for pair in pairs if pair not in covering)
    for a, b in islice(others, MAX_LINES):
        if a in places and b in places:
            yield f'<path class="pair" d="{_line(places[a], places[b])}"/>'
    for document in documents:
        if document.by is not None and document.by in places:
            line = _line(places[document.n], places[document.by])
            yield f'<path class="covers" marker-end="url(#head)" d="{line}"/>'
    for document in documents:
        at_x, at_y = places[document.n]
        label = f"{document.url} {_day(document.timestamp)}: {document.why}"
        yield (
            f'\n<circle class="{"kept" if document.kept else "covered"}" cx="{at_x:g}" '
            f'cy="{at_y:g}" r="6"><title>{_text(label)}</title></circle>'
        )
    yield "\n</svg>\n"


def _layout(documents: Sequence[DrawnDocument]) -> tuple[Mapping[int, Point], dict[str, int]]:
    """Return the position of each document, and the height of each lane."""
    ordered = sorted(documents, key=lambda document: (document.timestamp, document.n))
    lanes = {
        url: TOP + LANE * number
        for number, url in enumerate(sorted({document.url for document in documents}))
    }
    step = (WIDTH - LEFT - RIGHT) / max(len(ordered), 1)
    places = {
        document.n: (round(LEFT + step * (rank + 0.5), 1), float(lanes[document.url]))
        for rank, document in enumerate(ordered)
    }
    return places, lanes


def _line(begin: Point, end: Point) -> str:
    """Return a straight line between lanes, an arc within one."""
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


_GRAPHS, _BARS = 3, 20  # components that are drawn, hosts of the chart
_NAMES = ("host", "documents", "kept", "covered", "bytes", "covered_bytes")
_HOW = (
    "<p>Each lane is a URL, with its captures from left to right in time. Full circles are kept, "
    "hollow ones covered; an arrow leads to the covering document, thin lines are other pairs.</p>"
    "\n"
)
_KEY = (
    '<p><svg class="key" width="12" height="12"><rect class="kept" width="12" height="12"/>'
    '</svg>kept<svg class="key" width="12" height="12"><rect class="covered" width="12" '
    'height="12"/></svg>covered</p>\n'
)


def write(database: Database, relation: Relation, report: CoverReport, path: Path) -> None:
    """Write the page, compressed like `result.write`, or nothing at all."""
    hosts = result.hosts(database)
    with atomic_file(path) as stream, compressed(stream, path.name) as add:
        lines = html_lines(
            "What covers what", _facts(relation, report), _NAMES, hosts,
            _pictures(database, relation, report, hosts), _STYLE,
        )  # fmt: skip
        for line in lines:
            add(line.encode("utf-8", "replace"))


def _facts(relation: Relation, report: CoverReport) -> dict[str, Any]:
    covered = report.covered
    facts: dict[str, Any] = {
        "relation": relation.text,
        "documents": report.loaded.documents,
        "documents without text": report.loaded.empty,
        "documents without bytes, which count as none": report.loaded.unsized,
        "URLs": report.loaded.urls,
        **{f"documents of a URL, {name}": value for name, value in report.loaded.versions.items()},
        **{
            f"shingles of {k} terms, {which}": count
            for k, counts in report.loaded.shingles.items()
            for which, count in counts.items()
        },
        "pairs": covered.pairs,
        "components": covered.components,
        "documents of the largest component": covered.largest,
        "kept": covered.kept,
        "covered": covered.covered,
        "covered_percent": _share(covered.covered, covered.kept + covered.covered),
        "bytes": covered.bytes_kept + covered.bytes_covered,
        "covered_bytes": covered.bytes_covered,
        "covered_bytes_percent": _share(
            covered.bytes_covered, covered.bytes_kept + covered.bytes_covered
        ),
        "components whose cover is proved to be least": covered.proved,
        "cost of what is kept in components": f"{covered.cost:,.6g}",
        "lower bound of the cost of any cover": f"{covered.bound:,.6g}",
    }
    if report.found.recall is not None:
        facts["pairs found by MinHash, of a sample"] = f"{report.found.recall:.1%}"
    return facts


def _share(part: float, of: float) -> float:
    return 100 * part / of if of else 0.0


def _pictures(
    database: Database, relation: Relation, report: CoverReport, hosts: Sequence[dict[str, Any]]
) -> Iterator[str]:
    most = max((host["bytes"] for host in hosts), default=0)
    rows = ((host["host"] or "-", host["bytes"] - host["covered_bytes"], host["covered_bytes"])
            for host in hosts[:_BARS])  # fmt: skip
    yield from _bars("Bytes by host, those first of which most are covered", rows, most)
    if report.what_if:
        tried = {**report.what_if, exactly(relation.content[0].threshold): report.covered}
        size = report.covered.bytes_kept + report.covered.bytes_covered
        title = f"Bytes by threshold of {relation.content[0].name}"
        thresholds = sorted(tried, key=Fraction)
        rows = ((name, tried[name].bytes_kept, tried[name].bytes_covered) for name in thresholds)
        yield from _bars(title, rows, size)
    yield from _graphs(database, relation)


def _bars(title: str, rows: Iterable[tuple[str, int, int]], most: float) -> Iterator[str]:
    yield f'<table class="bars"><caption>{escape(title)}</caption>\n'
    for name, kept, covered in rows:
        shown = escape(printable(name))
        label = f"{shown}: {amount(kept)} kept, {amount(covered)} covered"
        yield f'<tr><th scope="row">{shown}</th><td><svg class="bar" width="100%" height="14" '
        yield f'role="img" aria-label="{label}"><title>{label}</title>'
        yield '<rect class="rest" width="100%" height="14"/>'
        for part in bar([("kept", kept), ("covered", covered)], most):
            yield f'<rect class="{part.name}" x="{part.x}%" width="{part.width}%" height="14"/>'
        yield f"</svg></td><td>{amount(covered)} of {amount(kept + covered)}</td></tr>\n"
    yield f"</table>\n{_KEY}"


def _graphs(database: Database, relation: Relation) -> Iterator[str]:
    """Draw the largest components, first those that can be drawn as a whole."""
    largest = database.execute(
        "SELECT component, count(*) AS size FROM chosen GROUP BY component "
        f"ORDER BY size > {MAX_DOCUMENTS}, size DESC, component LIMIT {_GRAPHS}"
    ).fetchall()
    if largest:
        yield _HOW
    columns = result.shared_columns(relation)
    for component, size in largest:
        rows = database.execute(
            f"SELECT d.n, d.url, coalesce(d.digits, ''), c.kept, k.by{columns} FROM documents d "
            "JOIN chosen c ON d.n = c.n LEFT JOIN coverers k ON d.n = k.n WHERE c.component = ? "
            f"ORDER BY c.kept DESC, d.n LIMIT {MAX_DOCUMENTS}",
            [component],
        ).fetchall()
        numbers = ", ".join(str(row[0]) for row in rows)
        pairs = database.execute(
            f"SELECT a, b FROM live WHERE a IN ({numbers}) AND b IN ({numbers}) ORDER BY a, b"
        ).fetchall()
        documents = [
            DrawnDocument._make((*row[:5], _why(relation, row[4], row[5:]))) for row in rows
        ]
        part = f", of which {len(rows)} are shown" if size > len(rows) else ""
        yield f"<h2>Component {component}: {size:,} documents{part}</h2>\n<div>"
        yield from svg(f"component {component}: {size:,} documents", documents, pairs)
        yield "</div>\n"


def _why(relation: Relation, by: int | None, shared: Sequence[int]) -> str:
    if by is None:
        return "kept"
    reasons = result.why(relation, shared)
    return ", ".join(f"{name} {value}" for name, value in reasons if not isinstance(value, list))
