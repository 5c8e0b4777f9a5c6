"""Fields of bodies and parameters of query strings; all checks raise `BadQuery`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl

import orjson
from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

from dedupindex.capture import Covers
from dedupindex.crawls.crawl import Visibility
from dedupindex.crawls.parse_report import NAMES
from dedupindex.crawls.statistics_keys import LONGEST
from dedupindex.errors import BadQuery
from dedupindex.lookup.conditions import check_crawl_name
from dedupindex.lookup.decide import Strategy
from dedupindex.lookup.params import PARAMETERS, Parameter
from dedupindex.lookup.policy import parse_policy
from server.config import MAX_QUERY
from server.responses import RequestError
from server.routes import Schema

PAGE = 1000  # rows, unless the request says otherwise
LIMIT = {"type": "integer", "minimum": 1, "maximum": 10_000, "default": PAGE}
TEXT = {"type": "string"}
BOOLEAN = {**TEXT, "enum": ["true", "false"]}
# The fields of the bodies that begin, count and end crawls.
BEGIN: dict[str, Schema] = {
    "name": TEXT,
    "seen_by": {**TEXT, "enum": [item.value for item in Visibility]},
    "digest_covers": {**TEXT, "enum": [item.name.lower() for item in Covers]},
    "strategy": PARAMETERS["strategy"].schema,
    "policy": {"type": "array", "items": {"$ref": "#/components/schemas/Rule"}},
    "namespace": TEXT,
}
SELF_REPORT: dict[str, Schema] = {
    **dict.fromkeys(NAMES, {"type": ["integer", "string"]}),
    "who": TEXT,
}
DROP: dict[str, Schema] = {"force": {"enum": [True, False, "true", "false"]}}
COMMIT: dict[str, Schema] = {"exit": TEXT, **SELF_REPORT}
CANCEL: dict[str, Schema] = {"exit": TEXT, **DROP, **SELF_REPORT}
_LONGEST_ACCEPT = 4096  # characters of Accept that are parsed; 200,000 take 30 ms
_DIGITS = 18  # of a count
_NUMBER = re.compile("-?[0-9]{1,12}")
_LARGEST = 10**12 - 1


def check_fields(given: Mapping[str, Any], known: Mapping[str, Schema]) -> None:
    """Refuse fields that are not in a table of schemas, and text that an enumeration lacks."""
    for name, value in given.items():
        if name not in known:
            raise BadQuery(f"there is no field {name[:64]!r}; there are {', '.join(known)}")
        values = known[name].get("enum", ()) if known[name].get("type") == "string" else ()
        if values and value is not None and value not in values:
            raise BadQuery(f"{name} takes one of {', '.join(values)}")


def text_field(given: Mapping[str, Any], name: str) -> str:
    """Return the text of a field, "" if it is not there."""
    value = given.get(name, "")
    if not isinstance(value, str):
        raise BadQuery(f"{name} must be a string")
    return value


def bool_field(given: Mapping[str, Any], name: str) -> bool:
    """Return whether a field is true; forms send it as text."""
    value = given.get(name, False)
    if value not in (True, False, "true", "false"):
        raise BadQuery(f"{name} is true or false")
    return value in (True, "true")


def self_report(given: Mapping[str, Any]) -> tuple[dict[str, int], str]:
    """Return the counts that a crawler reports of itself, and the name of the process that counts.

    Forms send the counts as text.
    """
    counts = {}
    for name in NAMES:
        text = str(given.get(name, "")) if type(given.get(name, "")) in (int, str) else "-"
        if text and not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
            raise BadQuery(f"{name} must be a whole number of at most {_DIGITS} digits")
        if text:
            counts[name] = int(text)
    who = text_field(given, "who")
    if len(who.encode("utf-8", "surrogatepass")) > LONGEST:
        raise BadQuery(f"who has at most {LONGEST} bytes")
    return counts, who


def crawl_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return strategy, policy and namespace of a new crawl, as far as they are given."""
    options: dict[str, Any] = {}
    if strategy := text_field(given, "strategy"):
        options["strategy"] = Strategy.parse(strategy[:64]).value
    if namespace := text_field(given, "namespace"):
        options["namespace"] = check_crawl_name(namespace, "namespace")
    rules = given.get("policy")
    if isinstance(rules, str) and rules:  # of a form
        try:
            rules = orjson.loads(rules)
        except orjson.JSONDecodeError as error:
            raise BadQuery(f"policy is not JSON: {error}") from error
    if rules is not None and rules != "":
        options["policy"] = parse_policy(rules)
    return options


