"""The findings of bin/verify as a table and a page.

They are not in `dedupindex.verify`, which imports nothing that writes reports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dedupindex.runtime import html_page
from dedupindex.runtime.html_page import ChartPart, Figure
from dedupindex.runtime.report_table import ReportColumn, Table, Unit, exact_percent
from dedupindex.runtime.tables import names_text, singular
from dedupindex.verify.compare_files import REBUILT
from dedupindex.verify.file_bytes import Place
from dedupindex.verify.issues import (
    BROKEN,
    DAMAGE,
    LEVELS,
    LOSS,
    REASONS,
    REMARK,
    Finding,
    level_words,
)

NAMED = 200  # findings that a page names
_OTHERS = 5  # files that were not compared and are named
NOT_COUNTED = "Damage that both have is not counted."
_FINDINGS = ReportColumn("findings", "findings")
_LEVEL = ReportColumn("level", "level", Unit.TEXT)
BY_REASON = Table(
    "Findings by level, the worst first",
    (
        ReportColumn("reason", "reason", Unit.TEXT),
        _LEVEL,
        _FINDINGS,
        ReportColumn("findings_percent", "findings, %", Unit.PERCENT),
    ),
    order="level",
)
_NAMED = Table(
    "Findings in the order of the files; remarks are named with --remarks only",
    (
        ReportColumn("file", "file", Unit.TEXT),
        ReportColumn("offset", "offset", absent="–"),
        _LEVEL,
        ReportColumn("reason", "reason", Unit.TEXT),
        ReportColumn("message", "what", Unit.TEXT),
    ),
    order="file",
)
_MEANINGS = {
    DAMAGE: "damage: bytes that cannot be read",
    LOSS: "loss: content that is gone or changed",
    BROKEN: "broken: will not replay everywhere",
    REMARK: "remark: unusual, but replays",
}


def rows(reasons: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the rows of `BY_REASON`."""
    total = sum(reasons.values())
    ordered = sorted(reasons, key=lambda one: (LEVELS.index(REASONS[one]), -reasons[one], one))
    return [
        {
            "reason": reason,
            "level": REASONS[reason],
            "findings": reasons[reason],
            "findings_percent": exact_percent(reasons[reason], total),
        }
        for reason in ordered
    ]


def lines(
    places: Sequence[Place], read: Mapping[str, int], reasons: Mapping[str, int],
    first: Sequence[Finding], against: Place | None = None, others: Sequence[str] = (),
) -> Iterator[str]:  # fmt: skip
    """Yield the page: what was read, the findings by reason, and the first of them.

    `others` are the files of `against` that were not compared.
    """
    levels = Counter[str]()
    for reason, count in reasons.items():
        levels[REASONS[reason]] += count
    named = _names(places)
    title = f"Verification of {named}" + (f" against {against}" if against else "")
    drawn = [level for level in LEVELS if level != REMARK] if levels.keys() - {REMARK} else LEVELS
    counts = [(ChartPart(level, _MEANINGS[level]), levels[level]) for level in drawn]
    figures = [
        Figure(name.replace("_", " ").capitalize(), f"{count:,}") for name, count in read.items()
    ]
    found = [level for level in LEVELS if levels[level]]
    figures += [Figure(level.capitalize(), f"{levels[level]:,}") for level in found]

    def body() -> Iterator[str]:
        if reasons:
            title = "Findings by level" + ("" if drawn == LEVELS else ", without remarks")
            yield from html_page.split(title, counts, _FINDINGS)
            yield from BY_REASON.html_lines(rows(reasons))
            yield html_page.note("docs/verify.md explains each reason.")
        if first:
            yield from _NAMED.html_lines(
                {**finding._asdict(), "level": finding.level,
                 "offset": finding.offset if finding.offset >= 0 else None}
                for finding in first
            )  # fmt: skip
        defects = sum(count for reason, count in reasons.items() if REASONS[reason] != REMARK)
        if defects > len(first):
            yield f"<p>and {defects - len(first):,} more, which bin/verify prints.</p>\n"
        if others:
            yield html_page.note(f"{not_compared(others)}.")

    footer = "Read by code that shares no parser with what writes archives."
    if against:
        footer += f" {NOT_COUNTED}"
        headline = _comparison(levels, read, named, against, others)
    else:
        headline = _headline(levels, read)
    return html_page.page(title, headline, figures, body(), footer)


def _names(places: Sequence[Place]) -> str:
    return names_text(list(map(str, places)), 2)


def sound(levels: Iterable[str], against: Place | None, others: Sequence[str]) -> str:
    """Say that there is no defect, for one line of text; "" if there is one."""
    if set(levels) - {REMARK}:
        return ""
    held = "all that the archives in" if others else "all that"
    return f"{held} {against} held is there. {NOT_COUNTED}" if against else "no defects"


def not_compared(others: Sequence[str]) -> str:
    """Say which files before were not compared."""
    files = "1 file that is no archive is" if len(others) == 1 else (
        f"{len(others):,} files that are no archives are"
    )  # fmt: skip
    return f"{files} not compared: {names_text(others, _OTHERS)}"


def _comparison(
    levels: Mapping[str, int], read: Mapping[str, int], named: str, against: Place,
    others: Sequence[str],
) -> str:  # fmt: skip
    files = singular(f"{read['files']:,} files")
    if bad := _defects(levels):
        return f"{bad} in {files} compared with {against}."
    holds = "hold" if named.count(", ") else "holds"
    remarks = ", with remarks only" if levels[REMARK] else ""
    count = read[REBUILT]
    rebuilt = (
        singular(f"; {count:,} records were rebuilt from revisits and compared") if count else ""
    )
    held = "everything that the archives in" if others else "everything that"
    return f"{named} {holds} {held} {against} held: {files} compared{remarks}{rebuilt}."


def _defects(levels: Mapping[str, int]) -> str:
    return ", ".join(level_words({**levels, REMARK: 0}))


def _headline(levels: Mapping[str, int], read: Mapping[str, int]) -> str:
    files = singular(f"{read['files']:,} files")
    if bad := _defects(levels):
        return f"{bad} in {files}."
    remarks = ", with remarks only" if levels[REMARK] else ""
    return f"Nothing is damaged or lost in {files}{remarks}."
