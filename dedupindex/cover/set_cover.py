"""The least set of documents of a component that covers the others.

A document that none covers must stay. What is left is made smaller by rules that lose no least
cover, then solved by trying all (10 documents or fewer), by HiGHS as long as it is given, or else
greedily by what a document newly covers for its cost. Each answer says how little a cover could
cost at best; where that is its own cost, it is minimal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from math import ceil
from typing import Protocol

from dedupindex.cover.exact import SPAN
from dedupindex.cover.exact import solve as solve_exactly

FEW = 10  # documents of which all subsets are tried
MOST = 200_000  # pairs of an instance that HiGHS is given
_NOISE = 1e-12  # of sums of costs that are no whole numbers, as a share
_SLACK = 1e-9  # the same of what HiGHS finds
_EXACT = 1 << 53  # whole numbers that sums of doubles have


@dataclass(frozen=True)
class CoverTask:
    """A component: its documents with what each costs, and its pairs of covered and covering."""

    component: int
    costs: Mapping[int, float]
    pairs: Sequence[tuple[int, int]]


@dataclass
class Solution:
    """What stays of a component. `bound`: no cover costs less."""

    component: int
    kept: list[int]
    cost: float
    bound: float
    how: str  # forced, tried, exact or greedy: the last thing that had to be done

    @property
    def minimal(self) -> bool:
        return self.cost <= self.bound


class CoverGraph(Protocol):
    """What covers what."""

    @property
    def coverers(self) -> Mapping[int, set[int]]: ...

    @property
    def covered(self) -> Mapping[int, set[int]]: ...


@dataclass
class Instance:
    """What is still to be covered, and by what; both ways."""

    coverers: dict[int, set[int]]  # of each document to be covered
    covered: dict[int, set[int]] = field(default_factory=dict)  # by each that may be kept

    def __post_init__(self) -> None:
        for document, by in self.coverers.items():
            for one in by:
                self.covered.setdefault(one, set()).add(document)

    def keep(self, document: int) -> set[int]:
        """Take out what a kept document covers; says what now has less to cover."""
        fewer: set[int] = set()
        for done in self.covered.pop(document, set()):
            fewer |= self.coverers[done]
            for one in self.coverers.pop(done):
                if one != document:
                    self.covered[one].discard(done)
        fewer.discard(document)
        return fewer

    def drop(self, document: int) -> list[int]:
        """Take out a document as one to be kept; says what only one covers now."""
        alone = []
        for one in self.covered.pop(document):
            self.coverers[one].discard(document)
            if len(self.coverers[one]) == 1:
                alone.append(one)
        return alone

    @property
    def pairs(self) -> int:
        return sum(map(len, self.coverers.values()))


def solve(task: CoverTask, seconds: float) -> Solution:
    """Cover a component; HiGHS takes at most so many seconds."""
    instance = _instance(task)
    kept = _forced(instance)
    kept += _reduced(instance, task.costs)
    cost = bound = sum(task.costs[one] for one in kept)
    how = "forced"
    if instance.coverers:
        rest, least, how = _rest(instance, task.costs, seconds)
        kept += rest
        cost += sum(task.costs[one] for one in rest)
        bound += least
    return Solution(task.component, sorted(kept), cost, bound, how)


def _instance(task: CoverTask) -> Instance:
    coverers = {document: {document} for document in task.costs}
    for covered, covering in task.pairs:
        coverers[covered].add(covering)
    return Instance(coverers)


def _forced(instance: Instance) -> list[int]:
    """Keep what only one document covers, most often the document itself."""
    kept = []
    for document in list(instance.coverers):
        by = instance.coverers.get(document, ())
        if len(by) == 1:
            (only,) = by
            kept.append(only)
            instance.keep(only)
    for document in [one for one, covered in instance.covered.items() if not covered]:
        del instance.covered[document]
    return kept


def _reduced(instance: Instance, costs: Mapping[int, float]) -> list[int]:
    """Drop documents that one no dearer can stand for, and keep what that leaves alone.

    A document is looked at once, and again only when it has less to cover than before.
    """
    kept: list[int] = []
    waiting = [(len(covered), document) for document, covered in instance.covered.items()]
    heapify(waiting)
    while waiting:
        count, document = heappop(waiting)
        if len(instance.covered.get(document, ())) != count or document not in instance.covered:
            continue  # it has less by now, and waits again with that
        if not _replaceable(instance, document, costs):
            continue
        for one in instance.drop(document):
            if one in instance.coverers:
                (only,) = instance.coverers[one]
                kept.append(only)
                for other in instance.keep(only):
                    heappush(waiting, (len(instance.covered[other]), other))
    return kept


def _replaceable(instance: Instance, document: int, costs: Mapping[int, float]) -> bool:
    covered = instance.covered[document]
    if not covered:
        return True
    hardest = min(covered, key=lambda one: len(instance.coverers[one]))
    return any(
        other != document and costs[other] <= costs[document] and covered <= instance.covered[other]
        for other in instance.coverers[hardest]
    )


def _rest(
    instance: Instance, costs: Mapping[int, float], seconds: float
) -> tuple[list[int], float, str]:
    """What to keep, what it must cost at least, and how that was found."""
    if len(instance.covered) <= FEW:
        kept = _tried(instance, costs)
        return kept, sum(costs[one] for one in kept), "tried"
    kept, bound = greedy(instance, costs)
    cost = sum(costs[one] for one in kept)
    some = [costs[one] for one in instance.covered]
    possible = instance.pairs <= MOST and max(some) <= SPAN * min(some)
    if cost > bound and seconds > 0 and possible:
        found = solve_exactly(instance.coverers, costs, seconds)
        bound = max(bound, _whole(found.bound, costs, instance.covered))
        if found.kept and (least := sum(costs[one] for one in found.kept)) <= cost:
            return found.kept, _settled(least, bound, _SLACK), "exact"
    return kept, bound, "greedy"


def _settled(cost: float, bound: float, slack: float) -> float:
    """A bound, which is the cost where they differ by no more than reckoning does.

    Whole numbers do not.
    """
    whole = cost < _EXACT and float(cost).is_integer() and float(bound).is_integer()
    return cost if not whole and bound < cost <= bound * (1 + slack) else bound


def _whole(bound: float, costs: Mapping[int, float], documents: Iterable[int]) -> float:
    """A bound of sums of whole numbers is a whole number itself."""
    if bound < _EXACT and all(float(costs[one]).is_integer() for one in documents):
        return float(ceil(bound - 1e-6 - bound * 1e-12))
    return bound


def _tried(instance: Instance, costs: Mapping[int, float]) -> list[int]:
    """The cheapest of all subsets that cover all; of several the first."""
    documents = sorted(instance.covered)
    masks = {
        one: sum(1 << place for place, by in enumerate(documents) if by in coverers)
        for one, coverers in instance.coverers.items()
    }
    needs = set(masks.values())
    best, least = 0, float("inf")
    for subset in range(1, 1 << len(documents)):
        cost = sum(costs[one] for place, one in enumerate(documents) if subset >> place & 1)
        if cost < least and all(subset & need for need in needs):
            best, least = subset, cost
    return [one for place, one in enumerate(documents) if best >> place & 1]


def greedy(instance: CoverGraph, costs: Mapping[int, float]) -> tuple[list[int], float]:
    """Always the document that covers most that is new for its cost, and a bound of any cover.

    What each covered document was paid with, divided by the harmonic number of the most that one
    document covers, is a solution of the dual problem, so no cover costs less than its sum.
    """
    left = set(instance.coverers)
    heap = [(-len(covered) / costs[one], one) for one, covered in instance.covered.items()]
    heapify(heap)
    kept, paid = [], 0.0
    while left:
        worth, document = heap[0]
        new = instance.covered[document] & left
        now = -len(new) / costs[document]
        if now > worth:  # less than when it was last looked at
            heapreplace(heap, (now, document)) if new else heappop(heap)
            continue
        heappop(heap)
        kept.append(document)
        paid += costs[document]
        left -= new
    most = max(map(len, instance.covered.values()))
    bound = max(paid / sum(1 / count for count in range(1, most + 1)), _packed(instance, costs))
    kept, bound = _pruned(instance, kept, costs), _whole(bound, costs, instance.covered)
    return kept, _settled(sum(costs[one] for one in kept), bound, _NOISE)


def _packed(instance: CoverGraph, costs: Mapping[int, float]) -> float:
    """Another bound: documents that no document covers two of take one each."""
    taken: set[int] = set()
    bound = 0.0
    for document in sorted(instance.coverers, key=lambda one: len(instance.coverers[one])):
        by = instance.coverers[document]
        if taken.isdisjoint(by):
            taken |= by
            bound += min(costs[one] for one in by)
    return bound


def _pruned(instance: CoverGraph, kept: list[int], costs: Mapping[int, float]) -> list[int]:
    """Without those that later ones made needless, the dearest first."""
    times = dict.fromkeys(instance.coverers, 0)
    for document in kept:
        for one in instance.covered[document]:
            times[one] += 1
    staying = set(kept)
    heap: list[tuple[float, int]] = []
    for document in kept:
        heappush(heap, (-costs[document], document))
    while heap:
        _, document = heappop(heap)
        if all(times[one] > 1 for one in instance.covered[document]):
            staying.discard(document)
            for one in instance.covered[document]:
                times[one] -= 1
    return sorted(staying)
