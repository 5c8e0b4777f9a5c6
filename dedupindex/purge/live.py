"""Captures of crawls that lie beside the index: those that a target means, counted or removed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import cast

from dedupindex.crawls import life, upkeep
from dedupindex.crawls.captures import NUMBER, put_back
from dedupindex.crawls.crawl import Crawl, State
from dedupindex.crawls.store import Reading, Store
from dedupindex.errors import CrawlEnded, UnknownCrawl
from dedupindex.index.cells import ALSO, container_of, entries_of
from dedupindex.index.identity import Settings
from dedupindex.index.marks import NAMED, encode_gone
from dedupindex.index.runs import RunWriter
from dedupindex.index.settle import Rule
from dedupindex.purge.target import Chosen, Kind

_LOOKED_AT_ONCE = 100_000  # places, in one read transaction


def counted(reading: Reading, what: Chosen, writer: RunWriter | None = None) -> int:
    """How many captures a target means of crawls that the index has not taken in.

    With a `writer` it stages marks of those that are to stay away wherever they come from: the
    index, which has them from nowhere else, would take them when it reads their files.
    """
    _note_crawls(reading, what)
    crawls = {crawl.number: crawl for crawl in reading.crawls()}
    waiting = {number for number, crawl in crawls.items() if _waits(crawl)}
    count = 0
    for place, cell in _cells(reading, b""):
        if _number(place) in waiting:
            gone = _taken(reading, what, crawls, place, cell)
            count += sum(not entry[1] & ALSO for entry in gone)
            if writer is not None and what.anywhere:
                key = place[:-NUMBER]
                writer.extend([key + encode_gone(entry, anywhere=True) for entry in gone])
    return count


def containers(reading: Reading, crawl: Crawl) -> set[int]:
    """The numbers of the containers that the captures of a crawl are in."""
    return {
        container_of(entry)
        for place, cell in _cells(reading, b"")
        if _number(place) == crawl.number
        for entry in entries_of(cell)
    }


def remove(store: Store, what: Chosen, settings: Settings) -> None:
    """Take away what a target means.

    Crawls that are meant as a whole end by this: nothing more can be reported to them.
    """
    if what.target.kind is Kind.CRAWL:
        for name in what.target.texts:
            with suppress(UnknownCrawl):
                _end(store, name)
        return
    after: bytes | None = b""
    while after is not None:
        places, after = _places(store, what, after)
        for at in range(0, len(places), upkeep.DROPPED_AT_ONCE):
            _drop(store, what, settings, places[at : at + upkeep.DROPPED_AT_ONCE])


def _end(store: Store, name: str) -> None:
    with store.writing() as writing:
        crawl = writing.crawl(name)
        if crawl.merging:  # cut off: what the index has of it goes, too
            writing.put_crawl(replace(crawl, merging=False))
        with suppress(CrawlEnded):  # merged: what it has here is only what is not swept yet
            life.drop(writing, name)
        crawl = writing.crawl(name)
    upkeep.drop_all(store, crawl)


def _note_crawls(reading: Reading, what: Chosen) -> None:
    """Crawls that are known here are found, whatever they hold."""
    if what.target.kind is Kind.CRAWL:
        for at, name in enumerate(what.target.texts):
            with suppress(UnknownCrawl):
                reading.crawl(name)
                what.found.add(at)


def _waits(crawl: Crawl) -> bool:
    return not crawl.merged and crawl.state is not State.CANCELLED


def _places(store: Store, what: Chosen, after: bytes) -> tuple[list[bytes], bytes | None]:
    """Where something is to go, of the next places, and from where to go on."""
    found: list[bytes] = []
    with store.reading() as reading:
        crawls = {crawl.number: crawl for crawl in reading.crawls()}
        for looked, (place, cell) in enumerate(_cells(reading, after)):
            if looked >= _LOOKED_AT_ONCE:
                return found, place
            if _taken(reading, what, crawls, place, cell):
                found.append(place)
    return found, None


def _drop(store: Store, what: Chosen, settings: Settings, places: list[bytes]) -> None:
    with store.writing() as writing:
        crawls = {crawl.number: crawl for crawl in writing.crawls()}
        rule = Rule(settings.keys(), settings.keep == "latest", writing.place_of)
        for place in places:
            cell = cast(bytes | None, writing.txn.get(place, db=writing.trees.captures))
            if cell is not None:
                gone = _taken(writing, what, crawls, place, cell)
                put_back(writing, crawls[_number(place)], place, gone, rule)


def _cells(reading: Reading, after: bytes) -> Iterator[tuple[bytes, bytes]]:
    with reading.txn.cursor(db=reading.trees.captures) as cursor:
        if cursor.set_range(after):
            yield from cast(Iterator[tuple[bytes, bytes]], cursor)


def _number(place: bytes) -> int:
    return int.from_bytes(place[-NUMBER:], "big")


def _taken(
    reading: Reading, what: Chosen, crawls: dict[int, Crawl], place: bytes, cell: bytes
) -> list[bytes]:
    """The entries of a cell of a crawl that go."""
    target, key = what.target, place[:-NUMBER]
    if target.kind is Kind.CRAWL:
        name = crawls[_number(place)].name
        return list(entries_of(cell)) if name in target.texts else []
    if target.kind is not Kind.CONTAINER:
        if not what.may_hold(key):
            return []
        return [entry for entry in entries_of(cell) if what.takes(key, entry)]
    gone = []
    for entry in entries_of(cell):
        name = reading.file_of(container_of(entry))
        places = what.meaning(name) if name and entry[0] & 3 != NAMED else []
        if places:
            what.found.add(places[0])
            gone.append(entry)
    return gone
