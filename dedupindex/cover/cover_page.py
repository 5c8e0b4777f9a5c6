"""The report of bin/cover as an HTML page: figures, charts, and a table by host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from dedupindex.cover import result
from dedupindex.cover.find_cover import CoverReport
from dedupindex.cover.relation import Relation, exactly
from dedupindex.runtime import html_page
from dedupindex.runtime.duckdb import Database
from dedupindex.runtime.html_page import ChartPart, Figure, text
from dedupindex.runtime.report_table import ReportColumn, Unit, share_text
from dedupindex.runtime.tables import amount

MAX_DOCUMENTS, MAX_LINES = 60, 600  # of a graph
WIDTH, LEFT, RIGHT, LANE, TOP = 960, 12, 12, 44, 24  # in pixels
_LABEL = 46  # characters of a URL, which fit a phone


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
    """Draw a lane for each URL, with its captures from left to right."""
    places, lanes = _layout(documents)
    height = TOP + LANE * len(lanes) + 20
    yield (
        f'<svg class="graph" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{title}; the result has all of it">\n'
        '<defs><marker id="head" viewBox="0 0 8 8" refX="13" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path class="head" d="M0 0L8 4L0 8z"/></marker></defs>\n'
    )
    for y in lanes.values():
        yield f'<line class="lane" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
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
    for url, y in lanes.items():  # over the lines, or they would cross them out
        label = f"{text(_short(url))}<title>{text(url)}</title>"
        yield f'\n<text x="{LEFT}" y="{y + 20}">{label}</text>'
    for document in documents:
        at_x, at_y = places[document.n]
        label = f"{document.url} {_day(document.timestamp)}: {document.why}"
        yield (
            f'\n<circle class="{"kept" if document.kept else "covered"}" cx="{at_x:g}" '
            f'cy="{at_y:g}" r="6"><title>{text(label)}</title></circle>'
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


_GRAPHS = 3  # components that are drawn
_PARTS = (ChartPart("kept", "kept"), ChartPart("covered", "covered"))
_BYTES = ReportColumn("bytes", "bytes in files", Unit.BYTES)
_HOW = (
    "<p>Each lane is a URL, with its captures from left to right in time. Full circles are kept, "
    "hollow ones covered; an arrow leads to the covering document, thin lines are other pairs.</p>"
    "\n"
)


def write(database: Database, relation: Relation, report: CoverReport, path: Path) -> None:
    """Write the page whole, or not at all."""
    html_page.save(path, lines(database, relation, report))


def lines(database: Database, relation: Relation, report: CoverReport) -> Iterator[str]:
    """Yield the page."""
    covered, hosts = report.covered, result.hosts(database)
    (total,) = result.what_if_rows({"": covered}, report.loaded.unsized)
    share = f"{share_text(total['covered_percent'])} of the documents are covered by others"
    size = total["covered_bytes"]
    bytes_covered = "" if size is None else f", with {amount(size)} of {amount(total['bytes'])}"
    figures = [
        Figure("Covered", f"{covered.covered:,}", f"of {total['documents']:,} documents"),
        Figure("Kept", f"{covered.kept:,}", "cover all others"),
        Figure("Bytes covered", amount(size), "of their files, as stored"),
    ]

    def body() -> Iterator[str]:
        yield from _pictures(relation, report, hosts)
        if report.what_if:
            yield from result.WHAT_IF.html_lines(_thresholds(relation, report))
        yield from result.HOSTS.html_lines({**row, "host": row["host"] or "-"} for row in hosts)
        yield from _graphs(database, relation)
        found = dict(_facts(relation, report))
        columns = [ReportColumn(name, name, Unit.TEXT) for name in found]
        yield from html_page.facts("In all", columns, found)

    footer = "Nothing is deleted: the result says which document covers which."
    return html_page.page("What covers what", f"{share}{bytes_covered}.", figures, body(), footer)


def _facts(relation: Relation, report: CoverReport) -> Iterator[tuple[str, str]]:
    loaded, covered = report.loaded, report.covered
    yield "relation", relation.text
    yield "documents without text", f"{loaded.empty:,}"
    yield "documents of unknown size", f"{loaded.unsized:,}"
    yield "URLs", f"{loaded.urls:,}"
    for name, value in loaded.versions.items():
        yield f"documents of a URL, {name}", f"{value:,.4g}"
    for k, counts in loaded.shingles.items():
        for which, count in counts.items():
            yield f"shingles of {k} terms, {which}", f"{count:,}"
    yield "pairs", f"{covered.pairs:,}"
    yield "components", f"{covered.components:,}"
    yield "documents of the largest component", f"{covered.largest:,}"
    yield "components whose cover is proved to be least", f"{covered.proved:,}"
    yield "cost of what is kept in components", f"{covered.cost:,.6g}"
    yield "lower bound of the cost of any cover", f"{covered.bound:,.6g}"
    if report.found.recall is not None:
        yield "pairs found by MinHash, of a sample", f"{report.found.recall:.1%}"


def _thresholds(relation: Relation, report: CoverReport) -> list[dict[str, Any]]:
    """Return the rows of the thresholds that were tried, and of that of the relation."""
    tried = {**report.what_if, exactly(relation.content[0].threshold): report.covered}
    ordered = {name: tried[name] for name in sorted(tried, key=Fraction)}
    return result.what_if_rows(ordered, report.loaded.unsized)


def _pictures(
    relation: Relation, report: CoverReport, hosts: Sequence[dict[str, Any]]
) -> Iterator[str]:
    covered = report.covered
    counts = list(zip(_PARTS, (covered.kept, covered.covered), strict=True))
    yield from html_page.split("Documents", counts, ReportColumn("documents", "documents"))
    sizes = list(zip(_PARTS, (covered.bytes_kept, covered.bytes_covered), strict=True))
    if any(size for _, size in sizes):
        yield from html_page.split("Bytes in files", sizes, _BYTES)
    largest = [_bars(host["host"] or "-", host) for host in hosts[: html_page.MOST]]
    title = "Bytes in files by host, those first of which most are covered"
    yield from html_page.ranking(title, _PARTS, largest)
    if report.what_if:
        bars = [_bars(row["threshold"], row) for row in _thresholds(relation, report)]
        title = f"Bytes in files by threshold of {relation.content[0].name}"
        yield from html_page.ranking(title, _PARTS, bars)


def _bars(name: str, row: dict[str, Any]) -> tuple[str, tuple[int, int], str]:
    size, covered = row["bytes"] or 0, row["covered_bytes"] or 0
    label = f"{amount(row['covered_bytes'])} of {amount(row['bytes'])}"
    return name, (size - covered, covered), label


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
        yield f"<h2>Component {component}: {size:,} documents{part}</h2>\n"
        yield f'<div class="box" role="region" aria-label="Component {component}" tabindex="0">'
        yield from svg(f"component {component}: {size:,} documents", documents, pairs)
        yield "</div>\n"


def _why(relation: Relation, by: int | None, shared: Sequence[int]) -> str:
    if by is None:
        return "kept"
    reasons = result.why(relation, shared)
    return ", ".join(f"{name} {value}" for name, value in reasons if not isinstance(value, list))
