"""The part of a view that all engines share: originals and tombstones of cells."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from itertools import islice

from dedupindex.capture import Capture
from dedupindex.digest import Digest
from dedupindex.errors import Damaged, StrategyUnavailable
from dedupindex.index.engine import IndexCounts, View
from dedupindex.index.format import url_index
from dedupindex.index.format.cells import (
    Keys,
    answers,
    canonical_prefix,
    decode,
    digest_of_key,
    digest_prefix,
    entries_of,
    urlkey_hash,
)
from dedupindex.index.format.fast_answer import BROKEN
from dedupindex.index.format.tombstones import denied
from dedupindex.index.load.merge_rule import checksum
from dedupindex.urlkey import urlkey


class CellView(View):
    """A view that decodes the cells of its engine."""

    __slots__ = ()
    keys: Keys

    @abstractmethod
    def cell(self, key: bytes) -> bytes | None:
        """Return the cell of a key; raises `Damaged`."""

    @abstractmethod
    def cells_at(self, tail: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys, and their cells, that have `tail` after the digest.

        Raises `StrategyUnavailable` if the index has no list by URL.
        """

    def first_cells(self, prefix: bytes, limit: int) -> Iterable[tuple[bytes, bytes]]:
        """Return the first keys with a prefix, and their cells."""
        return islice(self.cells(prefix), limit)

    def exact(self, digest: Digest, url: bytes) -> list[Capture]:
        key = self.keys.of(digest, url)
        cell = self.cell(key)
        if cell is None:
            return []
        return [capture for capture in self.decoded(key, cell) if capture.url == url]

    def canonical(self, digest: Digest, key: bytes, limit: int) -> list[Capture]:
        found = self._first(canonical_prefix(digest, key), limit)
        return [capture for capture in found if urlkey(capture.url) == key]

    def any(self, digest: Digest, limit: int) -> list[Capture]:
        return self._first(digest_prefix(digest), limit)

    def _first(self, prefix: bytes, limit: int) -> list[Capture]:
        found: list[Capture] = []
        for key, cell in self.first_cells(prefix, max(limit, 0)):
            found += self.decoded(key, cell)
        return found

    def denies(self, digest: Digest, capture: Capture) -> bool:
        key = self.keys.of(digest, capture.url)
        cell = self.cell(key)
        try:
            return cell is not None and denied(entries_of(cell), capture)
        except BROKEN as error:
            raise Damaged(f"the entry under {key.hex()} is damaged: {error!r}") from error

    def decoded(self, key: bytes, cell: bytes) -> list[Capture]:
        """Return the originals of a cell; raises `Damaged`."""
        try:
            return [
                decode(key, entry, self.place_of) for entry in entries_of(cell) if answers(entry)
            ]
        except BROKEN as error:
            raise Damaged(f"the entry under {key.hex()} is damaged: {error!r}") from error

    def captures(self) -> Iterator[tuple[Digest, Capture]]:
        for key, cell in self.cells():
            for capture in self.decoded(key, cell):
                yield digest_of_key(key), capture

    def at_url(self, url: bytes) -> Iterator[Capture]:
        found = self._at(self.keys.tail(url)[: url_index.URL])
        return (capture for capture in found if capture.url == url)

    def at_urlkey(self, key: bytes) -> Iterator[Capture]:
        if not self.keys.canonical:
            raise StrategyUnavailable(url_index.MISSING)
        found = self._at(urlkey_hash(key))
        return (capture for capture in found if urlkey(capture.url) == key)

    def _at(self, tail: bytes) -> Iterator[Capture]:
        """Yield the captures of keys with `tail` after the digest, under their own digest only."""
        for key, cell in self.cells_at(tail):
            for capture in self.decoded(key, cell):
                if capture.digest == digest_of_key(key):
                    yield capture


class CellTally:
    """Checks all cells of an index, which come in the order of digests, and counts them."""

    def __init__(self, view: CellView, wrong: list[str]) -> None:
        """`wrong` takes what is wrong, a sentence each."""
        self._view, self._wrong = view, wrong
        self.captures = self.digests = self.checksum = 0
        self._digest = b""

    def add(self, key: bytes, cell: bytes) -> None:
        """Check and count a cell whose own checksum is right."""
        try:
            found = self._view.decoded(key, cell)
            digest = digest_prefix(digest_of_key(key))
            if any(self._view.keys.of(digest_of_key(key), one.url) != key for one in found):
                self._wrong.append(f"the entry under {key.hex()} belongs under another key")
        except (Damaged, *BROKEN) as error:
            self._wrong.append(f"the entry under {key.hex()} is damaged: {error}")
            return
        self.checksum = (self.checksum + checksum([(key, cell)])) % (1 << 64)
        self.captures += len(found)
        if found and digest != self._digest:
            self.digests, self._digest = self.digests + 1, digest

    def compare(self, containers: int, counts: IndexCounts, checksum: int) -> None:
        """Compare with the counts and the checksum that the index has recorded."""
        found = IndexCounts(self.captures, self.digests, containers)
        for name, count, recorded in zip(counts._fields, found, counts, strict=True):
            if count != recorded:
                self._wrong.append(f"{count} {name} are there, {recorded} were counted")
        if self.checksum != checksum:
            self._wrong.append("what is stored is not what was written (its checksum is another)")
