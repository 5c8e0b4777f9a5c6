"""What an index knows of revisits that refer to records of a set: such records stay as they are.

The ledger of an index has the revisits that were read. The revisits of a crawl are not known until
its WARCs are read: until then all captures that its lookups may have been answered with are kept.
If the ledger of a cluster lacks some, this holds for all captures.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from dedupindex.cache import Cache
from dedupindex.capture import Covers
from dedupindex.crawls.crawl import CrawlState
from dedupindex.crawls.crawl_captures import with_prefix
from dedupindex.crawls.store import Reading
from dedupindex.crawls.stores import open_store
from dedupindex.crawls.unread_crawls import WITHOUT_WARCS, unread_crawls
from dedupindex.digest import Digest
from dedupindex.index.engine import Engine, View
from dedupindex.index.format.cells import (
    DEPENDENT,
    NOWHERE,
    ContainerRef,
    decode,
    digest_of_key,
    digest_prefix,
    entries_of,
)
from dedupindex.index.format.file_names import files_of
from dedupindex.index.format.ledger import Dependent, split_items
from dedupindex.index.format.tombstones import RECORD, REVISIT
from dedupindex.object_store import is_remote
from dedupindex.post_crawl.manifest.parquet import Line
from dedupindex.post_crawl.manifest.record_lines import REVISIT_TARGET, replay_key_of
from dedupindex.post_crawl.plan.manifest_input import ANY_DIGEST
from dedupindex.runtime.tables import names_text
from dedupindex.timestamps import digits_of_date

_ANY = ANY_DIGEST.encode()
_NAMED = 5  # crawls in a message


def real_path(path: str) -> str:
    """Return a path without links; an address as it is."""
    return path if is_remote(path) else os.path.realpath(path)


class IndexReferences(AbstractContextManager["IndexReferences"]):
    """The references to captures that an open index knows, or has to assume."""

    def __init__(self, index: Path, engine: Engine, view: View) -> None:
        """Open the crawls of the index as well; raises `DedupError`."""
        self._index, self._view = index, view
        self._keys = engine.identity.settings.keys()
        self._gap = engine.ledger_gap()
        self._reading: Reading | None = None
        self._unread: Mapping[str, int] = {}
        self._open = list[str]()  # those of the unread crawls that have not ended
        self._outside, self._of_set = Cache[str, bool](), Cache[str, bool]()  # by name of a file
        self._closing = ExitStack()

    def __enter__(self) -> IndexReferences:
        store = open_store(self._index)
        if store is not None:
            self._closing.enter_context(closing(store))
            self._reading = self._closing.enter_context(store.reading())
            self._unread = unread_crawls(self._view, self._reading)
            unread = map(self._reading.crawl, sorted(self._unread))
            self._open = [one.name for one in unread if one.state is CrawlState.OPEN]
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    @cached_property
    def why_kept(self) -> str:
        """Why captures that the index has are kept; "" if its ledger has all references."""
        if self._gap:
            return f"{self._gap}. Captures of the sources that the index has are kept (indexed)"
        if not self._unread:
            return ""
        end = ""
        if self._open:
            end = f"commit or cancel {names_text(self._open, _NAMED)} (POST /crawls/NAME/commit), "
        return (
            f"the revisits of {names_text(sorted(self._unread), _NAMED)} are not known: captures "
            f"of the sources that the index has are kept (indexed). To replace them as well, {end}"
            "read the WARCs of these crawls first: bin/index --add --crawl NAME FILE... INDEX "
            f"({WITHOUT_WARCS})"
        )

    def from_ledger(self, paths: Collection[str]) -> Iterator[Line]:
        """Yield what each revisit in the ledger refers to, as a manifest has references.

        `paths` are those of the set, without links. A reference to a capture in another file has no
        URL: without a record of its second in the set, it protects nothing there.
        """
        for key, group in groupby(self._ledger(), itemgetter(0)):
            digest, copies = digest_of_key(key), list[bytes]()
            elsewhere: set[tuple[bytes, bytes]] | None = None
            for _, body in group:
                if body[0] != DEPENDENT:
                    copies.append(body)
                    continue
                revisit = Dependent.of(body)
                if self._is_of_set(self._place_of(revisit.container).container, paths):
                    continue  # the manifest has it
                if elsewhere is None:
                    elsewhere = self._elsewhere(key, copies, paths)
                url, date = revisit.names_url, revisit.names_date
                known = bool(date) and (digits_of_date(date), url) in elsewhere
                yield Line(
                    0, 0, 0, b"", b"" if known else url, date, _ANY + digest.algorithm.encode(),
                    digest.raw, int(Covers.UNKNOWN), b"", 0, 0, b"\n", b"",
                    replay_key_of(url, date) if date else 0, REVISIT_TARGET, REVISIT_TARGET,
                )  # fmt: skip

    def _elsewhere(
        self, key: bytes, copies: list[bytes], paths: Collection[str]
    ) -> set[tuple[bytes, bytes]]:
        """Return 14 digits and URL of the records of a key that are in files outside of the set."""
        found = set()
        cell = self._view.cell(key)
        for entry in (*copies, *(entries_of(cell) if cell else ())):
            if entry[0] & 3 == RECORD:
                capture = decode(key, entry, self._place_of)
                if self._is_outside(capture.container, paths):
                    found.add((digits_of_date(capture.date), capture.url))
        return found

    def _is_outside(self, name: str, paths: Collection[str]) -> bool:
        """Whether a file is not one of the set, and is still there."""
        known = self._outside.get(name)
        if known is None:
            known = not self._is_of_set(name, paths) and (
                is_remote(name) or any(map(os.path.isfile, files_of(name)))
            )
            self._outside.keep(name, known)
        return known

    def _is_of_set(self, name: str, paths: Collection[str]) -> bool:
        known = self._of_set.get(name)
        if known is None:
            known = self._of_set.keep(name, real_path(name) in paths)
        return known

    def _place_of(self, number: int) -> ContainerRef:
        return self._view.place_of(number) if number else NOWHERE

    def possible_answers(self, digest: Digest) -> Iterator[int]:
        """Yield the replay keys of captures of a digest that unknown revisits may refer to."""
        if self.why_kept:
            prefix = digest_prefix(digest)
            for key, cell in self._view.cells(prefix):
                yield from (
                    _replay_key(key, entry) for entry in entries_of(cell) if entry[0] & 3 != REVISIT
                )
            if self._reading is not None:
                for found in with_prefix(self._reading, prefix):
                    if found.entry[0] & 3 != REVISIT:
                        yield _replay_key(found.key, found.entry)

    def possible_former_answers(self) -> Iterator[int]:
        """Yield the same for captures of any digest that have lost their place in the index."""
        if self.why_kept:
            for key, body in self._ledger():
                if body[0] != DEPENDENT:
                    yield _replay_key(key, body)

    def _ledger(self) -> Iterator[tuple[bytes, bytes]]:
        """Return the keys of all items of the ledger, and what follows them."""
        return split_items(self._view.ledger(), self._keys)


def _replay_key(key: bytes, entry: bytes) -> int:
    capture = decode(key, entry, lambda number: NOWHERE)
    return replay_key_of(capture.url, capture.date)
