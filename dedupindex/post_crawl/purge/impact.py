"""What removing captures from an index would do, by one pass over index and ledger in key order.

For each original that would be removed: does another copy of its URL take its place, is the payload
stored under another URL, or nowhere? And which revisits refer to it? Memory use is constant, but
for the numbers of the files that have such originals or their copies.
"""

from __future__ import annotations

import os
import pickle
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from tempfile import SpooledTemporaryFile
from typing import IO, Any, NamedTuple

from dedupindex.capture import Capture
from dedupindex.counts import OnProgress, silent
from dedupindex.digest import Digest
from dedupindex.index.engine import View
from dedupindex.index.format import cells
from dedupindex.index.format.file_names import files_of, row_matches
from dedupindex.index.format.ledger import Dependent
from dedupindex.index.format.packing import pack
from dedupindex.index.format.tombstones import (
    NAMED,
    REVISIT,
    ROW,
    Tombstones,
    encode_purged,
    encode_purged_revisit,
)
from dedupindex.index.format.visits import CODE as VISIT_CODE
from dedupindex.index.identity import Settings
from dedupindex.index.load.merge_rule import MergeOutcome, MergeRule, mark_before
from dedupindex.index.load.runs import RunWriter
from dedupindex.lookup.savings import known
from dedupindex.post_crawl.purge.target import ResolvedTarget, TargetKind
from dedupindex.runtime.bounded_counter import Sums
from dedupindex.runtime.progress import watched

_IN_MEMORY = 8 << 20  # bytes of the items of a digest
_MAX_OTHERS = 1000  # keys of a digest of which nothing goes, whose files are remembered
_MAX_RANGES = 1000  # digests that are looked up one by one, each in all files of the ledger
_OF_RECORD = 32  # in an entry's flags: its size is that of the record
SAME_URL, OTHER_URL, NOWHERE_ELSE = "same_url", "other_url", "nowhere"


@dataclass
class Amount:
    """Captures, bytes of their payloads, and how many of these have no known size."""

    captures: int = 0
    bytes: int = 0
    unsized: int = 0

    def add(self, size: int) -> None:
        """Add a capture of `size` bytes, -1 if unknown."""
        self.add_all(Amount(1, max(size, 0), int(size < 0)))

    def add_all(self, other: Amount) -> None:
        self.captures += other.captures
        self.bytes += other.bytes
        self.unsized += other.unsized

    @property
    def known_bytes(self) -> int | None:
        """The bytes; None if no size is known."""
        return known(self.bytes, self.captures, self.unsized)

    def as_json(self) -> dict[str, int | None]:
        return {"captures": self.captures, "bytes": self.known_bytes, "unsized": self.unsized}


@dataclass
class Impact:
    originals: Amount = field(default_factory=Amount)  # that would be removed and answer now
    copies: Amount = field(default_factory=Amount)  # that would be removed and answer nothing
    left: dict[str, Amount] = field(
        default_factory=lambda: {name: Amount() for name in (SAME_URL, OTHER_URL, NOWHERE_ELSE)}
    )  # the originals, by where their payload would still be stored
    revisits: Amount = field(default_factory=Amount)  # of the target itself, that would be removed
    dependents: Amount = field(default_factory=Amount)  # revisits that refer to what would go
    broken: Amount = field(default_factory=Amount)  # of these, whose payload would be nowhere
    by_container: Sums = field(default_factory=lambda: Sums(3))  # the fields of `Amount`
    by_crawl: Sums = field(default_factory=lambda: Sums(3))

    def add_dependent(self, container: str, crawl: str, size: int) -> None:
        self.dependents.add(size)
        for sums, name in ((self.by_container, container), (self.by_crawl, crawl)):
            sums.add(name.encode("utf-8", "surrogateescape"), 1, max(size, 0), int(size < 0))


class RemovedOriginal(NamedTuple):
    digest: Digest
    capture: Capture
    left: str  # SAME_URL, OTHER_URL or NOWHERE_ELSE
    successor: Capture | None  # the copy of its URL that takes its place


class DependentRevisit(NamedTuple):
    """A revisit that refers to a capture that would be removed."""

    digest: Digest
    dependent: Dependent
    container: str
    crawl: str
    size: int  # bytes of payload, -1 unknown
    left: str


