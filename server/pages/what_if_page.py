"""The page of a simulated crawl: it looks up all captures of a CDX file, WARC file or crawl log."""

from __future__ import annotations

from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import orjson
from flask import render_template, request

from dedupindex.errors import BadInput, as_named
from dedupindex.lookup.savings import GROUPS
from dedupindex.lookup.savings_report import (
    NOT_LOOKED_UP,
    PARTS,
    REASONS,
    STRATEGIES,
    drawn_columns,
    group_table,
    heading,
    not_looked_up_rows,
    sizes_text,
    strategy_rows,
    with_exact_shares,
)
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
                return self._page(problem=_problem(str(error), name), by=by), 400
        return self._page(
            report=with_exact_shares(orjson.loads(output.last)),
            messages=[_named(line, name) for line in output.messages],
            name=name,
            by=by,
        ), 200

    def _page(self, *, report: dict[str, Any] | None = None, **more: Any) -> str:
        shown = {"problem": "", "by": "host", "messages": [], "name": "", "bar": [], **more}
        if report is not None:
            groups = report["groups"]
            drawn, columns = drawn_columns([report, *groups])
            shown |= {"bar": _bar(report, columns), "drawn": drawn}
            most = max((sum(group[name] for name in columns) for group in groups), default=0)
            for group in groups:
                group["bar"] = _bar(group, columns, most)
        return render_template(
            "what_if.html",
            report=report,
            groups=list(GROUPS),
            labels={by: heading(by).label for by in GROUPS},
            found=PARTS,
            sizes="" if report is None else sizes_text(report["sizes"]),
            strategies=[] if report is None else strategy_rows(report["filters"][0]),
            strategy_table=STRATEGIES,
            refused_table=NOT_LOOKED_UP,
            refused=[] if report is None else not_looked_up_rows(report["refused"]),
            reasons=as_named(REASONS),
            table=None if report is None else group_table(report),
            limit=self._config.max_body,
            rows=_ROWS,
            longest=commands.LONGEST,
            command=self._commands.typed(
                "report", [f"--against={shown['name'] or 'FILE'}", f"--by={shown['by']}"]
            ),
            **shown,
        )


def _problem(message: str, name: str) -> str:
    """Return the message of a command that read a file from stdin, for the sender of the file."""
    if " is of no known kind (" in message:
        hint = message.rpartition(")")[2]  # the message lists kinds that cannot be sent
        return f"{name} is not a CDX, CDXJ, crawl.log, WARC or ARC file{hint}"
    return f"{name}{message[1:]}" if message.startswith(("- ", "-:")) else message


def _named(message: str, name: str) -> str:
    """Return a warning of such a command, with the name of the file for that of stdin."""
    begin, stdin, rest = message.partition("warning: -")
    return f"{begin}warning: {name}{rest}" if stdin and rest.startswith((" at ", ":")) else message


def _bar(sums: dict[str, Any], columns: list[str], whole: float = 0) -> Any:
    """Return the bytes or captures of a group, saved by match class and stored."""
    return bar([(part.name, sums[name]) for part, name in zip(PARTS, columns, strict=True)], whole)
