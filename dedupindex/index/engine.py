"""The protocols of an index, which every engine implements.

An engine stores cells (`cells`), loads staged runs (`runs`) by the `merge_rule`, and is read
through views, each a consistent state. It knows nothing of strategies, sources or HTTP.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from dedupindex.cache import MEGABYTE
from dedupindex.capture import Capture
from dedupindex.counts import OnProgress, ProgressUpdate, silent
from dedupindex.digest import Digest
from dedupindex.digest_filter import PartInfo
from dedupindex.errors import BadInput, IndexUnavailable, StrategyUnavailable
from dedupindex.index.format.cells import ContainerRef
from dedupindex.index.format.file_names import files_of
from dedupindex.index.format.ledger import Drops
from dedupindex.index.identity import Identity, Settings
from dedupindex.index.load.merge_rule import MergeOutcome, MergeRule
from dedupindex.index.load.runs import merge_files

if TYPE_CHECKING:
    from dedupindex.index.format.fast_answer import PlainAnswers
    from dedupindex.index.shared_filter import SharedFilter
    from dedupindex.runtime.spark import Cluster

PURGES_KEPT = 1000  # purges that an index remembers
PLACES_KEPT = 4 * MEGABYTE  # bytes of memory for the container names that an open index caches
AHEAD = 1000  # lookups whose digests are worth one `Finder.prefetch`
ATTEMPTS, PAUSE = 5, 0.5  # of `retry`; seconds before the second attempt, doubled each time

_T = TypeVar("_T")


class IndexedContainer(NamedTuple):
    """A file that was indexed: its absolute name, size in bytes and the BLAKE3 of its content."""

    name: str
    size: int
    content_hash: str
    records: int
    crawl: str = ""
    damaged: bool = False  # something was left out, because of damage or of other defects
    modified: int = 0  # nanoseconds since 1970; if it and the size are unchanged, so is the hash
    purged: bool = False  # its captures were purged, and it is not read again unless it is named


class IndexCounts(NamedTuple):
    """How much an index holds."""

    captures: int  # originals, under all digests
    digests: int  # distinct, all algorithms
    containers: int


ReportedRow = tuple[bytes, int, bytes]
"""Of a capture that a crawl reports: the rest of its key, the crawl's number, the cell."""


class Finder(Protocol):
    """What a lookup reads. It returns originals only, never revisits."""

    __slots__ = ()

    def exact(self, digest: Digest, url: bytes) -> list[Capture]:
        """Return the captures of a digest and exact URL: at most one, but for `Capture.also`."""

    def canonical(self, digest: Digest, urlkey: bytes, limit: int) -> list[Capture]:
        """Return captures of a digest and urlkey; reads at most `limit` keys."""

    def any(self, digest: Digest, limit: int) -> list[Capture]:
        """Return captures of a digest; reads at most `limit` keys."""

    def all_of(self, digest: Digest, most: int) -> list[Capture] | None:
        """Return all captures of a digest if they have at most `most` keys, else None.

        None also if it would cost as much as the other methods together.
        """
        return None

    def denies(self, digest: Digest, capture: Capture) -> str:
        """Return why tombstones deny that `capture`, loaded or not, is an original, as `denied`."""

    def at_url(self, url: bytes) -> Iterator[Capture]:
        """Yield captures of an exact URL, in any order; raises `StrategyUnavailable`."""

    def at_urlkey(self, urlkey: bytes) -> Iterator[Capture]:
        """Like `at_url`, for a urlkey."""

    def prefetch(self, digests: Iterable[Digest]) -> None:
        """Read the captures of digests in one round trip, if the engine is on a network."""
        return

    def reported(self, start: bytes) -> Sequence[ReportedRow] | None:
        """Return the rows of crawls under a digest's part of keys, None if not all are known."""
        return None

    def listed(self, tail: bytes) -> Iterator[bytes]:
        """Yield keys, also of crawls, with `tail` after the digest; or `StrategyUnavailable`."""
        raise StrategyUnavailable("the list of captures by URL has none of crawls")


