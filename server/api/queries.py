"""Query strings of lists and reports, read by the tables that the OpenAPI document is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from dedupindex.errors import BadQuery
from dedupindex.lookup.params import Parameter
from server.api.cdx_query import CdxParameter

PAGE = 1000  # rows, unless the request says otherwise
LARGEST_PAGE = 10_000

LIMIT = {"type": "integer", "minimum": 1, "maximum": LARGEST_PAGE, "default": PAGE}
TEXT = {"type": "string"}
BOOLEAN = {**TEXT, "enum": ["true", "false"]}


def described(parameters: Iterable[Parameter | CdxParameter]) -> dict[str, dict[str, Any]]:
    """Return the schemas of parameters that have a reader of their own, by name."""
    return {one.name: {**one.schema, "description": one.description} for one in parameters}


def read(query_string: str, known: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the parameters of a query string by the names of a table; raises `BadQuery`.

    Bytes that are not UTF-8 become lone surrogates. Empty values count as not given, except that
    of `after`: the group of unknown values has an empty heading.
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
