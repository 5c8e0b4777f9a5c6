"""Crawls whose revisits the index cannot know: it answered them, and has not read their WARCs."""

from __future__ import annotations

from collections.abc import Collection

from dedupindex.crawls import statistics
from dedupindex.crawls.crawl import Crawl, CrawlState
from dedupindex.crawls.store import Reading
from dedupindex.index.engine import View
from dedupindex.index.format.file_names import files_of
from dedupindex.post_crawl.purge import live_crawls


def unread(view: View, reading: Reading, but: Collection[str] = ()) -> dict[str, int]:
    """Name of each such crawl -> its lookups that were answered with an original.

    A crawl is taken for read when it has ended and all files that it is known to have written were
    indexed. One that reported nothing, and no file was indexed as its own, is not.
    """
    suspects = dict[str, tuple[Crawl, int]]()
    for crawl in reading.crawls():
        count = statistics.total(reading, crawl).duplicates
        if count and crawl.state is not CrawlState.CANCELLED and crawl.name not in but:
            suspects[crawl.name] = crawl, count
    if not suspects:
        return {}
    wrote = {name: _reported(reading, crawl) for name, (crawl, _) in suspects.items()}
    known = set[str]()
    for container in view.containers():
        known.add(_last(container.name))
        if container.crawl in wrote:
            wrote[container.crawl].add(_last(container.name))
    for _, place in view.places():
        if place.container and place.crawl in wrote:
            wrote[place.crawl].add(_last(place.container))
        _, *around = files_of(place.container)
        if any(view.container(file) is not None for file in around):
            known.add(_last(place.container))
    return {
        name: count
        for name, (crawl, count) in suspects.items()
        if crawl.state is CrawlState.OPEN or not wrote[name] or not wrote[name] <= known
    }


def _reported(reading: Reading, crawl: Crawl) -> set[str]:
    """The files of captures that only the crawl has; of an open one it does not matter."""
    if crawl.merged or crawl.state is CrawlState.OPEN:
        return set()
    return {
        _last(name)
        for number in live_crawls.containers(reading, crawl)
        if (name := reading.file_of(number))
    }


def _last(name: str) -> str:
    return name.rpartition("/")[2]
