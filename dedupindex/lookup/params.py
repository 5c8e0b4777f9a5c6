"""Lookup parameters: one table, from which options, query strings, JSON and OpenAPI are made."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

from dedupindex.capture import Covers
from dedupindex.digest import SIZES, Digest, Spelling, no_label, parse_spelled
from dedupindex.errors import BadDigest, BadQuery, DedupError
from dedupindex.lookup.conditions import LONGEST_AGE, check_crawl_name, parse_age, parse_date
from dedupindex.lookup.decide import STRATEGY_ALIASES, Query, Strategy
from dedupindex.urlkey import unbracket

_MAX_NAMESPACES = 20
NO_DIGEST = Digest("sha1", b"")


class UnknownAlgorithm(Exception):
    """The digest is labelled with an algorithm that no index can hold."""


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _base64(value: bytes) -> bytes:
    try:
        return b64decode(value, validate=True)
    except ValueError as error:
        raise BadQuery(f"url_base64 is not base64: {error}") from error


def _number(name: str, value: bytes) -> int:
    if not value.isdigit() or len(value) > 18:
        raise BadQuery(f"{name} takes a number of bytes")
    return int(value)


def parse_namespaces(value: bytes) -> tuple[str, ...]:
    names = _text(value).split(",")
    if len(names) > _MAX_NAMESPACES:
        raise BadQuery(f"at most {_MAX_NAMESPACES} namespaces at once")
    return tuple(sorted({check_crawl_name(name, "namespace") for name in names}))


def _algorithm(value: bytes) -> str:
    name = _text(value).replace("-", "").lower()
    if name not in SIZES:
        raise BadQuery(f"unlabelled takes one of {', '.join(SIZES)}")
    return name


def _boolean(name: str, value: bytes) -> bool:
    if value not in (b"0", b"1", b"true", b"false"):
        raise BadQuery(f"{name} takes 1 or 0")
    return value in (b"1", b"true")


_COVERS = {covers.name.lower(): covers for covers in Covers if covers}


def _covers(value: bytes) -> Covers:
    try:
        return _COVERS[_text(value)]
    except KeyError:
        raise BadQuery(f"covers takes one of {', '.join(_COVERS)}") from None


class Parameter(NamedTuple):
    """A parameter, how its text is parsed, and its documentation."""

    name: str
    read: Callable[[bytes], Any]
    description: str
    schema: dict[str, Any]  # JSON Schema
    types: tuple[type, ...] = (str,)  # accepted in JSON
    only_json: bool = False


def _flag(name: str, description: str) -> Parameter:
    schema = {"type": "boolean", "default": False}
    return Parameter(name, partial(_boolean, name), description, schema, types=(bool,))


def _size(name: str, description: str) -> Parameter:
    schema = {"type": "integer", "minimum": 0, "maximum": 10**18 - 1}
    return Parameter(name, partial(_number, name), description, schema, types=(int,))


_TEXT: dict[str, Any] = {"type": "string"}
_DATE = {**_TEXT, "example": "2026-11-20T09:14:17Z"}

_TABLE = (
    Parameter(
        "digest",
        _text,
        "Payload digest, labelled, in hex, base32 or base64.",
        {**_TEXT, "example": "sha1:FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN"},
    ),
    Parameter(
        "url",
        unbracket,
        "The URL that was fetched. In a query string percent-encoded, byte for byte.",
        {**_TEXT, "example": "http://example.com/"},
    ),
    Parameter(
        "url_base64",
        _base64,
        "The URL in base64, where it is not UTF-8 and so no JSON string.",
        {**_TEXT, "contentEncoding": "base64"},
        only_json=True,
    ),
    Parameter(
        "strategy",
        lambda value: Strategy.parse(_text(value)[:64]),
        "Which originals may answer: any with the digest (the same URL first), only of the "
        "exact URL, or only of the canonical URL.",
        {**_TEXT, "enum": [*Strategy.__members__, *STRATEGY_ALIASES], "default": "DIGEST_ANY"},
    ),
    Parameter(
        "max_age",
        lambda value: parse_age(_text(value)),
        "Oldest original: seconds before `as_of` or now, or with a unit as 15m, 12h, 30d, 2y.",
        {
            "type": ["string", "integer"],
            "pattern": r"^(\d{1,12}s?|\d{1,10}m|\d{1,8}h|\d{1,7}d|\d{1,4}y)$",
            "minimum": 0,
            "maximum": LONGEST_AGE,
        },
        types=(str, int),
    ),
    Parameter(
        "as_of",
        lambda value: parse_date(_text(value), days=True),
        "Only originals captured then or before: WARC-Date, 14 digits, or a year, month "
        "or day, to its end.",
        _DATE,
    ),
    _size("min_size", "Smallest payload of an original, in bytes."),
    Parameter(
        "not_record",
        unbracket,
        "Record id of the asking record, which is never its own original.",
        _TEXT,
    ),
    Parameter(
        "not_date",
        lambda value: parse_date(_text(value)),
        "WARC-Date of the asking record, which has `url` and is never its own original.",
        _DATE,
    ),
    Parameter(
        "crawl",
        _text,
        "The crawl that asks: it sees its own captures before it is committed.",
        {**_TEXT, "example": "weekly-20261120"},
    ),
    Parameter(
        "namespace",
        parse_namespaces,
        "Namespaces whose crawls may answer too, with commas; that of `crawl` always may.",
        {**_TEXT, "example": "news,base"},
    ),
    Parameter(
        "mime",
        lambda value: value.partition(b";")[0].strip().lower()[:200],
        "Media type of the response, for policies; by default that of the original.",
        {**_TEXT, "example": "image/png"},
    ),
    Parameter(
        "covers",
        _covers,
        "The bytes that the digest covers: the body as `stored`, with chunks if it has them, the "
        "`entity` without, or `both` if there are none.",
        {**_TEXT, "enum": list(_COVERS)},
    ),
    _flag(
        "bridge",
        "Accept originals whose own record states a digest of another algorithm, or of other "
        "bytes than `covers` says. Replay tools compare the text of digests.",
    ),
    _size("size", "Bytes of the asker's capture, which statistics add up."),
    Parameter(
        "unlabelled",
        _algorithm,
        "Algorithm of a digest without label.",
        {**_TEXT, "enum": list(SIZES)},
    ),
    _flag(
        "in_batch",
        "For a whole batch: if a new payload comes again, report which lookup was the first.",
    ),
    _flag(
        "explain",
        "Add `considered`: the captures looked at, and why each was refused or chosen.",
    ),
)
PARAMETERS = {parameter.name: parameter for parameter in _TABLE}


_LAST_STRATEGY = PARAMETERS["strategy"]._replace(
    description="The last capture of the exact URL, or of all with the same canonical URL.",
    schema={**_TEXT, "enum": ["EXACT_URL", "CANONICAL_URL"], "default": "EXACT_URL"},
)
LAST_PARAMETERS = {
    **{name: PARAMETERS[name] for name in ("url", "url_base64")},
    "strategy": _LAST_STRATEGY,
    **{name: PARAMETERS[name] for name in ("max_age", "crawl", "namespace")},
}
"""The parameters of a request for the last capture of a URL."""


def params_from_query_string(
    text: str, known: Mapping[str, Parameter] = PARAMETERS
) -> dict[str, bytes]:
    """Return the parameters of a WSGI query string, percent-decoded; `+` is a space.

    Raises `BadQuery` for an unknown or repeated name: ignoring one would answer another question.
    """
    found: dict[str, bytes] = {}
    for part in text.split("&"):
        if not part:
            continue
        key, _, value = part.partition("=")
        if key not in known:
            key = _text(_unescaped(key))
        if key not in known or known[key].only_json:
            raise _unknown(key, [name for name, one in known.items() if not one.only_json])
        if key in found:
            raise BadQuery(f"{key} is given twice; percent-encode & in values as %26")
        found[key] = _unescaped(value)
    return found


def _unknown(name: str, known: Iterable[str]) -> BadQuery:
    """Return the error for a parameter that does not exist, with those that may be meant."""
    from difflib import get_close_matches  # only mistakes need it

    names = list(known)
    near = get_close_matches(name[:64], names)
    which = (
        f"did you mean {' or '.join(near)}?"
        if near
        else f"there are {', '.join(names)}; in values & is written %26"
    )
    return BadQuery(f"there is no parameter {name[:64]!r}; {which}")


def _unescaped(text: str) -> bytes:
    """Return percent-decoded text of a WSGI query string; `+` is a space."""
    if "+" in text:
        text = text.replace("+", " ")
    if "%" in text:  # nearly always these escapes are all, and replacing them makes no new ones
        text = text.replace("%3A", ":").replace("%2F", "/")
        if "%" in text:
            return unquote_to_bytes(text.encode("latin-1"))
    return text.encode("latin-1")


def params_from_json(
    content: Mapping[str, Any], known: Mapping[str, Parameter] = PARAMETERS
) -> dict[str, bytes]:
    """Return the parameters of a JSON object; null means not given. Raises `BadQuery`."""
    found: dict[str, bytes] = {}
    for name, value in content.items():
        parameter = known.get(name)
        if parameter is None:
            raise _unknown(name, known)
        if value is None:
            continue
        if type(value) not in parameter.types:
            names = " or ".join(_JSON_TYPES[kind] for kind in parameter.types)
            raise BadQuery(f"{name} must be {names}")
        found[name] = value.encode() if isinstance(value, str) else str(value).lower().encode()
    return found


_JSON_TYPES = {str: "a string", int: "a whole number", bool: "true or false"}
_LABELLED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._/-]{0,31}):[A-Za-z0-9+/=_-]+")


class ParsedQuery(NamedTuple):
    """A query, and what its parameters say beside it."""

    query: Query
    explain: bool  # whether to explain the answer
    spelling: Spelling  # of the digest


def parse_query(given: Mapping[str, bytes]) -> ParsedQuery:
    """Return the query of decoded parameters; an empty value means that it is not given.

    Raises `BadQuery`, `BadDigest`, or `UnknownAlgorithm`, which is not an error of the asker.
    """
    values = {name: PARAMETERS[name].read(value) for name, value in given.items() if value}
    explain = values.pop("explain", False)
    unlabelled = values.pop("unlabelled", "")
    if values.pop("in_batch", False):
        raise BadQuery("in_batch stands beside the lookups of a batch, or in its query string")
    _settle_url(values)
    if "digest" not in values:
        raise BadQuery("a lookup needs a digest")
    text = values["digest"]
    if not text.startswith("sha1:"):
        label = _LABELLED.fullmatch(text)
        if label and label[1].replace("-", "").lower() not in SIZES:
            raise UnknownAlgorithm
    if not unlabelled and ":" not in text:
        raise BadDigest(f"{no_label(text)}, or give its algorithm as unlabelled")
    values["digest"], spelling = parse_spelled(text, unlabelled=unlabelled)
    return ParsedQuery(Query(**values), explain, spelling)


def parse_last_query(given: Mapping[str, bytes]) -> Query:
    """Return the query of decoded `LAST_PARAMETERS`, without a digest; raises `BadQuery`."""
    values = {name: LAST_PARAMETERS[name].read(value) for name, value in given.items() if value}
    _settle_url(values)
    return Query(**{"strategy": Strategy.EXACT_URL, **values, "digest": NO_DIGEST})


def _settle_url(values: dict[str, Any]) -> None:
    """Give URL and namespaces the names that they have in a query."""
    if "url_base64" in values:
        if "url" in values:
            raise BadQuery("give either url or url_base64")
        values["url"] = values.pop("url_base64")
    if "namespace" in values:
        values["namespaces"] = values.pop("namespace")


def query_digests(objects: Iterable[Any], defaults: Mapping[str, bytes]) -> Iterator[Digest]:
    """Yield the digests of valid lookups, given as JSON objects; `defaults` apply to each."""
    for content in objects:
        with suppress(DedupError, UnknownAlgorithm, AttributeError):
            yield parse_query({**defaults, **params_from_json(content)}).query.digest
