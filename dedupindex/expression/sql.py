"""An expression as DuckDB takes it; `evaluate` says the same in Python."""

from __future__ import annotations

from collections.abc import Callable

from dedupindex.expression.evaluate import HOST, LOWER, UPPER
from dedupindex.expression.tree import (
    Arithmetic,
    Comparison,
    Every,
    Hostname,
    Leaf,
    Literal,
    Matching,
    Membership,
    Node,
    Not,
    Some,
)

Column = Callable[[Leaf], str]
"""SQL for a value: text as VARCHAR, numbers, times and lengths of time as whole or other numbers;
NULL is missing."""


def to_sql(node: Node, column: Column) -> str:
    """SQL of an expression. A condition that is false may come out as NULL, which WHERE refuses."""
    match node:
        case Literal():
            return _constant(node)
        case Hostname(of=one):
            found = f"regexp_extract({to_sql(one, column)}, {text(HOST)}, 1)"
            return f"nullif(translate({found}, '{UPPER}', '{LOWER}'), '')"
        case Arithmetic():
            return _arithmetic(node, column)
        case Comparison(sign=sign, left=left, right=right):
            sign = "=" if sign == "==" else sign
            return f"({to_sql(left, column)} {sign} {to_sql(right, column)})"
        case Membership(of=one, values=values):
            return f"({to_sql(one, column)} IN ({', '.join(map(_constant, values))}))"
        case Matching(of=one, pattern=pattern):
            return f"regexp_matches({to_sql(one, column)}, {text(pattern)}, 's')"
        case Not(of=one):
            return f"(({to_sql(one, column)}) IS NOT TRUE)"
        case Every(of=several):
            return f"({' AND '.join(to_sql(one, column) for one in several)})"
        case Some(of=several):
            return f"({' OR '.join(to_sql(one, column) for one in several)})"
        case leaf:
            return column(leaf)


def text(value: str) -> str:
    """A string as SQL spells it."""
    return "'" + value.replace("'", "''") + "'"


def _constant(literal: Literal) -> str:
    if isinstance(literal.value, str):
        return text(literal.value)
    if isinstance(literal.value, int):
        return str(literal.value)
    return f"CAST('{literal.value!r}' AS DOUBLE)"  # bare it would be a decimal


def _arithmetic(node: Arithmetic, column: Column) -> str:
    """In doubles, as Python does it; what is not finite is missing."""
    left, right = (f"CAST({to_sql(one, column)} AS DOUBLE)" for one in (node.left, node.right))
    if node.sign in "+-":
        return f"({left} {node.sign} {right})"
    if node.sign == "/":
        right = f"nullif({right}, 0)"
    return f"list_first(list_filter([{left} {node.sign} {right}], lambda x: isfinite(x)))"
