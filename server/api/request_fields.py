"""The fields of a request about crawls, checked; all raise `BadQuery`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import orjson

from dedupindex.capture import Covers
from dedupindex.crawls.crawl import Seen
from dedupindex.crawls.statistics_keys import LONGEST
from dedupindex.crawls.told import NAMES
from dedupindex.errors import BadQuery
from dedupindex.lookup.conditions import check_crawl_name
from dedupindex.lookup.decide import Strategy
from dedupindex.lookup.policy import rules_of

TOLD = (*NAMES, "who")
_DIGITS = 18
_E = TypeVar("_E", Seen, Covers)


def only(given: Mapping[str, Any], *names: str) -> None:
    for name in given:
        if name not in names:
            raise BadQuery(
                f"there is no field {name[:64]!r}; there are {', '.join(names) or 'none'}"
            )


def text_of(given: Mapping[str, Any], name: str) -> str:
    """The text of a field, "" if it is not there; raises `BadQuery` if it is no text."""
    value = given.get(name, "")
    if not isinstance(value, str):
        raise BadQuery(f"{name} must be a string")
    return value


def flag(given: Mapping[str, Any], name: str) -> bool:
    """Whether a field says true; as text, too, for a form has no other."""
    value = given.get(name, False)
    if value not in (True, False, "true", "false"):
        raise BadQuery(f"{name} is true or false")
    return value in (True, "true")


def numbers(given: Mapping[str, Any]) -> dict[str, int]:
    """What a crawler tells of itself; numbers may come as text. Raises `BadQuery`."""
    found = {}
    for name in NAMES:
        text = str(given.get(name, "")) if type(given.get(name, "")) in (int, str) else "-"
        if text and not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
            raise BadQuery(f"{name} must be a whole number of at most {_DIGITS} digits")
        if text:
            found[name] = int(text)
    return found


def teller(given: Mapping[str, Any]) -> str:
    """Who counts: a name of its own among the processes of a crawl."""
    who = text_of(given, "who")
    if len(who.encode("utf-8", "surrogatepass")) > LONGEST:
        raise BadQuery(f"who has at most {LONGEST} bytes")
    return who


def one_of(given: Mapping[str, Any], name: str, values: Mapping[str, _E], default: _E) -> _E:
    value = given.get(name)
    if value is None:
        return default
    if not isinstance(value, str) or value not in values:
        raise BadQuery(f"{name} takes one of {', '.join(values)}")
    return values[value]


def stated(given: Mapping[str, Any]) -> dict[str, Any]:
    """Strategy, policy and namespace of a crawl, those that are stated."""
    stated: dict[str, Any] = {}
    if strategy := text_of(given, "strategy"):
        stated["strategy"] = Strategy.parse(strategy[:64]).value
    if namespace := text_of(given, "namespace"):
        stated["namespace"] = check_crawl_name(namespace, "namespace")
    rules = given.get("policy")
    if isinstance(rules, str) and rules:  # of a form
        try:
            rules = orjson.loads(rules)
        except orjson.JSONDecodeError as error:
            raise BadQuery(f"policy is not JSON: {error}") from error
    if rules is not None and rules != "":
        stated["policy"] = rules_of(rules)
    return stated
