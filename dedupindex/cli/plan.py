"""``bin/plan``: estimate machines, hours and dollars from measured rates."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from dedupindex.capacity import estimates
from dedupindex.capacity.markdown import (
    capture_table,
    document_tables,
    picture,
)
from dedupindex.capacity.measure_post_crawl import measure_post_crawl
from dedupindex.capacity.post_crawl_plan import post_crawl_costs, post_crawl_plans
from dedupindex.capacity.post_crawl_tables import post_crawl_tables
from dedupindex.capacity.rates import Table, as_toml, load
from dedupindex.capacity.rates import measure as measure_rates
from dedupindex.cli.common import Command, print_result, say
from dedupindex.cli.options import FILE, PATH, cores, flag, option, shared_options
from dedupindex.cli.output_files import PICTURE, RATES, check_output
from dedupindex.cli.progress_bar import show_progress
from dedupindex.runtime.files import write_file

EXAMPLES = """
bin/plan --documents                                   # a petabyte: a published plan, and ours
bin/plan --documents --measure --save rates.toml       # from the rates of this machine
bin/plan --documents --rates rates.toml --svg plan.svg
bin/plan --captures 1e9,1e10,1e11                      # an index on Cassandra
bin/plan --post-crawl 40TB,1PB                         # rewriting or indexing WARC files in a store
"""


_UNITS = {"": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "pb": 1e15} | {
    f"{prefix}ib": 1024.0**power for power, prefix in enumerate("kmgtp", 1)
}
_LEAST = 1e6  # bytes that need no unit; 40 alone is most likely a slip
_SIZE = re.compile(r"([0-9.]+(?:e[+]?[0-9]+)?) ?([kmgtp]?i?b?)", re.IGNORECASE)


def _counts(ctx: click.Context, param: click.Parameter, value: str) -> list[float]:
    """Numbers of captures, with commas between them."""
    with suppress(ValueError):
        return _all_of(float, value, 1e15)
    raise click.BadParameter(f"{value}: write numbers of captures with commas, as 1e9,1e10")


def _sizes(ctx: click.Context, param: click.Parameter, value: str) -> list[float]:
    """Numbers of bytes, with commas between them."""
    with suppress(ValueError):
        return _all_of(_size, value, 1e18)
    raise click.BadParameter(
        f"{value}: write numbers of bytes with commas, as 40TB,1PB or 40e12 "
        "(a number below a megabyte needs its unit)"
    )


def _all_of(parse: Callable[[str], float], value: str, most: float) -> list[float]:
    """Return the numbers in a list; raises `ValueError`, also for one above `most`."""
    counts = [parse(part) for part in value.split(",")] if value else []
    if not all(1 <= count <= most for count in counts):
        raise ValueError
    return counts


def _size(text: str) -> float:
    """Return bytes; raises `ValueError`."""
    match = _SIZE.fullmatch(text.strip())
    unit = match[2].lower() if match else "?"
    unit = unit if unit.endswith("b") or not unit else f"{unit}b"
    if match is None or unit not in (*_UNITS, "b"):
        raise ValueError
    size = float(match[1]) * _UNITS.get(unit, 1.0)
    if not unit and size < _LEAST:
        raise ValueError
    return size


@click.command(cls=Command, examples=EXAMPLES)
@flag("--documents", help="Plan exact deduplication of documents.")
@option(
    "--captures", callback=_counts, default="", metavar="N,N…", help="Plan indexes of these sizes."
)
@option(
    "--post-crawl", callback=_sizes, default="", metavar="BYTES,BYTES…",
    help="Plan rewriting and indexing of archives of these sizes in a store, such as 40TB,1PB.",
)  # fmt: skip
@option(
    "--rates", type=FILE, metavar="FILE",
    help="TOML with values in place of those in dedupindex/capacity/inputs.toml.",
)  # fmt: skip
@flag("--measure", help="Measure this machine; takes 1.2 GB of disk and a minute for each plan.")
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
    post_crawl: list[float],
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
    if not documents and not captures and not post_crawl:
        raise click.UsageError("name --documents, --captures or --post-crawl")
    if measure and not documents and not post_crawl:
        raise click.UsageError("--measure needs --documents or --post-crawl")
    if svg and not documents:
        raise click.UsageError("--svg needs --documents")
    if save and not measure:
        raise click.UsageError("--save needs --measure")
    for path, form in ((save, RATES), (svg, PICTURE)):
        if path is not None:
            check_output(path, form, [rates] if rates else [])
    inputs = load(rates)
    if measure:
        found = _measured(work, documents=documents, post_crawl=bool(post_crawl))
        inputs |= {name: {**inputs[name], **rates_of} for name, rates_of in found.items()}
        if save is not None:
            write_file(save, as_toml(found).encode())
    if svg is not None:
        write_file(svg, picture(estimates.measured_fleets(inputs)).encode())
    tables, content = _estimates(inputs, captures, post_crawl, documents=documents)
    print_result(content, ["\n\n".join(tables)])
    return 0


def _estimates(
    inputs: Table, captures: list[float], post_crawl: list[float], *, documents: bool
) -> tuple[list[str], dict[str, Any]]:
    """Return the tables of all plans, and what --json prints."""
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
    if post_crawl:
        tables += [post_crawl_tables(size, inputs) for size in post_crawl]
        content["post_crawl"] = [
            {**vars(post_crawl_costs(size, inputs)), "plans": post_crawl_plans(size, inputs)}
            for size in post_crawl
        ]
    return tables, content


def _measured(work: Path, *, documents: bool, post_crawl: bool) -> dict[str, Table]:
    """Return the measured rates, by table of the inputs."""
    found = {}
    with show_progress() as progress:
        if documents:
            found["documents"] = measure_rates(work, cores(), say=say, on_progress=progress)
        if post_crawl:
            measured = measure_post_crawl(work, cores(), say=say, on_progress=progress)
            found["post_crawl"] = measured
    return found
