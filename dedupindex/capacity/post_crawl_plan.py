"""Estimate hours, machines, requests and dollars for rewriting an archive in an object store."""

from __future__ import annotations

from dataclasses import dataclass

from dedupindex.capacity.rates import Table
from dedupindex.runtime.spark import AT_ONCE

STEPS = ("manifest", "resolve", "rewrite", "verify")


@dataclass(frozen=True)
class PostCrawlPlan:
    """A number of instances of one kind; hours of each of `STEPS`."""

    instance: str
    gbps: float
    machines: int
    hours: dict[str, float]
    cost: float  # dollars, of the instances
    node_disk: float  # bytes of temporary files on a machine

    @property
    def total(self) -> float:
        return sum(self.hours.values())


@dataclass(frozen=True)
class PostCrawlCosts:
    """What does not depend on the instances."""

    bytes: float
    captures: float
    bytes_read: float  # by all steps
    dry_run_bytes_read: float
    rerun_bytes_read: float  # by the same command after a complete run
    bytes_written: float
    gets: float
    heads: float
    hours_of_requests: float  # of GETs and HEADs, at the rate of one prefix of the store
    puts: float
    request_cost: float  # dollars
    bytes_saved: float
    saved_per_month: float  # dollars of storage
    both_per_month: float  # dollars of storage, while the old files and the new ones exist
    driver_disk: float  # bytes of manifest, plan, journals and temporary files


def post_crawl_costs(size: float, inputs: Table) -> PostCrawlCosts:
    """Return requests, bytes and savings of an archive of `size` bytes.

    The manifest reads everything; rewriting reads it again, the originals of duplicates once more,
    and what it has written; verification reads the archive and the result, and an original for each
    revisit. A dry run makes the manifest, and rewrites without writing. A rerun has the manifest.
    """
    rates, prices = inputs["post_crawl"], inputs["documents"]
    captures, files = size / rates["bytes_per_capture"], size / rates["bytes_per_file"]
    saved = size * rates["bytes_saved"]
    written = size - saved
    copies = captures * rates["duplicates"]
    compared = size + saved  # by rewriting; an original is about as large as what it replaces
    verified = size + written + copies * rates["bytes_per_original"]
    again = compared + written + verified
    gets = (size + again) / rates["bytes_per_get"] + 2 * copies
    puts = written / rates["bytes_per_put"] + 2 * files  # to begin and to complete an upload
    heads = files * rates["heads_per_file"] + copies * rates["heads_per_original"]
    reads = gets + heads  # which have one price, and one limit
    cost = reads * prices["price_per_1000_gets"] + puts * prices["price_per_1000_puts"]
    monthly = prices["price_per_gb_month"] / 1e9
    on_driver = rates["state_bytes_per_capture"] + rates["grouping_bytes_per_capture"]
    return PostCrawlCosts(
        bytes=size, captures=captures, bytes_read=size + again, dry_run_bytes_read=size + compared,
        rerun_bytes_read=again, bytes_written=written, gets=gets,
        heads=heads, hours_of_requests=reads / rates["gets_per_prefix_s"] / 3600, puts=puts,
        request_cost=cost / 1000, bytes_saved=saved, saved_per_month=saved * monthly,
        both_per_month=(size + written) * monthly, driver_disk=captures * on_driver,
    )  # fmt: skip


def post_crawl_plans(size: float, inputs: Table) -> list[PostCrawlPlan]:
    """Return a plan for each kind and number of instances; cores or the network limit a step.

    One machine makes the plan (``resolve``), and the others wait. A machine has a file and its
    result for each core, and up to three times the rows of the files of a round of Spark.
    """
    rates, costs = inputs["post_crawl"], post_crawl_costs(size, inputs)
    written = costs.bytes_written
    moved = {
        "manifest": size,
        "rewrite": size + costs.bytes_saved + 2 * written,
        "verify": size
        + written
        + costs.captures * rates["duplicates"] * rates["bytes_per_original"],
    }
    in_parallel = [step for step in STEPS if step != "resolve"]
    files, per_file = size / rates["bytes_per_file"], rates["bytes_per_file"]
    rows = per_file / rates["bytes_per_capture"] * rates["state_bytes_per_capture"]
    plans = []
    for instance in inputs["instance"]:
        cores, network = instance["cores"], instance["gbps"] * 1e9 / 8
        seconds = {"resolve": costs.captures / (cores * rates["resolve_rows_per_core_s"])}
        for step, count in moved.items():
            work = {"rewrite": size, "verify": size + written}.get(step, count)  # as measured
            by_cores = work / (cores * rates[f"{step}_mb_per_core_s"] * 1e6)
            seconds[step] = max(by_cores, count / network)
        for machines in rates["machines"]:
            hours = {step: seconds[step] / 3600 for step in STEPS}
            hours |= {step: hours[step] / machines for step in in_parallel}
            cost = sum(hours.values()) * machines * instance["price_per_hour"]
            round_files = min(AT_ONCE * cores, files / machines)
            disk = min(cores, files / machines) * 2 * per_file + 3 * round_files * rows
            plans.append(
                PostCrawlPlan(instance["name"], instance["gbps"], machines, hours, cost, disk)
            )
    return plans
