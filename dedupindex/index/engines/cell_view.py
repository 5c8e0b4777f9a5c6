"""What views of cells have in common: the originals of a cell, and what its marks deny."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

from dedupindex.capture import Capture
from dedupindex.errors import Damaged, StrategyUnavailable
from dedupindex.index.format import url_index
from dedupindex.index.format.cells import (
    ContainerRef,
    Keys,
    answers,
    decode,
    digest_of_key,
    entries_of,
    urlkey_hash,
)
from dedupindex.index.format.fast_answer import BROKEN, PlainAnswers
from dedupindex.index.format.tombstones import denied
from dedupindex.urlkey import urlkey


class Decoding:
    """A view whose engine keeps cells as they are."""

    __slots__ = ()
    keys: Keys

    @abstractmethod
    def place_of(self, number: int) -> ContainerRef:
        """What a container number stands for."""

    @abstractmethod
    def cells_at(self, sought: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys that, after their digest, begin so, with their cells.

        Raises `StrategyUnavailable` of an index that has no list by URL.
        """

    def plain(self) -> PlainAnswers | None:
        """See `View`; LMDB has it."""
        return None

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

    def at_url(self, url: bytes) -> Iterator[Capture]:
        found = self._at(self.keys.tail(url)[: url_index.URL])
        return (capture for capture in found if capture.url == url)

    def at_urlkey(self, key: bytes) -> Iterator[Capture]:
        if not self.keys.canonical:
            raise StrategyUnavailable(url_index.MISSING)
        found = self._at(urlkey_hash(key))
        return (capture for capture in found if urlkey(capture.url) == key)

    def _at(self, sought: bytes) -> Iterator[Capture]:
        """Captures whose keys are listed so, each under its own digest only."""
        for key, cell in self.cells_at(sought):
            for capture in self.decoded(key, cell):
                if capture.digest == digest_of_key(key):
                    yield capture
