"""The table of two crawls that are compared, of ``bin/report --compare`` and of the page."""

from __future__ import annotations

from dedupindex.crawls.compare_crawls import CHANGES, COLUMNS, SHARES
from dedupindex.runtime.report_table import ReportColumn, Shown, Table, Unit

_LABELS = {
    "new": "new", "gone": "gone", "same": "same", "changed": "changed",
    "changed_percent": "changed, %",
    "new_bytes": "new payload", "gone_bytes": "gone payload", "same_bytes": "same payload",
    "changed_bytes": "changed payload", "first_stored_bytes": "stored, earlier",
    "second_stored_bytes": "stored, later", "second_revisits": "revisits, later",
}  # fmt: skip
_UNITS = {"bytes": Unit.BYTES, "percent": Unit.PERCENT}


def comparison_table(order: str, remark: str = "") -> Table:
    """Return the table of hosts, which has the column by which they are ranked."""
    shown = {*CHANGES, "changed_percent", "first_stored_bytes", "second_stored_bytes"}
    shown |= {"second_revisits", order}
    columns = [ReportColumn("host", "host", Unit.TEXT)]
    for name in (*COLUMNS, *SHARES):
        unit = _UNITS.get(name.rpartition("_")[2], Unit.COUNT)
        where = Shown.ON_PAGES if name in _LABELS else Shown.AS_DATA
        column = ReportColumn(name, _LABELS.get(name, name), unit, where)
        columns.append(column._replace(shown=Shown.EVERYWHERE) if name in shown else column)
    title = f"By host, sorted by: {_LABELS[order]}" + (f" ({remark})" if remark else "")
    return Table(title, tuple(columns), order)
