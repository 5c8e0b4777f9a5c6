"""Conditions on metadata, in the language of `expression`, and where DuckDB can try them."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from dedupindex.corpus.row import CorpusRow
from dedupindex.expression.evaluate import holds, hostname
from dedupindex.expression.parser import condition
from dedupindex.expression.sql import to_sql
from dedupindex.expression.tree import (
    Attribute,
    Hostname,
    Leaf,
    Node,
    OperandKind,
    Value,
    Vocabulary,
    joined,
    leaves,
)
from dedupindex.timestamps import date_of_digits, seconds

VOCABULARY = Vocabulary(
    {
        "url": OperandKind.TEXT,
        "surt": OperandKind.TEXT,
        "hostname": OperandKind.TEXT,
        "timestamp": OperandKind.TIME,
        "mime": OperandKind.TEXT,
        "status": OperandKind.NUMBER,
        "digest": OperandKind.TEXT,
        "redirect": OperandKind.TEXT,
        "meta": OperandKind.TEXT,
        "length": OperandKind.NUMBER,
        "container": OperandKind.TEXT,
    }
)
OF_PAYLOAD = frozenset(("mime", "status"))
"""What a CDX says of a revisit only once its original is known."""

_HOSTNAME = Hostname(Attribute("url", OperandKind.TEXT))


class Condition(NamedTuple):
    """One of several that must all be true."""

    node: Node
    sql: str
    names: frozenset[str]

    @property
    def of_payload(self) -> bool:
        """Whether it cannot be tried on a revisit whose original is not known yet."""
        return not self.names.isdisjoint(OF_PAYLOAD)

    def holds(self, capture: CorpusRow) -> bool:
        """The same of a capture that is at hand."""
        return holds(self.node, partial(_asked, capture))


def conditions(text: str) -> tuple[Condition, ...]:
    """The conditions that a text joins with ``and``; raises `BadQuery`."""
    return tuple(
        Condition(node, to_sql(node, _column), frozenset(leaf.name for leaf in leaves(node)))
        for node in joined(condition(text, VOCABULARY))
    )


def _asked(capture: CorpusRow, leaf: Leaf) -> Value:
    if leaf.name == "hostname":
        return hostname(capture.url)
    if leaf.name == "timestamp":
        return seconds(date_of_digits(capture.timestamp.encode()))
    found: Value = getattr(capture, leaf.name)
    return found


def _column(leaf: Leaf) -> str:
    if leaf.name == "hostname":
        return to_sql(_HOSTNAME, _column)
    if leaf.name == "timestamp":
        return "CAST(epoch(try_strptime(\"timestamp\", '%Y%m%d%H%M%S')) AS BIGINT)"
    return f'"{leaf.name}"'
