"""The OpenAPI document, made from the tables that parse requests and name errors."""

from __future__ import annotations

import re
from typing import Any

from dedupindex import __version__
from dedupindex.lookup.params import PARAMETERS
from server.api import cdx_query, queries
from server.rate_limit import FREE
from server.responses import ERRORS
from server.routes import ROUTES, Route, schema
from server.schemas import schemas

_EMPTY = {"201": "taken", "204": "no original"}


def _responses(route: Route) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status, name in route.answers.items():
        answer: dict[str, Any] = {"description": "the answer" if name else _EMPTY[status]}
        if name == "text/plain":
            answer["content"] = {"text/plain": {"schema": {"type": "string"}}}
        elif name == "Lines":
            answer["content"] = {
                "text/plain": {"schema": {"type": "string"}},
                "application/json": {"schema": {"type": "array"}},
            }
        elif name:
            answer["content"] = {"application/json": {"schema": schema(name)}}
        found[status] = answer
    if route.name == "lookup":
        found["200"]["content"]["text/plain"] = {"schema": {"type": "string"}}
    if route.name == "crawl_report":
        for kind in ("text/plain", "text/csv", "text/html"):
            found["200"]["content"][kind] = {"schema": {"type": "string"}}
    if route.name == "lookup_batch":
        found["200"]["content"]["application/x-ndjson"] = {"schema": {"type": "string"}}
    for number in _errors_of(route):
        found[str(number)] = {
            "description": ", ".join(code for code, about in ERRORS.items() if about[0] == number),
            "content": {"application/json": {"schema": schema("Error")}},
        }
    return found


def _errors_of(route: Route) -> tuple[int, ...]:
    """Also those of every route: of its head, of its body if it takes one, if it is limited."""
    found = {400, 411, 421, *route.errors}
    if route.body or route.name == "lookup_batch" or route.method == "DELETE":
        found.add(408)
    if route.path not in FREE:
        found.add(429)
    return tuple(sorted(found))


def _parameters() -> list[dict[str, Any]]:
    return [
        {
            "name": parameter.name,
            "in": "query",
            "required": parameter.name == "digest",
            "description": parameter.description,
            "schema": parameter.schema,
        }
        for parameter in PARAMETERS.values()
        if not parameter.only_json
    ]


def _cdx_parameters() -> list[dict[str, Any]]:
    return [
        {
            "name": parameter.name,
            "in": "query",
            "required": parameter.name == "url",
            "description": parameter.description,
            "schema": parameter.schema,
        }
        for parameter in cdx_query.PARAMETERS
    ]


_RAW = "The URL, not escaped: everything after uri= is it."


def _parameters_of(route: Route) -> list[dict[str, Any]]:
    found = []
    for name in re.findall(r"\{(.*?)\}", route.path):
        found.append({"name": name, "in": "path", "required": True, "schema": {"type": "string"}})
    if route.name == "lookup":
        found += _parameters()
    if route.name.startswith("cdx"):
        found += _cdx_parameters()
    if route.name.startswith("crawl_cdx"):  # whose path names the crawl
        found += [parameter for parameter in _cdx_parameters() if parameter["name"] != "crawl"]
    if route.name in ("record", "crawl_record"):
        text = {"type": "string"}
        found.append({"name": "uri", "in": "query", "description": _RAW, "schema": text})
    for name, content in queries.OF_ROUTES.get(route.name, {}).items():
        found.append({"name": name, "in": "query", "schema": content})
    return found


def document() -> dict[str, Any]:
    """The document, as version 3.1 of OpenAPI."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        operation: dict[str, Any] = {
            "operationId": route.name,
            "summary": route.summary,
            "responses": _responses(route),
        }
        if parameters := _parameters_of(route):
            operation["parameters"] = parameters
        if route.body:
            content = {"application/json": {"schema": schema(route.body)}}
            operation["requestBody"] = {"content": content}
        if route.name == "lookup_batch":
            operation["requestBody"] = {
                "required": True,
                "content": {
                    "application/json": {"schema": schema("Batch")},
                    "application/x-ndjson": {"schema": {"type": "string"}},
                },
            }
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "dedupindex",
            "version": __version__,
            "description": "Contract for crawlers: any error or timeout means "
            '"store the response in full".',
        },
        "paths": paths,
        "components": {"schemas": schemas()},
    }
