"""Indexes for tests that load and purge, from lists of captures."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from dedupindex.capture import Capture, Evidence, RefersTo, Revisit
from dedupindex.index import open_index
from dedupindex.index.engine import IndexedContainer, Load
from dedupindex.index.format.cells import ContainerRef, encode, encode_revisit
from dedupindex.index.format.file_names import is_whole
from dedupindex.index.format.ledger import dependent
from dedupindex.index.identity import Identity, Settings
from dedupindex.index.load.runs import RunWriter

READ, UNREAD = 0, -1  # the offset of the capture of a revisit: whether its record was read


def begin(directory: Path, engine: str = "lmdb", settings: Settings | None = None) -> Path:
    """Make an empty index."""
    index = directory / "index"
    index.mkdir(parents=True)
    Identity(engine, settings or Settings()).write(index)
    load(index, [])
    return index


def load(
    index: Path,
    captures: list[Capture],
    revisits: list[Revisit] | None = None,
    replaced: Iterable[str] = (),
) -> None:
    """Load captures, claims of revisits and dependents, as a build does; files to replace."""
    directory = index.parent / "runs"
    directory.mkdir(exist_ok=True)
    with closing(open_index(index, write=True)) as engine:
        keys, places = engine.identity.settings.keys(), dict[ContainerRef, int]()
        next_number = engine.next_number()

        def number_of(capture: Capture) -> int:
            place = ContainerRef(capture.container, capture.crawl)
            if place == ContainerRef(""):
                return 0
            if place not in places:
                places[place] = engine.number_of(place) or next_number + len(places)
            return places[place]

        staged = RunWriter(directory, "captures")
        ledger = RunWriter(directory, "revisits")
        for capture in captures:
            is_revisit = capture.evidence is Evidence.REVISIT
            entry = (
                encode_revisit(capture, read=capture.offset == READ)
                if is_revisit
                else encode(capture, number_of(capture))
            )
            staged.extend([keys.key_of(capture.digest, capture.url) + entry])
            for digest in capture.also:
                staged.extend(
                    [
                        keys.key_of(digest, capture.url)
                        + encode(capture, number_of(capture), also=True)
                    ]
                )
        for revisit in revisits or []:
            ledger.extend([dependent(revisit, keys, number_of(revisit.capture))])
        staged.flush()
        ledger.flush()
        containers = [
            IndexedContainer(place.container, 1, "", 1, place.crawl)
            for place in places
            if is_whole(place.container)
        ]
        numbers = [(number, place) for place, number in places.items()]
        own_digests = not any(capture.also for capture in captures)
        replaced_names = frozenset(replaced)
        engine.load(
            Load(
                staged.paths,
                numbers,
                containers,
                replaced_names,
                ledger=ledger.paths,
                own_digests=own_digests,
            )
        )
        for path in (*staged.paths, *ledger.paths):
            path.unlink()


def revisit_of(
    original: Capture, url: bytes, day: int, container: str = "/w/r.warc.gz", crawl: str = ""
) -> Revisit:
    """A revisit on a day of December 2026 that names a capture."""
    capture = original._replace(
        url=url,
        date=b"2026-12-%02dT00:00:00Z" % day,
        evidence=Evidence.REVISIT,
        container=container,
        crawl=crawl,
        size=-1,
    )
    return Revisit(capture, RefersTo(original.url, original.date))


def held(index: Path) -> list[tuple[str, Capture]]:
    """Check an index, and return all its captures."""
    with closing(open_index(index)) as engine:
        assert engine.check() == []
        with engine.view() as view:
            captures = [(str(digest), capture) for digest, capture in view.captures()]
            assert view.counts().captures == len(captures)
        return sorted(captures)
