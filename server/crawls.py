"""The crawls that write to the index that is served, as one worker process sees them.

The file of the crawls is opened when it is there, and made when the first crawl is begun: a server
that nobody writes to changes nothing in the index's directory. Another worker may have made it, or
the whole directory may have been replaced, so `refresh` looks again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from dedupindex.capture import Covers
from dedupindex.crawls.asked import Counting, add_asked
from dedupindex.crawls.captures import under
from dedupindex.crawls.crawl import Crawl
from dedupindex.crawls.store import FILE, Reading, Store, Writing
from dedupindex.crawls.view import Both, Visible, seen
from dedupindex.crawls.writer import Writer
from dedupindex.errors import IndexUnavailable, UnknownCrawl
from dedupindex.index.cells import Keys
from dedupindex.index.protocol import Finder
from dedupindex.lookup import Query

_T = TypeVar("_T")
_ASKERS_KEPT = 1000


class _Opened(NamedTuple):
    store: Store
    writer: Writer
    inode: int


class _Known:
    """The crawls of one version of the file, and who sees what of them."""

    def __init__(self, version: int, crawls: list[Crawl]) -> None:
        self.version, self.crawls = version, crawls
        self.covers = {crawl.name: crawl.covers for crawl in crawls}
        self._visible: dict[str, Visible] = {}

    def visible(self, asker: str) -> Visible:
        """What an asker sees; raises `UnknownCrawl`."""
        visible = self._visible.get(asker)
        if visible is None:
            if asker and asker not in self.covers:
                raise UnknownCrawl(f"there is no crawl {asker[:200]!r}; begin it first")
            if len(self._visible) >= _ASKERS_KEPT:
                self._visible.clear()
            visible = self._visible[asker] = Visible(self.crawls, asker)
        return visible


class Crawls:
    """Crawls beside one index; any number of threads may use it."""

    def __init__(self, index: Path) -> None:
        self._index = index
        self._opened: _Opened | None = None
        self._known = _Known(-1, [])
        self._busy = threading.Lock()
        self.asked = Counting()

    def refresh(self) -> None:
        """Open the file if it is there now, and let go of one that was replaced."""
        try:
            inode = os.stat(self._index / FILE).st_ino
        except OSError:
            inode = 0
        with self._busy:
            if self._opened is not None and self._opened.inode != inode:
                # Its threads may still read: the file is closed when the last of them lets go.
                self._opened.writer.close()
                self._opened, self._known = None, _Known(-1, [])
            if self._opened is None and inode:
                self._open()

    def _open(self) -> None:
        store = Store(self._index)
        inode = os.stat(store.path).st_ino
        self._opened = _Opened(store, Writer(store), inode)

    def write(self, change: Callable[[Writing], _T], *, make: bool = False) -> _T:
        """Make a change, durably; with `make` also the file if there is none.

        Raises `UnknownCrawl` without a file, `IndexUnavailable` if it cannot be written.
        """
        self._look()
        with self._busy:
            if self._opened is None and make:
                if not os.access(self._index, os.W_OK):
                    raise IndexUnavailable(f"{self._index} cannot be written to by the server")
                self._open()
            opened = self._opened
        if opened is None:
            raise UnknownCrawl("no crawl was begun here; begin one with POST /crawls")
        return opened.writer.write(change)

    def write_asked(self) -> None:
        """Write down who has asked since this was called last; raises `IndexUnavailable`."""
        counted = self.asked.taken()
        if counted and self._opened is not None:
            self.write(lambda writing: add_asked(writing, counted.items(), time.time()))

    def _look(self) -> None:
        if self._opened is None:
            self.refresh()

    def store(self) -> Store | None:
        """The open file, None if there is none."""
        self._look()
        return None if self._opened is None else self._opened.store

    @contextmanager
    def reading(self) -> Iterator[Reading | None]:
        """A consistent state of the crawls, None if there are none."""
        self._look()
        opened = self._opened
        if opened is None:
            yield None
            return
        with opened.store.reading() as reading:
            yield reading

    @contextmanager
    def seen(self, base: Finder, keys: Keys, asker: str) -> Iterator[Finder]:
        """Index and crawls as a crawl sees them, or ("") anybody; raises `UnknownCrawl`."""
        if asker:
            self._look()
        opened = self._opened
        if opened is None:
            with seen(None, base, keys, asker) as only:
                yield only
            return
        with opened.store.reading() as reading:
            visible = self._of(reading).visible(asker)
            yield Both(base, reading, visible, keys) if visible else base

    def covers_of(self, asker: str) -> Covers:
        """What the digests of a crawl are taken of; UNKNOWN for a crawl that is unknown too."""
        with self.reading() as reading:
            if reading is None:
                return Covers.UNKNOWN
            return self._of(reading).covers.get(asker, Covers.UNKNOWN)

    def completed(self, query: Query) -> Query:
        """A query with what its crawl said when it began."""
        if query.crawl and not query.covers:
            return replace(query, covers=self.covers_of(query.crawl))
        return query

    def silent(self, prefix: bytes, asker: str) -> bool:
        """Whether crawls have nothing to say of a digest, and the asker is known."""
        opened = self._opened
        if opened is None:
            return not asker  # who asks the other way is told
        with opened.store.reading() as reading:
            self._of(reading).visible(asker)
            return next(under(reading, prefix), None) is None

    def _of(self, reading: Reading) -> _Known:
        version = reading.version()
        known = self._known
        if known.version != version:
            known = self._known = _Known(version, list(reading.crawls()))
        return known
