"""Format the plans for rewriting an archive in an object store as Markdown tables."""

from __future__ import annotations

from dedupindex.capacity.markdown import table
from dedupindex.capacity.post_crawl_plan import (
    STEPS,
    PostCrawlCosts,
    PostCrawlPlan,
    RunPlan,
    post_crawl_costs,
    post_crawl_plans,
)
from dedupindex.capacity.rates import Table, load
from dedupindex.runtime.tables import amount, dollars

_RUNS = {
    "dry_run": "`bin/dedup --dry-run`",
    "run": "`bin/dedup`, all steps",
    "verify_again": "`bin/verify --against` once more",
    "undo": "`bin/undedup` into the store",
    "index": "`bin/index` of the archive",
}
_NOT_INCLUDED = (
    "disks of the machines, the time in which machines and commands start, what a class of storage "
    "charges for reads, for a minimum term and for deletion before it ends, old versions that a "
    "bucket keeps, parts of uploads that were interrupted, requests that are repeated, and "
    "transfers out of the region of the store"
)


def post_crawl_tables(size: float, inputs: Table) -> str:
    """Return hours and costs of each step by machines, of other runs, requests and storage."""
    rates, costs = inputs["post_crawl"], post_crawl_costs(size, inputs)
    plans = post_crawl_plans(size, inputs)
    return "\n\n".join(
        [
            _rates_line(costs, rates),
            _steps_table(plans),
            "Other runs with these machines; `bin/undedup` has one of them. `bin/index` reads with "
            "all, and then one loads the index, with LMDB:",
            _runs_table(plans),
            "Requests and bytes, with any number of machines:",
            _requests_table(costs),
            "Storage:",
            _storage_table(costs),
            "\n".join(f"* {note}" for note in _notes(plans, costs, rates)),
        ]
    )


def _duration(hours: float) -> str:
    """Return a time in hours, minutes or seconds."""
    if hours >= 1:
        return f"{hours:,.2f} h"
    if hours * 60 >= 1:
        return f"{hours * 60:.1f} min"
    seconds = hours * 3600
    return f"{seconds:.1f} s" if seconds >= 0.05 else "<0.1 s"


def _steps_table(plans: list[PostCrawlPlan]) -> str:
    heads = (
        "machines", "instance", "Gbit/s", *STEPS, "total", "cost", "prefixes for that",
        "total with one prefix", "cost with one prefix", "disk of a machine",
    )  # fmt: skip
    rows = [
        (
            f"{plan.machines}", plan.instance, f"{plan.gbps:g}",
            *(_duration(plan.hours[step]) for step in STEPS), _duration(plan.total_hours),
            f"${dollars(plan.cost)}", f"{plan.prefixes:,}", _duration(plan.one_prefix_hours),
            f"${dollars(plan.one_prefix_cost)}", amount(plan.node_disk),
        )
        for plan in plans
    ]  # fmt: skip
    return table(heads, rows)


def _runs_table(plans: list[PostCrawlPlan]) -> str:
    heads = (
        "machines", "instance", "dry run", "with one prefix", "`bin/verify` once more",
        "with one prefix", "`bin/undedup`", "with one prefix", "`bin/index`: reading, loading",
    )  # fmt: skip
    rows = []
    for plan in plans:
        index = plan.runs["index"]
        reading = _duration(index.hours - plan.load_hours)
        cells = [cell for name in ("dry_run", "verify_again", "undo")
                 for cell in _run_cells(plan.runs[name])]  # fmt: skip
        loading = f"{reading} and {_duration(plan.load_hours)}, ${dollars(index.cost)}"
        rows.append((f"{plan.machines}", plan.instance, *cells, loading))
    return table(heads, rows)


def _run_cells(run: RunPlan) -> tuple[str, str]:
    return (
        f"{_duration(run.hours)}, ${dollars(run.cost)}",
        f"{_duration(run.one_prefix_hours)}, ${dollars(run.one_prefix_cost)}",
    )


def _requests_table(costs: PostCrawlCosts) -> str:
    heads = ("run", "read", "written", "GET", "HEAD", "LIST", "PUT", "cost of requests")
    rows = [
        (
            _RUNS[name], amount(run.bytes_read), amount(run.bytes_written), f"{run.gets:,.0f}",
            f"{run.heads:,.0f}", f"{run.lists:,.0f}", f"{run.puts:,.0f}",
            f"${dollars(run.request_cost)}",
        )
        for name, run in costs.runs.items()
    ]  # fmt: skip
    return table(heads, rows)


