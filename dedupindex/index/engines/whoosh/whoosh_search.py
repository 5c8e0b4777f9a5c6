"""The language of ``bin/search``: Whoosh's own, over fields that archivists know.

Whoosh parses AND, OR, NOT, brackets, ranges and wildcards; what a word means in a field is said
in `query_fields`. Whoosh itself never fails on a query, it makes something of it: what cannot be
meant is a `BadQuery` here, because a search that finds nothing reads as "there is nothing".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from whoosh import query as q
from whoosh.qparser import QueryParser, plugins, syntax

from dedupindex.errors import BadQuery
from dedupindex.index.engines.whoosh.query_fields import FIELDS

LONGEST_QUERY = 4096  # characters


class _Quoted(plugins.SingleQuotePlugin):  # type: ignore[misc]  # Whoosh has no types
    """``"..."``: a text with blanks or brackets in it (phrases are not kept in order)."""

    expr = r'"(?P<text>[^"]*)"'
    nodetype = syntax.WordNode


class _Parser(QueryParser):  # type: ignore[misc]
    """Whoosh's parser, with our fields and without what it lets pass."""

    def __init__(self) -> None:
        # A field's name stands at the start of a word: the colons in a URL or digest name none.
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
        kinds: dict[Any, Callable[[str], Any]] = {
            q.Prefix: field.prefix,
            q.Wildcard: field.pattern,
        }
        return kinds.get(termclass, field.term)(text)


class Parsed:
    """A query, and whether it asks for a digest: then what stands under it as a further one counts.

    Raises `BadQuery`.
    """

    def __init__(self, text: str) -> None:
        _check(text)
        parser = _Parser()
        try:
            self.query = parser.parse(text)
        except RecursionError as error:
            raise BadQuery("the query has too many brackets in each other") from error
        except AttributeError as error:  # what Whoosh's tree is asked when an operator lacks a side
            raise BadQuery(f"the query cannot be understood: {text!r}") from error
        if self.query == q.NullQuery or self.query is q.NullQuery:
            raise BadQuery(f"the query asks for nothing: {text!r}")
        self.asks_digest = parser.asks_digest


def _check(text: str) -> None:
    """What Whoosh's parser would pass over."""
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
