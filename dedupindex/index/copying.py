"""An index copied to another engine, capture by capture: from a directory to a cluster and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from dedupindex.errors import Damaged, IndexExists
from dedupindex.index import open_index
from dedupindex.index.cells import entries_of
from dedupindex.index.identity import Identity
from dedupindex.index.marks import bare
from dedupindex.index.protocol import Counts, Engine, Load, View
from dedupindex.index.runs import CHUNK, RunWriter
from dedupindex.index.settle import checksum


class Copied(NamedTuple):
    """What a copy holds, and the source held while it was read."""

    counts: Counts
    content: str  # the hash of all keys and cells, which does not depend on their order


def copy_to_engine(source: Engine, target: Path, engine: str) -> Copied:
    """Copy an index into a new one in a directory, on whatever engine; read back and compared.

    What only serves purging stays behind (`ledger`). Takes as much room in `target` as all captures
    do. Raises `IndexExists`, or `Damaged` if what was written is not what was read.
    """
    settings = source.identity.settings
    Identity(engine, settings, source.identity.canonicaliser).write(target)
    other = open_index(target, write=True)
    try:
        if other.identity.generation:
            raise IndexExists(f"there is an index at {engine}; name another")
        with source.view() as view, TemporaryDirectory(dir=target, prefix="copying-") as folder:
            writer = RunWriter(Path(folder), "copied")
            content = 0
            for staged, part in _staged(view):
                writer.extend(staged)
                content += part
            writer.flush()
            note = source.note()
            load = Load(
                writer.paths,
                list(view.places()),
                list(view.containers()),
                note={**note, "engine": engine} if "engine" in note else note,
                own_digests=view.own_digests(),
            )
            other.load(load)
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


def _staged(view: View) -> Iterator[tuple[list[bytes], int]]:
    """All entries of an index as a build stages them, and the checksum of the cells they are of."""
    staged: list[bytes] = []
    content = 0
    for key, cell in view.cells():
        content += checksum([(key, cell)])
        staged += [key + bare(entry) for entry in entries_of(cell)]
        if len(staged) >= CHUNK:
            yield staged, content
            staged, content = [], 0
    yield staged, content
