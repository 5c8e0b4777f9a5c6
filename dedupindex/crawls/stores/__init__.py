"""Where crawls are stored: beside an LMDB or Whoosh index, or on a Cassandra cluster."""

from __future__ import annotations

from pathlib import Path

from dedupindex.crawls.store import FILE, Store, cluster_of
from dedupindex.crawls.stores.lmdb_crawl_store import LmdbStore


def make_store(index: Path, *, create: bool = True) -> Store:
    """Open the crawls of an index, or `create` their file; raises `IndexUnavailable`."""
    if address := cluster_of(index):
        # The driver of Cassandra is optional.
        from dedupindex.crawls.stores.cassandra_crawl_store import CassandraStore

        return CassandraStore(index, address)
    return LmdbStore(index, create=create)


def has_store(index: Path) -> bool:
    """Return whether an index may have crawls that write to it: in a file, or on its cluster."""
    return (index / FILE).exists() or cluster_of(index) is not None


def open_store(index: Path) -> Store | None:
    """Open the crawls of an index; return None if it never had one."""
    return make_store(index, create=False) if has_store(index) else None
