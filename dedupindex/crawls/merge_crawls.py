"""Merge the captures of committed crawls into the index, and remove those of cancelled ones."""

from __future__ import annotations

import shlex
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from dedupindex.counts import OnProgress, silent
from dedupindex.crawls.crawl import Crawl, CrawlState
from dedupindex.crawls.crawl_captures import of_crawl
from dedupindex.crawls.store import Reading, Store, Writing
from dedupindex.index import open_index
from dedupindex.index.engine import Engine, Load
from dedupindex.index.format.cells import (
    ALSO,
    ContainerRef,
    container_of,
    strip_flags,
    with_container,
)
from dedupindex.index.format.visits import CODE
from dedupindex.index.load.merge_rule import MergeOutcome
from dedupindex.index.load.runs import CHUNK, RunWriter
from dedupindex.indexer import spot_check
from dedupindex.indexer.disproved_reports import refuse_disproved
from dedupindex.runtime.files import exclusive

DROPPED_AT_ONCE = 1000  # captures in one transaction, so that crawls can write in between
KEPT = 10.0  # seconds that merged captures still answer here, until readers reopen the index


def committed(store: Store) -> list[Crawl]:
    """Return the crawls that are committed and not merged yet."""
    with store.reading() as reading:
        return [crawl for crawl in reading.crawls() if waits(reading, crawl)]


def waits(reading: Reading, crawl: Crawl) -> bool:
    """Return whether a crawl is to be merged; crawls of a namespace never are."""
    return reading.needs_merge and _belongs_in_index(crawl)


def _belongs_in_index(crawl: Crawl) -> bool:
    return crawl.state is CrawlState.COMMITTED and not (crawl.merged or crawl.namespace)


def merge(index: Path, store: Store, on_progress: OnProgress = silent) -> MergeOutcome | None:
    """Merge the captures of committed crawls into the index; return None if there are none.

    If it is killed, repeat it: until then the crawls are marked as merging, as the index may have
    their captures. They still answer from the crawls until `sweep`. Raises `IndexBusy` while
    another process writes.
    """
    if not committed(store):
        return None
    with exclusive(index / "lock", f"the index at {index}"):
        with closing(open_index(index, write=True)) as engine:
            ready = committed(store)  # again: one may have been dropped meanwhile
            if not ready:
                return None
            _mark(store, ready, merging=True)
            outcome, drawn = _loaded(engine, store, ready, index / "merging", on_progress)
        command = shlex.join(["bin/index", "--merge", str(index)])
        spot_check.confirm(index, drawn, f"Its crawls still answer; this repairs it: {command}")
        _mark(store, ready, merging=False, merged=True)
    return outcome


def _loaded(
    engine: Engine,
    store: Store,
    crawls: list[Crawl],
    directory: Path,
    on_progress: OnProgress = silent,
) -> tuple[MergeOutcome, list[spot_check.SampledEntry]]:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    load = staged(engine, store, crawls, directory)
    drawn = spot_check.sample_load(load, engine.identity.settings.keys())
    outcome = engine.load(load._replace(on_progress=on_progress))
    shutil.rmtree(directory)
    with engine.view() as view:
        read = {file.crawl for file in view.containers()}
    for crawl in crawls:
        if crawl.name in read:
            outcome.contradicted += refuse_disproved(engine, crawl.name, directory)
    return outcome, drawn


def merge_into_copy(store: Store, target: Path, repair: str) -> MergeOutcome | None:
    """Merge the captures of committed crawls into a copy of their index, on any engine.

    Returns None if there are none. The crawls are not changed. `repair` is what the user has to
    do if the copy does not answer with these captures.
    """
    with store.reading() as reading:
        ready = list(filter(_belongs_in_index, reading.crawls()))
    if not ready:
        return None
    with exclusive(target / "lock", f"the index at {target}"):
        with closing(open_index(target, write=True)) as engine:
            outcome, drawn = _loaded(engine, store, ready, target / "merging")
        spot_check.confirm(target, drawn, repair)
    return outcome


def mark_as_merging(store: Store) -> None:
    """Mark crawls as merging whose index was copied after them, and may hold them."""
    if waiting := committed(store):
        _mark(store, waiting, merging=True)


def _mark(store: Store, crawls: list[Crawl], *, merging: bool, merged: bool = False) -> None:
    def change(writing: Writing) -> None:
        for crawl in crawls:
            known = writing.crawl(crawl.name)
            writing.put_crawl(replace(known, merging=merging, merged=merged))

    store.write(change)


def staged(engine: Engine, store: Store, crawls: list[Crawl], directory: Path) -> Load:
    """Write the captures of crawls as sorted runs."""
    numbers: dict[ContainerRef, int] = {}
    after = engine.next_number()
    tail = len(engine.identity.settings.keys().tail(b""))
    writer, visits = RunWriter(directory, "crawl"), RunWriter(directory, "visits")

    def number_of(place: ContainerRef) -> int:
        if place not in numbers:
            numbers[place] = engine.number_of(place) or after + len(numbers)
        return numbers[place]

    further = entries = 0
    with store.reading() as reading:
        for crawl in crawls:
            staged = []
            for found in of_crawl(reading, crawl):
                place = ContainerRef(reading.container_name(container_of(found.entry)), crawl.name)
                staged.append(
                    found.key + with_container(strip_flags(found.entry), number_of(place))
                )
                further |= found.entry[1] & ALSO
                entries += 1
                if len(staged) == CHUNK:
                    writer.extend(staged)
                    staged = []
            writer.extend(staged)
            for key, body in reading.visits(crawl.number):
                visits.extend([CODE + key[:tail] + body])
    writer.flush()
    visits.flush()
    places = [(number, place) for place, number in numbers.items()]
    return Load(
        writer.paths, places, [], ledger=visits.paths, own_digests=not further, entries=entries
    )


def sweep(store: Store, now: float, seen_merged: dict[int, float]) -> None:
    """Remove the captures of merged and cancelled crawls, and expired claims.

    `now` is in seconds since 1970. `seen_merged`, empty at first, is the caller's record of when
    each crawl was first seen merged.
    """
    store.write(lambda writing: writing.sweep_claims(int(now * 1000)))
    with store.reading() as reading:
        crawls = list(reading.crawls())
    for crawl in crawls:
        if crawl.swept or not (crawl.merged or crawl.state is CrawlState.CANCELLED):
            continue
        if crawl.merged and now - seen_merged.setdefault(crawl.number, now) < KEPT:
            continue
        drop_all(store, crawl)


def drop_all(store: Store, crawl: Crawl) -> None:
    """Remove all captures of a crawl that has ended, damaged or not, in short transactions.

    Nothing can be added to such a crawl meanwhile. If this is killed, repeat it.
    """
    for keys in store.keys_of(crawl):
        for at in range(0, len(keys), DROPPED_AT_ONCE):
            with store.writing() as writing:
                writing.drop_cells(crawl, keys[at : at + DROPPED_AT_ONCE])
    while store.write(lambda writing: writing.drop_visits(crawl, DROPPED_AT_ONCE)):
        pass
    store.write(lambda writing: writing.put_crawl(replace(writing.crawl(crawl.name), swept=True)))
