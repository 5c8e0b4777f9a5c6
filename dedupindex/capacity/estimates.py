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
