"""An expression cut into words, each with its place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from dedupindex.errors import BadQuery

LONGEST = 10_000  # characters
_SHOWN = 30  # characters before and after a place that is complained about
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)(?P<unit>[A-Za-z_]*)
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*)
    |'(?P<single>(?:[^']|'')*)'
    |"(?P<double>(?:[^"]|"")*)"
    |(?P<sign>===|==|!=|<=|>=|=~|=<|=>|&&|\|\||<>|[-+*/<>(),=!])
    )""",
    re.VERBOSE,
)
_MEANT = {"===": "==", "=<": "<=", "=>": ">=", "<>": "!=", "&&": "and", "||": "or", "!": "not"}


class Lexeme(NamedTuple):
    """`kind` is number, word, text, sign or end."""

    kind: str
    text: str  # of a number without its unit; of a text what it says
    unit: str
    at: int


def complain(expression: str, at: int, what: str) -> NoReturn:
    """Raise `BadQuery` with the place, counted from 1."""
    begin, end = max(at - _SHOWN, 0), at + _SHOWN
    shown = ("…" if begin else "") + expression[begin:end] + ("…" * (end < len(expression)))
    raise BadQuery(f"{what}, at character {at + 1} of the expression: {shown}")


def tokens(expression: str) -> Iterator[Lexeme]:
    """All words, and an end; raises `BadQuery`."""
    if len(expression) > LONGEST:
        raise BadQuery(f"an expression has at most {LONGEST:,} characters")
    if odd := next((char for char in expression if "\ud800" <= char <= "\udfff"), ""):
        at = expression.index(odd)
        shown = expression.encode("utf-8", "replace").decode()
        complain(shown, at, "there is a character that is no UTF-8")
    if "\0" in expression:
        complain(expression, expression.index("\0"), "there is a character 0")
    at, length = 0, len(expression.rstrip())
    while at < length:
        found = _TOKEN.match(expression, at)
        if found is None:
            _refuse(expression, at + len(expression[at:]) - len(expression[at:].lstrip()))
        at = found.end()
        kind = found.lastgroup or ""
        begin = found.start(kind)
        if kind in ("number", "unit"):
            yield Lexeme("number", found["number"], found["unit"], found.start("number"))
        elif kind == "single":
            yield Lexeme("text", found[kind].replace("''", "'"), "", begin - 1)
        elif kind == "double":
            yield Lexeme("text", found[kind].replace('""', '"'), "", begin - 1)
        elif found[kind] in _MEANT:
            word = found[kind]
            complain(expression, begin, f"{word} means nothing here: write {_MEANT[word]}")
        else:
            yield Lexeme(kind, found[kind], "", begin)
    yield Lexeme("end", "", "", length)


def _refuse(expression: str, at: int) -> NoReturn:
    if expression[at] in "'\"":
        complain(expression, at, "a text begins that does not end")
    complain(expression, at, f"{expression[at]!r} means nothing here")
