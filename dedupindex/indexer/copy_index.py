"""An index copied to another engine, capture by capture: from a directory to a cluster and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from shutil import rmtree
from typing import NamedTuple

from xxhash import xxh3_128_digest

from dedupindex.errors import Damaged, IndexExists
from dedupindex.index import open_index
from dedupindex.index.engine import Engine, IndexCounts, Load, View
from dedupindex.index.format.cells import entries_of
from dedupindex.index.format.tombstones import bare, container_in, with_container
from dedupindex.index.identity import Identity
from dedupindex.index.load.merge_rule import checksum
from dedupindex.index.load.runs import CHUNK, RunWriter

SCRATCH = "copying"  # in the target
_NAMES_KEPT = 100_000


class Copied(NamedTuple):
    """What a copy holds, and the source held while it was read."""

    counts: IndexCounts
    content: str  # the hash of all entries under their keys, with the names of containers


def copy_to_engine(
    source: Engine,
    target: Path,
    engine: str,
    before: Callable[[Load], None] = lambda load: None,
    *,
    again: bool = False,
) -> Copied:
    """Copy an index into a new one in a directory, on whatever engine; read back and compared.

    `before` is told of the load that makes the copy, as long as its runs are there. `again`: a copy
    to there has begun before and was not compared; if it was loaded, it is compared now.
    What only serves purging stays behind (`ledger`). Takes as much room in `target` as all captures
    do. Raises `IndexExists`, or `Damaged` if what was written is not what was read.
    """
    settings = source.identity.settings
    Identity(engine, settings, source.identity.canonicaliser).write(target)
    other = open_index(target, write=True)
    try:
        loaded = other.identity.generation > 0
        if loaded and not again:
            raise IndexExists(f"there is an index at {engine}; name another")
        scratch = target / SCRATCH
        rmtree(scratch, ignore_errors=True)  # of a copy that was killed
        scratch.mkdir()
        with source.view() as view:
            writer = RunWriter(scratch, "copied")
            content = 0
            for staged, part in _staged(view):
                writer.extend(staged)
                content += part
            writer.flush()
            load = _load(source, view, writer.paths, engine)
            before(load)
            if not loaded:
                other.load(load)
            rmtree(scratch)
            counts = view.counts()
        with other.view() as copied:
            found, written = copied.counts(), sum(part for _, part in _staged(copied))
    finally:
        other.close()
    if (found, written % (1 << 64)) != (counts, content % (1 << 64)):
        raise Damaged(
            f"the copy at {engine} is not what was read ({found.captures} captures of "
            f"{counts.captures}); was the index written to meanwhile? Remove the copy, try again"
        )
    return Copied(found, f"{content % (1 << 64):016x}")


def _load(source: Engine, view: View, runs: list[Path], engine: str) -> Load:
    """The load that makes the copy at `engine` of an index whose entries are in `runs`."""
    metadata = source.metadata()
    return Load(
        runs,
        list(view.places()),
        list(view.containers()),
        metadata={**metadata, "engine": engine} if "engine" in metadata else metadata,
        own_digests=view.own_digests(),
    )


def _staged(view: View) -> Iterator[tuple[list[bytes], int]]:
    """All entries of an index as a build stages them, and the sum of their hashes.

    Numbers of containers differ between a source and its copy: what is hashed are the names.
    Raises `Damaged` if a container has none.
    """
    staged: list[bytes] = []
    content = 0

    @lru_cache(_NAMES_KEPT)
    def named(number: int) -> bytes:
        try:
            place = view.place_of(number)
        except KeyError as error:
            raise Damaged(
                f"container number {number} has no name, so its captures cannot be copied; "
                "bin/index --check says what repairs the index"
            ) from error
        return xxh3_128_digest(f"{place.crawl}\0{place.container}".encode(errors="surrogateescape"))

    for key, cell in view.cells():
        entries = list(entries_of(cell))
        for entry in entries:
            number = container_in(entry)
            name = named(number) if number else b""
            if number:
                entry = entry[:1] + with_container(entry, 0) + name
            content += checksum([(key, entry)])
        staged += [key + bare(entry) for entry in entries]
        if len(staged) >= CHUNK:
            yield staged, content
            staged, content = [], 0
    yield staged, content
