"""Reading a whole index on a cluster back: is what is stored what was written?"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from dedupindex.errors import Damaged
from dedupindex.index.answer_bytes import BROKEN
from dedupindex.index.byurl import listed
from dedupindex.index.cassandra_state import State
from dedupindex.index.cassandra_urls import AT_ONCE
from dedupindex.index.cassandra_view import CassandraView
from dedupindex.index.cells import answers, digest_of_key, digest_prefix, entries_of, unsealed
from dedupindex.index.settle import checksum


class Counted(NamedTuple):
    """What is there, all of it read."""

    captures: int
    digests: int
    containers: int
    checksum: int


def counted(view: CassandraView) -> Counted:
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
    return Counted(captures, digests, containers, total % (1 << 64))


def problems(view: CassandraView, state: State) -> list[str]:
    """What is wrong, in sentences: keys, entries, names and counts are all read back."""
    wrong: list[str] = []
    try:
        for number, place in view.places():
            if view.number_of(place) == 0:
                wrong.append(f"container number {number} is not found by its name")
        _entries(view, wrong)
        if view.by_url:
            _listed(view, wrong)
        found = counted(view)
    except (Damaged, *BROKEN) as error:
        return [*wrong, f"the index cannot be read to its end: {error!r}"]
    if found[:3] != (state.captures, state.digests, state.containers):
        wrong.append(
            f"{found.captures} captures of {found.digests} digests in {found.containers} "
            f"containers are there, {state.captures} of {state.digests} in {state.containers} "
            "were counted"
        )
    if found.checksum != state.checksum:
        wrong.append("what is stored is not what was written (its checksum is another)")
    return wrong


def _entries(view: CassandraView, wrong: list[str]) -> None:
    for key, stored in view.stored():
        try:
            for capture in view.decoded(key, unsealed(key, stored)):
                if view.keys.of(digest_of_key(key), capture.url) != key:
                    wrong.append(f"the entry under {key.hex()} belongs under another key")
        except (Damaged, *BROKEN) as error:
            wrong.append(f"the entry under {key.hex()} is damaged: {error}")


def _listed(view: CassandraView, wrong: list[str]) -> None:
    keys = (key for key, cell in view.unordered() if listed(cell))
    while some := list(islice(keys, AT_ONCE)):
        wrong += [f"{key.hex()} is not listed by its URL" for key in view.unlisted(some)]
