"""What removing captures from an index would do: counts, and the captures that they count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from dedupindex.capture import Capture
from dedupindex.digest import Digest
from dedupindex.index.format.ledger import Dependent
from dedupindex.lookup.savings import known
from dedupindex.runtime.bounded_counter import Sums

SAME_URL, OTHER_URL, NOWHERE_ELSE = "same_url", "other_url", "nowhere"

# What the counts of a purge are called. These are records, as each goes by itself: one that two
# files have counts twice, unlike a capture in the content of an index.
LABELS = {
    "originals": "originals", "copies": "other records", "revisits": "revisit records",
    "unmerged": "unmerged",
}  # fmt: skip


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
    copies: Amount = field(
        default_factory=Amount
    )  # records that would be removed and answer nothing
    left: dict[str, Amount] = field(
        default_factory=lambda: {name: Amount() for name in (SAME_URL, OTHER_URL, NOWHERE_ELSE)}
    )  # the originals, by where their payload would still be stored
    revisits: Amount = field(default_factory=Amount)  # of the target itself, that would be removed
    dependents: Amount = field(default_factory=Amount)  # revisits that need what would go
    broken: Amount = field(default_factory=Amount)  # of these, whose payload would be nowhere
    by_digest: Amount = field(default_factory=Amount)  # of these, which name nothing that would go
    # Of the dependents, for each file and crawl that has them; the fields of `Amount`.
    by_container: Sums = field(default_factory=lambda: Sums(3))
    by_crawl: Sums = field(default_factory=lambda: Sums(3))

    @staticmethod
    def add_to(sums: Sums, name: str, size: int) -> None:
        """Add a dependent to `by_container` or `by_crawl`, under each name that has it."""
        sums.add(name.encode("utf-8", "surrogateescape"), 1, max(size, 0), int(size < 0))


class RemovedOriginal(NamedTuple):
    digest: Digest
    capture: Capture
    left: str  # SAME_URL, OTHER_URL or NOWHERE_ELSE
    successor: Capture | None  # the copy of its URL that takes its place


class RemovedCopy(NamedTuple):
    """A capture that answers nothing; its file stores the payload, too."""

    capture: Capture


class UnmergedCapture(NamedTuple):
    """A capture of a crawl that is not merged."""

    capture: Capture


class DependentRevisit(NamedTuple):
    """A revisit that needs a capture that would be removed.

    It refers to that; or what it refers to is not stored, and the last stored copy of its payload
    would be removed. There is one for each file that holds the revisit.
    """

    digest: Digest
    dependent: Dependent
    container: str
    crawl: str
    size: int  # bytes of payload, -1 unknown
    left: str
    by_digest: bool = False  # it does not refer to what would be removed


class RemovedRevisit(NamedTuple):
    """A revisit that would be removed itself, whatever it refers to."""

    digest: Digest
    dependent: Dependent
    container: str
    crawl: str
    size: int  # bytes of payload, -1 unknown


class OutdatedFile(NamedTuple):
    """A file with another size than it had when the index read it, in bytes."""

    file: str
    size_indexed: int
    size_now: int


Item = RemovedOriginal | RemovedCopy | UnmergedCapture | DependentRevisit | RemovedRevisit
OnItem = Callable[[Item], None]
