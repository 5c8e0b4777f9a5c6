"""The merge rule: which of the captures under one key are kept, whatever the order of loading.

Of the captures of one URL and digest the earliest is kept, or the latest if the index says so.
Within a second a record that was read beats a row of a CDX or a crawler's report, which beats what
a revisit claims; then the exact date, the container's name, the offset and the crawl decide. Where
the latest is kept, records and rows beat every claim, and of claims the earliest counts.

Tombstones (`tombstones`) record when a digest of a URL was seen as a revisit or a refused record:

- a claim on that second or a later one is refused (a chain), unless it names, by its id and
  second, a record that was read as an original;
- a row of exactly that second is refused if the record itself was read.

Only the `tombstones.MAX_READ` earliest of such seconds are kept. When there are that many, later
rows are refused too, because tombstones that were not kept might refute them: the result must not
depend on the order. Purged captures are refused when they are loaded again, and so are claims on
them, unless a record of the same URL and second is there: read again, or from another file.

Only the best row under a key counts, refuted or not. So at most one row and one claim can lose
their place later, and the entries that they beat are kept in reserve behind them (`SPARE`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, fields

from xxhash import xxh3_64_intdigest

from dedupindex.capture import Capture, Evidence
from dedupindex.index.format.cells import (
    ALSO,
    BEFORE,
    DIGEST_KEY,
    NOWHERE,
    SEVERAL,
    SPARE,
    ContainerRef,
    Keys,
    answers,
    cell_of,
    container_of,
    decode,
    entries_of,
    fraction_of,
    packed_url,
    strip_flags,
)
from dedupindex.index.format.tombstones import NAMED, RECORD, REVISIT, Tombstones, unmarked
from dedupindex.index.load.runs import CHUNK
from dedupindex.timestamps import sort_key

# Reasons of refusals: a claim that names a revisit, a row that a record refutes, a purged capture
CHAINED, CONTRADICTED, PURGED = "refers-to-revisit", "contradicted", "purged"
_LAST = "\U0010ffff"  # sorts after every name
_REVERSED = bytes(range(255, -1, -1))  # translation table: later dates sort first

Cells = list[tuple[bytes, bytes]]


@dataclass
class MergeOutcome:
    """What became of incoming entries; those under a further digest (ALSO) are not counted."""

    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    chained: int = 0
    contradicted: int = 0
    purged: int = 0
    replaced_by_name: int = field(default=0, compare=False)  # see `BuildTally`
    captures: int = field(default=0, compare=False)  # originals kept, all digests
    digests: int = field(default=0, compare=False)  # distinct, all algorithms
    checksum: int = field(default=0, compare=False)  # see `checksum`
    lost: list[bytes] = field(default_factory=list, compare=False)  # staged, for `ledger`

    def refused(self) -> dict[str, int]:
        """Return how many were refused, by reason."""
        return {CHAINED: self.chained, CONTRADICTED: self.contradicted, PURGED: self.purged}

    def include(self, other: MergeOutcome) -> None:
        """Add the counts of entries of other digests."""
        for name in MERGED:
            setattr(self, name, getattr(self, name) + getattr(other, name))


MERGED = tuple(one.name for one in fields(MergeOutcome) if one.name != "lost")


@dataclass(frozen=True)
class MergeRule:
    """The rule of one index: its form of keys, which end of time it keeps, and its containers.

    Entries that were in the index before are dropped if their container is one of `gone`. What a
    load brings in their place is not new to the index: it counts as unchanged.
    """

    keys: Keys
    latest: bool
    place_of: Callable[[int], ContainerRef]
    gone: Collection[int] = ()

    def settle(self, key: bytes, entries: list[bytes], outcome: MergeOutcome) -> bytes | None:
        """Return the cell that `entries` leave under `key`, None for none."""
        dropped: list[bytes] = []
        if self.gone:
            dropped = list(filter(self.drops, entries))
            entries = [entry for entry in entries if not self.drops(entry)] if dropped else entries
        tombstones = Tombstones.among(entries)
        groups: dict[bytes, list[bytes]] = {}
        for entry in entries:
            if entry[0] & 3 == REVISIT:
                continue
            if tombstones.purged and self._is_purged(entry, entries, tombstones):
                outcome.purged += _counts(entry)
            else:
                groups.setdefault(self._url_of(entry), []).append(entry)
        known = {self._url_of(entry) for entry in dropped if entry[0] & 3 != REVISIT}
        kept = list(tombstones.entries)
        for url, rivals in sorted(groups.items()):
            added = outcome.added
            kept += self._keep(key, rivals, tombstones, outcome)
            if url in known and outcome.added > added:
                outcome.added -= 1
                outcome.unchanged += 1
        return cell_of(kept) if kept else None

    def drops(self, entry: bytes) -> bool:
        """Return whether an entry was in the index before, in one of the containers `gone`."""
        return bool(entry[1] & BEFORE) and container_of(entry) in self.gone

    def _url_of(self, entry: bytes) -> bytes:
        """Return what tells the captures under one key apart."""
        return packed_url(entry) if self.keys.url else b""

    def _is_purged(self, entry: bytes, entries: list[bytes], tombstones: Tombstones) -> bool:
        """Return whether an entry was purged, or claims what was, and no record has it now."""
        if not tombstones.is_purged(entry, self.place_of):
            return False
        return entry[0] & 3 != NAMED or not any(
            one[0] & 3 == RECORD
            and one[2:8] == entry[2:8]
            and packed_url(one) == packed_url(entry)
            and not tombstones.is_purged(one, self.place_of)
            for one in entries
        )

    def replace(
        self,
        key: bytes,
        cell: bytes | None,
        incoming: list[bytes],
        outcome: MergeOutcome,
        gone: Collection[int] = (),
    ) -> tuple[bytes | None, int, int]:
        """Return the cell that replaces `cell`, and the originals of both, for changes in place.

        Entries of containers `gone` are dropped. The captures and the checksum of `outcome` are
        changes.
        """
        entries = list(entries_of(cell)) if cell else []
        kept = [entry for entry in entries if container_of(entry) not in gone] if gone else entries
        held = sum(map(answers, entries))
        if not incoming and len(kept) == len(entries):
            return cell, held, held
        outcome.captures -= held
        before = outcome.captures
        left = self.settle(key, mark_each(kept) + incoming, outcome)
        if left != cell:
            outcome.checksum -= checksum([(key, cell)]) if cell else 0
            outcome.checksum += checksum([(key, left)]) if left else 0
        return left, held, outcome.captures - before

    def _keep(
        self, key: bytes, group: list[bytes], tombstones: Tombstones, outcome: MergeOutcome
    ) -> list[bytes]:
        """Return the entry of a URL that is the original, followed by those in reserve."""
        kinds: tuple[list[bytes], ...] = [], [], []
        for entry in group:
            kinds[entry[0] & 3].append(entry)
        records, rows, claims = kinds
        row = self._best(rows)
        refuted = bool(row) and tombstones.refutes(row[0])
        sound = [] if refuted else [entry for entry in rows if not tombstones.refutes(entry)]
        unchained = self._unchained(key, claims, records, tombstones)
        outcome.contradicted += _fresh(rows) - _fresh(sound)
        outcome.chained += _fresh(claims) - _fresh(unchained)
        record, claim = self._best(records), self._best(unchained)
        if record and row and self._rank(record[0]) < self._rank(row[0]):
            row = []
        order = record + ([] if refuted else row) + claim
        if len(order) > 1:
            order.sort(key=self._rank)
        if order:
            self._count(order[0], records + sound + unchained, outcome)
        kept: list[bytes] = []
        for entry in order:
            if kept and not self.latest and entry[0] & 3 == NAMED:
                break  # it can only win if the row before it does, too
            kept.append(entry)
            if entry[0] & 3 == RECORD:
                break  # nothing can refute it
        if refuted:
            kept += row
        if len(kept) < len(group):
            outcome.lost += _lost(key, records + rows, unchained, kept)
        return [
            b"%c%b" % (body[0] | (SPARE if number or not order else 0), body[1:])
            for number, body in enumerate(map(unmarked, kept))
        ]

    def _unchained(
        self, key: bytes, claims: list[bytes], records: list[bytes], tombstones: Tombstones
    ) -> list[bytes]:
        """Return the claims that name no revisit, or name a read record by its id and second."""
        sound = [entry for entry in claims if not tombstones.is_chain(entry)]
        if len(sound) == len(claims) or not records:
            return sound
        read = {self._record_name(key, entry) for entry in records} - {None}
        return [
            entry
            for entry in claims
            if not tombstones.is_chain(entry) or self._record_name(key, entry) in read
        ]

    def _record_name(self, key: bytes, entry: bytes) -> tuple[bytes, bytes] | None:
        """Return the second and record id of an entry, None if it has no id."""
        record_id = decode(key, unmarked(entry), self.place_of).record_id
        return (entry[2:8], record_id) if record_id else None

    def _best(self, entries: list[bytes]) -> list[bytes]:
        """Return the best of entries of one URL and kind, in a list; an empty list if none."""
        if len(entries) > 1:
            ranks = list(map(self._rank, entries))
            first = min(ranks)
            entries = [entry for entry, rank in zip(entries, ranks, strict=True) if rank == first]
        return [min(entries, key=self._tie_order)] if len(entries) > 1 else entries

    def _count(self, winner: bytes, candidates: list[bytes], outcome: MergeOutcome) -> None:
        """Count the candidates of one URL, of which `winner` is kept."""
        incoming = _fresh(candidates)
        if _counts(winner):
            incoming -= 1
            before = [entry for entry in candidates if entry[1] & BEFORE]
            outcome.replaced += bool(before)
            outcome.added += not before
            outcome.replaced_by_name += any(self._sorts_before(winner, one) for one in before)
        outcome.unchanged += incoming
        outcome.captures += 1

    def _sorts_before(self, winner: bytes, other: bytes) -> bool:
        """Return whether nothing but the name of its container makes an entry better."""
        if self._rank(winner) != self._rank(other):
            return False
        mine, its = self._tie_order(winner), self._tie_order(other)
        return mine[0] == its[0] and mine[1] != its[1]

    def _rank(self, entry: bytes) -> tuple[bool, int, int]:
        """Return a sort key for entries of a URL, the best first; equal only within a second."""
        kind, second = entry[0] & 3, int.from_bytes(entry[2:8])
        if not self.latest:
            return False, second, kind
        return (True, second, kind) if kind == NAMED else (False, -second, kind)

    def _tie_order(self, entry: bytes) -> TieOrder:
        """Return a sort key within a second; of equal entries the one in the index comes first.

        It orders as `capture_order` does, but decodes only what differs within a second. The
        container's number is left out: it depends on the order of loading.
        """
        body, number = unmarked(entry), container_of(entry)
        fraction = _order_of_fraction(fraction_of(body))
        if self.latest and body[0] & 3 != NAMED:
            fraction = fraction.translate(_REVERSED)
        container, crawl = self.place_of(number) if number else NOWHERE
        return (
            fraction, container or _LAST, body[12:17], body[:17] + body[21:], crawl or _LAST,
            not entry[1] & BEFORE,
        )  # fmt: skip


TieOrder = tuple[bytes, str, bytes, bytes, str, bool]
CaptureOrder = tuple[bool, bytes, int, bytes, str, int]


def capture_order(capture: Capture, *, latest: bool) -> CaptureOrder:
    """Return a sort key for captures of a URL and digest: the merge rule keeps the first."""
    named = capture.evidence == Evidence.NAMED
    date = _order_of_fraction(sort_key(capture.date))
    if latest and not named:
        date = date.translate(_REVERSED)
    offset = capture.offset if capture.offset >= 0 else 1 << 62
    second = date[: len("2026-11-20T09:14:17")]
    container = capture.container or _LAST
    return latest and named, second, capture.evidence, date, container, offset


def _order_of_fraction(date: bytes) -> bytes:
    """Return the end of a date as a sort key by which a fraction comes later, also if reversed."""
    return date + b"\0"


def _lost(
    key: bytes, stored: list[bytes], claims: list[bytes], kept: list[bytes]
) -> Iterator[bytes]:
    """Yield, staged, what a purge may bring back: copies, and claims on captures not read."""
    held = set(map(strip_flags, kept))
    for entry in map(strip_flags, stored):
        if entry not in held:
            yield key + entry
    seconds = {entry[2:8] for entry in stored + kept} if claims else set()
    for entry in map(strip_flags, claims):
        if entry[2:8] not in seconds:
            yield key + entry


def mark_before(cell: bytes) -> list[bytes]:
    """Return the entries of a cell that is in the index, with the flag `BEFORE`."""
    if cell[0] != SEVERAL:
        return [b"%c%c%b" % (cell[0], cell[1] | BEFORE, cell[2:])]
    return mark_each(entries_of(cell))


def mark_each(entries: Iterable[bytes]) -> list[bytes]:
    """Return entries that are in the index with the flag `BEFORE`, and without `SPARE`."""
    return [b"%c%c%b" % (entry[0] & ~SPARE, entry[1] | BEFORE, entry[2:]) for entry in entries]


def _counts(entry: bytes) -> int:
    """Return 1 for an entry that stands for a record of this load, else 0."""
    return not entry[1] & (ALSO | BEFORE)


def _fresh(entries: list[bytes]) -> int:
    return sum(map(_counts, entries))


def checksum(cells: Iterable[tuple[bytes, bytes]]) -> int:
    """Return the sum of the hashes of cells; an index records it modulo 2**64."""
    return sum(map(xxh3_64_intdigest, map(b"".join, cells)))


def settled(
    batches: Iterable[list[bytes]], rule: MergeRule, outcome: MergeOutcome
) -> Iterator[Cells]:
    """Yield the keys and cells, in order, of staged entries, which come in order."""
    digest, cells = b"", Cells()
    for key, group in grouped(batches, rule.keys.lengths()):
        before, entry = outcome.captures, group[0]
        if len(group) == 1:
            flags = entry[1]
            if rule.gone and rule.drops(entry):
                continue
            cells.append((key, unmarked(entry) if flags & BEFORE else entry))
            if entry[0] & 3 != REVISIT:
                outcome.added += not flags & (ALSO | BEFORE)
                outcome.captures += 1
        elif cell := rule.settle(key, group, outcome):
            cells.append((key, cell))
        if outcome.captures > before and not (digest and key.startswith(digest)):
            digest = key[: DIGEST_KEY[key[0]]]
            outcome.digests += 1
        if len(cells) >= CHUNK:
            outcome.checksum += checksum(cells)
            yield cells
            cells = []
    outcome.checksum += checksum(cells)
    yield cells


def grouped(
    batches: Iterable[list[bytes]], lengths: list[int]
) -> Iterator[tuple[bytes, list[bytes]]]:
    """Yield each key with all its entries, of staged entries, which come in order."""
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


def staged_again(cells: Iterable[tuple[bytes, bytes]]) -> Iterator[list[bytes]]:
    """Yield stored cells as sorted chunks of staged entries, with the flag `BEFORE`."""
    chunk: list[bytes] = []
    for key, cell in cells:
        chunk += [key + entry for entry in mark_before(cell)]
        if len(chunk) >= CHUNK:
            chunk.sort()
            yield chunk
            chunk = []
    if chunk:
        chunk.sort()
        yield chunk
