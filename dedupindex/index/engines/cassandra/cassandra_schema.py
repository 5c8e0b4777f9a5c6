"""The tables of an index on a cluster, and the statements on them.

    capture    dk: algorithm and digest; live: 0 for what bin/index took in, and behind that 1 for
               what crawls report; rest: what else a key has; crawl: the number of the crawl that
               reported it, else 0; cell: as `cells` draws it
    place      container number -> name of the container, crawl
    number     crawl, 0, name of the container -> container number, its checksum in the upper half
    container  name -> registration, JSON
    crawl      all crawls that write, with one version; see `crawls.cassandra_registry`
    reported   the keys that a crawl has captures under
    claim      who may store a payload
    url        captures by URL, where the index lists them; see `cassandra_urls`
    statistic  amounts of `crawls.rows`, by who wrote them and since when
    about      identity (as in index.json), state (`cassandra_state`), next_number, loading, lease

Cells, names, numbers, amounts and text have a checksum behind them, of their key, too
(`cells.sealed`, `cells.sealed_text`); but for the lease.

One keyspace is one index. How it is replicated and compacted may be altered at any time; it is
chosen here only when the tables are made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from dedupindex.errors import BadInput
from dedupindex.index.address import Address
from dedupindex.index.engines.cassandra.cql import Session, Statement, Use
from dedupindex.index.format.cells import DIGEST_KEY

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
    "url": "part blob, rest blob, dk blob, PRIMARY KEY (part, rest, dk)",
    "about": "name text PRIMARY KEY, value text",  # last: where it is, the others are
}
_EMPTIED = ("capture", "place", "number", "container", "url")

_VERSION = Statement("SELECT release_version FROM system.local")
_PEERS = Statement("SELECT peer FROM system.peers")
_MADE = Statement("SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?")
_KEYSPACE = Statement("SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?")


class Statements(NamedTuple):
    """What is asked of the tables of one keyspace."""

    partition: Statement  # all of a digest, up to a number of rows
    between: Statement  # what of a digest begins so
    cell: Statement
    all_cells: Statement
    put: Statement
    remove: Statement
    place: Statement
    places: Statement
    put_place: Statement
    number: Statement
    put_number: Statement
    container: Statement
    containers: Statement
    put_container: Statement
    remove_container: Statement
    urls: Statement
    url: Statement
    put_url: Statement
    about: Statement
    about_now: Statement
    put_about: Statement
    remove_about: Statement
    begin_about: Statement  # if it is not there
    change_about: Statement  # if it is as it was
    lease: Statement
    renew: Statement
    release: Statement

    @classmethod
    def of(cls, keyspace: str, reading: Use = Use.READ) -> Statements:
        """The statements on the tables of a keyspace; `reading`: what its reads are for.

        Who writes anew what it has read asks for `Use.WRITE`: it reads as safely as it writes.
        """
        texts = {name: _TEXTS[name] for name in cls._fields}
        return cls(
            **{
                name: Statement(
                    re.sub(r"\{(\w+)\}", rf"{keyspace}.\1", text),
                    reading if use is Use.READ else use,
                )
                for name, (text, use) in texts.items()
            }
        )


_TEXTS = {
    "partition": ("SELECT live, rest, crawl, cell FROM {capture} WHERE dk = ? LIMIT ?", Use.READ),
    "between": (
        "SELECT rest, cell FROM {capture} "
        "WHERE dk = ? AND live = 0 AND rest >= ? AND rest < ? LIMIT ?",
        Use.READ,
    ),
    "cell": (
        "SELECT cell FROM {capture} WHERE dk = ? AND live = 0 AND rest = ? AND crawl = 0",
        Use.READ,
    ),
    "all_cells": ("SELECT dk, live, rest, cell FROM {capture}", Use.READ),
    "put": (
        "INSERT INTO {capture} (dk, live, rest, crawl, cell) VALUES (?, 0, ?, 0, ?) "
        "USING TIMESTAMP ?",
        Use.WRITE,
    ),
    "remove": (
        "DELETE FROM {capture} USING TIMESTAMP ? "
        "WHERE dk = ? AND live = 0 AND rest = ? AND crawl = 0",
        Use.WRITE,
    ),
    "place": ("SELECT container, crawl FROM {place} WHERE number = ?", Use.READ),
    "places": ("SELECT number, container, crawl FROM {place}", Use.READ),
    "put_place": ("INSERT INTO {place} (number, container, crawl) VALUES (?, ?, ?)", Use.WRITE),
    "number": ("SELECT number FROM {number} WHERE place = ?", Use.READ),
    "put_number": ("INSERT INTO {number} (place, number) VALUES (?, ?)", Use.WRITE),
    "container": ("SELECT about FROM {container} WHERE name = ?", Use.READ),
    "containers": ("SELECT name, about FROM {container}", Use.READ),
    "put_container": (
        "INSERT INTO {container} (name, about) VALUES (?, ?) USING TIMESTAMP ?",
        Use.WRITE,
    ),
    "remove_container": ("DELETE FROM {container} USING TIMESTAMP ? WHERE name = ?", Use.WRITE),
    "urls": (
        "SELECT rest, dk FROM {url} WHERE part = ? AND rest >= ? AND rest <= ? LIMIT ?",
        Use.READ,
    ),
    "url": ("SELECT dk FROM {url} WHERE part = ? AND rest = ? AND dk = ?", Use.READ),
    "put_url": ("INSERT INTO {url} (part, rest, dk) VALUES (?, ?, ?)", Use.WRITE),
    "about": ("SELECT value FROM {about} WHERE name = ?", Use.READ),
    "about_now": ("SELECT value FROM {about} WHERE name = ?", Use.SERIAL),
    "put_about": ("INSERT INTO {about} (name, value) VALUES (?, ?) USING TIMESTAMP ?", Use.WRITE),
    "remove_about": ("DELETE FROM {about} USING TIMESTAMP ? WHERE name = ?", Use.WRITE),
    "begin_about": (
        "INSERT INTO {about} (name, value) VALUES (?, ?) IF NOT EXISTS",
        Use.CONDITIONAL,
    ),
    "change_about": ("UPDATE {about} SET value = ? WHERE name = ? IF value = ?", Use.CONDITIONAL),
    "lease": (
        "INSERT INTO {about} (name, value) VALUES ('lease', ?) IF NOT EXISTS USING TTL ?",
        Use.CONDITIONAL,
    ),
    "renew": (
        "UPDATE {about} USING TTL ? SET value = ? WHERE name = 'lease' IF value = ?",
        Use.CONDITIONAL,
    ),
    "release": ("DELETE FROM {about} WHERE name = 'lease' IF value = ?", Use.CONDITIONAL),
}


def made(session: Session, keyspace: str) -> bool:
    """Whether the tables of an index are there."""
    return ("about",) in session.execute(_MADE, keyspace)


def make(session: Session, address: Address) -> None:
    """Make the keyspace and its tables, where they are not there.

    Raises `BadInput` if the cluster has too few nodes for the copies that are asked for.
    """
    if not session.execute(_KEYSPACE, address.keyspace):
        copies = _copies(address.replication)
        nodes = 1 + len(session.execute(_PEERS))
        if max(copies.values()) > nodes:
            raise BadInput(
                f"the cluster has {nodes} node{'s' * (nodes > 1)}, too few for replication = "
                f"{address.replication}: add ?replication={nodes} to the address, or more nodes"
            )
        told = ", ".join(f"'{name}': {count}" for name, count in copies.items())
        session.define(
            f"CREATE KEYSPACE IF NOT EXISTS {address.keyspace} "
            f"WITH replication = {{'class': 'NetworkTopologyStrategy', {told}}}"
        )
    there = {name for (name,) in session.execute(_MADE, address.keyspace)}
    for name, columns in _TABLES.items():
        if name not in there:
            options = f" WITH {_dense(session)}" if name == "capture" else ""
            table = f"{address.keyspace}.{name}"
            session.define(f"CREATE TABLE IF NOT EXISTS {table} ({columns}){options}")


def empty(session: Session, keyspace: str) -> None:
    """Remove all that a load has put into the tables; all nodes must be there."""
    for name in _EMPTIED:
        session.define(f"TRUNCATE {keyspace}.{name}")


def _copies(replication: str) -> dict[str, int]:
    """Datacenter -> copies; for all of them where none is named."""
    if ":" not in replication:
        return {"replication_factor": int(replication)}
    pairs = (part.split(":") for part in replication.split(","))
    return {name: int(count) for name, count in pairs}


def _dense(session: Session) -> str:
    """What packs captures best with the least work, of what a cluster knows.

    Cassandra 5 has the first; ScyllaDB, which says it is Cassandra 3, and older ones the second.
    """
    version = str(session.execute(_VERSION)[0][0])
    if version.split(".")[0].isdigit() and int(version.split(".")[0]) >= 5:
        return (
            "compaction = {'class': 'UnifiedCompactionStrategy', 'scaling_parameters': 'T4'} "
            "AND compression = {'class': 'ZstdCompressor', 'chunk_length_in_kb': 16}"
        )
    return (
        "compaction = {'class': 'LeveledCompactionStrategy'} "
        "AND compression = {'class': 'LZ4Compressor', 'chunk_length_in_kb': 16}"
    )


# Captures by URL alone, on a cluster: a further table, for an index with the setting `by_url`.

LOOKED_AT = 5_000  # keys, about a second
AT_ONCE = 500  # of their digests that are read side by side
_PART = 4  # bytes: with canonical URLs what all URLs of a urlkey have in common
_BEYOND = b"\xff" * 16

_Asked = tuple[Statement, Sequence[Any]]


def row_of(key: bytes) -> tuple[bytes, bytes, bytes]:
    """Where a capture's key is listed."""
    end = DIGEST_KEY[key[0]]
    return key[end : end + _PART], key[end + _PART :], key[:end]


def listing(on: Statements, key: bytes) -> _Asked:
    """What lists a capture's key; nothing changes if it is listed."""
    return on.put_url, row_of(key)


def keys_at(session: Session, on: Statements, sought: bytes) -> Iterator[bytes]:
    """The keys that are listed and whose tail, after the digest, begins with `sought`.

    Looks at no more than `LOOKED_AT`.
    """
    part, rest = sought[:_PART], sought[_PART:]
    for found, dk in session.execute(on.urls, part, rest, rest + _BEYOND, LOOKED_AT):
        yield bytes(dk) + part + bytes(found)


def missing(session: Session, on: Statements, keys: Sequence[bytes]) -> Iterable[bytes]:
    """Of keys those that are not listed."""
    found = session.execute_many((on.url, row_of(key)) for key in keys)
    return (key for key, rows in zip(keys, found, strict=True) if not rows)
