"""The OpenAPI document, made from the tables that parse requests and name errors."""

from __future__ import annotations

from typing import Any

from dedupindex import __version__
from dedupindex.asking import PARAMETERS
from server.replies import ERRORS
from server.routes import ROUTES, Route, schema

_NULLABLE = {"type": ["string", "null"]}
_NUMBER = {"type": ["integer", "null"]}

_ORIGINAL = {
    "url": {"type": "string"},
    "date": {"type": "string", "description": "WARC-Date, to the letter"},
    "record_id": _NULLABLE,
    "digest": {"type": "string", "description": "as its record spells it"},
    "size": {**_NUMBER, "description": "bytes of payload"},
    "record_size": {**_NUMBER, "description": "bytes of the compressed record"},
    "mime": _NULLABLE,
    "status": _NUMBER,
    "container": _NULLABLE,
    "offset": _NUMBER,
    "evidence": {"type": "string", "enum": ["record", "row", "revisit"]},
}


def _object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


def _lookup(*, digest_required: bool) -> dict[str, Any]:
    properties = {}
    for parameter in PARAMETERS.values():
        properties[parameter.name] = {**parameter.schema, "description": parameter.description}
    required = {"required": ["digest"]} if digest_required else {}
    return _object(properties, additionalProperties=False, **required)


def _schemas() -> dict[str, Any]:
    batch = _lookup(digest_required=False)
    batch["properties"]["lookups"] = {"type": "array", "items": schema("Lookup")}
    return {
        "Lookup": _lookup(digest_required=True),
        "Batch": {**batch, "required": ["lookups"]},
        "Original": _object(
            {**_ORIGINAL, "url_base64": {"type": "string", "description": "if not UTF-8"}},
            required=list(_ORIGINAL),
        ),
        "Answer": _object(
            {
                "duplicate": {"type": "boolean"},
                "match": {"type": "string", "enum": ["exact_url", "canonical_url", "digest"]},
                "original": schema("Original"),
                "reason": {"type": "string", "enum": ["unknown_algorithm"]},
                "considered": {"type": "array", "items": {"type": "object"}},
            },
            required=["duplicate"],
        ),
        "Answers": _object(
            {
                "answers": {
                    "type": "array",
                    "items": {"anyOf": [schema("Answer"), schema("Error")]},
                }
            },
            required=["answers"],
        ),
        "Error": _object(
            {
                "error": _object(
                    {
                        "code": {"type": "string", "enum": list(ERRORS)},
                        "message": {"type": "string"},
                    },
                    required=["code", "message"],
                )
            },
            required=["error"],
        ),
        "Status": _object({"status": {"type": "string"}}, required=["status"]),
        "Stats": _object(
            {name: {"type": "integer"} for name in ("captures", "digests", "containers")},
            required=["captures", "digests", "containers"],
        ),
        "object": {"type": "object"},
    }


def _responses(route: Route) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status, name in route.answers.items():
        answer: dict[str, Any] = {"description": "the answer" if name else "no original"}
        if name == "text/plain":
            answer["content"] = {"text/plain": {"schema": {"type": "string"}}}
        elif name:
            answer["content"] = {"application/json": {"schema": schema(name)}}
        found[status] = answer
    if route.name == "lookup":
        found["200"]["content"]["text/plain"] = {"schema": {"type": "string"}}
    if route.name == "lookup_batch":
        found["200"]["content"]["application/x-ndjson"] = {"schema": {"type": "string"}}
    for number in route.errors:
        found[str(number)] = {
            "description": ", ".join(code for code, about in ERRORS.items() if about[0] == number),
            "content": {"application/json": {"schema": schema("Error")}},
        }
    return found


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


def document() -> dict[str, Any]:
    """The document, as version 3.1 of OpenAPI."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        operation: dict[str, Any] = {
            "operationId": route.name,
            "summary": route.summary,
            "responses": _responses(route),
        }
        if route.name == "lookup":
            operation["parameters"] = _parameters()
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
        "components": {"schemas": _schemas()},
    }
