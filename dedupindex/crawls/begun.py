"""What a crawl said when it began, and its lookups do not say again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dedupindex.crawls.crawl import Crawl
from dedupindex.lookup.decide import Query, Strategy
from dedupindex.lookup.policy import Policy


def completed(
    query: Query, given: Mapping[str, bytes], crawl: Crawl | None, policy: Policy
) -> Query:
    """A query with what its crawl said when it began, and the rules that hold for all.

    The crawl's own rules stand before those of `policy`. `given` is what the query was made of.
    """
    if crawl is None:
        return replace(query, policy=policy) if policy.rules else query
    namespaces = {*query.namespaces, crawl.namespace} - {""}
    strategy = query.strategy
    if crawl.strategy and not given.get("strategy"):
        strategy = Strategy.parse(crawl.strategy)
    return replace(
        query,
        covers=query.covers or crawl.covers,
        strategy=strategy,
        namespaces=tuple(sorted(namespaces)),
        policy=Policy(crawl.policy.rules + policy.rules),
    )
