"""What an index knows of revisits that refer to records of a set: such records stay as they are.

The ledger of an index has the revisits that were read. The revisits of a crawl are not known until
its WARCs are read: until then all captures that its lookups may have been answered with are kept.
An index on a cluster remembers no revisits, so there this holds for all captures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing
from functools import cached_property
from pathlib import Path

from dedupindex.capture import Covers
from dedupindex.crawls.crawl_captures import with_prefix
from dedupindex.crawls.store import Reading
from dedupindex.crawls.stores import open_store
from dedupindex.crawls.unread_crawls import unread_crawls
from dedupindex.digest import Digest
from dedupindex.index.address import is_cluster
from dedupindex.index.engine import Engine, View
from dedupindex.index.format.cells import (
    DEPENDENT,
    NOWHERE,
    decode,
    digest_prefix,
    entries_of,
)
from dedupindex.index.format.ledger import Dependent, items
from dedupindex.index.format.tombstones import REVISIT
from dedupindex.post_crawl.manifest.parquet import Line
from dedupindex.post_crawl.manifest.record_lines import REVISIT_TARGET, replay_key_of
from dedupindex.post_crawl.plan.manifest_input import ANY_DIGEST

_ANY = ANY_DIGEST.encode()
_NAMED = 5  # crawls in a message


class IndexReferences(AbstractContextManager["IndexReferences"]):
    """The references to captures that an open index knows, or has to assume."""

    def __init__(self, index: Path, engine: Engine, view: View) -> None:
        """Open the crawls of the index as well; raises `DedupError`."""
        self._index, self._view = index, view
        self._lengths = engine.identity.settings.keys().lengths()
        self._remembers = not is_cluster(engine.identity.engine)
        self._reading: Reading | None = None
        self._unread: Mapping[str, int] = {}
        self._closing = ExitStack()

    def __enter__(self) -> IndexReferences:
        store = open_store(self._index)
        if store is not None:
            self._closing.enter_context(closing(store))
            self._reading = self._closing.enter_context(store.reading())
            self._unread = unread_crawls(self._view, self._reading)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    @cached_property
    def why_kept(self) -> str:
        """Why captures that the index has are kept; "" if its ledger has all references."""
        if not self._remembers:
            return (
                "an index on a cluster does not remember revisits: captures of the sources that it "
                "has are kept (indexed)"
            )
        if not self._unread:
            return ""
        names = sorted(self._unread)
        more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        return (
            f"the revisits of {', '.join(names[:_NAMED])}{more} are not known: captures of the "
            "sources that the index has are kept (indexed). To replace them as well, read the "
            "WARCs of these crawls first: bin/index --add --crawl NAME"
        )

    def from_ledger(self) -> Iterator[Line]:
        """Yield what each revisit in the ledger refers to, as a manifest has references."""
        for _, body in self._ledger():
            if body[0] == DEPENDENT:
                revisit = Dependent.of(body)
                key = (
                    replay_key_of(revisit.names_url, revisit.names_date)
                    if revisit.names_date
                    else 0
                )
                yield Line(
                    0, 0, 0, b"", revisit.names_url, revisit.names_date, _ANY, b"",
                    int(Covers.UNKNOWN), b"", 0, 0, b"\n", b"", key, REVISIT_TARGET, REVISIT_TARGET,
                )  # fmt: skip

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
        """Yield the keys of all items of the ledger, and what follows them."""
        names = self._view.ledger() if self._remembers else []
        for item in items(self._index, names):
            end = self._lengths[item[0]]
            yield item[:end], item[end:]


def _replay_key(key: bytes, entry: bytes) -> int:
    capture = decode(key, entry, lambda number: NOWHERE)
    return replay_key_of(capture.url, capture.date)
