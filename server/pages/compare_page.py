"""The page that compares two crawls: what is new, gone, the same and changed, by host."""

from __future__ import annotations

from itertools import islice
from typing import Any

from flask import render_template, request

from dedupindex.crawls.compare_crawls import ORDERS
from dedupindex.crawls.comparison_table import comparison_table
from dedupindex.errors import BadInput, BadQuery
from dedupindex.runtime.charts import bar
from server import commands
from server.api.index_reports import compare_options, compared
from server.auth import NamespaceAccess
from server.pages.login import check_names, is_own_request
from server.services import Handlers

TEXTS = {
    "same": "the same payload",
    "changed": "another payload",
    "new": "only in the later crawl",
    "gone": "only in the earlier crawl",
}
ORDER_TEXTS = {
    "second_stored_bytes": "bytes stored by the later crawl",
    "first_stored_bytes": "bytes stored by the earlier crawl",
    "changed": "URLs with another payload",
    "new": "URLs that only the later crawl has",
    "gone": "URLs that only the earlier crawl has",
    "same": "URLs with the same payload",
    "changed_bytes": "bytes of changed payloads",
    "new_bytes": "bytes of URLs that only the later crawl has",
    "gone_bytes": "bytes of URLs that only the earlier crawl has",
    "same_bytes": "bytes of payloads that are the same",
}
_TOP = 30  # hosts
_MOST = 200  # crawls to choose from


class ComparePage(Handlers):
    def compare(self) -> tuple[str, int]:
        """Show the form and, if it was filled in, the comparison."""
        check_names(request.args, ("first", "second", "order"))
        first, second = (request.args.get(name, "").strip() for name in ("first", "second"))
        order = request.args.get("order", ORDERS[0])
        if order not in ORDERS:
            raise BadQuery("hosts cannot be put in that order; choose one from the form")
        problem, status, found = "", 200, None
        ours = is_own_request(request.environ)
        if first and second and ours:
            try:
                found = _drawn(compared(self._commands, first, second, order, _TOP))
            except BadInput as error:
                problem, status = str(error), 400
        page = render_template(
            "compare.html",
            first=first,
            second=second,
            order=order,
            orders=ORDER_TEXTS,
            texts=TEXTS,
            table=comparison_table(order),
            crawls=self._names(),
            problem=problem,
            found=found,
            longest=commands.LONGEST,
            command=self._commands.typed("report", compare_options(first, second, order, _TOP)),
        )
        return page, status

    def _names(self) -> list[str]:
        """Return crawls that can be compared: those that asked, the newest first, then others."""
        visible = NamespaceAccess(self._access, request.environ)
        with self._live.crawls.reading() as reading:
            newest = () if reading is None else filter(visible.sees, reading.newest())
            names = [crawl.name for crawl in islice(newest, _MOST)]
        content = self._summaries.known().content
        rows = content["by"]["crawl"]["rows"] if content is not None else []
        return list(dict.fromkeys([*names, *sorted(row["crawl"] for row in rows if row["crawl"])]))


def _drawn(found: dict[str, Any]) -> dict[str, Any]:
    """Return a comparison with a bar for each row, on one scale for all hosts."""
    rows = [*found["rows"], *([found["others"]] if found["others"] else [])]
    most = max((sum(row[name] for name in TEXTS) for row in rows), default=0)
    for row in rows:
        row["bar"] = bar([(name, row[name]) for name in TEXTS], most)
    total = found["total"]
    sizes = [(name, total[f"{name}_bytes"] or 0) for name in TEXTS]
    return {
        **found,
        "urls": sum(total[name] for name in TEXTS),
        "url_bar": bar([(name, total[name]) for name in TEXTS]),
        "byte_bar": bar(sizes),
        "bytes": sum(size for _, size in sizes),
    }
