"""The schemas of the OpenAPI document, made from the tables that parse requests."""

from __future__ import annotations

from typing import Any

from dedupindex.capture import Covers
from dedupindex.crawls.claims import LONGEST
from dedupindex.crawls.crawl import Seen, State
from dedupindex.crawls.parse_report import COVERS, NUMBERS, TEXTS
from dedupindex.crawls.statistics import BY
from dedupindex.crawls.statistics_keys import Row
from dedupindex.crawls.told import NAMES
from dedupindex.digest import CUT_DIGEST
from dedupindex.lookup.params import PARAMETERS
from dedupindex.lookup.policy import MOST
from server.api.queries import described
from server.responses import ERRORS

_TEXT = {"type": "string"}
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


def schema(name: str) -> dict[str, Any]:
    """Return a reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def _object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


def _lookup(*, digest_required: bool) -> dict[str, Any]:
    required = {"required": ["digest"]} if digest_required else {}
    return _object(described(PARAMETERS.values()), additionalProperties=False, **required)


def schemas() -> dict[str, Any]:
    batch = _lookup(digest_required=False)
    batch["properties"]["lookups"] = {"type": "array", "items": schema("Lookup")}
    return {
        "Lookup": _lookup(digest_required=True),
        "Batch": {**batch, "required": ["lookups"]},
        "Original": _object(
            {
                **_ORIGINAL,
                "url_base64": {"type": "string", "description": "if not UTF-8"},
                "committed": {"const": False, "description": "of a crawl that goes on"},
            },
            required=list(_ORIGINAL),
        ),
        "Answer": _object(
            {
                "duplicate": {"type": "boolean"},
                "match": {"type": "string", "enum": ["exact_url", "canonical_url", "digest"]},
                "original": schema("Original"),
                "reason": {"type": "string", "enum": ["unknown_algorithm", CUT_DIGEST]},
                "policy": {"type": "string", "description": "whose word refused all originals"},
                "in_batch": {"type": "integer", "description": "the lookup with it first"},
                "skip": {"const": True, "description": "a policy wants nothing written at all"},
                "considered": {"type": "array", "items": {"type": "object"}},
                "more": {"const": True, "description": "more was considered than is shown"},
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
        **_errors(),
        "Status": _object({"status": {"type": "string"}}, required=["status"]),
        "Stats": _object(
            {name: {"type": "integer"} for name in ("captures", "digests", "containers")},
            required=["captures", "digests", "containers"],
        ),
        "object": {"type": "object"},
        **_of_crawls(),
        **_of_purging(),
    }


def _errors() -> dict[str, Any]:
    return {
        "Error": _object(
            {
                "error": _object(
                    {
                        "code": {"type": "string", "enum": list(ERRORS)},
                        "message": {"type": "string"},
                        "line": {"type": "integer", "description": "of JSON lines, from 1"},
                    },
                    required=["code", "message"],
                )
            },
            required=["error"],
        ),
    }


def _capture() -> dict[str, Any]:
    fields = {name: _TEXT for name in TEXTS} | {
        name: {"type": ["integer", "string"]} for name in NUMBERS
    }
    return _object(
        {
            "digest": {"type": "string"},
            "url": {"type": "string"},
            "url_base64": {"type": "string"},
            "date": {"type": "string", "description": "WARC-Date"},
            "also": {"type": "array", "items": _TEXT},
            "covers": {"type": "string", "enum": list(COVERS)},
            **fields,
        },
        required=["digest", "date"],
        additionalProperties=False,
    )


def _rule() -> dict[str, Any]:
    text = {"type": "string", "minLength": 1, "maxLength": 300}
    age = {**PARAMETERS["max_age"].schema, "description": "seconds, or as 15m, 12h, 30d"}
    return _object(
        {
            "host": {**text, "description": "with a dot before it: and all hosts below"},
            "mime": {**text, "description": "a pattern, as image/*"},
            "url": {**text, "description": "a regular expression for the whole URL"},
            "never": {"const": True},
            "min_size": PARAMETERS["min_size"].schema,
            "max_age": age,
            "blackout": age,
            "originals_from": {"type": "array", "items": text, "minItems": 1, "maxItems": MOST},
        },
        additionalProperties=False,
    )


def _crawl(seen: dict[str, Any], covers: dict[str, Any]) -> dict[str, Any]:
    """What is shown of a crawl."""
    return {
        "name": {"type": "string"},
        "state": {"type": "string", "enum": [one.value for one in State]},
        "seen_by": seen,
        "digest_covers": covers,
        "strategy": {"type": ["string", "null"]},
        "policy": {"type": "array", "items": schema("Rule")},
        "namespace": _NULLABLE,
        "begun": {"type": "string"},
        "ended": _NULLABLE,
        "exit": _NULLABLE,
        "merged": {"type": "boolean"},
        "captures": {"type": "integer"},
        "bytes": {"type": "integer"},
        "lookups": {"type": "integer"},
        "duplicates": {"type": "integer"},
        "duplicate_bytes": {"type": "integer"},
        "errors": {"type": "integer"},
        "answered_others": {"type": "integer"},
        "not_looked_up": _NUMBER,
        "not_reported": _NUMBER,
        "first_lookup": _NULLABLE,
        "last_lookup": _NULLABLE,
        "warning": _NULLABLE,
    }


def _report() -> dict[str, Any]:
    """A crawl's report, with its groups if it was asked for some."""
    figures = {name: {"type": "integer"} for name in Row._fields}
    group = _object(figures, required=list(figures))
    return _object(
        {
            "crawl": _TEXT,
            **figures,
            "by": {"type": "string", "enum": list(BY)},
            "groups": {"type": "array", "items": group},
            "next": _NULLABLE,
        },
        required=["crawl", *figures, "next"],
    )


