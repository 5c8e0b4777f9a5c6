"""Which of the captures under one key stay: the rule that makes an index independent of order.

Of two captures of one URL and digest the earlier stays (or the later, if the index says so).
Within one second a record that was read beats a row of a CDX, a row beats what a revisit claims,
then the exact date, the container's name and the offset decide, so that any order of files and
processes ends in the same index.

A digest of a URL that was once seen as a revisit is remembered from that second on: what another
revisit names from then on is a revisit itself (a chain), and is never made an original. Because
the revisit may be seen last, a claim keeps what it beats in reserve: the best of what was read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from xxhash import xxh3_64_intdigest

from dedupindex.index.cells import (
    ALSO,
    BEFORE,
    DIGEST_KEY,
    SEVERAL,
    SPARE,
    Keys,
    cell_of,
    decode,
    entries_of,
    packed_url,
)
from dedupindex.index.runs import CHUNK

NAMED, REVISIT = 2, 3
CHAINED = "refers-to-revisit"  # the reason under which a claim of a chain is refused


@dataclass
class Outcome:
    """What became of incoming entries; entries under a further digest (ALSO) do not count."""

    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    chained: int = 0
    captures: int = field(default=0, compare=False)  # originals kept, all digests
    digests: int = field(default=0, compare=False)  # distinct, all algorithms
    checksum: int = field(default=0, compare=False)  # see `checksum`


@dataclass(frozen=True)
class Rule:
    """How an index settles: its key form, which end of time it keeps, and the names it knows."""

    keys: Keys
    latest: bool
    name_of: Callable[[int], str]

    def settle(self, key: bytes, entries: list[bytes], outcome: Outcome) -> bytes | None:
        """The cell that `entries` (those from before marked) leave under `key`, None for none."""
        revisits = [entry for entry in entries if entry[0] & 3 == REVISIT]
        since = min((entry[2:8] for entry in revisits), default=None)
        groups: dict[bytes, list[bytes]] = {}
        for entry in entries:
            if entry[0] & 3 != REVISIT:
                group = packed_url(entry) if self.keys.url else b""
                groups.setdefault(group, []).append(entry)
        kept = []
        if revisits:
            kept.append(_unmarked(min(revisits, key=lambda entry: (entry[2:8], _unmarked(entry)))))
        for _, rivals in sorted(groups.items()):
            kept += self._winner(key, rivals, since, outcome)
        return cell_of(kept) if kept else None

    def _winner(
        self, key: bytes, group: list[bytes], since: bytes | None, outcome: Outcome
    ) -> list[bytes]:
        """The entry of a URL that answers, and one in reserve if that is a claim."""
        alive = []
        for entry in group:
            if since is not None and entry[0] & 3 == NAMED and entry[2:8] >= since:
                outcome.chained += _counts(entry)
            else:
                alive.append(entry)
        if not alive:
            return []
        winner = self._best(key, alive)
        before = any(entry[1] & BEFORE for entry in alive)
        incoming = sum(_counts(entry) for entry in alive)
        if _counts(winner):
            incoming -= 1
            outcome.replaced += before
            outcome.added += not before
        outcome.unchanged += incoming
        outcome.captures += 1
        seen = [entry for entry in alive if entry[0] & 3 != NAMED]
        if winner[0] & 3 != NAMED or not seen:
            return [_unmarked(winner)]
        spare = _unmarked(self._best(key, seen))
        return [_unmarked(winner), b"%c%b" % (spare[0] | SPARE, spare[1:])]

    def _best(self, key: bytes, entries: list[bytes]) -> bytes:
        best = entries[0]
        for entry in entries[1:]:
            if self._better(key, entry, best):
                best = entry
        return best

    def _better(self, key: bytes, entry: bytes, other: bytes) -> bool:
        if entry[2:8] != other[2:8]:
            return (entry[2:8] < other[2:8]) is not self.latest
        if entry[0] & 3 != other[0] & 3:
            return entry[0] & 3 < other[0] & 3
        date, *order = self._order(key, entry)
        other_date, *other_order = self._order(key, other)
        if date != other_date:
            return (date < other_date) is not self.latest
        return order < other_order

    def _order(self, key: bytes, entry: bytes) -> tuple[bytes, str, int, bytes, bool]:
        """Decides within a second: by fraction, place, content; what is there already wins a tie.

        The container's number is no content: it depends on the order in which names came.
        """
        capture = decode(key, _unmarked(entry), self.name_of)
        place = capture.offset if capture.offset >= 0 else 1 << 62
        body = _unmarked(entry)
        body = body[:17] + body[21:]
        fresh = not entry[1] & BEFORE
        return capture.date[:-1], capture.container or "\U0010ffff", place, body, fresh


def mark_before(cell: bytes) -> list[bytes]:
    """The entries of a cell that is in the index, marked so."""
    if cell[0] != SEVERAL:
        return [b"%c%c%b" % (cell[0], cell[1] | BEFORE, cell[2:])]
    return [
        b"%c%c%b" % (entry[0] & ~SPARE, entry[1] | BEFORE, entry[2:]) for entry in entries_of(cell)
    ]


def _unmarked(entry: bytes) -> bytes:
    return b"%c%c%b" % (entry[0], entry[1] & ~BEFORE, entry[2:]) if entry[1] & BEFORE else entry


def _counts(entry: bytes) -> int:
    """1 for an entry that stands for a record of this run."""
    return not entry[1] & (ALSO | BEFORE)


Cells = list[tuple[bytes, bytes]]


def checksum(cells: Iterable[tuple[bytes, bytes]]) -> int:
    """The sum of the cells' hashes: it follows every change, and any order gives the same.

    Kept modulo 2**64 with an index, it proves that what is read back is what was stored.
    """
    return sum(map(xxh3_64_intdigest, map(b"".join, cells)))


def settled(batches: Iterable[list[bytes]], rule: Rule, outcome: Outcome) -> Iterator[Cells]:
    """Keys and cells, in order, of all staged entries, which come in order.

    The loop runs once for every capture of an index, so what is nearly always the case, one entry
    under a key, is decided here and not in `Rule.settle`.
    """
    lengths = rule.keys.lengths()
    key, digest, group = b"", b"", list[bytes]()
    for batch in batches:
        cells: Cells = []
        for staged in batch:
            length = lengths[staged[0]]
            if staged[:length] == key:
                group.append(staged[length:])
                continue
            if group:
                digest = _close(key, group, digest, rule, outcome, cells)
            key, group = staged[:length], [staged[length:]]
        outcome.checksum += checksum(cells)
        yield cells
    if group:
        cells = []
        _close(key, group, digest, rule, outcome, cells)
        outcome.checksum += checksum(cells)
        yield cells


def _close(
    key: bytes, group: list[bytes], digest: bytes, rule: Rule, outcome: Outcome, cells: Cells
) -> bytes:
    """Settle the entries under one key; returns the digest last counted."""
    entry = group[0]
    if len(group) == 1 and entry[0] & 3 != REVISIT:
        mark = entry[1]
        if mark & BEFORE:
            entry = _unmarked(entry)
        elif not mark & ALSO:
            outcome.added += 1
        outcome.captures += 1
        cells.append((key, entry))
    else:
        held = outcome.captures
        cell = rule.settle(key, group, outcome)
        if cell is not None:
            cells.append((key, cell))
        if outcome.captures == held:
            return digest
    if not key.startswith(digest) or not digest:
        digest = key[: DIGEST_KEY[key[0]]]
        outcome.digests += 1
    return digest


def staged_again(cells: Iterable[tuple[bytes, bytes]], gone: set[int]) -> Iterator[list[bytes]]:
    """Stored cells as sorted chunks of staged entries, without those of containers `gone`."""
    chunk: list[bytes] = []
    for key, cell in cells:
        for entry in mark_before(cell):
            if gone and entry[0] & 3 != REVISIT and _CONTAINER.unpack_from(entry, 17)[0] in gone:
                continue
            chunk.append(key + entry)
        if len(chunk) >= CHUNK:
            chunk.sort()
            yield chunk
            chunk = []
    if chunk:
        chunk.sort()
        yield chunk


_CONTAINER = struct.Struct(">I")
