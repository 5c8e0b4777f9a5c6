"""The interface of a store of crawls, which the engines in `crawls.stores` implement.

A store keeps what crawls are and what they report. The rules are above it, the same for all
engines: the states of a crawl (`lifecycle`), which of several captures wins and who may store a
payload (`crawl_captures`), what is counted (`counting`) and who sees it (`combined_view`).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import TypeVar

from dedupindex.capture import Capture
from dedupindex.crawls.crawl import Claim, Crawl, CrawlState
from dedupindex.errors import UnknownCrawl
from dedupindex.index.address import Address, is_cluster
from dedupindex.index.engine import Finder
from dedupindex.index.format.cells import ContainerRef, Keys
from dedupindex.index.identity import FILE as IDENTITY
from dedupindex.index.identity import read_identity

FILE = "crawls.mdb"
_SUGGESTIONS, _CONSIDERED = 5, 1000  # crawls that an error names, of so many newest ones

Held = tuple[bytes, int, bytes]
"""What a crawl has under a key of `index.format.cells`: the key, the crawl's number, the cell."""

ClaimTest = Callable[[Claim], bool]

_G = TypeVar("_G")
_T = TypeVar("_T")


def some_of(names: Sequence[str], most: int, *, all_given: bool = True) -> str:
    """Return the first names, at most `most`, and how many others there are, if all are given."""
    more = len(names) - most
    others = "others" if not all_given else "1 other" if more == 1 else f"{more:,} others"
    return ", ".join(names[:most]) + (f" and {others}" if more > 0 else "")


def marked(names: Iterable[str], removed: Mapping[str, str]) -> list[str]:
    """Return names of crawls, last those whose captures were removed, with how they were."""
    return [
        f"{name} ({removed[name]})" if name in removed else name
        for name in sorted(names, key=removed.__contains__)
    ]


def suggestion(
    name: str, known: Iterable[str], removed: Mapping[str, str], *, all_given: bool = True
) -> str:
    """Return that there is no crawl of a name, and the known names that are most like it.

    Those of crawls whose captures were removed come last. Of those that are not more like it than
    others, the first are named.
    """
    typed = name.casefold()

    def unlike(other: str) -> int:
        return -len(os.path.commonprefix([other.casefold(), typed]))

    similar = marked(sorted(known, key=unlike), removed)
    named = some_of(similar, _SUGGESTIONS, all_given=all_given)
    which = f"are {named}" if similar else "is none to read"
    return f"there is no crawl {name[:200]!r}; there {which}"