def _claims() -> dict[str, Any]:
    token = {"type": "string", "pattern": "^([0-9A-Fa-f]{32})?$"}
    lease = {"type": "integer", "minimum": 1, "maximum": LONGEST}
    claim = {**_lookup(digest_required=True)["properties"], "lease": lease, "token": token}
    one = _object(claim, required=["crawl", "digest"], additionalProperties=False)
    each = _object({n: claim[n] for n in claim if n != "crawl"}, required=["digest"])
    many = {"crawl": _TEXT, "lease": lease, "claims": {"type": "array", "items": each}}
    told = _object({"duplicate": {"type": "boolean"}}, required=["duplicate"])
    answers = {"type": "array", "items": {"anyOf": [told, schema("Error")]}}
    return {
        "Claim": {"anyOf": [one, _object(many, required=["crawl", "claims"])]},
        "Claimed": {"anyOf": [told, _object({"answers": answers}, required=["answers"])]},
    }


_AMOUNTS = (
    *("originals", "same_url", "other_url", "nowhere"),
    *("copies", "dependents", "broken"),
)


def _of_crawls() -> dict[str, Any]:
    seen = {"type": "string", "enum": [one.value for one in Seen]}
    covers = {"type": "string", "enum": [one.name.lower() for one in Covers]}
    crawl = _crawl(seen, covers)
    flag = {"enum": [True, False, "true", "false"]}
    told = {name: {"type": ["integer", "string"]} for name in NAMES} | {"who": _TEXT}
    record = {"id": _TEXT, "uri": _TEXT, "date": {"type": "integer", "description": "14 digits"}}
    return {
        "Begin": _object(
            {
                "name": _TEXT,
                "seen_by": seen,
                "digest_covers": covers,
                "strategy": PARAMETERS["strategy"].schema,
                "policy": {"type": "array", "items": schema("Rule"), "maxItems": MOST},
                "namespace": _TEXT,
            },
            required=["name"],
        ),
        "Rule": _rule(),
        "End": _object({"exit": _TEXT, **told}),
        "Cancel": _object({"exit": _TEXT, "force": flag, **told}),
        "Drop": _object({"force": flag}),
        "Told": _object(told),
        "CrawlReport": _report(),
        "Crawl": _object(crawl, required=list(crawl)),
        "Crawls": _object(
            {"crawls": {"type": "array", "items": schema("Crawl")}, "next": _NULLABLE},
            required=["crawls", "next"],
        ),
        "Capture": _capture(),
        "Captures": _object(
            {"crawl": _TEXT, "captures": {"type": "array", "items": schema("Capture")}}
        ),
        "Reported": _object(
            {
                **{name: {"type": "integer"} for name in ("added", "unchanged", "bad")},
                "refused": _object({}, additionalProperties={"type": "integer"}),
                "results": {"type": "array"},
                "in_batch": {"type": "array", "description": "pairs: a result, and the first"},
            }
        ),
        **_claims(),
        "Release": _object({"digest": _TEXT, "token": _TEXT}, required=["digest", "token"]),
        "Record": _object(record, required=list(record)),
        "Records": {"type": "array", "items": _object(record, required=list(record))},
        "Released": _object({"released": {"type": "boolean"}}, required=["released"]),
    }


def _of_purging() -> dict[str, Any]:
    deletion = {name: _TEXT for name in ("digest", "url", "date")}
    amount = {"captures": {"type": "integer"}, "bytes": {"type": "integer"}}
    return {
        "Deletions": _object(
            {
                "captures": {"type": "array", "items": _object(deletion)},
                "force": {"type": "boolean"},
                **deletion,
            },
            additionalProperties=False,
        ),
        "Impact": _object(
            {
                "found": {"type": "integer"},
                "not_found": {"type": "array"},
                "live": {"type": "integer"},
                **dict.fromkeys(
                    ("by_container", "by_crawl", "unread", "listed"), {"type": "array"}
                ),
                **dict.fromkeys(_AMOUNTS, _object(amount, required=list(amount))),
            },
            required=["found", "not_found", *_AMOUNTS],
        ),
    }
