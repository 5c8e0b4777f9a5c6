"""Where crawls are stored: beside an LMDB or Whoosh index, or on a Cassandra cluster."""

from __future__ import annotations

from contextlib import closing, nullcontext
from pathlib import Path

from dedupindex.crawls.crawl import Crawl
from dedupindex.crawls.store import FILE, Reading, Store, cluster_of
from dedupindex.crawls.stores.lmdb_crawl_store import LmdbStore
from dedupindex.index import open_index
from dedupindex.index.engine import View, was_read


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


def crawl_named(index: Path, name: str) -> Crawl | None:
    """Return the crawl of a name that wrote to an index while it ran, None if there is none."""
    store = open_store(index)
    if store is None:
        return None
    with closing(store), store.reading() as reading:
        return reading.crawl_named(name)


def crawl_names(index: Path) -> set[str]:
    """Return the names of all crawls: those of indexed files, and those that wrote to the index.

    "" is among them if files are of no crawl. The caller must not have the index open.
    """
    with closing(open_index(index)) as engine, engine.view() as view:
        known = indexed_crawl_names(view)
    return known.union(asking_crawl_names(index))


def indexed_crawl_names(view: View) -> set[str]:
    """Return the names of the crawls that an index has files or captures of, "" for none.

    An index keeps the names of places. That of a file which was moved to another crawl has no
    captures any more, and does not count.
    """
    known = {container.crawl for container in view.containers()}
    for _, place in view.places():
        if place.crawl in known:
            continue
        if not place.container or not was_read(view, place.container):  # some reports name no file
            known.add(place.crawl)
    return known


def removed_crawls(index: Path) -> dict[str, str]:
    """Return what `removed_in` does; the caller must not have the index open."""
    store = open_store(index)
    with (
        closing(open_index(index)) as engine,
        engine.view() as view,
        closing(store) if store is not None else nullcontext(),
        store.reading() if store is not None else nullcontext() as reading,
    ):
        return removed_in(view, reading)


def removed_in(view: View, reading: Reading | None) -> dict[str, str]:
    """Return the crawls of which the index has nothing any more -> how they were removed.

    A crawl that is known from its files only was purged if all of them were. Captures that were
    purged by their URL are not known by crawl.
    """
    removed, kept = dict[str, str](), set[str]()
    for container in view.containers():
        if container.purged:
            removed[container.crawl] = "purged"
        else:
            kept.add(container.crawl)
    for crawl in reading.crawls() if reading is not None else ():
        if crawl.removed:
            removed[crawl.name] = crawl.removed
        else:
            kept.add(crawl.name)
    return {name: how for name, how in removed.items() if name not in kept}


def asking_crawl_names(index: Path) -> list[str]:
    """Return the names of the crawls that wrote to an index while they ran, the newest first."""
    if (store := open_store(index)) is None:
        return []
    with closing(store), store.reading() as reading:
        return [crawl.name for crawl in reading.newest()]
