"""CDX queries: the parameters of all CDX servers, read into one query."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

from dedupindex.cache import MEGABYTE, Cache
from dedupindex.digest import Digest
from dedupindex.errors import BadDate, BadDigest, BadQuery
from dedupindex.runtime.safe_regex import LONGEST_MATCHED, MEMORY, of_request
from dedupindex.timestamps import check_digits, date_of_digits, seconds

# The fields of a CDX line, and the filters of a query.

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


MOST = 10_000  # lines of an answer
MOST_FIELDS = 50  # of a line
OUTPUTS = ("text", "json", "jsondict", "cdxj")
SORTS = ("default", "reverse", "closest")
MATCHES = ("exact", "canonical")
IGNORED = ("gzip", "resolveRevisits", "allowFuzzy")  # accepted, without effect
_EMPTY_CLOSEST = re.compile("(?:^|&)closest=(?:&|$)")  # how pywb asks for all
_BASE32, _HEX = 0, 2


class CdxParameter(NamedTuple):
    """One parameter, for the OpenAPI document and docs/http.md."""

    name: str
    description: str
    schema: dict[str, Any]


_TEXT = {"type": "string"}
PARAMETERS = (
    CdxParameter("url", "The URL whose captures are asked for.", _TEXT),
    CdxParameter(
        "matchType",
        "`exact`: this very URL. `canonical`: every URL with its urlkey.",
        {**_TEXT, "enum": list(MATCHES)},
    ),
    CdxParameter("limit", "The first lines, or if negative the last.", {"type": "integer"}),
    CdxParameter("rows", "The same as `limit`, which wins.", {"type": "integer"}),
    CdxParameter("fl", "Fields, with commas.", {**_TEXT, "example": "timestamp,digest"}),
    CdxParameter("fields", "The same as `fl`.", _TEXT),
    CdxParameter(
        "filter",
        "`[!][=|~]field:value`, may be repeated: a regular expression for the whole field, with "
        "`=` plain text; `!` keeps what does not match.",
        {**_TEXT, "example": "!mimetype:warc/revisit"},
    ),
    CdxParameter("from", "The earliest time, 1 to 14 digits.", {**_TEXT, "pattern": r"^\d{1,14}$"}),
    CdxParameter("to", "The latest time, 1 to 14 digits.", {**_TEXT, "pattern": r"^\d{1,14}$"}),
    CdxParameter(
        "sort", "By time, backwards, or by distance from `closest`.", {"enum": list(SORTS)}
    ),
    CdxParameter("closest", "A time of 1 to 14 digits; implies `sort=closest`.", _TEXT),
    CdxParameter("output", "The form of the answer.", {**_TEXT, "enum": list(OUTPUTS)}),
    CdxParameter("digest", "How digests are written.", {**_TEXT, "enum": ["base32", "hex"]}),
    CdxParameter(
        "bridge",
        "`1`: also captures whose own record spells its digest otherwise.",
        {**_TEXT, "enum": ["0", "1"]},
    ),
    CdxParameter("crawl", "The crawl that asks.", _TEXT),
)
_NAMES = frozenset(parameter.name for parameter in PARAMETERS)


@dataclass(frozen=True)
class CdxQuery:
    """A CDX query."""

    url: bytes
    match: str = "exact"
    limit: int = MOST
    named: tuple[str, ...] = ()  # fields by the names of the client; empty: all
    filters: tuple[Filter, ...] = ()
    since: str = ""
    until: str = "9"
    sort: str = "default"
    closest: int = 0  # seconds since 1970
    output: str = "text"
    hex: bool = False
    bridge: bool = False
    crawl: str = ""

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the fields of a line by their canonical names."""
        return tuple(ALIASES.get(name, name) for name in self.named) or FIELDS

    @property
    def encoding(self) -> int:
        """Return the encoding of digests, as in `Spelling`."""
        return _HEX if self.hex else _BASE32

    def digest(self) -> Digest | None:
        """Return the digest that a filter requires, None if none does."""
        for one in self.filters:
            if one.digest is not None and not one.negated:
                return one.digest
        return None


