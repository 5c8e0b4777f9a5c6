"""What views of cells have in common: the originals of a cell, and what its marks deny."""

from __future__ import annotations

from abc import abstractmethod

from dedupindex.capture import Capture
from dedupindex.errors import Damaged
from dedupindex.index.answer_bytes import BROKEN
from dedupindex.index.cells import Place, answers, decode, entries_of
from dedupindex.index.marks import denied


class Decoding:
    """A view whose engine keeps cells as they are."""

    __slots__ = ()

    @abstractmethod
    def place_of(self, number: int) -> Place:
        """What a container number stands for."""

    def decoded(self, key: bytes, cell: bytes) -> list[Capture]:
        """The originals of a cell; raises `Damaged`."""
        try:
            return [
                decode(key, entry, self.place_of) for entry in entries_of(cell) if answers(entry)
            ]
        except BROKEN as error:
            raise Damaged(f"the entry under {key.hex()} is damaged: {error!r}") from error

    def denied_in(self, key: bytes, cell: bytes | None, capture: Capture) -> bool:
        """Whether a cell, if there is one, says that a capture is no original; raises `Damaged`."""
        try:
            return cell is not None and denied(entries_of(cell), capture)
        except BROKEN as error:
            raise Damaged(f"the entry under {key.hex()} is damaged: {error!r}") from error
