"""Format estimates as Markdown tables and an SVG chart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from math import log10

from dedupindex.capacity import estimates
from dedupindex.capacity.estimates import ClusterPlan, FleetPlan
from dedupindex.capacity.rates import Table


def document_tables(inputs: Table) -> str:
    """Return the published plan, the plan by measured rates, and the other costs."""
    rates, published = inputs["documents"], inputs["published"]
    fixed = estimates.fixed_costs(inputs)
    documents = f"{published['documents']:,.0f} documents"
    return "\n\n".join(
        [
            f"{documents} of {published['bytes'] / 1024**5:g} PiB. The plan published with "
            "record_linker, by its own rates, which assume that processing keeps up with the "
            "network:",
            _fleet_table(estimates.published_fleets(inputs)),
            f"From measured rates ({rates['measured']}): {rates['hash_mb_per_core_s']:,g} "
            f"MB/s hashed and {rates['rows_per_core_s']:,.0f} rows/s deduplicated on a core. "
            "Hashing is limited by the network or by the cores; both grow with instances "
            "(extrapolated), so n times the instances take an n-th of the hours, and the cost is "
            "the same. Costs include requests:",
            _fleet_table(estimates.measured_fleets(inputs)),
            f"* Requests: {fixed.gets:,.0f} GET and {fixed.lists:,.0f} LIST cost "
            f"${fixed.request_cost:,.2f}, however many instances there are.\n"
            f"* Storage: if {rates['duplicates']:.0%} are duplicates (assumed), dropping them "
            f"saves {fixed.saved_bytes / 1e12:,.1f} TB, ${fixed.saved_per_month:,.2f} a month.\n"
            f"* {documents}, {published['bytes'] / 1024**4:,.0f} TiB.",
        ]
    )


def _fleet_table(rows: Iterable[FleetPlan]) -> str:
    cells = [
        (
            f"{row.hashing}", f"{row.deduping}", f"{row.gbps:g}",
            f"{_hours(row.hash_hours)}/{_hours(row.dedup_hours)}", row.instance,
            f"${row.cost:,.2f}",
        )
        for row in rows
    ]  # fmt: skip
    heads = (
        "instances that hash", "that deduplicate", "Gbit/s", "hours: hash/deduplicate",
        "instance", "cost",
    )  # fmt: skip
    return table(heads, cells)


def _hours(hours: float) -> str:
    return f"{round(hours, 2)}" if hours >= 0.005 else "<0.01"


def capture_table(plans: Sequence[ClusterPlan], inputs: Table) -> str:
    """Return a table with a column for each plan, and what it is based on."""
    rates, lmdb = inputs["captures"], inputs["lmdb"]
    figures = (
        ("compacted, one copy", "compacted_tb", "{:,.2f} TB"),
        (f"compacted, {rates['replicas']} copies", "replicated_tb", "{:,.2f} TB"),
        ("disk to buy", "disk_tb", "{:,.1f} TB"),
        ("nodes", "nodes", "{:,}"),
        ("kind of node", "node", "{}"),
        ("disk, each", "disk_per_node_tb", "{:,.2f} TB"),
        ("memory, each", "memory_per_node_gb", "{:,.0f} GB"),
        ("Bloom filters, in all nodes", "bloom_gb", "{:,.1f} GB"),
        ("cost a month", "cost_per_month", "${:,.0f}"),
        ("time to load, plus reading", "load_hours", "{:,.1f} h"),
        ("lookups/s, capacity", "lookups_s", "{:,.0f}"),
        ("lookups/s, average if all come in a year", "asked_s", "{:,.0f}"),
        ("one machine with LMDB: disk", "lmdb_tb", "{:,.2f} TB"),
        ("one machine with LMDB: time to load, plus reading", "lmdb_hours", "{:,.1f} h"),
    )
    heads = ("captures", *(f"{plan.captures:,.0f}" for plan in plans))
    rows = [
        (label, *(form.format(getattr(plan, name)) for plan in plans))
        for label, name, form in figures
    ]
    return "\n\n".join(
        [
            f"Measured: {rates['measured']}; one machine with LMDB: {lmdb['measured']}.",
            table(heads, rows),
            f"* Measured: {rates['bytes_per_capture']:g} bytes a capture, "
            f"{rates['bloom_bytes_per_capture']:g} of filters; {rates['writes_per_core_s']:,} "
            f"writes/s and {rates['reads_per_core_s']:,} reads/s on a core; both figures of LMDB."
            "\n* Extrapolated: bytes are proportional to captures, and rates to cores. Uncached "
            f"data were not measured.\n* Rules of thumb: {rates['disk_factor']:g} times the disk, "
            f"{rates['tb_per_node']:g} TB per node, {rates['heap_gb']:g} GB of heap and "
            f"{rates['cache_gb']:g} GB of cache. Prices are examples.\n* Not included: reading the "
            "archives before, for which bin/plan --post-crawl BYTES has hours, requests and "
            "dollars, under bin/index; and the machine that reads and loads.",
        ]
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (heads, *rows)]
    return "\n".join([lines[0], f"|{'---|' * len(heads)}", *lines[1:]])


_WIDTH, _HEIGHT, _LEFT, _TOP = 460, 260, 56, 40  # of the plot of a panel, and its margins
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")  # Okabe and Ito
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#777}.title{font-size:14px;font-weight:bold}"
    "path{fill:none;stroke-width:2}.grid{stroke:#8884;stroke-width:1}"
)


def picture(rows: Sequence[FleetPlan]) -> str:
    """Draw hours, and dollars with requests, over the instances that hash; a line for each kind."""
    panels = [
        ("Hours", lambda row: row.hours),
        ("Dollars, with requests", lambda row: row.cost),
    ]
    width, height = 2 * (_LEFT + _WIDTH + 24), _TOP + _HEIGHT + 48
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        "<title>Runtime and cost over the number of instances that hash</title>",
        f"<style>{_STYLE}</style>",
    ]
    for number, (title, value) in enumerate(panels):
        parts.append(f'<g transform="translate({number * (_LEFT + _WIDTH + 24)} 0)">')
        parts += _panel(title, rows, value)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    title: str, rows: Sequence[FleetPlan], value: Callable[[FleetPlan], float]
) -> Iterator[str]:
    values = [value(row) for row in rows]
    low, high = _decades(min(values), max(values))
    most = log10(max(row.hashing for row in rows)) or 1.0

    def across(count: float) -> float:
        return round(_LEFT + log10(count) / most * _WIDTH, 1)

    def down(amount: float) -> float:
        return round(_TOP + (high - log10(amount)) / (high - low) * _HEIGHT, 1)

    yield f'<text class="title" x="{_LEFT}" y="20">{escape(title)}</text>'
    for power in range(low, high + 1):
        y = down(10.0**power)
        yield f'<path class="grid" d="M{_LEFT} {y}H{_LEFT + _WIDTH}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{10.0**power:,g}</text>'
    for count in sorted({row.hashing for row in rows}):
        x = across(count)
        yield f'<text x="{x}" y="{_TOP + _HEIGHT + 18}" text-anchor="middle">{count}</text>'
    yield (
        f'<text x="{_LEFT + _WIDTH / 2}" y="{_TOP + _HEIGHT + 38}" text-anchor="middle">'
        "instances that hash</text>"
    )
    for number, name in enumerate(dict.fromkeys(row.instance for row in rows)):
        colour = _COLOURS[number % len(_COLOURS)]
        best: dict[int, float] = {}
        for row in rows:
            if row.instance == name:
                best[row.hashing] = min(value(row), best.get(row.hashing, float("inf")))
        points = " L".join(f"{across(count)} {down(best[count])}" for count in sorted(best))
        yield f'<path d="M{points}" stroke="{colour}"/>'
        x, y = _LEFT + _WIDTH - 8, _TOP + 14 + 16 * number
        yield f'<text x="{x}" y="{y}" text-anchor="end" style="fill:{colour}">{escape(name)}</text>'


def _decades(least: float, most: float) -> tuple[int, int]:
    """Return the powers of ten that enclose the values."""
    low, high = int(log10(least) // 1), int(-(-log10(most) // 1))
    return low, max(high, low + 1)
