"""The tables of an index on a cluster, and the statements on them.

    capture    dk: algorithm and digest; live: 0 for captures of bin/index, 1 for those that crawls
               report, which follow; rest: the rest of the key; crawl: the number of the crawl that
               reported it, else 0; cell: see `cells`
    place      container number -> name of the container, crawl
    number     crawl, 0, name of the container -> container number, its checksum in the upper half
    container  name -> registration, JSON
    crawl      all crawls that write, in one partition with one version; each change raises it by
               compare and set, so numbers and names are assigned once
    reported   the keys that a crawl has captures under, in 64 parts, to find them again
    claim      who may store a payload; with a time to live
    ledger     copies and revisits under a key; see `cassandra_ledger`
    url        keys of captures by URL, in an index with the setting `by_url`
    statistic  amounts of `statistics_keys`, by writer and start time; combined when read
    added      digests that were lately added, by epoch; see `added_digests`
    about      identity (as in index.json), state (`IndexState`), next_number, loading, lease,
               executors (how long to wait for them), epochs, ledger (the loads up to which it has
               all)

Cells, names, numbers, amounts and text end with a checksum of key and value (`cells.sealed`,
`cells.sealed_text`); the lease does not.

One keyspace is one index. Replication and compaction are set when the tables are created, and may
be altered at any time.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence

from dedupindex.errors import BadInput
from dedupindex.index.address import Address
from dedupindex.index.engines.cassandra.cql import Call, Row, Session, Statement, Use
from dedupindex.index.format.cells import split_key

_TABLES = {
    "capture": (
        "dk blob, live int, rest blob, crawl int, cell blob, PRIMARY KEY (dk, live, rest, crawl)"
    ),
    "place": "number bigint PRIMARY KEY, container blob, crawl blob",
    "number": "place blob PRIMARY KEY, number bigint",
    "container": "name blob PRIMARY KEY, about text",
    "crawl": (
        "shelf int, number int, about text, version bigint STATIC, writer blob STATIC, "
        "PRIMARY KEY (shelf, number)"
    ),
    "reported": "crawl int, part int, key blob, PRIMARY KEY ((crawl, part), key)",
    "claim": (
        "dk blob, namespace text, crawl int, until bigint, secret blob, PRIMARY KEY (dk, namespace)"
    ),
    "statistic": (
        "crawl int, kind blob, part int, heading blob, writer blob, since bigint, amounts blob, "
        "PRIMARY KEY ((crawl, kind, part), heading, writer, since)"
    ),
    "ledger": "dk blob, rest blob, id blob, body blob, PRIMARY KEY (dk, rest, id)",
    "url": "part blob, rest blob, dk blob, PRIMARY KEY (part, rest, dk)",
    "added": "epoch blob, part int, id blob, keys blob, PRIMARY KEY ((epoch, part), id)",
    "about": "name text PRIMARY KEY, value text",  # last: if it exists, the others do
}
_EXPIRING = (  # of ``added``, whose rows all expire: files of one hour are removed as a whole
    "gc_grace_seconds = 10800 AND compaction = {'class': 'TimeWindowCompactionStrategy', "
    "'compaction_window_unit': 'HOURS', 'compaction_window_size': 1}"
)
# Tables that a load writes to
_LOADED = ("capture", "place", "number", "container", "ledger", "url")

_VERSION = Statement("SELECT release_version FROM system.local")
_PEERS = Statement("SELECT peer FROM system.peers")
_EXISTING = Statement("SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?")
_KEYSPACE = Statement("SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?")


# Statements that several modules execute
CELL = Statement("SELECT cell FROM KS.capture WHERE dk = ? AND live = 0 AND rest = ? AND crawl = 0")
PARTITION = Statement("SELECT live, rest, crawl, cell FROM KS.capture WHERE dk = ? LIMIT ?")
_PARTITIONS = Statement(
    "SELECT dk, live, rest, crawl, cell FROM KS.capture WHERE dk IN ? PER PARTITION LIMIT ?",
    several=True,
)
PLACE = Statement("SELECT container, crawl FROM KS.place WHERE number = ?")
PLACES = Statement("SELECT number, container, crawl FROM KS.place")
NUMBER = Statement("SELECT number FROM KS.number WHERE place = ?")
CONTAINER = Statement("SELECT about FROM KS.container WHERE name = ?")
_PUT_URL = Statement("INSERT INTO KS.url (part, rest, dk) VALUES (?, ?, ?)", Use.WRITE)


def tables_exist(session: Session) -> bool:
    """Return whether the keyspace has the tables of an index."""
    return has_table(session, "about")


def create_tables(session: Session, address: Address) -> None:
    """Create what is missing; raises `BadInput` if there are too few nodes for the replication."""
    if not session.execute(_KEYSPACE, address.keyspace):
        copies = _copies(address.replication)
        nodes = 1 + len(session.execute(_PEERS))
        if max(copies.values()) > nodes:
            raise BadInput(
                f"the cluster has {nodes} node{'s' * (nodes > 1)}, too few for replication = "
                f"{address.replication}: add ?replication={nodes} to the address, or more nodes"
            )
        replication = ", ".join(f"'{name}': {count}" for name, count in copies.items())
        session.define(
            f"CREATE KEYSPACE IF NOT EXISTS {address.keyspace} "
            f"WITH replication = {{'class': 'NetworkTopologyStrategy', {replication}}}"
        )
    existing = {name for (name,) in session.execute(_EXISTING, address.keyspace)}
    for name, columns in _TABLES.items():
        if name not in existing:
            packed = name in ("capture", "ledger")
            options = _storage_options(session) if packed else {"added": _EXPIRING}.get(name)
            table = f"{address.keyspace}.{name} ({columns})"
            session.define(
                f"CREATE TABLE IF NOT EXISTS {table}" + (f" WITH {options}" if options else "")
            )


def read_partitions(
    session: Session, keys: Sequence[bytes], most: int
) -> Iterator[tuple[bytes, list[Row]]]:
    """Yield each digest with its first `most` rows as of `PARTITION`, in any order of digests.

    Many are asked for at once: that takes a node a third of the time, and us a tenth.
    """
    asked: deque[list[bytes]] = deque()

    def calls() -> Iterator[Call]:
        for together in session.by_replica(keys):
            asked.append(together)
            yield _PARTITIONS, (together, most)

    for rows in session.execute_many(calls()):
        found: dict[bytes, list[Row]] = {key: [] for key in asked.popleft()}
        for row in rows:
            found[bytes(row[0])].append(row[1:])
        yield from found.items()


def has_table(session: Session, name: str) -> bool:
    return (name,) in session.execute(_EXISTING, session.keyspace)


def datacenters(session: Session) -> list[str]:
    """Return the datacenters that have copies of the keyspace."""
    rows = session.execute(_KEYSPACE, session.keyspace)
    return [name for (replication,) in rows for name in replication if name != "class"]


def truncate_tables(session: Session) -> None:
    """Remove everything that loads have written; all nodes must be up."""
    for name in _LOADED:
        session.define(f"TRUNCATE {session.keyspace}.{name}")


def _copies(replication: str) -> dict[str, int]:
    """Return the copies by datacenter, or for all datacenters if none is named."""
    if ":" not in replication:
        return {"replication_factor": int(replication)}
    return {name: int(count) for name, count in re.findall("([^,:]+):([0-9]+)", replication)}


def _storage_options(session: Session) -> str:
    """Return the compaction and compression that store captures most densely.

    Cassandra 5 has its own; older versions and ScyllaDB, which calls itself Cassandra 3, do not.
    """
    major = str(session.execute(_VERSION)[0][0]).split(".")[0]
    if major.isdigit() and int(major) >= 5:
        return (
            "compaction = {'class': 'UnifiedCompactionStrategy', 'scaling_parameters': 'T4'} "
            "AND compression = {'class': 'ZstdCompressor', 'chunk_length_in_kb': 16}"
        )
    return (
        "compaction = {'class': 'LeveledCompactionStrategy'} "
        "AND compression = {'class': 'LZ4Compressor', 'chunk_length_in_kb': 16}"
    )


PART = 4  # bytes after the digest that are the partition of `url`: the hash of the urlkey


def row_of(key: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the row of `url` that lists a capture's key."""
    start, rest = split_key(key)
    return rest[:PART], rest[PART:], start


def listing(key: bytes) -> Call:
    """Return the call that lists a capture's key in `url`."""
    return _PUT_URL, row_of(key)
