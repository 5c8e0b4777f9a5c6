"""How long a petabyte of documents takes, and what it costs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dedupindex.capacity.rates import Table


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
