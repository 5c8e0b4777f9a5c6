"""Checks of the fields of requests about crawls; all raise `BadQuery`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import orjson

from dedupindex.capture import Covers
from dedupindex.crawls.crawl import Visibility
from dedupindex.crawls.statistics_keys import LONGEST
from dedupindex.crawls.told import NAMES
from dedupindex.errors import BadQuery
from dedupindex.lookup.conditions import check_crawl_name
from dedupindex.lookup.decide import Strategy
from dedupindex.lookup.policy import rules_of

SELF_REPORT = (*NAMES, "who")
_DIGITS = 18
_E = TypeVar("_E", Visibility, Covers)


def check_names(given: Mapping[str, Any], *names: str) -> None:
    """Refuse fields of other names."""
    for name in given:
        if name not in names:
            raise BadQuery(
                f"there is no field {name[:64]!r}; there are {', '.join(names) or 'none'}"
            )


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


def self_counts(given: Mapping[str, Any]) -> dict[str, int]:
    """Return the counts that a crawler reports of itself; forms send them as text."""
    found = {}
    for name in NAMES:
        text = str(given.get(name, "")) if type(given.get(name, "")) in (int, str) else "-"
        if text and not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
            raise BadQuery(f"{name} must be a whole number of at most {_DIGITS} digits")
        if text:
            found[name] = int(text)
    return found


def counter_name(given: Mapping[str, Any]) -> str:
    """Return the name of the process of a crawl that counts."""
    who = text_field(given, "who")
    if len(who.encode("utf-8", "surrogatepass")) > LONGEST:
        raise BadQuery(f"who has at most {LONGEST} bytes")
    return who


def choice_field(given: Mapping[str, Any], name: str, values: Mapping[str, _E], default: _E) -> _E:
    """Return the value that a field names."""
    value = given.get(name)
    if value is None:
        return default
    if not isinstance(value, str) or value not in values:
        raise BadQuery(f"{name} takes one of {', '.join(values)}")
    return values[value]


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
        options["policy"] = rules_of(rules)
    return options
