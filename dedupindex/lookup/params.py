"""How lookups are asked: one table of parameters, read from options, query strings and JSON.

The command line, ``GET /lookup``, ``POST /lookup`` and JSON lines take the same parameters with the
same meaning, and the OpenAPI document is made of this table.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

from dedupindex.capture import Covers
from dedupindex.digest import SIZES, Digest
from dedupindex.errors import BadQuery, DedupError
from dedupindex.lookup import conditions
from dedupindex.lookup.conditions import check_crawl_name
from dedupindex.lookup.decide import NEWER_NAMES, Query, Strategy
from dedupindex.urlkey import unbracket

_MOST_NAMESPACES = 20


class UnknownAlgorithm(Exception):
    """The digest is labelled with an algorithm that no index of ours can hold."""


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _strategy(value: bytes) -> Strategy:
    return Strategy.parse(_text(value)[:64])


def _base64(value: bytes) -> bytes:
    try:
        return b64decode(value, validate=True)
    except ValueError as error:
        raise BadQuery(f"url_base64 is not base64: {error}") from error


def _number(name: str, value: bytes) -> int:
    if not value.isdigit() or len(value) > 18:
        raise BadQuery(f"{name} takes a number of bytes")
    return int(value)


def _mime(value: bytes) -> bytes:
    return value.partition(b";")[0].strip().lower()[:200]


def _namespaces(value: bytes) -> tuple[str, ...]:
    names = _text(value).split(",")
    if len(names) > _MOST_NAMESPACES:
        raise BadQuery(f"at most {_MOST_NAMESPACES} namespaces at once")
    return tuple(sorted({check_crawl_name(name, "namespace") for name in names}))


def _algorithm(value: bytes) -> str:
    name = _text(value).replace("-", "").lower()
    if name not in SIZES:
        raise BadQuery(f"unlabelled takes one of {', '.join(SIZES)}")
    return name


def _flag(name: str, value: bytes) -> bool:
    if value not in (b"0", b"1", b"true", b"false"):
        raise BadQuery(f"{name} takes 1 or 0")
    return value in (b"1", b"true")


_COVERS = {one.name.lower(): one for one in Covers if one}


def _covers(value: bytes) -> Covers:
    try:
        return _COVERS[_text(value)]
    except KeyError:
        raise BadQuery(f"covers takes one of {', '.join(_COVERS)}") from None


class Parameter(NamedTuple):
    """One parameter: how its text is read, and what the documentation says."""

    name: str
    read: Callable[[bytes], Any]
    description: str
    schema: dict[str, Any]
    types: tuple[type, ...] = (str,)  # that it may have in JSON
    only_json: bool = False


_TEXT: dict[str, Any] = {"type": "string"}
_DATE = "2026-11-20T09:14:17Z"

PARAMETERS = {
    parameter.name: parameter
    for parameter in (
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
            _strategy,
            "Which originals may answer: any with the digest (the same URL first), only of the "
            "exact URL, or only of the canonical URL.",
            {**_TEXT, "enum": [*Strategy.__members__, *NEWER_NAMES], "default": "DIGEST_ANY"},
        ),
        Parameter(
            "max_age",
            lambda value: conditions.parse_age(_text(value)),
            "Oldest original: seconds before `as_of` or now, or with a unit as 15m, 12h, 30d, 2y.",
            {"type": ["string", "integer"], "pattern": r"^\d{1,12}[smhdy]?$", "minimum": 0},
            types=(str, int),
        ),
        Parameter(
            "as_of",
            lambda value: conditions.parse_moment(_text(value)),
            "Only originals captured then or before: WARC-Date, day, or 14 digits.",
            {**_TEXT, "example": _DATE},
        ),
        Parameter(
            "min_size",
            partial(_number, "min_size"),
            "Smallest payload of an original, in bytes.",
            {"type": "integer", "minimum": 0, "maximum": 10**18 - 1},
            types=(int,),
        ),
        Parameter(
            "not_record",
            lambda value: conditions.parse_record_id(_text(value)),
            "Record id of the asking record, which is never its own original.",
            _TEXT,
        ),
        Parameter(
            "not_date",
            lambda value: conditions.parse_date(_text(value)),
            "WARC-Date of the asking record, which has `url` and is never its own original.",
            {**_TEXT, "example": _DATE},
        ),
        Parameter(
            "crawl",
            _text,
            "The crawl that asks: it sees its own captures before it is committed.",
            {**_TEXT, "example": "weekly-20261120"},
        ),
        Parameter(
            "namespace",
            _namespaces,
            "Namespaces whose crawls may answer too, with commas; that of `crawl` always may.",
            {**_TEXT, "example": "news,base"},
        ),
        Parameter(
            "mime",
            _mime,
            "Media type that was served, for policies; not given: the original's counts.",
            {**_TEXT, "example": "image/png"},
        ),
        Parameter(
            "covers",
            _covers,
            "What the digest was taken of: the body as `stored`, with chunks if it has them, the "
            "`entity` without, or `both` if there are none.",
            {**_TEXT, "enum": list(_COVERS)},
        ),
        Parameter(
            "bridge",
            partial(_flag, "bridge"),
            "Take originals whose own record states a digest of another algorithm, or of other "
            "bytes than `covers` says. Replay tools compare the text of digests.",
            {"type": "boolean", "default": False},
            types=(bool,),
        ),
        Parameter(
            "size",
            partial(_number, "size"),
            "Bytes that the asker counts for its capture; they are added up in statistics.",
            {"type": "integer", "minimum": 0, "maximum": 10**18 - 1},
            types=(int,),
        ),
        Parameter(
            "unlabelled",
            _algorithm,
            "Algorithm of a digest without label.",
            {**_TEXT, "enum": list(SIZES)},
        ),
        Parameter(
            "in_batch",
            partial(_flag, "in_batch"),
            "Of a whole batch: say of new payloads that come again which lookup was the first.",
            {"type": "boolean", "default": False},
            types=(bool,),
        ),
        Parameter(
            "explain",
            partial(_flag, "explain"),
            "Add `considered`: the captures looked at, and why each was refused or chosen.",
            {"type": "boolean", "default": False},
            types=(bool,),
        ),
    )
}


def of_query_string(text: str) -> dict[str, bytes]:
    """The parameters of a WSGI query string, percent-decoded; `+` is a space, `;` is itself.

    Raises `BadQuery` for a name that is unknown or comes twice, because leaving one out silently
    would answer another question than was asked.
    """
    found: dict[str, bytes] = {}
    for part in text.encode("latin-1").split(b"&"):
        if not part:
            continue
        name, _, value = part.replace(b"+", b" ").partition(b"=")
        key = _text(unquote_to_bytes(name))
        if key not in PARAMETERS or PARAMETERS[key].only_json:
            raise BadQuery(f"there is no parameter {key[:64]!r}")
        if key in found:
            raise BadQuery(f"{key} is given twice; percent-encode & in values as %26")
        found[key] = unquote_to_bytes(value)
    return found


def of_json(content: Mapping[str, Any]) -> dict[str, bytes]:
    """The parameters in a JSON object; null is as good as left out. Raises `BadQuery`."""
    found: dict[str, bytes] = {}
    for name, value in content.items():
        parameter = PARAMETERS.get(name)
        if parameter is None:
            raise BadQuery(f"there is no parameter {name[:64]!r}")
        if value is None:
            continue
        if type(value) not in parameter.types:
            names = " or ".join(_JSON_TYPES[kind] for kind in parameter.types)
            raise BadQuery(f"{name} must be {names}")
        if isinstance(value, str):
            found[name] = value.encode()
        else:
            found[name] = str(value).lower().encode()
    return found


_JSON_TYPES = {str: "a string", int: "a whole number", bool: "true or false"}
_LABELLED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._/-]{0,31}):[A-Za-z0-9+/=_-]+")


def query_of(given: Mapping[str, bytes]) -> tuple[Query, bool]:
    """The query of decoded parameters, and whether it is to be explained.

    Raises `BadQuery`, `BadDigest`, or `UnknownAlgorithm`, which is not an error of the asker.
    Empty values count as not given.
    """
    values = {name: PARAMETERS[name].read(value) for name, value in given.items() if value}
    explain = values.pop("explain", False)
    unlabelled = values.pop("unlabelled", "")
    if values.pop("in_batch", False):
        raise BadQuery("in_batch stands beside the lookups of a batch, or in its query string")
    if "url_base64" in values:
        if "url" in values:
            raise BadQuery("give either url or url_base64")
        values["url"] = values.pop("url_base64")
    if "digest" not in values:
        raise BadQuery("a lookup needs a digest")
    text = values["digest"]
    label = _LABELLED.fullmatch(text)
    if label and label[1].replace("-", "").lower() not in SIZES:
        raise UnknownAlgorithm
    values["digest"] = Digest.parse(text, unlabelled=unlabelled)
    if "namespace" in values:
        values["namespaces"] = values.pop("namespace")
    return Query(**values), explain


# What is asked for soon, told to a view that would else wait for each: see `look_ahead`.


def digests_of(asked: Iterable[Any], given: Mapping[str, bytes]) -> Iterator[Digest]:
    """The digests of lookups, JSON objects, that can be understood; `given` holds for each."""
    for one in asked:
        with suppress(DedupError, UnknownAlgorithm, AttributeError):
            yield query_of({**given, **of_json(one)})[0].digest
