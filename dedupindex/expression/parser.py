"""Parse the text of an expression into a typed tree, or raise `BadQuery` with the position.

condition   conjunct ("or" conjunct)*           conjunct  negation ("and" negation)*
negation    "not" negation | test               test      sum [SIGN sum | "=~" text | member]
member      ["not"] "in" "(" sum ("," sum)* ")"
sum         product (("+" | "-") product)*      product   operand (("*" | "/") operand)*
operand     "-" operand | number | text | name | name "(" … ")" | "(" condition ")"
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable, Iterator
from typing import NamedTuple, NoReturn

from dedupindex.errors import BadDate, BadQuery
from dedupindex.expression import tree
from dedupindex.expression.tree import Literal, Node, OperandKind, Vocabulary
from dedupindex.runtime.safe_regex import Pattern
from dedupindex.timestamps import check_digits, date_of_digits, seconds

CONDITION, NUMBER, TEXT, TIME, SPAN = OperandKind

# --- tokens --------------------------------------------------------------------------------------

MAX_LENGTH = 10_000  # characters of an expression
_CONTEXT = 30  # characters that an error message quotes before and after the position
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
_CORRECTIONS = {"===": "==", "=<": "<=", "=>": ">=", "<>": "!=", "&&": "and", "||": "or",
                "!": "not"}  # fmt: skip
KEYWORDS = ("and", "or", "not", "in")


class Lexeme(NamedTuple):
    """`kind` is number, word, text, sign or end."""

    kind: str
    text: str  # of a number without its unit; of a text without its quotes
    unit: str
    position: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else repr(self.text)


def reject(expression: str, position: int, message: str) -> NoReturn:
    """Raise `BadQuery` with the message and the position, counted from 1."""
    begin, end = max(position - _CONTEXT, 0), position + _CONTEXT
    excerpt = ("…" if begin else "") + expression[begin:end] + ("…" * (end < len(expression)))
    raise BadQuery(f"{message}, at character {position + 1} of the expression: {excerpt}")


def _check_characters(expression: str) -> None:
    if len(expression) > MAX_LENGTH:
        raise BadQuery(f"an expression has at most {MAX_LENGTH:,} characters")
    if found := re.search("[\ud800-\udfff]", expression):
        printable = expression.encode("utf-8", "replace").decode()
        reject(printable, found.start(), "there is a character that is not UTF-8")
    if "\0" in expression:
        reject(expression, expression.index("\0"), "there is a character 0")


def tokens(expression: str) -> Iterator[Lexeme]:
    """Yield all tokens, and an end; raises `BadQuery`."""
    _check_characters(expression)
    position, length = 0, len(expression.rstrip())
    while position < length:
        found = _TOKEN.match(expression, position)
        if found is None:
            rest = expression[position:].lstrip()
            problem = f"{rest[0]!r} means nothing here"
            if rest[0] in "'\"":
                problem = "a text begins that does not end"
            reject(expression, len(expression) - len(rest), problem)
        position = found.end()
        kind = found.lastgroup or ""
        begin = found.start(kind)
        if kind in ("number", "unit"):
            yield Lexeme("number", found["number"], found["unit"], found.start("number"))
        elif kind in ("single", "double"):
            quote = expression[begin - 1]
            yield Lexeme("text", found[kind].replace(2 * quote, quote), "", begin - 1)
        elif found[kind] in _CORRECTIONS:
            word = found[kind]
            reject(expression, begin, f"{word} means nothing here: write {_CORRECTIONS[word]}")
        else:
            yield Lexeme(kind, found[kind], "", begin)
    yield Lexeme("end", "", "", length)


# --- constants: ``7d``, ``500KB``, ``'2020-05'`` -------------------------------------------------

DURATIONS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
SIZES = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
MAX_NUMBER = 1 << 53  # the largest up to which a double distinguishes all whole numbers
_DATE = re.compile(
    r"([0-9]{4})(?:-([0-9]{2})(?:-([0-9]{2})(?:[T ]([0-9]{2})"
    r"(?::([0-9]{2})(?::([0-9]{2}))?)?)?)?)?Z?"
)
_FIRST, _LAST = "00000101000000", "00001231235959"  # complete a date of fewer than 14 digits


def number(text: str, unit: str) -> Literal:
    """Return a number with its unit; raises `BadQuery`."""
    if unit in DURATIONS:
        kind, factor = SPAN, DURATIONS[unit]
    elif not unit or unit.lower() in SIZES:
        kind, factor = NUMBER, SIZES[unit.lower() or "b"]
    else:
        raise BadQuery(f"there is no unit {unit}, but {', '.join(DURATIONS)} of time and "
                       "B, KB, MB, GB, TB, KiB, MiB, GiB, TiB of size")  # fmt: skip
    value = float(text) * factor
    if value > MAX_NUMBER:
        raise BadQuery(f"{text}{unit} is too large")
    return Literal(kind, int(value) if value.is_integer() else value)


def _advice(kinds: set[OperandKind], *, arithmetic: bool = False) -> str:
    """Return how to write a constant so that two kinds can be combined."""
    has_text, has_number = TEXT in kinds, NUMBER in kinds
    has_duration = SPAN in kinds
    if has_text and (has_number or has_duration) and not arithmetic:
        return ": text has quotes and a number has none, as 'text/html', 200, 5KB, 7d"
    if has_number and (has_duration or arithmetic and not has_text):
        return ": lengths of time have units, as 7d, 12h, 30m, 45s"
    if TIME in kinds:
        return ": a time is compared with a time or with a date in quotes, as '2020-05'"
    return ""


def period(text: str) -> tuple[int, int]:
    """Return the first and the last second (since 1970) of a year, month, day, hour, ….

    The text has 4 to 14 digits or is ISO 8601; raises `BadDate`.
    """
    found = _DATE.fullmatch(text)
    digits = "".join(filter(None, found.groups())) if found else text
    if not (digits.isascii() and digits.isdigit() and 4 <= len(digits) <= 14) or len(digits) % 2:
        raise BadDate(f"no date, which is '2020', '2020-05', '2020-05-01T10:30:00': {text[:64]!r}")
    begin = _second(digits + _FIRST[len(digits) :])
    if len(digits) == 6:
        digits += str(monthrange(int(digits[:4]), int(digits[4:]))[1])
    return begin, _second(digits + _LAST[len(digits) :])


def _second(digits: str) -> int:
    return seconds(date_of_digits(check_digits(digits.encode())))


# --- grammar -------------------------------------------------------------------------------------

MAX_DEPTH = 50  # of nested parentheses, minuses and nots
_SIGNS = ("==", "!=", "<=", ">=", "<", ">")
_MIRRORED = {">": "<", "<": ">", ">=": "<=", "<=": ">="}
_RESULT_KINDS = {  # of arithmetic, by its operands
    **{(NUMBER, sign, NUMBER): NUMBER for sign in "+-*/"},
    (TIME, "+", SPAN): TIME,
    (SPAN, "+", TIME): TIME,
    (TIME, "-", SPAN): TIME,
    (TIME, "-", TIME): SPAN,
    (SPAN, "+", SPAN): SPAN,
    (SPAN, "-", SPAN): SPAN,
    (SPAN, "*", NUMBER): SPAN,
    (NUMBER, "*", SPAN): SPAN,
    (SPAN, "/", NUMBER): SPAN,
    (SPAN, "/", SPAN): NUMBER,
}


def condition(text: str, vocabulary: Vocabulary) -> Node:
    """Parse a condition; raises `BadQuery`."""
    return _ExpressionParser(text, vocabulary).parse(CONDITION)


def amount(text: str, vocabulary: Vocabulary) -> Node:
    """Parse an expression whose value is a number; raises `BadQuery`."""
    return _ExpressionParser(text, vocabulary).parse(NUMBER)


class _ExpressionParser:
    def __init__(self, text: str, vocabulary: Vocabulary) -> None:
        self._text, self._vocabulary = text, vocabulary
        self._tokens = list(tokens(text))
        self._position = self._depth = 0

    def parse(self, kind: OperandKind) -> Node:
        begin = self._next
        node = self._condition()
        if self._next.kind != "end":
            rest = self._text[self._next.position :]
            comma = self._previous.kind == "number" and re.match(",[0-9]", rest)
            point = ": of a number the point is a ." if comma else ""
            self._fail(self._next, f"'and', 'or' or the end is expected, not {self._next}{point}")
        return self._check_kind(node, kind, begin)

    CONDITION, NUMBER, TEXT, TIME, SPAN = OperandKind

    # --- tokens --------------------------------------------------------------------------------

    @property
    def _next(self) -> Lexeme:
        return self._tokens[self._position]

    @property
    def _previous(self) -> Lexeme:
        return self._tokens[self._position - 1]

    def _fail(self, token: Lexeme, message: str) -> NoReturn:
        reject(self._text, token.position, message)

    def _take(self) -> Lexeme:
        token = self._next
        self._position += token.kind != "end"
        return token

    def _accept(self, *words: str) -> str:
        """Take the next token if it is one of these signs or keywords; else return ""."""
        token = self._next
        if token.kind == "sign" and token.text in words:
            return self._take().text
        word = token.text.lower()
        if token.kind == "word" and word in words and word in KEYWORDS:
            self._take()
            return word
        return ""

    def _expect(self, sign: str, why: str) -> None:
        if not self._accept(sign):
            self._fail(self._next, f"{sign} is expected {why}, not {self._next}")

    def _check_kind(self, node: Node, kind: OperandKind, begin: Lexeme) -> Node:
        if node.kind is not kind:
            self._fail(begin, f"{kind.value} is expected here, and this is {node.kind.value}")
        return node

    def _enter(self, token: Lexeme) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(token, f"this is nested more than {MAX_DEPTH} deep")

    # --- conditions ----------------------------------------------------------------------------

    def _condition(self) -> Node:
        return self._joined("or", tree.Or, self._conjunct)

    def _conjunct(self) -> Node:
        return self._joined("and", tree.And, self._negation)

    def _joined(self, word: str, join: type[tree.And | tree.Or], parse: Callable[[], Node]) -> Node:
        begin = self._next
        operands = [parse()]
        while self._accept(word):
            self._check_kind(operands[-1], CONDITION, begin)
            begin = self._next
            operands.append(self._check_kind(parse(), CONDITION, begin))
        return join(tuple(operands)) if len(operands) > 1 else operands[0]

    def _negation(self) -> Node:
        if not self._accept("not"):
            return self._test()
        begin = self._next
        self._enter(begin)
        node = self._check_kind(self._negation(), CONDITION, begin)
        self._depth -= 1
        return tree.Not(node)

    def _test(self) -> Node:
        left = self._sum()
        token = self._next
        if sign := self._accept(*_SIGNS):
            node = self._comparison(left, sign, self._sum(), token)
        elif self._accept("=~"):
            node = self._regex_match(left, token)
        elif self._accept("in"):
            node = self._membership(left)
        elif self._accept("not"):
            if not self._accept("in"):
                self._fail(self._next, f"'in' is expected after 'not', not {self._next}")
            node = tree.Not(self._membership(left))
        elif token.kind == "sign" and token.text == "=":
            self._fail(token, "= means nothing here: write ==")
        else:
            return left
        if self._next.text in _SIGNS and self._next.kind == "sign":
            self._fail(self._next, "only two things are compared: join comparisons with 'and'")
        return node

    def _comparison(self, left: Node, sign: str, right: Node, token: Lexeme) -> Node:
        kinds = left.kind, right.kind
        if kinds == (TEXT, TIME):
            return self._comparison(right, _MIRRORED.get(sign, sign), left, token)
        if sign == "!=":
            return tree.Not(self._comparison(left, "==", right, token))
        if kinds == (TIME, TEXT) and isinstance(right, Literal):
            return self._compare_period(left, sign, right, token)
        if left.kind is not right.kind or left.kind is CONDITION:
            self._fail(token, f"{left.kind.value} and {right.kind.value} cannot be compared"
                       + _advice(set(kinds)))  # fmt: skip
        return tree.Comparison(sign, left, right)

    def _compare_period(self, left: Node, sign: str, date: Literal, token: Lexeme) -> Node:
        """Compare a time with all the seconds that a date stands for."""
        try:
            begin, end = (Literal(TIME, at) for at in period(str(date.value)))
        except BadDate as error:
            self._fail(token, str(error))
        if sign == "==":
            return tree.And((tree.Comparison(">=", left, begin), tree.Comparison("<=", left, end)))
        return tree.Comparison(sign, left, begin if sign in ("<", ">=") else end)

    def _regex_match(self, left: Node, token: Lexeme) -> Node:
        pattern = self._take()
        if left.kind is not TEXT or pattern.kind != "text":
            self._fail(token, "=~ takes text at its left, and at its right a regular expression "
                       "in quotes")  # fmt: skip
        try:
            Pattern(pattern.text)
        except BadQuery as error:
            self._fail(pattern, str(error))
        return tree.RegexMatch(left, pattern.text)

    def _membership(self, left: Node) -> Node:
        self._expect("(", "after 'in'")
        constants: list[Literal] = []
        tests: list[Node] = []
        while not tests or self._accept(","):
            begin = self._next
            value = self._sum()
            if not isinstance(value, Literal):
                self._fail(begin, "'in' takes constants")
            constants.append(value)
            tests.append(self._comparison(left, "==", value, begin))
        self._expect(")", "after the constants of 'in'")
        if left.kind is TIME:  # each constant is a period
            return tree.Or(tuple(tests)) if len(tests) > 1 else tests[0]
        return tree.Membership(left, tuple(constants))

    # --- values --------------------------------------------------------------------------------

    def _sum(self) -> Node:
        return self._calculated(self._product, "+", "-")

    def _product(self) -> Node:
        return self._calculated(self._operand, "*", "/")

    def _calculated(self, parse: Callable[[], Node], *signs: str) -> Node:
        node = parse()
        while sign := self._accept(*signs):
            node = self._arithmetic(node, sign, parse())
        return node

    def _arithmetic(self, left: Node, sign: str, right: Node) -> Node:
        kind = _RESULT_KINDS.get((left.kind, sign, right.kind))
        if kind is None:
            self._fail(self._previous, f"{left.kind.value} {sign} {right.kind.value} has no meaning"
                       + _advice({left.kind, right.kind}, arithmetic=True))  # fmt: skip
        return tree.Arithmetic(sign, left, right, kind)

    def _operand(self) -> Node:
        token = self._take()
        if token.kind == "number":
            return self._number(token)
        if token.kind == "text":
            return Literal(TEXT, token.text)
        if token.kind == "word" and token.text.lower() not in KEYWORDS:
            return self._name(token)
        if token.kind != "sign" or token.text not in "(-":
            self._fail(token, f"a value is expected, not {token}")
        self._enter(token)
        if token.text == "(":
            node = self._condition()
            self._expect(")", "to end what a ( began")
        else:
            node = self._negative(token)
        self._depth -= 1
        return node

    def _negative(self, token: Lexeme) -> Node:
        node = self._operand()
        if node.kind not in (NUMBER, SPAN):
            self._fail(token, f"- {node.kind.value} has no meaning")
        if isinstance(node, Literal) and not isinstance(node.value, str):
            return Literal(node.kind, -node.value)
        return tree.Arithmetic("-", Literal(node.kind, 0), node, node.kind)

    def _number(self, token: Lexeme) -> Node:
        try:
            return number(token.text, token.unit)
        except BadQuery as error:
            self._fail(token, str(error))

    def _name(self, token: Lexeme) -> Node:
        names = self._vocabulary
        if token.text in names.measures:
            return self._measure(token, names.measures[token.text])
        if token.text in names.attributes:
            side = self._side(token) if names.sides else ""
            return tree.Attribute(token.text, names.attributes[token.text], side, token.position)
        if token.text == "hostname" and self._next.text == "(":
            self._expect("(", "after hostname")
            begin = self._next
            node = self._check_kind(self._sum(), TEXT, begin)
            self._expect(")", "after the argument of hostname")
            return tree.Hostname(node)
        known = ", ".join([*names.attributes, *names.measures])
        return self._fail(token, f"there is no {token.text} here, but {known}")

    def _side(self, name: Lexeme) -> str:
        sides = self._vocabulary.sides
        choices = " or ".join(f"{name.text}({side})" for side in sides)
        problem = f"of which document? write {choices}"
        if not self._accept("("):
            self._fail(name, problem)
        token = self._take()
        if token.text not in sides or token.kind != "word":
            self._fail(token, problem)
        self._expect(")", f"after {name.text}({token.text}")
        return token.text

    def _measure(self, name: Lexeme, settings: tuple[str, ...]) -> Node:
        example = ", ".join(f"{setting}=5" for setting in settings)
        problem = f"{name.text} is written {name.text}({example}), with whole numbers from 1 on"
        values: dict[str, int] = {}
        opened = self._accept("(")
        while opened and len(values) < len(settings):
            word, equals, value = self._take(), self._take().text == "=", self._take()
            if (
                word.text not in settings or word.text in values or not equals
                or value.kind != "number" or not value.text.isdecimal() or value.unit
                or int(value.text) < 1
            ):  # fmt: skip
                self._fail(word, problem)
            values[word.text] = int(value.text)
            if len(values) < len(settings):
                self._accept(",")
        if not opened or not self._accept(")"):
            self._fail(self._next, problem)
        return tree.Measure(name.text, tuple(map(values.__getitem__, settings)), name.position)