class RemovedRevisit(NamedTuple):
    """A revisit that would be removed itself, whatever it refers to."""

    digest: Digest
    dependent: Dependent
    container: str
    crawl: str


class OutdatedFile(NamedTuple):
    """A file with another size than it had when the index read it, in bytes."""

    file: str
    size_indexed: int
    size_now: int


Item = RemovedOriginal | DependentRevisit | RemovedRevisit
OnItem = Callable[[Item], None]


class _Remainder(NamedTuple):
    """What a key holds without the removed entries."""

    staged: list[bytes]  # what a load must bring: tombstones, and copies that stay
    answering: list[bytes]  # entries that answer, one for a URL
    captures: set[tuple[bytes, bytes]]  # second and packed URL of all captures that stay


class ImpactSurvey:
    """Goes through an index once; `impact` is complete after `run`.

    With a `writer` it stages the load that removes the captures; `rewrites` is then whether the
    ledger may hold some of them. `on_item` gets each original and each revisit, and each capture
    of the target that is a revisit.
    """

    def __init__(
        self, view: View, target: ResolvedTarget, settings: Settings, *,
        writer: RunWriter | None = None, on_item: OnItem | None = None,
    ) -> None:  # fmt: skip
        self.impact, self._on_item = Impact(), on_item
        self._view, self.target, self._writer = view, target, writer
        self._rule = MergeRule(settings.keys(), settings.keep == "latest", self._container)
        self.rewrites = view.has_ledger() and target.target.kind is not TargetKind.CAPTURE
        self._files = set[int]()  # containers of what would be removed, and of its copies
        # Of the digest that is being read: whether an original survives, the first cells of which
        # nothing goes, and what is undecided until that is known.
        self._digest, self._survives = b"", False
        self._others = list[bytes]()
        self._held: IO[bytes]
        self._originals, self._revisits = Amount(), Amount()

    def run(self, on_progress: OnProgress = silent) -> None:
        with SpooledTemporaryFile(_IN_MEMORY) as self._held:
            self._read(on_progress)

    def outdated(self) -> list[OutdatedFile]:
        """Return the files that changed since they were indexed, after `run`, by name.

        Only files of this machine with originals that would be removed, or with copies of these,
        are looked at, and only at their sizes: rewriting in place makes a file smaller, and a file
        that was copied or restored has another time. A revisit in them may refer to what goes.
        """
        places = {self._view.place_of(number).container for number in self._files - {0}}
        names = {file for place in places for file in files_of(place) if os.path.isabs(file)}
        found = []
        for name in sorted(names):
            indexed = self._view.container(name)
            if indexed is None or (size := _size_of_file(name)) in (None, indexed.size):
                continue
            found.append(OutdatedFile(name, indexed.size, size))
        return found

    def _container(self, number: int) -> cells.ContainerRef:
        return self._view.place_of(number) if number else cells.NOWHERE

    def _read(self, on_progress: OnProgress) -> None:
        view, prefixes, target = self._view, self._prefixes(), self.target
        found, total = view.cells_by_digest(), view.counts().captures
        ledger = _LedgerCursor(self._count_revisits(view.ledger_by_digest()), view.position)
        if prefixes:
            found, total = chain.from_iterable(map(view.cells, prefixes)), 0
            ledger = _LedgerCursor(chain.from_iterable(map(view.ledger, prefixes)))
        for key, cell in watched(found, "reading", total, on_progress):
            if not self._digest or not key.startswith(self._digest):
                self._end_digest()
                self._digest, self._survives = key[: cells.DIGEST_KEY[key[0]]], False
            if not target.may_hold(key):
                self._add_other(cell)
                self._survives = self._survives or any(map(cells.answers, cells.entries_of(cell)))
                continue
            tombstones = Tombstones.among(list(cells.entries_of(cell)))
            copies = []
            for copy in ledger.copies(key):
                if tombstones.is_purged(copy, self._container):
                    # If it goes, a purge on a cluster was killed before it removed it there.
                    self.rewrites = self.rewrites or target.takes(key, copy)
                elif not (copy[0] & 3 == NAMED and tombstones.is_chain(copy)):
                    copies.append(copy)
            entries = [entry for entry in cells.entries_of(cell) if entry[0] & 3 != REVISIT]
            known = [*map(cells.strip_flags, entries), *copies]
            taken = {entry for entry in known if target.takes(key, entry)}
            if taken:
                self._files.update(map(cells.container_of, known))
                rows = set() if target.by_url else self._rows_of(known, taken)
                self.rewrites = self.rewrites or not taken.isdisjoint(copies)
                self._remove(key, cell, copies, taken, rows, ledger)
            else:
                self._add_other(cell)
                self._survives = self._survives or any(map(cells.answers, entries))
        self._end_digest()
        ledger.finish()

    def _count_revisits(self, found: Iterator[bytes]) -> Iterator[bytes]:
        """Count the revisits among all items of the ledger that go themselves; yield all items.

        Each file that has such a revisit counts; one in a log is that of the file which it names.
        With a writer it stages tombstones for them: `bin/rewrite --undo` makes records of them.
        """
        lengths, last, names = self._rule.keys.lengths(), b"", dict[bytes, list[str]]()
        for item in found:
            yield item
            if item[:1] == VISIT_CODE:
                continue
            end = lengths[item[0]]
            if item[end] != cells.DEPENDENT or not self.target.takes_dependent(item[end:]):
                continue
            body = item[end:]
            if (second := item[: end + 7]) != last:  # of its key
                last, names = second, {}
            revisit = Dependent.of(body)
            place, digest = self._container(revisit.container), cells.digest_of_key(item[:end])
            if self._writer is not None and self.target.by_url and revisit.url not in names:
                tombstone = encode_purged_revisit(body[1:7], pack(revisit.url))
                self._writer.extend([self.target.keys.key_of(digest, revisit.url) + tombstone])
            if not _is_another(names.setdefault(revisit.url, []), place.container):
                continue
            self.impact.revisits.add(revisit.size)
            if self._on_item is not None:
                self._on_item(RemovedRevisit(digest, revisit, *place))

    def _add_other(self, cell: bytes) -> None:
        if len(self._others) < _MAX_OTHERS:
            self._others.append(cell)

    def _prefixes(self) -> list[bytes]:
        """Sorted prefixes of the keys to read, which are digests; none: all keys are read."""
        target = self.target.target
        if target.kind is TargetKind.CAPTURE and self._view.own_digests():
            digests = {cells.digest_prefix(capture.digest) for capture in target.captures}
            if len(digests) <= _MAX_RANGES:
                return sorted(digests)
        return []

    def _rows_of(self, known: list[bytes], taken: set[bytes]) -> set[bytes]:
        """CDX rows under a key that may list records which are taken from their containers."""
        tombstones = Tombstones.among([encode_purged(entry, anywhere=False) for entry in taken])
        rows = {entry for entry in known if entry[0] & 3 == ROW} - taken
        return {entry for entry in rows if tombstones.is_purged(entry, self._container)}

    def _remainder(
        self, key: bytes, cell: bytes, copies: list[bytes], taken: set[bytes], rows: set[bytes]
    ) -> _Remainder:
        """What is left under a key without `taken` and `rows`, merged as a load will merge it.

        Only `taken` get tombstones: rows come back with the records that they list.
        """
        anywhere, gone = self.target.by_url, taken | rows
        tombstones = {encode_purged(entry, anywhere=anywhere) for entry in taken}
        stay = [entry for entry in copies if entry not in gone]
        merged = self._rule.settle(key, [*mark_before(cell), *tombstones, *stay], MergeOutcome())
        left = list(cells.entries_of(merged)) if merged else []
        both = [*cells.entries_of(cell), *stay]
        held = {cells.strip_flags(entry) for entry in both if entry[0] & 3 != REVISIT}
        return _Remainder(
            [*tombstones, *stay],
            [entry for entry in left if cells.answers(entry)],
            {(entry[2:8], cells.packed_url(entry)) for entry in held - gone},
        )

    def _remove(
        self, key: bytes, cell: bytes, copies: list[bytes], taken: set[bytes], rows: set[bytes],
        ledger: _LedgerCursor,
    ) -> None:  # fmt: skip
        """Count what goes under a key, and what depends on it."""
        remainder = self._remainder(key, cell, copies, taken, rows)
        if self._writer is not None:
            self._writer.extend(sorted(key + entry for entry in remainder.staged))
        digest = cells.digest_of_key(key)
        successors = {cells.packed_url(entry): entry for entry in remainder.answering}
        self._survives = self._survives or bool(successors)
        answered = set(map(cells.strip_flags, filter(cells.answers, cells.entries_of(cell))))
        sizes: dict[tuple[bytes, bytes], int] = {}  # by second and packed URL
        counted: dict[tuple[bytes, bytes], list[str]] = {}  # names of their files
        for entry in sorted(taken | rows, key=lambda entry: (entry not in answered, entry)):
            size = _size(key, entry)
            capture_key = entry[2:8], cells.packed_url(entry)
            sizes[capture_key] = max(size, sizes.get(capture_key, -1))
            if entry[1] & cells.ALSO:  # it is counted under its own digest
                continue
            name = self._container(cells.container_of(entry)).container
            another = _is_another(counted.setdefault(capture_key, []), name)
            if entry not in answered:
                if another:
                    self.impact.copies.add(size)
                continue
            self.impact.originals.add(size)
            successor = successors.get(cells.packed_url(entry))
            (self.impact.left[SAME_URL] if successor else self._originals).add(size)
            if self._on_item is not None:
                capture = cells.decode(key, entry, self._container)
                next_one = cells.decode(key, successor, self._container) if successor else None
                left = SAME_URL if successor else ""
                pickle.dump(RemovedOriginal(digest, capture, left, next_one), self._held)
        dependents = ledger.dependents(key)
        self._count_dependents(key, dependents, sizes, remainder.captures, set(successors))

    def add_live(self, found: list[tuple[bytes, list[bytes]]]) -> None:
        """Count the revisits that refer to entries of crawls that go, by key, after `run`.

        With a writer it stages tombstones for them if the target is by URL.
        Of captures that the index has, too, the index says whether they go. What only a revisit
        says of an original does not keep it, unless the target takes that as well.
        """
        if self._writer is not None and self.target.by_url:
            for key, taken in found:  # else the index would take these when it reads their files
                self._writer.extend([key + encode_purged(one, anywhere=True) for one in taken])
        items_of = self._view.ledger_of([key for key, _ in found])
        for (key, taken), items in zip(found, items_of, strict=True):
            bodies = [item[len(key) :] for item in items]
            dependents = [body for body in bodies if body[0] == cells.DEPENDENT]
            if not dependents:
                continue
            known = {(one[2:8], cells.packed_url(one)) for one in self._own(key, bodies)}
            urls = {url for _, url in known}
            sizes = {(one[2:8], cells.packed_url(one)): _size(key, one) for one in taken}
            sizes = {one: size for one, size in sizes.items() if one not in known}
            self._digest = key[: cells.DIGEST_KEY[key[0]]]
            self._survives = any(
                cells.answers(one) and one[0] & 3 != NAMED and not self.target.takes(other, one)
                for other, cell in self._view.cells(self._digest)
                for one in cells.entries_of(cell)
            )
            with SpooledTemporaryFile(_IN_MEMORY) as self._held:
                self._count_dependents(key, dependents, sizes, known, urls)
                self._end_digest()

    def _own(self, key: bytes, bodies: list[bytes]) -> Iterator[bytes]:
        """Yield what index and ledger have under a key: captures, and claims that the target takes.

        `bodies` are the items of the ledger.
        """
        cell = next((cell for found, cell in self._view.cells(key) if found == key), b"")
        for one in (*cells.entries_of(cell), *bodies) if cell else bodies:
            is_capture = one[0] != cells.DEPENDENT and one[0] & 3 != REVISIT
            if is_capture and (one[0] & 3 != NAMED or self.target.by_url):
                yield one

    def _count_dependents(
        self, key: bytes, dependents: Iterable[bytes], sizes: dict[tuple[bytes, bytes], int],
        captures: set[tuple[bytes, bytes]], answering: set[bytes],
    ) -> None:  # fmt: skip
        """Count the revisits that refer to what goes and do not go themselves, each once.

        `sizes` are those of the captures that go; `captures` and the URLs `answering` stay.
        """
        digest, second, counted = cells.digest_of_key(key), b"", set[bytes]()
        for body in dependents:
            if self.target.takes_dependent(body):
                continue
            revisit = Dependent.of(body)
            packed, to_second = pack(revisit.names_url), body[7:13]
            if any(to_second):
                original = to_second, packed
                all_of_url = self.target.takes_url(revisit.names_url) and not answering
                if original in captures or not (original in sizes or all_of_url):
                    continue
                size = sizes.get(original, -1)
            else:  # without a date any capture of the URL will do
                of_url = [size for (_, url), size in sizes.items() if url == packed]
                if packed in answering or not of_url:
                    continue
                size = max(of_url)
            if body[1:7] != second:
                second, counted = body[1:7], set()
            if revisit.url in counted:  # it is also in a log, or in a copy of its file
                continue
            counted.add(revisit.url)
            size = revisit.size if revisit.size >= 0 else size
            place = self._container(revisit.container)
            left = SAME_URL if packed in answering else ""
            self.impact.add_dependent(place.container, place.crawl, size)
            if not left:
                self._revisits.add(size)
            if self._on_item is not None:
                item = DependentRevisit(digest, revisit, *place, size, left)
                pickle.dump(item, self._held)

    def _end_digest(self) -> None:
        """Count and report what was undecided until all of a digest was read."""
        where = OTHER_URL if self._survives else NOWHERE_ELSE
        self.impact.left[where].add_all(self._originals)
        if self._originals.captures:
            entries = chain.from_iterable(map(cells.entries_of, self._others))
            self._files.update(map(cells.container_of, filter(cells.answers, entries)))
        self._others.clear()
        if where is NOWHERE_ELSE:
            self.impact.broken.add_all(self._revisits)
        self._originals, self._revisits = Amount(), Amount()
        end = self._held.tell()
        if self._on_item is None or not end:
            return
        self._held.seek(0)
        while self._held.tell() < end:
            item = pickle.load(self._held)
            self._on_item(item if item.left else item._replace(left=where))
        self._held.seek(0)
        self._held.truncate()


