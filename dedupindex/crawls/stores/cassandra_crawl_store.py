"""The crawls of an index on a cluster: in its keyspace, written by any number of servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TypeVar

from dedupindex.crawls.crawl import Crawl
from dedupindex.crawls.crawl_captures import of_crawl
from dedupindex.crawls.statistics_keys import StatisticsKind, key_of
from dedupindex.crawls.store import Held, Store, Writing, cluster_of
from dedupindex.crawls.stores.cassandra_crawl_reading import CassandraReading, Ground
from dedupindex.crawls.stores.cassandra_crawl_registry import (
    FileNumbers,
    Overtaken,
    Registry,
    Tallies,
)
from dedupindex.crawls.stores.cassandra_crawl_tables import CrawlStatements
from dedupindex.crawls.stores.cassandra_crawl_writing import CassandraWriting
from dedupindex.errors import Damaged, DedupError, IndexUnavailable
from dedupindex.index.address import Address
from dedupindex.index.engines.cassandra.cassandra_schema import Statements, made
from dedupindex.index.engines.cassandra.cql import connect
from dedupindex.index.engines.cassandra.metadata import About, is_marked, mark_of
from dedupindex.index.format.cells import container_of
from dedupindex.index.format.tombstones import REVISIT

_TRIES = 20  # of a step that changes crawls, while others do
_T = TypeVar("_T")


class Direct:
    """Writes for all threads of a process, which need not wait for one another."""

    def __init__(self, store: Store) -> None:
        self.write = store.write

    def close(self) -> None:
        """Nothing waits here."""


class CassandraStore(Store):
    """Crawls in a keyspace."""

    beside = False

    def __init__(self, index: Path, address: Address) -> None:
        """Connect; raises `IndexUnavailable`, also where there is no index yet."""
        self._index, self._address = index, address
        keyspace = address.keyspace
        self._session = connect(address)
        try:
            if not made(self._session, keyspace):
                raise IndexUnavailable(f"the first build of {address} has not finished")
            self._mark = mark_of(self._session, keyspace)
            on = Statements.of(keyspace)
            identity = About(self._session, on).identity(str(address))
        except BaseException:
            self._session.close()
            raise
        said = CrawlStatements.to(keyspace)
        self._ground = Ground(
            self._session,
            said,
            Registry(self._session, keyspace, said),
            FileNumbers(self._session, on),
            Tallies(self._session, said),
            on if identity is not None and identity.settings.by_url else None,
        )

    def in_place(self) -> bool:
        """Whether the directory still names the same cluster, and that has the same index."""
        try:
            if cluster_of(self._index) != self._address:
                return False
        except DedupError:
            return False
        try:
            return is_marked(self._session, self._address.keyspace, self._mark)
        except IndexUnavailable:
            return True  # there is no telling, for whoever asks anything else, either

    def forget_dead_readers(self) -> None:
        """There are none."""

    @contextmanager
    def reading(self) -> Iterator[CassandraReading]:
        yield CassandraReading(self._ground, self._ground.registry.known())

    @contextmanager
    def writing(self) -> Iterator[CassandraWriting]:
        step = CassandraWriting(self._ground, self._ground.registry.now())
        yield step
        step.finish()

    def write(self, change: Callable[[Writing], _T]) -> _T:
        for _ in range(_TRIES - 1):
            try:
                return super().write(change)
            except Overtaken:
                pass
        return super().write(change)

    def writer(self) -> Direct:
        return Direct(self)

    def stretches(self, crawl: Crawl | None = None) -> Iterator[list[Held]]:
        with self.reading() as reading:
            for one in reading.crawls() if crawl is None else (crawl,):
                for keys in reading.keys_of(one):
                    cells = zip(keys, reading.cells_at(one, keys), strict=True)
                    yield [(key, one.number, cell) for key, cell in cells if cell]

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
                            reading.file_of(container_of(found.entry))
                    for _ in chain(*_counted(reading, crawl)):
                        pass
                except Damaged as error:
                    wrong.append(f"crawl {crawl.name}: {error}")
        return wrong

    def copy(self, target: Path) -> None:
        """The nodes of a cluster are copied by its own tools, crawls and all."""

    def close(self) -> None:
        self._session.close()


def _counted(reading: CassandraReading, crawl: Crawl) -> Iterator[Iterator[object]]:
    """All statistics of a crawl."""
    for kind in StatisticsKind:
        yield reading.statistics(key_of(crawl.number, kind))
