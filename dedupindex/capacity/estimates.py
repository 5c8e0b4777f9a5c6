"""How many nodes an index of so many captures takes, and what they cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from dedupindex.capacity.rates import HOURS_A_MONTH, Table
from dedupindex.errors import BadInput

YEAR = 365 * 86400


@dataclass(frozen=True)
class ClusterPlan:
    """A cluster, and one machine beside it. Sizes are in decimal units."""

    captures: float
    compacted_tb: float  # one copy
    replicated_tb: float
    disk_tb: float  # to buy
    nodes: int
    node: str
    disk_per_node_tb: float
    memory_per_node_gb: float  # that is needed
    bloom_gb: float  # of it, all nodes together
    cost_per_month: float  # dollars
    load_hours: float
    lookups_s: float  # that the cluster answers, each asked of two replicas
    asked_s: float  # in the mean, if all captures come within a year
    lmdb_tb: float
    lmdb_hours: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def plan(captures: float, inputs: Table) -> ClusterPlan:
    """Raises `BadInput` if no node that is known is large enough."""
    said, lmdb = inputs["captures"], inputs["lmdb"]
    replicas = said["replicas"]
    compacted = captures * said["bytes_per_capture"] / 1e12
    replicated = compacted * replicas
    disk = replicated * said["disk_factor"]
    nodes = max(said["nodes_at_least"], ceil(replicated / said["tb_per_node"]))
    bloom = captures * said["bloom_bytes_per_capture"] * replicas / 1e9
    memory = said["heap_gb"] + said["cache_gb"] + bloom / nodes
    fitting = [
        node
        for node in inputs["node"]
        if node["disk_tb"] >= disk / nodes and node["memory_gb"] >= memory
    ]
    if not fitting:
        raise BadInput(
            f"no [[node]] has {disk / nodes:.1f} TB of disk and {memory:.0f} GB of memory: name "
            "a larger one, or a smaller captures.tb_per_node"
        )
    node = min(fitting, key=lambda one: one["price_per_hour"])
    cores = nodes * node["cores"]
    quorum = replicas // 2 + 1
    return ClusterPlan(
        captures, compacted, replicated, disk, nodes, node["name"], disk / nodes, memory, bloom,
        nodes * node["price_per_hour"] * HOURS_A_MONTH,
        captures * replicas / (cores * said["writes_per_core_s"]) / 3600,
        cores * said["reads_per_core_s"] / quorum,
        captures / YEAR,
        captures * lmdb["bytes_per_capture"] / 1e12,
        captures * lmdb["seconds_per_capture"] / 3600,
    )  # fmt: skip


# How long a petabyte of documents takes, and what it costs.


@dataclass(frozen=True)
class FleetOption:
    """One way to do it: so many instances of a kind in each step."""

    instance: str
    gbps: float
    hashing: int  # instances
    deduping: int
    hash_hours: float
    dedup_hours: float
    cost: float  # dollars, of the instances

    @property
    def hours(self) -> float:
        return self.hash_hours + self.dedup_hours

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Rest:
    """What does not depend on the instances."""

    gets: float
    lists: float
    request_cost: float  # dollars
    saved_bytes: float
    saved_per_month: float  # dollars

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def seed_rows(inputs: Table) -> list[FleetOption]:
    """The seed's table: its formulas and its rates, where processing keeps up with the network."""
    seed = inputs["seed"]
    return [
        _row(inputs, instance, hashing, deduping, seed["rows_per_core_s"])
        for instance in inputs["instance"]
        for hashing, deduping in seed["scalings"]
    ]


def measured_rows(inputs: Table) -> list[FleetOption]:
    """The same from rates measured here: the network or the cores, whichever is slower."""
    rates = inputs["documents"]
    return [
        _row(
            inputs, instance, hashing, deduping, rates["rows_per_core_s"],
            instance["cores"] * rates["hash_mb_per_core_s"] * 1e6,
        )
        for instance in inputs["instance"]
        for hashing, deduping in inputs["seed"]["scalings"]
    ]  # fmt: skip


def _row(
    inputs: Table,
    instance: Table,
    hashing: int,
    deduping: int,
    rows_per_core: float,
    most: float | None = None,
) -> FleetOption:
    """`most` is what the cores of an instance hash in a second, in bytes."""
    seed = inputs["seed"]
    speed = instance["gbps"] * 1024**3 / 8
    if most is not None:
        speed = min(speed, most)
    hash_hours = seed["bytes"] / (hashing * speed) / 3600
    dedup_hours = seed["documents"] / (deduping * instance["cores"] * rows_per_core) / 3600
    cost = (hash_hours * hashing + dedup_hours * deduping) * instance["price_per_hour"]
    return FleetOption(
        instance["name"], instance["gbps"], hashing, deduping, hash_hours, dedup_hours, cost
    )


def rest(inputs: Table) -> Rest:
    """Requests, and what the duplicates take in storage."""
    seed, rates = inputs["seed"], inputs["documents"]
    gets = seed["documents"] * rates["gets_per_document"]
    lists = seed["documents"] / rates["documents_per_list"]
    saved = seed["bytes"] * rates["duplicates"]
    return Rest(
        gets,
        lists,
        (gets * rates["price_per_1000_gets"] + lists * rates["price_per_1000_lists"]) / 1000,
        saved,
        saved / 1e9 * rates["price_per_gb_month"],
    )
