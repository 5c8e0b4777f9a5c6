"""Gauges of crawls for Prometheus, computed at each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from dedupindex.crawls import statistics
from dedupindex.crawls.crawl import CrawlState
from dedupindex.crawls.merge_crawls import waits
from dedupindex.errors import DedupError
from server.config import RECORDS_CRAWL
from server.live_index import LiveIndex

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
            ready = reading.ready(opened)
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
