"""What is left under one key when entries go, settled as a load will settle it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dedupindex.index.format.cells import (
    NOWHERE,
    SIZE_IN_EXTRAS,
    UNKNOWN_SIZE,
    ContainerRef,
    answers,
    decode,
    entries_of,
    packed_url,
)
from dedupindex.index.format.tombstones import REVISIT, ROW, Tombstones, bare, encode_purged
from dedupindex.index.identity import Settings
from dedupindex.index.load.merge_rule import MergeOutcome, MergeRule, mark_before

OF_RECORD = 32  # in an entry's flags: its size is that of the record


class Purged(NamedTuple):
    """One key without what goes."""

    staged: list[bytes]  # what a load must bring: marks of what goes, and copies that stay
    answering: list[bytes]  # entries that will answer, one for a URL
    seconds: set[tuple[bytes, bytes]]  # second and packed URL of all captures that stay


class Settling:
    """The rule of an index, which knows its places."""

    def __init__(self, settings: Settings, place_of: Callable[[int], ContainerRef]) -> None:
        self._place_of = place_of
        self._rule = MergeRule(settings.keys(), settings.keep == "latest", self.place_of)

    def place_of(self, number: int) -> ContainerRef:
        """What a container number stands for, 0 for nothing."""
        return self._place_of(number) if number else NOWHERE

    def told(self, known: list[bytes], taken: set[bytes]) -> set[bytes]:
        """The rows under a key that may tell of records that are taken out of their containers."""
        marks = Tombstones.among([encode_purged(entry, anywhere=False) for entry in taken])
        rows = {entry for entry in known if entry[0] & 3 == ROW} - taken
        return {entry for entry in rows if marks.is_purged(entry, self.place_of)}

    def purged(
        self, key: bytes, cell: bytes, copies: list[bytes], taken: set[bytes], told: set[bytes],
        *, anywhere: bool,
    ) -> Purged:  # fmt: skip
        """What is under `key` when `taken` has gone from its cell and from the ledger's copies.

        `told` goes with it, and comes back when what it tells of does: so there are marks of
        `taken` only.
        """
        marks, gone = {encode_purged(entry, anywhere=anywhere) for entry in taken}, taken | told
        stay = [entry for entry in copies if entry not in gone]
        settled = self._rule.settle(key, [*mark_before(cell), *marks, *stay], MergeOutcome())
        left = list(entries_of(settled)) if settled else []
        held = {bare(entry) for entry in [*entries_of(cell), *stay] if entry[0] & 3 != REVISIT}
        return Purged(
            [*marks, *stay],
            [entry for entry in left if answers(entry)],
            {(entry[2:8], packed_url(entry)) for entry in held - gone},
        )


def size_of(key: bytes, entry: bytes) -> int:
    """Bytes of payload of an entry's capture, -1 unknown."""
    size = int.from_bytes(entry[8:12], "big")
    if entry[0] & OF_RECORD or size == UNKNOWN_SIZE:
        return -1
    return size if size < SIZE_IN_EXTRAS else decode(key, entry, lambda number: NOWHERE).size
