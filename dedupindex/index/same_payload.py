"""All that an index knows of a payload: the captures that store it, and the revisits of them.

Lookups read only the captures that answer. The copies, which lost to another capture of their URL
and digest, and the revisits that were read are in the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from dedupindex.capture import Capture
from dedupindex.digest import Digest
from dedupindex.index.engine import Engine, View
from dedupindex.index.format import cells
from dedupindex.index.format.cells import ContainerRef, Keys
from dedupindex.index.format.ledger import Dependent, split_items
from dedupindex.index.format.packing import pack
from dedupindex.index.format.tombstones import NAMED, REVISIT, ROW, Tombstones


class RevisitOf(NamedTuple):
    """A revisit that was read, and where it is."""

    revisit: Dependent
    place: ContainerRef


class SamePayload(NamedTuple):
    """What an index knows of a payload, in the order of dates."""

    captures: list[Capture]
    originals: set[int]  # positions of those captures that answer lookups
    revisits: list[RevisitOf]
    more: bool  # there is more than was read


def of_digest(engine: Engine, digest: Digest, most: int) -> SamePayload:
    """Return at most `most` captures and revisits that an index has of a digest."""
    captures: list[tuple[bytes, bool, Capture]] = []
    found: list[RevisitOf] = []
    with engine.view() as view:

        def place_of(number: int) -> ContainerRef:
            return view.place_of(number) if number else cells.NOWHERE

        prefix, more = cells.digest_prefix(digest), False
        for key, cell, ledger in by_key(view, engine.identity.settings.keys(), prefix):
            if len(captures) + len(found) >= most:
                more = True
                break
            entries = cells.entries_of(cell) if cell else ()
            answering = set(map(cells.strip_flags, filter(cells.answers, entries)))
            for entry in stored(cell, ledger[:most], place_of):
                capture = cells.decode(key, entry, place_of)
                captures.append((capture.date, entry not in answering, capture))
            for revisit in revisits(ledger[:most]):
                found.append(RevisitOf(revisit, place_of(revisit.container)))
            more = more or len(ledger) > most
    captures.sort(key=itemgetter(0, 1))
    found.sort(key=lambda one: one.revisit.date)
    return SamePayload(
        [capture for _, _, capture in captures],
        {place for place, (_, beaten, _) in enumerate(captures) if not beaten},
        found,
        more,
    )


def by_key(
    view: View, keys: Keys, prefix: bytes = b""
) -> Iterator[tuple[bytes, bytes, list[bytes]]]:
    """Yield the keys with a prefix, in order, their cells (or b"") and what the ledger has."""
    held = ((key, 0, cell) for key, cell in view.cells(prefix))
    known = ((key, 1, body) for key, body in split_items(view.ledger(prefix), keys))
    for key, found in groupby(merge(held, known), key=itemgetter(0)):
        cell, ledger = b"", list[bytes]()
        for _, is_ledger, body in found:
            if is_ledger:
                ledger.append(body)
            else:
                cell = body
        yield key, cell, ledger


def _one_group(container: int) -> object:
    """Let captures of all files be of one group."""


def stored(
    cell: bytes,
    ledger: list[bytes],
    place_of: Callable[[int], ContainerRef],
    group_of: Callable[[int], object] = _one_group,
) -> Iterator[bytes]:
    """Yield the captures under a key, each once: a record may also be listed by a CDX file.

    Those of one URL and second are one, unless `group_of` returns different groups for the numbers
    of their files. Left out are captures that only a revisit names, unless they answer, rows of
    records that were read and refused, and captures that are stored under a further digest.
    """
    entries = list(cells.entries_of(cell)) if cell else []
    if len(entries) == 1 and not ledger:  # nearly always
        if cells.answers(entries[0]) and not entries[0][1] & cells.ALSO:
            yield entries[0]
        return
    tombstones = Tombstones.among(entries)
    seen: set[tuple[bytes, bytes, object]] = set()
    entries.sort(key=cells.answers, reverse=True)
    for entry in (*entries, *(body for body in ledger if body[0] != cells.DEPENDENT)):
        if entry[0] & 3 == REVISIT or entry[1] & cells.ALSO:
            continue
        beaten = not cells.answers(entry) or entry not in entries
        if beaten and (_is_unproven(entry, tombstones) or tombstones.is_purged(entry, place_of)):
            continue
        capture = entry[2:8], cells.packed_url(entry), group_of(cells.container_of(entry))
        if capture not in seen:
            seen.add(capture)
            yield cells.strip_flags(entry)


def _is_unproven(entry: bytes, tombstones: Tombstones) -> bool:
    """Return whether only a revisit names a capture, or it is a row whose record was refused.

    Such a row stays in reserve, as it counts again if the file of that record is dropped.
    """
    kind = entry[0] & 3
    return kind == NAMED or (kind == ROW and tombstones.refutes(entry))


def revisits(
    ledger: list[bytes], group_of: Callable[[int], object] = _one_group
) -> Iterator[Dependent]:
    """Yield the revisits under a key, each once: it is also in a log, or in a copy of its file.

    `group_of` is as in `stored`. One is refused if any of its records or rows, in its group, states
    what the index refuses.
    """
    seen: dict[tuple[bytes, bytes, object], Dependent] = {}
    for body in ledger:
        if body[0] == cells.DEPENDENT:
            dependent = Dependent.of(body)
            revisit = dependent.date, pack(dependent.url), group_of(dependent.container)
            if revisit not in seen or (dependent.refused and not seen[revisit].refused):
                seen[revisit] = dependent
    yield from seen.values()
