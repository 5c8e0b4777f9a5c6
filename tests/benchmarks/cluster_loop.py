"""Lookups of a cluster in one process: by our engine, or in the bare loop of the same driver.

    python -m tests.benchmarks.cluster_loop ours|bare INDEX FILE    prints seconds, lookups, found

INDEX is a directory that names the cluster, FILE has a digest and a URL on each
line. Ours reads batches of 1,000 ahead and decides each lookup, as a server does: of the rows the
capture that answers is made, with the name of its container. The bare loop fetches the same rows
with the same statement, as many in flight, and looks at nothing.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.query import tuple_factory

from dedupindex.digest import Digest
from dedupindex.index import open_index
from dedupindex.index.address import Address
from dedupindex.index.engines.cassandra.cassandra_schema import PARTITION
from dedupindex.index.engines.cassandra.cassandra_view import AT_ONCE
from dedupindex.index.engines.cassandra.cql import IN_FLIGHT
from dedupindex.index.format.cells import digest_prefix
from dedupindex.index.identity import read_identity
from dedupindex.lookup.decide import Query, find

BATCH = 1000

Asked = list[tuple[Digest, bytes]]
Loop = Callable[[Asked], int]  # how many of them were found


def ours(index: Path) -> Iterator[Loop]:
    """Our engine."""
    with closing(open_index(index)) as engine:
        settings = engine.identity.settings

        def loop(asked: Asked) -> int:
            found = 0
            for at in range(0, len(asked), BATCH):
                batch = asked[at : at + BATCH]
                with engine.view() as view:
                    view.prefetch((digest for digest, _ in batch))
                    found += sum(find(view, settings, Query(*one)) is not None for one in batch)
            return found

        yield loop


def bare(address: Address) -> Iterator[Loop]:
    """The loop that cassandra-driver offers itself."""
    level = ConsistencyLevel.name_to_value[address.reading]
    profile = ExecutionProfile(row_factory=tuple_factory, consistency_level=level)
    cluster = Cluster(
        list(address.hosts),
        port=address.port,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
    )
    session = cluster.connect()
    prepared = session.prepare(PARTITION.text.replace("KS.", f"{address.keyspace}."))

    def loop(asked: Asked) -> int:
        values = [(digest_prefix(digest), AT_ONCE + 1) for digest, _ in asked]
        results = execute_concurrent_with_args(
            session, prepared, values, concurrency=IN_FLIGHT, results_generator=True
        )
        return sum(bool(list(rows)) for _, rows in results)

    yield loop
    cluster.shutdown()


def main() -> None:
    who, index, path = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    asked: Asked = []
    for line in path.read_text().splitlines():
        digest, url = line.split()
        asked.append((Digest.parse(digest), url.encode()))
    address = Address.parse(read_identity(index).engine)
    loops = ours(index) if who == "ours" else bare(address)
    loop = next(loops)
    loop(asked[:BATCH])  # connects and prepares
    began, spent = time.perf_counter(), time.process_time()
    found = loop(asked)
    wall, cpu = time.perf_counter() - began, time.process_time() - spent
    next(loops, None)
    print(json.dumps({"wall": wall, "cpu": cpu, "lookups": len(asked), "found": found}))


if __name__ == "__main__":
    main()
