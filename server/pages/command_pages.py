"""Pages that run a command: a simulated crawl, and the impact of a deletion.

A simulated crawl looks up all captures of a CDX file or crawl log. The impact of a deletion is what
depends on a container, crawl or URL: originals, and revisits of them.
"""

from __future__ import annotations

from pathlib import PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import parse_qs

import orjson
from flask import render_template, request

from dedupindex.errors import BadInput, BadQuery
from dedupindex.index.tokens import Role
from dedupindex.lookup.savings import GROUPS
from dedupindex.lookup.savings_report import STRATEGIES, group_table, strategy_rows
from dedupindex.runtime.charts import bar
from server import commands
from server.pages.login import read_form
from server.services import Handlers

_ROWS = 50  # of the largest groups


class WhatIf(Handlers):
    def what_if(self) -> str:
        return self._page()

    def try_out(self) -> tuple[str, int]:
        form, files = read_form(request.environ, self._bodies, self._config.max_body)
        sent = files.get("crawl")
        by = form.get("by", "host")
        if sent is None or not sent.filename:
            return self._page(problem="Choose a file first.", by=by), 400
        name = PurePosixPath(PureWindowsPath(sent.filename).as_posix()).name
        with sent.stream as stream:
            try:
                if by not in GROUPS:
                    raise BadInput(f"there are groups by {', '.join(GROUPS)}")
                stream.seek(0)
                options = ["--against=-", "--json", f"--by={by}", f"--limit={_ROWS}"]
                output = self._commands.run("report", options, stream)
            except BadInput as error:
                return self._page(problem=str(error), by=by), 400
        return self._page(
            report=orjson.loads(output.last), messages=output.messages, name=name, by=by
        ), 200

    def _page(self, *, report: dict[str, Any] | None = None, **more: Any) -> str:
        shown = {"problem": "", "by": "host", "messages": [], "name": "", "bar": [], **more}
        if report is not None:
            shown["bar"] = _bar(report)
            for group in report["groups"]:
                group["bar"] = _bar(group, report["groups"][0]["handled_bytes"] or 0)
        return render_template(
            "what_if.html",
            report=report,
            groups=list(GROUPS),
            strategies=[] if report is None else strategy_rows(report["filters"][0]),
            strategy_table=STRATEGIES,
            table=None if report is None else group_table(report["by"]),
            limit=self._config.max_body,
            rows=_ROWS,
            longest=commands.LONGEST,
            **shown,
        )


def _bar(sums: dict[str, Any], whole: float = 0) -> Any:
    """Return the bytes of a group, saved by match class and stored."""
    names = ("exact_url", "canonical_url", "digest", "new")
    return bar([(name, sums[f"{name}_bytes"] or 0) for name in names], whole)


KINDS = {
    "container": "a container",
    "crawl": "a crawl",
    "url": "a URL",
    "prefix": "all URLs that begin with",
}
_LISTED = 100  # originals and revisits
_IMPACT_ROWS = 20  # containers and crawls
_OURS = (None, "same-origin", "none")


class ImpactPage(Handlers):
    def impact(self) -> tuple[str, int]:
        """Show the form and, if it was filled in, the impact.

        The command reads the whole index, so it needs the role admin if there are tokens, and no
        page of another server can start it.
        """
        given = parse_qs(request.environ.get("QUERY_STRING", ""), errors="surrogateescape")
        kind, text = (given.get(name, [""])[0] for name in ("kind", "name"))
        found, problem, status = None, "", 200
        ours = request.environ.get("HTTP_SEC_FETCH_SITE") in _OURS
        if ours:
            self._access.require(request.environ, Role.ADMIN)
        if text and ours:
            try:
                found = self._found(kind, text)
            except BadInput as error:
                problem, status = str(error), 400
        page = render_template(
            "impact.html",
            kind=kind,
            kinds=KINDS,
            name=text,
            problem=problem,
            found=found,
            listed=_LISTED,
            shown=_IMPACT_ROWS,
            longest=commands.LONGEST,
        )
        return page, status

    def _found(self, kind: str, text: str) -> dict[str, Any]:
        if kind not in KINDS:
            raise BadQuery(f"kind takes one of {', '.join(KINDS)}")
        options = [f"--url={text}", "--prefix"] if kind == "prefix" else [f"--{kind}={text}"]
        output = self._commands.run("impact", [*options, "--list", "--json"], lines=_LISTED)
        found: dict[str, Any] = orjson.loads(output.last)
        return {**found, "listed": [orjson.loads(line) for line in output.lines]}
