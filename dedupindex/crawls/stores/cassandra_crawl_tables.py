"""CQL statements on the tables of crawls, in the keyspace of an index.

    crawl      all crawls, in one partition with one version: each change raises it by compare and
               set, so numbers and names are assigned once
    reported   the keys that a crawl has captures under, in 64 parts, to find them again
    claim      who may store a payload; with a time to live
    statistic  amounts of `statistics_keys`, by writer and start time; combined when read

The captures are rows of the index's own table ``capture``, after what the index has of the same
digest: one row for each entry, whose key ends with the hash of the entry. Two servers that get
captures of the same URL at once write two rows; readers find both. Rows never change: the state of
a crawl is in ``crawl`` alone.
"""

from __future__ import annotations

from typing import NamedTuple

from dedupindex.index.engines.cassandra.cql import Statement, Use

PARTS = 64  # of the keys of a crawl
HOST_PARTS = 16  # of its hosts
SUFFIX = 8  # bytes of an entry's hash behind the rest of its key


class CrawlStatements(NamedTuple):
    """Statements on the tables of one keyspace."""

    version: Statement
    crawls: Statement
    cells: Statement
    row: Statement
    put_row: Statement
    drop_row: Statement
    listed: Statement
    enlist: Statement
    unlist: Statement
    claims: Statement
    claim_back: Statement
    make_claim: Statement
    take_claim: Statement
    drop_claim: Statement
    statistic: Statement
    statistics: Statement
    put_statistic: Statement
    drop_statistics: Statement

    @classmethod
    def to(cls, keyspace: str) -> CrawlStatements:
        """Make the statements for a keyspace."""
        return cls(
            *(Statement(_TEXTS[name].format(k=keyspace), _use(name)) for name in cls._fields)
        )


_SERIAL, _CONDITIONAL = ("claim_back",), ("make_claim", "take_claim", "drop_claim")
_UNDER = "SELECT rest, crawl, cell FROM {k}.capture WHERE dk = ? AND live = 1"
_CLAIM = "SELECT crawl, until, secret FROM {k}.claim WHERE dk = ? AND namespace = ?"
_AT = "crawl = ? AND kind = ? AND part = ?"
_TEXTS = {
    "version": "SELECT DISTINCT shelf, version, writer FROM {k}.crawl WHERE shelf = 0",
    "crawls": "SELECT version, writer, number, about FROM {k}.crawl WHERE shelf = 0",
    "cells": f"{_UNDER} AND rest >= ? AND rest <= ?",
    "row": f"{_UNDER} AND rest >= ? AND rest <= ?",
    "put_row": "INSERT INTO {k}.capture (dk, live, rest, crawl, cell) VALUES (?, 1, ?, ?, ?)",
    "drop_row": "DELETE FROM {k}.capture WHERE dk = ? AND live = 1 AND rest = ? AND crawl = ?",
    "listed": "SELECT key FROM {k}.reported WHERE crawl = ? AND part = ?",
    "enlist": "INSERT INTO {k}.reported (crawl, part, key) VALUES (?, ?, ?)",
    "unlist": "DELETE FROM {k}.reported WHERE crawl = ? AND part = ? AND key = ?",
    "claims": "SELECT namespace, crawl, until, secret FROM {k}.claim WHERE dk = ?",
    "claim_back": _CLAIM,
    "make_claim": (
        # UPDATE, as the row marker of an INSERT has a time to live of its own: an empty row would
        # be left where a shorter claim takes its place.
        "UPDATE {k}.claim USING TTL ? SET crawl = ?, until = ?, secret = ? "
        "WHERE dk = ? AND namespace = ? IF secret = NULL"
    ),
    "take_claim": (
        "UPDATE {k}.claim USING TTL ? SET crawl = ?, until = ?, secret = ? "
        "WHERE dk = ? AND namespace = ? IF secret = ?"
    ),
    "drop_claim": "DELETE FROM {k}.claim WHERE dk = ? AND namespace = ? IF secret = ?",
    "statistic": f"SELECT amounts FROM {{k}}.statistic WHERE {_AT} AND heading = ?",
    "statistics": f"SELECT heading, amounts FROM {{k}}.statistic WHERE {_AT} AND heading >= ?",
    "put_statistic": (
        "INSERT INTO {k}.statistic (crawl, kind, part, heading, writer, since, amounts) "
        "VALUES (?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?"
    ),
    "drop_statistics": f"DELETE FROM {{k}}.statistic WHERE {_AT}",
}


def _use(name: str) -> Use:
    """Read captures at the consistency of lookups, everything else at that of writes.

    A reader must see that a crawl was cancelled.
    """
    if name == "cells":
        return Use.READ
    return Use.SERIAL if name in _SERIAL else Use.CONDITIONAL if name in _CONDITIONAL else Use.WRITE


def put_crawls(keyspace: str, count: int) -> Statement:
    """Write `count` crawls if none has changed; values: new version, writer, version, crawls."""
    k = keyspace
    put = f"UPDATE {k}.crawl SET about = ? WHERE shelf = 0 AND number = ?;"
    return Statement(
        f"""BEGIN BATCH UPDATE {k}.crawl SET version = ?, writer = ? WHERE shelf = 0 IF version = ?;
        {count * put} APPLY BATCH""",
        Use.CONDITIONAL,
    )


def crawls_back(keyspace: str) -> Statement:
    """Read who changed crawls last."""
    return Statement(
        f"SELECT DISTINCT shelf, writer FROM {keyspace}.crawl WHERE shelf = 0", Use.SERIAL
    )
