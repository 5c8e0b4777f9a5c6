"""One run: manifests in, a part of a plan out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dedupindex.errors import IndexExists
from dedupindex.manifest.store import open_manifest
from dedupindex.resolve.engine import working
from dedupindex.resolve.grouping import Rule, group
from dedupindex.resolve.inputs import Inputs
from dedupindex.resolve.plan import Totals, part_name
from dedupindex.resolve.writing import plan_rows, totals_of, write_part


@dataclass(frozen=True)
class Options:
    """How a run is done."""

    rule: Rule = field(default_factory=Rule)
    memory: str = "1GB"  # for DuckDB; the process takes some more
    threads: int = 0  # as many as there are cores


def resolve(
    manifests: Sequence[Path],
    plan: Path,
    options: Options,
    say: Callable[[str], None] = lambda text: None,
) -> Totals:
    """Make the part of `plan` that the options name; raises `DedupError`.

    `say` hears of every step that may take long.
    """
    rule = options.rule
    part = plan / part_name(rule.partition)
    if part.exists():
        raise IndexExists(f"{part} is there already: remove it, or name another plan")
    inputs = Inputs([open_manifest(path) for path in manifests])
    plan.mkdir(parents=True, exist_ok=True)
    with working(plan, options.memory, options.threads) as (database, _):
        database.execute('CREATE TABLE named (place BIGINT, container INTEGER, "offset" BIGINT)')
        inputs.view(database)
        say("grouping by digest")
        group(database, rule)
        say("writing the plan")
        plan_rows(database)
        totals = totals_of(database, inputs)
        about = {
            "partition": list(rule.partition),
            "made_of": inputs.made_of(later=rule.later),
            "later": rule.later,
        }
        write_part(database, inputs, part, totals, about)
    return totals
