"""Coverage relations: the conditions under which document `b` covers document `a`.

``containment(k=5) >= 0.7 and timestamp(a) <= timestamp(b) and hostname(a) == hostname(b)``

A relation is a conjunction. Content constraints set a minimum similarity of two texts, measured by
their common shingles of k terms; the others are conditions on metadata.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from hashlib import blake2b

from dedupindex.errors import BadQuery
from dedupindex.expression import tree
from dedupindex.expression.parser import condition, reject
from dedupindex.expression.tree import Attribute, Node, OperandKind, Vocabulary, conjuncts, leaves

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

# Scripts without spaces between words: each character is a term.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
)
_MAX_TERM = 64  # characters; a longer term is replaced by its beginning and a hash
_TERM = re.compile(f"[{_UNSPACED}]|[^\\W_{_UNSPACED}]+")


def terms(text: str) -> list[str]:
    """Return the words of a text, case-folded, without punctuation."""
    found = _TERM.findall(text.casefold())
    if max(map(len, found), default=0) <= _MAX_TERM:
        return found
    return [term if len(term) <= _MAX_TERM else term[:24] + _hash(term) for term in found]


def _hash(text: str) -> str:
    return blake2b(text.encode("utf-8", "replace"), digest_size=20).hexdigest()


def shingles(words: list[str], k: int) -> set[str]:
    """Return all runs of `k` terms; a shorter text is one shingle."""
    if len(words) <= k:
        return {" ".join(words)} if words else set()
    return {" ".join(words[at : at + k]) for at in range(len(words) - k + 1)}


def content_of(words: list[str]) -> str:
    """Return a hash of the terms in their order; empty if there are none."""
    return _hash(" ".join(words)) if words else ""


_MIRRORED = {">=": "<=", ">": "<", "<=": ">=", "<": ">", "==": "=="}
MAX_K = 100  # terms of a shingle
_MAX_DENOMINATOR = 10**9  # of a threshold, so that the integers in SQL fit in 64 bits


def exactly(threshold: Fraction) -> str:
    """Return a threshold as a decimal number; one without an end, as 1/3, as a fraction."""
    digits = Decimal(threshold.numerator) / Decimal(threshold.denominator)
    return f"{digits.normalize():f}" if Fraction(digits) == threshold else str(threshold)


@dataclass(frozen=True)
class Constraint:
    """A minimum of a measure; with `above` the measure must exceed it."""

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
        """Return the measure of sets of `of_a` and `of_b` shingles with `shared` in common."""
        if self.measure == "containment":
            return Fraction(shared, of_a)
        if self.measure == "jaccard":
            return Fraction(shared, of_a + of_b - shared)
        return Fraction(2 * shared, of_a + of_b)


@dataclass(frozen=True)
class Relation:
    """A parsed relation: its conditions by what they depend on."""

    text: str
    content: tuple[Constraint, ...]
    keys: tuple[Node, ...]  # values of one document that are equal in both
    of_a: tuple[Node, ...]  # conditions on `a` alone
    of_b: tuple[Node, ...]  # conditions on `b` alone
    across: tuple[Node, ...]  # all others

    @property
    def ks(self) -> tuple[int, ...]:
        return tuple(sorted({constraint.k for constraint in self.content}))

    def at(self, threshold: Fraction) -> Relation:
        """Return the relation with another threshold of its first content constraint."""
        first, *others = self.content
        return replace(self, content=(replace(first, threshold=threshold), *others))


def parse(text: str) -> Relation:
    """Parse a relation, in which lines that begin with # are comments; raises `BadQuery`."""
    lines = (line.strip() for line in text.splitlines())
    text = " ".join(line for line in lines if line and not line.startswith("#"))
    content: list[Constraint] = []
    keys: list[Node] = []
    of_a: list[Node] = []
    of_b: list[Node] = []
    across: list[Node] = []
    for node in conjuncts(condition(text, PAIR)):
        if any(isinstance(leaf, tree.Measure) for leaf in leaves(node)):
            content.append(_constraint(text, node))
        elif (key := _key(node)) is not None:
            keys.append(key)
        else:
            sides = _sides(node)
            (of_a if sides == {"a"} else of_b if sides == {"b"} else across).append(node)
    if not content and not keys:
        raise BadQuery(
            "a relation needs a content constraint, as containment(k=5) >= 0.7 "
            f"({', '.join(MEASURES)}), or an equality, as hostname(a) == hostname(b)"
        )
    return Relation(text, tuple(content), tuple(keys), tuple(of_a), tuple(of_b), tuple(across))


def _constraint(text: str, node: Node) -> Constraint:
    measure = next(leaf for leaf in leaves(node) if isinstance(leaf, tree.Measure))
    name, at = measure.name, measure.position
    if isinstance(node, tree.Comparison):
        sign, left, right = node.sign, node.left, node.right
        if isinstance(left, tree.Literal):
            sign, left, right = _MIRRORED[sign], right, left
        if left == measure and isinstance(right, tree.Literal) and sign in (">=", ">"):
            if measure.settings[0] > MAX_K:
                reject(text, at, f"shingles have at most {MAX_K} terms")
            threshold = Fraction(str(right.value))
            if not 0 < threshold <= 1 or (sign == ">" and threshold == 1):
                reject(text, at, f"the threshold of {name} is above 0 and at most 1")
            if threshold.denominator > _MAX_DENOMINATOR:
                reject(text, at, f"the threshold of {name} has at most 9 digits")
            return Constraint(name, measure.settings[0], threshold, sign == ">")
    example = f"{name}(k={measure.settings[0]}) >= 0.7, and joined to the others with 'and'"
    return reject(text, at, f"a content constraint is written {example}")


def _key(node: Node) -> Node | None:
    """Return the value that must be equal in both documents, if that is all that is required."""
    if not isinstance(node, tree.Comparison) or node.sign != "==":
        return None
    left, right = _sideless(node.left), _sideless(node.right)
    sides = [_sides(node.left), _sides(node.right)]
    return left if left == right and sides in ([{"a"}, {"b"}], [{"b"}, {"a"}]) else None


def _sides(node: Node) -> set[str]:
    return {leaf.side for leaf in leaves(node) if isinstance(leaf, Attribute)}


def _sideless(node: Node) -> Node:
    match node:
        case Attribute():
            return replace(node, side="")
        case tree.Arithmetic():
            return replace(node, left=_sideless(node.left), right=_sideless(node.right))
        case tree.Hostname() | tree.RegexMatch():
            return replace(node, operand=_sideless(node.operand))
        case _:
            return node
