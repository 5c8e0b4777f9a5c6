"""Nodes of Apache Cassandra for tests, and keyspaces on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial

from dedupindex.index.address import Address
from dedupindex.index.engine import retry
from dedupindex.index.engines.cassandra.cassandra_schema import tables_exist
from dedupindex.index.engines.cassandra.cql import Statement, Use, connect, write_all
from demo import nodes
from demo.nodes import DEADLINE, Ring
from tests.conftest import need

__all__ = ["DEADLINE", "PATIENCE", "Keyspaces", "Ring", "ring"]

PATIENCE = 20  # seconds that a node has for an answer: others may keep the machine busy


@contextmanager
def ring(
    count: int,
    also: str = "",
    datacenters: Sequence[str] = (nodes.DATACENTER,),
    **options: object,
) -> Iterator[Ring]:
    """A cluster of `count` nodes, all of it gone afterwards; skips where it cannot be had.

    `also`, `datacenters` and `options` as for `nodes.ring`.
    """
    try:
        jars = nodes.jars()
    except nodes.Missing as missing:
        need(missing.what, found=False)
        raise
    with nodes.ring(count, jars, also=also, datacenters=datacenters, **options) as found:
        yield found


_KEYS = {
    "capture": "dk",
    "place": "number",
    "number": "place",
    "container": "name",
    "about": "name",
    "added": "epoch, part",
    "ledger": "dk",
    "url": "part",
    "crawl": "shelf",
    "reported": "crawl, part",
    "claim": "dk",
    "statistic": "crawl, kind, part",
}


class Keyspaces:
    """Keyspaces that tests use one after the other: to make one takes seconds. To be entered.

    As long as it is entered, a session is open, which the tests then share.
    """

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._free: list[str] = []
        self.spoiled: set[str] = set()  # addresses that are not used again

    def __enter__(self) -> Keyspaces:
        self._session = retry(partial(connect, Address.parse(self._ring.address())))
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    @contextmanager
    def some(self) -> Iterator[Callable[[], str]]:
        """Gives addresses of indexes that hold nothing."""
        taken: list[str] = []

        def one() -> str:
            taken.append(self._free.pop() if self._free else self._ring.address())
            return taken[-1]

        yield one
        for address in set(taken) - self.spoiled:
            # The only node may have hung a moment ago, and be given up for as long.
            retry(partial(self._empty, Address.parse(address)))
            self._free.append(address)

    def _empty(self, address: Address) -> None:
        """Remove all rows: quicker than to truncate."""
        with closing(connect(address)) as session:
            if not tables_exist(session):
                return
            for table, key in _KEYS.items():
                keys = Statement(f"SELECT DISTINCT {key} FROM KS.{table}")
                where = " AND ".join(f"{name} = ?" for name in key.split(", "))
                remove = Statement(f"DELETE FROM KS.{table} WHERE {where}", Use.WRITE)
                rows = [row for page in session.scan(keys) for row in page]
                write_all(session, [(remove, row) for row in rows])
