"""Text to a typed tree, or to a sentence that says where it ends to make sense and why.

condition   and-ed ("or" and-ed)*               and-ed    negated ("and" negated)*
negated     "not" negated | compared            compared  sum [SIGN sum | "=~" text | member]
member      ["not"] "in" "(" sum ("," sum)* ")"
sum         product (("+" | "-") product)*      product   single (("*" | "/") single)*
single      "-" single | number | text | name | name "(" … ")" | "(" condition ")"
"""

from __future__ import annotations

import re
from calendar import isleap, monthrange
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from dedupindex.errors import BadDate, BadQuery
from dedupindex.expression.tree import (
    Arithmetic,
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
    OperandKind,
    Some,
    Vocabulary,
)
from dedupindex.runtime.safe_regex import Pattern
from dedupindex.timestamps import check_digits, date_of_digits, seconds

# An expression cut into words, each with its place.

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


# Words of an expression, taken one after the other.

KEYWORDS = ("and", "or", "not", "in")


class Words:
    """All words of a text, and the one that comes next. Raises `BadQuery`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._tokens = list(tokens(text))
        self._next = 0

    @property
    def here(self) -> Lexeme:
        """The next word."""
        return self._tokens[self._next]

    @property
    def last(self) -> Lexeme:
        """The word that was taken last."""
        return self._tokens[self._next - 1]

    def fail(self, token: Lexeme, what: str) -> NoReturn:
        """Complain about the place of a word."""
        complain(self.text, token.at, what)

    def take(self) -> Lexeme:
        """Take the next word."""
        token = self.here
        self._next += token.kind != "end"
        return token

    def met(self, *words: str) -> str:
        """The next word if it is one of these, which is then taken; else empty."""
        token = self.here
        if token.kind == "sign" and token.text in words:
            return self.take().text
        word = token.text.lower()
        if token.kind == "word" and word in words and word in KEYWORDS:
            self.take()
            return word
        return ""

    def expect(self, sign: str, why: str) -> None:
        """Take a sign that must come next."""
        if not self.met(sign):
            self.fail(self.here, f"{sign} is expected {why}, not {shown(self.here)}")


def shown(token: Lexeme) -> str:
    """A word as a complaint quotes it."""
    return "the end" if token.kind == "end" else repr(token.text)


# Constants as people write them: ``7d``, ``500KB``, ``'2020-05'``.

SPANS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
SIZES = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
LARGEST = 1 << 53  # whole numbers up to it are told apart from their neighbours everywhere
_DATE = re.compile(
    r"([0-9]{4})(?:-([0-9]{2})(?:-([0-9]{2})(?:[T ]([0-9]{2})"
    r"(?::([0-9]{2})(?::([0-9]{2}))?)?)?)?)?Z?"
)
_FIRST = "00000101000000"  # what a date lacks at its end
_WHOLE = {8: 86_400, 10: 3600, 12: 60, 14: 1}  # seconds of what so many digits name


def number(text: str, unit: str) -> Literal | None:
    """A number with its unit; None if it is too large, or there is no such unit."""
    value = float(text)
    if unit in SPANS:
        kind, value = OperandKind.SPAN, value * SPANS[unit]
    elif not unit or unit.lower() in SIZES:
        kind, value = OperandKind.NUMBER, value * (SIZES[unit.lower()] if unit else 1)
    else:
        return None
    if value > LARGEST:
        return None
    return Literal(kind, int(value) if value.is_integer() else value)


def advice(kinds: set[OperandKind], *, arithmetic: bool = False) -> str:
    """How a constant is written that makes two kinds go together."""
    if (
        OperandKind.TEXT in kinds
        and kinds & {OperandKind.NUMBER, OperandKind.SPAN}
        and not arithmetic
    ):
        return ": text has quotes and a number has none, as 'text/html', 200, 5KB, 7d"
    if OperandKind.NUMBER in kinds and (
        OperandKind.SPAN in kinds or arithmetic and OperandKind.TEXT not in kinds
    ):
        return ": lengths of time have units, as 7d, 12h, 30m, 45s"
    if OperandKind.TIME in kinds:
        return ": a time is compared with a time or with a date in quotes, as '2020-05'"
    return ""


def moments(text: str) -> tuple[int, int]:
    """The first and the last second of a year, month, day, …, in 4 to 14 digits or as ISO 8601.

    Raises `BadDate`.
    """
    found = _DATE.fullmatch(text)
    digits = "".join(filter(None, found.groups())) if found else text
    if not (digits.isascii() and digits.isdigit() and 4 <= len(digits) <= 14) or len(digits) % 2:
        raise BadDate(f"no date, which is '2020', '2020-05', '2020-05-01T10:30:00': {text[:64]!r}")
    whole = check_digits((digits + _FIRST[len(digits) :]).encode())
    begin = seconds(date_of_digits(whole))
    return begin, begin + _length(digits) - 1


def _length(digits: str) -> int:
    """Seconds of what the digits name."""
    year = int(digits[:4])
    if len(digits) == 4:
        return (365 + isleap(year)) * 86_400
    if len(digits) == 6:
        return monthrange(year, int(digits[4:6]))[1] * 86_400
    return _WHOLE[len(digits)]


DEEPEST = 50  # parentheses, minuses and nots within each other
_SIGNS = ("==", "!=", "<=", ">=", "<", ">")
_OF = {  # kinds that arithmetic joins, and what comes of it
    (OperandKind.NUMBER, "+", OperandKind.NUMBER): OperandKind.NUMBER,
    (OperandKind.NUMBER, "-", OperandKind.NUMBER): OperandKind.NUMBER,
    (OperandKind.NUMBER, "*", OperandKind.NUMBER): OperandKind.NUMBER,
    (OperandKind.NUMBER, "/", OperandKind.NUMBER): OperandKind.NUMBER,
    (OperandKind.TIME, "+", OperandKind.SPAN): OperandKind.TIME,
    (OperandKind.SPAN, "+", OperandKind.TIME): OperandKind.TIME,
    (OperandKind.TIME, "-", OperandKind.SPAN): OperandKind.TIME,
    (OperandKind.TIME, "-", OperandKind.TIME): OperandKind.SPAN,
    (OperandKind.SPAN, "+", OperandKind.SPAN): OperandKind.SPAN,
    (OperandKind.SPAN, "-", OperandKind.SPAN): OperandKind.SPAN,
    (OperandKind.SPAN, "*", OperandKind.NUMBER): OperandKind.SPAN,
    (OperandKind.NUMBER, "*", OperandKind.SPAN): OperandKind.SPAN,
    (OperandKind.SPAN, "/", OperandKind.NUMBER): OperandKind.SPAN,
    (OperandKind.SPAN, "/", OperandKind.SPAN): OperandKind.NUMBER,
}


def condition(text: str, vocabulary: Vocabulary) -> Node:
    """The condition that a text states; raises `BadQuery`."""
    return _Parser(text, vocabulary).whole(OperandKind.CONDITION)


def amount(text: str, vocabulary: Vocabulary) -> Node:
    """The number that a text states; raises `BadQuery`."""
    return _Parser(text, vocabulary).whole(OperandKind.NUMBER)


class _Parser(Words):
    def __init__(self, text: str, vocabulary: Vocabulary) -> None:
        super().__init__(text)
        self._vocabulary = vocabulary
        self._depth = 0

    def whole(self, kind: OperandKind) -> Node:
        begin = self.here
        node = self._condition()
        if self.here.kind != "end":
            comma = self.last.kind == "number" and re.match(",[0-9]", self.text[self.here.at :])
            point = ": of a number the point is a ." if comma else ""
            self.fail(
                self.here, f"'and', 'or' or the end is expected, not {shown(self.here)}{point}"
            )
        return self._of_kind(node, kind, begin)

    def _of_kind(self, node: Node, kind: OperandKind, at: Lexeme) -> Node:
        if node.kind is not kind:
            self.fail(at, f"{kind.value} is expected here, and this is {node.kind.value}")
        return node

    # --- conditions ----------------------------------------------------------------------------

    def _condition(self) -> Node:
        return self._joined("or")

    def _joined(self, word: str) -> Node:
        begin = self.here
        first = self._joined("and") if word == "or" else self._negated()
        several = [first]
        while self.met(word):
            self._of_kind(several[-1], OperandKind.CONDITION, begin)
            begin = self.here
            several.append(self._joined("and") if word == "or" else self._negated())
            self._of_kind(several[-1], OperandKind.CONDITION, begin)
        if len(several) == 1:
            return first
        return Some(tuple(several)) if word == "or" else Every(tuple(several))

    def _negated(self) -> Node:
        if not self.met("not"):
            return self._compared()
        begin = self.here
        self._deeper(begin)
        node = self._of_kind(self._negated(), OperandKind.CONDITION, begin)
        self._depth -= 1
        return Not(node)

    def _deeper(self, token: Lexeme) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            self.fail(token, f"this is nested more than {DEEPEST} deep")

    def _compared(self) -> Node:
        left = self._sum()
        token = self.here
        if sign := self.met(*_SIGNS):
            node = self._comparison(left, sign, self._sum(), token)
        elif self.met("=~"):
            node = self._matching(left, token)
        elif self.met("in"):
            node = self._member(left, token)
        elif self.met("not"):
            if not self.met("in"):
                self.fail(self.here, f"'in' is expected after 'not', not {shown(self.here)}")
            node = Not(self._member(left, token))
        elif token.kind == "sign" and token.text == "=":
            self.fail(token, "= means nothing here: write ==")
        else:
            return left
        if self.here.text in _SIGNS and self.here.kind == "sign":
            self.fail(self.here, "only two things are compared: join comparisons with 'and'")
        return node

    def _comparison(self, left: Node, sign: str, right: Node, token: Lexeme) -> Node:
        if left.kind is OperandKind.TEXT and right.kind is OperandKind.TIME:
            turned = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(sign, sign)
            return self._comparison(right, turned, left, token)
        if sign == "!=":
            return Not(self._comparison(left, "==", right, token))
        if (
            left.kind is OperandKind.TIME
            and isinstance(right, Literal)
            and right.kind is OperandKind.TEXT
        ):
            return self._at_time(left, sign, right, token)
        if left.kind is not right.kind or left.kind is OperandKind.CONDITION:
            self.fail(token, f"{left.kind.value} and {right.kind.value} cannot be compared"
                       + advice({left.kind, right.kind}))  # fmt: skip
        return Comparison(sign, left, right)

    def _at_time(self, left: Node, sign: str, right: Literal, token: Lexeme) -> Node:
        """A comparison with all the seconds that a date names."""
        begin, end = self._moments(right, token)
        if sign == "==":
            return Every((Comparison(">=", left, begin), Comparison("<=", left, end)))
        return Comparison(sign, left, begin if sign in ("<", ">=") else end)

    def _moments(self, date: Literal, token: Lexeme) -> tuple[Literal, Literal]:
        try:
            begin, end = moments(str(date.value))
        except BadDate as error:
            self.fail(token, str(error))
        return Literal(OperandKind.TIME, begin), Literal(OperandKind.TIME, end)

    def _matching(self, left: Node, token: Lexeme) -> Node:
        pattern = self.take()
        if left.kind is not OperandKind.TEXT or pattern.kind != "text":
            self.fail(token, "=~ takes text at its left, and at its right a regular expression "
                       "in quotes")  # fmt: skip
        try:
            Pattern(pattern.text)
        except BadQuery as error:
            complain(self.text, pattern.at, str(error))
        return Matching(left, pattern.text)

    def _member(self, left: Node, token: Lexeme) -> Node:
        self.expect("(", "after 'in'")
        found: list[Node] = []
        while not found or self.met(","):
            begin = self.here
            value = self._sum()
            if not isinstance(value, Literal):
                self.fail(begin, "'in' takes constants")
            found.append(self._comparison(left, "==", value, begin))
        self.expect(")", "after the constants of 'in'")
        if left.kind is OperandKind.TIME:  # which are stretches of time
            return Some(tuple(found)) if len(found) > 1 else found[0]
        values = [one.right for one in found if isinstance(one, Comparison)]
        return Membership(left, tuple(value for value in values if isinstance(value, Literal)))

    # --- values --------------------------------------------------------------------------------

    def _sum(self) -> Node:
        node = self._product()
        while sign := self.met("+", "-"):
            node = self._arithmetic(node, sign, self._product())
        return node

    def _product(self) -> Node:
        node = self._single()
        while sign := self.met("*", "/"):
            node = self._arithmetic(node, sign, self._single())
        return node

    def _arithmetic(self, left: Node, sign: str, right: Node) -> Node:
        kind = _OF.get((left.kind, sign, right.kind))
        if kind is None:
            self.fail(self.last, f"{left.kind.value} {sign} {right.kind.value} has no meaning"
                       + advice({left.kind, right.kind}, arithmetic=True))  # fmt: skip
        return Arithmetic(sign, left, right, kind)

    def _single(self) -> Node:
        token = self.take()
        if token.kind == "number":
            return self._number(token)
        if token.kind == "text":
            return Literal(OperandKind.TEXT, token.text)
        if token.kind == "word" and token.text.lower() not in KEYWORDS:
            return self._named(token)
        if token.kind == "sign" and token.text in "(-":
            self._deeper(token)
            node = self._inner() if token.text == "(" else self._negative(token)
            self._depth -= 1
            return node
        return self.fail(token, f"a value is expected, not {shown(token)}")

    def _inner(self) -> Node:
        node = self._condition()
        self.expect(")", "to end what a ( began")
        return node

    def _negative(self, token: Lexeme) -> Node:
        node = self._single()
        if node.kind not in (OperandKind.NUMBER, OperandKind.SPAN):
            self.fail(token, f"- {node.kind.value} has no meaning")
        if isinstance(node, Literal) and not isinstance(node.value, str):
            return Literal(node.kind, -node.value)
        return Arithmetic("-", Literal(node.kind, 0), node, node.kind)

    def _number(self, token: Lexeme) -> Node:
        found = number(token.text, token.unit)
        if found is None and token.unit not in SPANS and token.unit.lower() not in ("", *SIZES):
            self.fail(token, f"there is no unit {token.unit}, but {', '.join(SPANS)} of time and "
                       "B, KB, MB, GB, TB, KiB, MiB, GiB, TiB of size")  # fmt: skip
        if found is None:
            self.fail(token, f"{token.text}{token.unit} is too large")
        return found

    def _named(self, token: Lexeme) -> Node:
        words = self._vocabulary
        if token.text in words.measures:
            return self._measure(token, words.measures[token.text])
        if token.text in words.attributes:
            side = self._side(token) if words.sides else ""
            return Attribute(token.text, words.attributes[token.text], side, token.at)
        if token.text == "hostname" and self.here.text == "(":
            self.expect("(", "after hostname")
            begin = self.here
            node = self._of_kind(self._sum(), OperandKind.TEXT, begin)
            self.expect(")", "after what hostname is asked of")
            return Hostname(node)
        known = ", ".join([*words.attributes, *words.measures])
        return self.fail(token, f"there is no {token.text} here, but {known}")

    def _side(self, name: Lexeme) -> str:
        sides = self._vocabulary.sides
        meant = " or ".join(f"{name.text}({side})" for side in sides)
        if not self.met("("):
            self.fail(name, f"of which document? write {meant}")
        token = self.take()
        if token.text not in sides or token.kind != "word":
            self.fail(token, f"of which document? write {meant}")
        self.expect(")", f"after {name.text}({token.text}")
        return token.text

    def _measure(self, name: Lexeme, settings: tuple[str, ...]) -> Node:
        example = ", ".join(f"{setting}=5" for setting in settings)
        form = f"{name.text}({example}), with whole numbers from 1 on"
        values: dict[str, int] = {}
        found = self.met("(")
        while found and len(values) < len(settings):
            word, sign, value = self.take(), self.take().text == "=", self.take()
            if (
                word.text not in settings or word.text in values or not sign
                or value.kind != "number" or not value.text.isdecimal() or value.unit
                or int(value.text) < 1
            ):  # fmt: skip
                self.fail(word, f"{name.text} is written {form}")
            values[word.text] = int(value.text)
            if len(values) < len(settings):
                self.met(",")
        if not found or not self.met(")"):
            self.fail(self.here, f"{name.text} is written {form}")
        return Measure(name.text, tuple(values[setting] for setting in settings), name.at)