def _is_another(names: list[str], name: str) -> bool:
    """Return whether a capture is none of those that were counted, of the same URL and second.

    One that a crawler or a CDX file names without the directory of its file is the same as the
    record that was read. `names` are the files of those that were counted, and is changed.
    """
    for at, counted in enumerate(names):
        if row_matches(counted, name) or row_matches(name, counted):
            names[at] = max(counted, name, key=len)
            return False
    names.append(name)
    return True


class _LedgerCursor:
    """The items of a ledger, for keys in order."""

    def __init__(
        self, found: Iterator[bytes], position: Callable[[bytes], Any] = lambda key: key
    ) -> None:
        """`position` is what the items are ordered by; the keys that are asked for are, too."""
        self._found, self._position = found, position
        self._next: bytes | None = next(found, None)

    def copies(self, key: bytes) -> list[bytes]:
        """The copies under a key; skips what is before it."""
        if self._next is not None and not self._next.startswith(key):
            start = self._position(key)
            while self._next is not None and self._position(self._next) < start:
                self._next = next(self._found, None)
        return list(self._under(key, copies=True))

    def dependents(self, key: bytes) -> Iterator[bytes]:
        """The dependents under a key, after its copies."""
        return self._under(key, copies=False)

    def finish(self) -> None:
        """Read what is left."""
        for _ in self._found:
            pass

    def _under(self, key: bytes, *, copies: bool) -> Iterator[bytes]:
        while self._next is not None and self._next.startswith(key):
            body = self._next[len(key) :]
            if copies and body[0] == cells.DEPENDENT:
                return
            self._next = next(self._found, None)
            yield body


def _size_of_file(name: str) -> int | None:
    """Return the bytes of a file, None if there is none that can be seen."""
    try:
        status = os.stat(name)
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _size(key: bytes, entry: bytes) -> int:
    """Bytes of payload of an entry's capture, -1 unknown."""
    size = int.from_bytes(entry[8:12], "big")
    if entry[0] & _OF_RECORD or size == cells.UNKNOWN_SIZE:
        return -1
    if size < cells.SIZE_IN_EXTRAS:
        return size
    return cells.decode(key, entry, lambda number: cells.NOWHERE).size
