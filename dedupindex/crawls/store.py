"""What a store of crawls keeps and can do, whatever it is made of; and the door to the stores.

A store keeps what crawls are and report, and knows no rule: what a crawl may become (`life`), which
of several captures stays (`captures`), who may store a payload (`claims`), what is counted
(`counting`, `told`) and who sees it (`view`) is decided above it, once for all stores.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeVar

from dedupindex.crawls.crawl import Claim, Crawl
from dedupindex.digest import Digest
from dedupindex.errors import UnknownCrawl
from dedupindex.index.address import Address, is_cluster
from dedupindex.index.engine import Finder
from dedupindex.index.format.cells import ContainerRef
from dedupindex.index.identity import FILE as IDENTITY
from dedupindex.index.identity import read_identity

FILE = "crawls.mdb"
_NAMED, _LOOKED_AT = 5, 1000  # crawls that are named, and looked at for that

Held = tuple[bytes, int, bytes]
"""What a crawl has under a key of `index.cells`: the key, the number of the crawl, the cell."""

Digests = Callable[[], Sequence[Digest]]

_G = TypeVar("_G")
_T = TypeVar("_T")


class Reading(ABC):
    """What can be asked of one state of the crawls. Raises `IndexUnavailable` if it cannot tell."""

    origin: object
    """The same object in states of one store: what is known of one version holds for it again."""
    beside = True
    """Whether crawls lie beside the index, and are merged into it when they are committed."""

    @abstractmethod
    def version(self) -> int:
        """Raised whenever a crawl is begun, committed, cancelled or merged."""

    @abstractmethod
    def crawl(self, name: str) -> Crawl:
        """The crawl of a name; raises `UnknownCrawl`."""

    @abstractmethod
    def numbered(self, number: int) -> Crawl | None:
        """The crawl of a number."""

    @abstractmethod
    def crawls(self) -> Iterator[Crawl]:
        """All crawls, in the order in which they began."""

    @abstractmethod
    def newest(self, before: Crawl | None = None) -> Iterator[Crawl]:
        """All crawls, or those that began before one of them, the newest first."""

    @abstractmethod
    def counts(self, crawl: Crawl) -> tuple[int, int]:
        """Captures of a crawl, and the bytes of their payloads."""

    @abstractmethod
    def file_of(self, number: int) -> str:
        """The name of a container, "" for number 0."""

    @abstractmethod
    def cells(self, prefix: bytes = b"") -> Iterator[Held]:
        """What crawls have under the keys that begin so, in the order of keys.

        The prefix is a whole digest and perhaps more; or nothing, which is all, and in any order.
        """

    def cells_of(self, crawl: Crawl) -> Iterator[Held]:
        """All that a crawl has."""
        return (held for held in self.cells() if held[1] == crawl.number)

    @abstractmethod
    def cell(self, key: bytes, crawl: Crawl) -> bytes | None:
        """What a crawl has under a key."""

    @abstractmethod
    def silent(self, prefix: bytes) -> bool:
        """Whether no crawl has anything under the keys that begin so."""

    @abstractmethod
    def listed(self, sought: bytes) -> Iterator[bytes]:
        """The prefixes of keys whose tail, after the digest, begins so; see `index.byurl`."""

    @abstractmethod
    def claims(self, prefix: bytes) -> Iterator[tuple[str, Claim]]:
        """The claims on a digest, also those that are over: the namespace of each, and the claim.

        The prefix is that of its keys.
        """

    @abstractmethod
    def statistic(self, key: bytes) -> Sequence[int] | None:
        """The amounts under a key of `rows`."""

    @abstractmethod
    def statistics(
        self, prefix: bytes, start: bytes = b""
    ) -> Iterator[tuple[bytes, Sequence[int]]]:
        """Headings of one kind of a crawl, from `start` on and in order, and their amounts.

        The prefix is a key of `rows` without a heading.
        """

    def along(self, base: Finder) -> Reading:
        """The same beside a view of the index, which may have read what is sought already."""
        return self

    def ready(self, crawls: Sequence[Crawl]) -> Reading:
        """The same, which has read what is counted of these crawls, if it is far away."""
        return self

    def reported(self, name: str, sees: Callable[[Crawl], bool] = lambda crawl: True) -> Crawl:
        """As `crawl`, for who reads of it: `UnknownCrawl` names crawls that they see."""
        try:
            return self.crawl(name)
        except UnknownCrawl:
            newest = (crawl.name for crawl in islice(self.newest(), _LOOKED_AT) if sees(crawl))
            known = sorted(newest, key=lambda one: -len(os.path.commonprefix([one, name])))[:_NAMED]
            which = f"are {', '.join(known)}" if known else "is none that can be read of"
            raise UnknownCrawl(f"there is no crawl {name[:200]!r}; there {which}") from None

    def place_of(self, number: int) -> ContainerRef:
        """What a container number stands for where the crawl is known from elsewhere."""
        return ContainerRef(self.file_of(number))


class Writing(Reading):
    """What can be changed in one step.

    It is made as a whole or not at all, or at least not acknowledged before all of it is made.
    """

    serial = True
    """Whether nobody else changes anything meanwhile."""

    def each(self, work: Callable[[_G], _T], given: Sequence[_G]) -> list[_T]:
        """What the work comes to for each; where waiting is most of it, several wait at once."""
        return [work(one) for one in given]

    def expect(
        self, crawl: Crawl, keys: Callable[[], Sequence[bytes]], digests: Digests = tuple
    ) -> None:
        """Be ready to be asked for cells of a crawl, and for claims; where they are far away."""

    @abstractmethod
    def new_number(self) -> int:
        """The next number of a crawl."""

    @abstractmethod
    def put_crawl(self, crawl: Crawl) -> None:
        """Keep what is known of a crawl."""

    @abstractmethod
    def count(self, crawl: Crawl, captures: int, size: int) -> None:
        """Add to the counts of a crawl."""

    @abstractmethod
    def number_of(self, name: str) -> int:
        """The number of a container's name, given now if it has none; 0 for no name."""

    @abstractmethod
    def put_cell(self, key: bytes, crawl: Crawl, cell: bytes) -> None:
        """Keep what a crawl has under a key."""

    @abstractmethod
    def drop_cell(self, key: bytes, crawl: Crawl) -> None:
        """Take away what a crawl has under a key, and the key from the list by URL if need be."""

    def drop_cells(self, crawl: Crawl, keys: Sequence[bytes]) -> None:
        """Take away all that a crawl has under keys, without reading it: it may be damaged."""
        for key in keys:
            self.drop_cell(key, crawl)

    @abstractmethod
    def list_url(self, key: bytes) -> None:
        """List a key by its URL."""

    @abstractmethod
    def claim(
        self,
        prefix: bytes,
        namespace: str,
        claim: Claim,
        lease: int,
        over: Callable[[Claim], bool],
    ) -> Claim:
        """Make a claim, for `lease` seconds, unless one holds that is not `over`; which holds now.

        The prefix is that of a digest's keys.
        """

    @abstractmethod
    def free(self, prefix: bytes, namespace: str, wanted: Callable[[Claim], bool]) -> bool:
        """Take the claim of a namespace on a digest away if it is `wanted`; whether it was."""

    @abstractmethod
    def sweep_claims(self, now: int) -> int:
        """Take claims away that are over at a time in milliseconds, a thousand; how many."""

    @abstractmethod
    def add(self, key: bytes, amounts: Sequence[int]) -> None:
        """Join amounts to those under a key of `rows`, as their kind is joined."""

    @abstractmethod
    def drop_statistics(self, crawl: Crawl, most: int) -> int:
        """Take away rows of a crawl, no more than `most`; how many."""


