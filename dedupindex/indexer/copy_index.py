"""Copy an index to another engine, entry by entry: from a directory to a cluster and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple

from xxhash import xxh3_128_digest

from dedupindex.counts import OnProgress, silent
from dedupindex.errors import Damaged, IndexExists
from dedupindex.index import open_index
from dedupindex.index.engine import Engine, IndexCounts, Load, View
from dedupindex.index.format.cells import container_of, entries_of, strip_flags, with_container
from dedupindex.index.identity import Identity
from dedupindex.index.load.merge_rule import checksum
from dedupindex.index.load.runs import CHUNK, RunWriter
from dedupindex.runtime.progress import watched

SCRATCH = "copying"  # in the target
_NAMES_KEPT = 100_000


class Copied(NamedTuple):
    """The content of a copy, which is that of its source."""

    counts: IndexCounts
    content: str  # hash of all keys and entries, with the names of containers


def copy_to_engine(
    source: Engine,
    target: Path,
    engine: str,
    before: Callable[[Load], None] = lambda load: None,
    on_progress: OnProgress = silent,
    *,
    again: bool = False,
) -> Copied:
    """Copy an index to a new index with its directory at `target`, read it back and compare.

    `before` is called with the load of the copy while its runs exist. With `again`, a copy that was
    interrupted is completed; one that was loaded is only compared. The ledger is copied, without
    visits to a cluster. `target` needs as much free space as all captures take. Raises
    `IndexExists`, or `Damaged` if source and copy differ.
    """
    settings = source.identity.settings
    Identity(engine, settings, source.identity.canonicaliser).write(target)
    with closing(open_index(target, write=True)) as other:
        loaded = other.identity.generation > 0
        if loaded and not again:
            raise IndexExists(f"there is an index at {engine}; name another")
        scratch = target / SCRATCH
        rmtree(scratch, ignore_errors=True)  # of an interrupted copy
        scratch.mkdir()
        with source.view() as view:
            signature = source.metadata()
            if "engine" in signature:
                signature["engine"] = engine
            load, content = _load_of(view, signature, scratch, on_progress)
            gap = bool(source.ledger_gap())
            load = load._replace(ledger_lacks=gap, purges=source.purges())
            before(load)
            if not loaded:
                other.load(load)
            rmtree(scratch)
            counts = view.counts()
        with other.view() as copied:
            reading = _staged(copied, "comparing", on_progress)
            found, written = copied.counts(), sum(part for _, part in reading)
    if (found, written % (1 << 64)) != (counts, content % (1 << 64)):
        raise Damaged(
            f"the copy at {engine} is not what was read ({found.captures:,} captures of "
            f"{counts.captures:,}); was the index written to meanwhile? Remove the copy, try again"
        )
    return Copied(found, f"{content % (1 << 64):016x}")


def _load_of(
    view: View, metadata: dict[str, Any], scratch: Path, on_progress: OnProgress
) -> tuple[Load, int]:
    """Return the load of all entries of an index, and the sum of their checksums."""
    writer, content = RunWriter(scratch, "copied"), 0
    for staged, checksum_of_chunk in _staged(view, "reading", on_progress):
        writer.extend(staged)
        content += checksum_of_chunk
    writer.flush()
    ledger = RunWriter(scratch, "ledger")
    for item in view.ledger_by_digest():
        ledger.extend([item])
    ledger.flush()
    places, containers = list(view.places()), list(view.containers())
    own = view.own_digests()
    load = Load(
        writer.paths, places, containers, metadata=metadata, ledger=ledger.paths, own_digests=own,
        on_progress=on_progress, entries=view.counts().captures,
    )  # fmt: skip
    return load, content


def _staged(view: View, phase: str, on_progress: OnProgress) -> Iterator[tuple[list[bytes], int]]:
    """Yield the entries of an index in chunks as a build stages them, with a checksum of each.

    Checksums cover the names, not the numbers, of containers; raises `Damaged` if one has none.
    """
    staged: list[bytes] = []
    content = 0

    @lru_cache(_NAMES_KEPT)
    def name_hash(number: int) -> bytes:
        try:
            place = view.place_of(number)
        except KeyError as error:
            raise Damaged(
                f"container number {number} has no name, so its captures cannot be copied; "
                "bin/index --check says what repairs the index"
            ) from error
        return xxh3_128_digest(f"{place.crawl}\0{place.container}".encode(errors="surrogateescape"))

    for key, cell in watched(view.cells(), phase, view.counts().captures, on_progress):
        entries = list(entries_of(cell))
        for entry in entries:
            number = container_of(entry)
            name = name_hash(number) if number else b""
            if number:
                entry = with_container(entry, 0) + name
            content += checksum([(key, entry)])
        staged += [key + strip_flags(entry) for entry in entries]
        if len(staged) >= CHUNK:
            yield staged, content
            staged, content = [], 0
    yield staged, content