def batch_items(given: dict[str, Any], most: int, option: str, advice: str = "") -> list[Any]:
    """Return the captures of a batch ``{"captures": [...]}``, or `given` as the only one.

    `option` is a field that may stand beside the list, and was taken out of `given`.
    """
    items = given.pop("captures", None)
    if items is None:
        return [given]
    if given or not isinstance(items, list):
        raise BadQuery(f'a batch is an object with a list "captures", and perhaps "{option}"')
    if len(items) > most:
        raise RequestError("too_large", f"at most {most} captures at once{advice}")
    return items


def query_string(environ: Mapping[str, Any]) -> str:
    """Return the query string; refuse it if it is not ASCII, as its bytes are then lost."""
    text: str = environ["QUERY_STRING"]
    if len(text) > MAX_QUERY:
        raise RequestError("uri_too_long", f"a query string has at most {MAX_QUERY} bytes")
    if not text.isascii():
        raise RequestError("bad_query", "percent-encode what is not ASCII in a query string")
    return text


def prefers_text(accept: str) -> bool:
    """Return whether a header Accept prefers header lines to JSON."""
    types = parse_accept_header(accept[:_LONGEST_ACCEPT], MIMEAccept)
    return types.quality("text/plain") > types.quality("application/json")


def schemas_of(parameters: Iterable[Parameter]) -> dict[str, dict[str, Any]]:
    """Return the schemas of the parameters of a lookup by name."""
    return {item.name: {**item.schema, "description": item.description} for item in parameters}


def read_parameters(environ: Mapping[str, Any], known: Mapping[str, Schema]) -> dict[str, Any]:
    """Return the parameters of a request by the names of a table of schemas.

    Bytes that are not UTF-8 become lone surrogates. Empty values count as not given, except that
    of `after`: the group of unknown values has an empty heading.
    """
    pairs = parse_qsl(query_string(environ), keep_blank_values=True, errors="surrogateescape")
    return check_parameters(pairs, known)


def check_parameters(
    pairs: Iterable[tuple[str, str]], known: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """Return parameters by name, each checked by its schema; see `read_parameters`."""
    given: dict[str, Any] = {}
    for name, value in pairs:
        schema = known.get(name)
        if schema is None:
            raise BadQuery(
                f"there is no parameter {name[:64]!r}; there are {', '.join(known)}; in values & "
                "is written %26"
            )
        if name in given:
            raise BadQuery(f"{name} is given twice; in values & is written %26")
        if value or name == "after":
            given[name] = _value(name, value, schema)
    return given


def _value(name: str, value: str, schema: Mapping[str, Any]) -> str | int:
    if "enum" in schema and value not in schema["enum"]:
        raise BadQuery(f"{name} takes one of {', '.join(schema['enum'])}")
    if "pattern" in schema and re.fullmatch(schema["pattern"], value) is None:
        raise BadQuery(f"{name} is not valid: {schema['description']}")
    if schema["type"] == "string":
        return value
    least, most = schema.get("minimum", -_LARGEST), schema.get("maximum", _LARGEST)
    number = int(value) if _NUMBER.fullmatch(value) else None
    if number is None or not least <= number <= most:
        raise BadQuery(f"{name} takes a number from {least} to {most}")
    return number
