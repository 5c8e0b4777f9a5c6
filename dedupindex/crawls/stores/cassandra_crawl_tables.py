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

from dedupindex.index.engines.cassandra.cql import Statement, Use

PARTS = 64  # of the keys of a crawl
HOST_PARTS = 16  # of its hosts
SUFFIX = 8  # bytes of an entry's hash behind the rest of its key


class CrawlStatements:
    """The statements on the tables of a keyspace.

    Captures are read at the consistency of lookups, everything else at that of writes: a reader
    must see that a crawl was cancelled.
    """

    def __init__(self, keyspace: str) -> None:
        def statement(text: str, use: Use = Use.WRITE) -> Statement:
            return Statement(text.replace("KS.", f"{keyspace}."), use)

        rows = (
            "SELECT rest, crawl, cell FROM KS.capture WHERE dk = ? AND live = 1 "
            "AND rest >= ? AND rest <= ?"
        )
        statistics = "FROM KS.statistic WHERE crawl = ? AND kind = ? AND part = ?"
        # UPDATE, as the row marker of an INSERT has a time to live of its own: an empty row would
        # be left where a shorter claim takes its place.
        claim = (
            "UPDATE KS.claim USING TTL ? SET crawl = ?, until = ?, secret = ? "
            "WHERE dk = ? AND namespace = ? IF secret ="
        )
        self.version = statement(
            "SELECT DISTINCT shelf, version, writer FROM KS.crawl WHERE shelf = 0"
        )
        self.crawls = statement(
            "SELECT version, writer, number, about FROM KS.crawl WHERE shelf = 0"
        )
        self.cells, self.row = statement(rows, Use.READ), statement(rows)
        self.put_row = statement(
            "INSERT INTO KS.capture (dk, live, rest, crawl, cell) VALUES (?, 1, ?, ?, ?)"
        )
        self.drop_row = statement(
            "DELETE FROM KS.capture WHERE dk = ? AND live = 1 AND rest = ? AND crawl = ?"
        )
        self.listed = statement("SELECT key FROM KS.reported WHERE crawl = ? AND part = ?")
        self.enlist = statement("INSERT INTO KS.reported (crawl, part, key) VALUES (?, ?, ?)")
        self.unlist = statement("DELETE FROM KS.reported WHERE crawl = ? AND part = ? AND key = ?")
        self.claims = statement("SELECT namespace, crawl, until, secret FROM KS.claim WHERE dk = ?")
        self.claim_back = statement(
            "SELECT crawl, until, secret FROM KS.claim WHERE dk = ? AND namespace = ?", Use.SERIAL
        )
        self.make_claim = statement(f"{claim} NULL", Use.CONDITIONAL)
        self.take_claim = statement(f"{claim} ?", Use.CONDITIONAL)
        self.drop_claim = statement(
            "DELETE FROM KS.claim WHERE dk = ? AND namespace = ? IF secret = ?", Use.CONDITIONAL
        )
        self.statistic = statement(f"SELECT amounts {statistics} AND heading = ?")
        self.statistics = statement(f"SELECT heading, amounts {statistics} AND heading >= ?")
        self.put_statistic = statement(
            "INSERT INTO KS.statistic (crawl, kind, part, heading, writer, since, amounts) "
            "VALUES (?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?"
        )
        self.drop_statistics = statement(f"DELETE {statistics}")


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
