"""Metrics of all workers in shared memory: exact at every scrape, cheap to increment.

Each worker has a block of 64-bit cells in a shared mapping and writes only there. A scrape reads
the blocks of all workers. A restarted worker takes over the block of its predecessor, so counters
never decrease.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from itertools import islice, product
from threading import Lock
from time import monotonic_ns, perf_counter_ns, sleep
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dedupindex import __version__
from dedupindex.crawls import statistics
from dedupindex.crawls.crawl import CrawlState
from dedupindex.crawls.merge_crawls import waits
from dedupindex.errors import DedupError
from dedupindex.index.filter_store import FilterStore
from dedupindex.index.shared_filter import FilterStatus
from dedupindex.lookup.decide import Strategy
from server.config import COUNT_EVERY, RECORDS_CRAWL
from server.live_index import LiveIndex
from server.logs import log_unavailable, report
from server.responses import ERRORS, Reply, code_of, error_reply
from server.routes import ROUTES

READ = 200  # open crawls whose figures a scrape reads, the newest ones
NAMES = tuple(Strategy.__members__)
MATCHES = ("exact_url", "canonical_url", "digest", "none", "unknown_algorithm")
BATCHES = ("batch", "lines")
WRITTEN = {
    "captures": ("added", "unchanged", "refused", "bad"),
    "claims": ("claimed", "taken", "duplicate", "bad"),
}
BOUNDS = (25e-6, 5e-5, 1e-4, 25e-5, 5e-4, 1e-3, 25e-4, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)

_BOUNDS_NS = [int(bound * 1e9) for bound in BOUNDS]
_CLASSES = [*product(NAMES, MATCHES)]
_PAGE = "page"  # the row of all routes that are not in `ROUTES`

# A block has cells that count one by one: lookups in batches by class (strategy and match), errors
# by code, results of writes. Then come rows of times: of single lookups by class, of batches by
# kind, of pages and of routes by name. A row has the sum of the times in nanoseconds, and a bucket
# for each bound and one without.
_RESULTS = [(kind, result) for kind, results in WRITTEN.items() for result in results]
_COUNTERS: tuple[str | tuple[str, str], ...] = (*_CLASSES, *ERRORS, *_RESULTS)
CELLS = {counter: cell for cell, counter in enumerate(_COUNTERS)}
"""Cell by strategy and match class, by code of an error, or by kind and result of a write."""
_ROW = 1 + len(BOUNDS) + 1
_SINGLES_AT = len(CELLS)
_BATCHES_AT = _SINGLES_AT + len(_CLASSES) * _ROW
_ROUTES_AT = _BATCHES_AT + len(BATCHES) * _ROW

# The last cell is when the worker began to store the lookups of crawls, as `monotonic_ns`.

_STORED_WITHIN = int(3e9 * COUNT_EVERY)  # nanoseconds; a worker that takes longer is not waited for
_PAUSE = 0.02  # seconds between two looks

HIT, MISS = MATCHES.index("exact_url"), MATCHES.index("none")


def block_size(workers: int) -> int:
    """Return the bytes of the memory that `workers` share; `ROUTES` must be complete."""
    return (_ROUTES_AT + (1 + len(ROUTES)) * _ROW + 1) * 8 * workers


class Metrics:
    """The block of one worker, and the sums of all."""

    def __init__(self, shared: mmap.mmap | None = None, workers: int = 1, worker: int = 0) -> None:
        """`shared` is memory of `block_size` zeros; None is for a single process."""
        memory = bytearray(block_size(workers)) if shared is None else shared
        names = (_PAGE, *(route.name for route in ROUTES))
        self.routes = {name: _ROUTES_AT + row * _ROW for row, name in enumerate(names)}
        self._all, self._size = memoryview(memory).cast("Q"), block_size(1) // 8
        self._mine = self._all[worker * self._size : (worker + 1) * self._size]
        self._lock = Lock()  # adding is two steps, and a worker has several threads

    def lookup(self, cell: int, started: int) -> None:
        """Count a lookup by the cell of its class; it began at `started` (perf_counter_ns)."""
        taken = perf_counter_ns() - started
        place = _SINGLES_AT + cell * _ROW
        bucket = place + 1 + bisect_left(_BOUNDS_NS, taken)
        mine = self._mine
        self._lock.acquire()  # not by `with`, which takes twice the time; nothing here can raise
        mine[place] += taken
        mine[bucket] += 1
        self._lock.release()

    def batch(self, kind: str, cells: dict[int, int], started: int) -> None:
        """Count a request with many lookups; `cells` has their number by cell."""
        with self._lock:
            for cell, count in cells.items():
                self._mine[cell] += count
            self._add_time(_BATCHES_AT + BATCHES.index(kind) * _ROW, started)

    def error(self, code: str) -> None:
        """Count an error."""
        with self._lock:
            self._mine[CELLS[code]] += 1

    def record(self, error: Exception, environ: dict[str, Any]) -> tuple[str, str]:
        """Count an error; log a defect, and what an operator must mend; return code and message."""
        code, message = "internal", ERRORS["internal"][1]
        if isinstance(error, DedupError):
            code, message = code_of(error), str(error)
            log_outage(code, message, environ)
        else:
            report(error, environ)
        self.error(code)
        return code, message

    def reply_to(self, error: Exception, environ: dict[str, Any]) -> Reply:
        """Record an error, and return the reply to its request."""
        return error_reply(*self.record(error, environ))

    def written(self, counts: Mapping[str, int], kind: str = "captures") -> None:
        """Count captures or claims by their results, the names of `WRITTEN`."""
        with self._lock:
            for result in WRITTEN[kind]:
                self._mine[CELLS[kind, result]] += counts.get(result, 0)

    def route(self, name: str, started: int) -> None:
        """Count a request to a route; an unknown name counts as a page."""
        with self._lock:
            self._add_time(self.routes.get(name, _ROUTES_AT), started)

    def _add_time(self, place: int, started: int) -> None:
        taken = perf_counter_ns() - started
        self._mine[place] += taken
        self._mine[place + 1 + bisect_left(_BOUNDS_NS, taken)] += 1

    def store_counts(self, store: Callable[[], None]) -> None:
        """Store the lookups of crawls that this worker has answered; raises what `store` does."""
        began = monotonic_ns()
        store()
        self._mine[-1] = began

    def store_all_counts(self, store: Callable[[], None]) -> None:
        """As `store_counts`, and wait until the other workers have stored theirs."""
        now = monotonic_ns()
        self.store_counts(store)
        last = self._all[self._size - 1 :: self._size]
        while min(last) < now and monotonic_ns() < now + _STORED_WITHIN:
            sleep(_PAUSE)

    def totals(self) -> list[int]:
        """Return the sums of the cells of all workers."""
        return [sum(self._all[cell :: self._size]) for cell in range(self._size)]


def log_outage(code: str, message: str, environ: Mapping[str, Any]) -> None:
    """Log an error that an operator must mend, if its code is of such."""
    if ERRORS[code][0] == HTTPStatus.SERVICE_UNAVAILABLE and code != "overloaded":
        log_unavailable(code, message, environ)


class _Collector(Collector):
    def __init__(self, metrics: Metrics, live: LiveIndex) -> None:
        self._metrics, self._live = metrics, live

    def collect(self) -> Iterator[Metric]:
        cells = self._metrics.totals()
        singles = {row: _row(cells, _SINGLES_AT + CELLS[row] * _ROW) for row in _CLASSES}
        lookups = lookups_by_class(cells)
        yield _counters("dedupindex_lookups", "Lookups answered.", ["strategy", "match"], lookups)
        errors = {(code,): cells[CELLS[code]] for code in ERRORS}
        about = "Errors answered, alone or within a batch."
        yield _counters("dedupindex_errors", about, ["code"], errors)
        kinds = {("single",): [sum(column) for column in zip(*singles.values(), strict=True)]}
        for number, kind in enumerate(BATCHES):
            kinds[(kind,)] = _row(cells, _BATCHES_AT + number * _ROW)
        yield _times(
            "dedupindex_request_seconds",
            "Time to answer: one lookup, a batch, or a chunk of JSON lines.",
            ["kind"],
            kinds,
        )
        yield _times(
            "dedupindex_lookup_seconds",
            "Time to answer a single lookup.",
            ["strategy", "match"],
            singles,
        )
        for kind, results in WRITTEN.items():
            counts = {(result,): cells[CELLS[kind, result]] for result in results}
            about = f"Results of {kind} that crawls sent."
            yield _counters(f"dedupindex_{kind}", about, ["result"], counts)
        routes = {(name,): _row(cells, place) for name, place in self._metrics.routes.items()}
        yield _times(
            "dedupindex_route_seconds",
            "Time of requests other than lookups, durable writing included.",
            ["route"],
            {name: row for name, row in routes.items() if any(row)},
        )
        yield from _index_gauges(self._live)
        yield from _crawl_gauges(self._live)
        yield InfoMetricFamily("dedupindex_build", "Version.", {"version": __version__})


def lookups_by_class(cells: list[int]) -> dict[tuple[str, str], int]:
    """Return the lookups in `Metrics.totals` by strategy and match class."""
    return {
        row: cells[CELLS[row]] + sum(_row(cells, _SINGLES_AT + CELLS[row] * _ROW)[1:])
        for row in _CLASSES
    }


def _row(cells: list[int], place: int) -> list[int]:
    return cells[place : place + _ROW]


def _counters(
    name: str, about: str, labels: list[str], counts: Mapping[Any, int]
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, about, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family


def _times(name: str, about: str, labels: list[str], rows: Mapping[Any, list[int]]) -> Metric:
    """Return the histogram of rows of times by their labels."""
    times = HistogramMetricFamily(name, about, labels=labels)
    for values, (total, *counts) in rows.items():
        buckets, seen = [], 0
        for bound, count in zip((*BOUNDS, "+Inf"), counts, strict=True):
            seen += count
            buckets.append((str(bound), float(seen)))
        times.add_metric(values, buckets, total / 1e9)
    return times


def _index_gauges(live: LiveIndex) -> Iterator[Metric]:
    ready = 1
    try:
        opened = live.opened()
        with opened.engine.view() as view:
            counts = view.counts()
        for name, count in counts._asdict().items():
            about = f"How many {name} the index holds."
            yield GaugeMetricFamily(f"dedupindex_index_{name}", about, count)
        generation = opened.engine.identity.generation
        about = "Generation of the data that is served."
        yield GaugeMetricFamily("dedupindex_index_generation", about, generation)
        if (filters := FilterStore(live.index)).exists():
            parts = filters.manifest().parts
            held, about = sum(part.digests for part in parts), "Digests in the digest filter."
            yield GaugeMetricFamily("dedupindex_filter_digests", about, held)
    except DedupError:
        ready = 0
    if live.shared is not None:
        yield from _shared_filter(live.shared.status())
    yield GaugeMetricFamily("dedupindex_ready", "Whether the index can answer.", ready)


def _shared_filter(status: FilterStatus) -> Iterator[Metric]:
    """Yield what the filter in memory is; it has no age before it is whole."""
    name = "dedupindex_shared_filter"
    about = "Digests in the filter in memory of an index on a cluster."
    yield GaugeMetricFamily(f"{name}_digests", about, status.digests)
    yield GaugeMetricFamily(f"{name}_bytes", "Bytes that it occupies.", status.size)
    if status.age is not None:
        about = "Seconds since it was renewed; an old one answers nothing."
        yield GaugeMetricFamily(f"{name}_age_seconds", about, status.age)
    about = "Digests that it answered without the cluster."
    yield CounterMetricFamily(f"{name}_answers", about, status.answered)


def _crawl_gauges(live: LiveIndex) -> Iterator[Metric]:
    """Yield crawls by state, and crawls that need attention; nothing if they cannot be read."""
    crawls: Counter[CrawlState] = Counter()
    captures = silent = unmerged = 0
    try:
        with live.crawls.snapshot() as snapshot:
            known, reading = snapshot.known.crawls, snapshot.reading
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


def exposition(metrics: Metrics, live: LiveIndex) -> bytes:
    """Return all metrics in the text format of Prometheus."""
    return generate_latest(_Collector(metrics, live))  # type: ignore[arg-type,unused-ignore]
