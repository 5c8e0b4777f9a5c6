"""An expression on values that Python has; `sql` says the same to DuckDB."""

from __future__ import annotations

import re
from functools import lru_cache
from math import isfinite
from operator import eq, ge, gt, le, lt

from dedupindex.expression.tree import (
    Arithmetic,
    Asked,
    Attribute,
    Comparison,
    Every,
    Hostname,
    Literal,
    Matching,
    Measure,
    Membership,
    Node,
    Not,
    Some,
    Value,
)
from dedupindex.runtime.safe_regex import Pattern

HOST = r"^[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#@]*@)?(\[[^\]/?#]*\]|[^/?#:]*)"
UPPER, LOWER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz"
_COMPARE = {"==": eq, "<": lt, "<=": le, ">": gt, ">=": ge}
_SMALL = str.maketrans(UPPER, LOWER)
_found_host = re.compile(HOST).search


def holds(node: Node, asked: Asked) -> bool:
    """Whether a condition is true of the values that `asked` tells."""
    match node:
        case Every(of=several):
            return all(holds(one, asked) for one in several)
        case Some(of=several):
            return any(holds(one, asked) for one in several)
        case Not(of=one):
            return not holds(one, asked)
        case Comparison(sign=sign, left=left, right=right):
            first, second = value(left, asked), value(right, asked)
            if first is None or second is None:
                return False
            return bool(_COMPARE[sign](first, second))
        case Membership(of=one, values=values):
            return value(one, asked) in [constant.value for constant in values]
        case Matching(of=one, pattern=pattern):
            text = value(one, asked)
            return text is not None and _compiled(pattern).found_in(str(text))
        case _:
            raise TypeError(f"{node} is no condition")


def value(node: Node, asked: Asked) -> Value:
    """What something that is no condition comes to; None if it is missing."""
    match node:
        case Literal(value=constant):
            return constant
        case Attribute() | Measure():
            return asked(node)
        case Hostname(of=one):
            return hostname(value(one, asked))
        case Arithmetic(sign=sign, left=left, right=right):
            return _calculated(sign, value(left, asked), value(right, asked))
        case _:
            raise TypeError(f"{node} is a condition")


def hostname(url: Value) -> str | None:
    """The host of a URL in small letters, or None."""
    found = _found_host(url) if isinstance(url, str) else None
    return (found[1].translate(_SMALL) or None) if found else None


def _calculated(sign: str, left: Value, right: Value) -> Value:
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
