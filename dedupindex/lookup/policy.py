"""Policies: what may become a revisit of what, by crawl, host, media type and URL.

A policy is an ordered list of rules. The first rule whose conditions all match decides; a rule
without conditions matches everything, and one that says nothing lets everything pass:

    {"host": ".example.org", "mime": "image/*", "url": "https?://[^?]*"}     conditions
    {"never": true}                    stored in full, whatever the index holds
    {"min_size": 1000}                 payloads that are smaller, or of unknown size, are stored
    {"max_age": "30d"}                 and so is what has no original that young
    {"blackout": "10m"}                nothing is written at all so soon after the same URL
    {"originals_from": ["weekly-*"]}   only captures of these crawls are originals
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from fnmatch import translate
from pathlib import Path
from typing import Any, NamedTuple

from dedupindex.cache import MEGABYTE, Cache
from dedupindex.capture import Capture
from dedupindex.errors import BadInput
from dedupindex.lookup.conditions import parse_age
from dedupindex.runtime.safe_regex import LONGEST_MATCHED, MEMORY, Pattern, of_request
from dedupindex.timestamps import seconds
from dedupindex.urlkey import host_of

MOST = 100  # rules of a policy
MOST_TEXT = 50_000  # characters of a policy: a server holds those of all crawls in memory
MOST_STEPS = 100_000_000  # of all its expressions, for one URL; see `patterns`
_LONGEST = 300  # characters of a host, a pattern or a name
_SIZES = range(10**18)


@dataclass(frozen=True)
class PolicyRule:
    """One rule. Ages are seconds, sizes bytes; empty, None and 0 stand for "does not say"."""

    host: str = ""  # with a dot before it: and all hosts below
    mime: str = ""  # a pattern, as of a shell
    url: str = ""  # a regular expression for the whole URL
    never: bool = False
    min_size: int = 0
    max_age: int | None = None
    blackout: int = 0
    originals_from: tuple[str, ...] = ()  # patterns of crawls' names; empty: any

    def concerns(self, host: str, url: str) -> bool:
        """Whether host and URL meet the conditions. What is too long to be compared does not."""
        below = self.host.startswith(".") and host.endswith(self.host)
        if self.host and host != self.host.removeprefix(".") and not below:
            return False
        if not self.url:
            return True
        return 0 < len(url) <= LONGEST_MATCHED and _expression(self.url).matches(url)

    def is_of(self, mime: str) -> bool:
        """Whether a media type meets the condition; one that is not known meets none."""
        return not self.mime or (bool(mime) and _fits(mime, self.mime))

    def refusing(self) -> str:
        """The first word of the rule for which it may refuse a capture, "" if it never does."""
        said = {
            "never": self.never,
            "min_size": self.min_size > 0,
            "max_age": self.max_age is not None,
            "originals_from": bool(self.originals_from),
        }
        return next((word for word, says in said.items() if says), "")

    def as_json(self) -> dict[str, Any]:
        """What the rule says; `rules_of` reads it."""
        said = ((name, getattr(self, name)) for name in _DEFAULTS)
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in said
            if value != _DEFAULTS[name]
        }


_DEFAULTS = {one.name: one.default for one in fields(PolicyRule)}
_expressions = Cache[str, Pattern](16 * MEGABYTE)
_patterns = Cache[str, Callable[[str], Any]](2 * MEGABYTE)


def _expression(text: str) -> Pattern:
    return _expressions.get(text) or _expressions.keep(text, of_request(text), MEMORY)


def _fits(text: str, pattern: str) -> bool:
    """As `fnmatch.fnmatchcase`, which remembers 32,768 patterns, however long."""
    match = _patterns.get(pattern)
    if match is None:
        size = 1000 + 40 * len(pattern)  # bytes, about
        match = _patterns.keep(pattern, re.compile(translate(pattern)).match, size)
    return match(text) is not None


class Objection(NamedTuple):
    """Why a policy does not let a capture answer."""

    kind: str  # the word of the rule: never, min_size, max_age or originals_from
    verdict: str


class Policy(NamedTuple):
    """Rules in order."""

    rules: tuple[PolicyRule, ...] = ()

    def narrowing(self) -> bool:
        """Whether of captures with one payload it may refuse some and take others."""
        return any(rule.max_age is not None or rule.originals_from for rule in self.rules)

    def applied(self, url: bytes, mime: bytes) -> Applied:
        """What it says of a URL, and of a media type if that is known."""
        host = host_of(url).decode("utf-8", "surrogateescape") if url else ""
        text = url.decode("utf-8", "surrogateescape")
        return Applied([rule for rule in self.rules if rule.concerns(host, text)], mime)


NO_POLICY = Policy()


class Applied:
    """The rules that a URL meets; the media type that is asked with, or else the original's."""

    def __init__(self, rules: list[PolicyRule], mime: bytes) -> None:
        self._rules, self._mime = rules, mime.decode("utf-8", "replace")

    def never(self) -> bool:
        """Whether nothing may answer, whatever the index holds."""
        for rule in self._rules:
            if not rule.mime or self._mime:
                if rule.is_of(self._mime):
                    return rule.never
            elif not rule.never:
                return False  # it depends on the original's media type
        return False

    def wary(self) -> str:
        """The word with which it may refuse what is stored only now, "" if it lets all pass."""
        for rule in self._rules:
            if rule.is_of(self._mime) or not self._mime:
                if word := rule.refusing():
                    return word
                if self._mime or not rule.mime:
                    break  # no rule below is asked
        return ""

    def _rule(self, capture: Capture) -> PolicyRule | None:
        mime = self._mime or capture.mime.decode("utf-8", "replace")
        return next((rule for rule in self._rules if rule.is_of(mime)), None)

    def refuses(self, capture: Capture, now: int) -> Objection | None:
        """Why a capture may not answer at a time in seconds; None if it may."""
        rule = self._rule(capture)
        if rule is None:
            return None
        if rule.never:
            return Objection("never", "a policy says never")
        if rule.min_size and (capture.size_of_record or capture.size < rule.min_size):
            return Objection("min_size", f"a policy's min_size is {rule.min_size}")
        if rule.max_age is not None and now - seconds(capture.date) > rule.max_age:
            return Objection("max_age", f"a policy's max_age is {rule.max_age} s")
        if rule.originals_from and not any(
            _fits(capture.crawl, name) for name in rule.originals_from
        ):
            names = ", ".join(rule.originals_from)
            return Objection("originals_from", f"a policy wants originals from {names}")
        return None

    def skips(self, capture: Capture, now: int) -> bool:
        """Whether nothing is to be written so soon after a capture of the same URL."""
        rule = self._rule(capture)
        return rule is not None and abs(now - seconds(capture.date)) <= rule.blackout > 0


