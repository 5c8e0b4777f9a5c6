"""The search of ``bin/search``: a query language, and the captures that a query matches.

Whoosh parses AND, OR, NOT, brackets, ranges and wildcards; a `QueryField` defines what a text in
its field means. Whoosh accepts any query; here a query that cannot be meant raises `BadQuery`,
because no match would read as "there is none".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from heapq import nsmallest
from pathlib import Path
from typing import Any, NamedTuple

from whoosh import query as q
from whoosh.qparser import QueryParser, plugins, syntax

from dedupindex.capture import Capture
from dedupindex.counts import OnProgress, silent
from dedupindex.digest import SIZES, Digest
from dedupindex.errors import BadDate, BadDigest, BadQuery, StrategyUnavailable
from dedupindex.index.engines.whoosh.whoosh_engine import WhooshEngine, reading
from dedupindex.index.engines.whoosh.whoosh_files import LONGEST, SEARCHED, size_term, words_of
from dedupindex.index.format.cells import ALGORITHMS, digest_prefix
from dedupindex.index.identity import read_identity
from dedupindex.runtime.progress import watched
from dedupindex.timestamps import check_digits
from dedupindex.urlkey import urlkey

LIMIT = 100  # captures of a search
LONGEST_QUERY = 4096  # characters
_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"


class QueryField:
    """A field of queries; terms are lower case, without ranges. Methods raise `BadQuery`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def self_parsing(self) -> bool:
        return True

    def term(self, text: str) -> Any:
        """Return the query for a whole text."""
        return q.Term(self.name, self.normal(text))

    def prefix(self, text: str) -> Any:
        """Return the query for ``text*``."""
        return q.Prefix(self.name, self.normal(text))

    def pattern(self, text: str) -> Any:
        """Return the query for a text with ``*`` and ``?`` anywhere."""
        return q.Wildcard(self.name, text.lower())

    def normal(self, text: str) -> str:
        """Return a text in the form of the field's terms."""
        return text.lower()

    def bound(self, text: str, *, end: bool) -> str:
        """Return one end of a range as a term."""
        raise BadQuery(f"{self.name} has no ranges; date, size and status have")

    def parse_range(
        self, _: str, start: str | None, end: str | None, startexcl: bool, endexcl: bool, **__: Any
    ) -> Any:
        """Return the query for ``[start TO end]``; Whoosh's parser calls it."""
        first = self.bound(start, end=startexcl) if start else None
        last = self.bound(end, end=not endexcl) if end else None
        if first is not None and last is not None and first > last:
            raise BadQuery(f"{self.name}: {start} comes after {end}")
        return q.TermRange(self.name, first, last, startexcl, endexcl)


class _Word(QueryField):
    def term(self, text: str) -> Any:
        return q.And([q.Term("word", word) for word in self._words(text)])

    def prefix(self, text: str) -> Any:
        *whole, last = self._words(text)
        return q.And([*(q.Term("word", word) for word in whole), q.Prefix("word", last)])

    def _words(self, text: str) -> list[str]:
        words = words_of(text)
        if not words:
            raise BadQuery(f"there is no word in {text!r}")
        return words


class _Url(QueryField):
    def normal(self, text: str) -> str:
        if "://" not in text:
            text = f"http://{text}"
        key = urlkey(text.encode("utf-8", "surrogateescape"))
        return key.decode("utf-8", "surrogateescape")[:LONGEST]

    def prefix(self, text: str) -> Any:
        key = self.normal(text)
        if text.endswith("/") and not key.endswith("/"):
            key += "/"  # the urlkey of a directory has no slash at its end, those of its files do
        return q.Prefix("url", key)

    def pattern(self, text: str) -> Any:
        if "*" in text[:-1]:
            raise BadQuery("url takes a * at its end only")
        return self.prefix(text[:-1]) if text.endswith("*") else self.term(text)


class _Host(QueryField):
    def normal(self, text: str) -> str:
        return text.lower().strip(".")

    def pattern(self, text: str) -> Any:
        if text.startswith("*.") and not re.search(r"[*?]", text[2:]):
            return self.term(text[2:])  # the terms of a host are all domains that it is in
        return super().pattern(text)