class View(Finder, Protocol):
    """A consistent state of an index."""

    __slots__ = ()

    def captures(self) -> Iterator[tuple[Digest, Capture]]:
        """Yield every capture with the digest that it is stored under, in the order of digests."""

    def cell(self, key: bytes) -> bytes | None:
        """Return the cell of a key; raises `Damaged`."""

    def captures_by_key(self, begin: bytes = b"") -> Iterator[tuple[bytes, Capture]]:
        """Yield every capture with its key, in the order of keys, from the key `begin` on."""

    def cells(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys with a prefix, in order, and their cells."""

    def cells_from(self, begin: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys from `begin` on, in order, and their cells."""

    def places(self) -> Iterator[tuple[int, ContainerRef]]:
        """Yield every container number, and what it stands for."""

    def place_of(self, number: int) -> ContainerRef:
        """Return what a container number stands for."""

    def number_of(self, place: ContainerRef) -> int:
        """Return the number of a container, 0 if it has none."""

    def ledger(self, prefix: bytes = b"") -> Iterator[bytes]:
        """Yield the items of the ledger (`format.ledger`) with a prefix, in order, each once.

        The prefix is at most a key. Raises `Damaged`, `IndexUnavailable`.
        """

    def in_ledger(self, prefixes: Sequence[bytes]) -> Iterator[bool]:
        """Yield for each digest whether the ledger has items; many are read at once on a network.

        The prefixes are those of keys that are the digest's.
        """
        return (next(self.ledger(prefix), None) is not None for prefix in prefixes)

    def has_ledger(self) -> bool:
        """Return whether the ledger has any item."""

    def cells_by_digest(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all keys and cells, in the order of their `position`."""
        return self.cells()

    def ledger_by_digest(self) -> Iterator[bytes]:
        """Yield all items of the ledger, in the order of their `position`."""
        return self.ledger()

    def position(self, key: bytes) -> Any:
        """Return what orders keys, and items, where all are read: those of a digest as bytes."""
        return key

    def spread_cells(self, ranges: int, most: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield at most `most` keys and cells of each of some equal ranges of digests."""

    def state(self) -> str:
        """Return text that differs between two states of an index, "" if the engine has none."""
        return ""

    def containers(self) -> Iterator[IndexedContainer]:
        """Yield every indexed container, by name."""

    def container(self, name: str) -> IndexedContainer | None:
        """Return an indexed container."""

    def counts(self) -> IndexCounts:
        """Return how much is held."""

    def use_filter(self, shared: SharedFilter) -> bool:
        """Do not read what a filter lacks, if it is of this index; return whether it is."""
        return False

    def own_digests(self) -> bool:
        """Return whether no capture is stored under a further digest; False also if not known."""

    def plain(self) -> PlainAnswers | None:
        """Return the fast path for plain lookups, None if the engine has none."""
        return None

    def cursor(self) -> Any:
        """Return a cursor for `PlainAnswers.answer`, None if the engine has no fast path."""
        return None


class Load(NamedTuple):
    """What one commit adds and removes."""

    runs: list[Path] = []
    places: Sequence[tuple[int, ContainerRef]] = ()  # container numbers that the runs use
    containers: list[IndexedContainer] = []
    dropped: frozenset[str] = frozenset()  # containers whose captures are removed first
    metadata: dict[str, Any] = {}  # is kept with the index: which command made it
    purges: Sequence[dict[str, Any]] = ()  # that the index is to remember, see `Engine.purges`
    ledger: list[Path] = []  # runs of items for the ledger
    ledger_lacks: bool = False  # whether the source of a copy did not know all items
    drops: Drops | None = None  # which items the ledger is to remove
    own_digests: bool = False  # whether the runs have nothing under further digests
    on_progress: OnProgress = silent
    entries: int = 0  # of the runs, about; 0 if not known

    def merged(self) -> Iterator[list[bytes]]:
        """Yield the entries of all runs in order."""
        if not self.runs:
            return
        done = 0
        for batch in merge_files(self.runs, self.runs[0].parent):
            part = done / self.entries if self.entries else None
            self.on_progress(ProgressUpdate("loading", records=done, part=part))
            yield batch
            done += len(batch)

    def gone(self, view: View | None) -> set[int]:
        """Return the container numbers of dropped files and of what is in them, in any crawl."""
        if view is None or not self.dropped:
            return set()
        return {
            number
            for number, place in view.places()
            if not self.dropped.isdisjoint(files_of(place.container))
        }

    def rule(
        self,
        settings: Settings,
        place_of: Callable[[int], ContainerRef],
        gone: Collection[int] = (),
    ) -> MergeRule:
        """Return the merge rule of an index whose own containers are known to `place_of`."""
        fresh = dict(self.places)
        return MergeRule(
            settings.keys(),
            settings.keep == "latest",
            lambda number: fresh.get(number) or place_of(number),
            gone,
        )


class Engine(Protocol):
    """An open index. Raises `IndexUnavailable` when it cannot answer."""

    identity: Identity

    def view(self) -> AbstractContextManager[View]:
        """Return a consistent state to read from: cheap, one for each lookup or batch."""

    def load(self, load: Load) -> MergeOutcome:
        """Commit a load durably, all of it or nothing."""

    def load_on(self, load: Load, cluster: Cluster) -> MergeOutcome:
        """Commit a load as `load` does, with the executors of Spark if the engine can use them."""
        return self.load(load)

    def writing(self) -> AbstractContextManager[None]:
        """Keep others from loading until the block ends, which may load; raises `IndexBusy`.

        The caller holds the write lock of the directory, which is enough for an index in files.
        """
        return nullcontext()

    def ledger_gap(self) -> str:
        """Return why the ledger may lack copies and revisits of what was loaded, "" if it has all.

        It is a sentence, and says what mends it.
        """
        return ""

    def number_of(self, place: ContainerRef) -> int:
        """Return the number of a container, 0 if the index does not know it."""
        if not self.identity.generation:
            return 0
        with self.view() as view:
            return view.number_of(place)

    def next_number(self) -> int:
        """Return the first container number above all in use."""

    def metadata(self) -> dict[str, Any]:
        """Return the metadata of the last load."""

    def purges(self) -> list[dict[str, Any]]:
        """Return the last `PURGES_KEPT` purges, the oldest first."""

    def visits(self, view: View, prefix: bytes) -> Iterator[bytes]:
        """Yield the bodies of visits (`format.visits`) whose URL parts of keys have a prefix.

        Raises `StrategyUnavailable` if this engine keeps none.
        """
        raise StrategyUnavailable("an index on a cluster does not keep what URLs answered last")

    def is_current(self) -> bool:
        """Return False if another index has taken the place of the open one, as on a cluster."""
        return True

    def forget_dead_readers(self) -> None:
        """Release what killed readers still hold, if the engine keeps anything for readers."""
        return

    def check(self, on_progress: OnProgress = silent) -> list[str]:
        """Read everything back; return what is wrong, a sentence each."""

    def copy(self, target: Path) -> None:
        """Write a compact copy of the index to a directory, while it may be in use."""

    def compact(self, on_progress: OnProgress = silent) -> None:
        """Rewrite the data, packed, as a new generation, while others read."""

    def filter_parts(self) -> list[PartInfo] | None:
        """Return the parts of the digest filter, None if there is none of this state of the index.

        Raises `Damaged`.
        """
        return None

    def make_filter(self, on_progress: OnProgress = silent) -> None:
        """Make the digest filter anew; the caller holds the write lock. Raises `BadInput`."""
        raise BadInput("an index on a cluster has no digest filter: its crawls write to it at once")

    def clear_leftovers(self, on_progress: OnProgress = silent) -> None:
        """Remove what a killed writer left behind; the caller holds the write lock."""

    def close(self) -> None:
        """Close files and connections."""


def retry(work: Callable[[], _T]) -> _T:
    """Return the result of idempotent work, repeated while it raises `IndexUnavailable`."""
    for attempt in range(ATTEMPTS - 1):
        try:
            return work()
        except IndexUnavailable:
            time.sleep(PAUSE * 2**attempt)
    return work()


def clock() -> float:
    """Return seconds that all processes of a machine share, and that run on during suspension."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# --- commands that repair an index ---------------------------------------------------------------

_NAMED = 20  # files that a command names; for more it says SOURCE...


def was_read(view: View, container: str) -> bool:
    """Return whether an index has read a container, perhaps within a WACZ."""
    return any(map(view.container, files_of(container)))


def reread(index: str, sources: Iterable[str], crawl: str = "") -> str:
    """Return the command that reads files again although the index knows them."""
    return _read_again("--reread", index, sources, crawl)


def _read_again(option: str, index: str, sources: Iterable[str], crawl: str) -> str:
    of_crawl = ["--crawl", crawl] if crawl else []
    return shlex.join(["bin/index", option, *of_crawl, *sources, index])


def for_each_crawl(option: str, files: Mapping[str, list[str]], index: str) -> Iterator[str]:
    """Yield the commands with an option of ``bin/index`` that read files by crawl again."""
    for crawl, names in sorted(files.items()):
        if names:
            shown = names if len(names) <= _NAMED else ["SOURCE..."]
            yield _read_again(option, index, shown, crawl)


def reread_all(view: View, index: str) -> Iterator[str]:
    """Yield the commands that read all files of an index again, one for each crawl."""
    files: dict[str, list[str]] = {}
    for container in view.containers():
        names = files.setdefault(container.crawl, [])
        if not container.purged and len(names) <= _NAMED:
            names.append(container.name)
    yield from for_each_crawl("--reread", files, index)
