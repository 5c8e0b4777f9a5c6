"""Estimate hours, machines, requests and dollars for rewriting an archive in an object store."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from dedupindex.capacity.rates import Table
from dedupindex.capacity.store_traffic import StoredArchive, StoreTraffic
from dedupindex.runtime.spark import AT_ONCE

STEPS = ("manifest", "resolve", "rewrite", "verify")
RUNS = ("dry_run", "run", "verify_again", "undo", "index")


@dataclass(frozen=True)
class RunPlan:
    """A run other than that of `STEPS`, with some machines."""

    hours: float
    cost: float  # dollars, with requests
    one_prefix_hours: float  # if the store answers no faster than one prefix of it
    one_prefix_cost: float


@dataclass(frozen=True)
class PostCrawlPlan:
    """A number of instances of one kind; hours of each of `STEPS`."""

    instance: str
    gbps: float
    machines: int
    hours: dict[str, float]
    total_hours: float
    machine_cost: float  # dollars, of the instances
    cost: float  # with requests
    prefixes: int  # that the files are spread over, so that the store does not limit a step
    one_prefix_hours: float  # in all, with one prefix
    one_prefix_cost: float
    runs: dict[str, RunPlan]  # `RUNS` but ``run``
    load_hours: float  # of the run ``index``: those in which one machine loads
    node_disk: float  # bytes of temporary files on a machine


@dataclass(frozen=True)
class RunRequests:
    """What a run sends and reads, with any number of machines."""

    bytes_read: float
    bytes_written: float
    gets: float
    heads: float
    lists: float
    puts: float
    request_cost: float  # dollars


@dataclass(frozen=True)
class PostCrawlCosts:
    """What does not depend on the instances."""

    bytes: float
    captures: float
    files: float
    bytes_read: float  # by all steps
    dry_run_bytes_read: float
    rerun_bytes_read: float  # by the same command after a complete run
    bytes_written: float
    gets: float
    heads: float
    lists: float
    hours_of_requests: float  # of GETs and HEADs, at the rate of one prefix of the store
    puts: float
    request_cost: float  # dollars
    runs: dict[str, RunRequests]  # by `RUNS`
    bytes_saved: float
    saved_per_month: float  # dollars of storage
    before_per_month: float  # of the old files
    both_per_month: float  # while the old files and the new ones exist
    driver_disk: float  # bytes of manifest, plan, journals and temporary files


def traffic_of_runs(size: float, inputs: Table) -> dict[str, StoreTraffic]:
    """Return the traffic of `RUNS` over an archive of `size` bytes."""
    archive = StoredArchive(size, inputs)
    return {
        "dry_run": archive.manifest() + archive.compare(),
        "run": archive.manifest() + archive.rewrite() + archive.verify(),
        "verify_again": archive.verify_again(),
        "undo": archive.undo(),
        "index": archive.manifest(),
    }


def post_crawl_costs(size: float, inputs: Table) -> PostCrawlCosts:
    """Return requests, bytes and savings of an archive of `size` bytes.

    The manifest reads everything; rewriting reads it again, the originals of duplicates once more,
    and what it has written; verification reads the archive and the result, and an original for each
    revisit. A dry run makes the manifest, and rewrites without writing. A rerun has the manifest.
    """
    rates, prices = inputs["post_crawl"], inputs["documents"]
    archive, traffic = StoredArchive(size, inputs), traffic_of_runs(size, inputs)
    runs = {name: RunRequests(**vars(one), request_cost=one.cost(prices))
            for name, one in traffic.items()}  # fmt: skip
    run, again = traffic["run"], archive.rewrite() + archive.verify()
    monthly = prices["price_per_gb_month"] / 1e9
    return PostCrawlCosts(
        bytes=size, captures=archive.captures, files=archive.files, bytes_read=run.bytes_read,
        dry_run_bytes_read=traffic["dry_run"].bytes_read, rerun_bytes_read=again.bytes_read,
        bytes_written=archive.written, gets=run.gets, heads=run.heads, lists=run.lists,
        hours_of_requests=_hours_at_prefix(run, rates), puts=run.puts,
        request_cost=run.cost(prices), runs=runs, bytes_saved=archive.saved,
        saved_per_month=archive.saved * monthly, before_per_month=size * monthly,
        both_per_month=(size + archive.written) * monthly,
        driver_disk=archive.captures * _driver_bytes(rates),
    )  # fmt: skip


def _driver_bytes(rates: Table) -> float:
    """Return bytes a capture: a run that is repeated groups while it has the journals of before."""
    share = rates["duplicates"]
    grouping = rates["grouping_bytes_per_capture"] + share * rates["grouping_bytes_per_revisit"]
    kept = rates["manifest_bytes_per_capture"] + share * rates["plan_bytes_per_revisit"]
    return float(kept + grouping + share * rates["journal_bytes_per_revisit"])


def _hours_at_prefix(traffic: StoreTraffic, rates: Table) -> float:
    """Return the hours of GETs and HEADs at the rate of one prefix."""
    return traffic.reads / float(rates["gets_per_prefix_s"]) / 3600


def post_crawl_plans(size: float, inputs: Table) -> list[PostCrawlPlan]:
    """Return a plan for each kind and number of instances; cores or the network limit a step.

    One machine makes the plan (``resolve``), and the others wait. A machine has a file and its
    result for each core, and up to three times the rows of the files of a round of Spark.
    """
    instances, counts = inputs["instance"], inputs["post_crawl"]["machines"]
    return [
        _Fleet(size, inputs, instance, count).plan() for instance in instances for count in counts
    ]


class _Fleet:
    """Instances of one kind that work on an archive."""

    def __init__(self, size: float, inputs: Table, instance: Table, machines: int) -> None:
        self._archive = StoredArchive(size, inputs)
        self._inputs, self._rates = inputs, inputs["post_crawl"]
        self._instance, self._machines = instance, machines
        self._runs = traffic_of_runs(size, inputs)

    def plan(self) -> PostCrawlPlan:
        archive, kind, machines = self._archive, self._instance, self._machines
        traffic = {
            "manifest": archive.manifest(), "rewrite": archive.rewrite(),
            "verify": archive.verify(),
        }  # fmt: skip
        work = {"manifest": archive.size, "rewrite": archive.size,
                "verify": archive.size + archive.written}  # fmt: skip
        shared = {name: self._hours(name, work[name], one) for name, one in traffic.items()}
        hours = {step: shared.get(step, self._resolve_hours()) for step in STEPS}
        at_prefix = {name: _hours_at_prefix(one, self._rates) for name, one in traffic.items()}
        slowed = sum(max(hours[name], at_prefix.get(name, 0.0)) for name in STEPS)
        price, requests = self._price(machines), self._request_cost("run")
        total = sum(hours.values())
        return PostCrawlPlan(
            instance=kind["name"], gbps=kind["gbps"], machines=machines, hours=hours,
            total_hours=total, machine_cost=total * price, cost=total * price + requests,
            prefixes=max(ceil(at_prefix[name] / hours[name]) for name in traffic),
            one_prefix_hours=slowed, one_prefix_cost=slowed * price + requests,
            runs=self._other_runs(hours), load_hours=self._load_hours(),
            node_disk=self._node_disk(),
        )  # fmt: skip

    def _other_runs(self, hours: dict[str, float]) -> dict[str, RunPlan]:
        """Return plans of runs; ``bin/undedup`` has one machine, and ``bin/index`` loads on one."""
        archive, runs = self._archive, self._runs
        compared = self._hours("rewrite", archive.size, archive.compare())
        dry = hours["manifest"] + hours["resolve"] + compared
        again = archive.size + 2 * archive.written
        undone = self._hours("rewrite", archive.size, runs["undo"], machines=1)
        return {
            "dry_run": self._run("dry_run", dry),
            "verify_again": self._run(
                "verify_again", self._hours("verify", again, runs["verify_again"])
            ),
            "undo": self._run("undo", undone, machines=1),
            "index": self._run("index", hours["manifest"] + self._load_hours()),
        }

    def _run(self, name: str, hours: float, machines: int = 0) -> RunPlan:
        price, requests = self._price(machines or self._machines), self._request_cost(name)
        slowed = max(hours, _hours_at_prefix(self._runs[name], self._rates))
        return RunPlan(hours, hours * price + requests, slowed, slowed * price + requests)

    def _hours(self, rate: str, work: float, traffic: StoreTraffic, machines: int = 0) -> float:
        """Return the hours of a step that all machines share.

        `work` is in bytes, as the rate was measured.
        """
        cores, network = self._instance["cores"], self._instance["gbps"] * 1e9 / 8
        by_cores = work / (cores * self._rates[f"{rate}_mb_per_core_s"] * 1e6)
        by_network = (traffic.bytes_read + traffic.bytes_written) / network
        return float(max(by_cores, by_network)) / 3600 / (machines or self._machines)

    def _resolve_hours(self) -> float:
        rows_s = self._instance["cores"] * self._rates["resolve_rows_per_core_s"]
        return float(self._archive.captures / rows_s / 3600)

    def _load_hours(self) -> float:
        """Return the hours in which one machine loads an index with LMDB."""
        return float(self._archive.captures * self._inputs["lmdb"]["seconds_per_capture"] / 3600)

    def _price(self, machines: int) -> float:
        """Return dollars an hour."""
        return machines * float(self._instance["price_per_hour"])

    def _request_cost(self, run: str) -> float:
        return self._runs[run].cost(self._inputs["documents"])

    def _node_disk(self) -> float:
        archive, rates, cores = self._archive, self._rates, self._instance["cores"]
        share, per_file = archive.files / self._machines, archive.per_file
        revisit = rates["plan_bytes_per_revisit"] + rates["journal_bytes_per_revisit"]
        each = max(rates["manifest_bytes_per_capture"], rates["duplicates"] * revisit)
        rows = per_file / rates["bytes_per_capture"] * each
        at_once = min(cores, max(share, 1)) * 2 * per_file
        return float(at_once + 3 * min(AT_ONCE * cores, max(share, 1)) * rows)