class _StatusField(QueryField):
    def normal(self, text: str) -> str:
        if not text.isdecimal():
            raise BadQuery(f"status takes a number, 4?? or a range, not {text!r}")
        return text

    def bound(self, text: str, *, end: bool) -> str:
        return self.normal(text)


class _Size(_StatusField):
    def normal(self, text: str) -> str:
        if not text.isdecimal() or len(text) > 15:
            raise BadQuery(f"size takes bytes of payload, or a range of them, not {text!r}")
        return size_term(int(text)).decode()

    def prefix(self, text: str) -> Any:
        raise BadQuery("size takes no *; ask for a range, size:[1000 TO 2000]")

    pattern = prefix


class _Date(QueryField):
    def normal(self, text: str) -> str:
        digits = text.replace("-", "")
        if not re.fullmatch(r"\d{4}(\d\d(\d\d)?)?", digits, re.ASCII):
            raise BadQuery(f"date takes 2026, 2026-11, 2026-11-20 or a range, not {text!r}")
        try:
            check_digits((digits + "0101"[len(digits) - 4 :] + "000000").encode())
        except BadDate as error:
            raise BadQuery(f"no date {text!r}: {error}") from error
        return digits

    def term(self, text: str) -> Any:
        digits = self.normal(text)
        return q.Term("date", digits) if len(digits) == 8 else q.Prefix("date", digits)

    def bound(self, text: str, *, end: bool) -> str:
        return self.normal(text).ljust(8, "9" if end else "0")


class _DigestField(QueryField):
    """Digests in any spelling, whole or cut with ``*``, are prefixes of keys."""

    def term(self, text: str) -> Any:
        prefixes = []
        for algorithm in SIZES:
            try:
                digest = Digest.parse(text, unlabelled=algorithm)
            except BadDigest:
                continue
            prefixes.append(q.Prefix("key", digest_prefix(digest)))
        if not prefixes:
            raise BadQuery(f"{text!r} is not a digest; the beginning of one ends with *")
        return q.Or(prefixes[:1] if ":" in text else prefixes)

    def prefix(self, text: str) -> Any:
        label, _, value = text.lower().rpartition(":")
        algorithms = [label.replace("-", "")] if label else list(SIZES)
        if algorithms[0] not in SIZES:
            raise BadQuery(f"no digest algorithm {label!r}; there are {', '.join(SIZES)}")
        bits = {_bits(value, "0123456789abcdef", 4), _bits(value, _BASE32, 5)} - {""}
        if not bits:
            raise BadQuery(f"{text!r} begins no digest in hex or base32")
        codes = [ALGORITHMS.index(algorithm) for algorithm in algorithms]
        return q.Or([_key_bits(code, beginning) for code in codes for beginning in bits])

    def pattern(self, text: str) -> Any:
        raise BadQuery("digest takes a * at its end only")


def _bits(text: str, alphabet: str, width: int) -> str:
    """Return the bits of a text, "" if it is not written in `alphabet`."""
    if not set(text) <= set(alphabet):
        return ""
    return "".join(format(alphabet.index(char), f"0{width}b") for char in text)


def _key_bits(code: int, bits: str) -> Any:
    """Return the query for keys of an algorithm whose digest begins with `bits`."""
    whole, rest = divmod(len(bits), 8)
    start = bytes([code]) + (int(bits[: whole * 8] or "0", 2).to_bytes(whole, "big"))
    if not rest:
        return q.Prefix("key", start)
    span = 1 << (8 - rest)
    first = int(bits[whole * 8 :], 2) * span
    after = first + span
    last = start + (bytes([after]) if after < 256 else b"\xff" * 80)  # longer than any key
    return q.TermRange("key", start + bytes([first]), last, False, True)


FIELDS: dict[str, QueryField] = {name: QueryField(name) for name in SEARCHED}
FIELDS |= {
    "word": _Word("word"),
    "url": _Url("url"),
    "host": _Host("host"),
    "status": _StatusField("status"),
    "size": _Size("size"),
    "date": _Date("date"),
    "digest": _DigestField("digest"),
}


class _Quoted(plugins.SingleQuotePlugin):  # type: ignore[misc]  # Whoosh has no types
    """``"..."``: a text with spaces or brackets; the order of its words does not matter."""

    expr = r'"(?P<text>[^"]*)"'
    nodetype = syntax.WordNode


