"""Captures of crawls that lie beside the index: those that a target means, counted or removed."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial

from dedupindex.crawls import lifecycle, merge_crawls, statistics
from dedupindex.crawls.crawl import Crawl, CrawlState
from dedupindex.crawls.crawl_captures import drop_entries, of_crawl
from dedupindex.crawls.store import Held, Reading, Store, Writing
from dedupindex.errors import CrawlEnded, Damaged, UnknownCrawl
from dedupindex.index.engine import View
from dedupindex.index.format.cells import ALSO, container_of, entries_of
from dedupindex.index.format.file_names import files_of
from dedupindex.index.format.tombstones import NAMED, encode_purged
from dedupindex.index.identity import Settings
from dedupindex.index.load.merge_rule import MergeRule
from dedupindex.index.load.runs import RunWriter
from dedupindex.post_crawl.purge.target import ResolvedTarget, TargetKind


def counted(reading: Reading, what: ResolvedTarget, writer: RunWriter | None = None) -> int:
    """How many captures a target means of crawls that the index has not taken in.

    With a `writer` it stages marks of those that are to stay away wherever they come from: the
    index, which has them from nowhere else, would take them when it reads their files.
    """
    _note_crawls(reading, what)
    crawls = {crawl.number: crawl for crawl in reading.crawls()}
    waiting = {number for number, crawl in crawls.items() if _waits(crawl)}
    try:
        return _counted(reading, what, crawls, waiting, writer)
    except Damaged:
        if what.target.kind is not TargetKind.CRAWL:
            raise
    # A crawl that is damaged, and so never merged, can be taken away as a whole all the same.
    meant = [crawls[number] for number in waiting if crawls[number].name in what.target.texts]
    return sum(reading.counts(crawl)[0] for crawl in meant)


def _counted(
    reading: Reading,
    what: ResolvedTarget,
    crawls: dict[int, Crawl],
    waiting: set[int],
    writer: RunWriter | None,
) -> int:
    count = 0
    for held in reading.cells():
        if held[1] in waiting:
            gone = _taken(reading, what, crawls, held)
            count += sum(not entry[1] & ALSO for entry in gone)
            if writer is not None and what.anywhere:
                key = held[0]
                writer.extend([key + encode_purged(entry, anywhere=True) for entry in gone])
    return count


def containers(reading: Reading, crawl: Crawl) -> set[int]:
    """The numbers of the containers that the captures of a crawl are in."""
    return {container_of(found.entry) for found in of_crawl(reading, crawl)}


def remove(store: Store, what: ResolvedTarget, settings: Settings) -> None:
    """Take away what a target means.

    Crawls that are meant as a whole end by this: nothing more can be reported to them.
    """
    if what.target.kind is TargetKind.CRAWL:
        for name in what.target.texts:
            with suppress(UnknownCrawl):
                _end(store, name)
        return
    for stretch in store.batches():
        held = _meant(store, what, stretch)
        for at in range(0, len(held), merge_crawls.DROPPED_AT_ONCE):
            some = held[at : at + merge_crawls.DROPPED_AT_ONCE]
            store.write(partial(_drop, what=what, settings=settings, held=some))


def _end(store: Store, name: str) -> None:
    merge_crawls.drop_all(store, store.write(partial(_ended, name=name)))


def _ended(writing: Writing, name: str) -> Crawl:
    crawl = writing.crawl(name)
    if crawl.merging:  # cut off: what the index has of it goes, too
        writing.put_crawl(replace(crawl, merging=False))
    with suppress(CrawlEnded):  # merged: what it has here is only what is not swept yet
        lifecycle.drop(writing, name)
    return writing.crawl(name)


def _note_crawls(reading: Reading, what: ResolvedTarget) -> None:
    """Crawls that are known here are found, whatever they hold."""
    if what.target.kind is TargetKind.CRAWL:
        for at, name in enumerate(what.target.texts):
            with suppress(UnknownCrawl):
                reading.crawl(name)
                what.found.add(at)


def _waits(crawl: Crawl) -> bool:
    return not crawl.merged and crawl.state is not CrawlState.CANCELLED


def _meant(store: Store, what: ResolvedTarget, stretch: list[Held]) -> list[Held]:
    """Where something is to go."""
    with store.reading() as reading:
        crawls = {crawl.number: crawl for crawl in reading.crawls()}
        return [held for held in stretch if _taken(reading, what, crawls, held)]


def _drop(writing: Writing, what: ResolvedTarget, settings: Settings, held: list[Held]) -> None:
    crawls = {crawl.number: crawl for crawl in writing.crawls()}
    rule = MergeRule(settings.keys(), settings.keep == "latest", writing.container_ref)
    for key, number, _ in held:
        crawl = crawls[number]
        cell = writing.cell(key, crawl)  # as it is now
        if cell is not None:
            gone = _taken(writing, what, crawls, (key, number, cell))
            drop_entries(writing, crawl, key, gone, rule)


def _taken(
    reading: Reading, what: ResolvedTarget, crawls: dict[int, Crawl], held: Held
) -> list[bytes]:
    """The entries of a cell of a crawl that go."""
    target, (key, number, cell) = what.target, held
    if target.kind is TargetKind.CRAWL:
        name = crawls[number].name
        return list(entries_of(cell)) if name in target.texts else []
    if target.kind is not TargetKind.CONTAINER:
        if not what.may_hold(key):
            return []
        return [entry for entry in entries_of(cell) if what.takes(key, entry)]
    gone = []
    for entry in entries_of(cell):
        name = reading.container_name(container_of(entry))
        places = what.meaning(name) if name and entry[0] & 3 != NAMED else []
        if places:
            what.found.add(places[0])
            gone.append(entry)
    return gone


# Crawls whose revisits the index cannot know: it answered them, and has not read their WARCs.


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
        for number in containers(reading, crawl)
        if (name := reading.container_name(number))
    }


def _last(name: str) -> str:
    return name.rpartition("/")[2]
