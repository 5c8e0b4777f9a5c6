"""``bin/plan``: estimate machines, hours and dollars from measured rates."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from dedupindex.capacity import estimates
from dedupindex.capacity.markdown import capture_table, document_tables, picture
from dedupindex.capacity.rates import as_toml, load
from dedupindex.capacity.rates import measure as measure_rates
from dedupindex.cli.common import Command, print_result, say
from dedupindex.cli.options import FILE, PATH, cores, flag, option, shared_options
from dedupindex.runtime.files import write_file

EXAMPLES = """
bin/plan --documents                                   a petabyte: a published plan, and ours
bin/plan --documents --measure --save rates.toml       from the rates of this machine
bin/plan --documents --rates rates.toml --svg plan.svg
bin/plan --captures 1e9,1e10,1e11                      an index on Cassandra
"""


def _counts(ctx: click.Context, param: click.Parameter, value: str) -> list[float]:
    """Numbers with commas between them."""
    with suppress(ValueError):
        counts = [float(part) for part in value.split(",")] if value else []
        if all(1 <= count <= 1e15 for count in counts):
            return counts
    raise click.BadParameter(f"{value}: write numbers with commas, as 1e9,1e10")


@click.command(cls=Command, examples=EXAMPLES)
@flag("--documents", help="Plan exact deduplication of documents.")
@option(
    "--captures", callback=_counts, default="", metavar="N,N…", help="Plan indexes of these sizes."
)
@option(
    "--rates", type=FILE, metavar="FILE",
    help="TOML with values in place of those in dedupindex/capacity/inputs.toml.",
)  # fmt: skip
@flag("--measure", help="Measure this machine, for documents; takes 1.2 GB of disk and a minute.")
@option(
    "--work", type=click.Path(path_type=Path, file_okay=False, exists=True), default=".",
    metavar="DIR", show_default="this directory",
    help="Directory for the samples of --measure.",
)  # fmt: skip
@option("--save", type=PATH, metavar="FILE", help="Write the measured rates to a file for --rates.")
@option("--svg", type=PATH, metavar="FILE", help="Draw runtime and cost for --documents.")
@shared_options("--json")
def command(
    documents: bool,
    captures: list[float],
    rates: Path | None,
    measure: bool,
    work: Path,
    save: Path | None,
    svg: Path | None,
) -> int:
    """Estimate machines, hours and dollars of deduplication, as Markdown.

    The tables state what was measured, extrapolated and assumed; the values are in
    dedupindex/capacity/inputs.toml.
    """
    if not documents and not captures:
        raise click.UsageError("name --documents, --captures or both")
    if not documents and (measure or svg):
        raise click.UsageError("--measure and --svg need --documents")
    if save and not measure:
        raise click.UsageError("--save needs --measure")
    inputs = load(rates)
    if measure:
        found = measure_rates(work, cores(), say=say)
        inputs["documents"].update(found)
        if save is not None:
            write_file(save, as_toml(found).encode())
    if svg is not None:
        requests = estimates.fixed_costs(inputs).request_cost
        write_file(svg, picture(estimates.measured_fleets(inputs), requests).encode())
    plans = [estimates.plan_cluster(count, inputs) for count in captures]
    tables, content = [], dict[str, Any](inputs=inputs)
    if documents:
        tables.append(document_tables(inputs))
        content["documents"] = {
            "published": estimates.published_fleets(inputs),
            "measured": estimates.measured_fleets(inputs),
            **vars(estimates.fixed_costs(inputs)),
        }
    if plans:
        tables.append(capture_table(plans, inputs))
        content["captures"] = plans
    print_result(content, ["\n\n".join(tables)])
    return 0
