"""Plans as Markdown tables, which can be read as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dedupindex.capacity import documents, estimates
from dedupindex.capacity.rates import Table


def document_lines(inputs: Table) -> Iterator[str]:
    """The seed's table, the one from measured rates, and what else is to be paid."""
    rates = inputs["documents"]
    rest = documents.rest(inputs)
    seed = inputs["seed"]
    yield (
        f"{seed['documents']:,.0f} documents of {seed['bytes'] / 1024**5:g} PiB. From the seed's "
        "own rates, which take it that processing keeps up with the network:"
    )
    yield ""
    yield from _documents(documents.seed_rows(inputs), 0)
    yield ""
    yield (
        f"From rates measured here ({rates['measured']}): {rates['hash_mb_per_core_s']:,g} MB/s "
        f"hashed and {rates['rows_per_core_s']:,.0f} rows/s deduplicated on a core. Hashing takes "
        "what network or cores need, whichever is more; both grow with instances (extrapolated). "
        "Costs have requests in them:"
    )
    yield ""
    yield from _documents(documents.measured_rows(inputs), rest.request_cost)
    yield ""
    yield (
        f"* Requests: {rest.gets:,.0f} GET and {rest.lists:,.0f} LIST cost "
        f"${rest.request_cost:,.2f}, however many instances there are."
    )
    yield (
        f"* Storage: if {rates['duplicates']:.0%} are duplicates (assumed), dropping them saves "
        f"{rest.saved_bytes / 1e12:,.1f} TB, ${rest.saved_per_month:,.2f} a month."
    )
    yield (f"* {seed['documents']:,.0f} documents, {seed['bytes'] / 1024**4:,.0f} TiB.")


def _documents(rows: Iterable[documents.FleetOption], more: float) -> Iterator[str]:
    yield from _table(
        ("hash", "dedup", "Gbit/s", "hours, hash/dedup", "instance", "cost"),
        (
            (
                f"{row.hashing}", f"{row.deduping}", f"{row.gbps:g}",
                f"{round(row.hash_hours, 2)}/{round(row.dedup_hours, 2)}", row.instance,
                f"${row.cost + more:,.2f}",
            )
            for row in rows
        ),
    )  # fmt: skip


def capture_lines(plans: Sequence[estimates.ClusterPlan], inputs: Table) -> Iterator[str]:
    """A column for each plan."""
    said, lmdb = inputs["captures"], inputs["lmdb"]
    yield f"Measured: {said['measured']}; one machine with LMDB: {lmdb['measured']}."
    yield ""
    figures: tuple[tuple[str, str, str], ...] = (
        ("compacted, one copy", "compacted_tb", "{:,.2f} TB"),
        (f"compacted, {said['replicas']} copies", "replicated_tb", "{:,.2f} TB"),
        ("disk to buy", "disk_tb", "{:,.1f} TB"),
        ("nodes", "nodes", "{:,}"),
        ("of a kind as", "node", "{}"),
        ("disk, each", "disk_per_node_tb", "{:,.2f} TB"),
        ("memory, each", "memory_per_node_gb", "{:,.0f} GB"),
        ("of it for Bloom filters, all nodes", "bloom_gb", "{:,.1f} GB"),
        ("cost a month", "cost_per_month", "${:,.0f}"),
        ("time to load", "load_hours", "{:,.1f} h"),
        ("lookups/s that it answers", "lookups_s", "{:,.0f}"),
        ("lookups/s asked, all in a year", "asked_s", "{:,.0f}"),
        ("one machine with LMDB: disk", "lmdb_tb", "{:,.2f} TB"),
        ("one machine with LMDB: time to load", "lmdb_hours", "{:,.1f} h"),
    )
    heads = ("captures", *(f"{plan.captures:,.0f}" for plan in plans))
    rows = (
        (what, *(form.format(getattr(plan, name)) for plan in plans))
        for what, name, form in figures
    )
    yield from _table(heads, rows)
    yield ""
    yield (
        f"* Measured: {said['bytes_per_capture']:g} bytes a capture, "
        f"{said['bloom_bytes_per_capture']:g} of filters; {said['writes_per_core_s']:,} writes/s "
        f"and {said['reads_per_core_s']:,} reads/s on a core; both figures of LMDB."
    )
    yield (
        "* Extrapolated: that bytes and rates grow as captures and cores do. Data that no cache "
        "holds was not measured."
    )
    yield (
        f"* Rules of thumb: {said['disk_factor']:g} times the disk, {said['tb_per_node']:g} TB on "
        f"a node, {said['heap_gb']:g} GB of heap and {said['cache_gb']:g} GB of cache. Prices are "
        "examples."
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
