"""Coverage relations: when document `b` covers document `a`, so that `a` may go.

``containment(k=5) >= 0.7 and timestamp(a) <= timestamp(b) and hostname(a) == hostname(b)``

A relation is a conjunction. Content constraints ask for at least so much likeness of two texts, by
the shingles of k terms that they share; the others are conditions on metadata. Those that state an
equality, and those about one document alone, are known as such: they say which documents can be
pairs at all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from hashlib import blake2b

from dedupindex.errors import BadQuery
from dedupindex.expression.parser import complain, condition
from dedupindex.expression.tree import (
    Arithmetic,
    Attribute,
    Comparison,
    Hostname,
    Literal,
    Matching,
    Measure,
    Node,
    OperandKind,
    Vocabulary,
    joined,
    leaves,
)

# A document as relations see it: metadata, and the shingles of its text.

ATTRIBUTES = {
    "url": OperandKind.TEXT,
    "hostname": OperandKind.TEXT,
    "mime": OperandKind.TEXT,
    "title": OperandKind.TEXT,
    "timestamp": OperandKind.TIME,
    "status": OperandKind.NUMBER,
    "size": OperandKind.NUMBER,
}
MEASURES = ("containment", "jaccard", "dice")
PAIR = Vocabulary(ATTRIBUTES, ("a", "b"), {name: ("k",) for name in MEASURES})
ALONE = Vocabulary({**ATTRIBUTES, "quality": OperandKind.NUMBER})

# Scripts that put no spaces between words: each character is a term.
_DENSE = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
)
_LONGEST = 64  # characters of a term; of a longer one the beginning and a hash
_TERM = re.compile(f"[{_DENSE}]|[^\\W_{_DENSE}]+")


@dataclass(slots=True)
class Document:
    """One capture. What is not known is None; `size` counts bytes, `timestamp` has 14 digits."""

    id: str
    url: str
    timestamp: str | None
    text: str = ""
    mime: str | None = None
    title: str | None = None
    status: int | None = None
    size: int | None = None
    quality: float | None = None  # or popularity: whatever the user has, for the cost of keeping it
    container: str | None = None  # where it is stored, if that is known
    offset: int | None = None
    length: int | None = None
    of: tuple[str, int] | None = None  # of a revisit: container and offset of its original
    names: tuple[str, str] | None = None  # URL and timestamp of the same
    digest: str | None = None  # of its payload
    of_digest: str | None = None  # the same of a revisit, whose payload is elsewhere


def terms(text: str) -> list[str]:
    """Words in small letters, without what stands between them."""
    found = _TERM.findall(text.casefold())
    return found if max(map(len, found), default=0) <= _LONGEST else list(map(_short, found))


def _short(term: str) -> str:
    """No text has words of a megabyte, but data in pages do."""
    if len(term) <= _LONGEST:
        return term
    return term[:24] + blake2b(term.encode("utf-8", "replace"), digest_size=20).hexdigest()


def shingles(words: list[str], k: int) -> set[str]:
    """All runs of `k` terms; of a shorter text the one run that it is."""
    if len(words) <= k:
        return {" ".join(words)} if words else set()
    return {" ".join(words[at : at + k]) for at in range(len(words) - k + 1)}


def content_of(words: list[str]) -> str:
    """What is equal for equal terms in equal order; empty for none."""
    return (
        blake2b(" ".join(words).encode("utf-8", "replace"), digest_size=20).hexdigest()
        if words
        else ""
    )


_TURNED = {">=": "<=", ">": "<", "<=": ">=", "<": ">", "==": "=="}
LONGEST = 100  # terms of a shingle
_FINEST = 10**9  # parts of a threshold: what SQL counts with stays in 64 bits


def exactly(threshold: Fraction) -> str:
    """All digits of a threshold; what has no end, as 1/3, stays a fraction."""
    digits = Decimal(threshold.numerator) / Decimal(threshold.denominator)
    return f"{digits.normalize():f}" if Fraction(digits) == threshold else str(threshold)


@dataclass(frozen=True)
class Constraint:
    """At least so much of a measure, or more (`above`)."""

    measure: str
    k: int
    threshold: Fraction
    above: bool = False

    def __str__(self) -> str:
        return f"{self.measure}(k={self.k}) {'>' if self.above else '>='} {exactly(self.threshold)}"

    @property
    def name(self) -> str:
        return f"{self.measure}(k={self.k})"

    def value(self, shared: int, of_a: int, of_b: int) -> Fraction:
        """The measure of two sets of `of_a` and `of_b` shingles that share so many."""
        if self.measure == "containment":
            return Fraction(shared, of_a)
        if self.measure == "jaccard":
            return Fraction(shared, of_a + of_b - shared)
        return Fraction(2 * shared, of_a + of_b)

    def holds(self, shared: int, of_a: int, of_b: int) -> bool:
        found = self.value(shared, of_a, of_b)
        return found > self.threshold if self.above else found >= self.threshold


@dataclass(frozen=True)
class Relation:
    """A relation, taken apart."""

    text: str
    content: tuple[Constraint, ...]
    keys: tuple[Node, ...]  # of one document: what both must have in common
    of_a: tuple[Node, ...]
    of_b: tuple[Node, ...]
    across: tuple[Node, ...]  # all other conditions

    @property
    def ks(self) -> tuple[int, ...]:
        return tuple(sorted({constraint.k for constraint in self.content}))

    def at(self, threshold: Fraction) -> Relation:
        """The same with another threshold of its first content constraint."""
        first, *others = self.content
        return replace(self, content=(replace(first, threshold=threshold), *others))


def parse(text: str) -> Relation:
    """The relation that a text states, in which lines with # are remarks; raises `BadQuery`."""
    lines = (line.strip() for line in text.splitlines())
    text = " ".join(line for line in lines if line and not line.startswith("#"))
    node = condition(text, PAIR)
    content: list[Constraint] = []
    keys: list[Node] = []
    of_a: list[Node] = []
    of_b: list[Node] = []
    across: list[Node] = []
    for one in joined(node):
        if any(isinstance(leaf, Measure) for leaf in leaves(one)):
            content.append(_constraint(text, one))
        elif (key := _key(one)) is not None:
            keys.append(key)
        else:
            sides = {leaf.side for leaf in leaves(one) if isinstance(leaf, Attribute)}
            (of_a if sides == {"a"} else of_b if sides == {"b"} else across).append(one)
    if not content and not keys:
        raise BadQuery(
            "a relation that any two documents could be in is of no use: it takes a content "
            f"constraint, as containment(k=5) >= 0.7 ({', '.join(MEASURES)}), or an equality, as "
            "hostname(a) == hostname(b)"
        )
    return Relation(text, tuple(content), tuple(keys), tuple(of_a), tuple(of_b), tuple(across))


