"""What is to be done with captures, taken apart: by metadata alone, and then for each capture."""

from __future__ import annotations

from collections.abc import Iterable

from dedupindex.corpus.enrich import Enrichment
from dedupindex.corpus.enrichments import makers_of
from dedupindex.corpus.extract import ExtractionPlan, Keep, Test, nested
from dedupindex.corpus.filters import Condition
from dedupindex.corpus.select import Best
from dedupindex.errors import BadInput

Step = Condition | Best | Enrichment | Keep


def parted(
    steps: Iterable[Step], most: int, *, once: bool
) -> tuple[list[Condition | Best], ExtractionPlan]:
    """What DuckDB does, in order, and what is done for each capture.

    Up to the first filter on values all is for DuckDB. From there on captures are tried one by one;
    they are grouped once at most (`once`: by digest, at the end), and what follows that group has
    to be passed by its best. Raises `BadInput`.
    """
    early: list[Condition | Best] = []
    tests: list[Test] = []
    after: list[Test] = []
    best: Best | None = None
    enrichments = tuple(step for step in steps if isinstance(step, Enrichment))
    deciding = [step for step in steps if not isinstance(step, Enrichment)]
    for step in (*deciding, *((Best("digest", latest=False),) if once else ())):
        if isinstance(step, Best):
            if not tests:
                early.append(step)
            elif best is None:
                best = step
            else:
                raise BadInput("after a filter on values captures are grouped only once, be it by "
                               "latest, first or revisits once: save what there is, and begin "
                               "again with it")  # fmt: skip
        elif best is not None:
            after.append(step)
        elif isinstance(step, Keep):
            tests.append(step)
        else:
            early.append(step)
    makers = makers_of(enrichments)
    return early, ExtractionPlan(
        tuple(tests), best, tuple(after), enrichments, makers, most, nested
    )
