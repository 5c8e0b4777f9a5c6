"""What depends on captures that are to go: one pass over index and ledger, in the order of keys.

Of each original that would go it is told whether another copy of its URL takes its place, whether
the payload is stored under another URL, or nowhere; and which revisits name it. Memory does not
grow with any of them.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any, NamedTuple

from dedupindex.capture import Capture
from dedupindex.digest import Digest
from dedupindex.index.engine import View
from dedupindex.index.format.cells import (
    ALSO,
    DIGEST_KEY,
    answers,
    decode,
    digest_of_key,
    digest_prefix,
    entries_of,
    packed_url,
)
from dedupindex.index.format.ledger import DEPENDENT, Dependent, items
from dedupindex.index.format.packing import pack
from dedupindex.index.format.tombstones import NAMED, REVISIT, Tombstones, bare
from dedupindex.index.load.runs import RunWriter
from dedupindex.post_crawl.purge.remove_entries import Settling, size_of
from dedupindex.post_crawl.purge.target import ResolvedTarget, TargetKind
from dedupindex.runtime.bounded_counter import Sums

_HELD = 8 << 20  # bytes of what is told of a digest, before it goes to disk
_RANGES = 1000  # digests that are looked up one by one, each in all files of the ledger
SAME_URL, OTHER_URL, NOWHERE = "same_url", "other_url", "nowhere"


@dataclass
class Amount:
    """Captures, and bytes of their payloads as far as these are known."""

    captures: int = 0
    bytes: int = 0

    def add(self, size: int, captures: int = 1) -> None:
        """Count one, or several of this size together."""
        self.captures += captures
        self.bytes += max(size, 0)


@dataclass
class Impact:
    """What would become of an index."""

    originals: Amount = field(default_factory=Amount)  # that answer now and would go
    copies: Amount = field(default_factory=Amount)  # that would go, and answer nothing
    left: dict[str, Amount] = field(
        default_factory=lambda: {name: Amount() for name in (SAME_URL, OTHER_URL, NOWHERE)}
    )  # of the originals: where their payload is still stored
    dependents: Amount = field(default_factory=Amount)  # that name what would go
    broken: Amount = field(default_factory=Amount)  # of these, whose payload would be nowhere
    by_container: Sums = field(default_factory=lambda: Sums(2))
    by_crawl: Sums = field(default_factory=lambda: Sums(2))

    def depends(self, container: str, crawl: str, size: int) -> None:
        """Count a revisit that depends, by where it is."""
        self.dependents.add(size)
        for sums, name in ((self.by_container, container), (self.by_crawl, crawl)):
            sums.add(name.encode("utf-8", "surrogateescape"), 1, max(size, 0))


class Going(NamedTuple):
    """An original that would go."""

    digest: Digest
    capture: Capture
    left: str  # SAME_URL, OTHER_URL or NOWHERE
    becomes: Capture | None  # the copy of its URL that takes its place


class Depending(NamedTuple):
    """A revisit that names what would go."""

    digest: Digest
    dependent: Dependent
    container: str
    crawl: str
    size: int  # bytes of payload, -1 unknown
    left: str


class Survey:
    """Goes through an index once; `impact` is whole when `items` has ended.

    With a `writer` it stages what takes the captures out: see `purge`; `rewrites` is whether the
    ledger may hold some of it. It only counts unless what it finds is to be `listed`.
    """

    def __init__(
        self, index: Path, view: View, chosen: ResolvedTarget, settling: Settling, *,
        writer: RunWriter | None = None, listed: bool = True,
    ) -> None:  # fmt: skip
        self.impact, self._listed = Impact(), listed
        self._index, self._view, self._chosen = index, view, chosen
        self._settling, self._writer = settling, writer
        self._digest, self._survives = b"", False
        self.rewrites = bool(view.ledger()) and chosen.target.kind is not TargetKind.CAPTURE
        self._held: IO[bytes]
        self._originals, self._revisits = Amount(), Amount()  # of a digest: left where it will be

    def items(self) -> Iterator[Going | Depending]:
        """Every original that would go, and every revisit that depends on one."""
        with SpooledTemporaryFile(_HELD) as held:
            self._held = held
            yield from self._items()

    def _items(self) -> Iterator[Going | Depending]:
        names, ranges, chosen = self._view.ledger(), self._ranges(), self._chosen
        ledger = _Ledger(chain.from_iterable(items(self._index, names, one) for one in ranges))
        for key, cell in chain.from_iterable(map(self._view.cells, ranges)):
            if not self._digest or not key.startswith(self._digest):
                yield from self._told()
                self._digest, self._survives = key[: DIGEST_KEY[key[0]]], False
            if not chosen.may_hold(key):
                self._survives = self._survives or any(map(answers, entries_of(cell)))
                continue
            marks = Tombstones.among(list(entries_of(cell)))
            copies = [entry for entry in ledger.copies(key) if not self._void(entry, marks)]
            entries = [entry for entry in entries_of(cell) if entry[0] & 3 != REVISIT]
            known = [*map(bare, entries), *copies]
            taken = {entry for entry in known if chosen.takes(key, entry)}
            if taken:
                told = set() if chosen.anywhere else self._settling.told(known, taken)
                self.rewrites = self.rewrites or not taken.isdisjoint(copies)
                self._one(key, cell, copies, taken, told, ledger)
            else:
                self._survives = self._survives or any(map(answers, entries))
        yield from self._told()

    def _ranges(self) -> list[bytes]:
        """What the keys begin with that are looked at, in order: some digests, or anything."""
        target = self._chosen.target
        if target.kind is TargetKind.CAPTURE and self._view.own_digests():
            digests = {digest_prefix(one.digest) for one in target.ones}
            if len(digests) <= _RANGES:
                return sorted(digests)
        return [b""]

    def _void(self, entry: bytes, marks: Tombstones) -> bool:
        """Whether a copy is one no more, by what the index has heard since."""
        chained = entry[0] & 3 == NAMED and marks.is_chain(entry)
        return chained or marks.is_purged(entry, self._settling.place_of)

    def _one(
        self, key: bytes, cell: bytes, copies: list[bytes], taken: set[bytes], told: set[bytes],
        ledger: _Ledger,
    ) -> None:  # fmt: skip
        """What goes under one key, and what depends on it."""
        anywhere = self._chosen.anywhere
        purged = self._settling.purged(key, cell, copies, taken, told, anywhere=anywhere)
        if self._writer is not None:
            self._writer.extend(sorted(key + entry for entry in purged.staged))
        digest = digest_of_key(key)
        stay = {packed_url(entry): entry for entry in purged.answering}
        self._survives = self._survives or bool(stay)
        answered = {bare(entry) for entry in entries_of(cell) if answers(entry)}
        sizes: dict[tuple[bytes, bytes], int] = {}
        for entry in sorted(taken | told):
            size = size_of(key, entry)
            place = entry[2:8], packed_url(entry)
            sizes[place] = max(size, sizes.get(place, -1))
            if entry[1] & ALSO:  # it is told of under its own digest
                continue
            if entry not in answered:
                self.impact.copies.add(size)
                continue
            self.impact.originals.add(size)
            heir = stay.get(packed_url(entry))
            if heir:
                self.impact.left[SAME_URL].add(size)
            else:
                self._originals.add(size)
            if self._listed:
                capture = decode(key, entry, self._settling.place_of)
                becomes = decode(key, heir, self._settling.place_of) if heir else None
                self._hold(Going(digest, capture, SAME_URL if heir else "", becomes))
        self._depending(key, ledger, sizes, purged.seconds, stay)

    def _depending(
        self,
        key: bytes,
        ledger: _Ledger,
        sizes: dict[tuple[bytes, bytes], int],
        seconds: set[tuple[bytes, bytes]],
        stay: dict[bytes, bytes],
    ) -> None:
        """The revisits that name what goes, but those that go with it, each told once.

        `sizes` are those of the captures that go and `seconds` those that stay.
        """
        digest, second, seen = digest_of_key(key), b"", set[bytes]()
        for body in ledger.dependents(key):
            if self._chosen.takes_dependent(body):
                continue
            one = Dependent.of(body)
            packed, named = pack(one.names_url), body[7:13]
            if any(named):
                place = named, packed
                known = place in sizes or (self._chosen.means(one.names_url) and not stay)
                if not known or place in seconds:
                    continue
                size = sizes.get(place, -1)
            else:  # it names a URL: whatever is left of it will do
                if packed in stay or all(url != packed for _, url in sizes):
                    continue
                size = max(size for (_, url), size in sizes.items() if url == packed)
            if body[1:7] != second:
                second, seen = body[1:7], set()
            if one.url in seen:  # it was told of by a log, too, or by a copy of its file
                continue
            seen.add(one.url)
            size = one.size if one.size >= 0 else size
            where = self._settling.place_of(one.container)
            left = SAME_URL if packed in stay else ""
            self.impact.depends(where.container, where.crawl, size)
            if not left:
                self._revisits.add(size)
            if self._listed:
                self._hold(Depending(digest, one, where.container, where.crawl, size, left))

    def _hold(self, item: Going | Depending) -> None:
        pickle.dump(item, self._held)

    def _told(self) -> Iterator[Any]:
        """What was held until all of a digest was seen."""
        if self._originals.captures or self._revisits.captures:
            where = OTHER_URL if self._survives else NOWHERE
            self.impact.left[where].add(self._originals.bytes, self._originals.captures)
            if where is NOWHERE:
                self.impact.broken.add(self._revisits.bytes, self._revisits.captures)
            self._originals, self._revisits = Amount(), Amount()
        end = self._held.tell()
        if not end:
            return
        self._held.seek(0)
        while self._held.tell() < end:
            item = pickle.load(self._held)
            yield (
                item if item.left else item._replace(left=OTHER_URL if self._survives else NOWHERE)
            )
        self._held.seek(0)
        self._held.truncate()


class _Ledger:
    """The items of a ledger beside the keys of an index, which come in order."""

    def __init__(self, found: Iterator[bytes]) -> None:
        self._found = found
        self._next: bytes | None = next(found, None)

    def copies(self, key: bytes) -> list[bytes]:
        """The copies under a key; what is before it is passed over."""
        while self._next is not None and self._next < key:
            self._next = next(self._found, None)
        return list(self._under(key, copies=True))

    def dependents(self, key: bytes) -> Iterator[bytes]:
        """The dependents under a key of which the copies were taken."""
        return self._under(key, copies=False)

    def _under(self, key: bytes, *, copies: bool) -> Iterator[bytes]:
        while self._next is not None and self._next.startswith(key):
            body = self._next[len(key) :]
            if copies and body[0] == DEPENDENT:
                return
            self._next = next(self._found, None)
            yield body
