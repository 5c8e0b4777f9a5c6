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
    body: str = ""  # schema of what is sent


ROUTES = (
    Route(
        "GET",
        "/lookup",
        "lookup",
        "Look one digest up",
        {"200": "Answer", "204": ""},
        (400, 401, 403, 404, 409, 414, 503),
    ),
    Route(
        "POST",
        "/lookup",
        "lookup_batch",
        "Look many digests up, in order",
        {"200": "Answers"},
        (400, 401, 403, 404, 409, 413, 414, 415, 503),
    ),
    Route(
        "GET",
        "/crawls",
        "list_crawls",
        "Crawls, the newest first, in pages",
        {"200": "Crawls"},
        (400, 401, 403, 404, 414, 503),
    ),
    Route(
        "POST",
        "/crawls",
        "begin_crawl",
        "Begin a crawl",
        {"200": "Crawl"},
        (400, 401, 403, 409, 413, 415, 503),
        "Begin",
    ),
    Route(
        "GET", "/crawls/{name}", "show_crawl", "One crawl", {"200": "Crawl"}, (401, 403, 404, 503)
    ),
    Route(
        "POST",
        "/crawls/{name}/commit",
        "commit_crawl",
        "Let a crawl's captures answer everybody",
        {"200": "Crawl"},
        (400, 401, 403, 404, 409, 413, 415, 503),
        "End",
    ),
    Route(
        "POST",
        "/crawls/{name}/cancel",
        "cancel_crawl",
        "Take back what a crawl reported",
        {"200": "Crawl"},
        (400, 401, 403, 404, 409, 413, 415, 503),
        "Cancel",
    ),
    Route(
        "POST",
        "/crawls/{name}/counts",
        "count_crawl",
        "Tell what a crawler did not ask and not report",
        {"200": "Crawl"},
        (400, 401, 403, 404, 413, 415, 503),
        "Told",
    ),
    Route(
        "GET",
        "/crawls/{name}/report",
        "crawl_report",
        "What a crawl asked, found and stored",
        {"200": "CrawlReport"},
        (400, 401, 403, 404, 414, 503),
    ),
    Route(
        "POST",
        "/captures",
        "add_captures",
        "Report what was stored",
        {"200": "Reported"},
        (400, 401, 403, 404, 409, 413, 415, 503),
        "Captures",
    ),
    Route(
        "DELETE",
        "/captures",
        "delete_captures",
        "Take captures out of the index",
        {"200": "Impact"},
        (400, 401, 403, 409, 413, 415, 503),
        "Deletions",
    ),
    Route(
        "DELETE",
        "/crawls/{name}",
        "drop_crawl",
        "Take back a crawl that the index has not taken in",
        {"200": "Crawl"},
        (400, 401, 403, 404, 409, 413, 415, 503),
        "Drop",
    ),
    Route(
        "GET",
        "/impact",
        "impact",
        "What depends on captures that are to go",
        {"200": "Impact"},
        (400, 401, 403, 414, 503),
    ),
    Route(
        "POST",
        "/claims",
        "claim",
        "Look up, or claim the right to store",
        {"200": "Claimed"},
        (400, 401, 403, 404, 409, 413, 415, 503),
        "Claim",
    ),
    Route(
        "DELETE",
        "/claims",
        "release",
        "Give a claim back",
        {"200": "Released"},
        (400, 401, 403, 404, 409, 413, 415, 503),
        "Release",
    ),
    Route(
        "GET",
        "/cdx",
        "cdx",
        "Originals by URL, as CDX servers list them",
        {"200": "Lines"},
        (400, 401, 403, 404, 409, 414, 503),
    ),
    Route(
        "GET",
        "/cdx/hex",
        "cdx_hex",
        "The same with digests in hex",
        {"200": "Lines"},
        (400, 401, 403, 404, 409, 414, 503),
    ),
    Route(
        "GET",
        "/cdx/search",
        "cdx_search",
        "The same as /cdx",
        {"200": "Lines"},
        (400, 401, 403, 404, 409, 414, 503),
    ),
    Route(
        "GET",
        "/web/timemap/cdx",
        "cdx_timemap",
        "The same as /cdx",
        {"200": "Lines"},
        (400, 401, 403, 404, 409, 414, 503),
    ),
    Route(
        "GET",
        "/api/records/{id}",
        "record",
        "The original of a digest, as doppelganger says it",
        {"200": "Record", "404": "text/plain"},
        (400, 401, 403, 414, 503),
    ),
    Route("GET", "/api/records/", "no_record", "Refused: a digest is needed", {}, (400,)),
    Route(
        "GET",
        "/crawls/{name}/api/records/{id}",
        "crawl_record",
        "The same as /api/records/{id}, asked by a crawl",
        {"200": "Record", "404": "text/plain"},
        (400, 401, 403, 414, 503),
    ),
    Route(
        "GET",
        "/crawls/{name}/cdx",
        "crawl_cdx",
        "The same as /cdx, asked by a crawl",
        {"200": "Lines"},
        (400, 401, 403, 404, 409, 414, 503),
    ),
    Route(
        "GET",
        "/crawls/{name}/web/timemap/cdx",
        "crawl_cdx_timemap",
        "The same as /cdx, asked by a crawl",
        {"200": "Lines"},
        (400, 401, 403, 404, 409, 414, 503),
    ),
    Route(
        "POST",
        "/api/records",
        "add_records",
        "Take records as originals",
        {"201": ""},
        (400, 401, 403, 413, 503),
        "Records",
    ),
    Route(
        "POST",
        "/api/records/",
        "add_records_slash",
        "Take records as originals",
        {"201": ""},
        (400, 401, 403, 413, 503),
        "Records",
    ),
    Route("GET", "/healthz", "healthz", "Whether the process lives", {"200": "Status"}),
    Route("GET", "/readyz", "readyz", "Whether the index can answer", {"200": "Status"}, (503,)),
    Route("GET", "/stats", "stats", "What the index holds", {"200": "Stats"}, (401, 403, 503)),
    Route("GET", "/metrics", "metrics", "Counts for Prometheus", {"200": "text/plain"}),
    Route("GET", "/openapi.json", "openapi", "This document", {"200": "object"}),
)


HOT = ("/lookup", "/cdx", "/cdx/hex", "/cdx/search", "/web/timemap/cdx")
"""What the layer in front of Flask answers, as far as it is a GET or a lookup."""

COUNTED = frozenset(("add_captures",))
"""Routes that count their requests themselves, since that layer answers them, too."""


def schema(name: str) -> dict[str, Any]:
    """A reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}
