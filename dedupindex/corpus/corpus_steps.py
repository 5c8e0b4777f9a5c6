"""The steps of a corpus, and which of them DuckDB executes before records are read."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from dedupindex.corpus.enrich import Enrichment, check_path, makers_of
from dedupindex.corpus.extract import DropFailed, ExtractionPlan, Keep, Test, nested
from dedupindex.corpus.select import Best, MetadataCondition
from dedupindex.corpus.url_join import UrlList
from dedupindex.errors import BadInput

if TYPE_CHECKING:
    from dedupindex.corpus.archive import Corpus


class EmbedsOf(NamedTuple):
    """Keep what pages embed: of each URL the capture that is nearest in time to the page."""

    pages: Corpus


EarlyStep = MetadataCondition | Best | UrlList | EmbedsOf


class Distinct(NamedTuple):
    """Keep the first capture of each value."""

    path: str


Step = EarlyStep | Enrichment | Keep | DropFailed | Distinct


def split_steps(
    steps: Iterable[Step], most: int, *, once: bool
) -> tuple[list[EarlyStep], ExtractionPlan]:
    """Return the steps for DuckDB, in order, and the plan for the remaining captures.

    DuckDB executes everything before the first filter on values. After it captures are tried one by
    one and can be grouped once (with `once` by digest, at the end); the steps after the group apply
    to its best capture. Raises `BadInput`, also for a path without a value.
    """
    early: list[EarlyStep] = []
    tests: list[Test] = []
    after: list[Test] = []
    best: Best | None = None
    enrichments = tuple(step for step in steps if isinstance(step, Enrichment))
    makers = makers_of(enrichments)
    filtered = (step.path for step in steps if isinstance(step, Keep | Distinct))
    for path in chain(filtered, *(enrichment.paths for enrichment in enrichments)):
        check_path(makers, path)
    deciding = [step for step in steps if not isinstance(step, Enrichment)]
    last, distinct = deciding[-1:], ""
    if last and isinstance(last[0], Distinct):
        distinct = last[0].path
        deciding.pop()
    for step in (*deciding, *((Best("digest", latest=False),) if once else ())):
        if tests and isinstance(step, MetadataCondition) and step.of_versions:
            raise BadInput("versions of a URL are counted in the metadata: put conditions on them "
                           "before filters on values")  # fmt: skip
        if isinstance(step, Best):
            if not tests:
                early.append(step)
            elif best is None:
                best = step
            else:
                raise BadInput("after a filter on values captures are grouped only once, be it by "
                               "latest, first or revisits once: save what there is, and begin "
                               "again with it")  # fmt: skip
        elif isinstance(step, Distinct):
            raise BadInput("distinct is the last step that selects captures: filter them before it")
        elif best is not None and isinstance(step, UrlList | EmbedsOf):
            raise BadInput("after a filter on values and a group captures are not joined with "
                           "URLs: name the URLs before")  # fmt: skip
        elif best is not None:
            after.append(step)
        elif isinstance(step, Keep | DropFailed):
            tests.append(step)
        else:
            early.append(step)
    return early, ExtractionPlan(
        tuple(tests), best, tuple(after), enrichments, makers, most, nested, distinct=distinct
    )