def cdx_query_of(text: str, *, hex: bool = False) -> CdxQuery:
    """Parse a WSGI query string; raises `BadQuery`. Empty values count as not given."""
    given, filters = _parameters(text)
    if len(filters) > FILTERS:
        raise BadQuery(f"a query has at most {FILTERS} filters")
    if "url" not in given:
        raise BadQuery("a url is needed")
    limit = _number(given, "limit" if "limit" in given else "rows", MOST)
    closest = given.get("closest", b"")
    sort = _one_of(given, "sort", SORTS, "closest" if closest else "default")
    if sort == "closest" and not closest:
        if _EMPTY_CLOSEST.search(text) is None:
            raise BadQuery("sort=closest needs closest")
        sort = "default"
    if "fl" in given and "fields" in given:
        raise BadQuery("give either fl or fields")
    return CdxQuery(
        url=given["url"],
        match=_match(given),
        limit=max(-MOST, min(limit, MOST)),
        named=_fields(_text(given, "fl") or _text(given, "fields")),
        filters=tuple(map(filter_of, filters)),
        since=_digits(given, "from"),
        until=_digits(given, "to").ljust(14, "9"),
        sort=sort,
        closest=_moment(_digits(given, "closest")) if closest else 0,
        output=_one_of(given, "output", OUTPUTS, "text"),
        hex=_one_of(given, "digest", ("base32", "hex"), "hex" if hex else "base32") == "hex",
        bridge=_one_of(given, "bridge", ("0", "1"), "0") == "1",
        crawl=_text(given, "crawl"),
    )


def _parameters(text: str) -> tuple[dict[str, bytes], list[str]]:
    """Return the decoded parameters, and the filters."""
    given: dict[str, bytes] = {}
    filters: list[str] = []
    for part in text.encode("latin-1").replace(b"+", b" ").split(b"&"):
        name, _, value = part.partition(b"=")
        key = unquote_to_bytes(name).decode("utf-8", "backslashreplace")
        if not value or key in IGNORED:
            continue
        if key not in _NAMES:
            raise BadQuery(f"there is no parameter {key[:64]!r}; percent-encode & in values as %26")
        value = unquote_to_bytes(value)
        if key == "filter":
            filters.append(value.decode("utf-8", "surrogateescape"))
        elif key in given:
            raise BadQuery(f"{key} is given twice; percent-encode & in values as %26")
        else:
            given[key] = value
    return given, filters


def _text(given: dict[str, bytes], name: str) -> str:
    return given.get(name, b"").decode("utf-8", "surrogateescape")


def _number(given: dict[str, bytes], name: str, default: int) -> int:
    text = given.get(name, b"")
    if not text:
        return default
    if re.fullmatch(rb"-?[0-9]{1,12}", text) is None:
        raise BadQuery(f"{name} must be a whole number")
    return int(text)


def _digits(given: dict[str, bytes], name: str) -> str:
    text = _text(given, name)
    if text and re.fullmatch("[0-9]{1,14}", text) is None:
        raise BadQuery(f"{name} takes a time of 1 to 14 digits")
    return text


def _moment(digits: str) -> int:
    """Return a time as seconds since 1970; missing digits mean the earliest time."""
    whole = digits + "10000101000000"[len(digits) :]
    try:
        return seconds(date_of_digits(check_digits(whole.encode())))
    except BadDate as error:
        raise BadQuery(f"closest takes a time of 1 to 14 digits: {error}") from None


def _one_of(given: dict[str, bytes], name: str, values: tuple[str, ...], default: str) -> str:
    value = _text(given, name) or default
    if value not in values:
        raise BadQuery(f"{name} takes one of {', '.join(values)}")
    return value


def _meant(url: bytes) -> str:
    """Return the match type of a URL without matchType, as pywb and OutbackCDX do."""
    return "prefix" if url.endswith(b"*") else "domain" if url.startswith(b"*.") else "exact"


def _match(given: dict[str, bytes]) -> str:
    value = _text(given, "matchType") or _meant(given.get("url", b""))
    if value in ("prefix", "host", "domain", "range"):
        raise BadQuery(
            f"matchType={value} cannot be answered: URLs are found by their hash, which has no "
            f"order; there are {', '.join(MATCHES)}"
        )
    return _one_of(given, "matchType", MATCHES, "exact")


def _fields(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",", MOST_FIELDS)) if text else ()
    if len(names) > MOST_FIELDS:
        raise BadQuery(f"a query names at most {MOST_FIELDS} fields")
    for name in names:
        if ALIASES.get(name, name) not in FIELDS:
            raise BadQuery(f"there is no field {name[:64]!r}; there are {', '.join(FIELDS)}")
    return names
