"""Tables of reports as text."""

from __future__ import annotations

from collections import Counter

import pytest

from dedupindex.post_crawl.dedup_report import HOSTS, REFUSED, DedupReport, HostNumbers
from dedupindex.runtime.html_page import ChartPart, split
from dedupindex.runtime.report_table import ReportColumn, Table, Unit, exact_percent, rounded_shares


def test_every_cell_of_a_text_table_is_below_its_label() -> None:
    columns = (
        ReportColumn("reason", "reason", Unit.TEXT),
        ReportColumn("captures", "captures"),
        ReportColumn("option", "what could change it", Unit.TEXT),
    )
    rows = [{"reason": "small", "captures": 1, "option": option} for option in ("", "--min-size")]
    title, *lines = Table("Refused", columns, "captures").text_lines(rows)
    assert title == " captures  what could change it  reason"
    assert all(line.index("small") == title.index("reason") for line in lines)


@pytest.mark.parametrize(("part", "whole", "text"), [(2, 52, "3.8 %"), (11, 52, "21.2 %")])
def test_a_share_is_rounded_once(part: int, whole: int, text: str) -> None:
    columns = ReportColumn("name", "name", Unit.TEXT), ReportColumn("share", "%", Unit.PERCENT)
    table, row = Table("Shares", columns, "name"), {"name": "a", "share": 100 * part / whole}
    assert exact_percent(part, whole) == row["share"]
    share = round(100 * part / whole, 2)
    nested = {"total_percent": 100 * part / whole, "groups": [{"percent": 100 * part / whole}]}
    assert rounded_shares(nested) == {"total_percent": share, "groups": [{"percent": share}]}
    assert table.as_json(row)["share"] == share
    assert list(table.csv_lines([row]))[1] == f"a,{share}\n"
    assert text in list(table.text_lines([row]))[1]
    assert f">{text}<" in "".join(table.html_lines([row]))
    report = DedupReport(False, captures=whole, refused=Counter(small=part))
    assert text in list(REFUSED.text_lines(report.refused_rows()))[1]
    host = HostNumbers("a", whole, part, 1).as_row()
    assert text in list(HOSTS.text_lines([host]))[1]
    parts = [(ChartPart("new", "a"), part), (ChartPart("rest", "b"), whole - part)]
    assert f"({text})" in "".join(split("Parts", parts, ReportColumn("captures", "captures")))
