"""The OpenAPI document, made from the routes, the table of errors and that of each request."""

from __future__ import annotations

import re
from typing import Any

from dedupindex import __version__
from dedupindex.crawls.crawl import CrawlState
from dedupindex.crawls.crawl_captures import LONGEST
from dedupindex.crawls.parse_report import COVERS, NAMES, NUMBERS, REVISITS, TEXTS
from dedupindex.crawls.statistics import BY
from dedupindex.crawls.statistics_keys import StatisticsRow
from dedupindex.digest import CUT_DIGEST
from dedupindex.lookup.params import LAST_PARAMETERS, PARAMETERS
from dedupindex.lookup.policy import MAX_RULES, PREFERENCES
from dedupindex.lookup.savings import SIZES
from server.api.request_fields import BEGIN, CANCEL, COMMIT, DROP, SELF_REPORT, schemas_of
from server.request_checks import FREE
from server.responses import ERRORS
from server.routes import ROUTES, Content, Route, Schema

_TEXT = {"type": "string"}
_TEXT_OR_NULL = {"type": ["string", "null"]}
_INTEGER = {"type": "integer"}
_INTEGER_OR_NULL = {"type": ["integer", "null"]}
_NUMBER = {"type": "number"}
_NUMBER_OR_NULL = {"type": ["number", "null"]}
_INTEGER_OR_TEXT = {"type": ["integer", "string"]}
_BOOLEAN = {"type": "boolean"}
_LIST = {"type": "array"}
_DESCRIPTIONS = {200: "the answer", 201: "taken", 204: "no original"}
_DESCRIPTIONS |= {304: "not changed", 404: "the answer"}


def _content(content: Content) -> dict[str, Any]:
    """Return what a body may be, by media type."""
    found: dict[str, Any] = {}
    for item in content:
        if isinstance(item, str) and "/" in item:
            found[item] = {"schema": _TEXT}
        else:
            named = _schema(item) if isinstance(item, str) else item
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
        found.append({"name": name, "in": "path", "required": True, "schema": _TEXT})
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
        "components": {"schemas": _schemas()},
    }


# The schemas that routes name.


