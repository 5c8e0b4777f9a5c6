"""What the engines share that keep an index in files of its directory."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from dedupindex.cache import Cache
from dedupindex.errors import IndexUnavailable
from dedupindex.index.engine import PLACES_KEPT, Engine, Load
from dedupindex.index.engines.cell_view import CellView
from dedupindex.index.format import ledger
from dedupindex.index.format.cells import ContainerRef, Keys
from dedupindex.index.format.ledger import LedgerWriter, drops_of
from dedupindex.index.identity import read_identity, unfinished
from dedupindex.index.load.merge_rule import MergeOutcome
from dedupindex.runtime.files import sync_directory

META: dict[str, Any] = {  # what an index records of itself, before its first load
    "captures": 0, "digests": 0, "checksum": 0, "next_number": 1, "note": {}, "own_digests": True,
    "ledger": [],
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
    }


class FileView(CellView):
    """A view of an index in a directory."""

    __slots__ = ()

    @abstractmethod
    def meta(self, name: str) -> Any:
        """Return a value that the index records of itself; raises `Damaged`."""

    def ledger(self) -> list[str]:
        return list(self.meta("ledger"))

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

    def _meta(self, name: str, default: Any) -> Any:
        with self._view_or_none() as view:
            return default if view is None else view.meta(name)

    def _ledger_writer(self, load: Load) -> LedgerWriter:
        """Return the writer of a load's ledger."""
        with self._view_or_none() as view:
            names = view.ledger() if view is not None else []
            drops = drops_of(load.gone(view), load.drops)
        return LedgerWriter(self.index, names, load.ledger, drops, self.keys)

    def _clear_ledger(self) -> None:
        """Remove files of the ledger that a killed load left behind."""
        with self._ledger_writer(Load()):
            pass

    @abstractmethod
    def _copy_data(self, target: Path) -> list[str]:
        """Copy the data to a directory, and return the files of the ledger that the copy names.

        Raises `FileNotFoundError` if a load removed a file meanwhile.
        """

    def copy(self, target: Path) -> None:
        if not self.identity.generation:
            raise IndexUnavailable(unfinished(self.index))
        try:
            for _ in range(_COPIES_TRIED):
                with suppress(FileNotFoundError):  # a load came between: copy the new state
                    ledger.copy(self.index, self._copy_data(target), target)
                    break
            else:
                raise IndexUnavailable(f"copying {self.index} failed: it changes all the time")
        except OSError as error:
            raise IndexUnavailable(f"copying to {target} failed: {error}") from error
        sync_directory(target)
        self.identity.write(target)
