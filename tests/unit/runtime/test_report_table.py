"""Tables of reports as text."""

from __future__ import annotations

from dedupindex.runtime.report_table import ReportColumn, Table, Unit


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
