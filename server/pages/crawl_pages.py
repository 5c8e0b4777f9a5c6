"""The pages of crawls: their list, one crawl with its groups, and one host of all crawls."""

from __future__ import annotations

import re
import time
from itertools import islice
from typing import Any

from flask import render_template, request

from dedupindex.crawls import statistics
from dedupindex.crawls.crawl import Crawl, CrawlState
from dedupindex.crawls.crawl_report import (
    commands_to_learn,
    date,
    group_table,
    payload_of,
)
from dedupindex.crawls.statistics_keys import (
    LONGEST,
    NONE_REFUSED,
    RefusedPayload,
    StatisticsRow,
)
from dedupindex.crawls.store import Reading
from dedupindex.errors import BadQuery, UnknownCrawl
from dedupindex.lookup.savings_report import HANDLED_BY_CRAWL, share_of_handled
from dedupindex.runtime.charts import bar
from dedupindex.urlkey import in_idna, typed_host
from server.api.crawls import crawl_row, crawl_rows, is_indexed
from server.auth import NamespaceAccess
from server.pages.chart_pages import CLASSES, byte_counts, lookup_counts, table_row
from server.pages.login import check_names
from server.pages.overview import SIZE, page_number, paging
from server.services import Handlers

BY = {"host": "Hosts", "mime": "Media types", "status": "HTTP statuses", "strategy": "Strategies"}
ORDERS = {
    "lookups": "lookups",
    "duplicates": "duplicates",
    "duplicate_bytes": "payload saved",
    "stored_bytes": "payload reported",
}
STATES = [state.value for state in CrawlState]
_ROWS = 50  # of the largest
_FEW = 20  # crawls, which need no filter
_LOOKED_THROUGH = 1000  # crawls, for the one before
_LAST_DIGITS = re.compile(r"\d+$")


class CrawlPages(Handlers):
    """The views of crawls. Names are parameters, because a path cannot carry every name."""

    def crawls(self) -> str:
        """Show all crawls, or those of a state and with a beginning of the name; newest first."""
        number = page_number(request.args.get("page", ""))
        given = {name: request.args.get(name, "").strip() for name in ("name", "state")}
        given = {name: text for name, text in given.items() if text}
        state, begin = given.get("state", ""), given.get("name", "").casefold()
        if state and state not in STATES:
            raise BadQuery(f"a crawl is {', '.join(STATES)}: there is no state {state[:64]!r}")
        visible = NamespaceAccess(self._access, request.environ)

        def sees(crawl: Crawl) -> bool:
            is_wanted = state in ("", crawl.state.value) and crawl.name.casefold().startswith(begin)
            return is_wanted and visible.sees(crawl)

        rows = crawl_rows(self._live, SIZE + 1, skip=(number - 1) * SIZE, sees=sees)
        if not rows:
            self._live.opened()  # an index that has gone is not one without crawls
        return render_template(
            "crawls.html",
            rows=rows[:SIZE],
            paging=paging(number, len(rows)),
            given=given,
            states=STATES,
            has_form=bool(given) or number > 1 or len(rows) > _FEW,
        )

    def crawl(self) -> str:
        name = request.args.get("name", "")
        if not name:
            raise BadQuery("no crawl was named; choose one from the list of crawls")
        by, order = request.args.get("by", "host"), request.args.get("order", "lookups")
        if by not in BY or order not in ORDERS:
            raise BadQuery("there is no such table; choose one on the page of the crawl")
        try:
            return self._crawl(name, by, order)
        except UnknownCrawl:
            if not is_indexed(self._live, name):
                raise
        return render_template("indexed_crawl.html", name=name)

    def _crawl(self, name: str, by: str, order: str) -> str:
        visible = NamespaceAccess(self._access, request.environ)
        brief = "brief" in request.args  # the script of the page asks so every few seconds
        with self._live.crawls.reading_for(name) as reading:
            known = reading.crawl_or_suggest(name, visible.sees)
            visible.require(known)
            total, times = statistics.total(reading, known), statistics.times(reading, known)
            reasons = statistics.refused(reading, known)
            refused = statistics.refused_payload(reading, known, reasons)
            rows = [] if brief else statistics.largest(reading, known, by, _ROWS, order)
            earlier = _earlier(reading, known, visible)
        most = max((row.lookups for _, row in rows), default=0)
        shown = crawl_row(self._live, name)
        return render_template(
            "crawl.html",
            crawl=shown,
            brief=brief,
            earlier=earlier,
            is_read=bool(commands_to_learn(shown)) and is_indexed(self._live, name),
            now=date(int(time.time())),
            times=times,
            share_saved=share_of_handled(total.as_json(refused), payload_of(shown)),
            index=None if brief else self._live.index_facts(),
            by=by,
            order=order,
            all_by=BY,
            orders=ORDERS,
            table=group_table(by, order),
            rows=[table_row(heading, row, most) for heading, row in rows],
            most=_ROWS,
            **_sums(total, refused),
        )

    def host(self) -> str:
        """Show one host of all crawls, or the form for its name."""
        check_names(request.args, ("host",))
        name = typed_host(request.args.get("host", "").strip())
        self._live.opened()
        visible = NamespaceAccess(self._access, request.environ)
        content: dict[str, Any] = {"rows": [], "largest": [], "latest": ""}
        content |= _sums(StatisticsRow())
        tables = {"by_host": group_table("host", "lookups"), "by_crawl": group_table("crawl")}
        with self._live.crawls.reading() as reading:
            if reading is not None and name:
                content.update(_host(reading, name, visible))
            elif reading is not None:
                content.update(_largest_hosts(reading, visible))
        return render_template("host.html", host=name, **tables, **content)