def rules_of(given: Any) -> Policy:
    """The policy of a list of rules as JSON or TOML has them; raises `BadInput`."""
    if not isinstance(given, list) or len(given) > MOST:
        raise BadInput(f"a policy is a list of at most {MOST} rules")
    rules = tuple(_rule_of(number, rule) for number, rule in enumerate(given, 1))
    if sum(map(_length, rules)) > MOST_TEXT:
        raise BadInput(f"the texts of a policy have at most {MOST_TEXT:,} characters together")
    expressions = [_expression(rule.url) for rule in rules if rule.url]
    if sum(one.steps(LONGEST_MATCHED) for one in expressions) > MOST_STEPS:
        raise BadInput(
            "the rules of a policy take too long with their urls: use fewer or smaller {}, "
            "or fewer rules"
        )
    return Policy(rules)


def restored(given: Iterable[Mapping[str, Any]]) -> Policy:
    """The policy that `PolicyRule.as_json` wrote of its rules; they are not checked again."""
    rules = []
    for rule in given:
        said: dict[str, Any] = dict(rule)
        if "originals_from" in said:
            said["originals_from"] = tuple(said["originals_from"])
        rules.append(PolicyRule(**said))
    return Policy(tuple(rules))


def _length(rule: PolicyRule) -> int:
    return len(rule.host) + len(rule.mime) + len(rule.url) + sum(map(len, rule.originals_from))


def _rule_of(number: int, given: Any) -> PolicyRule:
    try:
        if not isinstance(given, dict):
            raise BadInput("it is no object")
        for name in given:
            if name not in _READ:
                raise BadInput(f"there is no {str(name)[:64]!r}; there are {', '.join(_READ)}")
        rule = PolicyRule(**{name: _READ[name](value) for name, value in given.items()})
        if rule.never and len(given.keys() - {"host", "mime", "url"}) > 1:
            raise BadInput("never says it all: give nothing else but conditions")
        return rule
    except BadInput as error:
        raise BadInput(f"rule {number} of the policy: {error}") from error


def _text(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST:
        raise BadInput(f"a condition is a text of 1 to {_LONGEST} characters")
    return value


def _url(value: Any) -> str:
    _expression(_text(value))
    return str(value)


def _never(value: Any) -> bool:
    if value is not True:
        raise BadInput("never takes true")
    return True


def _size(value: Any) -> int:
    if type(value) is not int or value not in _SIZES:
        raise BadInput("min_size takes a number of bytes")
    return int(value)


def _age(value: Any) -> int:
    if type(value) not in (int, str):
        raise BadInput(_AGE)
    try:
        return parse_age(str(value))
    except BadInput:
        raise BadInput(_AGE) from None


_AGE = "max_age and blackout take a number of seconds, or 15m, 12h, 30d, 2y"


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not 0 < len(value) <= MOST:
        raise BadInput(f"originals_from takes a list of 1 to {MOST} names of crawls")
    return tuple(_text(name) for name in value)


_READ: Mapping[str, Callable[[Any], Any]] = {
    "host": lambda value: _text(value).lower().removesuffix("."),
    "mime": lambda value: _text(value).lower(),
    "url": _url,
    "never": _never,
    "min_size": _size,
    "max_age": _age,
    "blackout": _age,
    "originals_from": _names,
}


def read_policy(path: Path) -> Policy:
    """The policy of a file: TOML with [[rules]] or JSON with "rules"; raises `BadInput`."""
    try:
        text = path.read_text()
        content = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise BadInput(f"policy {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadInput(f"policy {path} is neither TOML nor JSON: {error}") from error
    if not isinstance(content, dict) or content.keys() != {"rules"}:
        raise BadInput(f"policy {path} holds nothing but a list of rules")
    return rules_of(content["rules"])
