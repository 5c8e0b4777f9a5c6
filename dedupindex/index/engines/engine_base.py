"""What engines share: views that decode cells, and indexes in files of a directory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from dedupindex.cache import Cache
from dedupindex.capture import Capture
from dedupindex.counts import OnProgress, silent
from dedupindex.digest import Digest
from dedupindex.digest_filter import PartInfo
from dedupindex.errors import Damaged, DedupError, IndexUnavailable, StrategyUnavailable
from dedupindex.index.engine import (
    PLACES_KEPT,
    PURGES_KEPT,
    Engine,
    IndexCounts,
    Load,
    View,
)
from dedupindex.index.filter_store import FilterStore
from dedupindex.index.format import cells, ledger, url_index, visits
from dedupindex.index.format.cells import ContainerRef, Keys, answers, decode, entries_of
from dedupindex.index.format.fast_answer import BROKEN
from dedupindex.index.format.ledger import LedgerWriter, drops_of
from dedupindex.index.format.tombstones import denied, is_tombstone
from dedupindex.index.identity import read_identity, unfinished
from dedupindex.index.load.merge_rule import MergeOutcome, checksum
from dedupindex.runtime.files import sync_directory
from dedupindex.runtime.progress import watched
from dedupindex.urlkey import urlkey


class CellView(View):
    """A view that decodes the cells of its engine."""

    __slots__ = ("_places", "keys")

    def __init__(self, keys: Keys, places: Cache[int, ContainerRef]) -> None:
        """`places`: a cache of container names that the views of an engine share."""
        self.keys, self._places = keys, places

    def place_of(self, number: int) -> ContainerRef:
        place = self._places.get(number)
        return self._places.keep(number, self._read_place(number)) if place is None else place

    @abstractmethod
    def _read_place(self, number: int) -> ContainerRef:
        """Read what a container number stands for; raises `KeyError` or `Damaged`."""

    @abstractmethod
    def cell(self, key: bytes) -> bytes | None:
        """Return the cell of a key; raises `Damaged`."""

    @abstractmethod
    def cells_at(self, tail: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys, and cells, that have `tail` after the digest; or `StrategyUnavailable`."""

    def first_cells(self, prefix: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return the first keys with a prefix, and their cells."""
        return list(islice(self.cells(prefix), limit))

    def exact(self, digest: Digest, url: bytes) -> list[Capture]:
        key = self.keys.key_of(digest, url)
        cell = self.cell(key)
        if cell is None:
            return []
        return [capture for capture in self.decoded(key, cell) if capture.url == url]

    def canonical(self, digest: Digest, key: bytes, limit: int) -> list[Capture]:
        found = self._first(cells.canonical_prefix(digest, key), limit)
        return [capture for capture in found if urlkey(capture.url) == key]

    def any(self, digest: Digest, limit: int) -> list[Capture]:
        return self._first(cells.digest_prefix(digest), limit)

    def all_of(self, digest: Digest, most: int) -> list[Capture] | None:
        found = self.first_cells(cells.digest_prefix(digest), most + 1)
        if len(found) > most:
            return None
        return [capture for key, cell in found for capture in self.decoded(key, cell)]

    def _first(self, prefix: bytes, limit: int) -> list[Capture]:
        found: list[Capture] = []
        for key, cell in self.first_cells(prefix, max(limit, 0)):
            found += self.decoded(key, cell)
        return found

    def denies(self, digest: Digest, capture: Capture) -> str:
        if not self.first_cells(cells.digest_prefix(digest), 1):
            return ""  # found sooner than the key is made
        key = self.keys.key_of(digest, capture.url)
        cell = self.cell(key)
        try:
            return "" if cell is None else denied(entries_of(cell), capture, self.place_of)
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

    def defect(self, key: bytes, cell: bytes) -> str:
        """Return what is wrong with a cell whose checksum is right, "" if nothing is."""
        try:
            digest, found = cells.digest_of_key(key), self.decoded(key, cell)
            if any(self.keys.key_of(digest, capture.url) != key for capture in found):
                return f"the entry under {key.hex()} belongs under another key"
        except (Damaged, *BROKEN) as error:
            return f"the entry under {key.hex()} is damaged: {error}"
        return ""

    def captures(self) -> Iterator[tuple[Digest, Capture]]:
        return ((cells.digest_of_key(key), one) for key, one in self.captures_by_key())

    def captures_by_key(self, begin: bytes = b"") -> Iterator[tuple[bytes, Capture]]:
        for key, cell in self.cells_from(begin):
            for capture in self.decoded(key, cell):
                yield key, capture

    def at_url(self, url: bytes) -> Iterator[Capture]:
        found = self._at(self.keys.tail(url)[: url_index.URL])
        return (capture for capture in found if capture.url == url)

    def at_urlkey(self, key: bytes) -> Iterator[Capture]:
        if not self.keys.canonical:
            raise StrategyUnavailable(url_index.MISSING)
        found = self._at(cells.urlkey_hash(key))
        return (capture for capture in found if urlkey(capture.url) == key)

    def _at(self, tail: bytes) -> Iterator[Capture]:
        """Yield the captures of keys with `tail` after the digest, under their own digest only."""
        for key, cell in self.cells_at(tail):
            for capture in self.decoded(key, cell):
                if capture.digest == cells.digest_of_key(key):
                    yield capture


def all_cells(view: CellView, phase: str, on_progress: OnProgress) -> Iterator[tuple[bytes, bytes]]:
    """Yield every key of a view with its cell, and report progress."""
    return watched(view.cells(), phase, view.counts().captures, on_progress)


class CellTally:
    """Counts the cells of an index, of which those of a digest come together."""

    def __init__(self) -> None:
        self.captures = self.digests = self.checksum = 0
        self._digest = Digest("", b"")

    def add(self, key: bytes, cell: bytes) -> None:
        self.checksum = (self.checksum + checksum([(key, cell)])) % (1 << 64)
        originals = sum(map(answers, entries_of(cell)))
        self.captures += originals
        digest = cells.digest_of_key(key)
        if originals and digest != self._digest:
            self.digests, self._digest = self.digests + 1, digest

    def differences(self, containers: int, counts: IndexCounts, checksum: int) -> Iterator[str]:
        """Yield, in sentences, how the recorded counts and checksum differ."""
        found = IndexCounts(self.captures, self.digests, containers)
        for name, count, recorded in zip(counts._fields, found, counts, strict=True):
            if count != recorded:
                yield f"{count:,} {name} are there, {recorded:,} were counted"
        if self.checksum != checksum:
            yield "what is stored is not what was written (its checksum is another)"


# --- indexes in files ----------------------------------------------------------------------------

META: dict[str, Any] = {  # what an index records of itself, before its first load
    "captures": 0, "digests": 0, "checksum": 0, "next_number": 1, "note": {}, "own_digests": True,
    "ledger": [], "purges": [],
}  # fmt: skip
_COPIES_TRIED = 10


def meta_after(
    meta: dict[str, Any], load: Load, outcome: MergeOutcome, ledger: list[str]
) -> dict[str, Any]:
    """Return what an index records of itself after a load; `outcome` is the change of counts."""
    counts = ("captures", "digests", "checksum")
    return {
        **meta,
        **{name: (meta[name] + getattr(outcome, name)) % (1 << 64) for name in counts},
        "next_number": max([meta["next_number"], *(number + 1 for number, _ in load.places)]),
        "note": load.metadata or meta["note"],
        "own_digests": meta["own_digests"] and (load.own_digests or not load.runs),
        "ledger": ledger,
        "purges": [*meta["purges"], *load.purges][-PURGES_KEPT:],
    }


class FileView(CellView):
    """A view of an index in a directory."""

    __slots__ = ("index",)

    def __init__(self, index: Path, keys: Keys, places: Cache[int, ContainerRef]) -> None:
        """`index`: the directory."""
        super().__init__(keys, places)
        self.index = index

    @abstractmethod
    def meta(self, name: str) -> Any:
        """Return a value that the index records of itself; raises `Damaged`."""

    def ledger_files(self) -> list[str]:
        """Return the names of the files of the ledger."""
        return list(self.meta("ledger"))

    def ledger(self, prefix: bytes = b"") -> Iterator[bytes]:
        return ledger.items(self.index, self.ledger_files(), prefix)

    def has_ledger(self) -> bool:
        return bool(self.ledger_files())

    def spread_cells(self, ranges: int, most: int) -> Iterator[tuple[bytes, bytes]]:
        for code in filter(sum, cells.CODES.values()):
            if next(iter(self.cells(code)), None) is not None:
                for step in range(ranges):
                    prefix = code + bytes([step * 256 // ranges])
                    yield from islice(self.cells(prefix), most)

    def state(self) -> str:
        return " ".join([f"{self.meta('checksum'):x}", *self.ledger_files()])

    def own_digests(self) -> bool:
        return bool(self.meta("own_digests"))


class FileEngine(Engine):
    """An open index in a directory."""

    def __init__(self, index: Path) -> None:
        self.index = index
        self.identity = read_identity(index)
        self._places = Cache[int, ContainerRef](PLACES_KEPT)

    @property
    def keys(self) -> Keys:
        """The form of its keys."""
        return self.identity.settings.keys()

    @abstractmethod
    def view(self) -> AbstractContextManager[FileView]: ...

    def _view_or_none(self) -> AbstractContextManager[FileView | None]:
        """Return a view; None before the first load."""
        return self.view() if self.identity.generation else nullcontext()

    def next_number(self) -> int:
        return int(self._meta("next_number", 1))

    def metadata(self) -> dict[str, Any]:
        return dict(self._meta("note", {}))

    def purges(self) -> list[dict[str, Any]]:
        return list(self._meta("purges", []))

    def _meta(self, name: str, default: Any) -> Any:
        with self._view_or_none() as view:
            return default if view is None else view.meta(name)

    def _ledger_writer(self, load: Load) -> LedgerWriter:
        """Return the writer of a load's ledger."""
        with self._view_or_none() as view:
            names = view.ledger_files() if view is not None else []
            drops = drops_of(load.gone(view), load.drops)
        return LedgerWriter(self.index, names, load.ledger, drops, self.keys)

    def visits(self, view: View, prefix: bytes) -> Iterator[bytes]:
        start = 1 + len(self.keys.tail(b""))
        for item in view.ledger(visits.CODE + prefix):
            yield item[start:]

    def _clear_ledger(self) -> None:
        """Remove files of the ledger that a killed load left behind."""
        with self._ledger_writer(Load()):
            pass

    def load(self, load: Load) -> MergeOutcome:
        filters = FilterStore(self.index)
        if not filters.exists():
            return self._load(load)
        try:
            if filters.manifest().state not in (None, self._state()):
                raise Damaged("the digest filter is of another state of the index")
            filters.extend(load.merged())
        except Damaged:
            self.make_filter()
            filters.extend(load.merged())
        outcome = self._load(load)
        with suppress(DedupError):  # what is loaded is loaded; the filter has it in any case
            filters.commit(self._state())
        return outcome

    @abstractmethod
    def _load(self, load: Load) -> MergeOutcome:
        """Commit a load durably, all of it or nothing."""

    def filter_parts(self) -> list[PartInfo] | None:
        store = FilterStore(self.index)
        with suppress(FileNotFoundError):
            known = store.manifest()
            if known.state in (None, self._state()):
                return known.parts
            # A load may have come between. Else index or filter was restored from a copy, say.
            now, generation = store.manifest(), read_identity(self.index).generation
            if now != known or generation != self.identity.generation:
                return now.parts
        return None

    def make_filter(self, on_progress: OnProgress = silent) -> None:
        """Make the digest filter of what the index has; the caller holds the write lock."""
        with self._view_or_none() as view:
            rows = () if view is None else all_cells(view, "making the filter", on_progress)
            # Below a key with tombstones only nothing can answer before a load adds to it.
            keys = (key for key, cell in rows if not all(map(is_tombstone, entries_of(cell))))
            FilterStore(self.index).create(keys, self._state())

    def _state(self) -> int:
        """Return the checksum of all that the index has."""
        return int(self._meta("checksum", 0))

    @abstractmethod
    def _copy_data(self, target: Path) -> list[str]:
        """Copy the data to a directory, and return the files of the ledger that the copy names.

        Raises `FileNotFoundError` if a load removed a file meanwhile.
        """

    def copy(self, target: Path) -> None:
        if not self.identity.generation:
            raise IndexUnavailable(unfinished(self.index))
        try:
            missing = ""
            for _ in range(_COPIES_TRIED):
                try:
                    ledger.copy(self.index, self._copy_data(target), target)
                    break
                except FileNotFoundError as error:  # a load came between: copy the new state
                    missing = error.filename
            else:
                raise IndexUnavailable(f"copying {self.index} failed: {ledger.missing(missing)}")
        except OSError as error:
            raise IndexUnavailable(f"copying to {target} failed: {error}") from error
        sync_directory(target)
        self.identity.write(target)
