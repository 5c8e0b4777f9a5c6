"""Metrics of all workers in shared memory: exact at every scrape, cheap to increment.

Each worker has a block of 64-bit cells in a shared mapping and writes only there. A scrape reads
the blocks of all workers. A restarted worker takes over the block of its predecessor, so counters
never decrease.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from threading import Lock
from time import perf_counter_ns

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import CollectorRegistry

from dedupindex import __version__
from dedupindex.crawls import statistics
from dedupindex.crawls.crawl import CrawlState
from dedupindex.crawls.merge_crawls import waits
from dedupindex.errors import DedupError
from dedupindex.lookup.decide import Strategy
from server.config import RECORDS_CRAWL
from server.live_index import LiveIndex
from server.responses import ERRORS
from server.routes import ROUTES

# Gauges of crawls for Prometheus, computed at each scrape.

READ = 200  # open crawls


def crawl_gauges(live: LiveIndex) -> Iterator[Metric]:
    """Yield crawls by state, and crawls that need attention; nothing if they cannot be read.

    The figures of at most `READ` open crawls are read, the newest ones.
    """
    crawls: Counter[CrawlState] = Counter()
    captures = silent = unmerged = 0
    try:
        with live.crawls.known() as (known, reading):
            if reading is None:
                return
            crawls.update(crawl.state for crawl in known)
            unmerged = sum(waits(reading, crawl) for crawl in known)
            newest = (crawl for crawl in reversed(known) if crawl.state is CrawlState.OPEN)
            opened = list(islice(newest, READ))
            ready = reading.with_statistics(opened)
            for crawl in opened:
                captures += ready.counts(crawl)[0]
                own = crawl.name.startswith(RECORDS_CRAWL)  # of /api/records, without lookups
                silent += not own and not statistics.total(ready, crawl).lookups
    except DedupError:
        return
    states = GaugeMetricFamily("dedupindex_crawls", "Crawls by state.", labels=["state"])
    for state in CrawlState:
        states.add_metric([state.value], crawls[state])
    yield states
    for name, about, value in (
        ("open_captures", f"Captures of crawls that are open, of the newest {READ}.", captures),
        ("without_lookup", f"Open crawls that never asked, of the newest {READ}.", silent),
        ("unmerged", "Committed crawls whose captures are not in the index yet.", unmerged),
    ):
        yield GaugeMetricFamily(f"dedupindex_crawls_{name}", about, value)


NAMES = tuple(Strategy.__members__)
MATCHES = ("exact_url", "canonical_url", "digest", "none", "unknown_algorithm")
KINDS = ("single", "batch", "lines")
WRITTEN = {
    "captures": ("added", "unchanged", "refused", "bad"),
    "claims": ("claimed", "taken", "duplicate", "bad"),
}
BOUNDS = (25e-6, 5e-5, 1e-4, 25e-5, 5e-4, 1e-3, 25e-4, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)

_BOUNDS_NS = [int(bound * 1e9) for bound in BOUNDS]
_BUCKETS = len(BOUNDS) + 1  # with the unbounded one
_CLASSES = len(NAMES) * len(MATCHES)

# Cells of a block: lookups in batches by strategy and match; errors by code; then for each kind of
# request the sum of its times in nanoseconds and its buckets. Single lookups have a sum and a row
# of buckets for every strategy and match: one addition counts the lookup and its time. Then comes
# what writes did, and last a row of sum and buckets for the pages and for each route.
_ERRORS_AT = _CLASSES
_SUMS_AT = _ERRORS_AT + len(ERRORS)
_BATCHES_AT = _SUMS_AT + _CLASSES + len(KINDS) - 1
_SINGLES_AT = _BATCHES_AT + (len(KINDS) - 1) * _BUCKETS
_WRITTEN_AT = _SINGLES_AT + _CLASSES * _BUCKETS
_ROUTES_AT = _WRITTEN_AT + sum(map(len, WRITTEN.values()))
_ROUTE_ROW = 1 + _BUCKETS
_PAGE = "page"

_ERROR_CELLS = {code: _ERRORS_AT + place for place, code in enumerate(ERRORS)}
_MATCH = {name: place for place, name in enumerate(MATCHES)}
_STRATEGY = {name: place * len(MATCHES) for place, name in enumerate(NAMES)}
HIT, MISS = _MATCH["exact_url"], _MATCH["none"]


def _labels() -> list[str]:
    """Return the labels of the rows of routes; `ROUTES` must be complete."""
    return [_PAGE, *(route.name for route in ROUTES)]


def block_size(workers: int) -> int:
    """Return the bytes of the memory that `workers` share."""
    return (_ROUTES_AT + len(_labels()) * _ROUTE_ROW) * 8 * workers


class Metrics:
    """The block of one worker, and the sums of all."""

    def __init__(self, shared: mmap.mmap | None = None, workers: int = 1, worker: int = 0) -> None:
        """`shared` is memory of `block_size` zeros; None is for a single process."""
        memory = bytearray(block_size(workers)) if shared is None else shared
        self._routes = {name: row for row, name in enumerate(_labels())}
        self._all, self._cells = memoryview(memory).cast("Q"), block_size(1) // 8
        self._mine = self._all[worker * self._cells : (worker + 1) * self._cells]
        self._lock = Lock()  # adding is two steps, and a worker has several threads

    def lookup(self, cell: int, started: int) -> None:
        """Count a lookup in a cell of `cell_of`; it began at `started` (perf_counter_ns)."""
        taken = perf_counter_ns() - started
        place = _SINGLES_AT + cell * _BUCKETS + bisect_left(_BOUNDS_NS, taken)
        mine = self._mine
        self._lock.acquire()  # not by `with`, which takes twice the time; nothing here can raise
        mine[place] += 1
        mine[_SUMS_AT + cell] += taken
        self._lock.release()

    def batch(self, kind: str, cells: dict[int, int], started: int) -> None:
        """Count a request with many lookups; `cells` has their number by cell."""
        taken = perf_counter_ns() - started
        number = KINDS.index(kind)
        place = _BATCHES_AT + (number - 1) * _BUCKETS + bisect_left(_BOUNDS_NS, taken)
        mine = self._mine
        with self._lock:
            for cell, count in cells.items():
                mine[cell] += count
            mine[place] += 1
            mine[_SUMS_AT + _CLASSES + number - 1] += taken

    def error(self, code: str) -> None:
        """Count an error."""
        with self._lock:
            self._mine[_ERROR_CELLS[code]] += 1

    def written(self, counts: Mapping[str, int], what: str = "captures") -> None:
        """Count captures or claims by their results, the names of `WRITTEN`."""
        at = _WRITTEN_AT + (0 if what == "captures" else len(WRITTEN["captures"]))
        with self._lock:
            for place, name in enumerate(WRITTEN[what]):
                self._mine[at + place] += counts.get(name, 0)

    def route(self, name: str, started: int) -> None:
        """Count a request to a route; an unknown name counts as a page."""
        taken = perf_counter_ns() - started
        place = _ROUTES_AT + self._routes.get(name, 0) * _ROUTE_ROW
        with self._lock:
            self._mine[place] += taken
            self._mine[place + 1 + bisect_left(_BOUNDS_NS, taken)] += 1

    def route_rows(self, totals: list[int]) -> Iterator[tuple[str, list[int]]]:
        """Yield for each label of a route its sum of nanoseconds and its buckets."""
        for name, row in self._routes.items():
            place = _ROUTES_AT + row * _ROUTE_ROW
            yield name, totals[place : place + _ROUTE_ROW]

    def totals(self) -> list[int]:
        """Return the sums of the cells of all workers."""
        return [sum(self._all[cell :: self._cells]) for cell in range(self._cells)]


def cell_of(strategy: str, match: str) -> int:
    """Return the cell that counts lookups of a strategy with a match class."""
    return _STRATEGY[strategy] + _MATCH[match]


def error_cell(code: str) -> int:
    """Return the cell that counts errors of a code, for `Metrics.batch`."""
    return _ERROR_CELLS[code]


class _Collector:
    def __init__(self, metrics: Metrics, live: LiveIndex) -> None:
        self._metrics, self._live = metrics, live

    def collect(self) -> Iterator[Metric]:
        cells = self._metrics.totals()
        lookups = CounterMetricFamily(
            "dedupindex_lookups", "Lookups answered.", labels=["strategy", "match"]
        )
        for strategy in NAMES:
            for match in MATCHES:
                cell = cell_of(strategy, match)
                single = _SINGLES_AT + cell * _BUCKETS
                count = cells[cell] + sum(cells[single : single + _BUCKETS])
                lookups.add_metric([strategy, match], count)
        yield lookups
        errors = CounterMetricFamily(
            "dedupindex_errors", "Errors answered, alone or within a batch.", labels=["code"]
        )
        for code, cell in _ERROR_CELLS.items():
            errors.add_metric([code], cells[cell])
        yield errors
        yield self._times(cells)
        yield self._lookup_times(cells)
        yield from self._writes(cells)
        yield from self._index()
        yield from crawl_gauges(self._live)
        yield InfoMetricFamily("dedupindex_build", "Version.", {"version": __version__})

    def _times(self, cells: list[int]) -> Metric:
        times = HistogramMetricFamily(
            "dedupindex_request_seconds",
            "Time to answer: one lookup, a batch, or a stretch of JSON lines.",
            labels=["kind"],
        )
        rows = _rows(cells, _BATCHES_AT, len(KINDS) - 1 + _CLASSES)
        sums = cells[_SUMS_AT : _SUMS_AT + _CLASSES + len(KINDS) - 1]
        singles = [sum(column) for column in zip(*rows[len(KINDS) - 1 :], strict=True)]
        _add(times, ["single"], singles, sum(sums[:_CLASSES]))
        for kind, row, total in zip(KINDS[1:], rows, sums[_CLASSES:], strict=False):
            _add(times, [kind], row, total)
        return times

    def _lookup_times(self, cells: list[int]) -> Metric:
        times = HistogramMetricFamily(
            "dedupindex_lookup_seconds",
            "Time to answer a single lookup.",
            labels=["strategy", "match"],
        )
        rows = _rows(cells, _SINGLES_AT, _CLASSES)
        for strategy in NAMES:
            for match in MATCHES:
                cell = cell_of(strategy, match)
                _add(times, [strategy, match], rows[cell], cells[_SUMS_AT + cell])
        return times

    def _writes(self, cells: list[int]) -> Iterator[Metric]:
        at = _WRITTEN_AT
        for what, results in WRITTEN.items():
            family = CounterMetricFamily(
                f"dedupindex_{what}", f"Results of {what} that crawls sent.", labels=["result"]
            )
            for result in results:
                family.add_metric([result], cells[at])
                at += 1
            yield family
        times = HistogramMetricFamily(
            "dedupindex_route_seconds",
            "Time of requests other than lookups, durable writing included.",
            labels=["route"],
        )
        for name, row in self._metrics.route_rows(cells):
            if any(row):
                _add(times, [name], row[1:], row[0])
        yield times

    def _index(self) -> Iterator[Metric]:
        ready = 1
        try:
            opened = self._live.opened()
            with opened.engine.view() as view:
                counts = view.counts()
            for name, count in counts._asdict().items():
                yield GaugeMetricFamily(
                    f"dedupindex_index_{name}", f"How many {name} the index holds.", count
                )
            generation = opened.engine.identity.generation
            yield GaugeMetricFamily(
                "dedupindex_index_generation", "Generation of the data that is served.", generation
            )
        except DedupError:
            ready = 0
        yield GaugeMetricFamily("dedupindex_ready", "Whether the index can answer.", ready)


def _rows(cells: list[int], at: int, count: int) -> list[list[int]]:
    return [cells[place : place + _BUCKETS] for place in range(at, at + count * _BUCKETS, _BUCKETS)]


def _add(times: HistogramMetricFamily, labels: list[str], row: list[int], total: int) -> None:
    """Add a row of buckets, with the sum of their times in nanoseconds."""
    buckets, seen = [], 0
    for bound, count in zip((*BOUNDS, "+Inf"), row, strict=True):
        seen += count
        buckets.append((str(bound), float(seen)))
    times.add_metric(labels, buckets, total / 1e9)


def families(metrics: Metrics, live: LiveIndex) -> Iterator[Metric]:
    """Return all metrics in the families of Prometheus."""
    return _Collector(metrics, live).collect()


def exposition(metrics: Metrics, live: LiveIndex) -> bytes:
    """Return all metrics in the text format of Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(metrics, live))
    return generate_latest(registry)