def _schema(name: str) -> Schema:
    """Return a reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def _schemas() -> dict[str, Schema]:
    lookups = {**_lookups(), **_last_captures()}
    more = {**_captures(), **_claims(), **_deletions(), **_index_reports()}
    return {**lookups, **_crawls(), **more, **_rest()}


def _object(properties: Schema, required: Any = (), *, closed: bool = False) -> Schema:
    found: Schema = {"type": "object", "properties": properties}
    if required:
        found["required"] = list(required)
    return {**found, "additionalProperties": False} if closed else found


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _enum(values: Any) -> Schema:
    return {"type": "string", "enum": list(values)}


def _lookups() -> dict[str, Schema]:
    lookup = schemas_of(PARAMETERS.values())
    original = {
        "url": _TEXT,
        "date": {**_TEXT, "description": "WARC-Date, to the letter"},
        "record_id": _TEXT_OR_NULL,
        "digest": {**_TEXT, "description": "as its record spells it"},
        "size": {**_INTEGER_OR_NULL, "description": "bytes of payload"},
        "record_size": {**_INTEGER_OR_NULL, "description": "bytes of the compressed record"},
        "mime": _TEXT_OR_NULL,
        "status": _INTEGER_OR_NULL,
        "container": _TEXT_OR_NULL,
        "offset": _INTEGER_OR_NULL,
        "evidence": _enum(("record", "row", "revisit")),
    }
    more = {
        "etag": {**_TEXT, "description": "as it was stated, if it is kept"},
        "last_modified": _TEXT,
        "url_base64": {**_TEXT, "description": "if not UTF-8"},
        "committed": {"const": False, "description": "of a crawl that is open"},
    }
    answer = {
        "duplicate": _BOOLEAN,
        "match": _enum(("exact_url", "canonical_url", "digest")),
        "original": _schema("Original"),
        "reason": _enum(("unknown_algorithm", CUT_DIGEST)),
        "policy": {**_TEXT, "description": "the policy that refused all originals"},
        "in_batch": {**_INTEGER, "description": "the first lookup of the same payload"},
        "skip": {"const": True, "description": "by policy, write nothing at all"},
        "considered": _list({"type": "object"}),
        "more": {"const": True, "description": "more captures were considered than are listed"},
    }
    answers = _list({"anyOf": [_schema("Answer"), _schema("Error")]})
    return {
        "Lookup": _object(lookup, ["digest"], closed=True),
        "Batch": _object({**lookup, "lookups": _list(_schema("Lookup"))}, ["lookups"], closed=True),
        "Original": _object(original | more, original),
        "Answer": _object(answer, ["duplicate"]),
        "Answers": _object({"answers": answers}, ["answers"]),
    }


def _last_captures() -> dict[str, Schema]:
    last = {
        **dict.fromkeys(("url", "url_base64", "date", "digest"), _TEXT),
        "known": _BOOLEAN,
        "status": _INTEGER_OR_NULL,
        "revisit": {**_BOOLEAN, "description": "its payload was not stored again"},
        "etag": _TEXT_OR_NULL,
        "last_modified": _TEXT_OR_NULL,
        "original": {"anyOf": [_schema("Original"), {"type": "null"}]},
        "conditions": {
            **_object({}),
            "additionalProperties": _TEXT,
            "description": "header fields for the request; without any, fetch it in full",
        },
    }
    asked = schemas_of(LAST_PARAMETERS.values())
    batch = {**asked, "lookups": _list(_object(asked, closed=True))}
    answers = _list({"anyOf": [_schema("LastCapture"), _schema("Error")]})
    return {
        "LastCapture": _object(last, ["known"]),
        "LastCaptures": _object({"answers": answers}, ["answers"]),
        "LastBatch": _object(batch, ["lookups"], closed=True),
    }


def _rule() -> Schema:
    text = {**_TEXT, "minLength": 1, "maxLength": 300}
    age = {**PARAMETERS["max_age"].schema, "description": "seconds, or as 15m, 12h, 30d"}
    rule = {
        "host": {**text, "description": "with a dot before it: and all hosts below"},
        "mime": {**text, "description": "a pattern, as image/*"},
        "url": {**text, "description": "a regular expression for the whole URL"},
        "original_host": {**text, "description": "as host, of the original"},
        "original_prefix": {**text, "description": "with which the URL of the original begins"},
        "never": {"const": True},
        "min_size": PARAMETERS["min_size"].schema,
        "max_age": age,
        "blackout": age,
        "originals_from": {**_list(text), "minItems": 1, "maxItems": MAX_RULES},
        "distrust_validators": {"const": True},
        "embargo": {**_TEXT, "description": "a WARC-Date, or 14 digits"},
        "prefer": _enum(PREFERENCES),
    }
    return _object(rule, closed=True)


_UNKNOWN = {"unreported": _INTEGER, "not_looked_up_nor_reported": _INTEGER_OR_NULL}


def _crawls() -> dict[str, Schema]:
    crawl = {
        **{name: BEGIN[name] for name in ("name", "seen_by", "digest_covers", "policy")},
        "state": _enum(item.value for item in CrawlState),
        "begun": _TEXT,
        **dict.fromkeys(("merged", "deleted"), _BOOLEAN),
        **dict.fromkeys(("captures", "lookups", "duplicates", "errors"), _INTEGER),
        **dict.fromkeys(("bytes", "duplicate_bytes"), _INTEGER_OR_NULL),
        "answered_others": _INTEGER,
        **_UNKNOWN,
        "refused": {**_object({}), "additionalProperties": _INTEGER},
        "duplicate_bytes_percent": _NUMBER_OR_NULL,
        **dict.fromkeys(NAMES, _INTEGER_OR_NULL),
        **dict.fromkeys(("strategy", "namespace", "ended", "exit", "warning"), _TEXT_OR_NULL),
        **dict.fromkeys(("first_lookup", "last_lookup"), _TEXT_OR_NULL),
    }
    begin = {**BEGIN, "policy": {**BEGIN["policy"], "maxItems": MAX_RULES}}
    names = (*StatisticsRow._fields, "duplicates", "duplicate_bytes", "new", "new_bytes")
    sums: Schema = {
        name: _INTEGER_OR_NULL if name.endswith("_bytes") else _INTEGER
        for name in (*names, "handled_bytes")
    }
    shares = ("duplicate_bytes_percent", "duplicate_stated_bytes_percent")
    sums |= {"duplicates_percent": _NUMBER, **dict.fromkeys(shares, _NUMBER_OR_NULL)}
    times = ("average_lookup_ms", "p99_lookup_ms", "last_lookup_ms")
    report = {
        **sums,
        **dict.fromkeys(times, _NUMBER),
        "sizes": _object(dict.fromkeys(SIZES, _INTEGER), SIZES),
        "index": _object({}),
        "crawl": _TEXT,
        **_UNKNOWN,
        "by": _enum(BY),
        "groups": _list(_object(sums, sums)),
        "next": _TEXT_OR_NULL,
    }
    crawls = {"crawls": _list(_schema("Crawl")), "next": _TEXT_OR_NULL}
    return {
        "Rule": _rule(),
        "Begin": _object(begin, ["name"]),
        "End": _object(COMMIT),
        "Cancel": _object(CANCEL),
        "Drop": _object(DROP),
        "SelfReport": _object(SELF_REPORT),
        "Crawl": _object(crawl, crawl),
        "Crawls": _object(crawls, crawls),
        "CrawlReport": _object(
            report, ["crawl", *sums, *times, "sizes", "index", "next", *_UNKNOWN]
        ),
    }


def _captures() -> dict[str, Schema]:
    capture = {
        **dict.fromkeys(("digest", "url", "url_base64", *TEXTS), _TEXT),
        **dict.fromkeys(NUMBERS, _INTEGER_OR_TEXT),
        "date": {**_TEXT, "description": "WARC-Date"},
        "also": _list(_TEXT),
        "covers": _enum(COVERS),
        "revisit": _enum(REVISITS),
    }
    reported = {
        **dict.fromkeys(("added", "unchanged", "revisits", "bad"), _INTEGER),
        "refused": {**_object({}), "additionalProperties": _INTEGER},
        "results": _LIST,
        "in_batch": {**_LIST, "description": "pairs: a result, and the first of its payload"},
    }
    date = {**_INTEGER, "description": "14 digits"}
    record = {"id": _TEXT, "uri": _TEXT, "date": date}
    return {
        "Capture": _object(capture, ["digest", "date"], closed=True),
        "Captures": _object({"crawl": _TEXT, "captures": _list(_schema("Capture"))}),
        "Reported": _object(reported),
        "Record": _object(record, record),
        "Records": _list(_object(record, record)),
    }


def _claims() -> dict[str, Schema]:
    lease = {**_INTEGER, "minimum": 1, "maximum": LONGEST}
    token = {**_TEXT, "pattern": "^([0-9A-Fa-f]{32})?$"}
    claim = {**schemas_of(PARAMETERS.values()), "lease": lease, "token": token}
    one = _object(claim, ["crawl", "digest"], closed=True)
    each = _object({name: claim[name] for name in claim if name != "crawl"}, ["digest"])
    many = {"crawl": _TEXT, "lease": lease, "claims": _list(each)}
    answer = _object({"duplicate": _BOOLEAN}, ["duplicate"])
    answers = {"answers": _list({"anyOf": [answer, _schema("Error")]})}
    return {
        "Claim": {"anyOf": [one, _object(many, ["crawl", "claims"])]},
        "Claimed": {"anyOf": [answer, _object(answers, answers)]},
        "Release": _object({"digest": _TEXT, "token": _TEXT}, ["digest", "token"]),
        "Released": _object({"released": _BOOLEAN}, ["released"]),
    }


def _deletions() -> dict[str, Schema]:
    deletion = dict.fromkeys(("digest", "url", "date"), _TEXT)
    deletions = {"captures": _list(_object(deletion)), "force": _BOOLEAN, **deletion}
    amount = {"captures": _INTEGER, "bytes": _INTEGER_OR_NULL, "unsized": _INTEGER}
    where = ("same_url", "other_url", "nowhere")
    amounts = ("originals", *where, "copies", "revisits", "dependents", "broken", "by_digest")
    lists = ("not_found", "by_container", "by_crawl", "open_crawls", "unread", "outdated", "listed")
    impact = {
        **dict.fromkeys(("found", "unmerged"), _INTEGER),
        "fingerprint": _TEXT,
        **dict.fromkeys(lists, _LIST),
        **dict.fromkeys(amounts, _object(amount, amount)),
    }
    return {
        "Deletions": _object(deletions, closed=True),
        "Impact": _object(impact, ["found", "not_found", *amounts]),
    }


def _index_reports() -> dict[str, Schema]:
    numbers = {**_object({}), "additionalProperties": _NUMBER_OR_NULL}
    flags = dict.fromkeys(("is_current", "is_running"), _BOOLEAN)
    rows = {"rows": _list(_object({})), "total": {}, "others": {}, "groups": {}, "made": {}}
    compared = {"first": _TEXT, "second": _TEXT, "total": numbers, "hosts": _INTEGER}
    lists = {"rows": _list(_object({})), "others": {}}
    lists |= dict.fromkeys(("warnings", "remarks"), _list(_TEXT))
    return {
        "Summary": _object({**flags, "by": _TEXT, **rows}, [*flags, "by", *rows]),
        "Comparison": _object({**compared, **lists}, [*compared, *lists]),
    }


def _rest() -> dict[str, Schema]:
    line = {**_INTEGER, "description": "of JSON lines, from 1"}
    error = {"code": _enum(ERRORS), "message": _TEXT, "line": line}
    part = {"id": _TEXT, **dict.fromkeys(("bytes", "digests", "generation"), _INTEGER)}
    parts = {"version": _INTEGER, "parts": _list(_object(part, part)), "digests": _INTEGER}
    stats = dict.fromkeys(("captures", "digests", "containers"), _INTEGER)
    return {
        "Error": _object({"error": _object(error, ["code", "message"])}, ["error"]),
        "Status": _object({"status": _TEXT}, ["status"]),
        "Stats": _object(stats, stats),
        "DigestFilter": _object(parts, parts),
        "object": {"type": "object"},
    }
