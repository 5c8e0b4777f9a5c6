"""Evaluate an expression in Python, or translate it into SQL of DuckDB with the same result."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from math import isfinite
from operator import eq, ge, gt, le, lt

from dedupindex.expression import tree
from dedupindex.expression.tree import Leaf, Lookup, Node, Value
from dedupindex.runtime.safe_regex import Pattern

_HOST = r"^[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#@]*@)?(\[[^\]/?#]*\]|[^/?#:]*)"
_UPPER, _LOWER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz"
_COMPARE = {"==": eq, "<": lt, "<=": le, ">": gt, ">=": ge}
_TO_LOWER = str.maketrans(_UPPER, _LOWER)
_search_host = re.compile(_HOST).search

Column = Callable[[Leaf], str]
"""SQL for a value: text as VARCHAR, numbers, times and durations as numbers; NULL if missing."""


def holds(node: Node, lookup: Lookup) -> bool:
    """Return whether a condition is true of the values that `lookup` returns."""
    match node:
        case tree.And(operands=operands):
            return all(holds(operand, lookup) for operand in operands)
        case tree.Or(operands=operands):
            return any(holds(operand, lookup) for operand in operands)
        case tree.Not(operand=operand):
            return not holds(operand, lookup)
        case tree.Comparison(sign=sign, left=left, right=right):
            first, second = value(left, lookup), value(right, lookup)
            return first is not None and second is not None and bool(_COMPARE[sign](first, second))
        case tree.Membership(operand=operand, values=values):
            return value(operand, lookup) in [constant.value for constant in values]
        case tree.RegexMatch(operand=operand, pattern=pattern):
            text = value(operand, lookup)
            return text is not None and _compiled(pattern).found_in(str(text))
        case _:
            raise TypeError(f"{node} is not a condition")


def value(node: Node, lookup: Lookup) -> Value:
    """Return the value of an expression that is not a condition; None if it is missing."""
    match node:
        case tree.Literal(value=constant):
            return constant
        case tree.Attribute() | tree.Measure():
            return lookup(node)
        case tree.Hostname(operand=operand):
            return hostname(value(operand, lookup))
        case tree.Arithmetic(sign=sign, left=left, right=right):
            return _calculate(sign, value(left, lookup), value(right, lookup))
        case _:
            raise TypeError(f"{node} is a condition")


def hostname(url: Value) -> str | None:
    """Return the host of a URL in lower case, or None."""
    match = _search_host(url) if isinstance(url, str) else None
    return (match[1].translate(_TO_LOWER) or None) if match else None


def _calculate(sign: str, left: Value, right: Value) -> Value:
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        return None  # one is missing
    first, second = float(left), float(right)
    if sign in "+-":
        return first + second if sign == "+" else first - second
    if sign == "/" and not second:
        return None
    result = first * second if sign == "*" else first / second
    return result if isfinite(result) else None


@lru_cache(1024)
def _compiled(pattern: str) -> Pattern:
    return Pattern(pattern)


def to_sql(node: Node, column: Column) -> str:
    """Return SQL of an expression. A false condition may be NULL, which WHERE treats as false."""
    match node:
        case tree.Literal():
            return _constant(node)
        case tree.Hostname(operand=operand):
            host = f"regexp_extract({to_sql(operand, column)}, {_quoted(_HOST)}, 1)"
            return f"nullif(translate({host}, '{_UPPER}', '{_LOWER}'), '')"
        case tree.Arithmetic():
            return _arithmetic(node, column)
        case tree.Comparison(sign=sign, left=left, right=right):
            sign = "=" if sign == "==" else sign
            return f"({to_sql(left, column)} {sign} {to_sql(right, column)})"
        case tree.Membership(operand=operand, values=values):
            return f"({to_sql(operand, column)} IN ({', '.join(map(_constant, values))}))"
        case tree.RegexMatch(operand=operand, pattern=pattern):
            return f"regexp_matches({to_sql(operand, column)}, {_quoted(pattern)}, 's')"
        case tree.Not(operand=operand):
            return f"(({to_sql(operand, column)}) IS NOT TRUE)"
        case tree.And(operands=operands):
            return f"({' AND '.join(to_sql(operand, column) for operand in operands)})"
        case tree.Or(operands=operands):
            return f"({' OR '.join(to_sql(operand, column) for operand in operands)})"
        case leaf:
            return column(leaf)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _constant(literal: tree.Literal) -> str:
    if isinstance(literal.value, str):
        return _quoted(literal.value)
    if isinstance(literal.value, int):
        return str(literal.value)
    return f"CAST('{literal.value!r}' AS DOUBLE)"  # a bare number would be a DECIMAL


def _arithmetic(node: tree.Arithmetic, column: Column) -> str:
    """Calculate with DOUBLE, as `_calculate` does; NULL if the result is not finite."""
    left, right = (f"CAST({to_sql(side, column)} AS DOUBLE)" for side in (node.left, node.right))
    if node.sign in "+-":
        return f"({left} {node.sign} {right})"
    if node.sign == "/":
        right = f"nullif({right}, 0)"
    return f"list_first(list_filter([{left} {node.sign} {right}], lambda x: isfinite(x)))"
