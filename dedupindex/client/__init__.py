"""A client for any crawler written in Python: ask during the harvest, report what was stored.

    from dedupindex.client import Client, Hit

    with Client("http://127.0.0.1:8484", crawl="weekly") as index:
        index.begin("weekly")
        answer = index.lookup("sha1:FKXGYNOJJ7H3IFO35FPUBC445EPOQRXN", "http://example.com/")
        if isinstance(answer, Hit):
            ...                         # write a revisit of answer.original, with the same digest
        else:
            ...                         # store the response in full, then say so
            index.report([{"digest": ..., "url": ..., "date": ..., "status": 200}])
        index.commit("weekly")

It **fails open**: a lookup raises nothing. Whatever keeps it from an answer (server down, slow,
overloaded, nonsense) is `NotAsked`, which means "store it" and is counted as not looked up, never
as new. Lookups are not retried; after five failures in a row the client only probes the server,
once a second at first, until it answers again.
Reports are retried once, then kept and sent with the next; what had to be dropped is counted.

`AsyncClient` has the same methods as coroutines, for asyncio. Many threads may share a `Client`,
many tasks an `AsyncClient`. Both need the standard library and nothing else, so that they fit into
a crawler's own environment.
"""

from typing import TYPE_CHECKING, Any

from dedupindex.client.answers import (
    SPELLED_OTHERWISE,
    Answer,
    Claim,
    Claimed,
    Counts,
    Hit,
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

__all__ = [
    "SPELLED_OTHERWISE",
    "Answer",
    "Ask",
    "AsyncClient",
    "Claim",
    "Claimed",
    "Client",
    "Counts",
    "Hit",
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
    """Import `AsyncClient` when it is asked for: asyncio takes longer than all the rest."""
    if name != "AsyncClient":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dedupindex.client.aio import AsyncClient

    return AsyncClient
