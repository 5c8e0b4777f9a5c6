"""Content constraints as SQL, in whole numbers: a threshold is what was written, not its double.

Two sets of shingles that are as like as a constraint asks share at least so many shingles. How many
follows from the size of `a` alone: with containment and Jaccard t, t |a|; with Dice, since |b| is
not below what they share, t |a| / (2 - t). For Jaccard and Dice the same follows from `b`. A set
that is smaller than that is none (length filter), and with the shingles of all sets in one order,
two such sets already share one of their first ``size - needed + 1`` (prefix filter).
"""

from __future__ import annotations

from dedupindex.cover.relation import Constraint


def needed(constraint: Constraint, size: str) -> str:
    """How many shingles `a`, of `size`, must at least share."""
    part, whole = constraint.threshold.numerator, constraint.threshold.denominator
    if constraint.measure == "dice":
        whole = 2 * whole - part
    product = f"{part} * {size}::BIGINT"
    if constraint.above:
        return f"(({product}) // {whole} + 1)"
    return f"(({product} + {whole - 1}) // {whole})"


def needed_of_b(constraint: Constraint, size: str) -> str:
    """The same of `b`, of which containment asks nothing."""
    return "1" if constraint.measure == "containment" else needed(constraint, size)


def lengths(constraint: Constraint, of_a: str, of_b: str) -> str:
    """Whether the sizes alone leave it possible."""
    possible = f"{of_b} >= {needed(constraint, of_a)}"
    if constraint.measure == "containment":
        return possible
    return f"{possible} AND {of_a} >= {needed(constraint, of_b)}"


def holds(constraint: Constraint, shared: str, of_a: str, of_b: str) -> str:
    """Whether sets of these sizes are as like as it asks."""
    part, whole = constraint.threshold.numerator, constraint.threshold.denominator
    sign = ">" if constraint.above else ">="
    count = f"{shared}::BIGINT * {whole}"
    if constraint.measure == "containment":
        return f"({count} {sign} {part} * {of_a}::BIGINT)"
    if constraint.measure == "jaccard":
        return f"({count} {sign} {part} * ({of_a}::BIGINT + {of_b} - {shared}))"
    return f"(2 * {count} {sign} {part} * ({of_a}::BIGINT + {of_b}))"


def measured(constraint: Constraint, shared: str, of_a: str, of_b: str) -> str:
    """The measure itself, to be shown or ordered by."""
    if constraint.measure == "containment":
        return f"({shared} / {of_a}::DOUBLE)"
    if constraint.measure == "jaccard":
        return f"({shared} / ({of_a} + {of_b} - {shared})::DOUBLE)"
    return f"(2 * {shared} / ({of_a} + {of_b})::DOUBLE)"


def driver(constraints: tuple[Constraint, ...]) -> Constraint:
    """The constraint that leaves the fewest candidates: it asks for most of `a`."""

    def asks(constraint: Constraint) -> tuple[float, bool]:
        share = float(constraint.threshold)
        if constraint.measure == "dice":
            share /= 2 - share
        return share, constraint.measure != "containment"

    return max(constraints, key=asks)
