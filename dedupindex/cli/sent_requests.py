"""The requests to an object store in the reports of commands, with what they cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from dedupindex.object_store import CountedRequests
from dedupindex.runtime.tables import amount, dollars

NO_CDXJ = "--cdxj is for results in a directory; of results in a store bin/corpus makes a CDXJ"
SPARK_TO_STORE = "--spark writes results to an object store: --out s3://BUCKET/PREFIX"
_AS_GET, _AS_PUT = ("get", "head"), ("put", "part", "copy", "post")
_BYTES = ("read", "written")


class SentRequests(NamedTuple):
    counts: dict[str, int]  # by kind, and bytes; empty if no request was sent
    dollars: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the fields of a report; none if no request was sent."""
        if not self.counts:
            return {}
        return {"requests": {**self.counts, "dollars": round(self.dollars, 9)}}

    def lines(self) -> Iterator[str]:
        if self.counts:
            sent = (f"{count:,} {kind.upper()}" for kind, count in self.counts.items()
                    if count and kind not in _BYTES)  # fmt: skip
            read, written = (amount(self.counts[kind]) for kind in _BYTES)
            yield (
                f"requests to stores: {', '.join(sent)}; {read} read, {written} written; "
                f"{dollars(self.dollars)} dollars at the prices of bin/plan"
            )


def sent_requests(counted: CountedRequests) -> SentRequests:
    """Return the requests up to now; transfers are not priced, as they are free within a region."""
    counts = counted.totals()
    if not any(counts.values()):
        return SentRequests({})
    from dedupindex.capacity.rates import load  # most runs need no prices

    prices = load()["documents"]
    dollars = (
        sum(counts[kind] for kind in _AS_GET) * prices["price_per_1000_gets"]
        + sum(counts[kind] for kind in _AS_PUT) * prices["price_per_1000_puts"]
        + counts["list"] * prices["price_per_1000_lists"]
    ) / 1000
    return SentRequests(counts, dollars)
