"""Find a minimum-cost set of documents that covers a component.

A document that no other covers must be kept. Reductions that lose no minimum cover shrink the rest,
which is solved by trying all subsets (of 10 documents or fewer), by HiGHS within its time limit, or
greedily. Every solution has a lower bound; if that equals its cost, it is minimal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from math import ceil, inf

from dedupindex.cover.exact import SPAN
from dedupindex.cover.exact import solve as solve_exactly

FEW = 10  # documents of which all subsets are tried
MOST = 200_000  # pairs of an instance for HiGHS
NOISE = 1e-12  # relative rounding error of sums of costs that are no whole numbers
SLACK = 1e-9  # the same for what HiGHS finds
_EXACT = 1 << 53  # doubles hold whole numbers below it exactly

Sets = Mapping[int, set[int]]
Costs = Mapping[int, float]


@dataclass(frozen=True)
class CoverTask:
    """A component: the cost of each document, and its pairs (covered, covering)."""

    component: int
    costs: Costs
    pairs: Sequence[tuple[int, int]]
    minimums: Sequence[tuple[int, Sequence[int]]] = ()  # keep at least so many of these documents


@dataclass
class Solution:
    """The documents to keep of a component; `bound` is a lower bound of the cost of any cover."""

    component: int
    kept: list[int]
    cost: float
    bound: float
    how: str  # the last method that was needed: forced, tried, exact or greedy

    @property
    def minimal(self) -> bool:
        return self.cost <= self.bound


@dataclass
class Instance:
    """The documents still to be covered and those that may be kept, indexed both ways."""

    coverers: dict[int, set[int]]  # of each document to be covered
    covered: dict[int, set[int]] = field(default_factory=dict)  # by each that may be kept

    def __post_init__(self) -> None:
        for document, coverers in self.coverers.items():
            for coverer in coverers:
                self.covered.setdefault(coverer, set()).add(document)

    def keep(self, document: int) -> set[int]:
        """Remove what a kept document covers; return the documents that now cover less."""
        affected: set[int] = set()
        for done in self.covered.pop(document, set()):
            affected |= self.coverers[done]
            for coverer in self.coverers.pop(done):
                if coverer != document:
                    self.covered[coverer].discard(done)
        affected.discard(document)
        return affected

    def drop(self, document: int) -> list[int]:
        """Remove a document from those that may be kept; return those with one coverer left."""
        single = []
        for covered in self.covered.pop(document):
            self.coverers[covered].discard(document)
            if len(self.coverers[covered]) == 1:
                single.append(covered)
        return single

    @property
    def pairs(self) -> int:
        return sum(map(len, self.coverers.values()))


def solve(task: CoverTask, seconds: float) -> Solution:
    """Cover a component; HiGHS takes at most this many seconds."""
    coverers = {document: {document} for document in task.costs}
    for covered, covering in task.pairs:
        coverers[covered].add(covering)
    if task.minimums:
        return _solve_with_minimums(task, coverers, seconds)
    instance = Instance(coverers)
    kept = _forced(instance)
    kept += _reduced(instance, task.costs)
    cost = bound = _total(kept, task.costs)
    how = "forced"
    if instance.coverers:
        rest, least, how = _remaining(instance, task.costs, seconds)
        kept += rest
        cost += _total(rest, task.costs)
        bound += least
    return Solution(task.component, sorted(kept), cost, bound, how)


def _solve_with_minimums(task: CoverTask, coverers: Sets, seconds: float) -> Solution:
    """Solve by HiGHS alone, as reductions may lose minimums; without a solution keep nothing."""
    if seconds <= 0:
        return Solution(task.component, [], inf, 0.0, "exact")
    found = solve_exactly(coverers, task.costs, seconds, task.minimums)
    cost = _total(found.kept, task.costs) if found.kept else inf
    bound = settled(cost, _whole(found.bound, task.costs, task.costs), SLACK)
    return Solution(task.component, found.kept, cost, bound, "exact")


def _total(documents: Iterable[int], costs: Costs) -> float:
    return sum(costs[document] for document in documents)


def _forced(instance: Instance) -> list[int]:
    """Keep the only coverers of documents, mostly the documents themselves."""
    kept = []
    for document in list(instance.coverers):
        coverers = instance.coverers.get(document, ())
        if len(coverers) == 1:
            (only,) = coverers
            kept.append(only)
            instance.keep(only)
    for document in [number for number, covered in instance.covered.items() if not covered]:
        del instance.covered[document]
    return kept


def _reduced(instance: Instance, costs: Costs) -> list[int]:
    """Drop documents that another one of at most their cost can replace; keep only coverers."""
    kept: list[int] = []
    waiting = [(len(covered), document) for document, covered in instance.covered.items()]
    heapify(waiting)
    while waiting:
        count, document = heappop(waiting)
        if len(instance.covered.get(document, ())) != count or document not in instance.covered:
            continue  # it covers less by now, and waits again with that number
        if not _replaceable(instance, document, costs):
            continue
        for single in instance.drop(document):
            if single in instance.coverers:
                (only,) = instance.coverers[single]
                kept.append(only)
                for affected in instance.keep(only):
                    heappush(waiting, (len(instance.covered[affected]), affected))
    return kept


def _replaceable(instance: Instance, document: int, costs: Costs) -> bool:
    covered = instance.covered[document]
    if not covered:
        return True
    hardest = min(covered, key=lambda one: len(instance.coverers[one]))
    return any(
        other != document and costs[other] <= costs[document] and covered <= instance.covered[other]
        for other in instance.coverers[hardest]
    )


def _remaining(instance: Instance, costs: Costs, seconds: float) -> tuple[list[int], float, str]:
    """Return what to keep of a reduced instance, a lower bound of its cost, and the method."""
    if len(instance.covered) <= FEW:
        kept = _exhaustive(instance, costs)
        return kept, _total(kept, costs), "tried"
    kept, bound = greedy(instance.coverers, instance.covered, costs)
    cost = _total(kept, costs)
    prices = [costs[document] for document in instance.covered]
    possible = instance.pairs <= MOST and max(prices) <= SPAN * min(prices)
    if cost > bound and seconds > 0 and possible:
        found = solve_exactly(instance.coverers, costs, seconds)
        bound = max(bound, _whole(found.bound, costs, instance.covered))
        if found.kept and (least := _total(found.kept, costs)) <= cost:
            return found.kept, settled(least, bound, SLACK), "exact"
    return kept, bound, "greedy"


def settled(cost: float, bound: float, slack: float) -> float:
    """Return the bound, or the cost if they differ only by rounding; whole numbers do not."""
    whole = cost < _EXACT and float(cost).is_integer() and float(bound).is_integer()
    return cost if not whole and bound < cost <= bound * (1 + slack) else bound


def _whole(bound: float, costs: Costs, documents: Iterable[int]) -> float:
    """Round the bound up if all costs are whole numbers."""
    if bound < _EXACT and all(float(costs[document]).is_integer() for document in documents):
        return float(ceil(bound - 1e-6 - bound * 1e-12))
    return bound


def _exhaustive(instance: Instance, costs: Costs) -> list[int]:
    """Return the cheapest subset that covers all, the first of several."""
    documents = sorted(instance.covered)
    masks = {
        sum(1 << place for place, coverer in enumerate(documents) if coverer in coverers)
        for coverers in instance.coverers.values()
    }
    best, least = 0, float("inf")
    for subset in range(1, 1 << len(documents)):
        cost = sum(costs[one] for place, one in enumerate(documents) if subset >> place & 1)
        if cost < least and all(subset & mask for mask in masks):
            best, least = subset, cost
    return [document for place, document in enumerate(documents) if best >> place & 1]


def greedy(coverers: Sets, covered: Sets, costs: Costs) -> tuple[list[int], float]:
    """Repeatedly keep the document that newly covers most for its cost; return also a lower bound.

    The price paid per covered document, divided by the harmonic number of the largest set, is a
    feasible solution of the dual problem, so no cover costs less than the sum of these.
    """
    left = set(coverers)
    heap = [
        (-len(documents) / costs[document], document) for document, documents in covered.items()
    ]
    heapify(heap)
    kept, paid = [], 0.0
    while left:
        worth, document = heap[0]
        new = covered[document] & left
        current = -len(new) / costs[document]
        if current > worth:  # it has lost value since it was put on the heap
            heapreplace(heap, (current, document)) if new else heappop(heap)
            continue
        heappop(heap)
        kept.append(document)
        paid += costs[document]
        left -= new
    most = max(map(len, covered.values()))
    bound = max(paid / sum(1 / count for count in range(1, most + 1)), _packing(coverers, costs))
    kept, bound = _pruned(kept, coverers, covered, costs), _whole(bound, costs, covered)
    return kept, settled(_total(kept, costs), bound, NOISE)


def _packing(coverers: Sets, costs: Costs) -> float:
    """Return another lower bound: documents without a common coverer need one each."""
    taken: set[int] = set()
    bound = 0.0
    for document in sorted(coverers, key=lambda one: len(coverers[one])):
        candidates = coverers[document]
        if taken.isdisjoint(candidates):
            taken |= candidates
            bound += min(costs[candidate] for candidate in candidates)
    return bound


def _pruned(kept: list[int], coverers: Sets, covered: Sets, costs: Costs) -> list[int]:
    """Drop kept documents that later ones made redundant, the most expensive first."""
    times = dict.fromkeys(coverers, 0)
    for document in kept:
        for one in covered[document]:
            times[one] += 1
    remaining = set(kept)
    for _, document in sorted((-costs[document], document) for document in kept):
        if all(times[one] > 1 for one in covered[document]):
            remaining.discard(document)
            for one in covered[document]:
                times[one] -= 1
    return sorted(remaining)
