"""Crawls that were answered with originals, and whose revisits the index may not know."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence

from dedupindex.crawls import statistics
from dedupindex.crawls.crawl import Crawl, CrawlState
from dedupindex.crawls.crawl_captures import of_crawl
from dedupindex.crawls.store import Reading
from dedupindex.index.engine import IndexedContainer, View, was_read
from dedupindex.index.format.cells import container_of
from dedupindex.index.format.file_names import files_of, last_name

WITHOUT_WARCS = (
    "bin/purge INDEX --crawl NAME removes a crawl that wrote no WARCs, or whose WARCs were thrown "
    "away, with all captures that the index has of it"
)
"""What to do about a crawl that has nothing to be read, such as a trial."""
_LAUNCH = re.compile(r"(?<![0-9])[0-9]{14}(?![0-9])")  # names crawl and directory


def unread_crawls(view: View, reading: Reading, but: Collection[str] = ()) -> dict[str, int]:
    """Crawls whose revisits the index may not know -> their lookups answered with an original.

    A crawl counts as read when it has ended and all files that it is known to have written were
    indexed. One that reported no file, and of which none was indexed, does not.
    """
    answered = [
        (crawl, count)
        for crawl in reading.crawls()
        if crawl.state is not CrawlState.CANCELLED and crawl.name not in but
        if (count := statistics.total(reading, crawl).duplicates)
    ]
    unread = set(_unread(view, reading, [crawl for crawl, _ in answered]))
    return {crawl.name: count for crawl, count in answered if crawl.name in unread}


def crawls_without_files(view: View, reading: Reading) -> list[str]:
    """Crawls that got hits or reported captures, and of whose files some were not indexed yet."""
    asking = []
    for crawl in reading.crawls():
        if crawl.state is not CrawlState.CANCELLED:
            total = statistics.total(reading, crawl)
            if total.duplicates or total.stored:
                asking.append(crawl)
    return _unread(view, reading, asking)


def _unread(view: View, reading: Reading, crawls: Sequence[Crawl]) -> list[str]:
    """Return the names of those of `crawls` that do not count as read."""
    if not crawls:
        return []
    written = {crawl.name: reported_files(reading, crawl) for crawl in crawls}
    indexed = set[str]()
    for container in view.containers():
        indexed.add(last_name(container.name))
        if container.crawl in written:
            written[container.crawl].add(last_name(container.name))
    for _, place in view.places():
        if place.container and place.crawl in written:
            written[place.crawl].add(last_name(place.container))
        _, *outer = files_of(place.container)
        if any(view.container(file) is not None for file in outer):
            indexed.add(last_name(place.container))
    return [
        crawl.name
        for crawl in crawls
        if crawl.state is CrawlState.OPEN
        or not written[crawl.name]
        or not written[crawl.name] <= indexed
    ]


def reported_files(reading: Reading, crawl: Crawl) -> set[str]:
    """The files of captures that only the crawl has; none of open crawls, which are unread."""
    if crawl.merged or crawl.state is CrawlState.OPEN:
        return set()
    numbers = {container_of(found.entry) for found in of_crawl(reading, crawl)}
    return {last_name(name) for name in map(reading.container_name, numbers) if name}


def captures_in(view: View, reading: Reading, crawl: Crawl) -> set[str]:
    """Return the last names of files that captures of a crawl are in, as it reported them.

    Also those that only the crawl has, if it has ended and is not merged.
    """
    return reported_files(reading, crawl) | _unread_places(view)[crawl.name]


def absent_files(view: View, reading: Reading, crawl: Crawl) -> list[str]:
    """Return those of `captures_in` that nobody has read, sorted."""
    read = {last_name(container.name) for container in view.containers()}
    return sorted(captures_in(view, reading, crawl) - read)


def read_for_others(view: View, reading: Reading, crawl: Crawl) -> list[IndexedContainer]:
    """Return the files that a crawl wrote, as it seems, and that were read for another or none.

    It has reported captures in a file of the name, and neither was one read for the crawl, nor did
    the other crawl report one; or the path has the launch of the crawl.
    """
    launch = launches_in(crawl.name)
    places, read = _unread_places(view), list(view.containers())
    reported = captures_in(view, reading, crawl)
    reported -= {last_name(file.name) for file in read if file.crawl == crawl.name}
    return [
        file
        for file in read
        if file.crawl != crawl.name and not file.purged
        and (
            (last_name(file.name) in reported and last_name(file.name) not in places[file.crawl])
            or (launch & launches_in(file.name) - launches_in(file.crawl))
        )
    ]  # fmt: skip


def launches_in(name: str) -> set[str]:
    """Return the launches of Heritrix, as 14 digits, that a path or the name of a crawl has."""
    return set(_LAUNCH.findall(name))


def _unread_places(view: View) -> defaultdict[str, set[str]]:
    """Crawls -> the last names of files that have their captures, and that nobody has read."""
    found = defaultdict[str, set[str]](set)
    for _, place in view.places():
        if place.crawl and place.container and not was_read(view, place.container):
            found[place.crawl].add(last_name(place.container))
    return found
