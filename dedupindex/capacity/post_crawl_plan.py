"""Estimate hours, machines, requests and dollars for rewriting an archive in an object store."""

from __future__ import annotations

from dataclasses import dataclass

from dedupindex.capacity.rates import Table

STEPS = ("manifest", "resolve", "rewrite", "verify")


@dataclass(frozen=True)
class PostCrawlPlan:
    """A number of instances of one kind; hours of each of `STEPS`."""

    instance: str
    gbps: float
    machines: int
    hours: dict[str, float]
    cost: float  # dollars, of the instances

    @property
    def total(self) -> float:
        return sum(self.hours.values())


@dataclass(frozen=True)
class PostCrawlCosts:
    """What does not depend on the instances."""

    bytes: float
    captures: float
    bytes_read: float  # by all steps
    bytes_written: float
    gets: float
    puts: float
    request_cost: float  # dollars
    bytes_saved: float
    saved_per_month: float  # dollars of storage


def post_crawl_costs(size: float, inputs: Table) -> PostCrawlCosts:
    """Return requests, bytes and savings of an archive of `size` bytes.

    The manifest reads everything; rewriting reads it again, the originals of duplicates once more,
    and what it has written; verification reads the archive and the result.
    """
    rates, prices = inputs["post_crawl"], inputs["documents"]
    captures, files = size / rates["bytes_per_capture"], size / rates["bytes_per_file"]
    saved = size * rates["bytes_saved"]
    written = size - saved
    read = 3 * size + 2 * written + saved  # an original is about as large as what it replaces
    gets = read / rates["bytes_per_get"] + captures * rates["duplicates"]
    puts = written / rates["bytes_per_put"] + 2 * files  # to begin and to complete an upload
    cost = gets * prices["price_per_1000_gets"] + puts * prices["price_per_1000_puts"]
    monthly = saved / 1e9 * prices["price_per_gb_month"]
    return PostCrawlCosts(
        size, captures, read, written, gets, puts, cost / 1000, saved, monthly
    )  # fmt: skip


def post_crawl_plans(size: float, inputs: Table) -> list[PostCrawlPlan]:
    """Return a plan for each kind and number of instances; cores or the network limit a step."""
    rates, costs = inputs["post_crawl"], post_crawl_costs(size, inputs)
    written = costs.bytes_written
    moved = {
        "manifest": size,
        "rewrite": size + costs.bytes_saved + 2 * written,
        "verify": size + written,
    }
    plans = []
    for instance in inputs["instance"]:
        cores, network = instance["cores"], instance["gbps"] * 1024**3 / 8
        seconds = {"resolve": costs.captures / (cores * rates["resolve_rows_per_core_s"])}
        for step, count in moved.items():
            work = size if step == "rewrite" else count  # its rate is that of what it reads first
            by_cores = work / (cores * rates[f"{step}_mb_per_core_s"] * 1e6)
            seconds[step] = max(by_cores, count / network)
        cost = sum(seconds.values()) / 3600 * instance["price_per_hour"]
        for machines in rates["machines"]:
            hours = {step: seconds[step] / machines / 3600 for step in STEPS}
            plans.append(PostCrawlPlan(instance["name"], instance["gbps"], machines, hours, cost))
    return plans
