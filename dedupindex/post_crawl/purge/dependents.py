"""The revisits that depend on what would be removed, digest by digest.

A revisit depends on the capture that it names. If that is not stored, as after an earlier purge, it
depends on any capture with its digest: when the last one goes, its payload is nowhere. Whether it
is the last one is known when all of a digest was read; what is undecided until then is in temporary
files, so memory use is constant.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any, NamedTuple

from dedupindex.digest import Digest
from dedupindex.index.engine import View
from dedupindex.index.format import cells
from dedupindex.index.format.file_names import note_file
from dedupindex.index.format.ledger import Dependent, own_capture
from dedupindex.index.format.packing import pack, unpack
from dedupindex.index.format.tombstones import (
    RECORD,
    REVISIT,
    ROW,
    Tombstones,
    encode_purged_revisit,
)
from dedupindex.index.load.runs import in_order
from dedupindex.post_crawl.purge.impact import (
    NOWHERE_ELSE,
    OTHER_URL,
    SAME_URL,
    Amount,
    DependentRevisit,
    Impact,
    OnItem,
    RemovedOriginal,
)
from dedupindex.post_crawl.purge.target import ResolvedTarget
from dedupindex.sources.discover import is_list_name

_IN_MEMORY = 8 << 20  # bytes of the items of a digest
_COUNTED, _WAITS = b"\0", b"\1"  # of a row: the revisit was counted by what it names, or not
_LENGTH = 4  # bytes of a number

CaptureKey = tuple[bytes, bytes]  # second and packed URL


class KeyChange(NamedTuple):
    """What goes under a key, and what stays."""

    sizes: dict[CaptureKey, int]  # of the captures that go, -1 unknown
    captures: set[CaptureKey]  # that stay
    answering: set[bytes]  # packed URLs of the originals that stay


def stores(entries: Iterable[bytes], tombstones: Tombstones) -> bool:
    """Return whether one of the entries is a payload that is stored.

    What only a revisit says of an original does not count, nor a row whose record was refused.
    """
    return any(
        (kind := entry[0] & 3) == RECORD or (kind == ROW and not tombstones.refutes(entry))
        for entry in entries
    )


def cell_stores(cell: bytes) -> bool:
    """Return whether a cell has a payload that is stored, see `stores`."""
    if cell[0] != cells.SEVERAL:
        return cells.answers(cell) and cell[0] & 3 <= ROW
    entries = list(cells.entries_of(cell))
    return stores(entries, Tombstones.among(entries))


class LedgerCursor:
    """The items of a ledger, for keys in order."""

    def __init__(
        self, found: Iterator[bytes], position: Callable[[bytes], Any] = lambda key: key
    ) -> None:
        """`position` is what the items are ordered by; the keys that are asked for are, too."""
        self._found, self._position = found, position
        self._next: bytes | None = next(found, None)

    def skip_to(self, key: bytes, prefix: bytes, take: Callable[[bytes], None]) -> None:
        """Skip what is before a key; `take` gets the items with a prefix among that."""
        if self._next is None or self._next.startswith(key):
            return
        start = self._position(key)
        while self._next is not None and self._position(self._next) < start:
            if self._next.startswith(prefix):
                take(self._next)
            self._next = next(self._found, None)

    def copies(self, key: bytes) -> list[bytes]:
        """The copies under a key, after what is before it."""
        return list(self._under(key, copies=True))

    def dependents(self, key: bytes) -> Iterator[bytes]:
        """The dependents under a key, after its copies."""
        return self._under(key, copies=False)

    def rest(self, prefix: bytes) -> Iterator[bytes]:
        """Yield the next items as long as they have a prefix."""
        while self._next is not None and self._next.startswith(prefix):
            item, self._next = self._next, next(self._found, None)
            yield item

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


class _Read(NamedTuple):
    """What was read of a revisit, from one of the files or logs that have it."""

    body: bytes  # of the item
    revisit: Dependent
    named: int  # bytes of payload of what it names, -1 unknown


_Holder = tuple[Dependent, cells.ContainerRef]


class DigestImpact:
    """Counts what depends on what goes of one digest after the other; a context manager.

    `stored` is whether a capture with the digest stays, `removes` whether one that is stored goes.
    """

    def __init__(
        self, impact: Impact, view: View, target: ResolvedTarget, on_item: OnItem | None
    ) -> None:
        self._impact, self._view, self._target, self._on_item = impact, view, target, on_item
        self._lengths = target.keys.lengths()
        self.prefix, self.stored, self.removes, self._size = b"", False, False, -1
        self._originals, self._revisits = Amount(), Amount()
        self._waiting, self._has_rows = 0, False
        self.changed = False  # so `end` has to be called
        self._held: IO[bytes]  # items whose `left` is undecided
        self._rows: IO[bytes]  # revisits, see `_row`

    def __enter__(self) -> DigestImpact:
        self._held = SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115
        self._rows = SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()
        self._rows.close()

    def begin(self, prefix: bytes) -> None:
        """Begin another digest, by the part of keys that is its; the last one is over."""
        self.prefix, self.stored = prefix, False
        if self._has_rows:
            self._clear_rows()

    def keep(self) -> None:
        """Note that a stored capture stays, so that no revisit has to wait for the end."""
        self.stored = True
        if self._has_rows:
            self._clear_rows()

    def remove(self, size: int) -> None:
        """Note that a capture goes that is stored, with `size` bytes, -1 unknown."""
        self.removes, self._size, self.changed = True, max(size, self._size), True

    def add_original(self, size: int, item: RemovedOriginal | None) -> None:
        """Count an original that goes without a copy of its URL; `item` is for the list."""
        self._originals.add(size)
        self.changed = True
        self.list_original(item)

    def list_original(self, item: RemovedOriginal | None) -> None:
        if item is not None:
            pickle.dump(item, self._held)
            self.changed = True

    @property
    def removes_originals(self) -> bool:
        """Whether an original goes that has no copy of its URL."""
        return bool(self._originals.captures)

    def add_other(self, item: bytes) -> None:
        """Take an item of the ledger that names nothing that goes; its revisit may wait."""
        end = self._lengths[item[0]]
        if not self.stored and item[end] == cells.DEPENDENT:
            self._wait(item[:end], item[end:])

    def count(
        self, key: bytes, bodies: Iterable[bytes], change: KeyChange, *, counted: bool = False
    ) -> None:
        """Count the revisits that refer to what goes and do not go themselves, each once.

        Each is listed, and counted by file, once for each file that holds it. `counted`: they
        were counted before, and are only not to be counted again.
        """
        for revisit in self._revisits_of(key, bodies, change):
            self.changed = True
            if not self.stored:
                for one in revisit:
                    self._add_row(_COUNTED, key, one.body)
            if not counted:
                self._count_named(cells.digest_of_key(key), revisit, change)

    def _revisits_of(
        self, key: bytes, bodies: Iterable[bytes], change: KeyChange
    ) -> Iterator[list[_Read]]:
        """Yield the revisits that refer to what goes, each with all that was read of it."""
        second, found = b"", dict[bytes, list[_Read]]()  # of one second, by URL
        for body in bodies:
            if self._target.takes_dependent(body):
                continue
            revisit = Dependent.of(body)
            size = self._size_of_named(revisit, body[7:13], pack(revisit.names_url), change)
            if size is None:
                self._wait(key, body)
                continue
            if body[1:7] != second:
                yield from found.values()
                second, found = body[1:7], {}
            found.setdefault(revisit.url, []).append(_Read(body, revisit, size))
        yield from found.values()

    def _count_named(self, digest: Digest, revisit: list[_Read], change: KeyChange) -> None:
        """Count a revisit that refers to what goes; the list has each file that holds it."""
        holders = self._holders(one.revisit for one in revisit)
        sizes = (one.revisit.size if one.revisit.size >= 0 else one.named for one in revisit)
        size = next((known for known in sizes if known >= 0), -1)
        stays = [pack(one.names_url) in change.answering for one, _ in holders]
        self._add_dependent(holders, size)
        if not stays[0]:
            self._revisits.add(size)
        if self._on_item is not None:
            for (one, place), stay in zip(holders, stays, strict=True):
                left = SAME_URL if stay else ""
                pickle.dump(DependentRevisit(digest, one, *place, size, left), self._held)

    def _holders(self, read: Iterable[Dependent]) -> list[_Holder]:
        """Return what was read of a revisit, once for each file that holds it.

        A log or CDX file that has it too, or names no file, is left out if an archive holds it.
        """
        holders, names = list[_Holder](), list[str]()
        for revisit in read:
            place = self._place(revisit)
            known = len(names)
            at = note_file(names, place.container)
            if at == known:
                holders.append((revisit, place))
            elif names[at] != holders[at][1].container:  # this one has the path of the file
                holders[at] = revisit, place
        archives = [
            (revisit, place)
            for revisit, place in holders
            if place.container and not is_list_name(place.container)
        ]
        return archives or holders

    def _add_dependent(self, holders: list[_Holder], size: int, *, again: bool = False) -> None:
        """Count a revisit for each file and crawl that has it, and in all unless `again`."""
        places = [place for _, place in holders]
        if not again:
            self._impact.dependents.add(size)
        for place in places:
            self._impact.add_to(self._impact.by_container, place.container, size)
        for crawl in dict.fromkeys(place.crawl for place in places if not again):
            self._impact.add_to(self._impact.by_crawl, crawl, size)

    def _size_of_named(
        self, revisit: Dependent, second: bytes, packed: bytes, change: KeyChange
    ) -> int | None:
        """Return the size of what a revisit names if that goes, -1 unknown; None if it does not."""
        if any(second):
            original = second, packed
            if original in change.captures:
                return None
            all_of_url = self._target.takes_url(revisit.names_url) and not change.answering
            return change.sizes.get(original, -1 if all_of_url else None)
        # Without a date any capture of the URL will do.
        of_url = [size for (_, url), size in change.sizes.items() if url == packed]
        return max(of_url) if of_url and packed not in change.answering else None

    def end(self, rest: Iterable[bytes]) -> None:
        """Count and report what was undecided; `rest` are the items of the ledger after it."""
        where = OTHER_URL if self.stored else NOWHERE_ELSE
        self._impact.left[where].add_all(self._originals)
        if where is NOWHERE_ELSE:
            self._impact.broken.add_all(self._revisits)
        end = self._held.tell()
        if self._on_item is not None and end:
            self._held.seek(0)
            while self._held.tell() < end:
                item = pickle.load(self._held)
                self._on_item(item if item.left else item._replace(left=where))
            self._held.seek(0)
            self._held.truncate()
        if self.removes and not self.stored:
            for one in rest:
                self.add_other(one)
            self._count_waiting()
        self.removes, self._size, self.changed = False, -1, False
        self._originals, self._revisits = Amount(), Amount()

    def _wait(self, key: bytes, body: bytes) -> None:
        """Keep a revisit until it is known whether the last stored capture of its digest goes."""
        if not self.stored and not self._target.takes_dependent(body):
            self._waiting += 1
            self._add_row(_WAITS, key, body)

    def _count_waiting(self) -> None:
        """Count the revisits whose payload is nowhere without what goes, each once."""
        if not self._waiting:
            return
        rows = in_order(self._read_rows(), Path(tempfile.gettempdir()))
        for own, found in groupby(rows, lambda row: row[: _own_end(row)]):
            counted, waiting = list[Dependent](), list[Dependent]()
            for row in found:
                kind, key = row[len(own) : len(own) + 1], row[len(own) + 1 :]
                revisit = Dependent.of(key[self._lengths[key[0]] :])
                (counted if kind == _COUNTED else waiting).append(revisit)
            if waiting and not self._was_purged(own):
                self._count_nameless(counted, waiting)

    def _count_nameless(self, counted: list[Dependent], waiting: list[Dependent]) -> None:
        """Count a revisit whose payload is nowhere without what goes, if it was not `counted`.

        Of one that was, only further files are listed.
        """
        holders = self._holders([*counted, *waiting])
        listed = {place.container for _, place in self._holders(counted)}
        further = [one for one in holders if one[1].container not in listed]
        size = next((one.size for one in waiting if one.size >= 0), self._size)
        self._add_dependent(further, size, again=bool(counted))
        if not counted:
            self._impact.broken.add(size)
            self._impact.by_digest.add(size)
        if self._on_item is not None:
            digest = cells.digest_of_key(self.prefix)
            for revisit, place in further:
                self._on_item(DependentRevisit(digest, revisit, *place, size, NOWHERE_ELSE, True))

    def _was_purged(self, own: bytes) -> bool:
        """Return whether a revisit was purged by its URL, and its file was read again since."""
        packed, second = own[_LENGTH:-6], own[-6:]
        key = self._target.keys.key_of(cells.digest_of_key(self.prefix), unpack(packed))
        cell = self._view.cell(key)
        tombstone = encode_purged_revisit(second, packed)
        return cell is not None and any(
            entry[0] & 3 == REVISIT and entry == tombstone for entry in cells.entries_of(cell)
        )

    def _place(self, revisit: Dependent) -> cells.ContainerRef:
        return self._view.place_of(revisit.container) if revisit.container else cells.NOWHERE

    def _read_rows(self) -> Iterator[bytes]:
        end = self._rows.tell()
        self._rows.seek(0)
        while self._rows.tell() < end:
            yield pickle.load(self._rows)

    def _add_row(self, kind: bytes, key: bytes, body: bytes) -> None:
        pickle.dump(_row(kind, key, body), self._rows)
        self._has_rows = True

    def _clear_rows(self) -> None:
        self._waiting, self._has_rows = 0, False
        self._rows.seek(0)
        self._rows.truncate()


def _row(kind: bytes, key: bytes, body: bytes) -> bytes:
    """Return a row that sorts by the URL and second of the revisit itself, those counted first."""
    second, packed = own_capture(body)
    return b"%b%b%b%b%b%b" % (len(packed).to_bytes(_LENGTH), packed, second, kind, key, body)


def _own_end(row: bytes) -> int:
    """Return where the URL and second of the revisit itself end in a row."""
    return _LENGTH + int.from_bytes(row[:_LENGTH]) + 6