def _earlier(reading: Reading, crawl: Crawl, visible: NamespaceAccess) -> str:
    """Return the latest committed crawl before one whose name differs in its last digits only."""
    stem = _LAST_DIGITS.sub("", crawl.name)
    before = (
        earlier.name
        for earlier in islice(reading.newest(crawl), _LOOKED_THROUGH)
        if earlier.state is CrawlState.COMMITTED and visible.sees(earlier)
        if _LAST_DIGITS.sub("", earlier.name) == stem
    )
    return next(before, "") if stem != crawl.name else ""


def _host(reading: Reading, name: str, visible: NamespaceAccess) -> dict[str, Any]:
    """Return the statistics of a host in all crawls."""
    known: list[tuple[Crawl, StatisticsRow]] = []
    for host in _spellings(name):
        known += (row for row in statistics.at_host(reading, host) if visible.sees(row[0]))
    kept = [row for crawl, row in known if crawl.kept]
    most = max((row.lookups for _, row in known), default=0)
    rows = [{**table_row(b"", row, most), "crawl": crawl} for crawl, row in reversed(known)]
    # A crawl whose own share is not known would add its hits, but not what it stored.
    shared = [row for row in kept if row.as_json()["duplicate_bytes_percent"] is not None]
    of_shared = StatisticsRow.sum_of(shared).as_json()
    saved = share_of_handled(of_shared, HANDLED_BY_CRAWL) if of_shared["handled_bytes"] else ""
    if saved and len(shared) < len(kept):
        saved += ", without crawls whose share is not known"
    return {"rows": rows, "share_saved": saved, **_sums(StatisticsRow.sum_of(kept))}


def _spellings(name: str) -> list[bytes]:
    """Return the spellings of a host in crawls: as given, and in IDNA."""
    text = name.encode("utf-8", "replace").lower()[:LONGEST]
    return list(dict.fromkeys((text, in_idna(text))))


def _largest_hosts(reading: Reading, visible: NamespaceAccess) -> dict[str, Any]:
    """Return the largest hosts of the newest crawl that has any."""
    for crawl in filter(visible.sees, reading.newest()):
        largest = statistics.largest(reading, crawl, "host", 20)
        if largest:
            most = max(row.lookups for _, row in largest)
            rows = [table_row(heading, row, most) for heading, row in largest]
            return {"largest": rows, "latest": crawl.name}
    return {}


def _sums(row: StatisticsRow, refused: RefusedPayload = NONE_REFUSED) -> dict[str, Any]:
    """Return the values of a sum that templates show."""
    return {
        "total": row.as_json(refused),
        "found": [(name, CLASSES[name], count) for name, count in lookup_counts(row)],
        "found_bar": bar(lookup_counts(row)),
        "spent_bar": bar(byte_counts(row)),
    }