def _storage_table(costs: PostCrawlCosts) -> str:
    after = costs.both_per_month - costs.before_per_month
    rows = [
        ("old files", costs.bytes, costs.before_per_month),
        ("results", costs.bytes_written, after),
        ("both, until the old files are deleted", costs.bytes + costs.bytes_written,
         costs.both_per_month),
        ("saved after that", costs.bytes_saved, costs.saved_per_month),
    ]  # fmt: skip
    cells = [(name, amount(count), f"${dollars(cost)}") for name, count, cost in rows]
    return table(("storage", "size", "a month"), cells)


def _notes(plans: list[PostCrawlPlan], costs: PostCrawlCosts, rates: Table) -> list[str]:
    least, monthly = min(plan.cost for plan in plans), costs.saved_per_month
    pays = f"The space that is saved pays for the cheapest plan in {least / monthly:.1f} months, "
    return [
        "Total and cost take the store for as quick as the network. It is so if the files, and the "
        'results, are spread evenly over as many prefixes as the column "prefixes for that" says, '
        f"and it answers {rates['gets_per_prefix_s']:,g} GETs and HEADs a second for each. If all "
        "files have one prefix, these requests alone take "
        f"{_long_duration(costs.hours_of_requests)} with any number of machines, which wait "
        "meanwhile and cost what is said there.",
        f"The run after a dry run reads {amount(costs.bytes)} less than without one; the same "
        f"command after a complete run reads {amount(costs.rerun_bytes_read)} and writes nothing.",
        f"Disk of the driver: {amount(costs.driver_disk)}. The manifest has "
        f"{rates['manifest_bytes_per_capture']:g} bytes a capture, the plan "
        f"{rates['plan_bytes_per_revisit']:g} a duplicate. Grouping takes "
        f"{rates['grouping_bytes_per_capture']:g} a capture and "
        f"{rates['grouping_bytes_per_revisit']:g} a duplicate for a while, the journals "
        f"{rates['journal_bytes_per_revisit']:g} a duplicate. Both count: a first run groups "
        "before it has journals, but one that goes on or is repeated has those of before. Disk of "
        "a machine: a file and its result for each core, and up to three times the rows that Spark "
        "keeps of a round.",
        *([f"{pays}if the hours are those without a limit of requests."] if monthly else []),
        "Extrapolated: rates grow with cores and machines, and grouping (resolve) of many "
        "more rows was not measured. A dry run compares as quickly as rewriting rewrites, "
        "`bin/undedup` restores so, and `bin/index` reads as quickly as manifest does (assumed).",
        f"Assumed: {amount(rates['bytes_per_capture'])} a capture, "
        f"{rates['duplicates']:.0%} of them duplicates, their originals in other files, drawn at "
        f"random, {rates['bytes_saved']:.0%} of the bytes saved, files of "
        f"{amount(costs.bytes / costs.files)}. Prices are examples.",
        f"Not included: {_NOT_INCLUDED}.",
    ]


def _long_duration(hours: float) -> str:
    return f"{hours:,.1f} hours" if hours >= 1 else _duration(hours)


def _rates_line(costs: PostCrawlCosts, rates: Table) -> str:
    default = load()["post_crawl"]
    same = rates["resolve_rows_per_core_s"] == default["resolve_rows_per_core_s"]
    other = same and rates["measured"] != default["measured"]
    resolving = " (the default, not measured there)" if other else ""
    return (
        f"{amount(costs.bytes)} of WARC files, {costs.captures:,.0f} captures. From measured "
        f"rates ({rates['measured']}), on a core: manifest "
        f"{rates['manifest_mb_per_core_s']:g} MB/s, rewrite "
        f"{rates['rewrite_mb_per_core_s']:g} MB/s of what is read first, verify "
        f"{rates['verify_mb_per_core_s']:g} MB/s of both archives together, resolve "
        f"{rates['resolve_rows_per_core_s']:,g} rows/s{resolving}. One machine resolves, and "
        "the others wait. Costs are those of all machines for all steps, and of requests:"
    )
