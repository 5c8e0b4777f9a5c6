"""What every engine can do, at the level of captures and whole digests.

An engine holds cells (`cells`), loads staged runs (`runs`) by the rule of `settle`, and answers
from a `View`, a consistent state. It knows nothing of strategies, sources or HTTP.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dedupindex.cache import MEGABYTE
from dedupindex.capture import Capture
from dedupindex.digest import Digest
from dedupindex.index.format.cells import ContainerRef
from dedupindex.index.format.file_names import files_of
from dedupindex.index.format.ledger import Drops
from dedupindex.index.identity import Identity
from dedupindex.index.load.merge_rule import MergeOutcome

if TYPE_CHECKING:
    from dedupindex.index.format.fast_answer import PlainAnswers


class IndexedContainer(NamedTuple):
    """A file that was indexed: by its absolute name, size in bytes and BLAKE3 of its content."""

    name: str
    size: int
    content_hash: str
    records: int
    crawl: str = ""
    damaged: bool = False
    modified: int = 0  # nanoseconds since 1970; as long as it and the size stay, so does the hash
    purged: bool = False  # its captures were taken out, and it is not read again by itself


PLACES_KEPT = 4 * MEGABYTE  # of memory, for names of containers that an open index remembers


class IndexCounts(NamedTuple):
    """How much an index holds."""

    captures: int  # originals, under all digests
    digests: int  # distinct, all algorithms
    containers: int


class Finder(Protocol):
    """What a lookup asks. Only originals come out of it, never revisits."""

    def exact(self, digest: Digest, url: bytes) -> list[Capture]:
        """The captures of this digest and exactly this URL (at most one but for `also`)."""

    def canonical(self, digest: Digest, urlkey: bytes, limit: int) -> list[Capture]:
        """Captures of this digest whose urlkey is `urlkey`; looks at no more than `limit`."""

    def any(self, digest: Digest, limit: int) -> list[Capture]:
        """Captures of this digest; looks at no more than `limit`."""

    def denies(self, digest: Digest, capture: Capture) -> bool:
        """Whether what was seen of `capture` under `digest` says that it is no original.

        So what is not in the index yet is judged as `settle` will judge it.
        """

    def at_url(self, url: bytes) -> Iterator[Capture]:
        """The captures of exactly this URL, in no order; raises `StrategyUnavailable`.

        Looks at no more than `byurl.LOOKED_AT`.
        """

    def at_urlkey(self, urlkey: bytes) -> Iterator[Capture]:
        """The captures whose urlkey is `urlkey`, likewise."""


class View(Finder, Protocol):
    """One consistent state of an index."""

    def captures(self) -> Iterator[tuple[Digest, Capture]]:
        """Every capture with the digest it stands under, in the order of digests."""

    def cells(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """The keys that begin so, in order, and what is under each, as `cells` draws it."""

    def places(self) -> Iterator[tuple[int, ContainerRef]]:
        """Every container number, and what it stands for."""

    def place_of(self, number: int) -> ContainerRef:
        """What a container number stands for."""

    def ledger(self) -> list[str]:
        """The names of the ledger's files, see `ledger`."""

    def containers(self) -> Iterator[IndexedContainer]:
        """Every registered container, by name."""

    def container(self, name: str) -> IndexedContainer | None:
        """One registered container."""

    def counts(self) -> IndexCounts:
        """How much is held."""

    def own_digests(self) -> bool:
        """Whether nothing stands under further digests; False also for not known."""

    def plain(self) -> PlainAnswers | None:
        """Return what answers plain lookups as bytes while the index is open, None if nothing."""


class Load(NamedTuple):
    """What one commit brings: staged runs, and the registrations that become true with them."""

    runs: list[Path]
    places: Iterable[tuple[int, ContainerRef]]  # container numbers that the runs use
    containers: list[IndexedContainer]
    dropped: frozenset[str] = frozenset()  # containers whose captures are to go first
    note: dict[str, Any] = {}  # kept with the index: which command made it
    ledger: list[Path] = []  # runs of what the ledger is to take
    drops: Drops | None = None  # what is to go from the ledger
    own_digests: bool = False  # whether the runs bring nothing under further digests


def numbers_of(view: View, names: Collection[str]) -> set[int]:
    """All container numbers of files of these names and of what is in them, in whatever crawl."""
    if not names:
        return set()
    return {
        number
        for number, place in view.places()
        if any(file in names for file in files_of(place.container))
    }


AHEAD = 1000  # lookups whose digests are worth reading at once


def look_ahead(view: object, digests: Iterable[Digest]) -> None:
    """Let a view whose answers come over a network read at once what will be asked for.

    Others do not even look at the digests.
    """
    ahead = getattr(view, "ahead", None)
    if ahead is not None:
        ahead(digests)


def in_place(engine: object) -> bool:
    """Whether an engine still answers from the index that it opened; raises `IndexUnavailable`.

    Files that are open stay what they are; in a cluster another index may take the place of one,
    and what was kept of the old one (the names of containers) would be taken for its own.
    """
    asked = getattr(engine, "in_place", None)
    return asked is None or bool(asked())


class Engine(Protocol):
    """An open index. Raises `IndexUnavailable` when it cannot tell."""

    identity: Identity

    def view(self) -> AbstractContextManager[View]:
        """A consistent state to read from; cheap, one per lookup or batch."""

    def load(self, load: Load) -> MergeOutcome:
        """Take in a load, all of it durably or nothing of it."""

    def number_of(self, place: ContainerRef) -> int:
        """The container number of a place, 0 if the index does not know it."""

    def next_number(self) -> int:
        """The first number above all in use."""

    def note(self) -> dict[str, Any]:
        """The note of the last load."""

    def forget_dead_readers(self) -> None:
        """Free what processes that were killed while they read still hold, if anything is held."""

    def check(self) -> list[str]:
        """What is wrong with the stored data, in sentences; empty if nothing is."""

    def copy(self, target: Path) -> None:
        """Write a compact copy of the whole index to a directory, while it may be in use."""

    def compact(self) -> None:
        """Write the data anew, packed, as a new generation, while others read."""

    def clear_leftovers(self) -> None:
        """Remove what a killed writer left behind (the caller holds the write lock)."""

    def close(self) -> None:
        """Let go of files."""


# The commands that repair an index: which files to read again.

_NAMED = 20  # files that a command names; of more it says SOURCE...


def reread(index: str, sources: Iterable[str], crawl: str = "") -> str:
    """The command that reads files again, though the index knows them."""
    return shlex.join(
        ["bin/index", "--reread", *(["--crawl", crawl] if crawl else []), *sources, index]
    )


def reread_all(view: View, index: str) -> Iterator[str]:
    """The commands that read all files of an index again, one for each crawl."""
    files: dict[str, list[str]] = {}
    for one in view.containers():
        of_crawl = files.setdefault(one.crawl, [])
        if not one.purged and len(of_crawl) <= _NAMED:
            of_crawl.append(one.name)
    for crawl, names in sorted(files.items()):
        if names:
            yield reread(index, names if len(names) <= _NAMED else ["SOURCE..."], crawl)
