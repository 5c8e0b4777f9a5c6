"""How crawls stand at the moment of a scrape, for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from dedupindex.crawls import statistics
from dedupindex.crawls.crawl import State
from dedupindex.crawls.upkeep import waits
from dedupindex.errors import DedupError
from server.config import RECORDS_CRAWL
from server.live import LiveIndex


def crawl_gauges(live: LiveIndex) -> Iterator[Metric]:
    """Crawls by state, and those that somebody should look at; none if they cannot be read."""
    crawls: Counter[State] = Counter()
    captures = silent = unmerged = 0
    try:
        with live.crawls.reading() as reading:
            if reading is None:
                return
            for crawl in reading.crawls():
                crawls[crawl.state] += 1
                unmerged += waits(reading, crawl)
            opened = [crawl for crawl in reading.crawls() if crawl.state is State.OPEN]
            ready = reading.ready(opened)
            for crawl in opened:
                captures += ready.counts(crawl)[0]
                own = crawl.name.startswith(RECORDS_CRAWL)  # of /api/records: nobody asks for it
                silent += not own and not statistics.total(ready, crawl).lookups
    except DedupError:
        return
    states = GaugeMetricFamily("dedupindex_crawls", "Crawls by state.", labels=["state"])
    for state in State:
        states.add_metric([state.value], crawls[state])
    yield states
    for name, about, value in (
        ("open_captures", "Captures of crawls that are open.", captures),
        ("without_lookup", "Open crawls that have never asked.", silent),
        ("unmerged", "Committed crawls whose captures are not in the index yet.", unmerged),
    ):
        yield GaugeMetricFamily(f"dedupindex_crawls_{name}", about, value)
