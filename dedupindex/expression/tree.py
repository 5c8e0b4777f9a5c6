"""The syntax tree of an expression. Every node has a kind; values come from the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, TypeAlias

Value: TypeAlias = str | int | float | None
"""The value of an attribute, None if missing. Times are seconds since 1970; durations, seconds."""


class OperandKind(Enum):
    """The type of a part of an expression; the values appear in error messages."""

    CONDITION = "a condition"
    NUMBER = "a number"
    TEXT = "text"
    TIME = "a time"
    SPAN = "a length of time"


@dataclass(frozen=True)
class Vocabulary:
    """The names that an expression may use."""

    attributes: Mapping[str, OperandKind]
    sides: tuple[str, ...] = ()  # arguments of attributes, as in ``url(a)``; empty: bare names
    measures: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # and their parameters


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant."""

    kind: OperandKind
    value: str | int | float


@dataclass(frozen=True, slots=True)
class Attribute:
    """A value that the caller supplies. `side` is empty if the vocabulary has no sides."""

    name: str
    kind: OperandKind
    side: str = ""
    position: int = field(default=0, compare=False)  # in the text, for error messages


@dataclass(frozen=True, slots=True)
class Measure:
    """A number that the caller computes; `settings` are in the order of the vocabulary."""

    name: str
    settings: tuple[int, ...]
    position: int = field(default=0, compare=False)
    kind: ClassVar = OperandKind.NUMBER

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.settings))})"


@dataclass(frozen=True, slots=True)
class Hostname:
    """The host of a URL in lower case; missing if it has none."""

    operand: Node
    kind: ClassVar = OperandKind.TEXT


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """``+ - * /`` of numbers, times and durations; missing if an operand is, or if not finite."""

    sign: str
    left: Node
    right: Node
    kind: OperandKind


class Condition:
    """A node that is true or false."""

    __slots__ = ()
    kind: ClassVar = OperandKind.CONDITION


@dataclass(frozen=True, slots=True)
class Comparison(Condition):
    """``== < <= > >=`` of two values of one kind; ``!=`` becomes `Not` and ``==``."""

    sign: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Membership(Condition):
    """Whether a value is one of several constants."""

    operand: Node
    values: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class RegexMatch(Condition):
    """Whether a regular expression matches anywhere in a text; see `runtime.safe_regex`."""

    operand: Node
    pattern: str


@dataclass(frozen=True, slots=True)
class Not(Condition):
    operand: Node


@dataclass(frozen=True, slots=True)
class And(Condition):
    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or(Condition):
    operands: tuple[Node, ...]


Node: TypeAlias = (
    Literal | Attribute | Measure | Hostname | Arithmetic | Comparison | Membership | RegexMatch
    | Not | And | Or
)  # fmt: skip
Leaf: TypeAlias = Attribute | Measure
Lookup: TypeAlias = Callable[[Leaf], Value]


def children(node: Node) -> tuple[Node, ...]:
    match node:
        case Arithmetic(left=left, right=right) | Comparison(left=left, right=right):
            return left, right
        case And(operands=operands) | Or(operands=operands):
            return operands
        case Hostname() | Membership() | RegexMatch() | Not():
            return (node.operand,)
        case _:
            return ()


def conjuncts(node: Node) -> Iterator[Node]:
    """Yield the conditions that ``and`` joins, also those in parentheses."""
    if isinstance(node, And):
        for operand in node.operands:
            yield from conjuncts(operand)
    else:
        yield node


def leaves(node: Node) -> set[Leaf]:
    """Return all values that the expression takes from the caller."""
    if isinstance(node, Attribute | Measure):
        return {node}
    return {leaf for child in children(node) for leaf in leaves(child)}
