"""Long lists in pages of a size that a person looks through."""

from __future__ import annotations

from typing import NamedTuple

from dedupindex.errors import BadQuery

SIZE = 50  # rows
_LAST = 1_000_000


class Paging(NamedTuple):
    """Page `number`, from 1 on."""

    number: int = 1
    more: bool = False  # whether there is a page after it
    size: int = SIZE

    @property
    def start(self) -> int:
        """The place of its first row, from 0 on."""
        return (self.number - 1) * self.size

    @property
    def stop(self) -> int:
        return self.start + self.size

    def of(self, found: int) -> Paging:
        """The same, if of one row more than fit `found` were there."""
        return self._replace(more=found > self.size)


def page_asked(text: str) -> int:
    """The number of a page that a query asks for; raises `BadQuery`."""
    if not text:
        return 1
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:9]) <= _LAST:
        raise BadQuery(f"page takes a number from 1 to {_LAST:,}")
    return int(text[:9])