class _SearchParser(QueryParser):  # type: ignore[misc]
    """Whoosh's parser, with our fields."""

    def __init__(self) -> None:
        # A field's name is at the start of a word: colons in URLs and digests name none.
        fields = plugins.FieldsPlugin(r"(?:^|(?<=[\s(]))(?P<text>\w+):(?!//)", remove_unknown=False)
        super().__init__(
            "word",
            FIELDS,
            [
                _Quoted(),
                fields,
                plugins.WildcardPlugin(),
                plugins.RangePlugin(),
                plugins.GroupPlugin(),
                plugins.OperatorsPlugin(),
                plugins.EveryPlugin(),
            ],
        )
        self.asks_digest = False

    def term_query(self, fieldname: str, text: str, termclass: Any, *_: Any, **__: Any) -> Any:
        field = FIELDS.get(fieldname)
        if field is None:
            raise BadQuery(f"no field {fieldname!r}; there are {', '.join(FIELDS)}")
        self.asks_digest |= fieldname == "digest"
        if fieldname == "word" and "://" in text:
            field = FIELDS["url"]
        if text == "*":
            return q.Every(fieldname if fieldname != "digest" else None)
        kinds = {q.Prefix: field.prefix, q.Wildcard: field.pattern}
        return kinds.get(termclass, field.term)(text)


def parse(text: str) -> tuple[Any, bool]:
    """Return a query of Whoosh, and whether it names a digest; raises `BadQuery`."""
    _check(text)
    parser = _SearchParser()
    try:
        query = parser.parse(text)
    except RecursionError as error:
        raise BadQuery("the query has too many brackets in each other") from error
    except AttributeError as error:  # of Whoosh, when an operator lacks a side
        raise BadQuery(f"the query cannot be understood: {text!r}") from error
    if query == q.NullQuery or query is q.NullQuery:
        raise BadQuery(f"the query asks for nothing: {text!r}")
    return query, parser.asks_digest


def _check(text: str) -> None:
    """Raise `BadQuery` for mistakes that Whoosh's parser ignores."""
    if len(text) > LONGEST_QUERY:
        raise BadQuery(f"a query has at most {LONGEST_QUERY} characters")
    if not text.strip():
        raise BadQuery("there is nothing to search for")
    if text.count('"') % 2:
        raise BadQuery('a quotation mark is not closed: "..."')
    depth = 0
    for char in re.sub(r'"[^"]*"', "", text):
        depth += (char == "(") - (char == ")")
        if depth < 0:
            break
    if depth:
        raise BadQuery("brackets do not match; put a URL that has some in quotation marks")
    if match := re.search(r"(?:^|\s)(AND|OR|ANDNOT|ANDMAYBE|NOT|REQUIRE)\s*$", text):
        raise BadQuery(f"there is nothing after {match[1]}")
    if match := re.match(r"\s*(AND|OR|ANDNOT|ANDMAYBE|REQUIRE)\s", text):
        raise BadQuery(f"there is nothing before {match[1]}")


class SearchResult(NamedTuple):
    """How many captures match, and the earliest of them, by date."""

    total: int
    captures: list[Capture]


def search(
    index: Path, text: str, limit: int = LIMIT, on_progress: OnProgress = silent
) -> SearchResult:
    """Return at most `limit` matches, 0 for all; raises `BadQuery` or `StrategyUnavailable`."""
    identity = read_identity(index)
    if identity.engine != "whoosh":
        raise StrategyUnavailable(
            f"the index at {index} is on engine {identity.engine}, which cannot be "
            "searched; build one with --engine whoosh, or use bin/list"
        )
    if identity.settings.keys().canonical:
        identity.check_canonicaliser()
    (query, also), total = parse(text), 0
    with closing(WhooshEngine(index)) as engine, engine.view() as view:

        def matching() -> Iterator[tuple[bytes, bytes]]:
            nonlocal total
            for match in watched(view.matching(query, also), "searching", 0, on_progress):
                total += 1
                yield match

        with reading("the index"):
            found = nsmallest(limit, matching()) if limit else sorted(matching())
            return SearchResult(total, [view.capture_in(content) for _, content in found])
