"""Which of the captures under one key stay: the rule that makes an index independent of order.

Of two captures of one URL and digest the earlier stays (or the later, if the index says so).
Within one second a record that was read beats a row of a CDX, a row beats what a revisit claims,
then the exact date, the container's name, the offset and the crawl decide, so that any order of
files and processes ends in the same index. Where the later stays, what was read or stands in a row
beats every claim, and of claims the earliest is the one that counts.

A digest of a URL that was once seen as a revisit, or as a record that was refused, is remembered:

- what a revisit names from that second on is no original either (a chain), unless it names by its
  id a record that was read as an original;
- a row of exactly that second is refuted if the record was read: its word is better than a row's.

Of such seconds the `marks.MARKS` earliest are kept. When there are so many, rows from the last of
them on are refuted too: what is not kept may refute them, and the order must not matter.

What was purged is remembered likewise, and refused when it comes again.

Of the rows under a key only the best counts, refuted or not. What may fall later is thus one row
and one claim, and what they beat stays in reserve behind them (`SPARE`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cmp_to_key

from xxhash import xxh3_64_intdigest

from dedupindex.index.format.cells import (
    ALSO,
    BEFORE,
    DIGEST_KEY,
    SEVERAL,
    SPARE,
    ContainerRef,
    Keys,
    cell_of,
    decode,
    entries_of,
    packed_url,
)
from dedupindex.index.format.tombstones import (
    NAMED,
    RECORD,
    REVISIT,
    Marks,
    bare,
    lives_in,
    unmarked,
)
from dedupindex.index.load.runs import CHUNK

CHAINED = "refers-to-revisit"  # the reason under which a claim of a chain is refused
CONTRADICTED = "contradicted"  # and a row that a record refutes
PURGED = "purged"  # and what was taken out of the index before


@dataclass
class MergeOutcome:
    """What became of incoming entries; entries under a further digest (ALSO) do not count."""

    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    chained: int = 0
    contradicted: int = 0
    purged: int = 0
    captures: int = field(default=0, compare=False)  # originals kept, all digests
    digests: int = field(default=0, compare=False)  # distinct, all algorithms
    checksum: int = field(default=0, compare=False)  # see `checksum`
    lost: list[bytes] = field(default_factory=list, compare=False)  # staged, for `ledger`


@dataclass(frozen=True)
class MergeRule:
    """How an index settles: its key form, which end of time it keeps, and the places it knows."""

    keys: Keys
    latest: bool
    place_of: Callable[[int], ContainerRef]

    def settle(self, key: bytes, entries: list[bytes], outcome: MergeOutcome) -> bytes | None:
        """The cell that `entries` (those from before marked) leave under `key`, None for none."""
        marks = Marks.of(entries)
        groups: dict[bytes, list[bytes]] = {}
        for entry in entries:
            if entry[0] & 3 == REVISIT:
                continue
            if marks.gone and marks.purged(entry, self.place_of):
                outcome.purged += _counts(entry)
            else:
                group = packed_url(entry) if self.keys.url else b""
                groups.setdefault(group, []).append(entry)
        kept = list(marks.entries)
        for _, rivals in sorted(groups.items()):
            kept += self._stay(key, rivals, marks, outcome)
        return cell_of(kept) if kept else None

    def _stay(
        self, key: bytes, group: list[bytes], marks: Marks, outcome: MergeOutcome
    ) -> list[bytes]:
        """Of the entries of a URL the one that answers, and behind it those in reserve."""
        kinds: tuple[list[bytes], ...] = [], [], []
        for entry in group:
            kinds[entry[0] & 3].append(entry)
        records, rows, claims = kinds
        row = self._best(key, rows)
        refuted = bool(row) and marks.refute(row[0])
        sound = [] if refuted else [entry for entry in rows if not marks.refute(entry)]
        unchained = self._unchained(key, claims, records, marks)
        outcome.contradicted += _fresh(rows) - _fresh(sound)
        outcome.chained += _fresh(claims) - _fresh(unchained)
        record, claim = self._best(key, records), self._best(key, unchained)
        if record and row and self._better(key, record[0], row[0]):
            row = []
        order = self._sorted(key, record + ([] if refuted else row) + claim)
        if order:
            _count(order[0], records + sound + unchained, outcome)
        kept: list[bytes] = []
        for entry in order:
            if kept and not self.latest and entry[0] & 3 == NAMED:
                break  # the row before it falls only with it
            kept.append(entry)
            if entry[0] & 3 == RECORD:
                break  # and this never
        if refuted:
            kept += row
        if len(kept) < len(group):
            outcome.lost += _lost(key, records + rows, unchained, kept)
        return [
            b"%c%b" % (body[0] | (SPARE if number or not order else 0), body[1:])
            for number, body in enumerate(map(unmarked, kept))
        ]

    def _unchained(
        self, key: bytes, claims: list[bytes], records: list[bytes], marks: Marks
    ) -> list[bytes]:
        """The claims that name no revisit.

        A claim that names a record which was read, by its id and second, is none of a chain,
        whatever revisits of that URL others stored before. The record itself beats the claim, so
        what stays is the same with it or without.
        """
        sound = [entry for entry in claims if not marks.chain(entry)]
        if len(sound) == len(claims) or not records:
            return sound
        read = {self._name(key, entry) for entry in records} - {None}
        return [
            entry for entry in claims if not marks.chain(entry) or self._name(key, entry) in read
        ]

    def _name(self, key: bytes, entry: bytes) -> tuple[bytes, bytes] | None:
        """The second and the record id of an entry, None if it has no id."""
        record_id = decode(key, unmarked(entry), self.place_of).record_id
        return (entry[2:8], record_id) if record_id else None

    def _best(self, key: bytes, entries: list[bytes]) -> list[bytes]:
        """The best of `entries`, alone; none of none."""
        return self._sorted(key, entries)[:1] if len(entries) > 1 else entries

    def _sorted(self, key: bytes, entries: list[bytes]) -> list[bytes]:
        if len(entries) < 2:
            return entries

        def compare(one: bytes, other: bytes) -> int:
            return self._better(key, other, one) - self._better(key, one, other)

        return sorted(entries, key=cmp_to_key(compare))

    def _better(self, key: bytes, entry: bytes, other: bytes) -> bool:
        kind, other_kind = entry[0] & 3, other[0] & 3
        latest = self.latest
        if latest and NAMED in (kind, other_kind):
            if kind != other_kind:
                return kind < other_kind
            latest = False
        if entry[2:8] != other[2:8]:
            return (entry[2:8] < other[2:8]) is not latest
        if kind != other_kind:
            return kind < other_kind
        date, *order = self._order(key, entry)
        other_date, *other_order = self._order(key, other)
        if date != other_date:
            return (date < other_date) is not latest
        return order < other_order

    def _order(self, key: bytes, entry: bytes) -> tuple[bytes, str, int, bytes, str, bool]:
        """Decides within a second: by fraction, place, content; what is there already wins a tie.

        The container's number is no content: it depends on the order in which names came.
        """
        capture = decode(key, unmarked(entry), self.place_of)
        place = capture.offset if capture.offset >= 0 else 1 << 62
        body = unmarked(entry)
        body = body[:17] + body[21:]
        fresh = not entry[1] & BEFORE
        last = "\U0010ffff"
        crawl = capture.crawl or last
        return capture.date[:-1], capture.container or last, place, body, crawl, fresh


def _lost(
    key: bytes, stored: list[bytes], claims: list[bytes], kept: list[bytes]
) -> Iterator[bytes]:
    """Staged, what would stay if others had not come: further copies, and claims of others.

    A claim that names one of the others, kept or not, says nothing that those do not.
    """
    held = set(map(bare, kept))
    for entry in map(bare, stored):
        if entry not in held:
            yield key + entry
    seconds = {entry[2:8] for entry in stored + kept} if claims else set()
    for entry in map(bare, claims):
        if entry[2:8] not in seconds:
            yield key + entry


def mark_before(cell: bytes) -> list[bytes]:
    """The entries of a cell that is in the index, marked so."""
    if cell[0] != SEVERAL:
        return [b"%c%c%b" % (cell[0], cell[1] | BEFORE, cell[2:])]
    return mark_each(entries_of(cell))


def mark_each(entries: Iterable[bytes]) -> list[bytes]:
    """Entries that are in the index, marked so; which are in reserve is to be found anew."""
    return [b"%c%c%b" % (entry[0] & ~SPARE, entry[1] | BEFORE, entry[2:]) for entry in entries]


def _counts(entry: bytes) -> int:
    """1 for an entry that stands for a record of this run."""
    return not entry[1] & (ALSO | BEFORE)


def _fresh(entries: list[bytes]) -> int:
    return sum(map(_counts, entries))


def _count(winner: bytes, alive: list[bytes], outcome: MergeOutcome) -> None:
    """Count that of `alive` one is kept to answer."""
    incoming = _fresh(alive)
    if _counts(winner):
        incoming -= 1
        before = any(entry[1] & BEFORE for entry in alive)
        outcome.replaced += before
        outcome.added += not before
    outcome.unchanged += incoming
    outcome.captures += 1


def checksum(cells: Iterable[tuple[bytes, bytes]]) -> int:
    """The sum of the cells' hashes: it follows every change, and any order gives the same.

    Kept modulo 2**64 with an index, it proves that what is read back is what was stored.
    """
    return sum(map(xxh3_64_intdigest, map(b"".join, cells)))


# One pass over all staged entries, which come in order: keys and the cells they leave.

Cells = list[tuple[bytes, bytes]]


def settled(
    batches: Iterable[list[bytes]], rule: MergeRule, outcome: MergeOutcome
) -> Iterator[Cells]:
    """Keys and cells, in order, of all staged entries, which come in order."""
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


def grouped(
    batches: Iterable[list[bytes]], lengths: list[int]
) -> Iterator[tuple[bytes, list[bytes]]]:
    """Keys, each with all its entries, of staged entries, which come in order."""
    key, group = b"", list[bytes]()
    for batch in batches:
        for staged in batch:
            length = lengths[staged[0]]
            if staged[:length] == key:
                group.append(staged[length:])
                continue
            if group:
                yield key, group
            key, group = staged[:length], [staged[length:]]
    if group:
        yield key, group


def _close(
    key: bytes,
    group: list[bytes],
    digest: bytes,
    rule: MergeRule,
    outcome: MergeOutcome,
    cells: Cells,
) -> bytes:
    """Settle the entries under one key; returns the digest last counted."""
    entry = group[0]
    if len(group) == 1:
        mark = entry[1]
        if mark & BEFORE:
            entry = unmarked(entry)
        cells.append((key, entry))
        if entry[0] & 3 == REVISIT:
            return digest
        outcome.added += not mark & (ALSO | BEFORE)
        outcome.captures += 1
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
            if gone and lives_in(entry, gone):
                continue
            chunk.append(key + entry)
        if len(chunk) >= CHUNK:
            chunk.sort()
            yield chunk
            chunk = []
    if chunk:
        chunk.sort()
        yield chunk
