"""Reading a whole index on a cluster back: is what is stored what was written?"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from dedupindex.errors import Damaged
from dedupindex.index.engines.cassandra.cassandra_urls import AT_ONCE
from dedupindex.index.engines.cassandra.cassandra_view import CassandraView
from dedupindex.index.engines.cassandra.metadata import IndexState
from dedupindex.index.format.cells import (
    answers,
    digest_of_key,
    digest_prefix,
    entries_of,
    unsealed,
)
from dedupindex.index.format.fast_answer import BROKEN
from dedupindex.index.format.tombstones import container_in
from dedupindex.index.format.url_index import listed
from dedupindex.index.load.merge_rule import checksum
from dedupindex.index.repair import reread_all


class CellTotals(NamedTuple):
    """What is there, all of it read."""

    captures: int
    digests: int
    containers: int
    checksum: int


def counted(view: CassandraView) -> CellTotals:
    """Count what is there."""
    captures, digests, total, last = 0, 0, 0, b""
    for key, cell in view.unordered():
        total += checksum([(key, cell)])
        found = sum(map(answers, entries_of(cell)))
        captures += found
        start = digest_prefix(digest_of_key(key))
        if found and start != last:  # all of a digest come together
            digests, last = digests + 1, start
    containers = sum(1 for _ in view.registrations())
    return CellTotals(captures, digests, containers, total % (1 << 64))


def problems(view: CassandraView, state: IndexState, address: str, *, loading: bool) -> list[str]:
    """What is wrong, in sentences: keys, entries, names and counts are all read back.

    `loading`: whether a load has begun and not finished, so that counts are not made yet.
    """
    wrong: list[str] = []
    try:
        if astray := sum(view.number_of(place) == 0 for _, place in view.places()):
            wrong.append(
                f"{astray:,} containers are not found by their names; read their files again: "
                f"{'; '.join(reread_all(view, address))}"
            )
        if lost := _entries(view, wrong):
            wrong.append(
                f"{lost:,} captures are of containers whose names are lost, and lookups of them "
                f"fail; read their files again: {'; '.join(reread_all(view, address))}"
            )
        if view.by_url:
            _listed(view, wrong)
        found = counted(view)
    except (Damaged, *BROKEN) as error:
        return [*wrong, f"the index cannot be read to its end: {error!r}"]
    if loading:
        return [
            *wrong,
            "a load is going on, or was interrupted: if none is going on, run its command again",
        ]
    if found[:3] != (state.captures, state.digests, state.containers):
        wrong.append(
            f"{found.captures} captures of {found.digests} digests in {found.containers} "
            f"containers are there, {state.captures} of {state.digests} in {state.containers} "
            "were counted"
        )
    if found.checksum != state.checksum:
        wrong.append("what is stored is not what was written (its checksum is another)")
    return wrong


def _entries(view: CassandraView, wrong: list[str]) -> int:
    """Check all entries; how many are of containers that have no name."""
    unnamed, lost = set[int](), 0
    for key, stored in view.stored():
        try:
            cell = unsealed(key, stored)
            numbers = {container_in(entry) for entry in entries_of(cell)} - {0}
            unnamed.update(number for number in numbers if not _named(view, number, unnamed))
            if not unnamed.isdisjoint(numbers):
                lost += 1
                continue
            for capture in view.decoded(key, cell):
                if view.keys.of(digest_of_key(key), capture.url) != key:
                    wrong.append(f"the entry under {key.hex()} belongs under another key")
        except (Damaged, *BROKEN) as error:
            wrong.append(f"the entry under {key.hex()} is damaged: {error}")
    return lost


def _named(view: CassandraView, number: int, unnamed: set[int]) -> bool:
    try:
        return number not in unnamed and view.place_of(number) is not None
    except KeyError:
        return False


def _listed(view: CassandraView, wrong: list[str]) -> None:
    keys = (key for key, cell in view.unordered() if listed(cell))
    while some := list(islice(keys, AT_ONCE)):
        wrong += [f"{key.hex()} is not listed by its URL" for key in view.unlisted(some)]
