"""What an expression is once it is understood. Every node knows its kind; none knows any value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

Value: TypeAlias = str | int | float | None
"""Of an attribute; None is missing. Times are whole seconds since 1970, lengths of time seconds."""


class OperandKind(Enum):
    """What a part of an expression is, in the words of a complaint."""

    CONDITION = "a condition"
    NUMBER = "a number"
    TEXT = "text"
    TIME = "a time"
    SPAN = "a length of time"


@dataclass(frozen=True)
class Vocabulary:
    """The names that an expression may use."""

    attributes: Mapping[str, OperandKind]
    sides: tuple[str, ...] = ()  # of what an attribute is told: ``url(a)``; none: bare names
    measures: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Numbers that the caller computes, each with the names of its settings, all whole numbers."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant."""

    kind: OperandKind
    value: str | int | float


@dataclass(frozen=True, slots=True)
class Attribute:
    """A value of the caller's; `side` is empty where there is only one thing to ask of."""

    name: str
    kind: OperandKind
    side: str = ""
    at: int = field(default=0, compare=False)  # where it stands


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of the caller's, with its settings in the order of the vocabulary."""

    name: str
    settings: tuple[int, ...]
    at: int = field(default=0, compare=False)
    kind: OperandKind = field(default=OperandKind.NUMBER, init=False)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.settings))})"


@dataclass(frozen=True, slots=True)
class Hostname:
    """The host that a URL names, in small letters; missing where there is none."""

    of: Node
    kind: OperandKind = field(default=OperandKind.TEXT, init=False)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """``+ - * /`` of numbers, times and lengths of time; missing where nothing can be told."""

    sign: str
    left: Node
    right: Node
    kind: OperandKind


@dataclass(frozen=True, slots=True)
class Comparison:
    """``== < <= > >=`` of two things of one kind; ``!=`` is written with `Not`."""

    sign: str
    left: Node
    right: Node
    kind: OperandKind = field(default=OperandKind.CONDITION, init=False)


@dataclass(frozen=True, slots=True)
class Membership:
    """Whether something is one of several constants."""

    of: Node
    values: tuple[Literal, ...]
    kind: OperandKind = field(default=OperandKind.CONDITION, init=False)


@dataclass(frozen=True, slots=True)
class Matching:
    """Whether a regular expression is found anywhere in a text; see `patterns`."""

    of: Node
    pattern: str
    kind: OperandKind = field(default=OperandKind.CONDITION, init=False)


@dataclass(frozen=True, slots=True)
class Not:
    of: Node
    kind: OperandKind = field(default=OperandKind.CONDITION, init=False)


@dataclass(frozen=True, slots=True)
class Every:
    """Conditions that stand side by side with ``and``."""

    of: tuple[Node, ...]
    kind: OperandKind = field(default=OperandKind.CONDITION, init=False)


@dataclass(frozen=True, slots=True)
class Some:
    """Conditions that stand side by side with ``or``."""

    of: tuple[Node, ...]
    kind: OperandKind = field(default=OperandKind.CONDITION, init=False)


Node: TypeAlias = (
    Literal | Attribute | Measure | Hostname | Arithmetic | Comparison | Membership | Matching
    | Not | Every | Some
)  # fmt: skip
Leaf: TypeAlias = Attribute | Measure
Asked: TypeAlias = Callable[[Leaf], Value]


def parts(node: Node) -> tuple[Node, ...]:
    """What a node is made of."""
    match node:
        case Arithmetic(left=left, right=right) | Comparison(left=left, right=right):
            return left, right
        case Every(of=several) | Some(of=several):
            return several
        case Hostname(of=one) | Membership(of=one) | Matching(of=one) | Not(of=one):
            return (one,)
        case _:
            return ()


def joined(node: Node) -> Iterator[Node]:
    """The conditions that ``and`` joins, however deep parentheses put them."""
    if isinstance(node, Every):
        for one in node.of:
            yield from joined(one)
    else:
        yield node


def leaves(node: Node) -> set[Leaf]:
    """All values that the caller is asked for."""
    if isinstance(node, Attribute | Measure):
        return {node}
    return {leaf for part in parts(node) for leaf in leaves(part)}
