"""Routes for what the whole index holds, and for two of its crawls compared."""

from __future__ import annotations

from typing import Any

import orjson
from flask import Response, request

from dedupindex.crawls import compare_crawls
from dedupindex.errors import BadQuery
from dedupindex.index import summary
from server.api import request_fields as fields
from server.commands import Commands
from server.responses import json_of
from server.routes import Route
from server.services import Handlers

_TOP = {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}
SUMMARY: dict[str, dict[str, Any]] = {
    "by": {**fields.TEXT, "enum": list(summary.DIMENSIONS), "default": "host"},
    "order": {**fields.TEXT, "enum": list(summary.ORDERS), "default": "bytes"},
    "top": {**_TOP, "maximum": 200, "description": "So many groups, the largest first."},
}
COMPARE: dict[str, dict[str, Any]] = {
    "with": {**fields.TEXT, "description": "The earlier crawl."},
    "order": {
        **fields.TEXT,
        "enum": list(compare_crawls.ORDERS),
        "default": compare_crawls.ORDERS[0],
    },
    "top": {**_TOP, "description": "So many hosts, the largest first."},
}


class IndexReports(Handlers):
    @Route("GET", "/summary", ("Summary",), parameters=SUMMARY)
    def summary(self) -> Response:
        """What the index holds, by one dimension, as counted at a time."""
        self._access.may_read(request.environ)
        given = fields.read_parameters(request.environ, SUMMARY)
        by, order = given.get("by", "host"), given.get("order", "bytes")
        known = self._summaries.known()
        answer: dict[str, Any] = {
            "made": None, "is_current": known.is_current, "is_running": known.is_running,
            "total": None, "by": by, "groups": None, "rows": [], "others": None,
        }  # fmt: skip
        if known.content is not None:
            found = summary.ranking(known.content, by, order, given.get("top", _TOP["default"]))
            answer |= {
                "made": known.content["made"],
                "total": summary.known_bytes(known.content["total"]),
                "groups": found.groups,
                "rows": [summary.known_bytes(row) for row in found.rows],
                "others": found.others and summary.known_bytes(found.others),
            }
        return json_of(answer)

    @Route(
        "GET", "/crawls/{name}/compare", ("Comparison",), parameters=COMPARE, required="with"
    )  # fmt: skip
    def compare(self, name: str) -> Response:
        """What is new, gone, the same and changed in a crawl since an earlier one, by host."""
        self._access.may_read(request.environ)
        given = fields.read_parameters(request.environ, COMPARE)
        if not given.get("with"):
            raise BadQuery("give the earlier crawl: with=NAME")
        order, top = given.get("order", compare_crawls.ORDERS[0]), given.get("top", 100)
        return json_of(compared(self._commands, given["with"], name, order, top))


def compared(commands: Commands, first: str, second: str, order: str, top: int) -> dict[str, Any]:
    """Return the comparison of two crawls; a process of its own reads the index for it."""
    options = [*compare_options(first, second, order, top), "--json"]
    found: dict[str, Any] = orjson.loads(commands.run("report", options).last)
    return found


def compare_options(first: str, second: str, order: str, top: int) -> list[str]:
    """Return the options of ``bin/report`` that compare two crawls."""
    return [f"--crawl={second}", f"--compare={first}", f"--order={order}", f"--limit={top}"]
