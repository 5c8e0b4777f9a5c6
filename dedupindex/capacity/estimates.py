"""Estimate the cluster for an index, and the time and cost to deduplicate documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, inf

from dedupindex.capacity.rates import HOURS_A_MONTH, Table
from dedupindex.errors import BadInput

YEAR = 365 * 86400  # seconds


@dataclass(frozen=True)
class ClusterPlan:
    """A Cassandra cluster, and one machine with LMDB for comparison. Sizes are in decimal units."""

    captures: float
    compacted_tb: float  # one copy
    replicated_tb: float
    disk_tb: float  # to buy
    nodes: int
    node: str
    disk_per_node_tb: float
    memory_per_node_gb: float  # required
    bloom_gb: float  # of the memory, in all nodes
    cost_per_month: float  # dollars
    load_hours: float
    lookups_s: float  # capacity of the cluster, if two replicas answer each lookup
    asked_s: float  # average load, if all captures come within a year
    lmdb_tb: float
    lmdb_hours: float


def plan_cluster(captures: float, inputs: Table) -> ClusterPlan:
    """Raises `BadInput` if no known node is large enough."""
    rates, lmdb = inputs["captures"], inputs["lmdb"]
    replicas = rates["replicas"]
    compacted = captures * rates["bytes_per_capture"] / 1e12
    replicated = compacted * replicas
    disk = replicated * rates["disk_factor"]
    nodes = max(rates["nodes_at_least"], ceil(replicated / rates["tb_per_node"]))
    bloom = captures * rates["bloom_bytes_per_capture"] * replicas / 1e9
    memory = rates["heap_gb"] + rates["cache_gb"] + bloom / nodes
    suitable = [
        node
        for node in inputs["node"]
        if node["disk_tb"] >= disk / nodes and node["memory_gb"] >= memory
    ]
    if not suitable:
        raise BadInput(
            f"no [[node]] has {disk / nodes:.1f} TB of disk and {memory:.0f} GB of memory: name "
            "a larger one, or a smaller captures.tb_per_node"
        )
    node = min(suitable, key=lambda node: float(node["price_per_hour"]))
    cores = nodes * node["cores"]
    quorum = replicas // 2 + 1
    return ClusterPlan(
        captures, compacted, replicated, disk, nodes, node["name"], disk / nodes, memory, bloom,
        nodes * node["price_per_hour"] * HOURS_A_MONTH,
        captures * replicas / (cores * rates["writes_per_core_s"]) / 3600,
        cores * rates["reads_per_core_s"] / quorum,
        captures / YEAR,
        captures * lmdb["bytes_per_capture"] / 1e12,
        captures * lmdb["seconds_per_capture"] / 3600,
    )  # fmt: skip


@dataclass(frozen=True)
class FleetPlan:
    """A number of instances of one kind for each of the two steps."""

    instance: str
    gbps: float
    hashing: int  # instances
    deduping: int
    hash_hours: float
    dedup_hours: float
    machine_cost: float  # dollars, of the instances
    cost: float  # with requests, if the plan counts them

    @property
    def hours(self) -> float:
        return self.hash_hours + self.dedup_hours


@dataclass(frozen=True)
class FixedCosts:
    """Costs and savings that do not depend on the instances."""

    gets: float
    lists: float
    request_cost: float  # dollars
    saved_bytes: float
    saved_per_month: float  # dollars


def published_fleets(inputs: Table) -> list[FleetPlan]:
    """Return the published plan, by its own rates: hashing is limited only by the network."""
    published = inputs["published"]
    return _fleets(inputs, published["rows_per_core_s"], inf, published["cores"], 0.0)


def measured_fleets(inputs: Table) -> list[FleetPlan]:
    """Return the plan by measured rates: hashing is limited by the network or the cores."""
    rates = inputs["documents"]
    hashed, requests = rates["hash_mb_per_core_s"] * 1e6, fixed_costs(inputs).request_cost
    return _fleets(inputs, rates["rows_per_core_s"], hashed, {}, requests)


def _fleets(
    inputs: Table,
    rows_per_core: float,
    bytes_per_core: float,
    counted: Mapping[str, float],
    requests: float,
) -> list[FleetPlan]:
    """`rows_per_core` and `bytes_per_core` are deduplicated and hashed per second.

    `counted` has the cores of an instance if they are not those of the inputs, and `requests` are
    the dollars for them.
    """
    plans, published = [], inputs["published"]
    for instance in inputs["instance"]:
        cores = counted.get(instance["name"], instance["cores"])
        speed = min(instance["gbps"] * 1024**3 / 8, cores * bytes_per_core)
        for hashing, deduping in published["scalings"]:
            hash_hours = published["bytes"] / (hashing * speed) / 3600
            rows_s = deduping * cores * rows_per_core
            dedup_hours = published["documents"] / rows_s / 3600
            cost = (hash_hours * hashing + dedup_hours * deduping) * instance["price_per_hour"]
            plans.append(
                FleetPlan(
                    instance["name"], instance["gbps"], hashing, deduping, hash_hours,
                    dedup_hours, cost, cost + requests,
                )
            )  # fmt: skip
    return plans


def fixed_costs(inputs: Table) -> FixedCosts:
    """Return the cost of requests, and the storage cost of the duplicates."""
    published, rates = inputs["published"], inputs["documents"]
    gets = published["documents"] * rates["gets_per_document"]
    lists = published["documents"] / rates["documents_per_list"]
    saved = published["bytes"] * rates["duplicates"]
    cost = (gets * rates["price_per_1000_gets"] + lists * rates["price_per_1000_lists"]) / 1000
    return FixedCosts(gets, lists, cost, saved, saved / 1e9 * rates["price_per_gb_month"])
