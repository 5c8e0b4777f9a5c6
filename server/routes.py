"""Every path of the API, once: Flask's routes and the OpenAPI document are made from this table."""

from __future__ import annotations

from typing import Any, NamedTuple


class Route(NamedTuple):
    """One method of one path."""

    method: str
    path: str
    name: str  # of the function that answers, and the operation id
    summary: str
    answers: dict[str, str]  # status -> schema in `openapi`, or a content type
    errors: tuple[int, ...] = ()


ROUTES = (
    Route(
        "GET",
        "/lookup",
        "lookup",
        "Look one digest up",
        {"200": "Answer", "204": ""},
        (400, 409, 414, 503),
    ),
    Route(
        "POST",
        "/lookup",
        "lookup_batch",
        "Look many digests up, in order",
        {"200": "Answers"},
        (400, 409, 413, 414, 415, 503),
    ),
    Route("GET", "/healthz", "healthz", "Whether the process lives", {"200": "Status"}),
    Route("GET", "/readyz", "readyz", "Whether the index can answer", {"200": "Status"}, (503,)),
    Route("GET", "/stats", "stats", "What the index holds", {"200": "Stats"}, (503,)),
    Route("GET", "/metrics", "metrics", "Counts for Prometheus", {"200": "text/plain"}),
    Route("GET", "/openapi.json", "openapi", "This document", {"200": "object"}),
)


def schema(name: str) -> dict[str, Any]:
    """A reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}
