"""A crawl: what is known of it, and what may become of it.

open ──commit──▶ committed      its captures answer everybody, from that moment on
  └────cancel──▶ cancelled      its captures are gone
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

from dedupindex.capture import Covers
from dedupindex.lookup.decide import Query, Strategy
from dedupindex.lookup.policy import NO_POLICY, Policy, restored


class CrawlState(Enum):
    """Where a crawl stands."""

    OPEN = "open"
    COMMITTED = "committed"
    CANCELLED = "cancelled"


class Visibility(Enum):
    """Who sees the captures of a crawl that is not committed."""

    OWN = "own"  # only the crawl itself
    ALL = "all"  # everybody, marked as uncommitted


@dataclass(frozen=True)
class Crawl:
    """A named harvest. Dates are WARC-Dates, empty for not yet."""

    number: int
    name: str
    begun: str
    state: CrawlState = CrawlState.OPEN
    seen: Visibility = Visibility.OWN
    covers: Covers = Covers.UNKNOWN  # what its payload digests are taken of
    ended: str = ""
    exit: str = ""  # why it ended, in the crawler's words
    merged: bool = False  # whether the index itself holds its captures
    merging: bool = False  # whether the index may hold them: a merge goes on, or was cut off
    swept: bool = False  # whether none of its captures is kept here any more
    dropped: bool = False  # or purged: its statistics are gone, and nothing is counted any more
    strategy: str = ""  # of its lookups that state none
    policy: Policy = NO_POLICY  # of its lookups
    namespace: str = ""  # in which it stays apart; such a crawl is never merged

    def stored(self) -> dict[str, Any]:
        """For JSON; `restored` reads it."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values.update(state=self.state.value, seen=self.seen.value, covers=self.covers.name)
        return values | {"policy": [rule.as_json() for rule in self.policy.rules]}

    @classmethod
    def restored(cls, values: dict[str, Any]) -> Crawl:
        read = {**values, "state": CrawlState(values["state"]), "seen": Visibility(values["seen"])}
        policy = restored(values.get("policy", []))
        return cls(**{**read, "covers": Covers[values["covers"]], "policy": policy})

    def as_json(self) -> dict[str, Any]:
        """As the API shows it."""
        return {
            "name": self.name,
            "state": self.state.value,
            "seen_by": self.seen.value,
            "digest_covers": self.covers.name.lower(),
            "strategy": self.strategy or None,
            "policy": [rule.as_json() for rule in self.policy.rules],
            "namespace": self.namespace or None,
            "begun": self.begun,
            "ended": self.ended or None,
            "exit": self.exit or None,
            "merged": self.merged,
        }


class Claim(NamedTuple):
    """Who may store a payload now."""

    crawl: int  # number
    until: int  # milliseconds since 1970
    token: str  # 32 hex digits, known to the claimant alone


# What a crawl said when it began, and its lookups do not say again.


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
