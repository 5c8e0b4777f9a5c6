"""CDX queries: the parameters that CDX servers take, parsed into one query."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import unquote

from dedupindex.cache import MEGABYTE, Cache
from dedupindex.digest import Digest
from dedupindex.errors import BadDate, BadDigest, BadQuery
from dedupindex.runtime.safe_regex import LONGEST_MATCHED, MEMORY, of_request
from dedupindex.timestamps import check_digits, date_of_digits, seconds
from server.api.request_fields import check_parameters

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
_LONGEST = 2_000  # characters of a filter
_STEPS = 300_000_000  # of all expressions of a query, see `safe_regex`: about a third of a second
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
        for number, item in enumerate(self._filters):
            if item.digest is not None:
                met = digest == item.digest
            else:
                met = self._matches(number, item, field(item.field))
            if met is item.negated:
                return False
        return True

    def _matches(self, number: int, item: Filter, value: str) -> bool:
        """Return whether a field matches; results are cached, as values often repeat."""
        if item.steps is None:
            return bool(item.matches(value))
        met = self._known.get((number, value))
        if met is None:
            if len(value) > LONGEST_MATCHED:
                raise BadQuery(
                    f"regular expressions are for fields up to {LONGEST_MATCHED} characters"
                )
            self._left -= item.steps(len(value))
            if self._left < 0:
                raise BadQuery(
                    "these filters take too long: use fewer or smaller {}, or plain text"
                )
            met = bool(item.matches(value))
            if len(self._known) < _KNOWN:
                self._known[number, value] = met
        return met


MOST = 10_000  # lines of an answer
MOST_FIELDS = 50  # of a line
OUTPUTS = ("text", "json", "jsondict", "cdxj")
SORTS = ("default", "reverse", "closest")
MATCHES = ("exact", "canonical")
DIGESTS = {"base32": 0, "hex": 2}  # to their encodings in `Spelling`
IGNORED = ("gzip", "resolveRevisits", "allowFuzzy")  # accepted, without effect
_SEVERAL = frozenset(("filter", *IGNORED))  # parameters that may be given several times
_EMPTY_CLOSEST = re.compile("(?:^|&)closest=(?:&|$)")  # how pywb asks for all
_TIME = "^[0-9]{1,14}$"


def _described(text: str, schema: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {**(schema or {"type": "string"}), **more, "description": text}


PARAMETERS = {
    "url": _described("The URL whose captures are asked for."),
    "matchType": _described(
        "`exact`: this very URL. `canonical`: every URL with its urlkey.", enum=list(MATCHES)
    ),
    "limit": _described("The first lines, or if negative the last.", {"type": "integer"}),
    "rows": _described("The same as `limit`, which wins.", {"type": "integer"}),
    "fl": _described("Fields, with commas.", example="timestamp,digest"),
    "fields": _described("The same as `fl`."),
    "filter": _described(
        "`[!][=|~]field:value`, may be repeated: a regular expression for the whole field, with "
        "`=` plain text; `!` keeps what does not match.",
        example="!mimetype:warc/revisit",
    ),
    "from": _described("The earliest time, 1 to 14 digits.", pattern=_TIME),
    "to": _described("The latest time, 1 to 14 digits.", pattern=_TIME),
    "sort": _described("By time, backwards, or by distance from `closest`.", enum=list(SORTS)),
    "closest": _described("A time of 1 to 14 digits; implies `sort=closest`.", pattern=_TIME),
    "output": _described("The form of the answer.", enum=list(OUTPUTS)),
    "digest": _described("How digests are written.", enum=list(DIGESTS)),
    "bridge": _described(
        "`1`: also captures whose own record spells its digest otherwise.", enum=["0", "1"]
    ),
    "crawl": _described("The crawl that asks."),
}
"""Schemas of the parameters by name, for the OpenAPI document and docs/http.md."""


@dataclass(frozen=True)
class CdxQuery:
    url: bytes
    match: str = "exact"
    limit: int = MOST
    named: tuple[str, ...] = ()  # fields by the names of the client; empty: all
    filters: tuple[Filter, ...] = ()
    since: str = ""
    until: str = "9" * 14
    sort: str = "default"
    closest: int = 0  # seconds since 1970
    output: str = "text"
    encoding: int = 0  # of digests, as in `Spelling`
    bridge: bool = False
    crawl: str = ""

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the fields of a line by their canonical names."""
        return tuple(ALIASES.get(name, name) for name in self.named) or FIELDS

    def digest(self) -> Digest | None:
        """Return the digest that a filter requires, None if none does."""
        digests = (f.digest for f in self.filters if f.digest is not None and not f.negated)
        return next(digests, None)


def cdx_query_of(text: str, *, hex: bool = False) -> CdxQuery:
    """Parse a query string; raises `BadQuery`. Empty values count as not given."""
    pairs = [  # as `parse_qsl`, in half the time
        (unquote(name), unquote(value, errors="surrogateescape"))
        for name, _, value in [part.partition("=") for part in text.replace("+", " ").split("&")]
        if value
    ]
    filters = [value for name, value in pairs if name == "filter"]
    given = check_parameters([pair for pair in pairs if pair[0] not in _SEVERAL], PARAMETERS)
    if len(filters) > FILTERS:
        raise BadQuery(f"a query has at most {FILTERS} filters")
    if "url" not in given:
        raise BadQuery("a url is needed")
    sort = given.get("sort", "closest" if "closest" in given else "default")
    if sort == "closest" and "closest" not in given:
        if _EMPTY_CLOSEST.search(text) is None:
            raise BadQuery("sort=closest needs closest")
        sort = "default"
    if "fl" in given and "fields" in given:
        raise BadQuery("give either fl or fields")
    return CdxQuery(
        url=given["url"].encode("utf-8", "surrogateescape"),
        match=_match(given),
        limit=max(-MOST, min(given.get("limit", given.get("rows", MOST)), MOST)),
        named=_fields(given.get("fl") or given.get("fields", "")),
        filters=tuple(map(filter_of, filters)),
        since=given.get("from", ""),
        until=given.get("to", "").ljust(14, "9"),
        sort=sort,
        closest=_seconds(given["closest"]) if "closest" in given else 0,
        output=given.get("output", "text"),
        encoding=DIGESTS[given.get("digest", "hex" if hex else "base32")],
        bridge=given.get("bridge") == "1",
        crawl=given.get("crawl", ""),
    )


def _seconds(digits: str) -> int:
    """Return a time as seconds since 1970; missing digits mean the earliest time."""
    whole = digits + "10000101000000"[len(digits) :]
    try:
        return seconds(date_of_digits(check_digits(whole.encode())))
    except BadDate as error:
        raise BadQuery(f"closest takes a time of 1 to 14 digits: {error}") from None


def _match(given: dict[str, str]) -> str:
    """Return the match type; a `*` in the URL implies one, as in pywb and OutbackCDX."""
    url = given["url"]
    if "matchType" not in given and (url.endswith("*") or url.startswith("*.")):
        raise BadQuery(
            "URLs with * cannot be answered: URLs are found by their hash, which has no order; "
            f"give the very URL, with matchType {' or '.join(MATCHES)} if it has a *"
        )
    return given.get("matchType", "exact")


def _fields(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",", MOST_FIELDS)) if text else ()
    if len(names) > MOST_FIELDS:
        raise BadQuery(f"a query names at most {MOST_FIELDS} fields")
    for name in names:
        if ALIASES.get(name, name) not in FIELDS:
            raise BadQuery(f"there is no field {name[:64]!r}; there are {', '.join(FIELDS)}")
    return names