class Reading(ABC):
    """One state of the crawls, to read. Its methods raise `IndexUnavailable` and `Damaged`."""

    origin: object
    """Identifies the store: states with the same origin and version have the same crawls."""
    needs_merge = True
    """Whether committed crawls must be merged into the index; on a cluster they are in it."""

    @abstractmethod
    def version(self) -> int:
        """Return a number that grows when a crawl is begun, committed, cancelled or merged."""

    @abstractmethod
    def crawl_named(self, name: str) -> Crawl | None:
        """Return a crawl by name."""

    @abstractmethod
    def crawl_numbered(self, number: int) -> Crawl | None:
        """Return a crawl by number."""

    @abstractmethod
    def crawls(self) -> Iterator[Crawl]:
        """Yield all crawls, the oldest first."""

    @abstractmethod
    def newest(self, before: Crawl | None = None) -> Iterator[Crawl]:
        """Yield all crawls, or those that began before one of them, the newest first."""

    @abstractmethod
    def counts(self, crawl: Crawl) -> tuple[int, int]:
        """Return the number of captures of a crawl, and the bytes of their payloads."""

    @abstractmethod
    def container_name(self, number: int) -> str:
        """Return the name of a container, "" for number 0."""

    @abstractmethod
    def cells(self, prefix: bytes = b"") -> Iterator[Held]:
        """Yield what crawls have under the keys with a prefix, in the order of keys.

        The prefix is at least a whole digest; or nothing, for everything in any order.
        """

    @abstractmethod
    def cells_from(self, begin: bytes) -> Iterator[Held]:
        """Yield what crawls have from the key `begin` on, in the order of keys."""

    def cells_of(self, crawl: Crawl) -> Iterator[Held]:
        """Yield everything that a crawl has."""
        return (held for held in self.cells() if held[1] == crawl.number)

    @abstractmethod
    def cell(self, key: bytes, crawl: Crawl) -> bytes | None:
        """Return what a crawl has under a key."""

    def first_cells(self, prefix: bytes, most: int) -> list[Held]:
        """Return at most `most` of the `cells` with a prefix."""
        return list(islice(self.cells(prefix), most))

    @abstractmethod
    def has_none(self, prefix: bytes) -> bool:
        """Return whether no crawl has anything under the keys with a prefix."""

    @abstractmethod
    def keys_by_url(self, tail: bytes) -> Iterator[bytes]:
        """Yield prefixes of the keys whose URL part begins so; see `index.format.url_index`."""

    @abstractmethod
    def claims(self, prefix: bytes) -> Iterator[tuple[str, Claim]]:
        """Yield the claims on a `digest_prefix` with their namespaces, expired ones included."""

    def has_claims(self) -> bool:
        """Return whether there may be claims, expired ones included."""
        return True

    @abstractmethod
    def statistic(self, key: bytes) -> Sequence[int] | None:
        """Return the amounts under a key of `statistics_keys`."""

    @abstractmethod
    def statistics(
        self, prefix: bytes, start: bytes = b""
    ) -> Iterator[tuple[bytes, Sequence[int]]]:
        """Yield the headings of one kind of statistic from `start` on, in order, with amounts.

        `prefix` is a key of `statistics_keys` without heading.
        """

    def visits(self, crawl: int, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield what the crawl of a number reports that URLs answered: `index.format.visits`.

        The keys begin with what follows the digest in the keys of URLs, and are for `drop_visit`. A
        crawl has the visits of a URL that `/last` may need, as an index has.
        """
        return iter(())

    def with_view(self, base: Finder) -> Reading:
        """Return this state reading through a view of the index, which may have read ahead."""
        return self

    def with_statistics(self, crawls: Sequence[Crawl]) -> Reading:
        """Return this state with the statistics of these crawls read ahead, where that helps."""
        return self

    def crawl(self, name: str) -> Crawl:
        """Return a crawl by name; raises `UnknownCrawl`."""
        if crawl := self.crawl_named(name):
            return crawl
        raise UnknownCrawl(f"there is no crawl {name[:200]!r}; begin it with POST /crawls")

    def crawl_or_suggest(
        self, name: str, sees: Callable[[Crawl], bool] = lambda crawl: True
    ) -> Crawl:
        """Return a crawl by name; its `UnknownCrawl` suggests names that `sees` allows."""
        if crawl := self.crawl_named(name):
            return crawl
        considered = list(islice(self.newest(), _CONSIDERED))
        newest = [crawl.name for crawl in considered if sees(crawl)]
        removed = {crawl.name: crawl.removed for crawl in considered if crawl.removed}
        all_given = len(considered) < _CONSIDERED
        raise UnknownCrawl(suggestion(name, newest, removed, all_given=all_given))

    def crawl_to_change(self, name: str, sees: Callable[[Crawl], bool]) -> Crawl:
        """Return a crawl by name; its `UnknownCrawl` asks for names that begin so, if there are.

        These are such as `sees` allows, those of open crawls first: Heritrix adds the launch to
        the name of a job, and a crawl begun with the shorter name would not be the one meant.
        """
        if crawl := self.crawl_named(name):
            return crawl
        typed = name.casefold()
        found = [
            crawl
            for crawl in islice(self.newest(), _CONSIDERED)
            if crawl.name.casefold().startswith(typed) and sees(crawl)
        ]
        if not found:
            return self.crawl(name)
        found.sort(key=lambda crawl: crawl.state is not CrawlState.OPEN)
        named = [f"{crawl.name} ({crawl.removed or crawl.state.value})" for crawl in found]
        meant = some_of(named, _SUGGESTIONS)
        raise UnknownCrawl(f"there is no crawl {name[:200]!r}: did you mean {meant}?")

    def container_ref(self, number: int) -> ContainerRef:
        """Return the container of a number, without its crawl."""
        return ContainerRef(self.container_name(number))


class Writing(Reading):
    """One step of changes, made as a whole, or at least not acknowledged before all are made."""

    serial = True
    """Whether no other step is made at the same time."""

    def map_concurrently(self, work: Callable[[_G], _T], items: Sequence[_G]) -> list[_T]:
        """Return the results of `work`, in order; in threads where most of it is waiting."""
        return list(map(work, items))

    def prefetch(self, crawl: Crawl, keys: Keys, captures: Sequence[Capture]) -> None:
        """Read a crawl's cells of captures, and claims on them, if the store is on a network."""
        return

    @abstractmethod
    def new_number(self) -> int:
        """Return the number for the next crawl."""

    @abstractmethod
    def put_crawl(self, crawl: Crawl) -> None:
        """Store a crawl."""

    @abstractmethod
    def count(self, crawl: Crawl, captures: int, size: int) -> None:
        """Add to the counts of a crawl."""

    @abstractmethod
    def number_of(self, name: str) -> int:
        """Return the number of a container, assigned now if it has none; 0 for no name."""

    @abstractmethod
    def put_cell(self, key: bytes, crawl: Crawl, cell: bytes) -> None:
        """Store what a crawl has under a key."""

    @abstractmethod
    def drop_cell(self, key: bytes, crawl: Crawl) -> None:
        """Remove what a crawl has under a key, and the key from the URL list if nobody has it."""

    def drop_cells(self, crawl: Crawl, keys: Sequence[bytes]) -> None:
        """Remove what a crawl has under keys without reading it, as it may be damaged."""
        for key in keys:
            self.drop_cell(key, crawl)

    def put_visit(self, key: bytes, crawl: Crawl, body: bytes) -> bool:
        """Keep a visit if `/last` may need it; return whether it is the last of its crawl and URL.

        It is not if it is known. `key` is what follows the digest in the keys of the URL.
        """
        return False

    def drop_visits(self, crawl: Crawl, most: int) -> int:
        """Remove up to `most` visits of a crawl; return how many."""
        return 0

    def drop_visit(self, key: bytes, crawl: int) -> None:
        """Remove the visit that the crawl of a number has under a key of `visits`."""
        return

    @abstractmethod
    def list_url(self, key: bytes) -> None:
        """Add a key to the URL list."""

    @abstractmethod
    def claim(
        self, prefix: bytes, namespace: str, claim: Claim, lease: int, ended: ClaimTest
    ) -> Claim:
        """Store a claim for `lease` seconds, unless one holds that has not `ended`.

        Returns the claim that holds now. `prefix` is a `digest_prefix`.
        """

    @abstractmethod
    def free_claim(self, prefix: bytes, namespace: str, wanted: ClaimTest) -> bool:
        """Remove the claim of a namespace on a digest if it is `wanted`; return whether it was."""

    def sweep_claims(self, now: int) -> None:
        """Remove up to 1,000 claims that have expired at `now`, in ms, if they stay otherwise."""
        return

    @abstractmethod
    def add(self, key: bytes, amounts: Sequence[int]) -> None:
        """Combine amounts with those under a key of `statistics_keys`."""

    @abstractmethod
    def drop_statistics(self, crawl: Crawl, most: int) -> int:
        """Remove up to `most` rows of statistics of a crawl; return how many."""


class CrawlWriter:
    """Writes to a store for all threads of a process, as `Store.write` does."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def write(self, change: Callable[[Writing], _T]) -> _T:
        return self._store.write(change)

    def close(self) -> None:
        """Wait for pending writes, if threads share them; later ones are refused."""
        return


class Store(ABC):
    """An open store of crawls, for any number of threads. Raises `IndexUnavailable`."""

    is_file = True
    """Whether it is a file beside the index."""

    @abstractmethod
    def in_place(self) -> bool:
        """Return whether the open store is still the one at its path."""

    def forget_dead_readers(self) -> None:
        """Release what killed processes were reading, if the store keeps it for them."""
        return

    def share(self, stored: Callable[[Collection[bytes]], None]) -> None:
        """Call `stored` with the digests' parts of keys before captures are stored on a cluster."""
        return

    @abstractmethod
    def reading(self) -> AbstractContextManager[Reading]:
        """Open a state to read."""

    @abstractmethod
    def writing(self) -> AbstractContextManager[Writing]:
        """Open a step; it is durable when the block ends, and undone if the block raises."""

    def write(self, change: Callable[[Writing], _T]) -> _T:
        """Make a change durably; one that raises is undone. It may be called again."""
        with self.writing() as writing:
            return change(writing)

    def writer(self) -> CrawlWriter:
        """Return the writer for the threads of this process."""
        return CrawlWriter(self)

    @abstractmethod
    def batches(self) -> Iterator[list[Held]]:
        """Yield in batches, while others write, what all crawls have at the start and keep."""

    @abstractmethod
    def keys_of(self, crawl: Crawl) -> Iterator[list[bytes]]:
        """Yield the keys of a crawl in batches, as `batches`, without reading the cells."""

    @abstractmethod
    def check(self) -> list[str]:
        """Return sentences about what is damaged; empty if nothing is."""

    def copy(self, target: Path) -> None:
        """Copy one consistent state into another directory, if the store is a file."""
        return

    @abstractmethod
    def close(self) -> None:
        """Close files and connections."""


def cluster_of(index: Path) -> Address | None:
    """Return the address of the cluster that an index is on, None if it is on none."""
    if (index / FILE).exists() or not (index / IDENTITY).exists():
        return None
    engine = read_identity(index).engine
    return Address.parse(engine) if is_cluster(engine) else None
