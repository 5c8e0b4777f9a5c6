"""Captures of crawls that are not merged into the index yet: count or remove those of a target."""

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


def count_captures(
    reading: Reading, resolved: ResolvedTarget, writer: RunWriter | None = None
) -> int:
    """Count the captures of a target in crawls that are not merged yet; updates its `found`.

    With a `writer` it stages tombstones of a target by URL: the index, which does not have these
    captures, would otherwise take them when it reads their files.
    """
    by_crawl = resolved.target.kind is TargetKind.CRAWL
    if by_crawl:
        for text, name in enumerate(resolved.target.texts):
            with suppress(UnknownCrawl):
                reading.crawl(name)
                resolved.found.add(text)
    crawls = {crawl.number: crawl for crawl in reading.crawls()}
    waiting = {
        crawl.number
        for crawl in crawls.values()
        if not crawl.merged and crawl.state is not CrawlState.CANCELLED
    }
    count = 0
    try:
        for held in reading.cells():
            if held[1] in waiting:
                taken = _taken(reading, resolved, crawls, held)
                count += sum(not entry[1] & ALSO for entry in taken)
                if writer is not None and resolved.by_url:
                    writer.extend(
                        [held[0] + encode_purged(entry, anywhere=True) for entry in taken]
                    )
    except Damaged:
        if not by_crawl:
            raise
        # A damaged crawl cannot be merged, but it can be removed as a whole.
        named = [crawls[n] for n in waiting if crawls[n].name in resolved.target.texts]
        return sum(reading.counts(crawl)[0] for crawl in named)
    return count


def containers(reading: Reading, crawl: Crawl) -> set[int]:
    """The numbers of the containers that have captures of a crawl."""
    return {container_of(found.entry) for found in of_crawl(reading, crawl)}


def remove(store: Store, resolved: ResolvedTarget, settings: Settings) -> None:
    """Remove the captures of a target; whole crawls end, and take no more reports."""
    if resolved.target.kind is TargetKind.CRAWL:
        for name in resolved.target.texts:
            with suppress(UnknownCrawl):
                merge_crawls.drop_all(store, store.write(partial(_end_crawl, name=name)))
        return
    for stretch in store.batches():
        with store.reading() as reading:
            crawls = {crawl.number: crawl for crawl in reading.crawls()}
            found = [held for held in stretch if _taken(reading, resolved, crawls, held)]
        for at in range(0, len(found), merge_crawls.DROPPED_AT_ONCE):
            batch = found[at : at + merge_crawls.DROPPED_AT_ONCE]
            store.write(partial(_remove, resolved=resolved, settings=settings, batch=batch))


def _end_crawl(writing: Writing, name: str) -> Crawl:
    crawl = writing.crawl(name)
    if crawl.merging:  # it was interrupted; what the index has of it goes, too
        writing.put_crawl(replace(crawl, merging=False))
    with suppress(CrawlEnded):  # it is merged, and only not swept yet
        lifecycle.drop(writing, name)
    return writing.crawl(name)


def _remove(
    writing: Writing, resolved: ResolvedTarget, settings: Settings, batch: list[Held]
) -> None:
    crawls = {crawl.number: crawl for crawl in writing.crawls()}
    rule = MergeRule(settings.keys(), settings.keep == "latest", writing.container_ref)
    for key, number, _ in batch:
        crawl = crawls[number]
        cell = writing.cell(key, crawl)  # as it is now
        if cell is not None:
            taken = _taken(writing, resolved, crawls, (key, number, cell))
            drop_entries(writing, crawl, key, taken, rule)


def _taken(
    reading: Reading, resolved: ResolvedTarget, crawls: dict[int, Crawl], held: Held
) -> list[bytes]:
    """The entries of a crawl's cell that go; updates `found`."""
    target, (key, number, cell) = resolved.target, held
    if target.kind is TargetKind.CRAWL:
        return list(entries_of(cell)) if crawls[number].name in target.texts else []
    if target.kind is not TargetKind.CONTAINER:
        if not resolved.may_hold(key):
            return []
        return [entry for entry in entries_of(cell) if resolved.takes(key, entry)]
    taken = []
    for entry in entries_of(cell):
        name = reading.container_name(container_of(entry))
        texts = resolved.texts_of_file(name) if name and entry[0] & 3 != NAMED else []
        if texts:
            resolved.found.add(texts[0])
            taken.append(entry)
    return taken


def unread_crawls(view: View, reading: Reading, but: Collection[str] = ()) -> dict[str, int]:
    """Crawls whose revisits the index may not know -> their lookups answered with an original.

    A crawl counts as read when it has ended and all files that it is known to have written were
    indexed. One that reported no file, and of which none was indexed, does not.
    """
    answered = dict[str, tuple[Crawl, int]]()
    for crawl in reading.crawls():
        count = statistics.total(reading, crawl).duplicates
        if count and crawl.state is not CrawlState.CANCELLED and crawl.name not in but:
            answered[crawl.name] = crawl, count
    if not answered:
        return {}
    written = {name: _reported_files(reading, crawl) for name, (crawl, _) in answered.items()}
    indexed = set[str]()
    for container in view.containers():
        indexed.add(_last_name(container.name))
        if container.crawl in written:
            written[container.crawl].add(_last_name(container.name))
    for _, place in view.places():
        if place.container and place.crawl in written:
            written[place.crawl].add(_last_name(place.container))
        _, *outer = files_of(place.container)
        if any(view.container(file) is not None for file in outer):
            indexed.add(_last_name(place.container))
    return {
        name: count
        for name, (crawl, count) in answered.items()
        if crawl.state is CrawlState.OPEN or not written[name] or not written[name] <= indexed
    }


def _reported_files(reading: Reading, crawl: Crawl) -> set[str]:
    """The files of captures that only the crawl has; none of open crawls, which are unread."""
    if crawl.merged or crawl.state is CrawlState.OPEN:
        return set()
    files = map(reading.container_name, containers(reading, crawl))
    return {_last_name(name) for name in files if name}


def _last_name(name: str) -> str:
    return name.rpartition("/")[2]