class CrawlWriter(Protocol):
    """Writes to a store for all threads of a process, as `Store.write` does."""

    def write(self, change: Callable[[Writing], _T]) -> _T: ...
    def close(self) -> None:
        """Return when what was asked for is done; nothing more is taken."""


class Store(ABC):
    """Open crawls. Any number of threads may use it. Raises `IndexUnavailable`."""

    beside = True
    """Whether it is a file beside the index."""

    def in_place(self) -> bool:
        """Whether what is open is what stands there."""
        return True

    @abstractmethod
    def forget_dead_readers(self) -> None:
        """Let go of what processes that were killed were reading, if it is kept for them."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[Reading]:
        """A state to read."""

    @abstractmethod
    def writing(self) -> AbstractContextManager[Writing]:
        """A step that is made, durably, when the block ends, or never if it raises."""

    def write(self, change: Callable[[Writing], _T]) -> _T:
        """Make a change durably; one that raises leaves nothing behind. It may be called again."""
        with self.writing() as writing:
            return change(writing)

    @abstractmethod
    def writer(self) -> CrawlWriter:
        """What the threads of a process write with."""

    @abstractmethod
    def stretches(self, crawl: Crawl | None = None) -> Iterator[list[Held]]:
        """All that crawls have, or one of them has, bit by bit, while others write.

        What is there as it begins, and is not taken away, is in it.
        """

    @abstractmethod
    def keys_of(self, crawl: Crawl) -> Iterator[list[bytes]]:
        """The keys that a crawl has something under, as `stretches`; what that is is not read."""

    @abstractmethod
    def check(self) -> list[str]:
        """What is wrong with what is kept, in sentences; empty if nothing is."""

    @abstractmethod
    def copy(self, target: Path) -> None:
        """A copy of one consistent state, in another directory."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it."""


def cluster_of(index: Path) -> Address | None:
    """The cluster that an index is on, if it is on one."""
    if (index / FILE).exists() or not (index / IDENTITY).exists():
        return None
    engine = read_identity(index).engine
    return Address.parse(engine) if is_cluster(engine) else None
