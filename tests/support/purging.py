"""Indexes that are loaded and purged, for tests: with all captures that ever came in a list."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from dedupindex.capture import Capture, Evidence, RefersTo, Revisit
from dedupindex.index import open_index
from dedupindex.index.engine import IndexedContainer, Load
from dedupindex.index.format.cells import ContainerRef, encode, encode_revisit
from dedupindex.index.format.ledger import dependent
from dedupindex.index.identity import Identity, Settings
from dedupindex.index.load.runs import RunWriter

READ, UNREAD = 0, -1  # the offset of a mark says which it is


def begin(directory: Path, engine: str = "lmdb", chosen: Settings | None = None) -> Path:
    """An index of nothing."""
    index = directory / "index"
    index.mkdir(parents=True)
    Identity(engine, chosen or Settings()).write(index)
    load(index, [])
    return index


def load(
    index: Path,
    captures: list[Capture],
    revisits: list[Revisit] | None = None,
    replaced: Iterable[str] = (),
) -> None:
    """One load, as a build makes it: marks, captures, revisits that depend; files to replace."""
    directory = index.parent / "runs"
    directory.mkdir(exist_ok=True)
    with closing(open_index(index, write=True)) as engine:
        keys, places = engine.identity.settings.keys(), dict[ContainerRef, int]()
        after = engine.next_number()

        def number_of(one: Capture) -> int:
            place = ContainerRef(one.container, one.crawl)
            if place == ContainerRef(""):
                return 0
            if place not in places:
                places[place] = engine.number_of(place) or after + len(places)
            return places[place]

        staged = RunWriter(directory, "captures")
        ledger = RunWriter(directory, "revisits")
        for one in captures:
            mark = one.evidence is Evidence.REVISIT
            entry = (
                encode_revisit(one, read=one.offset == READ)
                if mark
                else encode(one, number_of(one))
            )
            staged.extend([keys.key_of(one.digest, one.url) + entry])
            for digest in one.also:
                staged.extend(
                    [keys.key_of(digest, one.url) + encode(one, number_of(one), also=True)]
                )
        for revisit in revisits or []:
            ledger.extend([dependent(revisit, keys, number_of(revisit.capture))])
        staged.flush()
        ledger.flush()
        containers = [
            IndexedContainer(place.container, 1, "", 1, place.crawl)
            for place in places
            if place.container.startswith("/")
        ]
        numbered = [(number, place) for place, number in places.items()]
        own = not any(one.also for one in captures)
        dropped = frozenset(replaced)
        engine.load(
            Load(staged.paths, numbered, containers, dropped, ledger=ledger.paths, own_digests=own)
        )
        for path in (*staged.paths, *ledger.paths):
            path.unlink()


def revisit_of(
    original: Capture, url: bytes, day: int, container: str = "/w/r.warc.gz", crawl: str = ""
) -> Revisit:
    """A revisit on a day of December 2026 that names a capture."""
    itself = original._replace(
        url=url,
        date=b"2026-12-%02dT00:00:00Z" % day,
        evidence=Evidence.REVISIT,
        container=container,
        crawl=crawl,
        size=-1,
    )
    return Revisit(itself, RefersTo(original.url, original.date))


def held(index: Path) -> list[tuple[str, Capture]]:
    """All that an index answers, and it is sound."""
    with closing(open_index(index)) as engine:
        assert engine.check() == []
        with engine.view() as view:
            found = [(str(digest), one) for digest, one in view.captures()]
            assert view.counts().captures == len(found)
        return sorted(found)
