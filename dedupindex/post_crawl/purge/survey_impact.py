"""Survey what removing captures would do, by one pass over index and ledger in key order.

For each original that would be removed: does another copy of its URL take its place, is the payload
stored under another URL, or nowhere? And which revisits depend on it? Memory use is constant, but
for the numbers of the files that have such originals or their copies.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from dedupindex.counts import OnProgress, silent
from dedupindex.index.engine import View
from dedupindex.index.format import cells
from dedupindex.index.format.file_names import files_of, note_file
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
from dedupindex.post_crawl.purge.dependents import (
    DigestImpact,
    KeyChange,
    LedgerCursor,
    cell_stores,
    stores,
)
from dedupindex.post_crawl.purge.impact import (
    SAME_URL,
    Impact,
    OnItem,
    OutdatedFile,
    RemovedCopy,
    RemovedOriginal,
    RemovedRevisit,
)
from dedupindex.post_crawl.purge.target import ResolvedTarget, TargetKind
from dedupindex.runtime.progress import watched

_MAX_OTHERS = 1000  # keys of a digest of which nothing goes, whose files are remembered
_MAX_RANGES = 1000  # digests that are looked up one by one, each in all files of the ledger
_OF_RECORD = 32  # in an entry's flags: its size is that of the record


class KeyContents(NamedTuple):
    """What index and ledger have under a key, without what was purged before."""

    copies: list[bytes]  # of the ledger
    known: list[bytes]  # all captures and claims
    taken: set[bytes]  # of these, what the target takes
    rows: set[bytes]  # of these, rows that list what is taken
    tombstones: Tombstones

    @property
    def going(self) -> set[bytes]:
        return self.taken | self.rows

    def keeps(self) -> bool:
        """Return whether a stored capture stays."""
        going = self.going
        return stores((entry for entry in self.known if entry not in going), self.tombstones)

    def removes(self) -> bool:
        """Return whether a stored capture goes."""
        return bool(self.taken) and stores(self.going, self.tombstones)


class _Remainder(NamedTuple):
    """What a key holds without the removed entries."""

    staged: list[bytes]  # what a load must bring: tombstones, and copies that stay
    answering: list[bytes]  # entries that answer, one for a URL
    captures: set[tuple[bytes, bytes]]  # second and packed URL of all captures that stay


class ImpactSurvey:
    """Goes through an index once; `impact` is complete after `run`.

    With a `writer` it stages the load that removes the captures; `rewrites` is then whether the
    ledger may hold some of them. `on_item` gets each original, copy and revisit that is counted.
    """

    def __init__(
        self, view: View, target: ResolvedTarget, settings: Settings, *,
        writer: RunWriter | None = None, on_item: OnItem | None = None,
    ) -> None:  # fmt: skip
        self.impact, self._on_item = Impact(), on_item
        self.view, self.target, self.writer = view, target, writer
        self._rule = MergeRule(settings.keys(), settings.keep == "latest", self._container)
        self.rewrites = view.has_ledger() and target.target.kind is not TargetKind.CAPTURE
        self._files = set[int]()  # containers of what would be removed, and of its copies
        self._others = list[bytes]()  # the first cells of a digest of which nothing goes
        self._last: tuple[bytes, list[bytes]] = b"", []  # the last key that was read, its captures
        self.digest = DigestImpact(self.impact, view, target, on_item)

    def run(self, on_progress: OnProgress = silent) -> None:
        with self.digest:
            self._read(on_progress)

    def outdated(self) -> list[OutdatedFile]:
        """Return the files that changed since they were indexed, after `run`, by name.

        Only files of this machine with originals that would be removed, or with copies of these,
        are looked at, and only at their sizes: rewriting in place makes a file smaller, and a file
        that was copied or restored has another time. A revisit in them may refer to what goes.
        """
        places = {self.view.place_of(number).container for number in self._files - {0}}
        names = {file for place in places for file in files_of(place) if os.path.isabs(file)}
        found = []
        for name in sorted(names):
            indexed = self.view.container(name)
            if indexed is None or (size := _size_of_file(name)) in (None, indexed.size):
                continue
            found.append(OutdatedFile(name, indexed.size, size))
        return found

    def _container(self, number: int) -> cells.ContainerRef:
        return self.view.place_of(number) if number else cells.NOWHERE

    def _read(self, on_progress: OnProgress) -> None:
        view, prefixes, target, digest = self.view, self._prefixes(), self.target, self.digest
        found, total = view.cells_by_digest(), view.counts().captures
        ledger = LedgerCursor(self._count_revisits(view.ledger_by_digest()), view.position)
        if prefixes:
            found, total = chain.from_iterable(map(view.cells, prefixes)), 0
            ledger = LedgerCursor(chain.from_iterable(map(view.ledger, prefixes)))
        prefix = b""
        for key, cell in watched(found, "reading", total, on_progress):
            if not prefix or not key.startswith(prefix):
                self._end_digest(ledger)
                prefix = key[: cells.DIGEST_KEY[key[0]]]
                digest.begin(prefix)
            if not target.may_hold(key):
                self._add_other(cell)
                if not digest.stored and cell_stores(cell):
                    digest.keep()
                continue
            ledger.skip_to(key, prefix, digest.add_other)
            contents = self.contents(key, cell, ledger.copies(key))
            self._last = key, contents.known
            if contents.taken:
                self._files.update(map(cells.container_of, contents.known))
                self.rewrites = self.rewrites or not contents.taken.isdisjoint(contents.copies)
                self._remove(key, cell, contents, ledger)
            else:
                self._add_other(cell)
                if not digest.stored and (cell_stores(cell) or contents.keeps()):
                    digest.keep()
        self._end_digest(ledger)
        ledger.finish()

    def contents(self, key: bytes, cell: bytes, held: list[bytes]) -> KeyContents:
        """Return what is under a key, of its cell and the copies `held` by the ledger."""
        target, tombstones = self.target, Tombstones.among(list(cells.entries_of(cell)))
        copies = []
        for copy in held:
            if tombstones.is_purged(copy, self._container):
                # If it goes, a purge on a cluster was killed before it removed it there.
                self.rewrites = self.rewrites or target.takes(key, copy)
            elif not (copy[0] & 3 == NAMED and tombstones.is_chain(copy)):
                copies.append(copy)
        entries = [entry for entry in cells.entries_of(cell) if entry[0] & 3 != REVISIT]
        known = [*map(cells.strip_flags, entries), *copies]
        taken = {entry for entry in known if target.takes(key, entry)}
        rows = self._rows_of(known, taken) if taken and not target.by_url else set[bytes]()
        return KeyContents(copies, known, taken, rows, tombstones)

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
            if self.writer is not None and self.target.by_url and revisit.url not in names:
                tombstone = encode_purged_revisit(body[1:7], pack(revisit.url))
                self.writer.extend([self.target.keys.key_of(digest, revisit.url) + tombstone])
            if not _is_another(names.setdefault(revisit.url, []), place.container):
                continue
            size = self._size_of_revisit(item[:end], body[7:13], revisit)
            self.impact.revisits.add(size)
            if self._on_item is not None:
                self._on_item(RemovedRevisit(digest, revisit, *place, size))

    def _size_of_revisit(self, key: bytes, second: bytes, revisit: Dependent) -> int:
        """Return the bytes of payload of a revisit, else of what it names, else -1.

        Captures of its key with another date have the same payload. An item of the ledger is
        counted when it is passed, which is before the next key is read.
        """
        if revisit.size >= 0:
            return revisit.size
        if key != self._last[0]:  # no capture has it, or none that the target may take
            self._last = key, [] if self.target.may_hold(key) else self._captures_of(key)
        known = self._last[1]
        packed = pack(revisit.names_url)
        named = [one for one in known if (one[2:8], cells.packed_url(one)) == (second, packed)]
        sizes = [max((size_of(key, one) for one in some), default=-1) for some in (named, known)]
        return next((size for size in sizes if size >= 0), -1)

    def _captures_of(self, key: bytes) -> list[bytes]:
        """Return what answers under a key that the survey does not read."""
        cell = self.view.cell(key)
        return [one for one in cells.entries_of(cell) if cells.answers(one)] if cell else []

    def _add_other(self, cell: bytes) -> None:
        if len(self._others) < _MAX_OTHERS:
            self._others.append(cell)

    def _prefixes(self) -> list[bytes]:
        """Sorted prefixes of the keys to read, which are digests; none: all keys are read."""
        target = self.target.target
        if target.kind is TargetKind.CAPTURE and self.view.own_digests():
            digests = {cells.digest_prefix(capture.digest) for capture in target.captures}
            if len(digests) <= _MAX_RANGES:
                return sorted(digests)
        return []

    def _rows_of(self, known: list[bytes], taken: set[bytes]) -> set[bytes]:
        """CDX rows under a key that may list records which are taken from their containers."""
        tombstones = Tombstones.among([encode_purged(entry, anywhere=False) for entry in taken])
        rows = {entry for entry in known if entry[0] & 3 == ROW} - taken
        return {entry for entry in rows if tombstones.is_purged(entry, self._container)}

    def _remainder(self, key: bytes, cell: bytes, contents: KeyContents) -> _Remainder:
        """What is left under a key without what goes, merged as a load will merge it.

        Only what is taken gets tombstones: rows come back with the records that they list.
        """
        anywhere, gone = self.target.by_url, contents.going
        tombstones = {encode_purged(entry, anywhere=anywhere) for entry in contents.taken}
        stay = [entry for entry in contents.copies if entry not in gone]
        merged = self._rule.settle(key, [*mark_before(cell), *tombstones, *stay], MergeOutcome())
        left = list(cells.entries_of(merged)) if merged else []
        both = [*cells.entries_of(cell), *stay]
        held = {cells.strip_flags(entry) for entry in both if entry[0] & 3 not in (NAMED, REVISIT)}
        return _Remainder(
            [*tombstones, *stay],
            [entry for entry in left if cells.answers(entry)],
            {(entry[2:8], cells.packed_url(entry)) for entry in held - gone},
        )

    def _remove(self, key: bytes, cell: bytes, contents: KeyContents, ledger: LedgerCursor) -> None:
        """Count what goes under a key, and what depends on it."""
        remainder, digest = self._remainder(key, cell, contents), self.digest
        if self.writer is not None:
            self.writer.extend(sorted(key + entry for entry in remainder.staged))
        successors = {cells.packed_url(entry): entry for entry in remainder.answering}
        if not digest.stored and contents.keeps():
            digest.keep()
        answered = set(map(cells.strip_flags, filter(cells.answers, cells.entries_of(cell))))
        sizes: dict[tuple[bytes, bytes], int] = {}  # by second and packed URL
        counted: dict[tuple[bytes, bytes], list[str]] = {}  # names of their files
        for entry in sorted(contents.going, key=lambda entry: (entry not in answered, entry)):
            size = size_of(key, entry)
            capture_key = entry[2:8], cells.packed_url(entry)
            sizes[capture_key] = max(size, sizes.get(capture_key, -1))
            if entry[1] & cells.ALSO:  # it is counted under its own digest
                continue
            if entry[0] & 3 == ROW and contents.tombstones.refutes(entry):
                continue  # the record that it lists was read, and is a revisit
            name = self._container(cells.container_of(entry)).container
            another = _is_another(counted.setdefault(capture_key, []), name)
            if entry in answered:
                self._add_original(key, entry, size, successors.get(cells.packed_url(entry)))
            elif another:
                self.impact.copies.add(size)
                if self._on_item is not None:
                    self._on_item(RemovedCopy(cells.decode(key, entry, self._container)))
        if contents.removes():
            digest.remove(max(sizes.values()))
        change = KeyChange(sizes, remainder.captures, set(successors))
        digest.count(key, ledger.dependents(key), change)

    def _add_original(self, key: bytes, entry: bytes, size: int, successor: bytes | None) -> None:
        self.impact.originals.add(size)
        item = None
        if self._on_item is not None:
            item = RemovedOriginal(
                cells.digest_of_key(key),
                cells.decode(key, entry, self._container),
                SAME_URL if successor else "",
                cells.decode(key, successor, self._container) if successor else None,
            )
        if successor:
            self.impact.left[SAME_URL].add(size)
            self.digest.list_original(item)
        else:
            self.digest.add_original(size, item)

    def _end_digest(self, ledger: LedgerCursor) -> None:
        """Count and report what was undecided until all of a digest was read."""
        digest = self.digest
        if digest.changed:
            if digest.removes_originals:
                entries = chain.from_iterable(map(cells.entries_of, self._others))
                self._files.update(map(cells.container_of, filter(cells.answers, entries)))
            digest.end(ledger.rest(digest.prefix))
        self._others.clear()


def _is_another(names: list[str], name: str) -> bool:
    """Return whether a capture is none of those that were counted, of the same URL and second.

    `names` are the files of those, see `note_file`.
    """
    count = len(names)
    return note_file(names, name) == count


def _size_of_file(name: str) -> int | None:
    """Return the bytes of a file, None if there is none that can be seen."""
    try:
        status = os.stat(name)
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def size_of(key: bytes, entry: bytes) -> int:
    """Bytes of payload of an entry's capture, -1 unknown."""
    size = int.from_bytes(entry[8:12], "big")
    if entry[0] & _OF_RECORD or size == cells.UNKNOWN_SIZE:
        return -1
    if size < cells.SIZE_IN_EXTRAS:
        return size
    return cells.decode(key, entry, lambda number: cells.NOWHERE).size
