"""The store of crawls on a Cassandra cluster, in the keyspace of the index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from dedupindex.crawls.crawl import Crawl
from dedupindex.crawls.crawl_captures import of_crawl
from dedupindex.crawls.statistics_keys import StatisticsKind, key_of
from dedupindex.crawls.store import Held, Store, Writing, cluster_of
from dedupindex.crawls.stores.cassandra_crawl_reading import CassandraReading, StoreContext
from dedupindex.crawls.stores.cassandra_crawl_registry import (
    ContainerNumbers,
    Overtaken,
    Registry,
    WriterSums,
)
from dedupindex.crawls.stores.cassandra_crawl_writing import CassandraWriting
from dedupindex.errors import Damaged, DedupError, IndexUnavailable
from dedupindex.index.address import Address
from dedupindex.index.engines.cassandra.cassandra_schema import tables_exist
from dedupindex.index.engines.cassandra.cql import connect
from dedupindex.index.engines.cassandra.metadata import About, has_signature, signature_of
from dedupindex.index.format.cells import container_of
from dedupindex.index.format.tombstones import REVISIT

_TRIES = 20  # of a step that changes crawls, while other servers do
_T = TypeVar("_T")


class CassandraStore(Store):
    """The crawls in a keyspace. Clusters are copied with their own tools, crawls included."""

    is_file = False

    def __init__(self, index: Path, address: Address) -> None:
        """Connect; raises `IndexUnavailable`, also if there is no index yet."""
        self._index, self._address = index, address
        self._session = session = connect(address)
        try:
            if not tables_exist(session):
                raise IndexUnavailable(f"the first build of {address} has not finished")
            self._signature = signature_of(session)
            identity = About(session).identity(str(address))
        except BaseException:
            session.close()
            raise
        self._context = StoreContext(
            session,
            Registry(session),
            ContainerNumbers(session),
            WriterSums(session),
            identity is not None and identity.settings.by_url,
        )

    def in_place(self) -> bool:
        """Return whether the directory still names this cluster, and it has the same index."""
        try:
            if cluster_of(self._index) != self._address:
                return False
        except DedupError:
            return False
        try:
            return has_signature(self._session, self._signature)
        except IndexUnavailable:
            return True  # not known; whatever is read next raises the same

    @contextmanager
    def reading(self) -> Iterator[CassandraReading]:
        yield CassandraReading(self._context, self._context.registry.known())

    @contextmanager
    def writing(self) -> Iterator[CassandraWriting]:
        step = CassandraWriting(self._context, self._context.registry.now())
        yield step
        step.finish()

    def write(self, change: Callable[[Writing], _T]) -> _T:
        for _ in range(_TRIES - 1):
            with suppress(Overtaken):
                return super().write(change)
        return super().write(change)

    def batches(self) -> Iterator[list[Held]]:
        with self.reading() as reading:
            for crawl in reading.crawls():
                for keys in reading.keys_of(crawl):
                    cells = zip(keys, reading.cells_at(crawl, keys), strict=True)
                    yield [(key, crawl.number, cell) for key, cell in cells if cell]

    def keys_of(self, crawl: Crawl) -> Iterator[list[bytes]]:
        with self.reading() as reading:
            yield from reading.keys_of(crawl)

    def check(self) -> list[str]:
        wrong: list[str] = []
        with self.reading() as reading:
            for crawl in reading.crawls():
                try:
                    for found in of_crawl(reading, crawl):
                        if found.entry[0] & 3 != REVISIT:
                            reading.container_name(container_of(found.entry))
                    for kind in StatisticsKind:
                        for _ in reading.statistics(key_of(crawl.number, kind)):
                            pass
                except Damaged as error:
                    wrong.append(f"crawl {crawl.name}: {error}")
        return wrong

    def close(self) -> None:
        self._session.close()
