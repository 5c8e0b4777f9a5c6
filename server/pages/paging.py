"""Long lists in pages."""

from __future__ import annotations

from typing import NamedTuple

from dedupindex.errors import BadQuery

SIZE = 50  # rows
_LAST = 1_000_000


class Paging(NamedTuple):
    """One page of a list; `number` counts from 1."""

    number: int = 1
    more: bool = False  # whether there is a page after it
    size: int = SIZE

    @property
    def start(self) -> int:
        """Return the index of its first row."""
        return (self.number - 1) * self.size

    @property
    def stop(self) -> int:
        return self.start + self.size

    def of(self, found: int) -> Paging:
        """Return the page, with `more` set if `found` rows are more than fit."""
        return self._replace(more=found > self.size)


def page_asked(text: str) -> int:
    """Return the page number of a query; raises `BadQuery`."""
    if not text:
        return 1
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:9]) <= _LAST:
        raise BadQuery(f"page takes a number from 1 to {_LAST:,}")
    return int(text[:9])
