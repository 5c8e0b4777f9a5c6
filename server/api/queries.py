"""The query strings of lists and reports: one table for each, from which OpenAPI is made, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from dedupindex.crawls.crawl_report import FORMATS
from dedupindex.crawls.statistics import BY, ORDERS
from dedupindex.errors import BadQuery

PAGE = 1000  # rows, unless the request says otherwise
CRAWLS_PAGE = 100  # a crawl is a row with its policy and figures
LARGEST_PAGE = 10_000
LARGEST_CRAWLS_PAGE = 1000
MOST_TOP = 1000

_LIMIT = {"type": "integer", "minimum": 1, "maximum": LARGEST_PAGE, "default": PAGE}
_TEXT = {"type": "string"}

CRAWLS: dict[str, dict[str, Any]] = {
    "limit": {**_LIMIT, "maximum": LARGEST_CRAWLS_PAGE, "default": CRAWLS_PAGE},
    "after": {**_TEXT, "description": "A crawl's name: those that began before it."},
}
REPORT: dict[str, dict[str, Any]] = {
    "by": {**_TEXT, "enum": list(BY), "description": "Group by; not given: no groups."},
    "format": {**_TEXT, "enum": list(FORMATS), "default": "json"},
    "top": {
        "type": "integer",
        "minimum": 1,
        "maximum": MOST_TOP,
        "description": "Only as many groups, the largest first.",
    },
    "order": {
        **_TEXT,
        "enum": list(ORDERS),
        "default": "lookups",
        "description": "With `top`: what the largest have most of.",
    },
    "limit": _LIMIT,
    "after": {**_TEXT, "description": "A group's heading: those that come after it."},
}
_BOOLEAN = {**_TEXT, "enum": ["true", "false"]}
IMPACT: dict[str, dict[str, Any]] = {
    "container": {**_TEXT, "description": "All of this file."},
    "crawl": {**_TEXT, "description": "All of this crawl."},
    "url": {**_TEXT, "description": "All of this URL, exactly as it was."},
    "prefix": {**_BOOLEAN, "description": "With `url`: all that begin so."},
    "list": {**_BOOLEAN, "description": "The first of what would go and of what depends, too."},
}
CAPTURES: dict[str, dict[str, Any]] = {
    "crawl": {**_TEXT, "description": "The crawl that stored them, here or in the body."},
}
OF_ROUTES = {
    "add_captures": CAPTURES,
    "list_crawls": CRAWLS,
    "crawl_report": REPORT,
    "impact": IMPACT,
}


def read(query_string: str, known: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """What a query string says, by the names of a table; raises `BadQuery`.

    Bytes that are not UTF-8 are kept as lone surrogates. Empty values count as not given, but for
    that of `after`: what is not known has an empty heading.
    """
    given: dict[str, Any] = {}
    for name, value in parse_qsl(query_string, keep_blank_values=True, errors="surrogateescape"):
        if name not in known:
            raise BadQuery(f"there is no parameter {name[:64]!r}; there are {', '.join(known)}")
        if name in given:
            raise BadQuery(f"{name} is given twice")
        if value or name == "after":
            given[name] = _value(name, value, known[name])
    return given


def _value(name: str, value: str, schema: Mapping[str, Any]) -> str | int:
    if "enum" in schema and value not in schema["enum"]:
        raise BadQuery(f"{name} takes one of {', '.join(schema['enum'])}")
    if schema["type"] == "string":
        return value
    least, most = schema["minimum"], schema["maximum"]
    number = int(value) if value.isascii() and value.isdigit() and len(value) <= 9 else 0
    if not least <= number <= most:
        raise BadQuery(f"{name} takes a number from {least} to {most}")
    return number
