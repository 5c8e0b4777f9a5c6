"""The fields of a CDX line, and the filters of a query."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from dedupindex.cache import MEGABYTE, Cache
from dedupindex.digest import Digest
from dedupindex.errors import BadDigest, BadQuery
from dedupindex.runtime.safe_regex import LONGEST_MATCHED, MEMORY, of_request

FIELDS = (
    "urlkey", "timestamp", "original", "mimetype", "statuscode", "digest",
    "redirect", "robotflags", "length", "offset", "filename",
)  # fmt: skip
ALIASES = {
    "url": "original",
    "mime": "mimetype",
    "status": "statuscode",
    "redirecturl": "redirect",
    "checksum": "digest",
}
FILTERS = 10  # of a query
_LONGEST = 2_000
_STEPS = 300_000_000  # of all expressions of a query, see `patterns`: about a third of a second
_KNOWN = 1_000  # results of expressions that are cached
_SPECIAL = re.compile(r"[\\.^$*+?{}()|\[\]]")


class Filter(NamedTuple):
    """A condition on one field, in its canonical name."""

    field: str
    negated: bool
    matches: Callable[[str], object]
    digest: Digest | None = None  # that the field must equal, or with `negated` must not
    steps: Callable[[int], int] | None = None  # that `matches` may take for so many characters


_filters = Cache[str, Filter](16 * MEGABYTE)


def filter_of(text: str) -> Filter:
    """Parse a filter of a query; raises `BadQuery`."""
    found = _filters.get(text)
    return found or _filters.keep(text, _filter_of(text), MEMORY)


def _filter_of(text: str) -> Filter:
    if len(text) > _LONGEST:
        raise BadQuery(f"a filter has at most {_LONGEST} characters")
    negated = text.startswith("!")
    rest = text.removeprefix("!")
    how = rest[:1] if rest[:1] in ("=", "~") else ""
    name, colon, value = rest.removeprefix(how).partition(":")
    field = ALIASES.get(name, name)
    if not colon or field not in FIELDS:
        raise BadQuery(f"a filter is [!][=|~]field:value with one of {', '.join(FIELDS)}")
    plain = how == "=" or (not how and _SPECIAL.search(value) is None)
    if plain and field == "digest":
        try:
            return Filter(field, negated, value.__eq__, Digest.parse(value, unlabelled="sha1"))
        except BadDigest:
            pass  # no capture has it
    if plain:
        return Filter(field, negated, value.__eq__)
    expression = of_request(value)
    return Filter(field, negated, expression.matches, steps=expression.steps)


class Sieve:
    """The filters of one query, with a common limit of steps for their expressions."""

    def __init__(self, filters: tuple[Filter, ...]) -> None:
        self._filters, self._left = filters, _STEPS
        self._known: dict[tuple[int, str], bool] = {}

    def passes(self, digest: Digest, field: Callable[[str], str]) -> bool:
        """Return whether a capture with these fields passes all filters; raises `BadQuery`."""
        for number, one in enumerate(self._filters):
            if one.digest is not None:
                met = digest == one.digest
            else:
                met = self._met(number, one, field(one.field))
            if met is one.negated:
                return False
        return True

    def _met(self, number: int, one: Filter, value: str) -> bool:
        """Return whether a field passes; the results are cached, as values often repeat."""
        if one.steps is None:
            return bool(one.matches(value))
        met = self._known.get((number, value))
        if met is None:
            if len(value) > LONGEST_MATCHED:
                raise BadQuery(
                    f"regular expressions are for fields up to {LONGEST_MATCHED} characters"
                )
            self._left -= one.steps(len(value))
            if self._left < 0:
                raise BadQuery(
                    "these filters take too long: use fewer or smaller {}, or plain text"
                )
            met = bool(one.matches(value))
            if len(self._known) < _KNOWN:
                self._known[number, value] = met
        return met
