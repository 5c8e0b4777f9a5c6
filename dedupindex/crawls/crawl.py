"""A crawl and its settings.

open ──commit──▶ committed      its captures answer everybody
  └────cancel──▶ cancelled      its captures are removed
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from dedupindex.capture import Covers
from dedupindex.lookup.decide import Query, Strategy
from dedupindex.lookup.policy import NO_POLICY, Policy, policy_from_json


class CrawlState(Enum):
    OPEN = "open"
    COMMITTED = "committed"
    CANCELLED = "cancelled"


class Visibility(Enum):
    """Who sees the captures of an open crawl."""

    OWN = "own"  # only the crawl itself
    ALL = "all"  # everybody, marked as uncommitted


@dataclass(frozen=True)
class Crawl:
    """A named harvest. Dates are WARC-Dates, "" for not yet."""

    number: int
    name: str
    begun: str
    state: CrawlState = CrawlState.OPEN
    seen: Visibility = Visibility.OWN
    covers: Covers = Covers.UNKNOWN  # which bytes its payload digests are of
    ended: str = ""
    exit: str = ""  # why it ended, in the crawler's words
    merged: bool = False  # the index itself holds its captures
    merging: bool = False  # the index may hold them: a merge is running or was killed
    swept: bool = False  # its captures are removed from the store
    dropped: bool = False  # or purged: it has no statistics, and nothing more is counted
    strategy: str = ""  # of its lookups that name none
    policy: Policy = NO_POLICY  # of its lookups
    namespace: str = ""  # only crawls of the same namespace see it; it is never merged

    @property
    def kept(self) -> bool:
        """Whether it counts in sums over crawls: a cancelled one has stored and saved nothing."""
        return self.state is not CrawlState.CANCELLED

    @property
    def removed(self) -> str:
        """How its captures were removed: cancelled, deleted or purged; "" if they were not."""
        if self.dropped:
            return "purged" if self.kept else "deleted"
        return "" if self.kept else self.state.value

    @property
    def cancelled(self) -> str:
        """A sentence that it was cancelled, "" if it was not."""
        if self.state is not CrawlState.CANCELLED:
            return ""
        return f"crawl {self.name} was cancelled: the index has nothing of what it reported"

    def stored(self) -> dict[str, Any]:
        """Return what a store keeps, for JSON; `restored` reads it."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values.update(state=self.state.value, seen=self.seen.value, covers=self.covers.name)
        return values | {"policy": [rule.as_json() for rule in self.policy.rules]}

    @classmethod
    def restored(cls, values: dict[str, Any]) -> Crawl:
        read = {**values, "state": CrawlState(values["state"]), "seen": Visibility(values["seen"])}
        policy = policy_from_json(values.get("policy", []))
        return cls(**{**read, "covers": Covers[values["covers"]], "policy": policy})

    def as_json(self) -> dict[str, Any]:
        """Return the crawl as the HTTP API shows it."""
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
            "deleted": self.dropped,
        }


class Claim(NamedTuple):
    """The right of a crawl to store a payload that nobody has."""

    crawl: int  # number
    until: int  # milliseconds since 1970
    token: str  # 32 hex digits, known to the claimant alone


def with_crawl_defaults(
    query: Query, given: Mapping[str, bytes], crawl: Crawl | None, policy: Policy
) -> Query:
    """Fill a query's missing options with the defaults of its crawl, and add the rules of `policy`.

    The crawl's own rules come first. `given` has the parameters that the query was made from.
    """
    if crawl is None:
        return query._replace(policy=policy) if policy.rules else query
    if not (crawl.strategy or crawl.namespace or crawl.policy.rules or policy.rules):
        return query if query.covers else query._replace(covers=crawl.covers)
    namespaces = {*query.namespaces, crawl.namespace} - {""}
    strategy = query.strategy
    if crawl.strategy and not given.get("strategy"):
        strategy = Strategy.parse(crawl.strategy)
    return query._replace(
        covers=query.covers or crawl.covers,
        strategy=strategy,
        namespaces=tuple(sorted(namespaces)),
        policy=Policy(crawl.policy.rules + policy.rules),
    )
