"""The crawls that write to the index that is served, as one worker process sees them.

The file of the crawls is opened when it is there, and made when the first crawl is begun: a server
that nobody writes to changes nothing in the index's directory. Another worker may have made it, or
the whole directory may have been replaced, so `refresh` looks again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from dedupindex.capture import Covers
from dedupindex.crawls.begun import completed
from dedupindex.crawls.combined_view import NOTHING, Snapshot
from dedupindex.crawls.counting import Counted, add_counted
from dedupindex.crawls.crawl import Crawl
from dedupindex.crawls.store import Reading, Store, Writing, has_store, make_store
from dedupindex.errors import DedupError, IndexUnavailable, UnknownCrawl
from dedupindex.index.engine import Finder
from dedupindex.index.format.cells import Keys
from dedupindex.lookup.decide import Query
from dedupindex.lookup.policy import NO_POLICY, Policy
from dedupindex.runtime.files import pinned
from server.config import RELOAD_GRACE
from server.counting import Counting

_T = TypeVar("_T")


class _Opened:
    """An open file of crawls, and what is known of its crawls, which are numbered by it."""

    def __init__(self, index: Path, *, create: bool) -> None:
        self.store = make_store(index, create=create)
        self.writer = self.store.writer()
        self.known = NOTHING

    def snapshot(self, reading: Reading) -> Snapshot:
        """A state of the file."""
        snapshot = Snapshot(reading, self.known)
        self.known = snapshot.known
        return snapshot


def plain_covers(crawl: Crawl | None) -> int:
    """As `Crawls.plainly`; a crawl that is unknown is found out elsewhere."""
    if crawl is None:
        return Covers.UNKNOWN
    return -1 if crawl.strategy or crawl.policy.rules or crawl.namespace else crawl.covers


def _looked(index: Path) -> tuple[bool, IndexUnavailable | None]:
    """Whether there are crawls, as one directory says; or why there is no telling."""
    try:
        with pinned(index) as home:
            return has_store(home), None
    except (DedupError, OSError) as error:
        return False, IndexUnavailable(f"the index at {index} cannot be read: {error}")


class Crawls:
    """Crawls beside one index; any number of threads may use it."""

    def __init__(self, index: Path, policy: Policy = NO_POLICY) -> None:
        self._index, self.policy = index, policy
        self._opened: _Opened | None = None
        self._error: DedupError | None = None  # what keeps a file from being open
        self._away_since: float | None = None  # when what is open was first missed
        self._busy = threading.Lock()
        self.counting = Counting()
        self._counted = threading.Lock()  # the last to write waits for who is writing
        self.answering = False
        """Whether a hit of the index may not be all; true when in doubt, but for as long as this
        process has not heard of a change: until the next `refresh` at most."""

    def refresh(self) -> None:
        """Open the file if it is there now, and let go of one that was replaced.

        While a directory is being replaced there is none for a moment: what is open still answers
        rightly, and acknowledges no write. Longer than that, nobody knows whether it does.
        """
        seen = self._opened
        gone = (
            seen is not None and not seen.store.in_place()
        )  # nobody waits while a cluster is asked
        with self._busy:
            opened = self._opened
            self.answering = opened is not None  # another process may have changed a crawl
            if opened is not None and not (opened is seen and gone):
                self._away_since = None
                return
            there, error = _looked(self._index)
            if error is not None and opened is None:
                return  # as it was: none, or none that can be told of
            away = not there and (error is not None or (opened is not None and opened.store.beside))
            if opened is not None and away and self._waits():
                return
            self._away_since, self._opened, self._error = None, None, error
            if opened is not None:
                # Its threads may still read: the file is closed when the last of them lets go.
                threading.Thread(target=opened.writer.close, daemon=True).start()
            if there:
                self._open(create=False)

    def _waits(self) -> bool:
        """Whether what was open may come back, or what takes its place."""
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
        return now - self._away_since < RELOAD_GRACE

    def _open(self, *, create: bool) -> None:
        try:
            self._opened, self._error = _Opened(self._index, create=create), None
            self.answering = True
        except DedupError as error:
            self._error = error

    def _there(self) -> _Opened | None:
        """The open file, None if there is none; raises what keeps it from being open."""
        opened = self._opened
        if opened is None and self._error is not None:
            raise type(self._error)(str(self._error))
        return opened

    def write(self, change: Callable[[Writing], _T], *, make: bool = False) -> _T:
        """Make a change, durably; with `make` also the file if there is none.

        Raises `UnknownCrawl` without a file, `IndexUnavailable` if it cannot be written.
        """
        self._look()
        with self._busy:
            if self._opened is None and make:
                if not os.access(self._index, os.W_OK):
                    raise IndexUnavailable(f"{self._index} cannot be written to by the server")
                self._open(create=True)
        opened = self._there()
        if opened is None:
            raise UnknownCrawl("no crawl was begun here; begin one with POST /crawls")
        try:
            return opened.writer.write(change)
        finally:
            self.answering = True

    def write_counts(self) -> None:
        """Write down what was looked up since this was called last; raises `IndexUnavailable`."""
        with self._counted:
            self._write(self.counting.take())

    def _write(self, parts: list[Counted]) -> None:
        while parts:
            try:
                self.write(partial(add_counted, counted=parts[0]))
            except UnknownCrawl:
                return  # there is none at all
            except BaseException:
                for part in parts:
                    self.counting.give_back(part)
                raise
            parts.pop(0)

    def _look(self) -> None:
        if self._opened is None:
            self.refresh()

    def store(self) -> Store | None:
        """The open file, None if there is none."""
        self._look()
        opened = self._there()
        return None if opened is None else opened.store

    @contextmanager
    def reading(self) -> Iterator[Reading | None]:
        """A consistent state of the crawls, None if there are none."""
        self._look()
        opened = self._there()
        if opened is None:
            yield None
            return
        with opened.store.reading() as reading:
            yield reading

    @contextmanager
    def seen(
        self, base: Finder, keys: Keys, asker: str, namespaces: tuple[str, ...] = ()
    ) -> Iterator[Finder]:
        """Index and crawls as a crawl sees them, or ("") anybody; raises `UnknownCrawl`."""
        if asker:
            self._look()
        opened = self._there()
        if opened is None:
            yield Snapshot(None).seen(base, keys, asker, namespaces)
            return
        with opened.store.reading() as reading:
            yield opened.snapshot(reading).seen(base, keys, asker, namespaces)

    @contextmanager
    def known(self) -> Iterator[tuple[list[Crawl], Reading | None]]:
        """All crawls, in the order in which they began, and the state that they are of.

        They are read again only if one has changed; nobody changes the list.
        """
        with self.reading() as reading:
            opened = self._opened
            if reading is None or opened is None:
                yield [], reading
                return
            yield opened.snapshot(reading).known.crawls, reading

    def crawl(self, name: str) -> Crawl | None:
        """What is known of a crawl, None if there is none of this name."""
        self._look()
        opened = self._there()
        if opened is None:
            return None
        with opened.store.reading() as reading:
            return opened.snapshot(reading).crawl(name)

    def written(self, writing: Writing) -> Snapshot:
        """The crawls as a transaction that writes sees them.

        Crawls are read again only if it has changed one. That is not kept: it may come to nothing.
        """
        opened = self._opened
        return Snapshot(writing, NOTHING if opened is None else opened.known)

    def crawl_in(self, writing: Writing, name: str) -> Crawl:
        """The crawl of a name as a transaction that writes sees it; raises `UnknownCrawl`."""
        known = NOTHING if self._opened is None else self._opened.known
        crawl = known.by_name.get(name) if known.of(writing) else None
        return writing.crawl(name) if crawl is None else crawl

    def plainly(self, asker: str) -> int:
        """What a crawl's digests cover, if nothing else of it bears on a plain lookup; else -1."""
        crawl = self.crawl(asker)
        return plain_covers(crawl)

    def completed(self, query: Query, given: Mapping[str, bytes]) -> Query:
        """A query with what its crawl said when it began, and the server's own policy."""
        if not query.crawl:
            return completed(query, given, None, self.policy) if self.policy.rules else query
        return completed(query, given, self.crawl(query.crawl), self.policy)

    def silent(self, prefix: bytes, asker: str) -> bool:
        """Whether crawls have nothing to say of a digest, and the asker is known."""
        opened = self._opened or self._there()
        if opened is None:
            return not asker  # who asks the other way is told
        with opened.store.reading() as reading:
            snapshot = opened.snapshot(reading)
            self.answering = snapshot.known.answering
            return snapshot.silent(prefix, asker)
