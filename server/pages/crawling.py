"""Crawls and how far they are."""

from __future__ import annotations

from flask import render_template, request

from dedupindex.errors import BadQuery
from server.pages.paging import Paging, page_asked
from server.reporting import Reporting


class CrawlPages:
    """The views of crawls. Names are sent in queries: as parts of paths, some would be lost."""

    def __init__(self, reporting: Reporting) -> None:
        self._reporting = reporting

    def crawls(self) -> str:
        """All of them, the newest first."""
        paging = Paging(page_asked(request.args.get("page", "")))
        rows = self._reporting.crawls()
        shown = rows[paging.start : paging.stop + 1]
        return render_template(
            "crawls.html", rows=shown[: paging.size], paging=paging.of(len(shown)), total=len(rows)
        )

    def crawl(self) -> str:
        """One of them."""
        name = request.args.get("name", "")
        if not name:
            raise BadQuery("say which crawl: ?name=…")
        return render_template("crawl.html", crawl=self._reporting.crawl(name))
