"""``bin/resolve``: plan which records become revisits, and of which originals."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from dedupindex.cli.common import ComparingCommand, count_lines, print_result, say, text_output
from dedupindex.cli.index_location import any_index
from dedupindex.cli.options import PATH, PATH_OR_DASH, flag, option, shared_options, wants_json
from dedupindex.cli.output_files import TEXT_LINES, check_output
from dedupindex.cli.progress_bar import show_progress
from dedupindex.post_crawl.plan.compare_payloads import Compare
from dedupindex.post_crawl.plan.group_duplicates import GroupingRule
from dedupindex.post_crawl.plan.make_plan import Resolved, ResolveOptions, resolve, resolve_on
from dedupindex.post_crawl.plan.plan_file import MatchCriteria
from dedupindex.runtime.spark import spark_session
from dedupindex.runtime.tables import amount, singular

EXAMPLES = """
bin/resolve warcs.manifest -o warcs.plan
bin/resolve warcs.manifest -o warcs.plan --compare sample 1000 --json
bin/resolve warcs.manifest -o warcs.plan --compare always --base-url https://store.example.org/warcs/
bin/resolve warcs.manifest -o warcs.plan --partition 2/4     # this host's part of four
"""
_PARTITION = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")


@click.command(cls=ComparingCommand, examples=EXAMPLES)
@click.argument("manifests", nargs=-1, required=True, metavar="MANIFEST...", type=PATH)
@option(
    "-o", "--output", required=True, type=PATH, metavar="PLAN",
    help="Directory for the plan, or for a part of it.",
)  # fmt: skip
@option(
    "--index", type=any_index, metavar="INDEX",
    help="Use originals in other files of INDEX, too; keep what revisits in INDEX refer to.",
)  # fmt: skip
@option(
    "--compare", default="strong-digest", metavar="HOW",
    help="Read copies and originals again and compare their bytes: always, or sample N of the "
    "payloads that have copies. BLAKE3 and length are compared anyway.",
)  # fmt: skip
@shared_options("--base-url", "--urls", "--host")
@flag("--later", help="Accept later originals where none is earlier.")
@shared_options("--any-status", "--same-type", "--other-second")
@option(
    "--partition", default="1/1", metavar="K/N",
    help="Make only part K of N, to share the work between hosts; put all parts into one PLAN.",
)  # fmt: skip
@shared_options("--memory", help="Memory for DuckDB; the rest goes to disk, beside PLAN.")
@shared_options("--threads", "--spark")
@shared_options("--zstd-dictionary")
@option(
    "--text", type=PATH_OR_DASH, metavar="FILE",
    help="Write all lines with extension, copy number and the original's URI and date, as "
    "warccollres has them, too; - is stdout.",
)  # fmt: skip
@shared_options("--json")
def command(manifests: tuple[Path, ...], output: Path, text: Path | None, **options: Any) -> int:
    """Find equal payloads in MANIFESTs and plan which records become revisits of which.

    Archives are read for --compare and --index only, and never changed. Of equal payloads the
    earliest capture is the original; the plan lists the others that may become revisits of it.
    """
    if wants_json() and text == Path("-"):
        raise click.UsageError("--json and --text - both write to stdout")
    if text not in (None, Path("-")):
        check_output(text, TEXT_LINES)
    criteria = MatchCriteria(options["any_status"], options["same_type"], options["other_second"])
    rule = GroupingRule(_partition(options["partition"]), options["later"], criteria)
    chosen = ResolveOptions(
        rule,
        Compare.parse(options["compare"]),
        options["index"],
        options["base_urls"],
        options["urls"],
        options["host"],
        options["memory"],
        options["threads"],
    )
    if options["spark"]:
        if text is not None or rule.partition != (1, 1):
            raise click.UsageError(
                "--spark makes all parts of a plan: no --partition, and no --text"
            )
        with spark_session(options["spark"]) as cluster, show_progress() as progress:
            found = resolve_on(cluster, manifests, output, chosen, say, progress)
    else:
        with (
            nullcontext() if text is None else text_output(text) as stream,
            show_progress(prints=text == Path("-")) as progress,
        ):
            found = resolve(manifests, output, chosen, say, stream, progress)
    print_result(found.as_json(), () if text == Path("-") else _text_of(found))
    return 0


def _partition(text: str) -> tuple[int, int]:
    match = _PARTITION.fullmatch(text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise click.UsageError(f"--partition {text}: write K/N, as 1/4 for the first of four parts")
    return int(match[1]), int(match[2])


def _text_of(found: Resolved) -> Iterator[str]:
    totals = found.totals
    yield (
        singular(
            f"{totals.lines:,} lines: {totals.unique:,} unique, {totals.originals:,} originals, "
            f"{totals.copies:,} copies of {amount(totals.stored)} as stored"
        )
    )
    if totals.outside:
        yield singular(f"  {totals.outside:,} copies of originals that only the index has")
    if totals.unread_originals:
        count = f"{totals.unread_originals:,}"
        yield f"  lines that may stay as their originals cannot be read, or have changed: {count}"
    yield from count_lines("not in plan: ", totals.kept, sizes=totals.kept_bytes)
    if totals.collisions:
        collisions = f"{totals.collisions:,} digests of {totals.collided:,} payloads"
        yield singular(f"  collisions: {collisions}")
    if totals.reframed:
        payloads = f"{totals.reframed:,} digests of payloads that differ in their chunks"
        yield singular(f"  {payloads}")
    yield from count_lines("compared: ", totals.compared)
    seconds = ", ".join(f"{step} {value:.1f} s" for step, value in found.seconds.items())
    yield f"  {seconds}"
