"""The OpenAPI document, made from the routes, their schemas and the table of errors."""

from __future__ import annotations

import re
from typing import Any

from dedupindex import __version__
from server.rate_limit import FREE
from server.responses import ERRORS
from server.routes import ROUTES, Content, Route
from server.schemas import schema, schemas

_DESCRIPTIONS = {200: "the answer", 201: "taken", 204: "no original", 404: "the answer"}


def _content(content: Content) -> dict[str, Any]:
    """Return what a body may be, by media type."""
    found: dict[str, Any] = {}
    for one in content:
        if isinstance(one, str) and "/" in one:
            found[one] = {"schema": {"type": "string"}}
        else:
            named = schema(one) if isinstance(one, str) else one
            found["application/json"] = {"schema": named}
    return {"content": found} if found else {}


def _responses(route: Route) -> dict[str, Any]:
    found: dict[str, Any] = {
        str(status): {"description": _DESCRIPTIONS[status], **_content(content)}
        for status, content in route.answers().items()
    }
    for number in sorted(_errors_of(route)):
        codes = ", ".join(code for code, (status, _) in ERRORS.items() if status == number)
        found[str(number)] = {"description": codes, **_content(("Error",))}
    return found


def _errors_of(route: Route) -> set[int]:
    """Return the statuses of a route's errors, also those of its head, body and query."""
    found = {400, 411, 421, *route.errors}
    if not route.open:
        found |= {401, 403, 503}
    if route.body:
        found |= {408, 413}
    if route.parameters:
        found.add(414)
    if route.path not in FREE:
        found.add(429)
    return found - route.answers().keys()


def _parameters_of(route: Route) -> list[dict[str, Any]]:
    found = []
    for name in re.findall(r"\{(.*?)\}", route.path):
        found.append({"name": name, "in": "path", "required": True, "schema": {"type": "string"}})
    for name, content in route.parameters.items():
        required = name == route.required
        found.append({"name": name, "in": "query", "required": required, "schema": content})
    return found


def document() -> dict[str, Any]:
    """Return the document, as version 3.1 of OpenAPI."""
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
            required = {"required": True} if len(route.body) > 1 else {}
            operation["requestBody"] = {**required, **_content(route.body)}
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
