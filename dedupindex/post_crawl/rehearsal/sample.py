"""Some revisits of a result, chosen at random, made into the records that they stand for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

from dedupindex.post_crawl.rehearsal.rehearsal_steps import Step
from dedupindex.post_crawl.rewrite.journal import JournalEntry, entries, journals
from dedupindex.post_crawl.rewrite.revisit_record import END
from dedupindex.verify.issues import Broken
from dedupindex.verify.sample import Sample


class SampledRevisit(NamedTuple):
    """A revisit, and what its journal says of it."""

    path: Path
    entry: JournalEntry


def rebuild(step: Step, folder: Path, size: int, seed: int, beside: Path) -> list[SampledRevisit]:
    """Rebuild `size` revisits below `folder`, which are returned.

    Originals are found as replay tools do, by URL and date. With the header that was there each
    must be the record that was dropped, by its SHA-256.
    """
    chosen = _chosen(folder, size, Random(seed))
    with TemporaryDirectory(prefix=".sample-", dir=beside) as name:
        sample = Sample([folder], Path(name))
        for one in chosen:
            running = hashlib.sha256(one.entry.header.encode("latin-1"))
            try:
                for piece in sample.block(one.path, one.entry.new_offset):
                    running.update(piece)
            except Broken as broken:
                step.fail(f"{one.path} at {one.entry.new_offset}: {broken}")
                continue
            running.update(END)
            if running.hexdigest() != one.entry.sha256:
                step.fail(f"{one.path} at {one.entry.new_offset}: it is not the record that was")
    step.numbers["sample"] = len(chosen)
    return chosen


def _chosen(folder: Path, size: int, random: Random) -> list[SampledRevisit]:
    """So many of all revisits, each with the same chance, without holding all."""
    held: list[SampledRevisit] = []
    for number, one in enumerate(_all(folder)):
        if len(held) < size:
            held.append(one)
        elif (at := random.randrange(number + 1)) < size:
            held[at] = one
    return sorted(held, key=lambda one: (str(one.path), one.entry.new_offset))


def _all(folder: Path) -> Iterator[SampledRevisit]:
    for journal in journals(folder):
        path = folder / journal.summary()[0].name
        for entry in entries(journal.lines):
            yield SampledRevisit(path, entry)
