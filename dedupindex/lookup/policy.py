"""Policies: which captures may become revisits of which originals.

A policy is an ordered list of rules. The first rule whose conditions all match decides. A rule
without conditions matches everything; one without restrictions allows everything:

    {"host": ".example.org", "mime": "image/*", "url": "https?://[^?]*"}     conditions
    {"original_host": ".example.org", "original_prefix": "http://a.example/b"}   of the original
    {"never": true}                    store in full, whatever the index holds
    {"min_size": 1000}                 store payloads that are smaller or of unknown size
    {"max_age": "30d"}                 store payloads whose originals are all older
    {"blackout": "10m"}                write nothing if the same URL was stored so recently
    {"originals_from": ["weekly-*"]}   only captures of these crawls are originals
    {"distrust_validators": true}      fetch in full: ETag and Last-Modified say nothing
    {"embargo": "2030-01-01"}          store payloads until then
    {"prefer": "same_host"}            which of several originals answers
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
from dedupindex.lookup.conditions import LONGEST_AGE, parse_age, parse_date
from dedupindex.runtime.safe_regex import LONGEST_MATCHED, MEMORY, Pattern, of_request
from dedupindex.timestamps import seconds
from dedupindex.urlkey import host_of

MAX_RULES = 100
_MAX_POLICY_LENGTH = 50_000  # characters: a server holds the policies of all crawls in memory
_MAX_STEPS = 100_000_000  # of all regular expressions, for one URL; see `safe_regex`
_MAX_TEXT = 300  # characters of a host, a pattern or a name


@dataclass(frozen=True)
class PolicyRule:
    """One rule. Ages are in seconds, sizes in bytes; empty, None and 0 mean "not given"."""

    host: str = ""  # with a leading dot, its subdomains too
    mime: str = ""  # a shell pattern
    url: str = ""  # a regular expression for the whole URL
    original_host: str = ""  # of the original, as `host`
    original_prefix: str = ""  # with which the URL of the original begins
    never: bool = False
    min_size: int = 0
    max_age: int | None = None
    blackout: int = 0
    originals_from: tuple[str, ...] = ()  # shell patterns of crawl names; empty: any
    distrust_validators: bool = False
    embargo: str = ""  # a WARC-Date, before which no capture answers
    prefer: str = ""  # one of `PREFERENCES`; empty: the captures that the index keeps

    def matches_url(self, host: str, url: str) -> bool:
        """Return whether host and URL meet the conditions; too long a URL never does."""
        if not _is_below(self.host, host):
            return False
        if not self.url:
            return True
        return 0 < len(url) <= LONGEST_MATCHED and _expression(self.url).matches(url)

    def matches_mime(self, mime: str) -> bool:
        """Return whether a media type meets the condition; an unknown one ("") does not."""
        return not self.mime or (bool(mime) and _matches_glob(mime, self.mime))

    def needs_original(self) -> bool:
        """Return whether there are conditions on the original."""
        return bool(self.original_host or self.original_prefix)

    def matches_original(self, url: bytes) -> bool:
        """Return whether the URL of an original meets the conditions on it."""
        if not url.startswith(self.original_prefix.encode("utf-8", "surrogateescape")):
            return False
        return not self.original_host or _is_below(
            self.original_host, host_of(url).decode("utf-8", "surrogateescape")
        )

    def may_refuse(self) -> str:
        """Return the first keyword for which the rule may refuse a capture, "" if none."""
        if self.never:
            return "never"
        if self.embargo:
            return "embargo"
        if self.min_size:
            return "min_size"
        if self.max_age is not None:
            return "max_age"
        return "originals_from" if self.originals_from else ""

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object of the rule, without defaults; `parse_policy` reads it."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, default in _DEFAULTS.items()
            if (value := getattr(self, name)) != default
        }


_DEFAULTS = {field.name: field.default for field in fields(PolicyRule)}
PREFERENCES = ("earliest", "latest", "same_host", "same_crawl")
_expressions = Cache[str, Pattern](16 * MEGABYTE)
_globs = Cache[str, Callable[[str], Any]](2 * MEGABYTE)


def _expression(text: str) -> Pattern:
    return _expressions.get(text) or _expressions.keep(text, of_request(text), MEMORY)


def _is_below(wanted: str, host: str) -> bool:
    """Return whether a host is the wanted one, "" for any, or with a leading dot is below it."""
    return (
        not wanted
        or host == wanted.removeprefix(".")
        or (wanted[0] == "." and host.endswith(wanted))
    )


def _matches_glob(text: str, pattern: str) -> bool:
    """As `fnmatch.fnmatchcase`, whose own cache is not bounded in bytes."""
    match = _globs.get(pattern)
    if match is None:
        size = 1000 + 40 * len(pattern)  # bytes, about
        match = _globs.keep(pattern, re.compile(translate(pattern)).match, size)
    return match(text) is not None


class Objection(NamedTuple):
    """Why a policy does not let a capture answer."""

    keyword: str  # never, embargo, min_size, max_age or originals_from
    verdict: str


class Policy(NamedTuple):
    """Rules in order."""

    rules: tuple[PolicyRule, ...] = ()

    def concerns_lookups(self) -> bool:
        """Return whether it may change the answer to a lookup."""
        return any(rule.may_refuse() or rule.blackout or rule.prefer for rule in self.rules)

    def selects_originals(self) -> bool:
        """Return whether it may accept one original of a payload and refuse another."""
        return any(
            rule.max_age is not None or rule.originals_from or rule.needs_original()
            for rule in self.rules
        )

    def rules_for(self, url: bytes, mime: bytes) -> MatchingRules:
        """Return the rules that a URL meets, for captures of a media type (empty: unknown)."""
        host = host_of(url).decode("utf-8", "surrogateescape") if url else ""
        text = url.decode("utf-8", "surrogateescape")
        return MatchingRules([rule for rule in self.rules if rule.matches_url(host, text)], mime)


NO_POLICY = Policy()


class MatchingRules:
    """The rules that a URL meets. Media types are compared with the query's or the original's."""

    def __init__(self, rules: list[PolicyRule], mime: bytes) -> None:
        self._rules, self._mime = rules, mime.decode("utf-8", "replace")

    def never(self) -> bool:
        """Return whether no capture may answer, whatever the index holds."""
        for rule in self._rules:
            if rule.mime and self._mime and not rule.matches_mime(self._mime):
                continue
            if not rule.never:
                return False  # or it depends on the original, and then some may answer
            if not rule.needs_original() and (self._mime or not rule.mime):
                return True
        return False

    def may_refuse(self) -> str:
        """Return the keyword that may refuse a capture stored now, "" if there is none."""
        for rule in self._rules:
            if rule.matches_mime(self._mime) or not self._mime:
                if keyword := rule.may_refuse():
                    return keyword
                if (self._mime or not rule.mime) and not rule.needs_original():
                    break  # this rule decides
        return ""

    def _rule(self, capture: Capture) -> PolicyRule | None:
        mime = self._mime or capture.mime.decode("utf-8", "replace")
        for rule in self._rules:
            if rule.matches_mime(mime) and rule.matches_original(capture.url):
                return rule
        return None

    def preference(self, capture: Capture) -> str:
        """Return which of several originals answers, one of `PREFERENCES` or "".

        `capture` is one of them, for its media type.
        """
        mime = self._mime or capture.mime.decode("utf-8", "replace")
        for rule in self._rules:
            if rule.matches_mime(mime) and not rule.needs_original():
                return rule.prefer
        return ""

    def refuses(self, capture: Capture, now: int) -> Objection | None:
        """Return why a capture may not answer at `now` (seconds since 1970); None if it may."""
        rule = self._rule(capture)
        if rule is None:
            return None
        if rule.never:
            return Objection("never", "a policy says never")
        if rule.embargo and now < seconds(rule.embargo.encode()):
            return Objection("embargo", f"a policy has an embargo until {rule.embargo}")
        if rule.min_size and (capture.size_of_record or capture.size < rule.min_size):
            return Objection("min_size", f"a policy's min_size is {rule.min_size}")
        if rule.max_age is not None and now - seconds(capture.date) > rule.max_age:
            return Objection("max_age", f"a policy's max_age is {rule.max_age} s")
        if rule.originals_from and not any(
            _matches_glob(capture.crawl, name) for name in rule.originals_from
        ):
            names = ", ".join(rule.originals_from)
            return Objection("originals_from", f"a policy wants originals from {names}")
        return None

    def skips(self, capture: Capture, now: int) -> bool:
        """Return whether a capture of the same URL is so recent that nothing is to be written."""
        rule = self._rule(capture)
        return rule is not None and abs(now - seconds(capture.date)) <= rule.blackout > 0

    def distrusts_validators(self, capture: Capture) -> bool:
        """Return whether ETag and Last-Modified of the URL are not to be relied on."""
        rule = self._rule(capture)
        return rule is not None and rule.distrust_validators


def parse_policy(value: Any) -> Policy:
    """Return the policy of a list of rules as JSON or TOML has them; raises `BadInput`."""
    if not isinstance(value, list) or len(value) > MAX_RULES:
        raise BadInput(f"a policy is a list of at most {MAX_RULES} rules")
    rules = tuple(_parse_rule(number, rule) for number, rule in enumerate(value, 1))
    length = sum(
        len(text)
        for rule in rules
        for text in (
            rule.host,
            rule.mime,
            rule.url,
            rule.original_host,
            rule.original_prefix,
            *rule.originals_from,
        )
    )
    if length > _MAX_POLICY_LENGTH:
        raise BadInput(
            f"the texts of a policy have at most {_MAX_POLICY_LENGTH:,} characters together"
        )
    expressions = [_expression(rule.url) for rule in rules if rule.url]
    if sum(expression.steps(LONGEST_MATCHED) for expression in expressions) > _MAX_STEPS:
        raise BadInput(
            "the rules of a policy take too long with their urls: use fewer or smaller {}, "
            "or fewer rules"
        )
    return Policy(rules)


def policy_from_json(rules: Iterable[Mapping[str, Any]]) -> Policy:
    """Return the policy of `PolicyRule.as_json` objects, which are not checked again.

    Only their ages are cut: earlier versions took ages that JSON libraries cannot write.
    """
    return Policy(tuple(map(_restored_rule, rules)))


def _restored_rule(rule: Mapping[str, Any]) -> PolicyRule:
    ages = {name: rule[name] for name in ("max_age", "blackout") if rule.get(name) is not None}
    cut = {name: min(age, LONGEST_AGE) for name, age in ages.items()}
    names = tuple(rule.get("originals_from", ()))
    return PolicyRule(**{**rule, **cut, "originals_from": names})


def _parse_rule(number: int, value: Any) -> PolicyRule:
    try:
        if not isinstance(value, dict):
            raise BadInput("a rule is an object")
        for name in value:
            if name not in _PARSERS:
                raise BadInput(f"there is no {str(name)[:64]!r}; there are {', '.join(_PARSERS)}")
        rule = PolicyRule(**{name: _PARSERS[name](field) for name, field in value.items()})
        if rule.never and len(value.keys() - _CONDITIONS) > 1:
            raise BadInput("a rule with never has conditions only, no other restriction")
        if rule.prefer and rule.needs_original():
            raise BadInput("a rule with prefer has no conditions on the original")
        return rule
    except BadInput as error:
        raise BadInput(f"rule {number} of the policy: {error}") from error


def _text(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_TEXT:
        raise BadInput(f"a condition is a text of 1 to {_MAX_TEXT} characters")
    return value


def _url(value: Any) -> str:
    _expression(_text(value))
    return str(value)


def _true(value: Any) -> bool:
    if value is not True:
        raise BadInput("never and distrust_validators take true")
    return True


def _size(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 10**18:
        raise BadInput("min_size takes a number of bytes")
    return value


def _age(value: Any) -> int:
    try:
        return parse_age(str(value) if type(value) in (int, str) else "")
    except BadInput:
        raise BadInput(
            "max_age and blackout take a number of seconds, or 15m, 12h, 30d, 2y, of at most "
            f"{LONGEST_AGE:,} seconds"
        ) from None


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_RULES:
        raise BadInput(f"originals_from takes a list of 1 to {MAX_RULES} names of crawls")
    return tuple(_text(name) for name in value)


def _date(value: Any) -> str:
    text = value if type(value) is str else ""
    try:
        return parse_date(f"{text}T00:00:00Z" if len(text) == len("2030-01-01") else text).decode()
    except BadInput:
        raise BadInput('embargo takes a date in quotes: "2030-01-01"') from None


def _preference(value: Any) -> str:
    if value not in PREFERENCES:
        raise BadInput(f"prefer takes one of {', '.join(PREFERENCES)}")
    return str(value)


_CONDITIONS = {"host", "mime", "url", "original_host", "original_prefix"}
_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "host": lambda value: _text(value).lower().removesuffix("."),
    "mime": lambda value: _text(value).lower(),
    "url": _url,
    "original_host": lambda value: _text(value).lower().removesuffix("."),
    "original_prefix": _text,
    "never": _true,
    "min_size": _size,
    "max_age": _age,
    "blackout": _age,
    "originals_from": _names,
    "distrust_validators": _true,
    "embargo": _date,
    "prefer": _preference,
}


def read_policy(path: Path) -> Policy:
    """Return the policy of a file: TOML with [[rules]] or JSON with "rules"; or `BadInput`."""
    try:
        text = path.read_text()
        content = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise BadInput(f"policy {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadInput(f"policy {path} is neither TOML nor JSON: {error}") from error
    if not isinstance(content, dict) or content.keys() != {"rules"}:
        raise BadInput(f"policy {path} must have a list of rules, [[rules]], and nothing else")
    return parse_policy(content["rules"])
