"""A client for crawlers written in Python: look payloads up, report what was stored.

    from dedupindex.client import Client, Hit

    with Client("http://127.0.0.1:8484", crawl="weekly") as index:
        index.begin("weekly")
        answer = index.lookup("sha1:FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN", "http://example.com/")
        if isinstance(answer, Hit):
            ...                         # write a revisit of answer.original, with the same digest
        else:
            ...                         # store the response in full, then report it
            index.report([{"digest": ..., "url": ..., "date": ..., "status": 200}])
        index.commit("weekly")

The client **fails open**: a lookup raises nothing. If no answer can be had (the server is down,
slow, overloaded, or its answer unreadable) it returns `NotAsked`, which means "store it" and is
counted as not looked up, never as new. Lookups are not retried. After five failures in a row the
client only probes the server, once a second at first, until it answers again. Reports are retried
once, then kept and sent with the next; dropped captures are counted.

`AsyncClient` has the same methods as coroutines, for asyncio. Threads may share a `Client`, tasks
an `AsyncClient`. Both need only the standard library.

With `digest_filter` a client answers most misses itself (`DigestFilter`, docs/digest-filter.md).
"""

from typing import TYPE_CHECKING, Any

from dedupindex.client.answers import (
    SPELLED_OTHERWISE,
    Answer,
    Claim,
    Claimed,
    Counts,
    Hit,
    Last,
    Miss,
    NotAsked,
    Original,
    Question,
    Reported,
    Taken,
)
from dedupindex.client.blocking import Client, Transport
from dedupindex.client.requests import Ask, Reply

if TYPE_CHECKING:
    from dedupindex.client.aio import AsyncClient
    from dedupindex.client.filter_cache import DigestFilter

__all__ = [
    "SPELLED_OTHERWISE",
    "Answer",
    "Ask",
    "AsyncClient",
    "Claim",
    "Claimed",
    "Client",
    "Counts",
    "DigestFilter",
    "Hit",
    "Last",
    "Miss",
    "NotAsked",
    "Original",
    "Question",
    "Reply",
    "Reported",
    "Taken",
    "Transport",
]


def __getattr__(name: str) -> Any:
    """Import on first use what not every crawler needs: asyncio is slow to import."""
    if name == "AsyncClient":
        from dedupindex.client.aio import AsyncClient

        return AsyncClient
    if name == "DigestFilter":
        from dedupindex.client.filter_cache import DigestFilter

        return DigestFilter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