def _constraint(text: str, node: Node) -> Constraint:
    measure = next(leaf for leaf in leaves(node) if isinstance(leaf, Measure))
    if isinstance(node, Comparison):
        sign, left, right = node.sign, node.left, node.right
        if isinstance(left, Literal):
            sign, left, right = _TURNED[sign], right, left
        if isinstance(left, Measure) and isinstance(right, Literal) and sign in (">=", ">"):
            if left.settings[0] > LONGEST:
                complain(text, left.at, f"shingles have at most {LONGEST} terms")
            threshold = Fraction(str(right.value))
            if not 0 < threshold <= 1 or (sign == ">" and threshold == 1):
                complain(text, left.at, f"the threshold of {left.name} is above 0 and at most 1")
            if threshold.denominator > _FINEST:
                complain(text, left.at, f"the threshold of {left.name} has at most 9 digits")
            return Constraint(left.name, left.settings[0], threshold, sign == ">")
    example = f"{measure.name}(k={measure.settings[0]}) >= 0.7"
    return complain(
        text, measure.at,
        f"a content constraint is written {example}, and joined to the others with 'and'",
    )  # fmt: skip


def _key(node: Node) -> Node | None:
    """What a document must have in common with another, if that is all that a condition says."""
    if not isinstance(node, Comparison) or node.sign != "==":
        return None
    left, right = _sideless(node.left), _sideless(node.right)
    sides = [{leaf.side for leaf in leaves(one) if isinstance(leaf, Attribute)}
             for one in (node.left, node.right)]  # fmt: skip
    return left if left == right and sides in ([{"a"}, {"b"}], [{"b"}, {"a"}]) else None


def _sideless(node: Node) -> Node:
    """A value as it is asked of one document."""
    match node:
        case Attribute():
            return replace(node, side="")
        case Arithmetic():
            return replace(node, left=_sideless(node.left), right=_sideless(node.right))
        case Hostname() | Matching():
            return replace(node, of=_sideless(node.of))
        case _:
            return node
